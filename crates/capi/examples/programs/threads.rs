//! A program of many threads: some end while others begin, and blocks are freed by other threads than made them.

use std::hint::black_box;
use std::sync::mpsc::sync_channel;

/// By which the example runs as this program.
pub const ARGUMENT: &str = "--threads";

const GENERATIONS: u64 = 40;
const THREADS: u64 = 8;
const BLOCKS: u64 = 4_000;

/// Returns a sum over all blocks, which depends on nothing but the constants.
pub fn work() -> u64 {
    let mut sum = 0u64;
    for generation in 0..GENERATIONS {
        let (send, receive) = sync_channel::<Vec<u8>>(64);
        let makers = (0..THREADS).map(|thread| {
            let send = send.clone();
            std::thread::spawn(move || {
                let mut seed = generation * THREADS + thread + 1;
                let mut own = Vec::new();
                for i in 0..BLOCKS {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let size = if i % 16 == 0 {
                        20_000 + (seed >> 40) as usize % 60_000
                    } else {
                        16 + (seed >> 50) as usize
                    };
                    let block = black_box(vec![(seed >> 33) as u8; size]);
                    if i % 4 == 0 {
                        let _ = send.send(block);
                    } else if own.len() < 100 {
                        own.push(block);
                    } else {
                        own[(seed >> 20) as usize % 100] = block;
                    }
                }
                own.iter().map(|block| block.len() as u64 + u64::from(block[0])).sum::<u64>()
            })
        });
        let makers: Vec<_> = makers.collect();
        drop(send);
        sum = receive.into_iter().fold(sum, |sum, block| sum + block.len() as u64 * u64::from(block[0]));
        sum = makers.into_iter().filter_map(|maker| maker.join().ok()).fold(sum, u64::wrapping_add);
    }
    sum
}
