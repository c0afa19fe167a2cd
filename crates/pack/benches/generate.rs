//! Generated problems for benchmarks and tests: shaped like training, perfect tilings, and very many blocks.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Problem};

/// A stream of numbers (SplitMix64).
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// One training iteration after another, overlapping: activations live from forward to backward, gradients and workspaces are short, weights
/// stay for an iteration. Sizes are jittered, so that no two iterations fit each other.
pub fn training(len: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut blocks = Vec::with_capacity(len);
    let layers = 120;
    let mut begin = 0;
    while blocks.len() < len {
        for layer in 0..layers {
            let forward = begin + 2 * layer;
            let backward = begin + 4 * layers - 2 * layer;
            let size = (1 + random.below(64)) * 4096 + 512 * random.below(9);
            blocks.push(Block::new(forward, backward + 1, Bytes(size)));
            blocks.push(Block::new(forward, forward + 1, Bytes(size / 2 + 512)));
            blocks.push(Block::new(backward, backward + 2, Bytes(size)));
            blocks.push(Block::new(begin, begin + 4 * layers, Bytes(4096 + 512 * random.below(200))));
        }
        begin += 3 * layers;
    }
    blocks.truncate(len);
    Problem { blocks: blocks.into(), capacity: None }
}

/// A rectangle of `height` bytes cut into blocks without waste, by straight cuts across pieces and by pinwheels of five: its optimum is `height`.
pub fn tiling(len: usize, height: u64, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut pieces: Vec<(u64, u64, u64, u64)> = vec![(0, 4 * len as u64, 0, height)];
    while pieces.len() < len {
        let area = |&(start, end, low, high): &(u64, u64, u64, u64)| (end - start) * (high - low);
        let contest =
            (0..4).map(|_| random.below(pieces.len() as u64) as usize).max_by_key(|&at| area(&pieces[at]));
        let Some(at) = contest else { break };
        let (start, end, low, high) = pieces.swap_remove(at);
        let (width, tall) = (end - start, high - low);
        if width > 4 && tall > 4 && random.below(3) == 0 {
            let (a, b) = (
                start + 1 + random.below(width / 2 - 1),
                start + width / 2 + 1 + random.below(width / 2 - 1),
            );
            let (c, d) =
                (low + 1 + random.below(tall / 2 - 1), low + tall / 2 + 1 + random.below(tall / 2 - 1));
            pieces.extend([
                (start, b, low, c),
                (b, end, low, d),
                (a, end, d, high),
                (start, a, c, high),
                (a, b, c, d),
            ]);
        } else if width > 1 && (tall < 2 || random.below(2) == 0) {
            let cut = start + 1 + random.below(width - 1);
            pieces.extend([(start, cut, low, high), (cut, end, low, high)]);
        } else if tall > 1 {
            let cut = low + 1 + random.below(tall - 1);
            pieces.extend([(start, end, low, cut), (start, end, cut, high)]);
        } else {
            pieces.push((start, end, low, high));
        }
    }
    let blocks = pieces.into_iter().map(|(start, end, low, high)| Block::new(start, end, Bytes(high - low)));
    Problem { blocks: blocks.collect(), capacity: None }
}
