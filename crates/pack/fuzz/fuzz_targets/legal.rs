//! Looks for a problem on which a packer panics or gives an illegal placement. `cargo +nightly fuzz run legal`.
#![no_main]

#[path = "../body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Too few bytes for a problem are nothing to report.
    let _ = body::check(&mut arbitrary::Unstructured::new(data));
});
