//! The evaluations that a plan took: numbers that reproduce it, whatever the clock stopped when it was made.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Evaluations of a plan, round by round. As text, `812` for one round, `812,40,3` for three; if the clock
/// stopped something, also `812/350,40` (the packer of the first round was stopped after 350 evaluations) and `812,40+2` (the searches of two
/// peers finished in time).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    /// The planner's rounds: a round whose schedule does not fit is followed by one with a lower limit on live memory.
    pub rounds: Vec<Round>,
    /// Searches of peers, and short searches, that finished after the rounds; `None` for all of them.
    pub others: Option<u32>,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Evaluations of the planner.
    pub planner: u64,
    /// Evaluations of the packer, if it was stopped. By itself it stops when it has placed every buffer, or after a fixed amount of work.
    pub packer: Option<u64>,
}

/// Why a text names no evaluations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no number of evaluations; write one for each round, like 20000, or those that a plan reported, like 812,40,3 or 812/350,40+2"
)]
pub struct ParseEvaluationsError {
    text: String,
    source: ParseIntError,
}

impl Evaluations {
    /// This many in a single round.
    pub fn once(planner: u64) -> Self {
        Self { rounds: vec![Round { planner, packer: None }], others: None }
    }

    /// Evaluations of the planner in all rounds together.
    pub fn total(&self) -> u64 {
        self.rounds.iter().map(|round| round.planner).sum()
    }

    /// The evaluations of the only round, if nothing else was recorded: a number that holds for every round.
    pub fn single(&self) -> Option<u64> {
        match (self.rounds.as_slice(), self.others) {
            (&[Round { planner, packer: None }], None) => Some(planner),
            _ => None,
        }
    }
}

impl fmt::Display for Evaluations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Round { planner, packer }) in self.rounds.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{planner}")?;
            packer.map_or(Ok(()), |packer| write!(f, "/{packer}"))?;
        }
        self.others.map_or(Ok(()), |others| write!(f, "+{others}"))
    }
}

impl FromStr for Evaluations {
    type Err = ParseEvaluationsError;

    fn from_str(text: &str) -> Result<Self, ParseEvaluationsError> {
        let read = || -> Result<Self, ParseIntError> {
            let (rounds, others) = match text.split_once('+') {
                Some((rounds, others)) => (rounds, Some(others.trim().parse()?)),
                None => (text, None),
            };
            let round = |round: &str| {
                let (planner, packer) = match round.split_once('/') {
                    Some((planner, packer)) => (planner, Some(packer.trim().parse()?)),
                    None => (round, None),
                };
                Ok(Round { planner: planner.trim().parse()?, packer })
            };
            Ok(Self { rounds: rounds.split(',').map(round).collect::<Result<_, _>>()?, others })
        };
        read().map_err(|source| ParseEvaluationsError { text: text.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["812", "0", "812,40,3", "812/350,40", "812,40+2", "1/20,2/3,4+0"] {
            assert_eq!(text.parse::<Evaluations>().unwrap().to_string(), text);
        }
        assert_eq!("812".parse::<Evaluations>().unwrap().single(), Some(812));
        for text in ["812,812", "812/20", "812+0"] {
            assert_eq!(text.parse::<Evaluations>().unwrap().single(), None, "{text}");
        }
        for text in ["", "many", "1,", "1+", "1/", "-3", "1+2+3", "1;2"] {
            assert!(text.parse::<Evaluations>().is_err(), "{text}");
        }
    }
}
