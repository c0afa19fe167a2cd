//! What a process has to load for the library, and the functions that the library has in place of libm's.

#[path = "../src/logarithm.rs"]
mod logarithm;

use std::process::Command;

/// Before it had its own unwinder and logarithms, the library needed `libgcc_s.so.1` and `libm.so.6`.
#[test]
#[cfg_attr(not(all(target_os = "linux", target_env = "gnu")), ignore = "the C library is glibc's")]
fn the_library_needs_the_c_library_alone() {
    let own = std::env::current_exe().expect("this test has a path");
    let library = own.parent().expect("it lies in a folder").join("libelbowroom_capi.so");
    let mut command = Command::new("/bin/true");
    // The dynamic linker lists what it would load, and runs nothing.
    command.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", &library);
    let output = command.output().expect("the program exists");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("libelbowroom_capi.so") && text.contains("libc.so"), "{text}");
    let plain = Command::new("/bin/true").env("LD_TRACE_LOADED_OBJECTS", "1").output().expect("it exists");
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    for (name, is_own) in [("libgcc_s", option_env!("ELBOWROOM_UNWINDER").is_some()), ("libm.", true)] {
        assert!(!is_own || plain.contains(name) || !text.contains(name), "{name}: {text}");
    }
}

/// Units in the last place between two numbers of one sign.
fn distance(one: f64, other: f64) -> u64 {
    one.to_bits().abs_diff(other.to_bits())
}

#[test]
fn the_logarithms_are_those_of_libm_to_four_units_in_the_last_place() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        seed >> 1
    };
    let anything = (0..200_000).map(|_| f64::from_bits(random())).filter(|x| x.is_finite() && *x > 0.0);
    let integers = (1..100_000u32).map(f64::from).chain((1..64).map(|i| (u64::MAX >> i) as f64));
    let near_one = (-1_000..=1_000).map(|i| 1.0 + f64::from(i) * f64::EPSILON);
    let tiny = (1..100).map(f64::from_bits);
    let mut tried = 0;
    for x in anything.collect::<Vec<_>>().into_iter().chain(integers).chain(near_one).chain(tiny) {
        let (ln, log2) = (logarithm::ln(x), logarithm::log2(x));
        assert!(distance(ln, x.ln()) <= 4, "ln {x:e}: {ln} is not {}", x.ln());
        assert!(distance(log2, x.log2()) <= 4, "log2 {x:e}: {log2} is not {}", x.log2());
        tried += 1;
    }
    assert!(tried > 290_000, "{tried}");
}

#[test]
fn powers_of_two_have_whole_logarithms() {
    let subnormal = (0..52).map(|bit| (1u64 << bit, bit - 1_074));
    let normal = (1..2_047).map(|biased| ((biased as u64) << 52, biased - 1_023));
    for (bits, exponent) in subnormal.chain(normal) {
        assert_eq!(logarithm::log2(f64::from_bits(bits)), f64::from(exponent));
    }
}

#[test]
fn numbers_without_a_logarithm_have_that_of_libm() {
    for x in [0.0, -0.0, f64::INFINITY] {
        assert_eq!((logarithm::ln(x), logarithm::log2(x)), (x.ln(), x.log2()), "{x}");
    }
    for x in [-1.0, f64::NEG_INFINITY, f64::NAN, -f64::MIN_POSITIVE] {
        assert!(logarithm::ln(x).is_nan() && logarithm::log2(x).is_nan(), "{x}");
    }
}
