//! Quantities: [`Bytes`] and [`Nanos`]. Two types, because adding bytes to nanoseconds is meaningless.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);
            /// The largest representable quantity.
            pub const MAX: Self = Self(u64::MAX);

            /// The number.
            pub const fn get(self) -> u64 {
                self.0
            }
            /// Whether it is zero.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
            /// The difference, or zero where `other` is larger.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
            /// The sum, or `None` past 2^64: for quantities from input.
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map(Self)
            }
            /// The quotient of this and `whole`; 0 if `whole` is 0.
            pub fn ratio(self, whole: Self) -> f64 {
                if whole.0 == 0 { 0.0 } else { self.0 as f64 / whole.0 as f64 }
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }
        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, times: u64) -> Self {
                Self(self.0 * times)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
                quantities.fold(Self::ZERO, Add::add)
            }
        }
        impl<'a> Sum<&'a Self> for $name {
            fn sum<I: Iterator<Item = &'a Self>>(quantities: I) -> Self {
                quantities.copied().sum()
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

quantity! {
    /// An amount of memory. Displayed with a unit (`1.50 GiB`); files contain the number of bytes.
    Bytes
}

quantity! {
    /// A duration, or a time within an iteration, in nanoseconds. Displayed with a unit (`12.3 ms`).
    Nanos
}

impl Bytes {
    /// Rounded up to a multiple of `align`, which must not be zero.
    #[inline]
    pub const fn align_up(self, align: Self) -> Self {
        // Nearly all alignments are powers of two, and a division takes as long as ten other instructions.
        if !align.0.is_power_of_two() {
            return Self(self.0.next_multiple_of(align.0));
        }
        match self.0 & (align.0 - 1) {
            0 => self,
            past => Self(self.0 + (align.0 - past)),
        }
    }
}

impl Nanos {
    /// The same duration in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// The median, the lower of two middle samples; `None` without samples. Sorts the samples.
pub fn median<T: Copy + Ord>(samples: &mut [T]) -> Option<T> {
    samples.sort_unstable();
    samples.get(samples.len().saturating_sub(1) / 2).copied()
}

impl From<std::time::Duration> for Nanos {
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

const KIB: u64 = 1 << 10;
const UNITS: [(&str, u64); 7] = [
    ("EiB", KIB.pow(6)),
    ("PiB", KIB.pow(5)),
    ("TiB", KIB.pow(4)),
    ("GiB", KIB.pow(3)),
    ("MiB", KIB.pow(2)),
    ("KiB", KIB),
    ("B", 1),
];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS.into_iter().find(|&(_, scale)| self.0 >= scale).unwrap_or(("B", 1));
        let text = if scale == 1 {
            format!("{} {unit}", self.0)
        } else {
            format!("{:.2} {unit}", self.0 as f64 / scale as f64)
        };
        f.pad(&text)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            ns @ 0..1_000 => format!("{ns} ns"),
            ns @ 1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
            ns @ 1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
            ns => format!("{:.2} s", ns as f64 / 1e9),
        };
        f.pad(&text)
    }
}

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// No number, or an unknown unit.
    #[error("`{0}` is not a size; write a number with an optional unit, like 600MiB, 1.5GiB, 2GB or 1048576")]
    Malformed(String),
    /// Not a positive amount below 2^63 bytes.
    #[error("`{0}` is not a usable size; it must be at least one byte and less than 2^63 bytes")]
    OutOfRange(String),
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Parses `600MiB`, `1.5GiB`, `2GB`, `64k`, `1048576`. Binary units count in 1024, decimal ones (`kB MB GB TB PB EB`) in 1000; a fraction of
    /// a byte is cut off. Zero and negative sizes are rejected.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let malformed = || ParseBytesError::Malformed(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
        let (number, unit) = (trimmed[..split].trim(), &trimmed[split..]);
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => KIB.pow(2),
            "g" | "gib" => KIB.pow(3),
            "t" | "tib" => KIB.pow(4),
            "p" | "pib" => KIB.pow(5),
            "e" | "eib" => KIB.pow(6),
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "pb" => 1_000_000_000_000_000,
            "eb" => 1_000_000_000_000_000_000,
            _ => return Err(malformed()),
        };
        // Whole numbers are parsed as integers: a float has too few digits for large ones.
        if let Ok(whole) = number.parse::<u64>() {
            return match whole.checked_mul(scale) {
                Some(bytes) if bytes > 0 && bytes < 1 << 63 => Ok(Self(bytes)),
                _ => Err(ParseBytesError::OutOfRange(text.to_owned())),
            };
        }
        let number: f64 = number.parse().map_err(|_| malformed())?;
        let bytes = number * scale as f64;
        if bytes >= 1.0 && bytes < (1u64 << 63) as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(ParseBytesError::OutOfRange(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("600MiB", 600 << 20), ("1.5GiB", 3 << 29), ("2GB", 2_000_000_000), ("7", 7), ("64 k", 65_536)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("3PiB".parse(), Ok(Bytes(3 << 50)));
        assert_eq!("1.5EB".parse(), Ok(Bytes(1_500_000_000_000_000_000)));
        for text in ["", "MiB", "12 parsecs", "1.2.3", "nan", "infMiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for text in ["0", "-5MiB", "0.1", "9999999999999TiB", "-0"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_print_for_people_and_align() {
        assert_eq!(Bytes(1536 << 20).to_string(), "1.50 GiB");
        for (bytes, text) in [
            (1023, "1023 B"),
            (1 << 40, "1.00 TiB"),
            (5 << 49, "2.50 PiB"),
            (1 << 60, "1.00 EiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}|", Bytes(17)), "      17 B|");
        assert_eq!(Nanos(12_345_678).to_string(), "12.3 ms");
    }
}
