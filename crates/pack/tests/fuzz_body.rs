//! The body of the fuzz target, on a fixed list of inputs.

#[path = "../fuzz/body.rs"]
mod body;

#[test]
fn no_packer_is_illegal_or_panics_on_arbitrary_problems() {
    for seed in 0..6_000u64 {
        let size = [64, 512, 4_096][seed as usize % 3];
        arbtest::arbtest(body::check).seed(seed << 32 | size).run();
    }
}
