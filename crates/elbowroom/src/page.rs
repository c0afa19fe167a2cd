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
use serde_json::{Map, Value};

use crate::choices::{Choice, Choices};
use crate::pipeline::{Planned, Task};
use crate::positions;
use crate::report::PlanReport;
use crate::run::Run;
use crate::why::Why;
use crate::why::groups::{Content, Kind, Residencies};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(include_str!("page/losses.js"), include_str!("page/page.js"));

/// The script that draws losses, and the one of the button that changes the theme.
const LOSSES: &str = include_str!("page/losses.js");
const THEME: &str = include_str!("page/theme.js");

/// A text without the characters that HTML obeys.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page that loads nothing, in the style of the others. `title` is a text, `body` HTML, and `script` runs after it; it may call
/// `drawLosses(svg, losses, first, evaluations)`.
pub fn document(title: &str, body: &str, script: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n  <h1>{title}</h1>\n  \
         <button id=\"theme\" type=\"button\">Dark</button>\n</header>\n<main>\n{body}</main>\n\
         <script>\n\"use strict\";\n{THEME}{LOSSES}{script}</script>\n</body>\n</html>\n"
    )
}

/// Everything that the arena holds, a column for each property. Columns of small numbers are strings of digits.
#[derive(Default, Serialize)]
struct Columns {
    /// Index of the name, less that of the row before.
    name: Vec<i64>,
    /// Whether it is the workspace of the op of that name.
    workspace: String,
    /// Index of the kind.
    kind: String,
    /// In units of the page.
    offset: Vec<u64>,
    /// In units of the page.
    bytes: Vec<u64>,
    /// First position, less that of the row before, and the number of positions.
    from: Vec<i64>,
    length: Vec<u64>,
    /// The op that wrote it, less that of the row before; -1 where no op did.
    op: Vec<i64>,
    /// As [`Origin`](crate::why::groups::Origin).
    origin: String,
}

/// A curve of bytes, in units of the page, over positions or times. Both are stated as differences.
#[derive(Default, Serialize)]
struct Curve {
    at: Vec<u64>,
    live: Vec<i64>,
}

/// Positions in time, as differences.
#[derive(Serialize)]
struct Steps {
    at: Vec<u64>,
}

/// What runs on the streams.
#[derive(Default, Serialize)]
struct Spans {
    /// Position, less that of the row before.
    at: Vec<i64>,
    /// Index of the op, or of the name of the tensor that is copied, less that of the row before on the stream.
    what: Vec<i64>,
    /// Time since the end of the row before on the stream.
    gap: Vec<i64>,
    duration: Vec<u64>,
    stream: String,
    recompute: String,
}

/// The ops of the trace.
#[derive(Default, Serialize)]
struct Ops {
    /// Index of the name, less that of the row before.
    name: Vec<i64>,
    /// Index of the name of the op's kind.
    kind: Vec<u32>,
    /// Index of the line of the user's program that calls it. Empty if no line is known.
    line: Vec<u32>,
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
    /// Sizes and offsets in columns are multiples of these bytes.
    unit_bytes: u64,
    kinds: Vec<&'static str>,
    /// Every name without the characters that it has in common with the one before, and their number before the rest, to base 36.
    names: Vec<String>,
    op_kinds: Vec<&'a str>,
    /// Lines of the user's program that call ops; an unknown one is empty.
    op_lines: Vec<&'a str>,
    ops: Ops,
    residencies: Columns,
    steps: Steps,
    live: Curve,
    before: Curve,
    spans: Spans,
    /// The training that this is the last planned iteration of.
    run: Option<Trained<'a>>,
    /// Decisions by the name of their tensor.
    choices: BTreeMap<&'a str, Vec<&'a Choice>>,
    why: &'a Why,
}

/// A finished training.
#[derive(Serialize)]
struct Trained<'a> {
    report: &'a Map<String, Value>,
    /// What ran on the streams, as measured.
    measured: Spans,
}

/// What a page shows.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The trace with its durations and its machine.
    pub task: &'a Task,
    /// The plan; without one, the unconstrained iteration is shown.
    pub plan: Option<&'a CheckedPlan>,
    /// The unconstrained iteration.
    pub unconstrained: &'a Planned,
    /// The timeline of what is shown.
    pub predicted: &'a Timeline,
    /// Why the peak is where it is.
    pub why: &'a Why,
    /// The training whose last iteration followed the plan.
    pub run: Option<&'a Run>,
}

/// The figures of a page, as `report --json` prints them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Figures<'a> {
    /// Why the peak is where it is.
    #[serde(flatten)]
    pub why: &'a Why,
    /// The limit of the plan; `null` without a plan.
    pub limit_bytes: Option<Bytes>,
    /// Arena size when every tensor stays on the device.
    pub unconstrained_peak_bytes: Bytes,
    /// Predicted iteration time, or the length of the history.
    pub iteration_ns: Nanos,
    /// Iteration time ÷ sum of the op times − 1.
    pub overhead: f64,
    /// Number of residencies, workspaces included: the bars of the page.
    pub residencies: usize,
}

/// A page with its figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report<'a> {
    /// The page.
    pub html: String,
    /// Its figures.
    pub figures: Figures<'a>,
}

/// The page of a plan, of an iteration without a limit, or of a finished training.
pub fn report<'a>(subject: &Subject<'a>) -> Report<'a> {
    let &Subject { task, plan, unconstrained, predicted, why, run } = subject;
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
    let unit = unit(task, shown, &live, unconstrained);
    let residencies = columns(task, shown, why, unit, &mut names);
    let (mut ops, mut op_kinds, mut op_lines) = (Ops::default(), Names::default(), Names::default());
    let lines_known = task.trace.ops().values().any(|op| !op.line.is_empty());
    let mut before = 0;
    for op in task.trace.ops().values() {
        ops.name.push(difference(i64::from(names.index(&op.name)), &mut before));
        ops.kind.push(op_kinds.index(&op.kind));
        if lines_known {
            ops.line.push(op_lines.index(&op.line));
        }
    }
    let curve = live.curve.iter().map(|(id, bytes): (ActionId, _)| (id.index() as u64, bytes.get()));
    let predicted_spans = spans(shown, predicted, &mut names);
    let measured = run.map(|run| spans(shown, &run.measured, &mut names));
    let limit_bytes = plan.map(|plan| plan.machine().memory);
    let limit = limit_bytes.map_or_else(String::new, |limit| format!(" in {limit}"));
    let figures = Figures {
        why,
        limit_bytes,
        unconstrained_peak_bytes: unconstrained.height(),
        iteration_ns: predicted.iteration,
        overhead: PlanReport::overhead(predicted.iteration, task.costs.total()),
        residencies: residencies.length.len(),
    };
    let page = Page {
        title: format!("{}{limit} on {}", task.trace.name(), task.machine.name),
        planned: plan.is_some(),
        limit_bytes,
        arena_bytes: shown.placement().height,
        unconstrained_peak_bytes: figures.unconstrained_peak_bytes,
        iteration_ns: figures.iteration_ns,
        overhead: figures.overhead,
        peak_at: peak_at as u32,
        peak_at_ns: at.get(peak_at).copied().unwrap_or_default(),
        kinds: Kind::ALL.iter().map(|kind| kind.name()).collect(),
        unit_bytes: unit,
        op_kinds: op_kinds.names,
        op_lines: op_lines.names,
        ops,
        residencies,
        names: names.front_coded(),
        live: steps_of(curve, unit),
        before: steps_of(
            unconstrained.predicted.live.iter().map(|&(time, bytes)| (time.get(), bytes.get())),
            unit,
        ),
        steps: Steps { at: differences(&at) },
        spans: predicted_spans,
        run: run.zip(measured).map(|(run, measured)| Trained { report: &run.report, measured }),
        choices: by_tensor,
        why,
    };
    // JSON that contains no `<` can stand inside a script element.
    let data = serde_json::to_string(&page).expect("strings and numbers are JSON").replace('<', "\\u003c");
    let title = page.title.replace('&', "&amp;").replace('<', "&lt;");
    let page = TEMPLATE.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT);
    // What a name contains is not taken for a place of the template.
    let (head, end) = page.split_once("{{data}}").expect("the template has a place for the data");
    Report { html: format!("{}{data}{end}", head.replace("{{title}}", &title)), figures }
}

/// The largest number of bytes of which all sizes, offsets and sums of the page are multiples.
fn unit(task: &Task, plan: &CheckedPlan, live: &LiveMemory, unconstrained: &Planned) -> u64 {
    let sizes = plan.schedule().buffers.values().map(|buffer| buffer.bytes.align_up(task.machine.align));
    let offsets = plan.placement().offsets.values().copied();
    let curves = live.curve.values().copied().chain(unconstrained.predicted.live.iter().map(|point| point.1));
    let (mut unit, mut last) = (0, 0);
    for bytes in sizes.chain(offsets).chain(curves).map(Bytes::get) {
        // Neighbours are often equal, and a division takes long.
        if bytes != std::mem::replace(&mut last, bytes) {
            unit = greatest_common_divisor(unit, bytes);
        }
    }
    unit.max(1)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A number less the one before it.
fn difference(number: i64, before: &mut i64) -> i64 {
    number - std::mem::replace(before, number)
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

    fn front_coded(&self) -> Vec<String> {
        let mut before = "";
        let coded = |name: &'a str| {
            let same = std::mem::replace(&mut before, name).bytes().zip(name.bytes());
            // A script counts characters in another way, but ASCII in the same one.
            let same = same.take(35).take_while(|(a, b)| a == b && a.is_ascii()).count();
            let digit = char::from_digit(same as u32, 36).unwrap_or('0');
            format!("{digit}{}", &name[same..])
        };
        self.names.iter().copied().map(coded).collect()
    }
}

/// One digit.
fn digit(number: usize) -> char {
    char::from_digit(number as u32, 10).unwrap_or('0')
}

fn columns<'a>(task: &'a Task, plan: &CheckedPlan, why: &Why, unit: u64, names: &mut Names<'a>) -> Columns {
    let schedule = plan.schedule();
    let mut columns = Columns::default();
    let (mut name_before, mut from_before, mut op_before) = (0, 0, 0);
    let all = Residencies::of(&task.trace, schedule, &task.machine, why.allocations_only);
    for residency in all.iter() {
        let (name, op) = match residency.content {
            Content::Workspace(op) => (&task.trace.ops()[op].name, Some(op)),
            Content::Tensor(tensor) => (&task.trace.tensors()[tensor].name, task.trace.producer(tensor)),
        };
        let kind = Kind::ALL.iter().position(|&kind| kind == all.kind(residency.content)).unwrap_or(0);
        let workspace = matches!(residency.content, Content::Workspace(_));
        columns.name.push(difference(i64::from(names.index(name)), &mut name_before));
        columns.workspace.push(digit(usize::from(workspace)));
        columns.kind.push(digit(kind));
        columns.offset.push(plan.placement().offsets[residency.buffer].get() / unit);
        columns.bytes.push(residency.bytes().get() / unit);
        columns.from.push(difference(residency.alive.start as i64, &mut from_before));
        columns.length.push(residency.alive.end - residency.alive.start);
        columns.op.push(difference(op.map_or(-1, |op| i64::from(op.0)), &mut op_before));
        columns.origin.push(digit(all.origin(residency) as usize));
    }
    columns
}

/// A curve without the points at which nothing changes.
fn steps_of(points: impl Iterator<Item = (u64, u64)>, unit: u64) -> Curve {
    let mut curve = Curve::default();
    let (mut last, mut before) = (None, 0);
    for (at, bytes) in points {
        if last.replace(bytes) != Some(bytes) {
            curve.at.push(at);
            curve.live.push(difference((bytes / unit) as i64, &mut before));
        }
    }
    curve.at = differences(&curve.at);
    curve
}

/// Each of these numbers, which do not fall, less the one before.
fn differences(numbers: &[u64]) -> Vec<u64> {
    let before = [0].iter().chain(numbers);
    numbers.iter().zip(before).map(|(number, before)| number.saturating_sub(*before)).collect()
}

/// Spans of actions that the plan has.
fn spans<'a>(plan: &'a CheckedPlan, timeline: &Timeline, names: &mut Names<'a>) -> Spans {
    let mut spans = Spans::default();
    let (mut at, mut what, mut ends) = (0, [0; 3], [0; 3]);
    for span in &timeline.spans {
        let Some(step) = plan.schedule().steps.get(span.action) else { continue };
        let stream = span.stream.index();
        let index = match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => launch.op.0,
            Action::Offload { tensor, .. } | Action::Prefetch { tensor, .. } => {
                names.index(&plan.trace().tensors()[*tensor].name)
            }
            Action::Release { .. } | Action::HostRelease { .. } => continue,
        };
        spans.at.push(difference(i64::from(span.action.0), &mut at));
        spans.what.push(difference(i64::from(index), &mut what[stream]));
        let (start, duration) = (span.start.get() as i64, span.end.saturating_sub(span.start).get());
        // A file may state any times.
        spans.gap.push(start.wrapping_sub(ends[stream]));
        ends[stream] = start.wrapping_add(duration as i64);
        spans.duration.push(duration);
        spans.stream.push(digit(stream));
        spans.recompute.push(digit(usize::from(matches!(step.action, Action::Recompute(_)))));
    }
    spans
}
