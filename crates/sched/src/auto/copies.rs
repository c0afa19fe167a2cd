//! The order of the copies, for a policy whose sets are decided: another order of offloads or prefetches may shorten the iteration.
//!
//! Copies run in the order in which their tensors become idle (offloads) or are needed (prefetches) unless a policy lists another order. That
//! is best where memory is not scarce. Where it is, a small tensor that is needed later may be fetched into bytes that a large one would have
//! to wait for, and an offload that frees more bytes may have to go first. The search decides sets, not orders; this is a descent over orders
//! for the best set.

use elbowroom_ir::planning::Request;

use crate::lower::Analysed;
use crate::policy::{CopyOrder, Gap, Policy};

/// More copies in one direction than this are not reordered: a pass tries each of them at the place of every other.
const COPIES: usize = 64;
/// One evaluation for this many of the search, and at most as many as evaluate this many ops.
const SHARE: u64 = 8;
const OPS: u64 = 60_000;

/// How many evaluations all descents after a search may take together. They do not hear the clock, because a search that was cut short is
/// reproduced by its number of evaluations.
pub(crate) fn evaluations(searched: u64, ops: usize) -> u64 {
    (searched / SHARE).min(OPS / ops.max(1) as u64)
}

/// The policy with the best orders of copies that a descent of at most `left` evaluations finds, and its iteration time; `None` if the policy
/// has no schedule within the limit. Subtracts the evaluations from `left`.
pub(crate) fn reordered(
    request: &Request<'_>,
    policy: Policy,
    bound: u64,
    left: &mut u64,
) -> Option<(u64, Policy)> {
    let analysed = Analysed::new(request, &policy).ok()?;
    let time = analysed.evaluate(&policy).ok()?.0.get();
    let orders = analysed.copies();
    let few = |copies: &Vec<Gap>| copies.len() <= COPIES;
    if time <= bound || !orders.iter().all(few) || orders.iter().all(|copies| copies.len() < 2) {
        return Some((time, policy));
    }
    let mut descent = Descent { analysed, policy, orders, time, left };
    descent.offer(descent.orders.clone());
    while descent.time > bound && descent.pass(bound) {}
    Some((descent.time, descent.policy))
}

struct Descent<'a> {
    analysed: Analysed<'a>,
    /// The fastest policy so far.
    policy: Policy,
    /// Its offloads and its prefetches.
    orders: [Vec<Gap>; 2],
    time: u64,
    /// Evaluations that may follow.
    left: &'a mut u64,
}

impl Descent<'_> {
    /// Tries every copy at the place of every other copy in its direction, and keeps what is faster. Whether anything was, and evaluations
    /// are left.
    fn pass(&mut self, bound: u64) -> bool {
        let before = self.time;
        for direction in 0..2 {
            let copies = self.orders[direction].len();
            for from in 0..copies {
                for to in (0..copies).filter(|&to| to != from) {
                    if *self.left == 0 || self.time <= bound {
                        return false;
                    }
                    let mut orders = self.orders.clone();
                    let copy = orders[direction].remove(from);
                    orders[direction].insert(to, copy);
                    self.offer(orders);
                }
            }
        }
        self.time < before
    }

    fn offer(&mut self, orders: [Vec<Gap>; 2]) {
        *self.left = self.left.saturating_sub(1);
        let mut policy = self.policy.clone();
        [policy.offloads, policy.prefetches] = orders.clone().map(CopyOrder::Listed);
        if let Ok((time, _)) = self.analysed.evaluate(&policy)
            && time.get() < self.time
        {
            (self.time, self.policy, self.orders) = (time.get(), policy, orders);
        }
    }
}
