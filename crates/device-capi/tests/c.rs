//! The example in C is compiled with every warning an error and run, on the host and under a CUDA driver without a device.
#![cfg(target_os = "linux")]

#[path = "../../alloc/tests/fake_driver/mod.rs"]
mod fake_driver;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the library that cargo has built beside this test.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("this test has a path");
    own.parent().expect("it lies in a folder").to_owned()
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out
}

fn compile(source: &Path, out: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror", "-I"]);
    compiler.arg(here("include")).arg(source).arg("-o").arg(out);
    compiler.arg("-L").arg(libraries()).arg("-lelbowroom_device_c");
    run(compiler.arg(format!("-Wl,-rpath,{}", libraries().display())));
}

fn check(output: &str, most_dynamic: u64) {
    let lines: Vec<&str> = output.lines().collect();
    let numbers: Vec<u64> =
        lines[0].split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [operations, planned, plans, device, live] = numbers[..] else { panic!("{output}") };
    assert!((operations, plans, live) == (19 * 12, 1, 20 * 4096) && device <= 10 * 4096, "{output}");
    assert!(planned >= most_dynamic, "{output}");
    assert_eq!(lines[1], "1: BlockHandle(1073741824) is not a live block of this device");
    assert_eq!(lines[2], "there is no planner `nobody`");
}

#[test]
fn the_example_in_c_runs_planned_on_the_host_and_on_cuda() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("layers");
    compile(&here("examples/layers.c"), &program);
    check(&run(&mut Command::new(&program)), 8 * 40);
    fake_driver::compile(folder.path());
    for seed in 0..30 {
        let mut on_cuda = Command::new(&program);
        on_cuda.arg("cuda").env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA_SEED", seed.to_string());
        check(&run(&mut on_cuda), 8 * 59);
    }
}

#[test]
fn a_device_that_is_missing_or_too_small_is_one_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("layers");
    compile(&here("examples/layers.c"), &program);
    fake_driver::compile(folder.path());
    let mut on_cuda = Command::new(&program);
    on_cuda.arg("cuda").env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA_MEMORY", "1000");
    let output = on_cuda.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "no device: cannot reserve 40960 bytes of the device: out of memory (the CUDA driver refused to give memory: out of memory)\n";
    assert_eq!((output.status.code(), text.as_str()), (Some(1), expected));
}

#[test]
fn every_function_of_the_header_is_in_the_library() {
    let header = std::fs::read_to_string(here("include/elbowroom_device.h")).expect("the header");
    let declared = header.lines().filter(|line| line.contains(");") && !line.starts_with(['/', ' ', 't']));
    let names: Vec<&str> =
        declared.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next()).collect();
    assert!(names.len() == 11, "{names:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let (file, program) = (folder.path().join("all.c"), folder.path().join("all"));
    let pointers = names.iter().map(|name| format!("(any){name}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "#include \"elbowroom_device.h\"\ntypedef void (*any)(void);\nint main(void) {{\n    any all[] = {{{pointers}}};\n    return all[0] == 0;\n}}\n"
    );
    std::fs::write(&file, text).expect("a file");
    compile(&file, &program);
    run(&mut Command::new(&program));
}
