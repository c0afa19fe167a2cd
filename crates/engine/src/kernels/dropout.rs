//! Dropout (Srivastava et al., 2014) with counter-based random numbers: its own derivative, and the same each time it runs.

use elbowroom_graph::op::Mask;
use elbowroom_graph::philox::philox;

use super::elementwise::{chunks, map2};
use super::isa::vectorized;
use super::parallel::Shared;
use super::{Context, Operands};

/// Elements whose random words are made together.
const BLOCK: usize = 256;

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
                        for (i, four) in factors.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                            let words = philox([(at / 4 + i) as u32, mask.stream, low, high], key);
                            *four = words.map(|word| if word < mask.threshold { 0.0 } else { mask.scale });
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
