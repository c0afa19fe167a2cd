//! The body of the fuzz target, for one second.

#[path = "../fuzz/body.rs"]
mod body;

#[test]
fn no_packer_is_illegal_or_panics_on_arbitrary_problems() {
    arbtest::arbtest(body::check).budget_ms(1_000);
}
