//! Offsets of host copies in a dynamic iteration, assigned before it starts, so that a copy only looks up a number.

use std::collections::BTreeMap;

use elbowroom_graph::Graph;
use elbowroom_ir::order::{Order, OrderIndex};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{StorageId, Table};

use super::allocator::DynamicAllocator;

/// Host copies start at multiples of a page.
const ALIGN: usize = 4096;

/// An offset in the host tier for every storage. Storages whose lifetimes in the order overlap do not overlap on the host.
#[derive(Debug)]
pub(crate) struct Slots {
    /// `None` for persistent tensors whose storage differs between start and end of the iteration: those are never offloaded.
    pub offsets: Table<StorageId, Option<usize>>,
    /// Size of the host tier that they need, in bytes.
    pub size: usize,
}

/// The offsets of a graph's persistent tensors, in order, and the end of the last one. The same for all graphs with the same persistent
/// tensors.
pub(crate) fn persistent(graph: &Graph) -> (Vec<usize>, usize) {
    let mut end = 0;
    let offsets = graph.persistent.iter().map(|parameter| {
        let offset = end;
        end += (graph.tensors[parameter.begin].bytes().get() as usize).next_multiple_of(ALIGN);
        offset
    });
    let offsets = offsets.collect();
    (offsets, end)
}

impl Slots {
    /// Assigns offsets to storages in the order in which ops write them.
    pub fn new(graph: &Graph, trace: &Trace, order: &Order) -> Self {
        let mut offsets = Table::filled(trace.storages().len(), None);
        let (slots, base) = persistent(graph);
        let mut lasts = vec![false; trace.storages().len()];
        for (parameter, slot) in graph.persistent.iter().zip(slots) {
            let (begin, end) = (trace.storage(parameter.begin), trace.storage(parameter.end));
            (lasts[begin.0 as usize], lasts[end.0 as usize]) = (true, true);
            offsets[begin] = (begin == end).then_some(slot);
        }
        let mut until: Table<StorageId, OrderIndex> = Table::filled(trace.storages().len(), 0);
        for value in trace.tensors().ids() {
            let storage = trace.storage(value);
            until[storage] = until[storage].max(order.last_use(value));
        }
        // Larger than any sum of sizes, and far from overflow.
        let mut arena = DynamicAllocator::new(usize::MAX >> 2, ALIGN);
        let (mut ending, mut size): (BTreeMap<OrderIndex, Vec<usize>>, usize) = (BTreeMap::new(), 0);
        for (place, &op) in (0..).zip(order.ops()) {
            while let Some(entry) = ending.first_entry().filter(|entry| *entry.key() < place) {
                entry.remove().into_iter().for_each(|offset| arena.free(offset));
            }
            for &output in &trace.ops()[op].outputs {
                let storage = trace.storage(output);
                if lasts[storage.0 as usize] || offsets[storage].is_some() {
                    continue;
                }
                let bytes = trace.bytes(output).get() as usize;
                if let Some(offset) = arena.allocate(bytes, None) {
                    size = size.max(offset + bytes);
                    offsets[storage] = Some(base + offset);
                    ending.entry(until[storage]).or_default().push(offset);
                }
            }
        }
        Self { offsets, size: base + size }
    }
}
