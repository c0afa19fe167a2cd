//! Ever lower limits on live memory until a schedule can be packed within the device's memory.
//!
//! A planner promises live memory; the arena that a placement of its schedule takes is larger by what fragmentation adds. Where that is
//! more than there is, the next round plans for less live memory. The pipeline does this for every planner. AutoSwap does it too, for each
//! of its selections, because it compares schedules that have been packed (Zhang et al., section V); it gets its packer with the request,
//! so that this crate depends on none.

use elbowroom_ir::Bytes;

/// Rounds after which a limit is given up.
pub const ROUNDS: usize = 8;

/// Evaluations of the packer for each placement of a round that has not searched for long.
pub const PACKING_EVALUATIONS: u64 = 20;

/// The limits on live memory of successive rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundLimits {
    first: Bytes,
    limit: Bytes,
    exceeds: Bytes,
    round: u32,
}

impl RoundLimits {
    /// The first round has this limit.
    pub fn from(limit: Bytes) -> Self {
        Self { first: limit, limit, exceeds: limit, round: 0 }
    }

    /// The limit of the current round.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// Whether the current limit is the one of the first round.
    pub fn is_first(&self) -> bool {
        self.limit == self.first
    }

    /// The live memory of the latest schedule that could not be packed; before there is one, the first limit.
    pub fn exceeds(&self) -> Bytes {
        self.exceeds
    }

    /// Ends a round whose schedule has a live memory of `live_bytes` and exceeds the arena by `excess` bytes. The next limit is
    /// lower by the excess, and by twice as much in every further round: the better the packer, the smaller the excess, and the rounds
    /// must not be used up by small steps. Returns whether there is a next limit.
    pub fn too_high(&mut self, live_bytes: Bytes, excess: Bytes) -> bool {
        // At a limit no lower than its schedule's live memory, a planner would return the same schedule.
        self.exceeds = self.limit.min(live_bytes);
        let step = excess.get().checked_shl(self.round);
        self.round += 1;
        let lower = step.and_then(|step| self.exceeds.get().checked_sub(step)).filter(|&lower| lower > 0);
        self.limit = lower.map_or(self.limit, Bytes);
        lower.is_some()
    }

    /// Ends a round without a schedule: the last step was too long, and is halved. Returns whether there is a next limit.
    pub fn too_low(&mut self) -> bool {
        let between = Bytes(self.limit.get().midpoint(self.exceeds.get()));
        let higher = !self.is_first() && between > self.limit;
        if higher {
            self.limit = between;
        }
        self.round += 1;
        higher
    }
}
