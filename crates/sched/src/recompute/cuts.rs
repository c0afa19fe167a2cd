//! Chen et al., Algorithm 3: the candidates C. Where the forward phase can be cut, and which tensors cross each cut.

use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Id, TensorId};

use crate::policy::SequenceIndex;

/// Tensors of less than this share of a usual one do not count towards the number of tensors that cross a cut.
const TINY: u64 = 64;

/// The size up to which a tensor is tiny compared with these. The usual size is that at which half of all bytes are in larger tensors: a single
/// huge tensor, such as the logits over a vocabulary, does not make the others tiny.
pub(crate) fn tiny(sizes: impl Iterator<Item = u64>) -> u64 {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    let total: u128 = sizes.iter().map(|&bytes| u128::from(bytes)).sum();
    let mut sum = 0;
    let usual = sizes.into_iter().find(|&bytes| {
        sum += 2 * u128::from(bytes);
        sum >= total
    });
    usual.unwrap_or(0) / TINY
}

/// The forward phase as seen from its cuts.
#[derive(Clone, Debug)]
pub struct Cuts {
    /// The first backward place.
    pub backward_start: SequenceIndex,
    /// Tensors that forward ops make, with the places at which they are made and last read by a forward op.
    pub forward: Vec<(TensorId, SequenceIndex, SequenceIndex)>,
    /// Per place: bytes of what crosses a cut after it.
    pub crossing: Vec<u64>,
    /// Per place: how many tensors that are not tiny cross a cut after it.
    pub crossings: Vec<u32>,
    /// Per place: bytes made there that are read after the forward phase.
    pub stash: Vec<u64>,
}

impl Cuts {
    /// Looks at a trace whose first backward place is known. Linear in its operands.
    pub fn of(trace: &Trace, backward_start: SequenceIndex) -> Self {
        let mut lasting = vec![false; trace.tensors().len()];
        trace.persistent().iter().for_each(|pair| lasting[pair.end.index()] = true);
        let mut stash = vec![0; backward_start as usize];
        let mut forward = Vec::new();
        for value in trace.tensors().ids().filter(|value| !lasting[value.index()]) {
            let Some(made) = trace.producer(value).map(|op| op.0).filter(|&made| made < backward_start)
            else {
                continue;
            };
            let users = trace.users(value);
            let split = users.partition_point(|user| user.0 < backward_start);
            let last = split.checked_sub(1).map_or(made, |index| users[index].0);
            if split < users.len() {
                stash[made as usize] += trace.bytes(value).get();
            }
            forward.push((value, made, last));
        }
        let tiny = tiny(forward.iter().map(|&(value, ..)| trace.bytes(value).get()));
        let mut change = vec![(0i64, 0i64); backward_start as usize + 1];
        for &(value, made, last) in &forward {
            let bytes = trace.bytes(value).get();
            let counts = i64::from(bytes > tiny);
            change[made as usize].0 += bytes as i64;
            change[made as usize].1 += counts;
            change[last as usize].0 -= bytes as i64;
            change[last as usize].1 -= counts;
        }
        let (mut bytes, mut count) = (0, 0);
        let (mut crossing, mut crossings) = (Vec::new(), Vec::new());
        for &(b, c) in &change[..backward_start as usize] {
            bytes += b;
            count += c;
            crossing.push(bytes as u64);
            crossings.push(count as u32);
        }
        Self { backward_start, forward, crossing, crossings, stash }
    }

    /// The places after which at most one tensor crosses.
    pub fn single(&self) -> Vec<SequenceIndex> {
        (0..self.backward_start).filter(|&place| self.crossings[place as usize] <= 1).collect()
    }

    /// The places after which less crosses than just before and just after.
    pub fn narrow(&self) -> Vec<SequenceIndex> {
        let mut places = Vec::new();
        let mut falling = false;
        for place in 0..self.crossing.len() {
            let here = self.crossing[place];
            if place > 0 && here != self.crossing[place - 1] {
                falling = here < self.crossing[place - 1];
            }
            if falling && self.crossing.get(place + 1).is_none_or(|&next| next > here) {
                places.push(place as SequenceIndex);
            }
        }
        places
    }

    /// What crosses the cut after a place.
    pub fn across(&self, place: SequenceIndex) -> impl Iterator<Item = TensorId> + '_ {
        let crosses = move |&&(_, made, last): &&(TensorId, SequenceIndex, SequenceIndex)| {
            made <= place && place < last
        };
        self.forward.iter().filter(crosses).map(|&(value, ..)| value)
    }

    /// At most `most` of these places, so that about the same bytes are stashed between them.
    pub fn thin(&self, places: &[SequenceIndex], most: usize) -> Vec<SequenceIndex> {
        if places.len() <= most {
            return places.to_vec();
        }
        let total: u64 = self.stash.iter().sum();
        let (mut chosen, mut sum, mut from) = (Vec::with_capacity(most), 0u128, 0);
        for &place in places {
            sum += self.stash[from..=place as usize].iter().map(|&b| u128::from(b)).sum::<u128>();
            from = place as usize + 1;
            if sum * most as u128 >= u128::from(total) * (chosen.len() as u128 + 1) && chosen.len() < most {
                chosen.push(place);
            }
        }
        chosen
    }
}
