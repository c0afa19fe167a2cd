//! One file per stage: settings in, one call of the library, its answer out.

pub mod check;
pub mod compare;
pub mod explain;
pub mod export;
pub mod forward;
pub mod judge;
pub mod limits;
pub mod pack;
pub mod plan;
pub mod report;
pub mod reproduce;
pub mod simulate;
pub mod trace;
pub mod train;
pub mod why;
