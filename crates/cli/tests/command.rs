//! The binary as users meet it: what it prints and writes, and how it exits.

#[path = "../../../golden/shared.rs"]
mod shared;
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use shared::shared;
use support::{expect, expect_both, expect_sentence, json, run};

/// A small network that runs in moments.
const SMALL: &str = "--model resnet18 --batch 4 --threads 1 --evaluations 200";

#[test]
fn the_road_by_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 8 -o r.trace", 0);
    let plan = json(&expect(at, "plan r.trace --memory 60% --evaluations 200 -o r.plan --json", 0));
    let height = plan["arena_bytes"].as_u64().unwrap();
    assert!(height <= plan["limit_bytes"].as_u64().unwrap());
    assert!(plan["lower_bound_ns"].as_u64().unwrap() <= plan["iteration_ns"].as_u64().unwrap());
    let check = json(&expect(at, "check r.trace r.plan --json", 0));
    assert_eq!((check["legal"].as_bool(), check["arena_bytes"].as_u64()), (Some(true), Some(height)));
    let simulated = json(&expect(at, "simulate r.trace r.plan --json", 0));
    assert_eq!(simulated["iteration_ns"], plan["iteration_ns"]);
    assert!(plan["ratio_to_bound"].as_f64().unwrap() >= 1.0);
    assert!(plan["largest_op_bytes"].as_u64().unwrap() <= height);

    // The same trace as JSON is the same trace.
    expect(at, "trace --model resnet18 --batch 8 --json -o r.json", 0);
    expect(at, "check r.json r.plan", 0);

    // One offset shifted by one alignment: illegal, exit 1, with the rule's number.
    let text = std::fs::read_to_string(at.join("r.plan")).unwrap();
    let line = text.lines().find(|line| line.starts_with("b1 ") && line.contains(" at ")).unwrap();
    let (head, offset) = line.rsplit_once(' ').unwrap();
    let shifted = format!("{head} {}", offset.parse::<u64>().unwrap() + 64);
    std::fs::write(at.join("shifted.plan"), text.replace(line, &shifted)).unwrap();
    expect_sentence(at, "check r.trace shifted.plan", 1, &["shifted.plan is not legal", "rule L"]);

    // A plan for another trace, and files that are not what they should be.
    expect(at, "trace --model resnet18 --batch 4 -o other.trace", 0);
    expect_sentence(at, "check other.trace r.plan", 1, &["rule L1"]);
    expect_sentence(at, "check r.plan r.trace", 2, &["r.plan"]);
    let trace = std::fs::read_to_string(at.join("r.trace")).unwrap();
    std::fs::write(at.join("cut.trace"), &trace[..trace.len() / 2]).unwrap();
    expect_sentence(at, "plan cut.trace --memory 60%", 2, &["cut.trace"]);
    std::fs::write(at.join("garbled.trace"), trace.replacen("reads t", "reads q", 1)).unwrap();
    expect_sentence(at, "plan garbled.trace --memory 60%", 2, &["garbled.trace", "line"]);
    std::fs::write(at.join("binary.trace"), [0xff, 0xfe, 0x00]).unwrap();
    expect_sentence(at, "plan binary.trace --memory 60%", 2, &["not a text file"]);
}

/// A plan's file names the machine for which it was made. The proof must not take its word for it.
#[test]
fn a_plan_is_judged_by_the_machine_of_the_verifier() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 8 --machine v100 -o r.trace", 0);
    expect(at, "plan r.trace --memory 60% --evaluations 200 -o r.plan", 0);
    let honest = json(&expect(at, "check r.trace r.plan --json", 0));
    let arena = honest["arena_bytes"].as_u64().unwrap();
    let by = |verdict: &Value| ["limit_by", "align_by", "host_limit_by"].map(|by| verdict[by].clone());
    // The limit of the plan is below the memory of the machine, and counts.
    assert_eq!(by(&honest), ["plan", "trace", "trace"]);
    assert_eq!(honest["align_bytes"].as_u64(), Some(256));
    assert_eq!(honest["by_own_machine"].as_bool(), Some(false));

    // Every buffer one byte further, on a machine that permits it.
    let text = std::fs::read_to_string(at.join("r.plan")).unwrap();
    let shifted: Vec<String> = text
        .lines()
        .map(|line| match line.rsplit_once(" at ") {
            Some((buffer, offset)) if line.starts_with('b') => {
                format!("{buffer} at {}", offset.parse::<u64>().unwrap() + 1)
            }
            _ if line.starts_with("height ") => format!("height {}", arena + 1),
            _ if line.starts_with("machine ") => {
                let words: Vec<&str> = line.split(' ').collect();
                let of = |key: &str| words.iter().position(|&word| word == key).unwrap() + 1;
                let (memory, align) = (of("memory"), of("align"));
                let changed = words.iter().enumerate().map(|(index, &word)| match index {
                    _ if index == memory => "4000000000000000000",
                    _ if index == align => "1",
                    _ => word,
                });
                changed.collect::<Vec<_>>().join(" ")
            }
            _ => line.to_owned(),
        })
        .collect();
    std::fs::write(at.join("shifted.plan"), shifted.join("\n")).unwrap();
    expect_sentence(at, "check r.trace shifted.plan", 1, &["is not legal", "rule L4", "multiple of 256"]);
    expect_sentence(at, "simulate r.trace shifted.plan", 1, &["rule L4", "multiple of 256"]);
    expect_sentence(at, "check r.trace shifted.plan --machine cpu", 1, &["multiple of 64"]);
    let generous = json(&expect(at, "check r.trace shifted.plan --align 1 --json", 0));
    assert_eq!(by(&generous), ["trace", "option", "trace"]);
    assert_eq!(generous["limit_bytes"].as_u64(), Some(16 << 30));

    // Without a machine in the trace there is only the plan's word, and the answer says so.
    let trace = std::fs::read_to_string(at.join("r.trace")).unwrap();
    let machine = trace.lines().find(|line| line.starts_with("machine ")).unwrap();
    std::fs::write(at.join("bare.trace"), trace.replace(machine, "")).unwrap();
    let alone = json(&expect(at, "check bare.trace shifted.plan --json", 0));
    assert_eq!(alone["by_own_machine"].as_bool(), Some(true));
    let table = expect(at, "check bare.trace shifted.plan", 0);
    assert!(table.lines().next().unwrap().ends_with(" by the plan's own machine"), "{table}");
    expect_sentence(
        at,
        "check bare.trace shifted.plan --align 64",
        1,
        &["rule L4", "by the memory and host memory"],
    );

    // The three figures as options.
    expect(at, &format!("check r.trace r.plan --memory {arena} --align 64 --host-memory 64GiB"), 0);
    expect_sentence(
        at,
        &format!("check r.trace r.plan --memory {}", arena - 1),
        1,
        &["rule L4", "memory ends"],
    );
    expect(at, "plan r.trace --memory 60% --planner floor --no-recompute -o moved.plan", 0);
    let moved = json(&expect(at, "simulate r.trace moved.plan --json", 0));
    assert!(moved["to_host_bytes"].as_u64().unwrap() > 0);
    // The same share is the same limit for `plan` and for `check`.
    let shared = json(&expect(at, "check r.trace moved.plan --memory 60% --json", 0));
    assert_eq!(shared["limit_bytes"], moved["limit_bytes"]);
    expect_sentence(at, "check r.trace moved.plan --memory 30%", 1, &["rule L4", "memory ends"]);
    expect_sentence(at, "check r.trace moved.plan --memory min", 2, &["a size or a share"]);
    expect_sentence(at, "check r.trace moved.plan --host-memory 1KiB", 1, &["rule L8"]);
    expect_sentence(at, "check r.trace r.plan --align 3", 2, &["power of two"]);
    expect_sentence(at, "check r.trace r.plan --machine abacus", 2, &["abacus"]);
}

/// Backward ops of a chain whose gradients have no bytes read nothing of one another, but still follow one another.
#[test]
fn ops_keep_their_order_where_no_bytes_pass_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let chain = r#"{"n": 4, "uF": [1, 1, 1, 1], "uB": [1, 1, 1, 1], "x": [0, 400, 100, 100, 100], "y": [0, 0, 0, 0, 0],
        "exB": [0, 0, 0, 1000]}"#;
    std::fs::write(at.join("chain.json"), chain).unwrap();
    let names = |plan: &str| -> Vec<usize> {
        let plan = std::fs::read_to_string(at.join(plan)).unwrap();
        let ops =
            plan.lines().filter_map(|line| line.split_once(" compute op")?.1.split(' ').next()?.parse().ok());
        ops.collect()
    };
    // With the scratch of the first backward op there is no room for x1, which the last ones read.
    let line = "chain.json --align 4 --no-offload --no-recompute --evaluations 200";
    expect_sentence(at, &format!("plan {line} --memory 1600 --reorder"), 1, &["no plan found", "1700 bytes"]);
    expect(at, &format!("plan {line} --memory 1700 --reorder -o kept.plan"), 0);
    assert_eq!(names("kept.plan"), [0, 1, 2, 3, 4, 5, 6, 7]);

    // The checker knows the order from the trace, not from what the buffers hold.
    let plan = std::fs::read_to_string(at.join("kept.plan")).unwrap();
    let (first, second) = (" compute op5 reads b1 b2", " compute op6 reads b0 b1");
    assert!(plan.contains(first) && plan.contains(second), "{plan}");
    std::fs::write(
        at.join("swapped.plan"),
        plan.replace(first, "?").replace(second, first).replace('?', second),
    )
    .unwrap();
    expect_sentence(at, "check chain.json swapped.plan --align 4", 1, &["op6 is computed before op5"]);
}

/// Devices and pipes state no size, and some have no end.
#[test]
fn streams_are_read_within_limits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 2 -o r.trace", 0);
    for line in [
        "check /dev/zero r.trace",
        "check r.trace /dev/zero",
        "simulate /dev/zero /dev/zero",
        "plan /dev/zero --memory 60%",
        "compare /dev/zero --memory 60%..70%",
        "trace --import /dev/zero",
        "trace --import /dev/urandom",
        "pack /dev/zero",
        "pack /dev/urandom",
        "plan r.trace --memory 60% --planner dqn --dqn-from /dev/zero",
        "train --model gpt --data r.trace --tokenizer /dev/zero",
        "train --model resnet18 --resume /dev/zero",
        "train --model resnet18 --weights /dev/zero",
    ] {
        let command = Command::new("prlimit")
            .arg("--as=600000000")
            .arg(env!("CARGO_BIN_EXE_elbowroom"))
            .args(line.split(' '))
            .current_dir(at)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&command.stderr);
        assert_eq!(command.status.code(), Some(2), "elbowroom {line}: {error}");
        assert!(error.contains("/dev/") && !error.contains("out of memory"), "elbowroom {line}: {error}");
        assert!(error.len() < 400, "elbowroom {line}: {error}");
    }

    // A pipe can be read only once, whatever it holds.
    let chain = r#"{"n": 1, "uF": [1], "uB": [1], "x": [64, 64]}"#;
    let command = format!("echo '{chain}' | {} pack /dev/stdin --json", env!("CARGO_BIN_EXE_elbowroom"));
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_plan_within_a_time_tells_what_makes_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 4 -o r.trace", 0);
    let read = |name: &str| std::fs::read(at.join(name)).unwrap();
    // With this much time the clock ends nothing: the plan is as fast as any can be, and the search ends.
    let ample = "--memory 60% --seed 3 --time 60s";
    for (line, is_ample) in [
        (ample, true),
        ("--memory 40% --seed 3 --time 300ms", false),
        ("--memory 30% --reorder --seed 3 --time 300ms", false),
        ("--memory min --no-offload --seed 3 --time 300ms", false),
        ("--load-limit 40% --seed 3 --time 100ms", false),
    ] {
        // A busy machine may find no plan within so little time.
        // A schedule within a limit on live memory is not placed, so there is no plan to write.
        let is_placed = !line.starts_with("--load-limit");
        let output = |name: &str| if is_placed { format!("-o {name}") } else { String::new() };
        let timed = run(at, &format!("plan r.trace {line} --threads 2 {} --json", output("timed.plan")));
        if timed.status.code() == Some(1) && !is_ample {
            assert!(String::from_utf8_lossy(&timed.stderr).contains("a longer --time may find a plan"));
            continue;
        }
        assert_eq!(timed.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&timed.stderr));
        let timed = json(&String::from_utf8_lossy(&timed.stdout));
        // What the clock ended may be a part of the search in which no evaluations are counted; then the report names none.
        let Some(again) = timed["reproduce_with"].as_str() else {
            assert!(!is_ample, "{line}: {timed:?}");
            continue;
        };
        // Where the clock ended the search for the smallest limit, the option names the one that was found.
        let names_a_limit = again.starts_with("--memory ") && line.starts_with("--memory min");
        assert!(again.starts_with("--evaluations ") || names_a_limit, "{again}");
        // The table prints the same option, and the reproduced plan reports the same; its limit was given.
        let evaluations = &again[again.find("--evaluations").unwrap()..];
        let (untimed, _) = line.split_once(" --time").unwrap();
        let untimed = if names_a_limit { untimed.trim_start_matches("--memory min") } else { untimed };
        let counted = format!("plan r.trace {untimed} {again} --threads 1 {}", output("counted.plan"));
        let table = expect(at, &counted, 0);
        let named = |line: &str| line.trim().starts_with("reproduce with") && line.ends_with(evaluations);
        assert!(table.lines().any(named), "{again}: {table}");
        let counted = json(&expect(at, &format!("{counted} --json"), 0));
        assert_eq!(counted["iteration_ns"], timed["iteration_ns"], "{line} {again}");
        if is_placed {
            assert_eq!(read("timed.plan"), read("counted.plan"), "{line} {again}");
        }
    }

    // Rounds are those of one plan.
    expect_sentence(at, "compare r.trace --evaluations 812,40", 2, &["812,40", "one number"]);
    expect_sentence(at, "plan r.trace --evaluations 812;40", 2, &["812;40", "812,40,3"]);
}

#[test]
fn a_time_ends_a_search_that_also_counts_evaluations() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet20 --batch 1 --image 8 --width 4 -o r.trace", 0);
    // So many evaluations would take days.
    let line = "plan r.trace --memory 30% --evaluations 100000000000 --time 300ms --json";
    let started = Instant::now();
    let plan = json(&expect(at, line, 0));
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(plan["stop_reason"], "time", "{plan:?}");
    // And few of them end before a long time does.
    let plan = json(&expect(at, "plan r.trace --memory 30% --evaluations 30 --time 10m --json", 0));
    assert_eq!(plan["stop_reason"], "evaluations", "{plan:?}");
}

#[test]
fn a_plan_explains_its_choices() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 32 --machine v100 -o r.trace", 0);
    for (planner, restored) in [("greedy", "prefetched"), ("sqrt", "recomputed")] {
        let line = format!("plan r.trace --memory 85% --planner {planner} --explain -o r.plan");
        let planned = json(&expect(at, &format!("{line} --json"), 0));
        let explanation = &planned["explanation"];
        let choices = explanation["choices"].as_array().unwrap();
        assert!(
            !choices.is_empty() && choices.iter().all(|choice| choice["restored"] == restored),
            "{planner}"
        );
        let saved = |choice: &Value| choice["saved_byte_seconds"].as_f64().unwrap();
        assert!(
            choices.is_sorted_by(|a, b| saved(a) >= saved(b)),
            "{planner}: the largest saving comes first"
        );
        let sum: f64 = choices.iter().map(saved).sum();
        assert!((sum / saved(explanation) - 1.0).abs() < 1e-9, "{planner}");
        for choice in choices {
            let time = choice["to_ns"].as_u64().unwrap() - choice["from_ns"].as_u64().unwrap();
            let expected = choice["bytes"].as_f64().unwrap() * time as f64 / 1e9;
            assert!((saved(choice) - expected).abs() <= 1e-9 * expected, "{choice}");
        }
        // A table with a total, and the same for a plan from a file.
        let table = expect(at, &line, 0);
        assert!(table.trim_end().lines().last().unwrap().starts_with("all "), "{table}");
        let simulated = json(&expect(at, "simulate r.trace r.plan --explain --json", 0));
        assert_eq!(&simulated["explanation"], explanation);
        assert!(
            json(&expect(at, &format!("{line} --json").replace("--explain", ""), 0))["explanation"].is_null()
        );
    }
}

#[test]
fn training_under_a_limit_equals_training_without() {
    let folder = tempfile::tempdir().unwrap();
    for planner in ["keep", "greedy", "sqrt", "mixed", "floor"] {
        // Large enough for activations to outweigh parameters, so that every planner has something to do.
        let line = format!(
            "train --model resnet18 --batch 24 --threads 2 --iterations 2 --memory min --planner {planner} --verify --json"
        );
        let report = json(&expect(folder.path(), &line, 0));
        assert_eq!(report["verified"].as_bool(), Some(true), "{planner}");
        assert_eq!(report["measured_peak_bytes"], report["predicted_peak_bytes"], "{planner}");
        assert!(report["measured_peak_bytes"].as_u64() <= report["limit_bytes"].as_u64(), "{planner}");
        assert_eq!(report["arena_above_intact"].as_bool(), Some(true), "{planner}");
        assert_eq!(report["losses"].as_array().unwrap().len(), 2, "{planner}");
        let moved = report["measured_to_host_bytes"].as_u64().unwrap() > 0;
        let recomputed = report["measured_recomputed_ops"].as_u64().unwrap() > 0;
        assert_eq!(
            (moved, recomputed),
            (matches!(planner, "greedy" | "mixed" | "floor"), matches!(planner, "sqrt" | "mixed")),
            "{planner}"
        );
    }
}

#[test]
fn spilling_to_a_file_keeps_the_process_small() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let line =
        "train --model resnet18 --batch 64 --iterations 1 --memory 40% --planner floor --host . --json";
    let report = json(&expect(at, line, 0));
    let number = |name: &str| report[name].as_u64().unwrap();
    assert!(number("unconstrained_peak_bytes") >= 2 * number("limit_bytes"));
    assert!(number("measured_to_host_bytes") > 0, "something was spilled");
    let above = number("peak_resident_bytes").saturating_sub(number("limit_bytes"));
    assert!(above <= 80 << 20, "{above} bytes resident above the limit");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 0, "no spill file is left behind");
}

#[test]
fn a_resumed_run_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let losses = |line: &str| -> Vec<Value> {
        json(&expect(at, &format!("train {SMALL} {line} --json"), 0))["losses"].as_array().unwrap().clone()
    };
    let whole = losses("--iterations 4 --memory 60%");
    let mut parts = losses("--iterations 2 --memory 80% --save half.safetensors");
    parts.extend(losses("--iterations 2 --memory 60% --resume half.safetensors"));
    assert_eq!(whole, parts);

    expect_sentence(at, "train --model vgg11 --batch 2 --resume half.safetensors", 2, &["half.safetensors"]);
    let bytes = std::fs::read(at.join("half.safetensors")).unwrap();
    std::fs::write(at.join("cut.safetensors"), &bytes[..bytes.len() - 1]).unwrap();
    expect_sentence(
        at,
        &format!("train {SMALL} --resume cut.safetensors"),
        2,
        &["cut.safetensors", "not a whole"],
    );
}

#[test]
fn the_forward_part_runs_alone_under_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "train --model resnet20 --batch 8 --iterations 1 --evaluations 500 --save r.safetensors", 0);
    let line = "train --model resnet20 --batch 8 --forward-only --memory 80% --evaluations 500 --iterations 2 --verify";
    let report = json(&expect(at, &format!("{line} --resume r.safetensors --json"), 0));
    assert_eq!(report["verified"].as_bool(), Some(true));
    assert_eq!(report["measured_peak_bytes"], report["predicted_peak_bytes"]);
    assert!(report["losses"].as_array().unwrap().is_empty() && report["first_iteration"].as_u64() == Some(1));
    assert!(report["samples_per_second"].as_f64() > Some(0.0));
    // What was computed: the loss of the trained weights, here on synthetic data.
    let [loss, accuracy] = ["eval_loss", "eval_accuracy"].map(|field| report[field][0].as_f64().unwrap());
    assert!(loss > 0.0 && (0.0..=1.0).contains(&accuracy), "{report}");
    assert_eq!([&report["eval_samples"][0], &report["eval_labels"][0]], [16, 16]);
    let table = expect(at, line, 0);
    let first = table.lines().skip_while(|line| *line != "Result").nth(1).unwrap_or_default();
    assert!(first.contains("16 samples"), "{table}");
    let exact = |line: &str| line.trim().starts_with("verified") && line.contains("bit-exact");
    assert!(table.lines().any(exact), "{table}");
    // Every other kind of input; a translation puts out one value for each word.
    for network in ["seq2seq --length 3", "gpt --length 16 --layers 1", "unet --image 32 --width 8", "kmeans"]
    {
        let line =
            format!("train --forward-only --memory 100% --iterations 1 --verify --batch 4 --model {network}");
        let table = expect(at, &line, 0);
        let judged = table.contains(" labels") && table.contains("accuracy");
        assert_eq!(judged, network != "kmeans", "{table}");
        let language = network.starts_with("gpt") || network.starts_with("seq2seq");
        assert_eq!(table.contains("perplexity"), language, "{table}");
    }
    // Inference runs whole unless a limit is named, like `evaluate` and `predict`.
    let whole = "train --model resnet20 --batch 1 --forward-only --iterations 1 --json";
    let report = json(&expect(at, whole, 0));
    assert_eq!(report["limit_bytes"], report["unconstrained_peak_bytes"]);
    // The workspaces of the algorithms that are chosen change the peak, but not what the share is of.
    let line_of_all = "train --model resnet20 --batch 1 --forward-only --memory 100% --iterations 1 --json";
    let report = json(&expect(at, line_of_all, 0));
    assert_eq!(report["limit_bytes"], report["unconstrained_peak_bytes"]);
    expect_sentence(at, &format!("{line} --save x"), 2, &["--save"]);
}

#[test]
fn plans_and_trainings_are_exported_to_other_viewers() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let document = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(at.join(name)).unwrap()).expect("trace events are JSON")
    };
    let processes = |document: &Value| {
        let events = document["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["name"] == "process_name").count()
    };
    let network = "--model resnet20 --batch 4";
    expect(at, &format!("trace {network} -o r.trace"), 0);
    let files = "--timeline plan.json --snapshot plan.pickle";
    let line = format!("plan r.trace --memory 60% --evaluations 20 -o r.plan --json {files}");
    let planned = json(&expect(at, &line, 0));
    assert_eq!(processes(&document("plan.json")), 1);
    // The snapshot is one of PyTorch's, in which `trace` finds the plan's peak.
    expect(at, "trace --import plan.pickle -o imported.trace", 0);
    let seen = json(&expect(at, "why imported.trace --json", 0));
    assert_eq!(seen["peak_live_bytes"], planned["peak_live_bytes"]);
    // The plan that was written gives the same files.
    expect(at, "simulate r.trace r.plan --json --timeline same.json --snapshot same.pickle", 0);
    for (one, other) in [("plan.json", "same.json"), ("plan.pickle", "same.pickle")] {
        assert_eq!(std::fs::read(at.join(one)).unwrap(), std::fs::read(at.join(other)).unwrap(), "{one}");
    }
    let line = format!("train {network} --memory 60% --evaluations 20 --json --timeline run.json");
    expect(at, &format!("{line} --iterations 3"), 0);
    assert_eq!(processes(&document("run.json")), 2);
    // No iteration follows a plan.
    let line = line.replace("run.json", "dynamic.json");
    expect_sentence(at, &format!("{line} --iterations 2 --dynamic"), 2, &["dynamic.json", "--iterations"]);
    expect_sentence(at, "plan r.trace --timeline x.json", 2, &["--memory"]);
    expect_sentence(at, "simulate r.trace r.plan --snapshot none/x", 2, &["none/x"]);
}

#[test]
fn the_largest_batch_is_the_last_one_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // With a number of evaluations, no clock ends the search for the largest batch.
    let line = "train --model resnet20 --planner greedy --memory 20MiB --iterations 1 --evaluations 50 --json --plot loss.svg";
    let report = json(&expect(at, &format!("{line} --batch max"), 0));
    let batch = report["batch"].as_u64().unwrap();
    assert!(batch > 1 && report["measured_peak_bytes"].as_u64().unwrap() <= 20 << 20, "{batch}");
    assert!(report["samples_per_second"].as_f64() > Some(0.0));
    assert!(std::fs::read_to_string(at.join("loss.svg")).unwrap().contains("loss"));
    expect(at, &format!("{line} --batch {}", batch + 1), 1);
    // By a slow link, too, where plans that only offload hold more samples than those of this planner.
    let slow = format!("{line} --host-rate 300MB/s");
    let batch_by_slow_link = json(&expect(at, &format!("{slow} --batch max"), 0))["batch"].as_u64().unwrap();
    expect(at, &format!("{slow} --batch {}", batch_by_slow_link + 1), 1);
    // A larger limit fits no smaller batch.
    let report =
        json(&expect(at, &line.replace("20MiB", "30MiB").replace("--json", "--json --batch max"), 0));
    assert!(report["batch"].as_u64().unwrap() > batch);
    expect_sentence(at, "train --batch max --memory 50%", 2, &["bytes"]);
    expect_sentence(at, "train --batch max --memory 1MiB", 1, &["not even a batch of one"]);
    expect_sentence(at, "trace --batch max", 2, &["--batch max"]);
}

#[test]
fn a_training_whose_structures_never_occur_again_follows_derived_plans_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        "train --model stochastic-resnet20 --batch 2 --image 8 --memory 60% --iterations 3 --evaluations 20";
    let printed = expect(folder.path(), line, 0);
    assert!(printed.contains("planned iterations    3"), "{printed}");
    assert!(printed.contains("dynamic iterations    0"), "{printed}");
    assert!(printed.contains("exactly as planned"), "{printed}");
    let unwrapped = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        unwrapped.contains("derived from the plan of the largest structure for 3 iterations"),
        "{printed}"
    );
}

/// A file of CIFAR-10's binary version: records of a label and 3 × 32 × 32 pixels, each class with a colour of its own under noise.
fn cifar10(path: &Path, records: usize) {
    let record = |i: usize| {
        let label = (i * 7 + i / 10) % 10;
        let pixel = move |j: usize| (40 + (label * (3 + j / 1024) * 37) % 120 + (i * 31 + j * 17) % 53) as u8;
        std::iter::once(label as u8).chain((0..3072).map(pixel))
    };
    std::fs::write(path, (0..records).flat_map(record).collect::<Vec<u8>>()).unwrap();
}

#[test]
fn images_of_cifar10_are_read_and_learned() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("cifar")).unwrap();
    (1..=5).for_each(|part| cifar10(&at.join(format!("cifar/data_batch_{part}.bin")), 20));
    let learn = "--optimizer adam --learning-rate 3e-3 --iterations 12 --batch 10 --width 8 --threads 1";
    let line = format!("train --data cifar {learn} --memory 50% --evaluations 50 --verify --json");
    let report = json(&expect(at, &line, 0));
    assert_eq!(report["verified"].as_bool(), Some(true));
    assert_eq!(report["measured_peak_bytes"], report["predicted_peak_bytes"]);
    let losses: Vec<f64> =
        report["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[8..]) < 0.8 * mean(&losses[..4]), "{losses:?}");

    // Images of another size than the files have, and a file that is missing between others.
    expect_sentence(at, "train --data cifar --batch 2 --image 64", 2, &["3×32×32", "3×64×64"]);
    std::fs::remove_file(at.join("cifar/data_batch_3.bin")).unwrap();
    expect_sentence(at, "train --data cifar --batch 2", 2, &["data_batch_3.bin", "data_batch_4.bin"]);
}

#[test]
fn a_network_in_bf16() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = |options: &str| {
        let line = format!("train {SMALL} --iterations 2 --json {options}");
        let (out, err) = expect_both(at, &line, 0);
        (json(&out), err)
    };
    let (narrow, err) = train("--precision bf16 --memory 50% --verify --save b.run");
    assert!(!err.contains("warning"), "{err}");
    assert_eq!(narrow["verified"].as_bool(), Some(true));
    assert_eq!(narrow["measured_peak_bytes"], narrow["predicted_peak_bytes"]);
    let (wide, _) = train("--memory 100%");
    let peak = |report: &Value| report["unconstrained_peak_bytes"].as_u64().unwrap();
    assert!(peak(&narrow) < peak(&wide) && narrow["losses"] != wide["losses"]);

    // So does a trace.
    expect(at, "trace --model resnet18 --batch 4 --precision bf16 -o b.trace", 0);
    let plan = json(&expect(at, "plan b.trace --memory 100% --evaluations 50 --json", 0));
    assert!(peak(&plan) < peak(&wide));

    // A checkpoint continues in either precision, and says in which it was written.
    let (_, err) = train("--memory 100% --resume b.run");
    assert!(err.contains("bf16"), "{err}");

    // Weights have no tiles in bf16, which a size of tiles does not change silently.
    let tiles = "warning: --tiles has no effect: with --precision bf16 no weight is cut into tiles";
    let (tiled, err) = train("--precision bf16 --memory 50% --tiles 1MiB");
    assert!(err.contains(tiles) && tiled["losses"] == narrow["losses"], "{err}");
    let (_, err) = expect_both(
        at,
        "plan --model resnet18 --batch 4 --precision bf16 --memory 50% --tiles 1MiB --evaluations 50",
        0,
    );
    assert!(err.contains(tiles), "{err}");
    expect_sentence(at, &format!("train {SMALL} --precision fp16"), 2, &["fp16", "f32 or bf16"]);
}

#[test]
fn a_network_with_winograds_convolutions() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = |options: &str| {
        let line = format!("train {SMALL} --width 32 --iterations 2 --json {options}");
        let (out, err) = expect_both(at, &line, 0);
        (json(&out), err)
    };
    let (half, err) = train("--convolutions winograd --memory 50% --verify --save w.run");
    assert!(!err.contains("warning"), "{err}");
    assert_eq!(half["verified"].as_bool(), Some(true));
    assert_eq!(half["measured_peak_bytes"], half["predicted_peak_bytes"]);
    // The bits are those of every limit, and not of plain convolutions.
    let (least, _) = train("--convolutions winograd --memory min");
    assert_eq!(least["losses"], half["losses"]);
    assert_ne!(train("--memory 100%").0["losses"], half["losses"]);
    let (plain, _) = train("--convolutions plain --memory 100% --resume w.run");
    assert_eq!(plain["losses"].as_array().map(Vec::len), Some(2));
    let text = expect(
        at,
        &format!("train {SMALL} --width 32 --iterations 1 --memory 100% --convolutions winograd"),
        0,
    );
    assert!(text.contains("Winograd's convolutions where they save time"), "{text}");

    let (narrow, err) = train("--precision bf16 --convolutions winograd --memory 50% --verify");
    let unit = elbowroom::engine::kernels::has_matrix_unit();
    assert_eq!(
        err.contains("warning: this processor multiplies bf16 numbers in a matrix unit"),
        unit,
        "{err}"
    );
    assert_eq!(narrow["verified"].as_bool(), Some(true));
    assert_ne!(narrow["losses"], half["losses"]);
    assert_ne!(narrow["losses"], train("--precision bf16 --memory 100%").0["losses"]);
    let sentence = ["fast", "plain or winograd"];
    expect_sentence(at, &format!("train {SMALL} --convolutions fast"), 2, &sentence);
}

#[test]
fn buffers_are_packed_from_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("b.csv"), "id,lower,upper,size\na,0,4,100\nb,2,6,50\nc,4,8,100\n").unwrap();
    let packed = json(&expect(at, "pack b.csv -o placed.csv --json", 0));
    assert_eq!((packed["arena_bytes"].as_u64(), packed["peak_live_bytes"].as_u64()), (Some(150), Some(150)));
    assert_eq!(packed["proved_optimal"].as_bool(), Some(true));
    let placed = std::fs::read_to_string(at.join("placed.csv")).unwrap();
    assert!(placed.lines().next().unwrap().contains("offset") && placed.lines().count() == 4, "{placed}");
    expect_sentence(at, "pack b.csv --capacity 149", 1, &["149"]);
    expect_sentence(at, "pack b.csv b.csv -o placed.csv", 2, &["one file"]);
}

#[test]
fn tables_and_traces_are_packed_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("b.csv"), "id,lower,upper,size\na,0,4,100\nb,2,6,50\nc,4,8,100\n").unwrap();
    expect(at, "trace --model resnet18 --batch 2 -o r.trace", 0);
    let packed =
        json(&expect(at, "pack b.csv r.trace --packer auto,best-fit,size --evaluations 20 --json", 0));
    let rows = packed["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["arena_bytes"].as_u64() >= row["peak_live_bytes"].as_u64(), "{row}");
    }
    // The unconstrained peak of the trace is that of its plan.
    let planned = json(&expect(at, "plan r.trace --memory 100% --planner keep --json", 0));
    let unconstrained = planned["unconstrained_peak_bytes"].as_u64().unwrap();
    assert!(
        rows[3]["file"] == "r.trace"
            && rows[3]["arena_bytes"].as_u64().unwrap().abs_diff(unconstrained) < 4096,
        "{rows:?}"
    );
}

#[test]
fn planners_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 8 --machine v100 -o r.trace", 0);
    let line = "compare r.trace --memory 60%..100% --steps 3 --planners keep,greedy,mixed";
    let compared = json(&expect(at, &format!("{line} --json --svg r.svg"), 0));
    let rows = compared["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        let fits = row["arena_bytes"].as_u64() <= row["limit_bytes"].as_u64();
        assert!(fits && row["feasible"].as_bool() == Some(row["iteration_ns"].is_u64()), "{row}");
        if row["planner"] == "keep" {
            assert_eq!(row["feasible"].as_bool(), Some(row["share"].as_f64() >= Some(1.0)));
        }
    }
    assert!(std::fs::read_to_string(at.join("r.svg")).unwrap().ends_with("</svg>\n"));
    assert_eq!(expect(at, &format!("{line} --csv"), 0).lines().count(), 10);
    assert!(expect(at, line, 0).contains("overhead"));
    expect_sentence(at, "compare r.trace --planners magic", 2, &["magic"]);

    // Two traces: one table with a line for each trace and limit, and the same numbers for programs.
    expect(at, "trace --model resnet18 --batch 4 --machine v100 -o s.trace", 0);
    let both = line.replace("r.trace", "r.trace s.trace");
    let table = expect(at, &both, 0);
    assert_eq!(table.lines().count(), 2 + 2 * 3, "{table}");
    assert!(table.lines().next().unwrap().ends_with("mixed"), "{table}");
    let traces = json(&expect(at, &format!("{both} --json"), 0));
    assert_eq!(traces["traces"].as_array().unwrap().len(), 2);
    for (mine, alone) in traces["traces"][0]["rows"].as_array().unwrap().iter().zip(rows) {
        assert_eq!((&mine["planner"], &mine["overhead"]), (&alone["planner"], &alone["overhead"]));
    }
    assert_eq!(expect(at, &format!("{both} --csv"), 0).lines().count(), 1 + 2 * 9);
    expect_sentence(at, &format!("{both} --svg both.svg"), 2, &["--svg"]);

    // The worst ratio over the limits, a line for each trace.
    let ratios = expect(at, &format!("{both} --ratio chain --no-recompute"), 0);
    let [head, units, first, _] = ratios.lines().collect::<Vec<_>>()[..] else { panic!("{ratios}") };
    assert!(head.contains("greedy") && units.contains("planning s"), "{ratios}");
    let alone = json(&expect(at, &format!("{line} --no-recompute --json"), 0));
    let greedy = alone["rows"].as_array().unwrap().iter().filter(|row| row["planner"] == "greedy");
    let worst = greedy.filter_map(|row| row["ratio_to_chain_bound"].as_f64()).fold(0.0, f64::max);
    assert!(worst >= 1.0 && first.contains(&format!(" {worst:.3} ")), "{worst} {ratios}");
}

#[test]
fn planners_keep_to_an_overhead_in_as_little_as_they_can() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 8 --machine v100 -o r.trace", 0);
    let smallest = |line: &str| {
        let line =
            format!("compare r.trace --planners keep,greedy,swdoa --packer best-fit --steps 4 {line} --json");
        json(&expect(at, &line, 0))
    };
    let bytes = |compared: &Value| -> Vec<u64> {
        let rows = compared["rows"].as_array().unwrap();
        rows.iter().map(|row| row["limit_bytes"].as_u64().unwrap()).collect()
    };
    let (none, much) = (smallest("--overhead 0%"), smallest("--overhead 50%"));
    for (compared, most) in [(&none, 0.0), (&much, 0.5)] {
        for row in compared["rows"].as_array().unwrap() {
            assert!(row["overhead"].as_f64().unwrap() <= most, "{row}");
            assert_eq!(row["arena_bytes"], row["limit_bytes"], "a plan's own bytes are a limit for it");
        }
    }
    let ([keep, greedy, swdoa], [kept, more, most]) = (&bytes(&none)[..], &bytes(&much)[..]) else {
        panic!()
    };
    assert!(kept == keep && more < greedy && most < swdoa, "{none} {much}");

    // As shares of the size that an online allocator would need.
    let pool = smallest("--overhead 50% --baseline pool");
    assert!(pool["unconstrained_peak_bytes"].as_u64() >= much["unconstrained_peak_bytes"].as_u64());
    let (row, whole) = (&pool["rows"][1], pool["unconstrained_peak_bytes"].as_f64().unwrap());
    let share = row["limit_bytes"].as_f64().unwrap() / whole;
    assert!((row["share"].as_f64().unwrap() - share).abs() < 1e-9, "{row}");

    let bound = smallest("--overhead 0% --memory 5%..10%");
    for row in bound["rows"].as_array().unwrap() {
        assert_eq!((row["feasible"].as_bool(), &row["stop_reason"]), (Some(false), &json("\"too-slow\"")));
    }
    expect_sentence(at, "compare r.trace --overhead little", 2, &["little"]);
    expect_sentence(at, "compare r.trace --overhead=-1%", 2, &["-1%"]);
    expect_sentence(at, "compare r.trace --baseline magic", 2, &["magic"]);
}

#[test]
#[ignore = "needs the shared data"]
fn recorded_iterations_are_imported() {
    let captured = shared("data/traces/resnet50_eager.jsonl.gz");
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, &format!("trace --import {} -o captured.trace", captured.display()), 0);
    let plan =
        json(&expect(at, "plan captured.trace --memory 70% --machine h100 --planner greedy --json", 0));
    assert!(plan["arena_bytes"].as_u64() <= plan["limit_bytes"].as_u64());
    std::fs::write(at.join("junk"), "{}").unwrap();
    expect_sentence(at, "trace --import junk", 2, &["junk"]);
}

#[test]
fn help_shows_examples_defaults_and_names() {
    let folder = tempfile::tempdir().unwrap();
    for line in ["--help", "train --help", "trace --help", "plan --help", "compare --help", "pack --help"] {
        assert!(expect(folder.path(), line, 0).contains("Example"), "{line}");
    }
    for line in ["train --help", "trace --help"] {
        let help = expect(folder.path(), line, 0);
        let row = help.lines().find(|line| line.trim_start().starts_with("resnet50 ")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["resnet50", "32", "10", "-", "-", "64", "-", "sgd", "0.02"]
        );
    }
    for line in ["train -h", "plan -h", "compare -h", "pack -h"] {
        let help = expect(folder.path(), line, 0);
        assert!(help.contains("possible values: auto") || help.contains("[possible values:\n"), "{help}");
        assert!(!help.contains("load-limit") && !help.contains("reactive"), "{help}");
    }
}

#[test]
fn a_trace_and_a_plan_without_a_limit_say_which_limits_are_possible() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let summary = expect(at, "trace --model resnet18 --batch 8 -o r.trace", 0);
    for part in ["32 x 32 pixels", "sgd, learning rate 0.02", "unconstrained peak", "smallest limit found"] {
        assert!(summary.contains(part), "`{part}` is not in {summary}");
    }
    let suggested = expect(at, "plan r.trace", 0);
    assert!(suggested.contains("elbowroom plan r.trace --memory 50%"), "{suggested}");
    let limits = json(&expect(at, "plan r.trace --json", 0));
    let bytes = |name: &str| limits[name].as_u64().unwrap();
    let smallest = bytes("smallest_limit_bytes");
    assert!(bytes("largest_op_bytes") <= smallest && smallest < bytes("unconstrained_peak_bytes"));
    // A plan is really found there, and none below the bound.
    expect(at, &format!("plan r.trace --memory {smallest} --evaluations 1"), 0);
    expect_sentence(
        at,
        &format!("plan r.trace --memory {}", bytes("largest_op_bytes") - 64),
        1,
        &["no plan exists"],
    );
    // The trace itself is all that is written where it goes to standard output.
    assert!(expect(at, "trace --model resnet18 --batch 8", 0).starts_with("elbowroom"));
    expect_sentence(at, "plan r.trace -o r.plan", 2, &["--memory"]);
}

#[test]
fn planners_of_a_comparison_start_from_each_other_unless_they_work_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect(at, "trace --model resnet18 --batch 8 -o r.trace", 0);
    let line = "compare r.trace --memory 60% --planners auto,greedy,floor --evaluations 20";
    let starts = |line: &str| -> Vec<u64> {
        let compared = json(&expect(at, &format!("{line} --json"), 0));
        compared["rows"].as_array().unwrap().iter().map(|row| row["warm_starts"].as_u64().unwrap()).collect()
    };
    let [greedy, floor, auto] = starts(line)[..] else { panic!() };
    assert!((greedy, floor) == (0, 0) && auto == 1, "{auto}");
    assert_eq!(starts(&format!("{line} --alone")), [0, 0, 0]);
    assert!(expect(at, line, 0).contains("auto starts from the plans of the other rows"));
    assert!(!expect(at, &format!("{line} --alone"), 0).contains("auto starts from"));
}
