//! PyTorch's pluggable CUDA allocator, called from C under a CUDA driver without a device.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn compile(compiler: &mut Command) {
    let output = run(compiler);
    assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The program, linked to the library that cargo has built beside this test.
fn program(folder: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("this test has a path");
    let libraries = own.parent().expect("it lies in a folder");
    let program = folder.join("cuda");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(here("include"));
    compiler.arg(here("tests/cuda.c")).arg("-o").arg(&program).arg("-L").arg(libraries);
    compile(compiler.arg("-lelbowroom_capi").arg(format!("-Wl,-rpath,{}", libraries.display())));
    program
}

fn driver(folder: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]);
    compiler.arg(here("../alloc/tests/fake_driver/driver.c"));
    compile(compiler.arg("-o").arg(folder.join("libcuda.so.1")));
}

#[test]
fn the_pluggable_allocator_plans_each_stream_of_each_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    driver(folder.path());
    for seed in ["1", "2"] {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA_SEED", seed);
        let output = run(&mut command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}: {text}", output.status);
        let lines: Vec<&str> = text.lines().collect();
        // Of ten iterations, the first few are observed. A plan is as high as the blocks that live at one time.
        let peak: usize = 2 * (0..40).map(|layer| 4096 * (1 + layer * 7 % 11)).sum::<usize>();
        for line in &lines[..2] {
            let planned: usize = line.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
            let rest = line.split_once(' ').expect("words").1;
            assert_eq!(rest, format!("of 800 requests planned, height {peak}, peak load {peak}"));
            assert!(planned >= 2 * 7 * 40, "{line}");
        }
        assert_eq!(lines[2], "0 of 0 requests planned, height 0, peak load 0");
    }
}

#[test]
fn a_driver_without_a_device_of_that_memory_is_no_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    driver(folder.path());
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA_MEMORY", "100000");
    // The program sees null and ends by itself.
    assert_eq!(run(&mut command).status.code(), Some(1));
}
