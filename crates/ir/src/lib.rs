//! What a memory plan for one training iteration is, and when it is legal.

pub mod entity;
pub mod packing;
pub mod search;
pub mod units;

pub use entity::{ActionId, BufferId, Id, OpId, StorageId, Table, TensorId};
pub use units::{Bytes, Nanos};
