//! A trace as layers that run forward and backward as wholes, so that a plan in terms of layers can be carried back to its ops.
//!
//! The forward phase is cut into layers; a backward op belongs to the layer whose stash it reads first. To recompute a layer *with* its stash
//! is to recompute the ops that the stash and the next layer need; *without* it, those that the next layer needs alone.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

use crate::lower::analysis::PolicyError;
use crate::lower::live_memory;
use crate::policy::{Policy, SequenceIndex};
use crate::recompute::cuts::Cuts;
use crate::recompute::profile::{Move, Profile};
use crate::recompute::repeats::{Writer, base, fixed_ops, settle};

/// A trace cut into layers.
#[derive(Clone, Debug)]
pub struct Layered<'a> {
    trace: &'a Trace,
    /// The order in which everything runs once.
    order: Vec<OpId>,
    cuts: Cuts,
    /// The last forward place of every layer.
    ends: Vec<SequenceIndex>,
    /// The place at which the backward ops of every layer begin.
    begins: Vec<SequenceIndex>,
    /// Per tensor: the layer that stashes it.
    stashed: Vec<Option<u32>>,
}

impl<'a> Layered<'a> {
    /// Cuts a trace into at most this many layers: where one tensor crosses, or, if that gives too few, wherever little does. Where the
    /// backward ops of a layer begin can be seen in two ways, at the first op that reads a lower layer or by what most ops read; both
    /// are returned if they differ.
    pub fn of(trace: &'a Trace, most: usize) -> Vec<Self> {
        let (order, backward_start) = base(trace);
        let cuts = Cuts::of(trace, backward_start);
        let single = cuts.single();
        let narrow = cuts.narrow();
        let places = if single.len() * 2 >= narrow.len() { single } else { narrow };
        let mut ends = cuts.thin(&places, most);
        if let Some(last) = cuts.backward_start.checked_sub(1)
            && ends.last() != Some(&last)
        {
            ends.push(last);
        }
        let mut stashed = vec![None; trace.tensors().len()];
        for &(value, made, _) in &cuts.forward {
            if trace.users(value).last().is_some_and(|user| user.0 >= cuts.backward_start) {
                stashed[value.index()] = Some(ends.partition_point(|&end| end < made) as u32);
            }
        }
        let reads = Reads::of(trace, &order, backward_start, &stashed);
        let (first, most) = (reads.first_below(ends.len()), reads.least_wrong(ends.len()));
        let differs = first != most;
        let layered = Self { trace, order, cuts, ends, begins: most, stashed };
        let other = differs.then(|| Self { begins: first, ..layered.clone() });
        std::iter::once(layered).chain(other).collect()
    }

    /// The layers.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no forward phase.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn start(&self, layer: usize) -> SequenceIndex {
        layer.checked_sub(1).map_or(0, |before| self.ends[before] + 1)
    }

    /// The layer in numbers: x_{i+1} is what crosses the cut after layer i, x̄_{i+1} that and its stash. What else the trace needs while
    /// a layer runs, if everything stays, is its scratch; what every op needs in any case is subtracted from all of them and returned separately.
    pub fn profile(&self, request: &Request<'_>) -> Result<(Profile, Bytes), PolicyError> {
        let live_bytes = live_memory(request, &Policy::prompt(self.trace))?;
        let size = |value: TensorId| self.trace.bytes(value).align_up(request.machine.align).get();
        let n = self.len();
        let mut plain = vec![0u64; n + 1];
        let mut saved = vec![0u64; n + 1];
        for (layer, &end) in self.ends.iter().enumerate().take(n.saturating_sub(1)) {
            plain[layer + 1] = self.cuts.across(end).map(size).sum();
            // What an earlier layer stashes is counted there.
            let new = |value: &TensorId| self.stashed[value.index()] != Some(layer as u32);
            saved[layer + 1] = self.cuts.across(end).filter(new).map(size).sum();
        }
        for &(value, ..) in &self.cuts.forward {
            if let Some(layer) = self.stashed[value.index()] {
                saved[layer as usize + 1] += size(value);
            }
        }
        let mut kept = 0;
        let kept: Vec<u64> = (0..n)
            .map(|layer| {
                kept += saved[layer + 1];
                kept
            })
            .collect();
        let mut profile = Profile { plain, saved, ..Profile::default() };
        let time = |place: usize| request.costs.nanos.get(self.order[place]).copied().unwrap_or(Nanos::ZERO);
        profile.forward = vec![Nanos::ZERO; n];
        profile.backward = vec![Nanos::ZERO; n];
        profile.forward_extra = vec![0; n];
        profile.backward_extra = vec![0; n];
        let mut layer = n;
        for (place, &live_bytes) in live_bytes.iter().enumerate().take(self.trace.ops().len()) {
            if place < self.cuts.backward_start as usize {
                let layer = self.ends.partition_point(|&end| end < place as SequenceIndex);
                profile.forward[layer] += time(place);
                let extra = live_bytes.saturating_sub(kept[layer]);
                profile.forward_extra[layer] = profile.forward_extra[layer].max(extra);
            } else if n > 0 {
                while layer > 0 && self.begins[layer - 1] <= place as SequenceIndex {
                    layer -= 1;
                }
                let layer = layer.min(n - 1);
                profile.backward[layer] += time(place);
                let gradients = profile.plain[layer] + profile.plain[layer + 1];
                let extra = live_bytes.saturating_sub(kept[layer] + gradients);
                profile.backward_extra[layer] = profile.backward_extra[layer].max(extra);
            }
        }
        let extras = || profile.forward_extra.iter().chain(&profile.backward_extra);
        let base = extras().copied().min().unwrap_or(0);
        for extra in profile.forward_extra.iter_mut().chain(&mut profile.backward_extra) {
            *extra -= base;
        }
        Ok((profile, Bytes(base)))
    }

    /// The tensors of x_layer, or with the stash those of x̄_layer. None for the first layer, whose input the profile does not count.
    pub fn input(&self, layer: usize, stash: bool) -> Vec<TensorId> {
        let Some(before) = layer.checked_sub(1) else { return Vec::new() };
        let stashed = || {
            let here = move |value: &TensorId| self.stashed[value.index()] == Some(before as u32);
            self.cuts.forward.iter().map(|&(value, ..)| value).filter(here)
        };
        let mut tensors: Vec<TensorId> =
            self.ends.get(before).map_or(Vec::new(), |&end| self.cuts.across(end).collect());
        if stash {
            tensors.extend(stashed());
        }
        tensors.sort_unstable();
        tensors.dedup();
        tensors
    }

    /// The ops of a layer to recompute, in order.
    fn again(&self, writer: &Writer<'_>, layer: usize, stash: bool, output: bool) -> Vec<OpId> {
        let (start, end) = (self.start(layer), self.ends[layer]);
        let index = |value: TensorId| {
            let made = self.trace.producer(value)?;
            (start <= made.0 && made.0 <= end && !writer.is_fixed(made)).then(|| (made.0 - start) as usize)
        };
        let mut must = vec![false; (end + 1 - start) as usize];
        for (place, must) in (start..=end).zip(&mut must) {
            let op = OpId(place);
            *must = !writer.is_fixed(op)
                && self.trace.ops()[op].outputs.iter().any(|&value| {
                    let read_later = || {
                        let users = self.trace.users(value);
                        users.iter().any(|user| end < user.0 && user.0 < self.cuts.backward_start)
                    };
                    (stash && self.stashed[value.index()].is_some()) || (output && read_later())
                });
        }
        for place in (0..must.len()).rev() {
            if must[place] {
                for made in self.trace.ops()[OpId(start + place as SequenceIndex)]
                    .reads
                    .iter()
                    .filter_map(|&v| index(v))
                {
                    must[made] = true;
                }
            }
        }
        (start..=end).zip(must).filter(|&(_, must)| must).map(|(place, _)| OpId(place)).collect()
    }

    /// The sequence of ops of a plan in terms of layers.
    pub fn sequence(&self, moves: &[Move]) -> Vec<OpId> {
        let mut fixed = fixed_ops(self.trace);
        settle(self.trace, &mut fixed, &|writer| {
            let mut ran = 0;
            let mut next = self.cuts.backward_start;
            for (index, &one) in moves.iter().enumerate() {
                match one {
                    Move::Forward { layer, .. } if layer == ran => {
                        (self.start(layer)..=self.ends[layer]).for_each(|place| writer.run(OpId(place)));
                        ran += 1;
                    }
                    Move::Forward { layer, save } => {
                        let output = matches!(moves.get(index + 1), Some(Move::Forward { .. }));
                        for op in self.again(writer, layer, save, output) {
                            writer.recompute(op);
                        }
                    }
                    Move::Backward { layer } => {
                        let until = layer
                            .checked_sub(1)
                            .map_or(self.trace.ops().len() as SequenceIndex, |below| self.begins[below]);
                        (next..until).for_each(|place| writer.run(self.order[place as usize]));
                        next = next.max(until);
                    }
                }
            }
            (next..self.trace.ops().len() as SequenceIndex)
                .for_each(|place| writer.run(self.order[place as usize]));
        })
    }
}

/// What the backward phase reads of the layers' stashes. An op belongs to the highest layer that it reads, but the order of ops need not
/// be that of the layers: a gradient of an embedding reads the tokens alone.
struct Reads {
    backward_start: SequenceIndex,
    end: SequenceIndex,
    /// Index, highest layer, and bytes of all stash read there.
    of: Vec<(SequenceIndex, usize, u64)>,
}

impl Reads {
    fn of(trace: &Trace, order: &[OpId], backward_start: SequenceIndex, stashed: &[Option<u32>]) -> Self {
        let mut of = Vec::new();
        for (place, &op) in (0..).zip(order).skip(backward_start as usize) {
            let (mut highest, mut bytes) = (None, 0);
            for &value in &trace.ops()[op].reads {
                if let Some(layer) = stashed[value.index()] {
                    highest = highest.max(Some(layer as usize));
                    bytes += trace.bytes(value).get();
                }
            }
            of.extend(highest.map(|layer| (place, layer, bytes)));
        }
        Self { backward_start, end: order.len() as SequenceIndex, of }
    }

    /// Every layer begins where the first op reads it or a lower one.
    fn first_below(&self, layers: usize) -> Vec<SequenceIndex> {
        let mut begins = vec![self.end; layers];
        let mut layer = layers;
        for &(place, of, _) in &self.of {
            while of < layer {
                layer -= 1;
                begins[layer] = place;
            }
        }
        begins
    }

    /// Every layer begins where the least bytes of stash are read on the wrong side, and as late as that allows.
    fn least_wrong(&self, layers: usize) -> Vec<SequenceIndex> {
        let mut begins = vec![self.end; layers];
        let mut previous = self.backward_start;
        for layer in (0..layers).rev() {
            // Reads of higher layers are wrong behind the border, all others before it.
            let above = self.of.iter().filter(|&&(_, of, _)| of > layer);
            let mut wrong: u64 = above.map(|&(.., bytes)| bytes).sum();
            let (mut least, mut border) = (u64::MAX, previous);
            for &(place, of, bytes) in &self.of {
                if place >= previous && wrong <= least {
                    (least, border) = (wrong, place);
                }
                wrong = if of > layer { wrong - bytes } else { wrong + bytes };
            }
            if wrong < least {
                border = self.end;
            }
            begins[layer] = border;
            previous = border;
        }
        begins
    }
}
