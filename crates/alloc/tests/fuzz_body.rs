//! The body of the fuzz target, on a fixed list of inputs.

#[path = "../fuzz/body.rs"]
mod body;
#[expect(dead_code, reason = "other tests use the rest")]
mod shadow;

#[test]
fn no_two_living_blocks_overlap_in_arbitrary_programs() {
    // Miri is a few hundred times slower.
    let seeds = if cfg!(miri) { 6 } else { 6_000u64 };
    for seed in 0..seeds {
        let size = [64, 512, 4_096][seed as usize % 3];
        arbtest::arbtest(body::check).seed(seed << 32 | size).run();
    }
}
