//! A heterogeneous chain of layers in numbers, and a plan over its layers: the terms of persistent checkpointing (O. Beaumont et al.,
//! *Optimal checkpointing for heterogeneous chains*, 2019, section 3).
//!
//! [`layered`](super::layered) derives a profile from a trace and carries a plan back to ops; [`rotor`](super::rotor) finds the plan.

use elbowroom_ir::Nanos;

/// A chain in rotor's terms. Sizes are bytes or any other whole unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Time of every F_i.
    pub forward: Vec<Nanos>,
    /// Time of every B_i.
    pub backward: Vec<Nanos>,
    /// Sizes of x_0..x_n, which are those of y_0..y_n too.
    pub plain: Vec<u64>,
    /// Sizes of x̄_0..x̄_n; the first counts nothing.
    pub saved: Vec<u64>,
    /// Scratch of every F_i.
    pub forward_extra: Vec<u64>,
    /// Scratch of every B_i.
    pub backward_extra: Vec<u64>,
}

impl Profile {
    /// Sum of all times.
    pub fn total(&self) -> Nanos {
        self.forward.iter().chain(&self.backward).sum()
    }

    /// The largest live memory if everything is kept.
    pub fn peak(&self) -> u64 {
        let mut kept = self.plain.first().copied().unwrap_or(0);
        let layers = (0..self.forward.len()).map(|i| {
            kept += self.saved[i + 1];
            let gradients = self.plain[i] + self.plain[i + 1];
            kept + self.forward_extra[i].max(gradients + self.backward_extra[i])
        });
        layers.max().unwrap_or(0)
    }

    /// The same chain with memory counted in slots of this many units, rounded up.
    pub fn in_slots(&self, slot: u64) -> Self {
        let up = |sizes: &[u64]| sizes.iter().map(|size| size.div_ceil(slot)).collect();
        Self {
            forward: self.forward.clone(),
            backward: self.backward.clone(),
            plain: up(&self.plain),
            saved: up(&self.saved),
            forward_extra: up(&self.forward_extra),
            backward_extra: up(&self.backward_extra),
        }
    }
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The layer runs forward, keeping x̄ of its output or not.
    Forward {
        /// Which layer.
        layer: usize,
        /// Whether all that its backward op needs is kept.
        save: bool,
    },
    /// The layer runs backward.
    Backward {
        /// Which layer.
        layer: usize,
    },
}
