//! The machine on which a plan is proved: its memory, alignment and host memory come from the user or from the trace, not from the plan.
//!
//! A plan's file has a `machine` line. To prove the plan on that machine would be to accept what the plan claims: with an alignment of 1
//! and enough memory almost every placement is legal. Each figure therefore comes from the first of these that has it: an option, the
//! machine that the user names, the machine of the trace. The plan has to keep to its own line as well, so that the stricter of the two
//! counts. Where only the plan has a figure, the answer says so.

use std::path::Path;

use anyhow::Result;
use elbowroom::ir::Bytes;
use elbowroom::ir::check::Illegal;
use elbowroom::ir::machine::Machine;
use elbowroom::machine::UnknownMachine;
use elbowroom::sim::presets;
use serde::Serialize;

use crate::args::JudgeArgs;
use crate::settings;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// An option of its own.
    Option,
    /// The machine that the user names.
    Machine,
    /// The machine of the trace.
    Trace,
    /// The plan.
    Plan,
}

/// A figure by which the plan is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its value.
    pub bytes: Bytes,
    /// Its source.
    pub by: By,
    /// The bound that the user or the trace sets, and its source, if the plan's own is stricter.
    pub within: Option<(Bytes, By)>,
}

/// The three figures, and the name of the machine from which those come that no option sets.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The limit on the arena.
    pub memory: Judged,
    /// The alignment of buffers.
    pub align: Judged,
    /// The limit on host copies.
    pub host_memory: Judged,
    /// The machine that the user or the trace names.
    name: String,
}

impl Judge {
    /// Decides by what a plan is judged; `memory` is what the user's option means in bytes.
    ///
    /// # Errors
    /// The user names no known machine, or an impossible alignment.
    pub fn new(
        args: &JudgeArgs,
        memory: Option<Bytes>,
        trace: Option<&Machine>,
        plan: &Machine,
    ) -> Result<Self> {
        let named = match &args.machine {
            Some(name) => Some(presets::machine(name).ok_or_else(|| UnknownMachine { name: name.clone() })?),
            None => None,
        };
        args.align.map_or(Ok(()), settings::expect_alignment)?;
        let (machine, by) = match (&named, trace) {
            (Some(machine), _) => (Some(machine), By::Machine),
            (None, trace) => (trace, By::Trace),
        };
        let judged =
            |option: Option<Bytes>, figure: fn(&Machine) -> Bytes, stricter: fn(Bytes, Bytes) -> Bytes| {
                let own = figure(plan);
                let bound =
                    option.map(|bytes| (bytes, By::Option)).or(machine.map(|machine| (figure(machine), by)));
                match bound {
                    None => Judged { bytes: own, by: By::Plan, within: None },
                    Some((bytes, by)) if stricter(bytes, own) == bytes => Judged { bytes, by, within: None },
                    Some(bound) => Judged { bytes: own, by: By::Plan, within: Some(bound) },
                }
            };
        Ok(Self {
            memory: judged(memory, |machine| machine.memory, Bytes::min),
            // Both are powers of two, so multiples of the larger one are multiples of both.
            align: judged(args.align, |machine| machine.align, Bytes::max),
            host_memory: judged(args.host_memory, |machine| machine.host_memory, Bytes::min),
            name: machine.map_or_else(String::new, |machine| machine.name.clone()),
        })
    }

    /// The machine of the proof. Nothing but the three figures matters for legality.
    pub fn machine(&self, plan: &Machine) -> Machine {
        Machine {
            memory: self.memory.bytes,
            align: self.align.bytes,
            host_memory: self.host_memory.bytes,
            ..plan.clone()
        }
    }

    /// Where a figure comes from, in words.
    pub fn source(&self, figure: &Judged) -> String {
        match figure.within {
            None => self.named(figure.by),
            Some((bound, by)) => format!("of the plan, stricter than {bound} {}", self.named(by)),
        }
    }

    fn named(&self, by: By) -> String {
        match by {
            By::Option => "set by an option".to_owned(),
            By::Machine => format!("of {}, the machine named", self.name),
            By::Trace => format!("of {}, the machine of the trace", self.name),
            By::Plan => "of the plan's own machine".to_owned(),
        }
    }

    /// What the plan alone states, as the end of a sentence; empty if the user or the trace bounds all figures.
    pub fn caveat(&self) -> String {
        let figures =
            [("memory", &self.memory), ("alignment", &self.align), ("host memory", &self.host_memory)];
        let unbounded = figures.iter().filter(|(_, figure)| figure.by == By::Plan && figure.within.is_none());
        let own: Vec<&str> = unbounded.map(|&(name, _)| name).collect();
        match own[..] {
            [] => String::new(),
            [_, _, _] => " by the plan's own machine".to_owned(),
            _ => format!(" by the {} of the plan's own machine", own.join(" and ")),
        }
    }

    /// The sentence that refuses a plan.
    pub fn refusal(&self, path: &Path, illegal: &Illegal) -> String {
        format!("{} is not legal{}: {illegal}", path.display(), self.caveat())
    }
}
