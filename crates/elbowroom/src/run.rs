//! A finished training as a file: its report, and its last iteration that followed a plan, predicted and measured.
//!
//! `train --report` writes it; `why` and `report` read it. The file is JSON, an object whose one key is `elbowroom run 1`.

use std::collections::BTreeMap;

use elbowroom_ir::text::{PlanFile, TraceFile};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::Trace;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::report::TrainReport;
use crate::train::Executed;

/// The key of the file's object, which [`is_run`] looks for.
const KEY: &str = "elbowroom run 1";

/// The last planned iteration of a training.
#[derive(Clone, Debug)]
pub struct LastIteration {
    /// The trace, with the durations that the plan was made for and the machine with the limit as its memory.
    pub trace: TraceFile,
    /// The plan that the iteration followed.
    pub plan: PlanFile,
    /// When its actions ran.
    pub measured: Timeline,
}

impl LastIteration {
    /// What a [`TrainObserver`](crate::train::TrainObserver) receives as its training ends.
    pub fn of(executed: &Executed<'_>) -> Self {
        let plan = executed.plan;
        let (trace, machine) = (Trace::clone(plan.trace()), plan.machine().clone());
        Self {
            trace: TraceFile { trace, costs: Some(executed.costs.clone()), machine: Some(machine.clone()) },
            plan: PlanFile { plan: plan.plan().clone(), machine },
            measured: executed.measured.clone(),
        }
    }
}

/// A finished training, as read from a file.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Run {
    /// The report, the object that `train --json` prints.
    pub report: Map<String, Value>,
    /// The trace of its last planned iteration, with the durations that the plan was made for and the machine with the limit as its memory.
    pub trace: TraceFile,
    /// The plan that the iteration followed. Reading does not check it.
    pub plan: PlanFile,
    /// When its actions ran.
    pub measured: Timeline,
}

/// The file, when it is read.
#[derive(Deserialize)]
struct Read {
    #[serde(rename = "elbowroom run 1")]
    run: Run,
}

/// The run, when it is written.
#[derive(Serialize)]
struct Write<'a> {
    report: &'a TrainReport,
    trace: &'a TraceFile,
    plan: &'a PlanFile,
    measured: &'a Timeline,
}

/// Whether a file's content is a run, by its first key.
pub fn is_run(content: &str) -> bool {
    let start = content.trim_start_matches('\u{feff}').trim_start().strip_prefix('{');
    let key = start.and_then(|rest| rest.trim_start().strip_prefix('"'));
    key.is_some_and(|rest| rest.starts_with(KEY))
}

impl Run {
    /// Reads a file's content.
    ///
    /// # Errors
    ///
    /// The content is no run; the error says at which line and column.
    pub fn parse(content: &str) -> Result<Self, serde_json::Error> {
        let Read { run } = serde_json::from_str(content.trim_start_matches('\u{feff}'))?;
        Ok(run)
    }

    /// The content of a file.
    pub fn json(report: &TrainReport, last: &LastIteration) -> String {
        let LastIteration { trace, plan, measured } = last;
        let run = BTreeMap::from([(KEY, Write { report, trace, plan, measured })]);
        // Strings, numbers and maps with text keys are JSON.
        serde_json::to_string(&run).expect("a run is JSON") + "\n"
    }
}
