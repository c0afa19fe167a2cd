//! Planners that make values again: Chen et al. (*Training deep nets with sublinear memory cost*, 2016), persistent checkpointing of a
//! chain, and dynamic tensor rematerialization. Each decides a sequence of ops with repeats; [`repeats`] says which values are dropped.

pub mod cuts;
pub mod layered;
pub mod repeats;
pub mod rotor;
