//! The example in C is built by CMake against the library and run; the header is valid C++.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo has built beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test has a path");
    own.parent().expect("it lies in a folder").join("libelbowroom_pack_c.so")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What the example prints.
const EXPECTED: [&str; 4] = [
    "smallest: result 0, height 12, offsets",
    "pinned: result 0, height 12, offsets 0",
    "within 10: result 3, height 0, offsets; no placement exists within the capacity, or fixed buffers overlap",
    "bad input: result 4; there is no packer `none`; there are: auto, ",
];

fn check(output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), EXPECTED.len(), "{output}");
    assert!(lines.iter().zip(EXPECTED).all(|(line, start)| line.starts_with(start)), "{output}");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the names of libraries are those of Linux")]
fn the_example_compiles_without_warnings_and_places_buffers() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("planner");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wstrict-prototypes", "-I"]);
    compiler
        .arg(here("include"))
        .arg(here("examples/cmake/planner.c"))
        .arg(library())
        .arg("-o")
        .arg(&program);
    run(&mut compiler);
    check(&run(&mut Command::new(program)));
}

#[test]
#[ignore = "needs cmake and a C++ compiler"]
fn cmake_builds_the_example() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = folder.path();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(here("examples/cmake")).arg("-B").arg(build);
    run(configure.arg(format!("-DELBOWROOM_LIBRARY={}", library().display())));
    run(Command::new("cmake").arg("--build").arg(build));
    check(&run(&mut Command::new(build.join("planner"))));
    let source = build.join("all.cpp");
    std::fs::write(
        &source,
        "#include <elbowroom_pack.h>\nint main() { return elbowroom_pack_error() == nullptr; }\n",
    )
    .expect("a file");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
    run(compiler.arg(here("include")).arg(source));
}
