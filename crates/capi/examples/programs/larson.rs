//! Larson and Krishnan's server (*Memory allocation for long-running server applications*, 1998): threads replace blocks of random sizes at random
//! places, and hand their blocks on to the threads that follow them. Nothing recurs, so that an allocator that records can only lose.

use std::hint::black_box;

/// By which the example runs as this program.
pub const ARGUMENT: &str = "--larson";

const GENERATIONS: u64 = 20;
const THREADS: u64 = 2;
const BLOCKS: usize = 400;
const REPLACED: u64 = 60_000;

/// Returns a sum over all blocks, which depends on nothing but the constants.
pub fn work() -> u64 {
    let mut blocks: Vec<Vec<Vec<u8>>> = (0..THREADS).map(|_| vec![Vec::new(); BLOCKS]).collect();
    let mut sum = 0u64;
    for generation in 0..GENERATIONS {
        let makers = blocks.into_iter().zip(1..).map(|(mut own, thread): (Vec<Vec<u8>>, u64)| {
            std::thread::spawn(move || {
                let (mut seed, mut sum) = (generation * THREADS + thread, 0u64);
                for _ in 0..REPLACED {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let size = 1_000 + (seed >> 40) as usize % 59_000;
                    // As a server does: only the first bytes of a block are written.
                    let mut block = Vec::with_capacity(size);
                    block.extend_from_slice(&seed.to_le_bytes());
                    let old = std::mem::replace(&mut own[(seed >> 20) as usize % BLOCKS], black_box(block));
                    sum = sum.wrapping_add(old.first().copied().map_or(0, u64::from));
                }
                (own, sum)
            })
        });
        let makers: Vec<_> = makers.collect();
        blocks = Vec::new();
        for (own, part) in makers.into_iter().filter_map(|maker| maker.join().ok()) {
            sum = sum.wrapping_add(part);
            blocks.push(own);
        }
        // Each thread of the next generation frees what another one has made.
        blocks.rotate_left(1);
    }
    sum
}
