//! The problem of several memories, its placements, and their validator.

use elbowroom_ir::packing::{Block, Placement, Problem, ProblemError};
use elbowroom_ir::{BufferId, Bytes, Id, Table};

use crate::validate::{PlacementError, validate};

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Its name in messages.
    pub name: String,
    /// Its bytes; `None` for a memory without a limit.
    pub capacity: Option<Bytes>,
    /// What one byte of traffic costs there, in any unit: the time per byte, say. Slower memories cost more.
    pub cost: u64,
}

/// Blocks to be placed in banks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BankedProblem {
    /// The blocks. A fixed offset counts from the start of whichever bank the block lies in.
    pub blocks: Table<BufferId, Block>,
    /// The memories; at least one.
    pub banks: Vec<Bank>,
    /// For each block, the banks in which it may lie, by their numbers, the preferred one first: it counts as the cheapest of them, the next
    /// one as the second cheapest, and so on. An empty list allows all banks, by their own costs. A list of one bank is a pin.
    pub allowed: Table<BufferId, Vec<u32>>,
    /// Bytes that are read from and written to each block.
    pub traffic: Table<BufferId, Bytes>,
}

/// Why a [`BankedProblem`] is not well formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BankedError {
    /// No bank at all.
    #[error("there is no bank; name at least one")]
    NoBanks,
    /// A list has another length than that of the blocks.
    #[error("{blocks} blocks, but {allowed} lists of allowed banks and {traffic} amounts of traffic")]
    Length {
        /// Number of blocks.
        blocks: usize,
        /// Number of lists of banks.
        allowed: usize,
        /// Number of amounts of traffic.
        traffic: usize,
    },
    /// A block is allowed in a bank that does not exist, or in one bank twice.
    #[error("{block}: bank {bank} is named twice or is none of the {banks} banks")]
    UnknownBank {
        /// The block.
        block: BufferId,
        /// The number.
        bank: u32,
        /// Number of banks.
        banks: usize,
    },
    /// Traffic times cost, or the traffic of all blocks, adds up to 2^62 or more.
    #[error(
        "the traffic of all buffers times the cost of the slowest bank adds up to 2^62 or more; use smaller units"
    )]
    TooCostly,
    /// The blocks are not well formed.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

impl BankedProblem {
    /// Checks the assumptions of [`pack_banks`](crate::pack_banks).
    ///
    /// # Errors
    /// The first assumption that is violated.
    pub fn validate(&self) -> Result<(), BankedError> {
        let (blocks, allowed, traffic) = (self.blocks.len(), self.allowed.len(), self.traffic.len());
        if self.banks.is_empty() {
            return Err(BankedError::NoBanks);
        }
        if allowed != blocks || traffic != blocks {
            return Err(BankedError::Length { blocks, allowed, traffic });
        }
        for (block, allowed) in self.allowed.iter() {
            for (at, &bank) in allowed.iter().enumerate() {
                if bank as usize >= self.banks.len() || allowed[..at].contains(&bank) {
                    return Err(BankedError::UnknownBank { block, bank, banks: self.banks.len() });
                }
            }
        }
        let slowest = self.banks.iter().map(|bank| bank.cost).max().unwrap_or(0).max(1);
        let total: u128 = self.traffic.values().map(|traffic| u128::from(traffic.get().max(1))).sum();
        if total.saturating_mul(u128::from(slowest)) >= 1 << 62 {
            return Err(BankedError::TooCostly);
        }
        Problem { blocks: self.blocks.clone(), capacity: None }.validate()?;
        Ok(())
    }

    /// The banks in which a block may lie, each with the cost of a byte of traffic, the preferred one first.
    pub(crate) fn options(&self, block: BufferId) -> Vec<(u32, u64)> {
        let listed = &self.allowed[block];
        let cost = |&bank: &u32| self.banks[bank as usize].cost;
        if listed.is_empty() {
            return (0..self.banks.len() as u32).map(|bank| (bank, cost(&bank))).collect();
        }
        let mut costs: Vec<u64> = listed.iter().map(cost).collect();
        costs.sort_unstable();
        listed.iter().copied().zip(costs).collect()
    }

    /// The blocks of one bank as a problem of their own.
    pub(crate) fn within(&self, bank: usize, members: &[BufferId]) -> Problem {
        let blocks = members.iter().map(|&id| self.blocks[id].clone()).collect();
        Problem { blocks, capacity: self.banks[bank].capacity }
    }
}

/// A bank and an offset for every block, but for those that are spilled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BankedPlacement {
    /// For each block, the number of its bank; `None` if it is spilled: it lies in no bank.
    pub banks: Table<BufferId, Option<u32>>,
    /// For each block, its first byte in its bank; 0 if it is spilled.
    pub offsets: Table<BufferId, Bytes>,
    /// For each bank, the highest end of its blocks.
    pub heights: Vec<Bytes>,
    /// Traffic of the placed blocks, each times the cost of its bank (by its preferences, if it has any).
    pub cost: u64,
    /// The spilled blocks, ascending.
    pub spilled: Vec<BufferId>,
    /// Their bytes.
    pub spilled_bytes: Bytes,
    /// Their traffic.
    pub spilled_traffic: Bytes,
}

impl BankedPlacement {
    /// A placement with the numbers that follow from banks and offsets.
    pub fn new(
        problem: &BankedProblem,
        banks: Table<BufferId, Option<u32>>,
        offsets: Table<BufferId, Bytes>,
    ) -> Self {
        let mut placement = Self { heights: vec![Bytes::ZERO; problem.banks.len()], ..Self::default() };
        for (id, block) in problem.blocks.iter() {
            let traffic = problem.traffic[id];
            if let Some(bank) = banks[id] {
                let end = offsets[id] + block.size;
                if let Some(height) = placement.heights.get_mut(bank as usize) {
                    *height = end.max(*height);
                }
                let options = problem.options(id);
                let cost = options.iter().find(|(other, _)| *other == bank).map_or(0, |&(_, cost)| cost);
                placement.cost = placement.cost.saturating_add(traffic.get().saturating_mul(cost));
            } else {
                placement.spilled.push(id);
                placement.spilled_bytes += block.size;
                placement.spilled_traffic += traffic;
            }
        }
        Self { banks, offsets, ..placement }
    }
}

/// Why a placement in banks is illegal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BankedPlacementError {
    /// The number of banks or offsets is not the number of blocks.
    #[error("{blocks} blocks but {banks} banks and {offsets} offsets")]
    Length {
        /// Number of blocks.
        blocks: usize,
        /// Number of banks.
        banks: usize,
        /// Number of offsets.
        offsets: usize,
    },
    /// A block lies in a bank in which it is not allowed.
    #[error("{block} lies in bank {bank}, which it may not")]
    Forbidden {
        /// The block.
        block: BufferId,
        /// The bank.
        bank: u32,
    },
    /// What is stated of heights, cost or spilled blocks does not follow from banks and offsets.
    #[error("the stated heights, cost or spilled blocks are not those of the banks and offsets")]
    Stated,
    /// A bank is illegal in itself. Its blocks are numbered in the order of the problem.
    #[error("bank {bank}: {error}")]
    Bank {
        /// The bank.
        bank: u32,
        /// The violation among its blocks.
        error: PlacementError,
    },
}

/// Checks that a placement is legal: every bank by [`validate`], and that blocks lie where they may.
///
/// # Errors
///
/// The first violation found.
pub fn validate_banks(
    problem: &BankedProblem,
    placement: &BankedPlacement,
) -> Result<(), BankedPlacementError> {
    let (blocks, banks, offsets) = (problem.blocks.len(), placement.banks.len(), placement.offsets.len());
    if banks != blocks || offsets != blocks {
        return Err(BankedPlacementError::Length { blocks, banks, offsets });
    }
    for (block, bank) in placement.banks.iter() {
        let allowed = &problem.allowed[block];
        if let Some(bank) = *bank
            && (bank as usize >= problem.banks.len() || !(allowed.is_empty() || allowed.contains(&bank)))
        {
            return Err(BankedPlacementError::Forbidden { block, bank });
        }
    }
    if *placement != BankedPlacement::new(problem, placement.banks.clone(), placement.offsets.clone()) {
        return Err(BankedPlacementError::Stated);
    }
    for bank in 0..problem.banks.len() {
        let members: Vec<BufferId> =
            placement.banks.iter().filter(|(_, b)| **b == Some(bank as u32)).map(|(id, _)| id).collect();
        let within = problem.within(bank, &members);
        let offsets: Vec<Bytes> = members.iter().map(|&id| placement.offsets[id]).collect();
        let part = Placement { offsets: offsets.into(), height: placement.heights[bank] };
        validate(&within, &part)
            .map_err(|error| BankedPlacementError::Bank { bank: BufferId::new(bank).0, error })?;
    }
    Ok(())
}
