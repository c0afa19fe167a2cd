//! Definitions of the functions of libm that the library calls, so that a process does not load libm for it: a program that starts many small
//! processes saves a twentieth of its time. The symbols are hidden, so the program and its other libraries keep libm's own.

/// The instruction that goes on elsewhere.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
macro_rules! jump {
    () => {
        "b"
    };
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
macro_rules! hidden {
    ($($name:literal is $function:path),*) => {
        $(std::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            concat!(jump!(), " {function}"),
            function = sym $function,
        );)*
    };
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
hidden!("log" is crate::logarithm::ln, "log2" is crate::logarithm::log2);
