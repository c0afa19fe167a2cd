//! Looks for a program that gets two living blocks on the same bytes. `cargo +nightly fuzz run no_overlap`.
#![no_main]

#[path = "../body.rs"]
mod body;
#[path = "../../tests/shadow/mod.rs"]
mod shadow;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Too few bytes for a program are nothing to report.
    let _ = body::check(&mut arbitrary::Unstructured::new(data));
});
