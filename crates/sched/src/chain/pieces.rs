//! Activations in pieces, so that a plan can offload a part of one (Beaumont et al., section 4).
//!
//! A plan offloads a tensor whole or not at all. In the trace of this module every large tensor that does not outlive the iteration is several
//! tensors of at most some size, which the same ops make and read; the ops, their order and their durations are the same. Any planner can then
//! offload a part, the checker and the simulator need not know of it, and the smaller the pieces, the closer copies come to ones that may stop
//! at any byte. Pieces of one tensor have no common offset, so that such a plan is for planning and simulation: kernels that want a tensor in one
//! run of bytes cannot execute it.

use elbowroom_ir::trace::{Mutation, Reuse, Storage, Tensor, Trace, TraceData, TraceError};
use elbowroom_ir::{Bytes, Id, TensorId};

/// Most pieces of one tensor; above it the pieces are larger.
const MOST: u64 = 1 << 10;

/// The trace with tensors in pieces of at most this many bytes, which must not be zero. A tensor stays whole if it outlives the iteration or
/// shares its storage, and if an output that may take its buffer stays whole.
pub fn in_pieces(trace: &Trace, most: Bytes) -> Result<Trace, TraceError> {
    let mut sharing = vec![0u32; trace.storages().len()];
    for tensor in trace.tensors().ids() {
        sharing[trace.storage(tensor).index()] += 1;
    }
    let mut whole: Vec<bool> =
        trace.tensors().ids().map(|tensor| sharing[trace.storage(tensor).index()] > 1).collect();
    for pair in trace.persistent() {
        whole[pair.begin.index()] = true;
        whole[pair.end.index()] = true;
    }
    // Bytes can be handed on piece by piece only between tensors that are cut alike.
    let each = |bytes: u64| most.get().max(bytes.div_ceil(MOST)).max(1);
    loop {
        let pairs = || trace.ops().values().flat_map(|op| &op.may_reuse);
        let differs = |pair: &&Reuse, whole: &[bool]| {
            whole[pair.input.index()] != whole[pair.output.index()]
                || (!whole[pair.input.index()] && trace.bytes(pair.input) != trace.bytes(pair.output))
        };
        let Some(pair) = pairs().find(|pair| differs(pair, &whole)) else { break };
        whole[pair.input.index()] = true;
        whole[pair.output.index()] = true;
    }

    let mut data = TraceData { name: trace.name().to_owned(), ..TraceData::default() };
    data.storages = trace.storages().clone();
    let mut pieces: Vec<Vec<TensorId>> = Vec::with_capacity(trace.tensors().len());
    for (id, tensor) in trace.tensors().iter() {
        let bytes = trace.bytes(id).get();
        let each = each(bytes);
        if whole[id.index()] || bytes <= each {
            pieces.push(vec![data.tensors.push(tensor.clone())]);
            continue;
        }
        let cut = (0..bytes.div_ceil(each)).map(|piece| (piece, each.min(bytes - piece * each)));
        let parts = cut.map(|(piece, bytes)| {
            // The first piece takes the place of the tensor.
            let storage = Storage { bytes: Bytes(bytes) };
            let storage = if piece == 0 {
                data.storages[tensor.storage] = storage;
                tensor.storage
            } else {
                data.storages.push(storage)
            };
            data.tensors.push(Tensor { name: format!("{}[{piece}]", tensor.name), storage })
        });
        pieces.push(parts.collect());
    }
    let all = |tensors: &[TensorId]| -> Vec<TensorId> {
        tensors.iter().flat_map(|tensor| &pieces[tensor.index()]).copied().collect()
    };
    let first = |tensor: TensorId| pieces[tensor.index()][0];
    for op in trace.ops().values() {
        let mut op = op.clone();
        op.reads = all(&op.reads);
        op.outputs = all(&op.outputs);
        op.mutates =
            op.mutates.iter().map(|one| Mutation { old: first(one.old), new: first(one.new) }).collect();
        let handed_on = op.may_reuse.iter().flat_map(|pair| {
            let parts = pieces[pair.input.index()].iter().zip(&pieces[pair.output.index()]);
            parts.map(|(&input, &output)| Reuse { input, output })
        });
        op.may_reuse = handed_on.collect();
        data.ops.push(op);
    }
    data.persistent = trace.persistent().to_vec();
    for pair in &mut data.persistent {
        pair.begin = first(pair.begin);
        pair.end = first(pair.end);
    }
    Trace::new(data)
}
