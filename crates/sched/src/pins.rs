//! Decisions of the user about a trace: tensors that stay on the device, ops that run once, persistent tensors that live on the host.
//!
//! A file of pins has one decision a line, a verb and a pattern:
//!
//! ```text
//! keep             layers.3.*.attention   # these tensors stay on the device from when they are made to their last use
//! never-recompute  *softmax*              # these ops are never recomputed
//! host             layers.?.mlp           # these persistent tensors are on the host between iterations
//! ```
//!
//! In a pattern `*` stands for any characters and `?` for one. A pattern means the names that it matches as a whole, and everything inside
//! a module that it matches: `layers.3` is also `layers.3.mlp.weight`. `keep` and `never-recompute` look at the names of tensors and of ops,
//! the latter also at the kinds of ops; `host` looks at the names of persistent tensors. Of several lines for one persistent tensor the last
//! one counts.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use elbowroom_ir::planning::{Freedom, Pins};
use elbowroom_ir::trace::{Again, Trace};
use elbowroom_ir::{Bytes, OpId, TensorId};
use serde::Serialize;

use crate::pattern;
use crate::policy::{Boundary, Policy};

/// What a line decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Tensors stay on the device from when they are made to their last use.
    Keep,
    /// Ops are never recomputed.
    NeverRecompute,
    /// Persistent tensors are on the host between iterations.
    Host,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Keep, Self::NeverRecompute, Self::Host];

    /// The word for it in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::NeverRecompute => "never-recompute",
            Self::Host => "host",
        }
    }
}

impl FromStr for Verb {
    type Err = PinError;

    fn from_str(word: &str) -> Result<Self, PinError> {
        let verb = Self::ALL.into_iter().find(|verb| verb.name() == word);
        verb.ok_or_else(|| PinError::Verb { word: word.to_owned() })
    }
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pin {
    /// What is decided.
    pub verb: Verb,
    /// For which names.
    pub pattern: String,
}

/// Why pins cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// A line is not a verb and a pattern.
    #[error(
        "line {line}: `{text}` is no pin; write keep, never-recompute or host and a pattern, like `keep layers.3.*`"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A word is no verb.
    #[error("`{word}` is no verb of a pin; the verbs are keep, never-recompute and host")]
    Verb {
        /// The word.
        word: String,
    },
    /// A pattern matches nothing that its verb can decide.
    #[error("{}", unmatched(*.verb, .pattern, .example.as_deref()))]
    Unmatched {
        /// What was to be decided.
        verb: Verb,
        /// The pattern.
        pattern: String,
        /// A name that it could have matched.
        example: Option<String>,
    },
    /// A persistent tensor cannot stay on the device between iterations, because its end has other bytes than its beginning.
    #[error(
        "`keep {pattern}` names {tensor}, which ends in other bytes than it begins in and so lies on the host between iterations"
    )]
    CannotStay {
        /// The pattern.
        pattern: String,
        /// The tensor.
        tensor: String,
    },
    /// Tensors cannot live on the host where nothing may be offloaded.
    #[error("`host {pattern}` contradicts a plan without offload")]
    NoOffload {
        /// The pattern.
        pattern: String,
    },
}

fn unmatched(verb: Verb, pattern: &str, example: Option<&str>) -> String {
    let what = match verb {
        Verb::Keep => "no tensor and no op",
        Verb::NeverRecompute => "no op that may be recomputed",
        Verb::Host => "no persistent tensor",
    };
    let example = example.map_or_else(String::new, |name| format!("; one is called {name}"));
    format!("the pattern `{pattern}` matches {what}{example}")
}

/// What a decision covers.
#[derive(Clone, Debug, Serialize)]
pub struct Pinned {
    /// The decision.
    #[serde(flatten)]
    pub pin: Pin,
    /// Number of tensors, or of ops for [`Verb::NeverRecompute`].
    pub count: usize,
    /// Bytes of the tensors, or of the outputs of the ops.
    pub bytes: Bytes,
}

/// The pins of a file.
///
/// # Errors
///
/// [`PinError::Line`] for a line that is not a verb and a pattern.
pub fn parse(text: &str) -> Result<Vec<Pin>, PinError> {
    let lines =
        (1..).zip(text.lines()).map(|(line, text)| (line, text.split('#').next().unwrap_or("").trim()));
    let pin = |(line, text): (usize, &str)| {
        let wrong = || PinError::Line { line, text: text.to_owned() };
        let mut words = text.split_whitespace();
        let word = words.next();
        let verb = word.and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
        match (words.next(), words.next()) {
            (Some(pattern), None) => Ok(Pin { verb, pattern: pattern.to_owned() }),
            _ => Err(wrong()),
        }
    };
    lines.filter(|(_, text)| !text.is_empty()).map(pin).collect()
}

/// A trace about which pins have decided.
pub struct Decided {
    /// The trace. It differs from the one that was given in the ops that are never recomputed. A plan for it is legal for the given trace, too,
    /// once it states that one's fingerprint: the given trace only permits more.
    pub trace: Arc<Trace>,
    /// The decisions, for a [`Request`](elbowroom_ir::planning::Request).
    pub pins: Pins,
    /// What each pin covers, in their order.
    pub pinned: Vec<Pinned>,
}

/// Decides about the tensors and ops of a trace.
///
/// # Errors
///
/// A [`PinError`] if a pin covers nothing or cannot be obeyed with this freedom.
pub fn decide(trace: &Arc<Trace>, freedom: Freedom, pins: &[Pin]) -> Result<Decided, PinError> {
    let mut decided = Pins::default();
    let mut once: BTreeSet<OpId> = BTreeSet::new();
    let mut pinned = Vec::new();
    for pin in pins {
        let (count, bytes) = match pin.verb {
            Verb::Keep => {
                let tensors = tensors(trace, &pin.pattern);
                expect_stays(trace, &pin.pattern, &tensors)?;
                let hosted = |index: &usize| {
                    let pair = trace.persistent()[*index];
                    tensors.contains(&pair.begin) || tensors.contains(&pair.end)
                };
                decided.hosted.retain(|index| !hosted(index));
                once.extend(tensors.iter().filter_map(|&tensor| trace.producer(tensor)));
                decided.kept.extend(&tensors);
                (tensors.len(), tensors.iter().map(|&tensor| trace.bytes(tensor)).sum())
            }
            Verb::NeverRecompute => {
                let ops = ops(trace, &pin.pattern);
                once.extend(&ops);
                let outputs = ops.iter().flat_map(|&op| &trace.ops()[op].outputs);
                (ops.len(), outputs.map(|&tensor| trace.bytes(tensor)).sum())
            }
            Verb::Host if !freedom.offload => {
                return Err(PinError::NoOffload { pattern: pin.pattern.clone() });
            }
            Verb::Host => {
                let pairs = trace.persistent().iter().enumerate();
                let named = pairs.filter(|(_, pair)| {
                    [pair.begin, pair.end]
                        .iter()
                        .any(|&tensor| matches(&pin.pattern, &trace.tensors()[tensor].name))
                });
                let named: Vec<(usize, TensorId)> = named.map(|(index, pair)| (index, pair.begin)).collect();
                for &(index, begin) in &named {
                    decided.hosted.insert(index);
                    decided.kept.remove(&begin);
                    decided.kept.remove(&trace.persistent()[index].end);
                }
                (named.len(), named.iter().map(|&(_, tensor)| trace.bytes(tensor)).sum())
            }
        };
        if count == 0 {
            let Pin { verb, pattern } = pin.clone();
            return Err(PinError::Unmatched { verb, pattern, example: example(trace, verb) });
        }
        pinned.push(Pinned { pin: pin.clone(), count, bytes });
    }
    let mut data = trace.data().clone();
    once.iter().for_each(|&op| data.ops[op].again = Again::Never);
    // An op that is never recomputed breaks no rule of a trace.
    let trace = Trace::new(data).map_or_else(|_| trace.clone(), Arc::new);
    Ok(Decided { trace, pins: decided, pinned })
}

/// The tensors that a pattern means by their own names or by those of the ops that make them.
fn tensors(trace: &Trace, pattern: &str) -> BTreeSet<TensorId> {
    let made = ops_named(trace, pattern, false).flat_map(|op| trace.ops()[op].outputs.clone());
    let named = trace.tensors().iter().filter(|(_, tensor)| matches(pattern, &tensor.name)).map(|(id, _)| id);
    made.chain(named).collect()
}

/// The ops that may be recomputed and that a pattern means by their own names or kinds or by the names of what they make.
fn ops(trace: &Trace, pattern: &str) -> BTreeSet<OpId> {
    let makers = trace.tensors().iter().filter(|(_, tensor)| matches(pattern, &tensor.name));
    let makers = makers.filter_map(|(id, _)| trace.producer(id));
    let all = ops_named(trace, pattern, true).chain(makers);
    all.filter(|&op| trace.ops()[op].again != Again::Never).collect()
}

fn ops_named(trace: &Trace, pattern: &str, by_kind: bool) -> impl Iterator<Item = OpId> {
    let named = trace
        .ops()
        .iter()
        .filter(move |(_, op)| matches(pattern, &op.name) || (by_kind && matches(pattern, &op.kind)));
    named.map(|(id, _)| id)
}

/// Refuses to keep what cannot end where it began.
fn expect_stays(trace: &Trace, pattern: &str, tensors: &BTreeSet<TensorId>) -> Result<(), PinError> {
    let natural = Policy::keep(trace).boundaries;
    let leaving = trace.persistent().iter().zip(natural).find(|(pair, boundary)| {
        *boundary == Boundary::Host && (tensors.contains(&pair.begin) || tensors.contains(&pair.end))
    });
    leaving.map_or(Ok(()), |(pair, _)| {
        let tensor = trace.tensors()[pair.begin].name.clone();
        Err(PinError::CannotStay { pattern: pattern.to_owned(), tensor })
    })
}

/// A name that a verb can decide about.
fn example(trace: &Trace, verb: Verb) -> Option<String> {
    match verb {
        Verb::Keep => trace.tensors().values().next().map(|tensor| tensor.name.clone()),
        Verb::NeverRecompute => {
            trace.ops().values().find(|op| op.again != Again::Never).map(|op| op.name.clone())
        }
        Verb::Host => trace.persistent().first().map(|pair| trace.tensors()[pair.begin].name.clone()),
    }
}

/// Whether a pattern means a name: as a whole, or a module that contains it.
fn matches(pattern: &str, name: &str) -> bool {
    let modules = name.match_indices(['.', '/']).map(|(end, _)| &name[..end]);
    modules.chain([name]).any(|name| pattern::matches(pattern, name, Some(b'?')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_names_and_what_is_inside_modules() {
        for (pattern, name, means) in [
            ("layers.3", "layers.3.mlp.weight", true),
            ("layers.3", "layers.31.mlp.weight", false),
            ("layers.?", "layers.31.mlp.weight", false),
            ("layers.*.mlp", "layers.31.mlp.weight", true),
            ("*softmax*", "h/7/softmax_2", true),
            ("*", "", true),
            ("", "", true),
            ("?", "", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
        ] {
            assert_eq!(matches(pattern, name), means, "{pattern} {name}");
        }
    }

    #[test]
    fn lines_are_verbs_and_patterns() {
        let pins = parse("# all\n\nkeep a.b # note\nnever-recompute *\n  host w?\n").unwrap();
        let verbs: Vec<Verb> = pins.iter().map(|pin| pin.verb).collect();
        assert_eq!(verbs, [Verb::Keep, Verb::NeverRecompute, Verb::Host]);
        assert_eq!(pins[0].pattern, "a.b");
        for (text, line) in [("keep", 1), ("\nkeep a b", 2), ("evict a", 1)] {
            assert_eq!(
                parse(text).unwrap_err().to_string().split(':').next(),
                Some(&*format!("line {line}"))
            );
        }
    }
}
