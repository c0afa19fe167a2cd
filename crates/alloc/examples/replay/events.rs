//! The requests of an iteration, from a file that `elbowroom-import` reads.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use elbowroom_import::{Imported, Options, import};
use elbowroom_ir::{Id, OpId, StorageId, Table, TensorId};

/// What happens to memory.
pub enum Event {
    /// A block is asked for.
    Malloc {
        /// Its number within the iteration.
        block: usize,
        /// Its size.
        bytes: u64,
    },
    /// A block is given back.
    Free {
        /// Its number within the iteration.
        block: usize,
    },
}

/// One iteration of a program that repeats it.
pub struct Iteration {
    /// Sizes of what is asked for once, before.
    pub fixed: Vec<u64>,
    /// What happens in each iteration.
    pub events: Vec<Event>,
    /// Blocks that an iteration asks for.
    pub blocks: usize,
    /// Bytes of blocks that live from one iteration to the same point of the next, so that no plan can have them.
    pub unplannable: u64,
}

impl Iteration {
    /// Reads a file. Each storage is asked for by the op that first writes it and given back after its last use; workspaces live for
    /// their op.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let name = path.to_string_lossy();
        let Imported { trace, .. } = import(&contents(path)?, &name, &Options::default())?;
        let storages = trace.storages().len();
        // Values that an iteration leaves to the next in the storage in which it found them never move.
        let mut fixed: Table<StorageId, bool> = Table::filled(storages, false);
        let mut kept: Table<StorageId, bool> = Table::filled(storages, false);
        let storage = |value: TensorId| trace.tensors()[value].storage;
        for pair in trace.persistent() {
            fixed[storage(pair.begin)] = true;
            kept[storage(pair.end)] |= storage(pair.end) != storage(pair.begin);
        }
        let mut last: Table<StorageId, Option<OpId>> = Table::filled(storages, None);
        for (id, op) in trace.ops().iter() {
            for &value in op.reads.iter().chain(&op.outputs) {
                last[storage(value)] = Some(id);
            }
        }
        let mut events = Vec::new();
        let mut living: Table<StorageId, bool> = fixed.clone();
        let mut blocks = storages;
        for (id, op) in trace.ops().iter() {
            for &value in &op.outputs {
                let storage = storage(value);
                if !std::mem::replace(&mut living[storage], true) {
                    let bytes = trace.bytes(value).get();
                    events.push(Event::Malloc { block: storage.index(), bytes });
                }
            }
            if !op.workspace.is_zero() {
                events.push(Event::Malloc { block: blocks, bytes: op.workspace.get() });
                events.push(Event::Free { block: blocks });
                blocks += 1;
            }
            for &value in op.reads.iter().chain(&op.outputs) {
                let storage = storage(value);
                let dies = last[storage] == Some(id) && !fixed[storage] && !kept[storage];
                if dies && std::mem::replace(&mut living[storage], false) {
                    events.push(Event::Free { block: storage.index() });
                }
            }
        }
        let bytes = |chosen: &Table<StorageId, bool>| -> Vec<u64> {
            let all = trace.storages().values().zip(chosen.values());
            all.filter(|&(_, &chosen)| chosen).map(|(storage, _)| storage.bytes.get()).collect()
        };
        let unplannable = bytes(&kept).iter().sum();
        Ok(Self { fixed: bytes(&fixed), events, blocks, unplannable })
    }
}

/// Bytes of the longest file that is read.
const LONGEST: u64 = 1 << 30;

/// A file's contents. Not everything that can be opened ends.
fn contents(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let mut contents = Vec::new();
    let file = File::open(path).map_err(|error| failed(&error))?;
    file.take(LONGEST + 1).read_to_end(&mut contents).map_err(|error| failed(&error))?;
    if contents.len() as u64 > LONGEST {
        return Err(failed(&format_args!("longer than {LONGEST} bytes, the most that is read")).into());
    }
    Ok(contents)
}
