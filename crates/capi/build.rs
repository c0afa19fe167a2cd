//! Links the unwinder into the library where the C compiler has it as an archive. Otherwise each process that preloads the library loads
//! `libgcc_s.so` as well, which costs a program that starts many small processes a tenth of its time.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if (variable("CARGO_CFG_TARGET_OS").as_str(), variable("CARGO_CFG_TARGET_ENV").as_str())
        != ("linux", "gnu")
    {
        return;
    }
    let linker = match variable("RUSTC_LINKER") {
        linker if !linker.is_empty() => linker,
        _ if variable("HOST") == variable("TARGET") => "cc".to_owned(),
        // The host's compiler does not know the target's archives.
        _ => return,
    };
    let Ok(output) = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output() else { return };
    // Without the archive, the compiler prints the bare name.
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if Path::new(&found).is_absolute() && Path::new(&found).exists() {
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=gcc_eh");
        println!("cargo:rustc-env=ELBOWROOM_UNWINDER=static");
    }
}
