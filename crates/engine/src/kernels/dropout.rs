//! Dropout (Srivastava et al., 2014) with counter-based random numbers: the same mask on every run, and its own derivative.

use elbowroom_graph::op::Mask;

use super::elementwise::map2;
use super::isa::vectorized;
use super::parallel::{Shared, chunks};
use super::{Context, Operands};

/// Elements whose random words are made together.
const BLOCK: usize = 256;

/// Counters processed together.
const LANES: usize = 16;

/// [`elbowroom_graph::philox::philox`] for the counters `[first + lane, …]`, word by word, so that it becomes vectors.
#[inline(always)]
fn words(first: u32, rest: [u32; 3], mut key: [u32; 2]) -> [[u32; LANES]; 4] {
    let mut counter = [[0; LANES], [rest[0]; LANES], [rest[1]; LANES], [rest[2]; LANES]];
    for (lane, word) in counter[0].iter_mut().enumerate() {
        *word = first.wrapping_add(lane as u32);
    }
    for _ in 0..10 {
        let [a, b, c, d] = counter;
        for lane in 0..LANES {
            let first = 0xD251_1F53 * u64::from(a[lane]);
            let second = 0xCD9E_8D57 * u64::from(c[lane]);
            counter[0][lane] = (second >> 32) as u32 ^ b[lane] ^ key[0];
            counter[1][lane] = second as u32;
            counter[2][lane] = (first >> 32) as u32 ^ d[lane] ^ key[1];
            counter[3][lane] = first as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// # Safety
/// As [`super::run`].
pub unsafe fn dropout(o: &Operands<'_>, context: &Context<'_>, mask: Mask) {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let key = halves(context.seed);
    let [low, high] = halves(context.iteration);
    let x = Shared::new(o.source::<f32>(0, mask.len).cast_mut());
    let y = Shared::new(o.target::<f32>(0, mask.len));
    chunks(context.pool, mask.len, |start, len| {
        let mut factors = [0.0f32; BLOCK];
        for at in (start..start + len).step_by(BLOCK) {
            let count = BLOCK.min(start + len - at);
            // SAFETY: every chunk has its own elements; the result is the operand or apart.
            unsafe {
                vectorized(
                    #[inline(always)]
                    || {
                        for (i, part) in factors.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().enumerate() {
                            let first = (at / 4 + i * LANES) as u32;
                            let words = words(first, [mask.stream, low, high], key);
                            for lane in 0..LANES {
                                for (word, words) in words.iter().enumerate() {
                                    let dropped = words[lane] < mask.threshold;
                                    part[4 * lane + word] = if dropped { 0.0 } else { mask.scale };
                                }
                            }
                        }
                        map2(count, [x.add(at), factors.as_ptr()], y.add(at), |x, factor| {
                            if factor == 0.0 { 0.0 } else { x * factor }
                        });
                    },
                );
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::philox::philox;

    use super::*;

    #[test]
    fn lanes_agree_with_the_definition() {
        let (first, rest, key) = (u32::MAX - 5, [3, 4, 5], [6, 0xFFFF_FFF0]);
        let words = words(first, rest, key);
        for lane in 0..LANES {
            let expected = philox([first.wrapping_add(lane as u32), rest[0], rest[1], rest[2]], key);
            assert_eq!(words.map(|word| word[lane]), expected);
        }
    }
}
