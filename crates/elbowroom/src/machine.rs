//! Rates and links between device and host, as users write them.

use std::str::FromStr;

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::{Channel, Machine};

/// No preset has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no machine called `{name}`; choose one of {}", elbowroom_sim::presets::NAMES.join(", "))]
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

/// A link between device and host, as users write it: `12.2GB/s` (both directions at once), `shared:12.2GB/s`, or `v100` for that machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Whether copies of both directions take turns.
    pub shared: bool,
    /// To the host. A link given by its rate has no fixed cost per copy.
    pub to_host: Channel,
    /// To the device.
    pub to_device: Channel,
}

/// A text is neither a rate nor the name of a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a link; write a rate, like 12.2GB/s or shared:12.2GB/s, or the machine whose link is meant: {}",
    elbowroom_sim::presets::NAMES.join(", ")
)]
pub struct ParseLinkError {
    text: String,
}

impl FromStr for LinkSpec {
    type Err = ParseLinkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(Machine { shared_link: shared, to_host, to_device, .. }) =
            elbowroom_sim::presets::machine(text)
        {
            return Ok(Self { shared, to_host, to_device });
        }
        let (shared, rate) = match text.strip_prefix("shared:") {
            Some(rate) => (true, rate),
            None => (false, text),
        };
        let Rate(rate) = rate.parse().map_err(|_| ParseLinkError { text: text.to_owned() })?;
        let channel = Channel::with_rate(rate);
        Ok(Self { shared, to_host: channel, to_device: channel })
    }
}

impl LinkSpec {
    /// Replaces the link of a machine by this one.
    pub fn apply(self, machine: Machine) -> Machine {
        let Self { shared, to_host, to_device } = self;
        Machine { to_host, to_device, shared_link: shared, ..machine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_people_write_them() {
        let link = |text: &str| text.parse::<LinkSpec>().map(|l| (l.shared, l.to_device.rate)).ok();
        assert_eq!(link("12.2GB/s"), Some((false, 12_200_000_000)));
        assert_eq!(link("shared:1GiB"), Some((true, 1 << 30)));
        let v100 = elbowroom_sim::presets::machine("v100").unwrap();
        let p100 = elbowroom_sim::presets::machine("p100").unwrap();
        assert_eq!("v100".parse::<LinkSpec>().unwrap().apply(p100.clone()).to_host, v100.to_host);
        assert_eq!("p100".parse::<LinkSpec>().unwrap().apply(v100).to_device, p100.to_device);
        for text in ["", "shared:v100", "shared:", "fast", "0GB/s", "-1GB/s"] {
            assert_eq!(link(text), None, "{text}");
        }
    }
}
