//! A plan, or an iteration without a limit, as one self-contained HTML page: the arena as time × address, live memory before and after
//! planning, the three streams, and [why](crate::why) the peak is where it is.
//!
//! The page loads nothing: its data is one JSON object inside it, and its charts are drawn by the script in the folder of this module. Columns
//! instead of rows, and differences instead of growing numbers, keep a page of 50,000 residencies below 5 MB.

use std::collections::{BTreeMap, HashMap};

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{ActionId, Bytes, Id, Nanos};
use elbowroom_sim::live::LiveMemory;
use serde::Serialize;

use crate::choices::{Choice, Choices};
use crate::pipeline::{Planned, Task};
use crate::positions;
use crate::report::PlanReport;
use crate::why::Why;
use crate::why::groups::{Content, Kind, Residencies};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Everything that the arena holds, a column for each property.
#[derive(Default, Serialize)]
struct Columns {
    /// Index of the name.
    name: Vec<u32>,
    /// Whether it is the workspace of the op of that name.
    workspace: Vec<u8>,
    /// Index of the kind.
    kind: Vec<u8>,
    offset: Vec<u64>,
    bytes: Vec<u64>,
    /// First position, less that of the row before, and the number of positions.
    from: Vec<i64>,
    length: Vec<u64>,
    /// The op that wrote it, less that of the row before; -1 where no op did.
    op: Vec<i64>,
    /// As [`Origin`](crate::why::groups::Origin).
    origin: Vec<u8>,
}

/// A curve of bytes over time, which is stated as differences.
#[derive(Default, Serialize)]
struct Curve {
    at: Vec<u64>,
    live: Vec<u64>,
}

/// Positions in time, as differences.
#[derive(Serialize)]
struct Steps {
    at: Vec<u64>,
}

/// What runs on the streams: starts as differences, and durations.
#[derive(Default, Serialize)]
struct Spans {
    start: Vec<i64>,
    duration: Vec<u64>,
    stream: Vec<u8>,
    recompute: Vec<u8>,
}

#[derive(Serialize)]
struct Page<'a> {
    title: String,
    planned: bool,
    limit_bytes: Option<Bytes>,
    arena_bytes: Bytes,
    unconstrained_peak_bytes: Bytes,
    iteration_ns: Nanos,
    overhead: f64,
    /// Position of the peak, and its time.
    peak_at: u32,
    peak_at_ns: u64,
    kinds: Vec<&'static str>,
    names: Vec<&'a str>,
    ops: Vec<&'a str>,
    residencies: Columns,
    steps: Steps,
    live: Curve,
    before: Curve,
    spans: Spans,
    /// Decisions by the name of their tensor.
    choices: BTreeMap<&'a str, Vec<&'a Choice>>,
    why: &'a Why,
}

/// The page of a plan, or of the unconstrained iteration if `plan` is `None`. `predicted` is the timeline of what is shown.
pub fn html(
    task: &Task,
    plan: Option<&CheckedPlan>,
    unconstrained: &Planned,
    predicted: &Timeline,
    why: &Why,
) -> String {
    let shown = plan.unwrap_or(&unconstrained.plan);
    let schedule = shown.schedule();
    let at: Vec<u64> = positions::times(shown, predicted).into_iter().map(Nanos::get).collect();
    let live = LiveMemory::of(schedule, &task.machine);
    let peak_at = live.at.map_or(0, Id::index);
    let choices = Choices::of(task, schedule, predicted);
    let mut by_tensor: BTreeMap<&str, Vec<&Choice>> = BTreeMap::new();
    for choice in &choices.choices {
        by_tensor.entry(&choice.tensor).or_default().push(choice);
    }
    let mut names = Names::default();
    let residencies = columns(task, shown, why, &mut names);
    let curve = live.curve.iter().map(|(id, bytes): (ActionId, _)| (at[id.index()], bytes.get()));
    let limit_bytes = plan.map(|plan| plan.machine().memory);
    let limit = limit_bytes.map_or_else(String::new, |limit| format!(" in {limit}"));
    let page = Page {
        title: format!("{}{limit} on {}", task.trace.name(), task.machine.name),
        planned: plan.is_some(),
        limit_bytes,
        arena_bytes: shown.placement().height,
        unconstrained_peak_bytes: unconstrained.height(),
        iteration_ns: predicted.iteration,
        overhead: PlanReport::overhead(predicted.iteration, task.costs.total()),
        peak_at: peak_at as u32,
        peak_at_ns: at.get(peak_at).copied().unwrap_or_default(),
        kinds: Kind::ALL.iter().map(|kind| kind.name()).collect(),
        ops: task.trace.ops().values().map(|op| op.name.as_str()).collect(),
        residencies,
        names: names.names,
        live: steps_of(curve),
        before: steps_of(unconstrained.predicted.live.iter().map(|&(time, bytes)| (time.get(), bytes.get()))),
        steps: Steps { at: differences(&at) },
        spans: spans(shown, predicted),
        choices: by_tensor,
        why,
    };
    // JSON that contains no `<` can stand inside a script element.
    let data = serde_json::to_string(&page).expect("strings and numbers are JSON").replace('<', "\\u003c");
    let title = page.title.replace('&', "&amp;").replace('<', "&lt;");
    let page = TEMPLATE.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT);
    // What a name contains is not taken for a place of the template.
    let (head, end) = page.split_once("{{data}}").expect("the template has a place for the data");
    format!("{}{data}{end}", head.replace("{{title}}", &title))
}

/// Names, each once.
#[derive(Default)]
struct Names<'a> {
    names: Vec<&'a str>,
    index: HashMap<&'a str, u32>,
}

impl<'a> Names<'a> {
    fn index(&mut self, name: &'a str) -> u32 {
        let next = self.names.len() as u32;
        *self.index.entry(name).or_insert_with(|| {
            self.names.push(name);
            next
        })
    }
}

fn columns<'a>(task: &'a Task, plan: &CheckedPlan, why: &Why, names: &mut Names<'a>) -> Columns {
    let schedule = plan.schedule();
    let mut columns = Columns::default();
    let mut before = (0, 0);
    let all = Residencies::of(&task.trace, schedule, &task.machine, why.allocations_only);
    for residency in all.iter() {
        let (name, op) = match residency.content {
            Content::Workspace(op) => (&task.trace.ops()[op].name, Some(op)),
            Content::Tensor(tensor) => (&task.trace.tensors()[tensor].name, task.trace.producer(tensor)),
        };
        let kind = Kind::ALL.iter().position(|&kind| kind == all.kind(residency.content)).unwrap_or(0);
        columns.name.push(names.index(name));
        columns.workspace.push(u8::from(matches!(residency.content, Content::Workspace(_))));
        columns.kind.push(kind as u8);
        columns.offset.push(plan.placement().offsets[residency.buffer].get());
        columns.bytes.push(schedule.buffers[residency.buffer].bytes.get());
        let (start, op) = (residency.alive.start as i64, op.map_or(-1, |op| i64::from(op.0)));
        columns.from.push(start - std::mem::replace(&mut before.0, start));
        columns.length.push(residency.alive.end - residency.alive.start);
        columns.op.push(op - std::mem::replace(&mut before.1, op));
        columns.origin.push(all.origin(residency) as u8);
    }
    columns
}

/// A curve without the points at which nothing changes.
fn steps_of(points: impl Iterator<Item = (u64, u64)>) -> Curve {
    let mut curve = Curve::default();
    for (time, bytes) in points {
        if curve.live.last() != Some(&bytes) {
            curve.at.push(time);
            curve.live.push(bytes);
        }
    }
    curve.at = differences(&curve.at);
    curve
}

/// Each of these numbers, which do not fall, less the one before.
fn differences(numbers: &[u64]) -> Vec<u64> {
    let before = [0].iter().chain(numbers);
    numbers.iter().zip(before).map(|(number, before)| number - before).collect()
}

fn spans(plan: &CheckedPlan, timeline: &Timeline) -> Spans {
    let mut spans = Spans::default();
    let mut before = 0;
    for span in &timeline.spans {
        let action = plan.schedule().steps.get(span.action).map(|step| &step.action);
        let start = span.start.get() as i64;
        spans.start.push(start - std::mem::replace(&mut before, start));
        spans.duration.push(span.end.get() - span.start.get());
        spans.stream.push(span.stream.index() as u8);
        spans.recompute.push(u8::from(matches!(action, Some(Action::Recompute(_)))));
    }
    spans
}
