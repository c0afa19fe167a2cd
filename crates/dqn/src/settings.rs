//! The hyper-parameters, all in one place.

use std::str::FromStr;

use elbowroom_ir::Bytes;

/// What can be chosen about the network, its training and the decisions that it takes. Reads `key=value,key=value`; the keys are the
/// fields' names.
///
/// The paper gives `rounds` (T = 4) and the form of everything else; it does not give the numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Episodes of training: passes over the iteration, with a decision at every candidate. Exploration falls from all to nothing over
    /// them (Algorithm 1, line 6).
    pub episodes: u32,
    /// p, the length of a node's state: 1 to 256; multiples of 8 are fastest.
    pub hidden: usize,
    /// T, the rounds of structure2vec: 1 to 16.
    pub rounds: usize,
    /// γ of equation 5, from 0 to 1.
    pub discount: f32,
    /// Step size of Adam at first; it falls to nothing over the episodes, as exploration does.
    pub rate: f32,
    /// Transitions in a mini-batch.
    pub batch: usize,
    /// Mini-batches after every episode.
    pub updates: usize,
    /// Transitions kept for replay; the oldest go first.
    pub replay: usize,
    /// Episodes between two copies of the network into the one that values the next state (equation 5).
    pub target: u32,
    /// Rewards that count as they came before the network values the rest (R. Sutton, 1988). Equation 5 is 1: news then go one decision
    /// back per copy of the network, and there are more decisions than copies. From the most decisions on, the whole episode counts.
    pub ahead: usize,
    /// Whether an action is valued at what was gained after it at least (F. He et al., *Learning to play in a day*, 2017): the environment
    /// has no randomness, so a gain can be repeated. 1 or 0; equation 5 alone is 0.
    pub tighten: bool,
    /// Largest norm of a mini-batch's gradient; longer ones are shortened to it.
    pub clip: f32,
    /// Exploration at the first episode, from 0 to 1: 1 as in the paper; less for a network that has been trained before.
    pub explore: f32,
    /// Episodes without a better plan of its own after which training stops early; 0 for never.
    pub patience: u32,
    /// What a byte that is missing at the end of an episode costs, in copies out and back. With 1, a plan that does not fit is often cheaper
    /// than every plan that does.
    pub shortfall: f32,
    /// Smallest tensor that a decision is taken about; 0 for 1 MiB or a 256th of the peak memory, whichever is less.
    pub least: Bytes,
    /// Whether the plans of fixed rules are played before the first episode and stay in the replay memory: 1 or 0.
    pub imitate: bool,
    /// Episodes between two trials of the network alone, without exploration; the network of the best trial is kept. 0 for one trial, at the
    /// end.
    pub check: u32,
    /// Whether training goes on to the last episode even where a plan takes no longer than any can, for the network's sake: 1 or 0.
    pub through: bool,
    /// Most decisions in an episode: of more candidates, those with the largest tensors.
    pub decisions: usize,
    /// Whether a decision is taken at every node, among all tensors that are on the device then, with a step of training after each, as in the
    /// paper's text, instead of one tensor after another: 1 or 0. Fixed rules are not imitated then.
    pub all: bool,
    /// Whether states of nodes are summed as equations 1 and 2 write, instead of averaged: 1 or 0.
    pub sums: bool,
    /// Whether steps are plain stochastic gradient descent instead of Adam: 1 or 0.
    pub sgd: bool,
    /// Whether a tensor may stay only if it looks as if the other ones suffice: 1 or 0. The paper has no such rule.
    pub mask: bool,
}

impl Settings {
    /// The settings of `--planner dqn`.
    pub const DEFAULT: Self = Self {
        episodes: 200,
        hidden: 16,
        rounds: 4,
        discount: 1.0,
        rate: 3e-3,
        batch: 16,
        updates: 16,
        replay: 8192,
        target: 4,
        ahead: 256,
        tighten: true,
        clip: 1.0,
        explore: 1.0,
        patience: 0,
        shortfall: 10.0,
        least: Bytes::ZERO,
        imitate: true,
        check: 4,
        through: false,
        decisions: 256,
        all: false,
        sums: false,
        sgd: false,
        mask: true,
    };

    /// As the paper's text has it: all tensors in one argmax, equation 5 alone, sums, plain descent after every decision, no imitation, and no rule
    /// about what may stay. What the paper leaves open is as in [`DEFAULT`](Self::DEFAULT).
    pub const PAPER: Self = Self {
        ahead: 1,
        tighten: false,
        imitate: false,
        all: true,
        sums: true,
        sgd: true,
        mask: false,
        ..Self::DEFAULT
    };
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a setting cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Something that is no `key=value`.
    #[error("`{0}` is no setting; write key=value,key=value")]
    Form(String),
    /// A key that there is not.
    #[error("there is no setting `{key}`; there are: {}", Settings::KEYS.join(", "))]
    Key {
        /// The text that was given.
        key: String,
    },
    /// A value out of its range.
    #[error("{key} cannot be {value}; it is {range}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What it was to be.
        value: String,
        /// What it can be.
        range: &'static str,
    },
}

impl Settings {
    /// The names of all settings.
    pub const KEYS: [&'static str; 25] = [
        "episodes",
        "hidden",
        "rounds",
        "discount",
        "rate",
        "batch",
        "updates",
        "replay",
        "target",
        "ahead",
        "tighten",
        "clip",
        "explore",
        "patience",
        "shortfall",
        "least",
        "imitate",
        "check",
        "through",
        "decisions",
        "all",
        "sums",
        "sgd",
        "mask",
        "paper",
    ];

    /// Changes one setting. `paper` changes several: 1 to those of [`PAPER`](Self::PAPER), 0 back.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingsError> {
        let known = Self::KEYS.into_iter().find(|known| *known == key);
        let key = known.ok_or_else(|| SettingsError::Key { key: key.to_owned() })?;
        let wrong = |range| SettingsError::Value { key, value: value.to_owned(), range };
        let count = |from: u64, to: u64, range| {
            value.parse().ok().filter(|n| (from..=to).contains(n)).ok_or_else(|| wrong(range))
        };
        let share = |from: f32, to: f32, range| {
            value.parse().ok().filter(|x| (from..=to).contains(x)).ok_or_else(|| wrong(range))
        };
        let flag = || match value {
            "1" | "true" => Ok(true),
            "0" | "false" => Ok(false),
            _ => Err(wrong("0 or 1")),
        };
        match key {
            "episodes" => self.episodes = count(1, 1 << 24, "1 to 16777216")? as u32,
            "hidden" => self.hidden = count(1, 256, "1 to 256")? as usize,
            "rounds" => self.rounds = count(1, 16, "1 to 16")? as usize,
            "discount" => self.discount = share(0.0, 1.0, "from 0 to 1")?,
            "rate" => self.rate = share(0.0, 1.0, "from 0 to 1")?,
            "batch" => self.batch = count(1, 4096, "1 to 4096")? as usize,
            "updates" => self.updates = count(0, 1 << 16, "0 to 65536")? as usize,
            "replay" => self.replay = count(1, 1 << 22, "1 to 4194304")? as usize,
            "target" => self.target = count(1, 1 << 24, "1 to 16777216")? as u32,
            "ahead" => self.ahead = count(1, 1 << 16, "1 to 65536")? as usize,
            "tighten" => self.tighten = flag()?,
            "clip" => self.clip = share(1e-6, 1e6, "from 0.000001 to 1000000")?,
            "explore" => self.explore = share(0.0, 1.0, "from 0 to 1")?,
            "patience" => self.patience = count(0, 1 << 24, "0 to 16777216")? as u32,
            "shortfall" => self.shortfall = share(0.0, 1e6, "from 0 to 1000000")?,
            "imitate" => self.imitate = flag()?,
            "check" => self.check = count(0, 1 << 24, "0 to 16777216")? as u32,
            "through" => self.through = flag()?,
            "least" => self.least = value.parse().map_err(|_| wrong("a size, like 1MiB"))?,
            "decisions" => self.decisions = count(1, 1 << 16, "1 to 65536")? as usize,
            "all" => self.all = flag()?,
            "sums" => self.sums = flag()?,
            "sgd" => self.sgd = flag()?,
            "mask" => self.mask = flag()?,
            _ => {
                let of = if flag()? { Self::PAPER } else { Self::DEFAULT };
                let Self { ahead, tighten, imitate, all, sums, sgd, mask, .. } = of;
                *self = Self { ahead, tighten, imitate, all, sums, sgd, mask, ..self.clone() };
            }
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut settings = Self::DEFAULT;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| SettingsError::Form(part.to_owned()))?;
            settings.set(key.trim(), value.trim())?;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_text_and_refused_out_of_range() {
        let settings: Settings = "episodes=7,hidden=32,discount=0.9,least=2MiB".parse().unwrap();
        assert_eq!((settings.episodes, settings.hidden, settings.discount), (7, 32, 0.9));
        assert_eq!(settings.least, Bytes(2 << 20));
        assert_eq!("".parse(), Ok(Settings::DEFAULT));
        assert_eq!("paper=true".parse(), Ok(Settings::PAPER));
        assert_eq!("paper=1,paper=false".parse(), Ok(Settings::DEFAULT));
        assert_eq!("paper=1,sums=0".parse(), Ok(Settings { sums: false, ..Settings::PAPER }));
        for wrong in
            ["episodes", "episodes=0", "hidden=257", "discount=nan", "rate=2", "colour=red", "least=many"]
        {
            assert!(wrong.parse::<Settings>().is_err(), "{wrong}");
        }
        for key in Settings::KEYS {
            assert_ne!(
                Settings::DEFAULT.clone().set(key, "1"),
                Err(SettingsError::Key { key: key.to_owned() })
            );
        }
    }
}
