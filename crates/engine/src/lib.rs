//! Runs checked plans for real.

pub mod kernels;
