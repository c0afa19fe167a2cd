//! A plan as a memory snapshot of PyTorch, so that `memory_viz` shows it: the arena is one segment, and every residency is allocated where the
//! plan has it and freed when its bytes may be used again.

use std::collections::HashMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Nanos, OpId};
use serde::Serialize;

use crate::positions;
use crate::why::groups::{Content, Origin, Residencies};

/// Where the arena begins. Viewers show addresses and take 0 for "nowhere".
const BASE: u64 = 1 << 32;

/// What `torch.cuda.memory._dump_snapshot` writes.
#[derive(Serialize)]
struct Snapshot<'a> {
    segments: [Segment<'a>; 1],
    /// Of each device, the events in order of time.
    device_traces: [Vec<Event<'a>>; 1],
}

#[derive(Serialize)]
struct Segment<'a> {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u32,
    segment_type: &'static str,
    segment_pool_id: (u32, u32),
    is_expandable: bool,
    frames: Vec<Frame<'a>>,
    blocks: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Block<'a> {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    action: &'static str,
    addr: u64,
    size: u64,
    stream: u32,
    time_us: u64,
    device: u32,
    frames: Vec<Frame<'a>>,
}

/// A line of a program. Here the tensor with how it came to be in the arena, then the op that makes it with its kind.
#[derive(Clone, Serialize)]
struct Frame<'a> {
    name: &'a str,
    filename: &'a str,
    line: u32,
}

/// Something that the arena holds for a while.
struct Held<'a> {
    address: u64,
    bytes: u64,
    /// First position and the position after the last.
    alive: (u64, u64),
    frames: Vec<Frame<'a>>,
}

/// A plan as the pickle of a memory snapshot; `predicted` is its timeline.
///
/// The segment has the height of the arena, rounded up to the machine's alignment, as every block is. What is there when the iteration begins
/// is allocated at its first microsecond. What is there when it ends are the active blocks of the segment.
pub fn memory_snapshot(plan: &CheckedPlan, predicted: &Timeline) -> Vec<u8> {
    let at = positions::times(plan, predicted);
    let held = held(plan);
    let total = plan.placement().height.align_up(plan.machine().align).get();
    let blocks = blocks(&held, plan.schedule().steps.len() as u64, total);
    let active = blocks.iter().filter(|block| block.state == ACTIVE).map(|block| block.size).sum();
    let segment = Segment {
        device: 0,
        address: BASE,
        total_size: total,
        allocated_size: active,
        active_size: active,
        requested_size: active,
        stream: 0,
        segment_type: "large",
        segment_pool_id: (0, 0),
        is_expandable: false,
        frames: Vec::new(),
        blocks,
    };
    let snapshot = Snapshot { segments: [segment], device_traces: [events(&held, &at, total)] };
    // A vector takes every byte, and the snapshot holds only numbers, strings, lists and maps.
    serde_pickle::to_vec(&snapshot, serde_pickle::SerOptions::new()).expect("a snapshot is a pickle")
}

fn held(plan: &CheckedPlan) -> Vec<Held<'_>> {
    let (trace, schedule) = (plan.trace(), plan.schedule());
    let all = Residencies::of(trace, schedule, plan.machine(), false);
    let op_frame = |op: OpId| {
        let op = &trace.ops()[op];
        Frame { name: &op.name, filename: &op.kind, line: 0 }
    };
    all.iter()
        .map(|residency| {
            let frames = match residency.content {
                Content::Workspace(op) => {
                    vec![Frame { name: "workspace", filename: "workspace", line: 0 }, op_frame(op)]
                }
                Content::Tensor(tensor) => {
                    let how = match all.origin(residency) {
                        Origin::Boundary => "there before",
                        Origin::Computed => "computed",
                        Origin::Recomputed => "recomputed",
                        Origin::Prefetched => "prefetched",
                    };
                    let own = Frame { name: &trace.tensors()[tensor].name, filename: how, line: 0 };
                    [own].into_iter().chain(trace.producer(tensor).map(op_frame)).collect()
                }
            };
            Held {
                address: BASE + plan.placement().offsets[residency.buffer].get(),
                bytes: residency.bytes().get(),
                alive: (residency.alive.start, residency.alive.end),
                frames,
            }
        })
        .collect()
}

const ACTIVE: &str = "active_allocated";

/// What the segment holds after the last position, and the gaps in between.
fn blocks<'a>(held: &[Held<'a>], end: u64, total: u64) -> Vec<Block<'a>> {
    let mut there: Vec<&Held<'a>> = held.iter().filter(|held| held.alive.1 >= end).collect();
    there.sort_by_key(|held| held.address);
    let gap =
        |address, size| Block { address, size, requested_size: 0, state: "inactive", frames: Vec::new() };
    let (mut blocks, mut next) = (Vec::new(), BASE);
    for held in there {
        if held.address > next {
            blocks.push(gap(next, held.address - next));
        }
        blocks.push(Block {
            address: held.address,
            size: held.bytes,
            requested_size: held.bytes,
            state: ACTIVE,
            frames: held.frames.clone(),
        });
        next = held.address + held.bytes;
    }
    if next < BASE + total {
        blocks.push(gap(next, BASE + total - next));
    }
    blocks
}

/// The events in order of positions: what ends at a position is freed before what begins there is allocated.
fn events<'a>(held: &[Held<'a>], at: &[Nanos], total: u64) -> Vec<Event<'a>> {
    // Viewers need a time that is not zero.
    let micros =
        |position: u64| 1 + at.get(position as usize).or(at.last()).map_or(0, |time| time.get() / 1_000);
    let event = |action, held: &Held<'a>, position| Event {
        action,
        addr: held.address,
        size: held.bytes,
        stream: 0,
        time_us: micros(position),
        device: 0,
        frames: held.frames.clone(),
    };
    let last = at.len().saturating_sub(1) as u64;
    let mut by_position: HashMap<u64, [Vec<&Held<'a>>; 2]> = HashMap::new();
    for held in held {
        by_position.entry(held.alive.0).or_default()[1].push(held);
        if held.alive.1 < last {
            by_position.entry(held.alive.1).or_default()[0].push(held);
        }
    }
    let segment = Held { address: BASE, bytes: total, alive: (0, last), frames: Vec::new() };
    let mut events = vec![event("segment_alloc", &segment, 0)];
    for position in 0..=last {
        let Some([ended, begun]) = by_position.remove(&position) else { continue };
        for held in ended {
            events.push(event("free_requested", held, position));
            events.push(event("free_completed", held, position));
        }
        events.extend(begun.into_iter().map(|held| event("alloc", held, position)));
    }
    events
}
