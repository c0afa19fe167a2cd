//! Memory as users name it: `600MiB`, `70%` of the natural peak, or `min`.

use std::fmt;
use std::str::FromStr;

use elbowroom_ir::Bytes;
use elbowroom_ir::units::ParseBytesError;

/// An amount of device memory, absolute or relative to the *natural peak* (the height of the arena when everything stays).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySpec {
    /// So many bytes.
    Absolute(Bytes),
    /// A share of the natural peak, 1.0 being all of it.
    Share(f64),
    /// The smallest amount for which a plan is found.
    Smallest,
}

/// Why a text names no amount of memory.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParseMemoryError {
    /// Not a percentage above zero.
    #[error("`{0}` is not a usable share of memory; write a positive percentage like 70%")]
    Share(String),
    /// Not a size either.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
}

impl MemorySpec {
    /// The bytes meant, rounded down, where `natural` is the natural peak; `None` for [`Smallest`](Self::Smallest), which takes a search.
    pub fn resolve(self, natural: Bytes) -> Option<Bytes> {
        match self {
            Self::Absolute(bytes) => Some(bytes),
            Self::Share(share) => Some(Bytes((natural.get() as f64 * share) as u64)),
            Self::Smallest => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sizes_and_the_minimum_are_told_apart() {
        let natural = Bytes(1000);
        for (text, bytes) in [
            ("50%", Some(500)),
            ("12.5 %", Some(125)),
            ("120%", Some(1200)),
            ("2KiB", Some(2048)),
            ("MIN", None),
        ] {
            assert_eq!(text.parse::<MemorySpec>().unwrap().resolve(natural), bytes.map(Bytes), "{text}");
        }
        for text in ["0%", "-3%", "%", "nan%", "inf%", "0", "much"] {
            assert!(text.parse::<MemorySpec>().is_err(), "{text}");
        }
    }
}
