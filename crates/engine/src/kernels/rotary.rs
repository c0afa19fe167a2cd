//! Rotary positions (Su et al., 2021): columns turn in pairs by an angle that grows with the position.

use elbowroom_graph::op::Rotation;
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{Shared, each};

/// Pairs whose cosines and sines are held at a time.
const BLOCK: usize = 64;

/// # Safety
/// As [`super::run`].
pub unsafe fn rotate(o: &Operands<'_>, pool: &ThreadPool, rotation: Rotation) {
    let Rotation { batch, tokens, heads, width, .. } = rotation;
    let x = Shared::new(o.source::<f32>(0, rotation.x().len()).cast_mut());
    let y = Shared::new(o.target::<f32>(0, rotation.x().len()));
    let half = width / 2;
    // All sequences and heads at one position turn alike.
    each(pool, tokens, |token| {
        for first in (0..half).step_by(BLOCK) {
            let count = BLOCK.min(half - first);
            let (mut cosines, mut sines) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            for (i, (cosine, sine)) in cosines.iter_mut().zip(&mut sines).take(count).enumerate() {
                [*cosine, *sine] = rotation.turn(token, first + i);
            }
            for head in 0..batch * heads {
                let at = ((head / heads * tokens + token) * heads + head % heads) * width + first;
                // SAFETY: every task has its own tokens. The result is the operand or apart, and both columns of a pair are read before
                // either is written.
                unsafe {
                    vectorized(
                        #[inline(always)]
                        || {
                            let (x, y) = (x.add(at), y.add(at));
                            for (i, (cosine, sine)) in cosines[..count].iter().zip(&sines).enumerate() {
                                let (a, b) = (*x.add(i), *x.add(i + half));
                                *y.add(i) = a * cosine - b * sine;
                                *y.add(i + half) = b * cosine + a * sine;
                            }
                        },
                    );
                }
            }
        }
    });
}
