//! The planner dqn from the command line: its settings, and the files that it writes and begins with.

mod support;

use support::expect_both as expect;

#[test]
fn a_network_is_trained_written_and_trained_further() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model vgg11 --image 32 --batch 64 --machine gtx1080ti -o v.trace", 0);
    let plan = "plan v.trace --load-limit 55% --planner dqn --evaluations 100000 --threads 1 --json";
    let learn = "--dqn episodes=3,hidden=8,updates=1 --dqn-save v.safetensors --dqn-curve v.csv";
    let (first, _) = expect(at, &format!("{plan} {learn}"), 0);
    let report: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert!(report["found_by"].is_string() && report["planner"] == "dqn");
    let curve = std::fs::read_to_string(at.join("v.csv")).unwrap();
    assert_eq!(curve.lines().count(), 4);
    assert!(curve.starts_with("search,episode,exploration,gain,cost_ns,fits,best_ns\n1,1,"));
    // The same seed, the same plan; and a network from a file keeps its own size.
    let (second, _) = expect(at, &format!("{plan} {learn}"), 0);
    let again: serde_json::Value = serde_json::from_str(&second).unwrap();
    assert_eq!(report["iteration_ns"], again["iteration_ns"]);
    expect(
        at,
        &format!("{plan} --dqn episodes=2,explore=0 --dqn-from v.safetensors --dqn-save w.safetensors"),
        0,
    );
    // Two decisions are too few: the sentence names a number that does, and a fixed rule answers.
    let (few, warning) = expect(at, &format!("{plan} --dqn decisions=2"), 0);
    let few: serde_json::Value = serde_json::from_str(&few).unwrap();
    assert!(few["evaluations"] == 0 && warning.starts_with("warning: dqn trains no network"), "{warning}");
    let (_, rest) = warning.split_once("--dqn ").unwrap();
    let enough = rest.split_whitespace().next().unwrap();
    let (_, warning) = expect(at, &format!("{plan} --dqn {enough},episodes=1,hidden=8,updates=1"), 0);
    assert!(warning.is_empty(), "{warning}");
    let size = |name: &str| std::fs::metadata(at.join(name)).unwrap().len();
    assert_eq!(size("v.safetensors"), size("w.safetensors"));

    for (wrong, part) in [
        ("--dqn colour=red", "there is no setting `colour`"),
        ("--dqn hidden=0", "hidden cannot be 0"),
        ("--dqn-from v.csv", "holds no network"),
        ("--dqn-from none.safetensors", "cannot read none.safetensors"),
    ] {
        let (_, err) = expect(at, &format!("{plan} {wrong}"), 2);
        assert!(err.contains(part), "{wrong}: {err}");
    }
}
