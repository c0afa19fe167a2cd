//! The body of the fuzz target, for one second.

#[path = "../fuzz/body.rs"]
mod body;
#[expect(dead_code, reason = "other tests use the rest")]
mod shadow;

#[test]
fn no_two_living_blocks_overlap_in_arbitrary_programs() {
    arbtest::arbtest(body::check).budget_ms(1_000);
}
