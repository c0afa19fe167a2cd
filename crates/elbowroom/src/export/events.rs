//! Iterations as Chrome trace events: a process for each iteration, a thread for each stream, and a counter of live memory.
//!
//! The format is that of the document "Trace Event Format": complete events (`X`) with `ts` and `dur` in microseconds, counters (`C`), and
//! metadata (`M`) that names processes and threads.

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::{Action, Stream};
use elbowroom_ir::timeline::{Span, Timeline};
use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, Nanos, TensorId};
use serde::Serialize;

/// One iteration of a plan.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    /// What it is: `predicted` or `measured`.
    pub name: &'a str,
    /// When the plan's actions ran.
    pub timeline: &'a Timeline,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Event<'a>>,
}

/// One event. What it says depends on its phase `ph`.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    pid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The category, by which viewers filter and colour.
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    args: Arguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    Name { name: &'a str },
    Order { sort_index: usize },
    Live { bytes: Bytes },
    Op { position: u32, kind: &'a str },
    Copy { position: u32, bytes: Bytes },
}

/// The iterations of a plan, one process each, as JSON text. Times are microseconds from the start of the iteration.
///
/// Each timeline must be one of the plan: an action that the plan does not have is left out.
pub fn trace_events(plan: &CheckedPlan, courses: &[Course<'_>]) -> String {
    let mut events = Vec::new();
    for (index, course) in courses.iter().enumerate() {
        // Viewers take process 0 for the kernel.
        let pid = index + 1;
        let metadata =
            |name, tid, args| Event { name, ph: "M", pid, tid, ts: None, dur: None, cat: None, args };
        events.push(metadata("process_name", None, Arguments::Name { name: course.name }));
        events.push(metadata("process_sort_index", None, Arguments::Order { sort_index: pid }));
        for stream in Stream::ALL {
            let tid = Some(stream.index());
            events.push(metadata("thread_name", tid, Arguments::Name { name: stream.name() }));
            events.push(metadata("thread_sort_index", tid, Arguments::Order { sort_index: stream.index() }));
        }
        events.extend(course.timeline.spans.iter().filter_map(|span| event(plan, pid, span)));
        events.extend(live(course.timeline).map(|(at, bytes)| Event {
            name: "live memory",
            ph: "C",
            pid,
            tid: None,
            ts: Some(micros(at)),
            dur: None,
            cat: None,
            args: Arguments::Live { bytes },
        }));
    }
    // Strings, finite numbers and maps with text keys are JSON.
    serde_json::to_string(&Document { unit: "ms", events }).expect("trace events are JSON")
}

/// An action on its stream.
fn event<'a>(plan: &'a CheckedPlan, pid: usize, span: &Span) -> Option<Event<'a>> {
    let step = plan.schedule().steps.get(span.action)?;
    let (ops, tensors) = (plan.trace().ops(), plan.trace().tensors());
    let position = span.action.0;
    let copied = |tensor: TensorId, cat| {
        let bytes = plan.trace().storages()[tensors[tensor].storage].bytes;
        (tensors[tensor].name.as_str(), cat, Arguments::Copy { position, bytes })
    };
    let (name, cat, args) = match &step.action {
        Action::Compute(launch) => {
            let op = &ops[launch.op];
            let phase = match op.phase {
                Phase::Forward => "forward",
                Phase::Backward => "backward",
                Phase::Update => "update",
            };
            (op.name.as_str(), phase, Arguments::Op { position, kind: &op.kind })
        }
        Action::Recompute(launch) => {
            let op = &ops[launch.op];
            (op.name.as_str(), "recompute", Arguments::Op { position, kind: &op.kind })
        }
        Action::Offload { tensor, .. } => copied(*tensor, "offload"),
        Action::Prefetch { tensor, .. } => copied(*tensor, "prefetch"),
        Action::Release { .. } | Action::HostRelease { .. } => return None,
    };
    let (ts, dur) = (Some(micros(span.start)), Some(micros(span.end.saturating_sub(span.start))));
    Some(Event { name, ph: "X", pid, tid: Some(span.stream.index()), ts, dur, cat: Some(cat), args })
}

/// Live memory without the points at which nothing changes.
fn live(timeline: &Timeline) -> impl Iterator<Item = (Nanos, Bytes)> {
    let mut last = None;
    timeline.live.iter().copied().filter(move |&(_, bytes)| last.replace(bytes) != Some(bytes))
}

fn micros(time: Nanos) -> f64 {
    time.get() as f64 / 1_000.0
}
