//! What a diffusion model is trained on: noise, time steps, and images under noise (Ho et al., 2020).

use elbowroom_graph::op::Diffusion;
use elbowroom_graph::philox::philox;
use rayon::ThreadPool;

use super::elementwise::map2;
use super::isa::vectorized;
use super::parallel::{CHUNK, Shared, chunks, each};
use super::{Context, Operands};

/// Four random words of a stream in this iteration.
fn words(context: &Context<'_>, stream: u32, block: u32) -> [u32; 4] {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let [low, high] = halves(context.iteration);
    philox([block, stream, low, high], halves(context.seed))
}

/// Two normal numbers of two words (Box and Muller, 1958).
fn normals([a, b]: [u32; 2]) -> [f32; 2] {
    let unit = |word: u32| (f64::from(word) + 0.5) / 2f64.powi(32);
    let radius = (-2.0 * unit(a).ln()).sqrt();
    let (sine, cosine) = (std::f64::consts::TAU * unit(b)).sin_cos();
    [(radius * cosine) as f32, (radius * sine) as f32]
}

/// # Safety
/// As [`super::run`].
pub unsafe fn noise(o: &Operands<'_>, context: &Context<'_>, len: usize, stream: u32) {
    let e = Shared::new(o.target::<f32>(0, len));
    chunks(context.pool, len, |start, len| {
        // SAFETY: the chunks are apart and inside the result.
        let part = unsafe { e.slice(start, len) };
        for (block, part) in part.chunks_mut(4).enumerate() {
            let [a, b, c, d] = words(context, stream, (start / 4 + block) as u32);
            let ([a, b], [c, d]) = (normals([a, b]), normals([c, d]));
            part.copy_from_slice(&[a, b, c, d][..part.len()]);
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn random_steps(o: &Operands<'_>, context: &Context<'_>, [rows, steps]: [usize; 2], stream: u32) {
    // SAFETY: there are no operands.
    let t = unsafe { o.write::<i32>(0, rows) };
    for (block, part) in t.chunks_mut(4).enumerate() {
        for (t, word) in part.iter_mut().zip(words(context, stream, block as u32)) {
            *t = ((u64::from(word) * steps as u64) >> 32) as i32;
        }
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn diffuse(o: &Operands<'_>, pool: &ThreadPool, extents: Diffusion) {
    let Diffusion { batch, size, .. } = extents;
    let [x, e] = [0, 1].map(|position| Shared::new(o.source::<f32>(position, batch * size).cast_mut()));
    let y = Shared::new(o.target::<f32>(0, batch * size));
    // SAFETY: the steps are not written.
    let steps = unsafe { o.read::<i32>(2, batch) };
    let parts = size.div_ceil(CHUNK);
    each(pool, batch * parts, |task| {
        let (image, part) = (task / parts, task % parts);
        let [keep, add] = extents.weights(steps[image]);
        let (at, len) = (image * size + part * CHUNK, CHUNK.min(size - part * CHUNK));
        // SAFETY: the result is one of the operands or apart; parts are apart.
        unsafe {
            vectorized(
                #[inline(always)]
                || map2(len, [x.add(at), e.add(at)], y.add(at), |x, e| keep * x + add * e),
            );
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn sinusoid(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2]) {
    // SAFETY: the steps are not written.
    let steps = unsafe { o.read::<i32>(0, rows) };
    let y = Shared::new(o.target::<f32>(0, rows * width));
    let half = width / 2;
    each(pool, rows, |row| {
        // SAFETY: every task has its own row.
        let (cosines, sines) = unsafe { y.slice(row * width, width) }.split_at_mut(half);
        for (i, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
            let angle = f64::from(steps[row]) * 10_000f64.powf(-(i as f64) / half as f64);
            (*cosine, *sine) = (angle.cos() as f32, angle.sin() as f32);
        }
    });
}
