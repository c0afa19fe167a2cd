//! Where on the host every storage lies when a run decides on demand what leaves: decided before, so that a copy only looks up a number.

use std::collections::BTreeMap;

use elbowroom_graph::Graph;
use elbowroom_ir::order::{Order, Place};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{StorageId, Table};

use super::room::Room;

/// Host copies start at multiples of a page.
const ALIGN: usize = 4096;

/// An offset of the host tier for every storage. Storages that are needed at the same place of the order lie apart.
#[derive(Debug)]
pub(crate) struct Slots {
    /// None for persistent values that change their storage from iteration to iteration: those stay.
    pub offsets: Table<StorageId, Option<usize>>,
    /// Bytes of host that all of them need.
    pub size: usize,
}

/// Offsets of a graph's persistent values, in its order: the same for all graphs with the same ones. With their end.
pub(crate) fn persistent(graph: &Graph) -> (Vec<usize>, usize) {
    let mut end = 0;
    let offsets = graph.persistent.iter().map(|parameter| {
        let offset = end;
        end += (graph.values[parameter.begin].bytes().get() as usize).next_multiple_of(ALIGN);
        offset
    });
    let offsets = offsets.collect();
    (offsets, end)
}

impl Slots {
    /// Places storages in the order in which they come and go.
    pub fn new(graph: &Graph, trace: &Trace, order: &Order) -> Self {
        let mut offsets = Table::filled(trace.storages().len(), None);
        let (homes, base) = persistent(graph);
        let mut lasts = vec![false; trace.storages().len()];
        for (parameter, home) in graph.persistent.iter().zip(homes) {
            let (begin, end) = (trace.storage(parameter.begin), trace.storage(parameter.end));
            (lasts[begin.0 as usize], lasts[end.0 as usize]) = (true, true);
            offsets[begin] = (begin == end).then_some(home);
        }
        let mut until: Table<StorageId, Place> = Table::filled(trace.storages().len(), 0);
        for value in trace.tensors().ids() {
            let storage = trace.storage(value);
            until[storage] = until[storage].max(order.last_use(value));
        }
        // Far from overflow, and never full.
        let mut room = Room::new(usize::MAX >> 2, ALIGN);
        let (mut ending, mut size): (BTreeMap<Place, Vec<usize>>, usize) = (BTreeMap::new(), 0);
        for (place, &op) in (0..).zip(order.ops()) {
            while let Some(entry) = ending.first_entry().filter(|entry| *entry.key() < place) {
                entry.remove().into_iter().for_each(|offset| room.give(offset));
            }
            for &output in &trace.ops()[op].outputs {
                let storage = trace.storage(output);
                if lasts[storage.0 as usize] || offsets[storage].is_some() {
                    continue;
                }
                let bytes = trace.bytes(output).get() as usize;
                if let Some(offset) = room.take(bytes, None) {
                    size = size.max(offset + bytes);
                    offsets[storage] = Some(base + offset);
                    ending.entry(until[storage]).or_default().push(offset);
                }
            }
        }
        Self { offsets, size: base + size }
    }
}
