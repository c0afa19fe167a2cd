//! Peak memory of a trace without offloading and recomputation: every tensor lives until its last use, and every permitted reuse is taken.

use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, TensorId};

/// The largest number of bytes alive while an op runs: its inputs, its outputs in fresh bytes, its workspace, and all tensors still to
/// be read. Linear in the trace, apart from the search of an op's own operands.
pub fn peak_memory(trace: &Trace) -> Bytes {
    let values = trace.tensors().len();
    let mut kept = vec![false; values];
    // The buffer that holds a tensor, as its size; reuse hands it on.
    let mut buffer: Vec<Option<u64>> = vec![None; values];
    let mut live = 0u64;
    for pair in trace.persistent() {
        kept[pair.end.index()] = true;
        buffer[pair.begin.index()] = Some(trace.bytes(pair.begin).get());
        live += trace.bytes(pair.begin).get();
    }
    let mut peak = live;
    for (id, op) in trace.ops().iter() {
        let dies = |value: TensorId| !kept[value.index()] && trace.users(value).last() == Some(&id);
        for &output in &op.outputs {
            let old = op.overwrites(output).or_else(|| {
                let mut permitted = op.may_reuse.iter().filter(|r| r.output == output).map(|r| r.input);
                permitted.find(|&input| {
                    dies(input) && buffer[input.index()].is_some() && op.overwritten_by(input).is_none()
                })
            });
            let taken = old.and_then(|old| buffer[old.index()].take());
            let bytes = trace.bytes(output).get();
            live += if taken.is_some() { 0 } else { bytes };
            buffer[output.index()] = Some(taken.unwrap_or(bytes));
        }
        peak = peak.max(live + op.workspace.get());
        let unread = |value: TensorId| !kept[value.index()] && trace.users(value).is_empty();
        for &value in op.reads.iter().filter(|&&v| dies(v)).chain(op.outputs.iter().filter(|&&v| unread(v))) {
            live -= buffer[value.index()].take().unwrap_or(0);
        }
    }
    Bytes(peak)
}
