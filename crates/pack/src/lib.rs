//! Offline placement: buffers with known lifetimes get offsets in one arena, as low as possible.
#![forbid(unsafe_code)]

mod best_fit;
pub mod csv;
mod eject;
mod exact;
mod greedy;
mod improve;
mod instance;
#[cfg(feature = "highs")]
mod mip;
mod parts;
mod pool;
mod portfolio;
mod preference;
mod random;
mod sharing;
mod shelf;
mod smart_pool;
mod squeaky;
mod tree;
mod validate;
mod windows;

pub use best_fit::BestFit;
pub use exact::Exact;
pub use greedy::{GreedyByConflict, GreedyBySize};
#[cfg(feature = "highs")]
pub use mip::Mip;
pub use pool::Pool;
pub use portfolio::Auto;
pub use sharing::Sharing;
pub use smart_pool::{SmartPoolBest, SmartPoolFirst};
pub use validate::{PlacementError, validate};

use elbowroom_ir::packing::Packer;

/// All packers, the default one first.
pub static PACKERS: &[&dyn Packer] = &[
    &Auto,
    &BestFit,
    &SmartPoolBest,
    &SmartPoolFirst,
    &GreedyBySize,
    &GreedyByConflict,
    &Exact,
    &Pool,
    &Sharing,
    #[cfg(feature = "highs")]
    &Mip,
];

/// The packer of a name, or `None`.
pub fn packer(name: &str) -> Option<&'static dyn Packer> {
    PACKERS.iter().copied().find(|packer| packer.name() == name)
}
