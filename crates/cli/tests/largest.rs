//! The largest batch for a network and a machine that need not be here.

mod support;

use serde_json::Value;
use support::expect_both;

const PLAN: &str = "plan --model resnet20 --machine a100 --evaluations 5 --threads 2";

#[test]
fn the_largest_batch_is_the_first_line_and_fits_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (text, _) = expect_both(at, &format!("{PLAN} --batch max --memory 12MiB"), 0);
    let first = text.lines().next().unwrap();
    let (json, _) = expect_both(at, &format!("{PLAN} --batch max --memory 12MiB --json"), 0);
    let report: Value = serde_json::from_str(&json).unwrap();
    let batch = report["largest_batch"].as_u64().unwrap();
    assert_eq!(first, format!("largest batch {batch}, for resnet20 within 12.00 MiB on a100"));
    assert_eq!(report["largest_batch_complete"], true);
    assert!(batch > 8 && report["arena_bytes"].as_u64().unwrap() <= 12 << 20);
    // The same batch by itself.
    expect_both(at, &format!("{PLAN} --batch {batch} --memory 12MiB -o p"), 0);
    assert!(at.join("p").exists());
    // Four times as many samples are more than any plan can hold: one of the first convolutions needs more by itself.
    let (_, err) = expect_both(at, &format!("{PLAN} --batch {} --memory 12MiB", 4 * batch), 1);
    assert!(err.contains("no plan exists"), "{err}");
}

#[test]
fn a_batch_that_fits_only_with_tiles_is_found_as_the_training_would_run_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // The update of a dense layer of 4096 x 4096 needs 192 MiB at once.
    let network = "--model alexnet --image 67 --evaluations 5 --threads 2 --memory 120MiB";
    let largest = |line: &str| -> u64 {
        let (json, _) = expect_both(at, line, 0);
        serde_json::from_str::<Value>(&json).unwrap()["largest_batch"].as_u64().unwrap()
    };
    expect_both(at, &format!("plan {network} --batch max --tiles never"), 1);
    let batch = largest(&format!("plan {network} --batch max --json"));
    assert!(batch >= 1);
    expect_both(at, &format!("plan {network} --batch 1"), 0);
    let (json, _) = expect_both(at, &format!("train {network} --batch max --iterations 1 --json"), 0);
    let report: Value = serde_json::from_str(&json).unwrap();
    // The training measures its host tier, which changes nothing about what fits.
    assert_eq!(report["batch"], batch);
    assert!(!report["tiled_weights"].as_array().unwrap().is_empty());
    assert!(report["measured_peak_bytes"].as_u64().unwrap() <= 120 << 20);
    let (_, err) = expect_both(at, &format!("plan {network} --batch 1 --tiles auto -o p"), 2);
    assert!(err.contains("--output"), "{err}");
}

#[test]
fn what_has_no_largest_batch_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(at, "trace --model resnet20 --batch 2 --image 8 -o r.trace", 0);
    for (line, status, says) in [
        ("plan r.trace --batch max --memory 1MiB", 2, "do not follow from it; --batch max is for networks"),
        ("plan r.trace --batch 3 --memory 1MiB", 2, "has its own batch"),
        ("plan r.trace --model resnet20 --memory 1MiB", 2, "cannot be used with"),
        ("plan r.trace --image 8 --memory 1MiB", 2, "cannot be used with"),
        ("plan --memory 1MiB", 2, "TRACE"),
        ("plan --model resnet20 --batch max", 2, "--memory 24GiB"),
        ("plan --model resnet20 --batch max --memory 50%", 2, "a limit in bytes"),
        ("plan --model resnet20 --batch max --memory 10KiB", 1, "not even a batch of one fits"),
    ] {
        let (_, err) = expect_both(at, line, status);
        assert!(err.contains(says), "{line}: {err}");
    }
    let (text, _) = expect_both(at, "plan --model resnet20 --batch 2 --image 8", 0);
    assert!(text.contains("elbowroom plan --model resnet20"), "{text}");
}
