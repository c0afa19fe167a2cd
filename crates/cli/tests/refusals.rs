//! What the command refuses: limits that no plan keeps, and input that is not what it takes. Each gets one clear sentence.

mod support;

use std::fs;
use std::path::Path;

use support::{expect, expect_both, expect_sentence, json};

/// A small network that runs in moments.
const SMALL: &str = "--model resnet18 --batch 4 --threads 1 --evaluations 200";

#[test]
fn impossible_limits_explain_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("train {SMALL} --memory 5% --json");
    let output =
        expect_sentence(folder.path(), &line, 1, &["no plan exists", "op ", "missing", "bytes) works"]);
    let refusal = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(refusal["feasible"].as_bool(), Some(false));
    let (limit, missing, needed) =
        (&refusal["limit_bytes"], &refusal["missing_bytes"], &refusal["needed_bytes"]);
    assert_eq!(limit.as_u64().unwrap() + missing.as_u64().unwrap(), needed.as_u64().unwrap());

    // What it says works does.
    let smallest = refusal["smallest_limit_bytes"].as_u64().unwrap();
    let report =
        json(&expect(folder.path(), &format!("train {SMALL} --iterations 1 --memory {smallest} --json"), 0));
    assert!(report["measured_peak_bytes"].as_u64().unwrap() <= smallest);
}

#[test]
fn a_refusal_says_what_else_counts_and_which_planner_to_take() {
    let folder = tempfile::tempdir().unwrap();
    let chain =
        r#"{"n": 2, "uF": [1, 2], "uB": [3, 4], "x": [0, 100, 40], "xbar": [0, 130, 40], "y": [0, 100, 40]}"#;
    std::fs::write(folder.path().join("chain.json"), chain).unwrap();
    let aligned = "plan chain.json --memory 300";
    let output =
        expect_sentence(folder.path(), aligned, 1, &["356 B in all with alignment", "; 360 B works"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("bytes)"), "what has no unit is exact");
    let line = "plan chain.json --memory 300 --align 1";
    expect(folder.path(), &format!("{line} --planner floor"), 0);
    // The planner that was named fails at a limit at which another does not.
    expect_sentence(
        folder.path(),
        &format!("{line} --planner keep"),
        1,
        &["another planner", "try --planner auto"],
    );
}

#[test]
fn without_offload_what_persists_proves_a_limit_impossible_at_once() {
    let folder = tempfile::tempdir().unwrap();
    expect(folder.path(), "trace --model vgg16 --batch 2 --image 32 -o v.trace", 0);
    let line = "plan v.trace --memory 50% --no-offload --json";
    let output =
        expect_sentence(folder.path(), line, 1, &["no plan exists", "other tensors (", "may not leave it"]);
    let refusal = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(refusal["proved"].as_bool(), Some(true));
    assert!(refusal["held_bytes"].as_u64().unwrap() > refusal["limit_bytes"].as_u64().unwrap());
    // The bound that `plan` prints is the one that it refuses by, and holds with offload no longer.
    let needed = refusal["needed_bytes"].as_u64().unwrap();
    let report = json(&expect(folder.path(), "plan v.trace --memory 100% --no-offload --json", 0));
    assert_eq!(report["floor_bytes"].as_u64(), Some(needed));
    assert!(report["largest_op_bytes"].as_u64().unwrap() < needed);
    let printed = expect(folder.path(), "plan v.trace --memory 100% --no-offload", 0);
    let words: Vec<&str> = printed.split_whitespace().collect();
    assert!(words.join(" ").contains("and tensors that may not leave the device then"), "{printed}");
    expect(folder.path(), "plan v.trace --memory 50% --evaluations 20", 0);
}

#[test]
fn what_is_proved_is_refused_without_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet20 --batch 8 -o r.trace", 0);
    let parts = ["no plan exists", "bytes) works"];
    // With an hour for the search, a search would show.
    let started = std::time::Instant::now();
    for limit in ["--memory 1KiB", "--live-limit 1KiB"] {
        expect_sentence(at, &format!("plan r.trace {limit} --time 1h"), 1, &parts);
    }
    assert!(started.elapsed().as_secs() < 60, "a proof took a search");
    // The limit that holds every tensor is one that keep keeps.
    expect(at, "plan r.trace --live-limit 100% --planner keep", 0);
}

/// An arena may end with the last byte of its highest buffer; live memory counts whole multiples of the alignment.
#[test]
fn a_byte_below_the_bound_is_refused_with_a_proof() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "elbowroom trace 1\nname \"one\"\nmachine \"tiny\" memory 4096 align 64 host-memory 65536 to-host 100 1000000000 \
                to-device 100 1000000000 link separate flops-per-second 1000000000 bytes-per-second 1000000000 launch 10\n\
                costs measured\ns0 1000\nt0 s0 \"x\"\nop0 input \"batch\" forward pure makes t0 nanos 10\n";
    std::fs::write(at.join("one.trace"), text).unwrap();
    let refused = |limit: &str, parts: &[&str]| {
        expect_sentence(at, &format!("plan one.trace {limit} --time 1s"), 1, parts);
    };
    refused("--memory 999", &["no plan exists", "1000 B in all, so 1 B are missing", "; 1000 B works"]);
    expect(at, "plan one.trace --memory 1000", 0);
    for (limit, missing) in [(999, 25), (1000, 24), (1023, 1)] {
        let missing = format!("so {missing} B are missing");
        refused(&format!("--live-limit {limit}"), &["no plan exists", &missing, "(1024 bytes) works"]);
    }
    expect(at, "plan one.trace --live-limit 1024", 0);
}

#[test]
fn bad_input_gets_one_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("cifar")).unwrap();
    std::fs::write(at.join("cifar/data_batch_1.bin"), vec![0; 3072]).unwrap();
    std::fs::create_dir(at.join("empty")).unwrap();
    std::fs::write(at.join("bad.csv"), "id,lower,upper,size\n0,0,x,1\n").unwrap();
    for (line, parts) in [
        ("train --memory 0", &["0"][..]),
        ("train --memory=-5MiB", &["-5MiB"]),
        ("train --memory much", &["much"]),
        ("train --batch 0", &["0"]),
        ("train --model resnet999x", &["resnet999x", "resnet18"]),
        ("train --planner magic", &["magic", "greedy"]),
        ("train --optimizer magic", &["magic", "sgd"]),
        ("train --data nowhere", &["nowhere"]),
        ("train --data empty", &["empty"]),
        ("train --data cifar", &["data_batch_1.bin", "3072 bytes"]),
        ("train --batch 2 --host nowhere/at/all --memory 60% --planner floor", &["nowhere/at/all"]),
        (
            "train --batch 2 --iterations 1 --planner floor --save nowhere/x.safetensors",
            &["nowhere/x.safetensors"],
        ),
        ("train --resume nowhere.safetensors", &["nowhere.safetensors"]),
        ("trace --machine magic", &["magic", "v100"]),
        ("trace --align 3", &["3", "power of two"]),
        ("trace -o nowhere/r.trace", &["nowhere/r.trace"]),
        ("plan nowhere.trace --memory 1GiB", &["nowhere.trace"]),
        ("pack nowhere.csv", &["nowhere.csv"]),
        ("pack bad.csv", &["bad.csv", "line 2"]),
        ("pack bad.csv --time soon", &["soon"]),
    ] {
        expect_sentence(at, line, 2, parts);
    }
}

#[test]
fn a_folder_for_a_file_and_a_file_of_another_kind_get_a_sentence_that_says_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("runs")).unwrap();
    std::fs::create_dir(at.join("images")).unwrap();
    std::fs::write(at.join("images/data_batch_1.bin"), vec![0; 3073]).unwrap();
    std::fs::write(at.join("text.txt"), "some text to read and to learn by heart").unwrap();
    std::fs::create_dir(at.join("texts")).unwrap();
    std::fs::write(at.join("texts/a.txt"), "a text").unwrap();
    std::fs::write(at.join("blocks.csv"), "id,lower,upper,size\n0,0,2,16\n").unwrap();
    expect(at, "trace --model resnet20 --batch 1 --image 16 -o r.trace", 0);
    for (line, parts) in [
        ("plan runs --memory 1GiB", &["runs is a folder"][..]),
        ("check runs runs", &["runs is a folder"]),
        ("simulate r.trace runs", &["runs is a folder"]),
        ("trace --import runs", &["runs is a folder"]),
        ("pack runs", &["runs is a folder"]),
        ("train --resume runs", &["runs is a folder", "--save"]),
        ("train --model resnet20 --image 32 --batch 1 --iterations 1 --save runs", &["runs", "directory"]),
        // Data of another kind than the network reads.
        ("train --model gpt --data images", &["gpt", "images holds images", "give a text file"]),
        (
            "train --model resnet20 --batch 1 --data text.txt",
            &["resnet20", "text.txt is a file", "give a folder"],
        ),
        ("train --model resnet20 --batch 1 --data texts", &["resnet20", "texts holds text", "give a folder"]),
        // A file where another kind is meant.
        ("plan blocks.csv --memory 1GiB", &["blocks.csv", "trace"]),
        ("check r.trace r.trace", &["r.trace", "plan"]),
        ("train --resume r.trace", &["r.trace"]),
    ] {
        expect_sentence(at, line, 2, parts);
    }
}

#[test]
fn options_that_a_network_does_not_take_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (_, err) = expect_both(at, "trace --model lstm --batch 1 --image 32 -o l.trace", 0);
    assert!(err.contains("warning: --image has no effect: lstm has no such option"), "{err}");
    let (_, err) = expect_both(at, "trace --model lstm --batch 1 --length 8 -o l.trace", 0);
    assert!(!err.contains("warning"), "{err}");
}

#[test]
fn a_file_that_fixes_its_batch_is_taken_in_that_batch() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for name in ["fixed.onnx", "regression.onnx"] {
        fs::copy(data.join(name), at.join(name)).unwrap();
    }
    let mse = "--loss mse --optimizer sgd";
    let batch = |line: &str| {
        let trace = expect(at, &format!("{line} {mse} --json"), 0);
        json(&trace)["elbowroom trace 1"]["trace"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(batch("trace --model fixed.onnx"), "fixed batch 4");
    assert_eq!(batch("trace --import fixed.onnx"), "fixed batch 4");
    // What the file leaves open is the user's choice.
    assert_eq!(batch("trace --import regression.onnx --batch 6"), "regression batch 6");
    assert_eq!(batch("trace --model regression.onnx"), "regression batch 64");
    let trained =
        expect(at, &format!("train --model fixed.onnx --memory 100% --iterations 1 --json {mse}"), 0);
    assert_eq!(json(&trained)["trace"], "fixed batch 4");
    let (_, err) = expect_both(at, "plan --model fixed.onnx --batch 5 --memory 100%", 2);
    assert!(err.contains("its batch is fixed to 4, and the batch here is 5; choose --batch 4"), "{err}");
    expect(at, "trace --model resnet20 --image 16 --batch 2 -o r.trace", 0);
    let (_, err) = expect_both(at, "trace --import r.trace --batch 3 -o s.trace", 2);
    assert!(err.contains("r.trace has its own batch"), "{err}");
}
