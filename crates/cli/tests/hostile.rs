//! Files that mean harm, through the command: what it prints stays one readable sentence that names the file.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::expect_both;

/// A trace of two ops, with this name and this size of its second storage.
fn trace(name: &str, size: &str) -> String {
    format!(
        "elbowroom trace 1\nname \"{name}\"\ns0 1024\ns1 {size}\nt0 s0 \"weight\"\nt1 s1 \"result\"\nt2 s0 \"weight after\"\n\
         op0 linear \"fc\" forward pure reads t0 makes t1 workspace 64 nanos 250\n\
         op1 sgd \"update\" update never reads t0 t1 makes t2 mutates t0->t2 nanos 60\npersistent t0->t2\n"
    )
}

/// Runs a command that fails, and returns its sentence.
#[track_caller]
fn sentence(at: &Path, line: &str, status: i32) -> String {
    let (_, err) = expect_both(at, line, status);
    assert!(err.starts_with("elbowroom: ") && err.trim_end().lines().count() == 1, "{line}: {err}");
    assert!(!err.trim_end().contains(char::is_control), "{line}: {err:?}");
    assert!(err.len() < 1200, "{line}: {} bytes", err.len());
    err
}

#[test]
fn what_a_terminal_obeys_is_printed_as_an_escape() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("size.trace"), trace("n", "10\u{1b}[31m24")).unwrap();
    assert!(sentence(at, "plan size.trace --memory 100%", 2).contains("10\\u{1b}[31m24"));
    fs::write(at.join("b.csv"), "id,lower,upper,size\na,0,1,1\u{7}\n").unwrap();
    assert!(sentence(at, "pack b.csv", 2).contains("b.csv"));
    // Names of a sound file are printed on standard output.
    fs::write(at.join("name.trace"), trace("a\\u{1b}[2Jb\\nc\\u{202e}", "1024")).unwrap();
    let (out, _) = expect_both(at, "plan name.trace --memory 100%", 0);
    assert!(out.starts_with("a\\u{1b}[2Jb\\nc\\u{202e} on "), "{out:?}");
    let (json, _) = expect_both(at, "plan name.trace --memory 100% --json", 0);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["trace"].as_str(), Some("a\u{1b}[2Jb\nc\u{202e}"), "JSON has the name itself");
}

#[test]
fn a_field_of_any_length_leaves_a_short_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("b.csv"), format!("id,lower,upper,size\na,0,1,{}x\n", "9".repeat(100_000))).unwrap();
    let long = sentence(at, "pack b.csv", 2);
    assert!(long.contains("b.csv") && long.contains("is not a whole number"), "{long}");
    fs::write(at.join("long.trace"), trace("n", "1024").replace("fc", &"f".repeat(60_000))).unwrap();
    let long = sentence(at, "plan long.trace --memory 1KiB", 1);
    assert!(long.trim_end().ends_with("works"), "{long}");
}

#[test]
fn an_alignment_that_no_memory_has_is_refused_with_the_name_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("two.trace"), trace("n", "1024")).unwrap();
    for command in ["plan two.trace --memory 50%", "plan two.trace", "compare two.trace --planners keep"] {
        let command = &format!("{command} --align 4611686018427387904");
        let refused = sentence(at, command, 2);
        assert!(refused.contains(".trace: its tensors take more than 1 EiB"), "{command}: {refused}");
    }
}

#[test]
fn several_placements_that_do_not_fit_have_a_sentence_each() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("b.csv"), "id,lower,upper,size\na,0,1,8\n").unwrap();
    let (_, err) = expect_both(at, "pack b.csv b.csv --capacity 4", 1);
    let sentences: Vec<&str> = err.lines().collect();
    assert!(
        sentences.len() == 2 && sentences.iter().all(|s| s.starts_with("elbowroom: b.csv with")),
        "{err}"
    );
}

#[test]
fn a_text_with_too_many_tokens_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("words.txt"), "the quick brown fox").unwrap();
    let line = "train --model lstm --batch 1 --length 2 --width 8 --layers 1 --vocabulary 8 --data words.txt --memory 100%";
    let refused = sentence(at, line, 2);
    assert!(refused.contains("words.txt") && refused.contains("--vocabulary 256"), "{refused}");
}

#[test]
fn a_learned_network_replaces_a_file_like_every_other_result() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(
        at,
        "trace --model lstm --batch 1 --length 2 --width 8 --layers 1 --vocabulary 8 -o l.trace",
        0,
    );
    let old = at.join("old.safetensors");
    fs::write(&old, "precious").unwrap();
    fs::set_permissions(&old, Permissions::from_mode(0o444)).unwrap();
    let plan = "plan l.trace --memory 70% --planner dqn --dqn episodes=2,through=1 --evaluations 5";
    let refused = sentence(at, &format!("{plan} --dqn-save old.safetensors"), 2);
    assert!(refused.contains("old.safetensors: the file is read-only"), "{refused}");
    assert_eq!(fs::read(&old).unwrap(), b"precious");
}

#[test]
fn a_plan_above_the_memory_of_its_machine_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let machine = "machine \"tiny\" memory 1024 align 64 host-memory 65536 to-host 100 1000000000 to-device 100 1000000000 \
                   link separate flops-per-second 1000000000 bytes-per-second 1000000000 launch 10\ns0 1024\n";
    fs::write(at.join("two.trace"), trace("n", "1024").replacen("s0 1024\n", machine, 1)).unwrap();
    let (_, err) = expect_both(at, "plan two.trace --memory 1MiB -o two.plan", 0);
    assert!(err.contains("does not fit in the 1.00 KiB of tiny"), "{err}");
    let needed = err.trim_end().rsplit("--memory ").next().unwrap();
    // As the warning says.
    expect_both(at, "check two.trace two.plan", 1);
    expect_both(at, &format!("check two.trace two.plan --memory {needed}"), 0);
    // Where neither the file nor the user names a machine, there is none to compare with.
    fs::write(at.join("none.trace"), trace("n", "1024")).unwrap();
    let (_, err) = expect_both(at, "plan none.trace --memory 1MiB", 0);
    assert_eq!(err, "");
}

#[test]
fn a_plan_for_another_machine_is_simulated_on_that_machine() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(at, "trace --model vgg11 --batch 1 --machine v100 -o v.trace", 0);
    expect_both(at, "plan v.trace --memory 70% --machine cpu --evaluations 20 -o v.plan", 0);
    let (out, _) = expect_both(at, "simulate v.trace v.plan --machine cpu", 0);
    assert!(out.contains("on cpu"), "{out}");
    sentence(at, "simulate v.trace v.plan", 1);
}

#[test]
fn a_full_disk_is_named_whatever_lies_on_it() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("two.trace"), trace("n", "1024")).unwrap();
    fs::write(at.join("b.csv"), "id,lower,upper,size\na,0,1,8\n").unwrap();
    let small = "train --model resnet20 --batch 2 --image 8 --width 4 --threads 1 --planner keep --memory 100% --iterations 1 --host memory";
    for line in [
        "plan two.trace --memory 100% --json",
        "plan two.trace --memory 100%",
        "compare two.trace --planners keep --csv",
        "pack b.csv --json",
        "trace --model lstm --batch 1 --length 2 --width 8 --layers 1 --vocabulary 8",
        small,
        &format!("{small} --json"),
        "--help",
        "train --help",
        "--version",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
            .args(line.split_whitespace())
            .current_dir(at)
            .stdout(fs::File::options().write(true).open("/dev/full").unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {err}");
        assert!(err.starts_with("elbowroom: cannot write standard output: No space left"), "{line}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{line}: {err}");
    }
    let (_, err) = expect_both(at, &format!("{small} --log /dev/full"), 2);
    assert!(err.contains("cannot write the log /dev/full: No space left"), "{err}");
}
