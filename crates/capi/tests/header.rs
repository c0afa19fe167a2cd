//! The example in C is compiled against the header, with every warning an error, linked to the library, and run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the library that cargo has built beside this test.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("this test has a path");
    own.parent().expect("it lies in a folder").to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

fn compile(language: &[&str], sources: &[&Path], out: &Path) {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror"]).args(language);
    compiler.arg("-I").arg(header).args(sources).arg("-o").arg(out);
    compiler.arg("-L").arg(libraries()).arg("-lelbowroom_capi");
    // Before the folders of cargo, where the library of an earlier build may lie.
    compiler.arg(format!("-Wl,--disable-new-dtags,-rpath,{}", libraries().display()));
    run(&mut compiler);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the library is built for Linux")]
fn the_example_in_c_compiles_and_does_what_it_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("pool");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c/pool.c");
    compile(&["-std=c11", "-D_POSIX_C_SOURCE=200809L"], &[&source], &program);
    let output = run(&mut Command::new(&program));
    let mut lines = output.lines();
    // One marked iteration, and the nine after it are planned.
    let peak: usize = (0..40).map(|layer| 4096 * (1 + layer * 7 % 11)).sum();
    let expected = format!("360 of 400 requests planned, height {peak}, peak load {peak}");
    assert_eq!(lines.next(), Some(expected.as_str()));
    assert_eq!(lines.next(), Some("0 bytes still reserved"));
    assert!(lines.next().is_some_and(|line| line.starts_with("malloc: ")), "{output}");
}

/// A program that names every function of the header, and fails if one of them is missing.
fn every_function() -> String {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/elbowroom.h");
    let header = std::fs::read_to_string(header).expect("the header");
    let names: Vec<&str> = header
        .lines()
        .filter(|line| {
            line.contains(");") && !line.trim_start().starts_with(['/', '*']) && !line.starts_with("typedef")
        })
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    assert!(names.len() >= 15 && names.contains(&"elbowroom_pool_take"), "{names:?}");
    let pointers = names.iter().map(|n| format!("(any){n}")).collect::<Vec<_>>().join(", ");
    format!(
        "#include \"elbowroom.h\"\ntypedef void (*any)(void);\nint main(void) {{\n    any all[] = {{{pointers}}};\n    \
         for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {{\n        if (all[i] == 0) {{ return 1; }}\n    }}\n    \
         return 0;\n}}\n"
    )
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the library is built for Linux")]
fn every_function_of_the_header_is_in_the_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, program) = (folder.path().join("all.c"), folder.path().join("all"));
    std::fs::write(&file, every_function()).expect("a file");
    compile(&["-std=c11"], &[&file], &program);
    run(&mut Command::new(&program));
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_header_is_valid_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("all.cpp");
    std::fs::write(&file, every_function()).expect("a file");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
    run(compiler.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(&file));
}
