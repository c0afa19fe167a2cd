//! Values of options: names with the list of possible ones, durations and percentages.

use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use elbowroom::graph::zoo;
use elbowroom::ir::Bytes;
use elbowroom::{pack, registry, sim};

/// The name of a network. Help lists the names and patterns such as `resnetN`; which depths `N` may be is decided where the network is
/// built.
#[derive(Clone)]
pub struct NetworkName;

impl TypedValueParser for NetworkName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(zoo::NAMES.iter().map(PossibleValue::new)))
    }
}

/// The names of all planners.
pub fn planner_name() -> PossibleValuesParser {
    PossibleValuesParser::new(registry::planner_names())
}

/// The name of a packer. One that this command was built without says how to build it.
#[derive(Clone)]
pub struct PackerName;

impl TypedValueParser for PackerName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        if cfg!(not(feature = "highs")) && value == "mip" {
            let message = "mip needs the solver HiGHS: build the command with `cargo build --release --features highs`, \
                           which needs a C++ compiler, CMake and libclang; `exact` proves optima without it\n";
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message).with_cmd(command));
        }
        PossibleValuesParser::new(packers()).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(packers().map(PossibleValue::new)))
    }
}

/// The names of all packers.
fn packers() -> impl Iterator<Item = &'static str> {
    pack::PACKERS.iter().map(|packer| packer.name())
}

/// The names of all machines.
pub fn machine_name() -> PossibleValuesParser {
    PossibleValuesParser::new(sim::presets::NAMES)
}

/// Reads `15%`, or a bare number of percent, as a share.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim();
    match number.strip_suffix('%').unwrap_or(number).trim().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a percentage; write it like 0% or 15%")),
    }
}

/// Reads a percentage of which something is left on either side: above 0 and below 100.
pub fn parse_part(text: &str) -> Result<f64, String> {
    match parse_percent(text)? {
        share if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err(format!(
            "`{text}` leaves nothing on one side; write more than 0% and less than 100%, like 10%"
        )),
    }
}

/// Reads a norm: a positive number.
pub fn parse_norm(text: &str) -> Result<f32, String> {
    match text.trim().parse::<f32>() {
        Ok(norm) if norm.is_finite() && norm > 0.0 => Ok(norm),
        _ => Err(format!("`{text}` is not a norm; write a positive number, like 1 or 0.5")),
    }
}

/// Reads `500ms`, `10s`, `2m`, `1h` or bare seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let malformed = || format!("`{text}` is not a duration; write it like 500ms, 10s or 2m");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let seconds_per_unit = match &trimmed[split..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(malformed()),
    };
    let number: f64 = trimmed[..split].trim().parse().map_err(|_| malformed())?;
    if number.is_nan() || number < 0.0 {
        return Err(malformed());
    }
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| malformed())
}

/// `NAME=CAPACITY@COST` of the command line; the capacity may be `unlimited`, and the cost may be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankSpec {
    /// Its name.
    pub name: String,
    /// Its bytes; `None` for no limit.
    pub capacity: Option<Bytes>,
    /// What a byte of traffic costs.
    pub cost: Option<u64>,
}

impl FromStr for BankSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "a bank is NAME=CAPACITY or NAME=CAPACITY@COST, like tcm=64KiB@1; the capacity may be `unlimited`";
        let (name, rest) = text.split_once('=').ok_or(form)?;
        let (capacity, cost) =
            rest.split_once('@').map_or((rest, None), |(capacity, cost)| (capacity, Some(cost)));
        if name.trim().is_empty() || name.contains(char::is_whitespace) {
            return Err("the name of a bank may not be empty or contain spaces".to_owned());
        }
        let capacity = match capacity.trim() {
            "unlimited" => None,
            bytes => Some(bytes.parse::<Bytes>().map_err(|error| format!("{error}; {form}"))?),
        };
        let cost = match cost.map(str::trim) {
            None => None,
            Some(cost) => match cost.parse::<u64>() {
                Ok(cost) => Some(cost),
                Err(_) => return Err(format!("the cost `{cost}` is not a whole number; {form}")),
            },
        };
        Ok(Self { name: name.trim().to_owned(), capacity, cost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [("500ms", 500), ("10s", 10_000), ("1.5 m", 90_000), ("3", 3_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "1 fortnight", "nans", "1e300h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn banks_are_read_and_mistakes_named() {
        let read = |text: &str| text.parse::<BankSpec>();
        let bank = |capacity, cost| BankSpec { name: "tcm".to_owned(), capacity, cost };
        assert_eq!(read("tcm=64KiB@2"), Ok(bank(Some(Bytes(65_536)), Some(2))));
        assert_eq!(read("tcm=unlimited"), Ok(bank(None, None)));
        for (text, message) in [
            ("tcm", "a bank is NAME=CAPACITY"),
            ("=4", "the name of a bank"),
            ("a b=4", "the name of a bank"),
            ("tcm=4@fast", "the cost `fast`"),
        ] {
            assert!(read(text).unwrap_err().starts_with(message), "{text}");
        }
        assert!(read("tcm=lots").is_err());
    }
}
