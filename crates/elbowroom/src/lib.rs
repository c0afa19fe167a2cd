//! Training neural networks in the memory you have.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod data;
pub mod size;
