//! Schedules of the learning rate: a factor for every iteration, by its number. The factor is an input of the updates, so that one plan serves
//! all iterations.

use std::fmt;
use std::str::FromStr;

/// How the learning rate changes from iteration to iteration.
///
/// ```
/// use elbowroom::train::Schedule;
///
/// let steps: Schedule = "steps:30:0.5".parse()?;
/// assert_eq!([0, 29, 30, 60].map(|iteration| steps.factor(iteration, 90)), [1.0, 1.0, 0.5, 0.25]);
/// let cosine = Schedule::Cosine { warmup: 10 };
/// assert_eq!([0, 9, 55].map(|iteration| cosine.factor(iteration, 100)), [0.1, 1.0, 0.5]);
/// # Ok::<(), elbowroom::train::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Schedule {
    /// The same rate in all iterations.
    #[default]
    Constant,
    /// Rises linearly over the first `warmup` iterations, then falls along half a cosine to zero at the end of the training (Loshchilov and
    /// Hutter, 2017, without restarts).
    Cosine {
        /// Iterations until the rate is reached.
        warmup: u64,
    },
    /// Multiplied by `factor` after every `every` iterations.
    Steps {
        /// Iterations of one step, at least one.
        every: u64,
        /// The factor, from 0 to 1.
        factor: f32,
    },
}

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a schedule; write constant, cosine, cosine:WARMUP, steps:EVERY or steps:EVERY:FACTOR, like cosine:100 or steps:1000:0.1"
)]
pub struct ScheduleError(String);

impl Schedule {
    /// The factor of the learning rate in an iteration, counted from zero, of a training of `total` iterations.
    pub fn factor(&self, iteration: u64, total: u64) -> f32 {
        match *self {
            Self::Constant => 1.0,
            Self::Cosine { warmup } if iteration < warmup => ((iteration + 1) as f64 / warmup as f64) as f32,
            Self::Cosine { warmup } => {
                let share = (iteration - warmup) as f64 / total.saturating_sub(warmup).max(1) as f64;
                (0.5 * (1.0 + (std::f64::consts::PI * share.min(1.0)).cos())) as f32
            }
            Self::Steps { every, factor } => {
                let steps = i32::try_from(iteration / every.max(1)).unwrap_or(i32::MAX);
                f64::from(factor).powi(steps) as f32
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => write!(out, "constant"),
            Self::Cosine { warmup } => write!(out, "cosine:{warmup}"),
            Self::Steps { every, factor } => write!(out, "steps:{every}:{factor}"),
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let wrong = || ScheduleError(text.to_owned());
        let parts: Vec<&str> = text.split(':').collect();
        let count = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        match parts[..] {
            ["constant"] => Ok(Self::Constant),
            ["cosine"] => Ok(Self::Cosine { warmup: 0 }),
            ["cosine", warmup] => Ok(Self::Cosine { warmup: count(warmup)? }),
            ["steps", every] => Self::steps(count(every)?, 0.1).ok_or_else(wrong),
            ["steps", every, factor] => {
                Self::steps(count(every)?, factor.parse().map_err(|_| wrong())?).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl Schedule {
    fn steps(every: u64, factor: f32) -> Option<Self> {
        (every > 0 && (0.0..=1.0).contains(&factor)).then_some(Self::Steps { every, factor })
    }
}

/// A schedule with the iterations of the training for which it was made, as a checkpoint holds it: `cosine:100 of 5000`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Course {
    pub schedule: Schedule,
    pub total: u64,
}

impl Course {
    /// The factor of the learning rate in an iteration.
    pub fn factor(&self, iteration: u64) -> f32 {
        self.schedule.factor(iteration, self.total)
    }

    /// The course in a checkpoint; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (schedule, total) = text.split_once(" of ")?;
        Some(Self { schedule: schedule.parse().ok()?, total: total.parse().ok()? })
    }
}

impl fmt::Display for Course {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of {}", self.schedule, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_they_are_printed() {
        for text in ["constant", "cosine:0", "cosine:12", "steps:5:0.1"] {
            let schedule: Schedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), text);
            let course = Course { schedule, total: 77 };
            assert_eq!(Course::parse(&course.to_string()), Some(course));
        }
        for text in [
            "",
            "cosine:",
            "cosine:-1",
            "steps",
            "steps:0",
            "steps:5:2",
            "steps:5:nan",
            "linear",
            "steps:1:2:3",
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cosine_ends_at_zero_and_never_rises_after_the_warm_up() {
        for (warmup, total) in [(0, 1), (3, 2), (5, 50), (u64::MAX, 3)] {
            let factors: Vec<f32> =
                (0..total).map(|iteration| Schedule::Cosine { warmup }.factor(iteration, total)).collect();
            assert!(factors.iter().all(|factor| (0.0..=1.0).contains(factor)), "{factors:?}");
            let falling = &factors[(warmup as usize).min(factors.len())..];
            assert!(falling.windows(2).all(|pair| pair[0] >= pair[1]));
        }
        assert!(Schedule::Cosine { warmup: 0 }.factor(u64::MAX, 10) < 1e-6);
    }
}
