//! Kernels.
pub mod isa;
pub mod pack;
pub mod parallel;
pub mod product;
pub mod tile;
