//! Traces and plans as text, for people and tests: one printer, one parser, line by line and exact.
//!
//! ```text
//! elbowroom trace 1
//! name "two layers"
//! machine "tiny" memory 4096 align 64 host-memory 65536 to-host 100 1000000000 to-device 100 1000000000 link separate flops-per-second 1000000000 bytes-per-second 1000000000 launch 10
//! costs measured
//! s0 1024
//! t0 s0 "weight"
//! t1 s1 "input"
//! op0 linear "fc" forward pure reads t0 t1 makes t2 workspace 64 flops 100 moved 3072 nanos 250
//! op1 relu "act" forward pure reads t2 makes t3 reuses t2->t3 moved 2048 nanos 40
//! op2 sgd "update" update never reads t0 t3 makes t4 mutates t0->t4 moved 3072 nanos 60
//! persistent t0->t4
//! ```
//!
//! ```text
//! elbowroom plan 1
//! trace 00f3a2b1c4d5e6f7
//! machine "tiny" memory 4096 ...
//! height 3136
//! b0 1024 at 0
//! home b0 host
//! a0 compute op0 reads b0 b1 writes b2 workspace b3
//! a1 offload t2 from b2 waits a0
//! a2 release b2
//! a3 prefetch t2 to b4 waits a0 a1
//! a4 recompute op0 reads b0 b1 writes b5 workspace b6 waits a3
//! a5 host-release t2
//! ```
//!
//! Every line begins with its kind or with an id; ids of one kind count up from zero. Sizes are bytes, durations nanoseconds, rates bytes
//! per second, a channel of the link is its latency and its rate. `home` stands once for each persistent tensor, in the trace's order: a
//! buffer, `host`, or both. What is left out is empty or zero. Strings are quoted, with the escapes `\"`, `\\`, `\n`, `\r`, `\t` and
//! `\u{...}`. Blank lines and what follows a `#` outside of quotes mean nothing.
//!
//! The same files may be JSON: [`File`] serializes to an object whose one key is the text's first line. [`is_json`] tells the two apart.
//! Whatever the form, reading gives a well-formed trace and a usable machine, or an error that says where and what to do.

mod line;
mod parse;
mod print;

use serde::{Deserialize, Serialize};

use crate::Nanos;
use crate::machine::{Machine, MachineError};
use crate::plan::Plan;
use crate::planning::Costs;
use crate::trace::{Trace, TraceError};

/// A trace with its costs and its machine, if known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTraceFile")]
pub struct TraceFile {
    /// The trace.
    pub trace: Trace,
    /// Durations of its ops, if known.
    pub costs: Option<Costs>,
    /// The machine on which it was recorded or for which it was estimated, if known.
    pub machine: Option<Machine>,
}

/// A plan with the machine for which it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawPlanFile")]
pub struct PlanFile {
    /// The plan.
    pub plan: Plan,
    /// Its machine; the memory is the limit of the plan.
    pub machine: Machine,
}

/// What a file can hold.
///
/// ```
/// use elbowroom_ir::text::File;
///
/// let text = r#"
/// elbowroom trace 1
/// name "an activation over its input"
/// s0 1024
/// s1 1024
/// t0 s0 "input"
/// t1 s1 "output"
/// op0 relu "act" forward pure reads t0 makes t1 reuses t0->t1
/// persistent t0->t0
/// "#;
/// let Ok(file) = text.parse::<File>().and_then(File::into_trace) else { panic!("this is a trace") };
/// assert_eq!(file.trace.ops().len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum File {
    /// A trace.
    #[serde(rename = "elbowroom trace 1")]
    Trace(Box<TraceFile>),
    /// A plan.
    #[serde(rename = "elbowroom plan 1")]
    Plan(Box<PlanFile>),
}

impl File {
    /// The trace.
    ///
    /// # Errors
    /// The file holds a plan.
    pub fn into_trace(self) -> Result<TraceFile, FileError> {
        match self {
            Self::Trace(file) => Ok(*file),
            Self::Plan(_) => Err(FileError::Kind { found: "plan", wanted: "trace" }),
        }
    }

    /// The plan.
    ///
    /// # Errors
    /// The file holds a trace.
    pub fn into_plan(self) -> Result<PlanFile, FileError> {
        match self {
            Self::Plan(file) => Ok(*file),
            Self::Trace(_) => Err(FileError::Kind { found: "trace", wanted: "plan" }),
        }
    }
}

/// Whether a file's content is JSON rather than text: JSON starts with `{`.
pub fn is_json(content: &str) -> bool {
    content.trim_start_matches('\u{feff}').trim_start().starts_with('{')
}

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A line that is not in the format.
    #[error("line {line}, column {column}: {what}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What was expected and found, and what to do.
        what: String,
    },
    /// Every line is well formed, but together they do not form a trace.
    #[error("the lines do not make a trace: {0}")]
    Trace(#[from] TraceError),
    /// A machine with unusable properties.
    #[error("the machine cannot be used: {0}")]
    Machine(#[from] MachineError),
    /// Durations for only some of the ops.
    #[error("there are {durations} durations for {ops} ops; give every op its duration, or none")]
    CostsArity {
        /// Durations.
        durations: usize,
        /// Ops of the trace.
        ops: usize,
    },
    /// Durations whose sum exceeds the supported range.
    #[error("the durations add up to 2^60 ns (36 years) or more; they are in nanoseconds")]
    CostsTooLarge,
    /// The file holds a plan instead of a trace, or the reverse.
    #[error("this is a {found}; a {wanted} is needed here")]
    Kind {
        /// What the file holds.
        found: &'static str,
        /// What the caller needs.
        wanted: &'static str,
    },
}

impl TraceFile {
    /// Combines a trace with costs and a machine.
    ///
    /// # Errors
    /// Costs or machine are unusable.
    pub fn new(trace: Trace, costs: Option<Costs>, machine: Option<Machine>) -> Result<Self, FileError> {
        if let Some(costs) = &costs {
            let (durations, ops) = (costs.nanos.len(), trace.ops().len());
            if durations != ops {
                return Err(FileError::CostsArity { durations, ops });
            }
            costs
                .nanos
                .values()
                .try_fold(Nanos::ZERO, |sum, &nanos| sum.checked_add(nanos))
                .filter(|sum| sum.get() < 1 << 60)
                .ok_or(FileError::CostsTooLarge)?;
        }
        if let Some(machine) = &machine {
            machine.validate()?;
        }
        Ok(Self { trace, costs, machine })
    }
}

impl PlanFile {
    /// Combines a plan with its machine. [`check`](crate::check) decides whether the plan is legal.
    ///
    /// # Errors
    /// The machine is unusable.
    pub fn new(plan: Plan, machine: Machine) -> Result<Self, FileError> {
        machine.validate()?;
        Ok(Self { plan, machine })
    }
}

#[derive(Deserialize)]
struct RawTraceFile {
    trace: Trace,
    #[serde(default)]
    costs: Option<Costs>,
    #[serde(default)]
    machine: Option<Machine>,
}

impl TryFrom<RawTraceFile> for TraceFile {
    type Error = FileError;
    fn try_from(raw: RawTraceFile) -> Result<Self, FileError> {
        Self::new(raw.trace, raw.costs, raw.machine)
    }
}

#[derive(Deserialize)]
struct RawPlanFile {
    plan: Plan,
    machine: Machine,
}

impl TryFrom<RawPlanFile> for PlanFile {
    type Error = FileError;
    fn try_from(raw: RawPlanFile) -> Result<Self, FileError> {
        Self::new(raw.plan, raw.machine)
    }
}
