//! Machines as users name them: a preset, and what they change about it.

use std::str::FromStr;

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::{Channel, Machine};

/// A name that no preset has.
#[derive(Debug, thiserror::Error)]
#[error("there is no machine called `{name}`; there are: {}", elbowroom_sim::presets::NAMES.join(", "))]
pub struct UnknownMachine {
    /// The name.
    pub name: String,
}

/// A rate in bytes per second, as users write it: `12.2GB/s`, `500MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = elbowroom_ir::units::ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let per_second = text.trim();
        let per_second = per_second.strip_suffix("/s").unwrap_or(per_second);
        Ok(Self(per_second.parse::<Bytes>()?.get()))
    }
}

/// A link between device and host, as users write it: `12.2GB/s` (one lane each way) or `shared:12.2GB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Whether both directions share one lane.
    pub shared: bool,
    /// Rate of each direction.
    pub rate: Rate,
}

impl FromStr for LinkSpec {
    type Err = elbowroom_ir::units::ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().strip_prefix("shared:") {
            Some(rate) => Ok(Self { shared: true, rate: rate.parse()? }),
            None => Ok(Self { shared: false, rate: text.parse()? }),
        }
    }
}

impl LinkSpec {
    /// The machine with this link in place of its own; without fixed costs, for a user who names a rate means the rate.
    pub fn apply(self, machine: Machine) -> Machine {
        let channel = Channel::with_rate(self.rate.0);
        Machine { to_host: channel, to_device: channel, shared_link: self.shared, ..machine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_people_write_them() {
        let link = |text: &str| text.parse::<LinkSpec>().map(|l| (l.shared, l.rate.0)).ok();
        assert_eq!(link("12.2GB/s"), Some((false, 12_200_000_000)));
        assert_eq!(link("shared:1GiB"), Some((true, 1 << 30)));
        for text in ["", "shared:", "fast", "0GB/s", "-1GB/s"] {
            assert_eq!(link(text), None, "{text}");
        }
    }
}
