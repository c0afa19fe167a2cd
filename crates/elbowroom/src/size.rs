//! Limits as users write them, `600MiB`, `70%` of the unconstrained peak or `min`; and batches, a number or `max`.

use std::fmt;
use std::str::FromStr;

use elbowroom_ir::Bytes;
use elbowroom_ir::units::ParseBytesError;

/// An amount of device memory, absolute or relative to the *unconstrained peak* (the arena size when every tensor stays on the device).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySpec {
    /// A number of bytes.
    Absolute(Bytes),
    /// A share of the unconstrained peak, 1.0 being all of it.
    Share(f64),
    /// The smallest amount for which a plan is found.
    Smallest,
}

/// Why a text names no amount of memory.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseMemoryError {
    /// Not a percentage above zero.
    #[error("`{0}` is not a usable share of memory; write a positive percentage like 70%")]
    Share(String),
    /// Not a size either.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
}

impl From<Bytes> for MemorySpec {
    fn from(bytes: Bytes) -> Self {
        Self::Absolute(bytes)
    }
}

impl MemorySpec {
    /// The bytes, rounded down; `None` for [`Smallest`](Self::Smallest), which takes a search.
    pub fn resolve(self, unconstrained_peak: Bytes) -> Option<Bytes> {
        match self {
            Self::Absolute(bytes) => Some(bytes),
            Self::Share(share) => Some(Bytes((unconstrained_peak.get() as f64 * share) as u64)),
            Self::Smallest => None,
        }
    }

    /// The bytes, if they do not depend on the unconstrained peak.
    pub fn absolute(self) -> Option<Bytes> {
        match self {
            Self::Absolute(bytes) => Some(bytes),
            Self::Share(_) | Self::Smallest => None,
        }
    }
}

impl FromStr for MemorySpec {
    type Err = ParseMemoryError;

    fn from_str(text: &str) -> Result<Self, ParseMemoryError> {
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("min") {
            return Ok(Self::Smallest);
        }
        let Some(percent) = trimmed.strip_suffix('%') else {
            return Ok(Self::Absolute(trimmed.parse()?));
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 1e6 => Ok(Self::Share(percent / 100.0)),
            _ => Err(ParseMemoryError::Share(text.to_owned())),
        }
    }
}

impl fmt::Display for MemorySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute(bytes) => write!(f, "{bytes}"),
            Self::Share(share) => write!(f, "{}%", share * 100.0),
            Self::Smallest => f.write_str("min"),
        }
    }
}

/// Samples in a batch: a number, or as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSpec {
    /// A number, at least one.
    Samples(u32),
    /// The most for which a plan is found under the limit.
    Largest,
}

/// A text that names no batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a batch size; write a number of samples above zero, or max")]
pub struct ParseBatchError(String);

impl FromStr for BatchSpec {
    type Err = ParseBatchError;

    fn from_str(text: &str) -> Result<Self, ParseBatchError> {
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("max") {
            return Ok(Self::Largest);
        }
        match trimmed.parse() {
            Ok(samples) if samples > 0 => Ok(Self::Samples(samples)),
            _ => Err(ParseBatchError(text.to_owned())),
        }
    }
}

/// Several limits at once, as users write them: `30%..100%`, or a single one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRange {
    /// The smallest.
    pub low: MemorySpec,
    /// The largest.
    pub high: MemorySpec,
}

impl MemoryRange {
    /// Limits in bytes at equal distances, the smallest first; one if both ends are the same. `None` where an end takes a search.
    pub fn resolve(self, peak: Bytes, steps: usize) -> Option<Vec<Bytes>> {
        let (low, high) = (self.low.resolve(peak)?.get(), self.high.resolve(peak)?.get());
        let (low, high) = (low.min(high), low.max(high));
        let gaps = if low == high { 0 } else { steps.saturating_sub(1).max(1) as u64 };
        let at = |i: u64| low + ((u128::from(high - low) * u128::from(i)) / u128::from(gaps.max(1))) as u64;
        Some((0..=gaps).map(|i| Bytes(at(i))).collect())
    }
}

impl FromStr for MemoryRange {
    type Err = ParseMemoryError;

    fn from_str(text: &str) -> Result<Self, ParseMemoryError> {
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        Ok(Self { low: low.parse()?, high: high.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_numbers_or_the_largest() {
        assert_eq!("64".parse(), Ok(BatchSpec::Samples(64)));
        assert_eq!(" Max".parse(), Ok(BatchSpec::Largest));
        for text in ["0", "-1", "", "many", "1.5", "4294967296"] {
            assert!(text.parse::<BatchSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_have_both_ends() {
        let limits = |text: &str, steps| text.parse::<MemoryRange>().unwrap().resolve(Bytes(1000), steps);
        assert_eq!(limits("30%..100%", 8).unwrap(), (3..=10).map(|i| Bytes(100 * i)).collect::<Vec<_>>());
        assert_eq!(limits("50%", 8), Some(vec![Bytes(500)]));
        assert_eq!(limits("90%..10%", 2), Some(vec![Bytes(100), Bytes(900)]));
        assert_eq!(limits("min..100%", 2), None);
    }

    #[test]
    fn shares_sizes_and_the_minimum_are_told_apart() {
        let peak = Bytes(1000);
        for (text, bytes) in [
            ("50%", Some(500)),
            ("12.5 %", Some(125)),
            ("120%", Some(1200)),
            ("2KiB", Some(2048)),
            ("MIN", None),
        ] {
            assert_eq!(text.parse::<MemorySpec>().unwrap().resolve(peak), bytes.map(Bytes), "{text}");
        }
        for text in ["0%", "-3%", "%", "nan%", "inf%", "0", "much"] {
            assert!(text.parse::<MemorySpec>().is_err(), "{text}");
        }
    }
}
