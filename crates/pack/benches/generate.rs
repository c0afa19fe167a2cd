//! Generated problems for benchmarks and tests: shaped like training, overlapping iterations, perfect tilings, tilings with holes, and very many blocks.
//!
//! [`cuts`] has the statistics of MiniMalloc's A, B, C and E, [`strip`] is harder than these, and [`full`] ends above the peak of live memory.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Interval, Problem};

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

/// One training iteration after another, overlapping, as if a captured trace were laid end to end: each begins before the one before it has
/// ended, and every size and lifetime is jittered, so that no two iterations fit each other.
///
/// An iteration has the shape of a captured one: weights and their moments stay from its beginning to its end, activations from their forward
/// op to their backward op, temporaries for one or two ops, gradients until the update. Sizes spread over four powers of ten, and the largest
/// few hold most bytes. Largest first, each at its lowest free offset, ends above the peak load here.
pub fn training(len: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let layers = 60;
    let (backward, update, end) = (3 * layers, 6 * layers, 8 * layers);
    // What the network is, before jitter: bytes of each layer's weights, activations and workspaces.
    let network: Vec<[u64; 3]> = (0..layers)
        .map(|layer| {
            let narrow = 1 + layer / 15;
            [
                512 * narrow * (1 + random.below(64)),
                (1 << 22) / narrow * (1 + random.below(4)),
                (1 << 20) * random.below(8),
            ]
        })
        .collect();
    let mut blocks = Vec::with_capacity(len + 16 * layers as usize);
    let mut begin = 0;
    while blocks.len() < len {
        for (layer, &[weights, activation, workspace]) in (0..).zip(&network) {
            let (f, b) = (begin + 3 * layer, begin + update - 3 * layer - 3);
            let mut add = |start: u64, end: u64, bytes: u64| {
                let size = (bytes * (90 + random.below(21)) / 100).next_multiple_of(512).max(512);
                blocks.push(Block::new(start, end + random.below(3), Bytes(size)));
            };
            for _ in 0..3 {
                add(begin, begin + end, weights);
                add(begin, begin + end, weights / 16);
            }
            add(f, b + 2, activation);
            add(f + 1, b + 1, activation / 2);
            add(f + 1, f + 2, activation);
            add(f + 2, b, activation / 64);
            add(f + 1, f + 2, workspace);
            add(b, b + 3, activation);
            add(b + 1, b + 2, activation / 2);
            add(b + 1, b + 2, workspace);
            add(b + 2, begin + update + layer, weights);
            add(begin + update + layer, begin + update + layer + 1, weights);
        }
        // The next iteration begins when three quarters of this one are done, in the midst of its last gradients.
        begin += (backward + update + end) / 3 + random.below(8);
    }
    blocks.truncate(len);
    Problem { blocks: blocks.into(), capacity: None }
}

/// Copies of a tile, each beginning before the one before it has ended, so that `alive` of them are alive at once; the sizes of each are scaled by
/// a factor from a half to one and a half. Copies are added until there are `len` blocks.
pub fn overlapping(tile: &[Block], len: usize, alive: u64, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let end = tile.iter().map(|block| block.alive[0].end).max().unwrap_or(0);
    let copies = 0..len.div_ceil(tile.len()) as u64;
    let copy = |copy: u64| {
        let (begin, permille) = (copy * end / alive, 500 + random.below(1_001));
        let scaled = move |block: &Block| {
            let Interval { start, end } = block.alive[0];
            Block::new(begin + start, begin + end, Bytes((block.size.get() * permille / 1_000).max(1)))
        };
        tile.iter().map(scaled).collect::<Vec<_>>()
    };
    Problem { blocks: copies.flat_map(copy).collect(), capacity: None }
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

/// A hard problem of the kind of MiniMalloc's A, B, C and E: a strip of 1,024 × 1,024 units of 1,024 bytes, of which the largest piece is halved again
/// and again at a random place across either axis, and from which some pieces are then taken away, none of them at one time; the optimum is
/// therefore 1,048,576 bytes.
///
/// Areas are spread evenly from 0 to twice their mean, as in those four, which happens only if the largest piece is always cut next. What else
/// holds for the four is asked of every problem: there are 0.4 to 0.6 times at which something starts or ends for each block, 16 to 40 blocks are
/// alive at a time, and 88 to 98.5 % of the strip is full. Strips are cut until one of them is like that.
pub fn cuts(len: usize, seed: u64) -> Problem {
    const SIDE: u64 = 1_024;
    let mut random = Random::new(seed);
    loop {
        let pieces = cut_strip(len, SIDE, &mut random);
        let times: std::collections::BTreeSet<u64> =
            pieces.iter().flat_map(|&[start, end, ..]| [start, end]).collect();
        let alive: u64 = pieces.iter().map(|[start, end, ..]| end - start).sum::<u64>() / SIDE;
        let full: u64 = pieces.iter().map(|[start, end, low, high]| (end - start) * (high - low)).sum();
        let permille = 1_000 * full / (SIDE * SIDE);
        if (40 * len..60 * len).contains(&(100 * times.len()))
            && (16..40).contains(&alive)
            && (880..985).contains(&permille)
            && pieces.len() == len
        {
            let block = |&[start, end, low, high]: &[u64; 4]| {
                Block::new(SIDE * start, SIDE * end, Bytes(SIDE * (high - low)))
            };
            return Problem { blocks: pieces.iter().map(block).collect(), capacity: None };
        }
    }
}

/// Like MiniMalloc's D and J: cut like [`cuts`], but from everywhere a sixth to a quarter of the pieces is taken away, so that the peak of live memory is
/// below the height of the strip. The optimum lies between the two.
pub fn open(len: usize, seed: u64) -> Problem {
    const SIDE: u64 = 1_024;
    let mut random = Random::new(seed);
    loop {
        let missing = len / 8 + random.below(len as u64 / 8) as usize;
        let mut pieces = cut_square(len + missing, SIDE, &mut random);
        pieces.truncate(len);
        let block = |&[start, end, low, high]: &[u64; 4]| {
            Block::new(SIDE * start, SIDE * end, Bytes(SIDE * (high - low)))
        };
        let problem = Problem { blocks: pieces.iter().map(block).collect(), capacity: None };
        if problem.peak_live().get() < SIDE * SIDE {
            return problem;
        }
    }
}

/// Blocks that fill 256 units of 1,024 bytes at every time, in an order that hardly any placement allows: whenever two end, others
/// of random sizes take their bytes, and in half of the cases one takes them all. The optimum is above the peak of live memory unless the blocks are few.
pub fn full(len: usize, seed: u64) -> Problem {
    const SIDE: u64 = 256;
    let mut random = Random::new(seed);
    let (mut blocks, mut alive) = (Vec::new(), Vec::new());
    let (mut free, mut now) = (SIDE, 0);
    while blocks.len() + alive.len() < len {
        while free > 0 {
            let whole = now > 0 && random.below(2) > 0;
            let size = if whole { free } else { 1 + random.below(free.min(SIDE / 4)) };
            alive.push((now, size));
            free -= size;
        }
        now += 1;
        for _ in 0..alive.len().min(2) {
            let (start, size) = alive.swap_remove(random.below(alive.len() as u64) as usize);
            blocks.push(Block::new(start, now, Bytes(1_024 * size)));
            free += size;
        }
    }
    blocks.extend(alive.into_iter().map(|(start, size)| Block::new(start, now, Bytes(1_024 * size))));
    Problem { blocks: blocks.into(), capacity: None }
}

/// A square of `side` × `side` in pieces, as start, end, low and high, in random order. Some pieces are missing, so that `len` are left.
fn cut_strip(len: usize, side: u64, random: &mut Random) -> Vec<[u64; 4]> {
    let missing = len / 100 + random.below(len as u64 / 16) as usize;
    let area = |&[start, end, low, high]: &[u64; 4]| (end - start) * (high - low);
    let mut pieces = cut_square(len + missing, side, random);
    let (full, mut spare, mut left) = (random.below(side), side * side / 8, missing);
    pieces.retain(|piece| {
        let goes = left > 0 && !(piece[0]..piece[1]).contains(&full) && area(piece) <= spare;
        if goes {
            spare -= area(piece);
            left -= 1;
        }
        !goes
    });
    pieces
}

/// A square of `side` × `side` in pieces, as start, end, low and high, in random order.
fn cut_square(count: usize, side: u64, random: &mut Random) -> Vec<[u64; 4]> {
    let area = |&[start, end, low, high]: &[u64; 4]| (end - start) * (high - low);
    let mut pieces: Vec<[u64; 4]> = vec![[0, side, 0, side]];
    while pieces.len() < count {
        let Some(at) = (0..pieces.len()).max_by_key(|&at| area(&pieces[at])) else { break };
        let [start, end, low, high] = pieces[at];
        let across = random.below(2) == 0;
        let (from, to) = if across { (start, end) } else { (low, high) };
        if to - from < 2 {
            continue;
        }
        let cut = from + 1 + random.below(to - from - 1);
        let halves = if across {
            [[start, cut, low, high], [cut, end, low, high]]
        } else {
            [[start, end, low, cut], [start, end, cut, high]]
        };
        pieces[at] = halves[0];
        pieces.push(halves[1]);
    }
    // The order in which pieces were cut gives the tiling away.
    for at in (1..pieces.len()).rev() {
        pieces.swap(at, random.below(at as u64 + 1) as usize);
    }
    pieces
}

/// Harder than MiniMalloc's A to E: a strip of 1,024 × 1,024 units of 1,024 bytes, cut into `len` blocks whose ends often coincide, some
/// of which are then shortened or made smaller, so that 2 to 11 % of the strip is empty. The blocks alive at one time fill it wholly; the
/// optimum is therefore 1,048,576 bytes.
pub fn strip(len: usize, seed: u64) -> Problem {
    const SIDE: u64 = 1_024;
    let mut random = Random::new(seed);
    let mut times: Vec<u64> = vec![0, SIDE];
    let mut pieces: Vec<[u64; 4]> = vec![[0, SIDE, 0, SIDE]];
    let area = |&[start, end, low, high]: &[u64; 4]| (end - start) * (high - low);
    while pieces.len() < len {
        let contest =
            (0..6).map(|_| random.below(pieces.len() as u64) as usize).max_by_key(|&at| area(&pieces[at]));
        let Some(at) = contest else { break };
        let [start, end, low, high] = pieces[at];
        let (width, tall) = (end - start, high - low);
        // A time within the piece at which another piece already ends, or a new one.
        let mut time = |random: &mut Random, from: u64, to: u64| {
            let known: Vec<u64> = times.iter().copied().filter(|&t| from < t && t < to).collect();
            if !known.is_empty() && random.below(3) > 0 {
                return known[random.below(known.len() as u64) as usize];
            }
            let new = from + 1 + random.below(to - from - 1);
            times.push(new);
            new
        };
        if width > 8 && tall > 8 && random.below(4) == 0 {
            let middle = start + width / 2;
            let (a, b) = (time(&mut random, start, middle), time(&mut random, middle, end));
            let (c, d) =
                (low + 1 + random.below(tall / 2 - 1), low + tall / 2 + 1 + random.below(tall / 2 - 1));
            pieces.swap_remove(at);
            pieces.extend([
                [start, b, low, c],
                [b, end, low, d],
                [a, end, d, high],
                [start, a, c, high],
                [a, b, c, d],
            ]);
        } else if width > 1 && (tall < 3 || random.below(5) < 2) {
            let cut = time(&mut random, start, end);
            pieces.swap_remove(at);
            pieces.extend([[start, cut, low, high], [cut, end, low, high]]);
        } else if tall > 1 {
            let cut = low + 1 + random.below(tall - 1);
            pieces.swap_remove(at);
            pieces.extend([[start, end, low, cut], [start, end, cut, high]]);
        }
    }
    let full = random.below(SIDE);
    let (mut spare, whole) = ((20 + random.below(91)) * SIDE * SIDE / 1_000, pieces.len() as u64);
    for _ in 0..20 * whole {
        let piece = &mut pieces[random.below(whole) as usize];
        let [start, end, low, high] = *piece;
        if (start <= full && full < end) || area(piece) > SIDE * SIDE / 40 {
            continue;
        }
        match random.below(3) {
            0 if end - start > 3 => piece[0] += 1 + random.below((end - start) / 3),
            1 if end - start > 3 => piece[1] -= 1 + random.below((end - start) / 3),
            2 if high - low > 3 => piece[3] -= 1 + random.below((high - low) / 3),
            _ => {}
        }
        let lost = (end - start) * (high - low) - area(piece);
        match spare.checked_sub(lost) {
            Some(rest) => spare = rest,
            None => {
                *piece = [start, end, low, high];
                break;
            }
        }
    }
    let block = |&[start, end, low, high]: &[u64; 4]| {
        Block::new(SIDE * start, SIDE * end, Bytes(SIDE * (high - low)))
    };
    let mut blocks: Vec<Block> = pieces.iter().map(block).collect();
    // The order in which pieces were cut gives the tiling away.
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, random.below(at as u64 + 1) as usize);
    }
    Problem { blocks: blocks.into(), capacity: None }
}
