//! The body of the fuzz target, on a fixed list of inputs.

#[path = "../fuzz/body.rs"]
mod body;
#[expect(dead_code, reason = "other tests use the rest")]
mod shadow;

#[test]
fn no_two_living_blocks_overlap_in_arbitrary_programs() {
    for seed in 0..6_000u64 {
        let size = [64, 512, 4_096][seed as usize % 3];
        arbtest::arbtest(body::check).seed(seed << 32 | size).run();
    }
}
