//! A plan as a picture: bytes of arena upwards, time to the right, one bar for each buffer, and the three streams below.

use std::fmt::Write;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::{Action, Stream};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::Phase;
use elbowroom_ir::{BufferId, Bytes, Nanos, Table};

use crate::positions;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 40.0;
const ROW: f64 = 16.0;
const GAP: f64 = 10.0;

/// What a buffer holds, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Persistent,
    Forward,
    Backward,
    Returned,
    Recomputed,
    Workspace,
}

impl Use {
    const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::Persistent, "#8d99ae", "persistent"),
        (Self::Forward, "#4c78a8", "forward"),
        (Self::Backward, "#72b7b2", "backward"),
        (Self::Returned, "#f58518", "prefetched"),
        (Self::Recomputed, "#b279a2", "recomputed"),
        (Self::Workspace, "#e0d28a", "workspace"),
    ];

    fn colour(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("#000", |(_, colour, _)| colour)
    }
}

/// Draws a plan with its predicted (or measured) timeline as one self-contained SVG.
pub fn svg(plan: &CheckedPlan, timeline: &Timeline) -> String {
    let total = timeline.iteration.get().max(1) as f64;
    let limit = plan.machine().memory.get().max(1) as f64;
    let x = |time: Nanos| LEFT + WIDTH * time.get() as f64 / total;
    let y = |bytes: Bytes| TOP + HEIGHT * (1.0 - bytes.get() as f64 / limit);
    let streams_top = TOP + HEIGHT + GAP;
    let page_height = streams_top + 3.0 * (ROW + 4.0) + 40.0;

    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {page_height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="{LEFT}" y="18">{}: {} of arena under a limit of {}, iteration {}</text>
"#,
        LEFT + WIDTH + 40.0,
        escape(plan.trace().name()),
        plan.placement().height,
        plan.machine().memory,
        timeline.iteration,
    );
    for quarter in 0..=4u64 {
        let bytes = Bytes(plan.machine().memory.get() / 4 * quarter);
        let at = y(bytes);
        let _ = writeln!(
            out,
            r##"<line x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{bytes}</text>"##,
            LEFT + WIDTH,
            LEFT - 6.0,
            at + 4.0,
        );
    }

    let moments = positions::times(plan, timeline);
    let uses = uses(plan);
    let problem = elbowroom_sim::liveness::problem(plan.schedule(), plan.machine());
    for (id, block) in problem.blocks.iter() {
        let offset = plan.placement().offsets[id];
        let (low, high) = (y(offset), y(offset + block.size));
        for interval in &block.alive {
            let (from, to) = (x(moments[interval.start as usize]), x(moments[interval.end as usize]));
            let _ = writeln!(
                out,
                r#"<rect x="{from:.2}" y="{high:.2}" width="{:.2}" height="{:.2}" fill="{}" stroke="white" stroke-width="0.3"><title>{id}: {} at {}</title></rect>"#,
                (to - from).max(0.3),
                (low - high).max(0.3),
                uses[id].colour(),
                block.size,
                offset.get(),
            );
        }
    }
    let top = y(plan.machine().memory);
    let _ = writeln!(
        out,
        r##"<line x1="{LEFT}" x2="{}" y1="{top}" y2="{top}" stroke="#c00" stroke-width="2"/>"##,
        LEFT + WIDTH
    );

    for stream in Stream::ALL {
        let row = streams_top + stream.index() as f64 * (ROW + 4.0);
        let _ = writeln!(
            out,
            r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            row + 12.0,
            stream.name()
        );
        for span in timeline.spans.iter().filter(|span| span.stream == stream) {
            let again = matches!(plan.schedule().steps[span.action].action, Action::Recompute(_));
            let colour = if again {
                Use::Recomputed.colour()
            } else {
                ["#4c78a8", "#e45756", "#f58518"][stream.index()]
            };
            let (from, to) = (x(span.start), x(span.end));
            let _ = writeln!(
                out,
                r#"<rect x="{from:.2}" y="{row}" width="{:.2}" height="{ROW}" fill="{colour}" stroke="white" stroke-width="0.2"/>"#,
                (to - from).max(0.2)
            );
        }
    }
    for (i, (_, colour, label)) in Use::ALL.iter().enumerate() {
        let (at, row) = (LEFT + 178.0 * i as f64, page_height - 12.0);
        let _ = writeln!(
            out,
            r#"<rect x="{at}" y="{}" width="12" height="12" fill="{colour}"/><text x="{}" y="{row}">{label}</text>"#,
            row - 11.0,
            at + 17.0
        );
    }
    out + "</svg>\n"
}

/// What each buffer is for: what first fills it decides.
fn uses(plan: &CheckedPlan) -> Table<BufferId, Use> {
    let schedule = plan.schedule();
    let mut uses = Table::filled(schedule.buffers.len(), None);
    let mut set_use = |buffer: BufferId, what: Use| {
        uses[buffer].get_or_insert(what);
    };
    schedule
        .boundary
        .iter()
        .filter_map(|at_boundary| at_boundary.device)
        .for_each(|buffer| set_use(buffer, Use::Persistent));
    for step in schedule.steps.values() {
        if let Some(launch) = step.action.launch() {
            let phase = plan.trace().ops()[launch.op].phase;
            let made = match (&step.action, phase) {
                (Action::Recompute(_), _) => Use::Recomputed,
                (_, Phase::Forward) => Use::Forward,
                _ => Use::Backward,
            };
            launch.writes.iter().for_each(|&buffer| set_use(buffer, made));
            launch.workspace.iter().for_each(|&buffer| set_use(buffer, Use::Workspace));
        } else if let Action::Prefetch { to, .. } = step.action {
            set_use(to, Use::Returned);
        }
    }
    uses.values().map(|what: &Option<Use>| what.unwrap_or(Use::Persistent)).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
