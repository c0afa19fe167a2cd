//! Which thread makes a copy, on a device that records launches, copies and wake-ups.

use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::{Bytes, OpId, TensorId};

use super::*;
use crate::arena::Extent;
use crate::device::Waiting;
use crate::dynamic::dry_run::NullTier;
use crate::error::HostError;
use crate::host::HostTier;

/// Copies of up to this many bytes are small.
const SMALL: usize = 100;

/// A device without memory. Every stream but the compute stream sleeps.
struct Log {
    done: Mutex<Vec<bool>>,
    /// For each action, the streams that wait for it.
    awaited: Mutex<Vec<[bool; 3]>>,
    entries: Mutex<Vec<String>>,
}

impl Log {
    fn new(actions: usize) -> Self {
        let (done, awaited) = (Mutex::new(vec![false; actions]), Mutex::new(vec![[false; 3]; actions]));
        Self { done, awaited, entries: Mutex::default() }
    }

    fn add(&self, entry: String) {
        lock(&self.entries).push(entry);
    }
}

impl Device for Arc<Log> {
    fn limit(&self) -> Bytes {
        Bytes::ZERO
    }
    fn begin(&self) {}
    fn launch(&self, call: Call<'_>) -> Result<(), EngineError> {
        self.add(format!("{}", call.op));
        Ok(())
    }
    fn store(&self, from: Extent, _: usize, _: Instant) -> Result<(), HostError> {
        self.add(format!("store {}", from.len));
        Ok(())
    }
    fn load(&self, _: usize, to: Extent, _: Instant) -> Result<(), HostError> {
        self.add(format!("load {}", to.len));
        Ok(())
    }
    fn inline_copy_limit(&self) -> usize {
        SMALL
    }
    fn wait(&self, _: Stream, action: ActionId) -> Result<(), Stopped> {
        if lock(&self.done)[action.0 as usize] { Ok(()) } else { Err(Stopped) }
    }
    fn reached(&self, stream: Stream, action: ActionId) -> bool {
        let done = lock(&self.done)[action.0 as usize];
        lock(&self.awaited)[action.0 as usize][stream.index()] |= !done;
        done
    }
    fn signal(&self, _: Stream, action: ActionId) -> Waiting {
        lock(&self.done)[action.0 as usize] = true;
        let awaited = lock(&self.awaited)[action.0 as usize];
        Waiting::of(Stream::ALL.into_iter().filter(|stream| awaited[stream.index()]))
    }
    fn wake(&self, stream: Stream) {
        self.add(format!("wake {}", stream.name()));
    }
    fn stop(&self) {}
    fn set_program(&mut self, _: Arc<Graph>, _: usize) {}
    fn replace_host(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier> {
        host
    }
    fn move_within(&self, _: Extent, _: usize) {}
    fn host(&self) -> &dyn HostTier {
        &NullTier
    }
    fn read(&self, _: Extent, _: &mut [u8]) {}
    fn write(&self, _: Extent, _: &[u8]) {}
    fn guard(&self, _: Bytes) {}
    fn commit(&self, _: Bytes) {}
    fn first_overwritten(&self, _: Bytes) -> Option<Bytes> {
        None
    }
}

fn op(action: u32, after: Option<u32>) -> Task {
    let workspace = Extent { offset: 0, len: 0 };
    let work = TaskWork::Launch { op: OpId(action), reads: 0..0, writes: 0..0, workspace };
    let after = [None, None, after.map(ActionId)];
    Task { action: ActionId(action), work, after, end: 0, retires: 0..0 }
}

fn load(action: u32, len: usize, after: u32) -> Task {
    let work = TaskWork::Load { value: TensorId(0), copy: 0, to: Extent { offset: 0, len } };
    let after = [Some(ActionId(after)), None, None];
    Task { action: ActionId(action), work, after, end: 0, retires: 0..0 }
}

/// What the compute stream does while the copy streams' threads sleep.
fn log(ops: Vec<Task>, loads: Vec<Task>) -> Vec<String> {
    let actions = ops.len() + loads.len();
    let device = Arc::new(Log::new(actions));
    let (extents, retiring, residencies, locations) = Default::default();
    let streams = [ops, Vec::new(), loads];
    let program = Program { streams, extents, retiring, residencies, locations, actions };
    let mut copies = HostCopies::default();
    copies.offsets.push(0);
    let state = ExecutorState::new(program, Box::new(Arc::clone(&device)), Exchange::default(), copies);
    // The thread of the copy stream has begun and sleeps.
    for task in state.program.streams[Stream::ToDevice.index()].iter().take(1) {
        for action in task.after.into_iter().flatten() {
            device.reached(Stream::ToDevice, action);
        }
    }
    assert!(state.run_stream(Stream::Compute, IterationKey::default(), Instant::now()).is_ok());
    std::mem::take(&mut lock(&device.entries))
}

#[test]
fn no_thread_is_woken_for_a_copy_that_the_next_op_makes() {
    let large = 10 * SMALL;
    // Positions: op0, load a1 after op0, op2 after a1, load a3 after op2, op4 after a3.
    let ops = vec![op(0, None), op(2, Some(1)), op(4, Some(3))];
    let loads = vec![load(1, large, 0), load(3, large, 2)];
    let entries = log(ops, loads);
    assert_eq!(entries, ["op0", "load 1000", "op2", "load 1000", "wake to-device", "op4"]);
}

#[test]
fn a_thread_is_woken_for_large_copies_that_nothing_waits_for_yet() {
    let large = 10 * SMALL;
    // op0, loads a1 and a2 after op0, op3 after a1, op4. The thread makes a2 while op3 runs.
    let ops = vec![op(0, None), op(3, Some(1)), op(4, None)];
    let loads = vec![load(1, large, 0), load(2, large, 0)];
    let entries = log(ops, loads);
    assert_eq!(entries, ["op0", "load 1000", "wake to-device", "op3", "op4"]);
    // Nothing waits for the copy: its thread makes it.
    let entries = log(vec![op(0, None), op(2, None)], vec![load(1, large, 0)]);
    assert_eq!(entries, ["op0", "wake to-device", "op2"]);
    // A small one is made at once, and the thread is woken to end the iteration.
    let entries = log(vec![op(0, None), op(2, None)], vec![load(1, SMALL, 0)]);
    assert_eq!(entries, ["op0", "load 100", "wake to-device", "op2"]);
}
