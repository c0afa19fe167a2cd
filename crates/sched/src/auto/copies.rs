//! The order of the copies, for a policy whose sets are decided: another order of offloads or prefetches may shorten the iteration.
//!
//! Copies run in the order in which their tensors become idle (offloads) or are needed (prefetches) unless a policy lists another order. That
//! is best where memory is not scarce. Where it is, a small tensor that is needed later may be fetched into bytes that a large one would have
//! to wait for, and an offload that frees more bytes may have to go first. The search decides sets, not orders; this is a descent over orders
//! for the best set.
//!
//! A set that is slow in the order of its ops can be the best in another order, which no search over sets alone finds. If few tensors can be
//! offloaded at all, an annealing over sets and orders together follows. On a shared link it also holds offloads until a later op, so that a
//! prefetch can go before them.

use std::collections::BTreeMap;

use elbowroom_ir::planning::Request;

use crate::lower::{Analysed, evaluate};
use crate::policy::{CopyOrder, Gap, GapAction, Policy, PrefetchRule, SequenceIndex, Touch, Touches};
use crate::random::Random;

/// More copies in one direction than this are not reordered: a pass tries each of them at the place of every other.
const COPIES: usize = 64;
/// One evaluation for this many of the search, and at most as many as evaluate this many ops.
const SHARE: u64 = 2;
const OPS: u64 = 60_000;

/// More gaps than this in which a tensor can be offloaded are not searched for sets and orders together.
const GAPS: usize = 16;
/// Evaluations of an annealing, each of which begins with the fastest policy so far; and its first and last temperature, as shares of the
/// iteration time.
const ANNEALING: u64 = 500;
const HOT: f64 = 0.04;
const COLD: f64 = 0.001;

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

/// The fastest policy that annealing over sets and orders of copies finds within `left` evaluations, if it is faster than `time`.
pub(crate) fn annealed(
    request: &Request<'_>,
    policy: &Policy,
    (mut time, bound): (u64, u64),
    left: &mut u64,
) -> Option<(u64, Policy)> {
    let touches = Touches::of(request.trace, &policy.sequence);
    let leaves = |&(gap, next): &(Gap, Touch)| {
        let away = next.made || policy.gaps.get(&gap) == Some(&GapAction::Evict);
        !away
            && gap.after.is_some_and(|after| next.place > after + 1)
            && request.trace.bytes(gap.value).get() > 0
    };
    let gaps = request.trace.tensors().ids().flat_map(|value| touches.gaps(value));
    let gaps: Vec<(Gap, Touch)> = gaps.filter(leaves).take(GAPS + 1).collect();
    if !request.freedom.offload || gaps.len() < 2 || gaps.len() > GAPS {
        return None;
    }
    let mut random = Random::new(0);
    let mut best = None;
    let mut start = SetAndOrders::of(request, policy)?;
    while *left > 0 && time > bound {
        let length = ANNEALING.min(*left);
        let (mut current, mut current_time) = (start.clone(), time);
        for step in 0..length {
            let heat = time as f64 * HOT * (COLD / HOT).powf(step as f64 / length as f64);
            let worst = current_time.saturating_add((-heat * random.unit().max(1e-12).ln()) as u64);
            let changed = current.changed(&gaps, request.machine.shared_link, &mut random);
            *left -= 1;
            let changed_policy = changed.policy(policy);
            let Ok((changed_time, _)) = evaluate(request, &changed_policy) else { continue };
            let changed_time = changed_time.get();
            if changed_time < time {
                time = changed_time;
                start = changed.clone();
                best = Some((time, changed_policy));
            }
            if changed_time <= worst {
                (current, current_time) = (changed, changed_time);
            }
        }
    }
    best
}

/// The offloads and the prefetches of a policy in their orders, and how long offloads are held.
#[derive(Clone)]
struct SetAndOrders {
    orders: [Vec<Gap>; 2],
    held: BTreeMap<Gap, SequenceIndex>,
    rule: PrefetchRule,
}

impl SetAndOrders {
    fn of(request: &Request<'_>, policy: &Policy) -> Option<Self> {
        let mut orders = Analysed::new(request, policy).ok()?.copies();
        for (order, listed) in orders.iter_mut().zip([&policy.offloads, &policy.prefetches]) {
            if let CopyOrder::Listed(listed) = listed {
                order.clone_from(listed);
            }
        }
        Some(Self { orders, held: policy.held.clone(), rule: policy.prefetch })
    }

    /// The policy with these copies.
    fn policy(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        policy.gaps.retain(|_, action| *action != GapAction::Offload);
        self.orders[0].iter().for_each(|&gap| policy.set(gap, GapAction::Offload));
        [policy.offloads, policy.prefetches] = self.orders.clone().map(CopyOrder::Listed);
        policy.held.clone_from(&self.held);
        policy.prefetch = self.rule;
        policy
    }

    /// Moves a copy, offloads another tensor, keeps one, exchanges two, waits with prefetches for all offloads, or holds an offload if that
    /// can help; sometimes two of these.
    fn changed(&self, gaps: &[(Gap, Touch)], may_hold: bool, random: &mut Random) -> Self {
        let mut changed = self.clone();
        loop {
            let (gap, next) = gaps[random.below(gaps.len())];
            let is_offloaded = changed.orders[0].contains(&gap);
            match random.below(if may_hold { 10 } else { 8 }) {
                0 if is_offloaded => changed.keep(gap),
                0 | 1 if !is_offloaded => changed.offload(gap, random),
                2 if !is_offloaded && !changed.orders[0].is_empty() => {
                    let other = changed.orders[0][random.below(changed.orders[0].len())];
                    changed.keep(other);
                    changed.offload(gap, random);
                }
                3 => {
                    changed.rule = match changed.rule {
                        PrefetchRule::Eager => PrefetchRule::AfterOffloads,
                        _ => PrefetchRule::Eager,
                    }
                }
                direction @ 4..8 if is_offloaded => {
                    let order = &mut changed.orders[direction % 2];
                    order.retain(|&other| other != gap);
                    order.insert(random.below(order.len() + 1), gap);
                }
                8.. if is_offloaded => changed.hold(gap, next.place, random),
                _ => continue,
            }
            if random.chance(0.7) {
                return changed;
            }
        }
    }

    fn keep(&mut self, gap: Gap) {
        self.orders.iter_mut().for_each(|order| order.retain(|&other| other != gap));
        self.held.remove(&gap);
    }

    /// Holds an offload until a place in its gap, or no longer. It goes behind all others, which would wait for it.
    fn hold(&mut self, gap: Gap, end: SequenceIndex, random: &mut Random) {
        if self.held.remove(&gap).is_none() || random.chance(0.5) {
            let begin = gap.after.map_or(0, |place| place + 1);
            self.held.insert(gap, begin + random.below((end - begin) as usize) as u32);
            self.orders[0].retain(|&other| other != gap);
            self.orders[0].push(gap);
        }
    }

    fn offload(&mut self, gap: Gap, random: &mut Random) {
        self.orders.iter_mut().for_each(|order| order.insert(random.below(order.len() + 1), gap));
    }
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
