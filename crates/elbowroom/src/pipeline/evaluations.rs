//! The evaluations of a plan: numbers that reproduce it, even if the clock stopped parts of the search.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use elbowroom_ir::Bytes;

/// Evaluations of a plan, round by round. As text, `812` for one round and `812,40,3` for three. If the clock stopped the packer of the first
/// round after 350 evaluations, `812/350,40`; if only two searches of peers finished in time, `812,40+2`. Without a round, `+0`: the plan
/// that a time limit finds at once, where the search found no other. `256@40960` is a plan of the search for the smallest limit ([`Quick`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    /// The rounds of the planner, in order.
    pub rounds: Vec<Round>,
    /// Whether each round continued from those before it, as rounds under a time limit do. As text `20000-20000-812`, and `812-` for one round.
    pub continued: bool,
    /// Number of searches that finished after the rounds: short searches of the planner, and searches of its peers. `None` for all of them.
    pub peer_searches: Option<u32>,
    /// Evaluations that each of these searches may make: present if the budget allowed fewer than they make otherwise, or if there was one round.
    pub peer_evaluations: Option<u64>,
    /// The short search for another limit that found the plan, in place of rounds.
    pub quick: Option<Quick>,
}

/// A short search for a limit, as the search for the smallest limit makes many. Its plan serves every limit that holds its arena. As text,
/// `256@40960` for 256 evaluations and a limit of 40,960 bytes, and `@40960` if the planner was `floor`, with which that search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quick {
    /// Evaluations of the planner; `None` for the planner `floor`.
    pub evaluations: Option<u64>,
    /// The limit.
    pub limit: Bytes,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Evaluations of the planner.
    pub planner: u64,
    /// Evaluations of the packer if the clock stopped it. `None` if it stopped by itself: with a placement, or after a fixed amount of work.
    pub packer: Option<u64>,
}

/// Between the rounds that continue from one another.
const CONTINUED: char = '-';

/// Why a text cannot be parsed as evaluations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no number of evaluations; write one number for every round, like 20000, or the list that a plan reported, like 812,40,3 or 5000-5000-812"
)]
pub struct ParseEvaluationsError {
    text: String,
    source: ParseIntError,
}

impl Evaluations {
    /// A single round with this many evaluations of the planner.
    pub fn once(planner: u64) -> Self {
        Self { rounds: vec![Round { planner, packer: None }], ..Self::default() }
    }

    /// No round and no search: what reproduces the plan that is found at once.
    pub(super) fn at_once() -> Self {
        Self { peer_searches: Some(0), ..Self::default() }
    }

    /// A short search for another limit.
    pub(super) fn quick(evaluations: Option<u64>, limit: Bytes) -> Self {
        Self { quick: Some(Quick { evaluations, limit }), ..Self::default() }
    }

    /// Sum of the planner's evaluations over all rounds.
    pub fn total(&self) -> u64 {
        self.rounds.iter().map(|round| round.planner).sum()
    }

    /// The evaluations of the only round if nothing else was recorded. As a budget, this number applies to every round.
    pub fn single(&self) -> Option<u64> {
        match (self.rounds.as_slice(), self.peer_searches, self.peer_evaluations) {
            (&[Round { planner, packer: None }], None, None) if !self.continued => Some(planner),
            _ => None,
        }
    }
}

impl fmt::Display for Evaluations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Quick { evaluations, limit }) = self.quick {
            evaluations.map_or(Ok(()), |evaluations| write!(f, "{evaluations}"))?;
            return write!(f, "@{}", limit.get());
        }
        for (index, Round { planner, packer }) in self.rounds.iter().enumerate() {
            let separator = if self.continued { CONTINUED } else { ',' };
            (index > 0).then(|| write!(f, "{separator}")).transpose()?;
            write!(f, "{planner}")?;
            packer.map_or(Ok(()), |packer| write!(f, "/{packer}"))?;
        }
        if self.continued && self.rounds.len() < 2 {
            write!(f, "{CONTINUED}")?;
        }
        self.peer_searches.map_or(Ok(()), |searches| write!(f, "+{searches}"))?;
        self.peer_evaluations.map_or(Ok(()), |evaluations| write!(f, "~{evaluations}"))
    }
}

impl FromStr for Evaluations {
    type Err = ParseEvaluationsError;

    fn from_str(text: &str) -> Result<Self, ParseEvaluationsError> {
        let read = || -> Result<Self, ParseIntError> {
            if let Some((evaluations, limit)) = text.split_once('@') {
                let evaluations = Some(evaluations.trim()).filter(|text| !text.is_empty());
                let evaluations = evaluations.map(str::parse).transpose()?;
                return Ok(Self::quick(evaluations, Bytes(limit.trim().parse()?)));
            }
            let (text, peer_evaluations) = match text.split_once('~') {
                Some((text, evaluations)) => (text, Some(evaluations.trim().parse()?)),
                None => (text, None),
            };
            let (rounds, peer_searches) = match text.split_once('+') {
                Some((rounds, searches)) => (rounds, Some(searches.trim().parse()?)),
                None => (text, None),
            };
            let round = |round: &str| {
                let (planner, packer) = match round.split_once('/') {
                    Some((planner, packer)) => (planner, Some(packer.trim().parse()?)),
                    None => (round, None),
                };
                Ok(Round { planner: planner.trim().parse()?, packer })
            };
            let continued = rounds.contains(CONTINUED);
            let rounds = match rounds.strip_suffix(CONTINUED) {
                Some(round) if !round.contains(CONTINUED) => round,
                _ => rounds,
            };
            let none = rounds.is_empty() && (peer_searches.is_some() || continued);
            let separator = if continued { CONTINUED } else { ',' };
            let rounds = rounds.split(separator).filter(|_| !none).map(round);
            let rounds = rounds.collect::<Result<_, _>>()?;
            Ok(Self { rounds, continued, peer_searches, peer_evaluations, quick: None })
        };
        read().map_err(|source| ParseEvaluationsError { text: text.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parsed_to_the_same_evaluations() {
        for text in [
            "812",
            "0",
            "812,40,3",
            "812/350,40",
            "812,40+2",
            "1/20,2/3,4+0",
            "20,20~20",
            "20~20",
            "20,7+3~20",
            "+0",
            "256@40960",
            "@40960",
            "812-",
            "20000-20000-812",
            "20000-20000-812+2",
            "-",
        ] {
            assert_eq!(text.parse::<Evaluations>().unwrap().to_string(), text);
        }
        assert_eq!("812".parse::<Evaluations>().unwrap().single(), Some(812));
        for text in ["812-", "812-40", "812,812", "812/20", "812+0", "20~20", "812@64", "@64"] {
            assert_eq!(text.parse::<Evaluations>().unwrap().single(), None, "{text}");
        }
        for text in [
            "", "--", "1--", "-1-2", "1-2-", "1-2,3", "many", "1,", "1+", "+", ",+1", "1/", "-3", "1+2+3",
            "1;2", "1~", "1~2~3", "1~2+3", "~1", "@", "1@", "1,2@3", "1@2@3",
        ] {
            assert!(text.parse::<Evaluations>().is_err(), "{text}");
        }
    }
}
