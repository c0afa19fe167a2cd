//! The tables and figures of the five papers that this project builds on, computed again.
//!
//! [`ITEMS`] lists every table and figure by name, like `zhang-table-2`, and the statements of figures in the text that have no number of their
//! own. [`run`] computes one: a [`Sheet`] of [`Row`]s, each with the printed figure, ours, their ratio and the reason for a difference, and curves
//! for a picture. Only printed figures are data here, with the place at which they stand; everything under *ours* is computed by the same
//! functions as the commands `trace`, `plan`, `compare` and `pack`.
//!
//! A row without a figure of the paper is of a curve that is printed without numbers. A row without a figure of ours is of something that cannot be
//! computed without the authors' machine, or of a drawing; its reason says which.
//!
//! ```
//! use elbowroom::ir::search::Silent;
//! use elbowroom_reproduce::{Bench, item, run};
//!
//! let sheet = run(item("chen-fig1").unwrap(), &Bench::quick(&Silent))?;
//! assert_eq!(sheet.rows[0].ours, Some(9_000.0));
//! # Ok::<(), elbowroom_reproduce::Error>(())
//! ```

#![forbid(unsafe_code)]

mod beaumont;
mod bench;
mod chen;
mod items;
mod optimum;
mod requests;
mod row;
mod sekiyama;
mod shicheng;
mod trained;
#[cfg(feature = "dqn")]
mod transfer;
mod zhang;

pub use bench::Bench;
pub use items::{ITEMS, Item, Paper, item};
pub use row::{Curves, Row, Sheet};

/// Why a table or figure could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A network of the zoo could not be built.
    #[error(transparent)]
    Network(#[from] elbowroom::graph::zoo::ZooError),
    /// A network has no trace.
    #[error(transparent)]
    Untraceable(#[from] elbowroom::pipeline::Untraceable),
    /// A plan that a row needs was not found.
    #[error(transparent)]
    Plan(#[from] elbowroom::pipeline::PlanError),
    /// A planner made an illegal plan, which is a fault in this project.
    #[error(transparent)]
    Illegal(#[from] elbowroom::ir::check::Illegal),
    /// A training that a row measures failed.
    #[error(transparent)]
    Training(#[from] elbowroom::train::TrainError),
    /// The name of a planner, packer or machine is not registered.
    #[error(transparent)]
    Unknown(#[from] elbowroom::registry::UnknownName),
    /// Something that always exists is missing, which is a fault in this project.
    #[error("{0}, which is a fault in elbowroom")]
    Fault(String),
}

/// Computes one table or figure.
///
/// # Errors
///
/// An [`Error`] if a part of it cannot be computed. If the observer interrupts, rows are missing instead.
pub fn run(item: &Item, bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut sheet = item.sheet(bench)?;
    for row in &mut sheet.rows {
        row.name = item.name;
    }
    Ok(sheet)
}
