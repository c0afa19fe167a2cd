//! `elbowroom why`: plans, traces, and snapshots of PyTorch's allocator.

#[path = "support/snapshot.rs"]
mod snapshot;
mod support;

use serde_json::Value;
use support::expect_both;

const MIB: u64 = 1 << 20;

/// Four checkpointed blocks: the input of each is kept, 16 MiB in all, until its backward pass, in which the block's activations are made
/// again. The head at the end of the forward pass is the peak, or else a block's own backward pass.
fn checkpointed(head: u64, inside: u64) -> Vec<u8> {
    let mut events = Vec::new();
    let mut time = 0;
    let mut push = |is_alloc, address: u64, bytes, line| {
        time += 10;
        events.push((is_alloc, address * (1 << 32), bytes, time, line));
    };
    push(true, 90, 30 * MIB, "parameters");
    for block in 0..4 {
        push(true, 1 + block, 4 * MIB, "boundary input");
    }
    push(true, 20, head, "logits");
    push(false, 20, head, "logits");
    for block in (0..4).rev() {
        // The input is used up before the block's activations are largest, as where it was offloaded.
        push(false, 1 + block, 4 * MIB, "boundary input");
        let bytes = if block == 0 { inside } else { inside / 4 };
        push(true, 30, bytes, "inside the block");
        push(false, 30, bytes, "inside the block");
    }
    snapshot::pickle(&events)
}

fn why(folder: &std::path::Path, line: &str) -> Value {
    let (output, _) = expect_both(folder, line, 0);
    serde_json::from_str(&output).unwrap()
}

fn group<'a>(why: &'a Value, module: &str) -> &'a Value {
    let groups = why["groups"].as_array().unwrap();
    groups
        .iter()
        .find(|g| g["module"].as_str().unwrap().contains(module))
        .unwrap_or_else(|| panic!("{module} in {why}"))
}

#[test]
fn offloading_what_is_not_alive_at_the_peak_saves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("snapshot.pickle"), checkpointed(2 * MIB, 60 * MIB)).unwrap();
    let explained = why(at, "why snapshot.pickle --json");
    assert_eq!(explained["allocations_only"], true);
    assert_eq!(explained["peak_live_bytes"].as_u64(), Some(90 * MIB));
    let boundary = group(&explained, "boundary input");
    assert_eq!(boundary["bytes"].as_u64(), Some(0));
    assert_eq!(boundary["most_bytes"].as_u64(), Some(16 * MIB));
    assert_eq!(boundary["peak_without_bytes"].as_u64(), Some(90 * MIB), "offloading them saves 0 bytes");
    // What would lower it: the block itself, until the logits or the first backward pass are the peak.
    let inside = group(&explained, "inside the block");
    assert_eq!(inside["peak_without_bytes"].as_u64(), Some((30 + 16 + 2) * MIB));
    assert!(
        explained["suggestions"][0]["text"].as_str().unwrap().contains("inside the block"),
        "{explained}"
    );
    let (text, _) = expect_both(at, "why snapshot.pickle", 0);
    assert!(text.contains("boundary input") && text.contains("saves 0 bytes of the peak"), "{text}");
}

#[test]
fn the_same_inputs_count_where_the_head_is_the_peak() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("s.pickle"), checkpointed(50 * MIB, 8 * MIB)).unwrap();
    let explained = why(at, "why s.pickle --json");
    assert_eq!(explained["peak_live_bytes"].as_u64(), Some((30 + 16 + 50) * MIB));
    assert_eq!(group(&explained, "boundary input")["peak_without_bytes"].as_u64(), Some(80 * MIB));
    assert_eq!(group(&explained, "logits")["peak_without_bytes"].as_u64(), Some(46 * MIB));
}

#[test]
fn plans_are_proved_first_and_wrong_files_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o a.trace", 0);
    expect_both(at, "trace --model resnet20 --batch 4 --image 16 -o b.trace", 0);
    expect_both(at, "plan a.trace --memory 60% --evaluations 5 -o a.plan", 0);
    let explained = why(at, "why a.trace a.plan --json");
    assert_eq!(explained["planned"], true);
    let (text, _) = expect_both(at, "why a.trace a.plan", 0);
    assert!(text.contains("the peak of the plan") && text.contains("What lowers it"), "{text}");
    let (_, wrong) = expect_both(at, "why b.trace a.plan", 1);
    assert!(wrong.contains("a.plan"), "{wrong}");
    let (_, none) = expect_both(at, "why nowhere.trace", 2);
    assert!(none.contains("nowhere.trace"), "{none}");
    std::fs::write(at.join("bad.pickle"), b"\x80\x02}.").unwrap();
    let (_, bad) = expect_both(at, "why bad.pickle", 2);
    assert!(bad.contains("device_traces"), "{bad}");
}

#[test]
fn the_line_of_code_behind_the_peak_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let trace = "elbowroom trace 1\nname \"two ops\"\ns0 4096\ns1 8192\nt0 s0 \"a\"\nt1 s1 \"blocks.0.fc/mul\"\n\
                 op0 input \"a\" forward never makes t0 nanos 1\n\
                 op1 mul \"blocks.0.fc/mul\" forward pure reads t0 makes t1 line \"net/model.py:120\" nanos 1\n";
    std::fs::write(at.join("a.trace"), trace).unwrap();
    let explained = why(at, "why a.trace --json");
    assert_eq!(explained["peak"]["line"], "net/model.py:120");
    assert_eq!(group(&explained, "blocks")["module"], "blocks.0.fc");
    let (text, _) = expect_both(at, "why a.trace", 0);
    assert!(text.split_whitespace().collect::<String>().contains("calledatnet/model.py:120"), "{text}");
    expect_both(at, "report a.trace -o a.html", 0);
    let data = page_data(&std::fs::read_to_string(at.join("a.html")).unwrap());
    assert_eq!(data["op_lines"], serde_json::json!(["", "net/model.py:120"]));
    assert_eq!(data["ops"]["line"], serde_json::json!([0, 1]));
}

/// The object in the page's script element.
fn page_data(page: &str) -> Value {
    let (_, rest) = page.split_once("type=\"application/json\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn the_page_states_the_figures_of_the_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o a.trace", 0);
    let (planned, _) = expect_both(at, "plan a.trace --memory 50% --evaluations 5 --json -o a.plan", 0);
    let planned: Value = serde_json::from_str(&planned).unwrap();
    expect_both(at, "report a.trace a.plan -o a.html --time 5m", 0);
    let page = std::fs::read_to_string(at.join("a.html")).unwrap();
    let data = page_data(&page);
    for field in ["limit_bytes", "arena_bytes", "unconstrained_peak_bytes", "iteration_ns", "overhead"] {
        assert_eq!(data[field], planned[field], "{field}");
    }
    assert_eq!(data["why"], why(at, "why a.trace a.plan --json --time 5m"));
    // Every residency lies within the arena, and their sum at the peak is the live memory there.
    let column = |name: &str| -> Vec<i64> {
        data["residencies"][name].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
    };
    let unit = data["unit_bytes"].as_i64().unwrap();
    assert_eq!(unit % 64, 0, "everything is aligned");
    let scaled = |name: &str| column(name).into_iter().map(|number| unit * number).collect::<Vec<_>>();
    let (offset, bytes, length) = (scaled("offset"), scaled("bytes"), column("length"));
    let from: Vec<i64> = column("from")
        .iter()
        .scan(0, |sum, difference| {
            *sum += difference;
            Some(*sum)
        })
        .collect();
    let end = offset.iter().zip(&bytes).map(|(offset, bytes)| offset + bytes).max();
    // The highest buffer ends where its bytes do; its bar ends at the next multiple of the alignment.
    let arena = data["arena_bytes"].as_i64().unwrap();
    assert_eq!(end.map(|end| (end - arena) / 64), Some(0), "{end:?} {arena}");
    let peak = data["peak_at"].as_i64().unwrap();
    let alive = (0..from.len()).filter(|&i| from[i] <= peak && peak < from[i] + length[i]);
    let alive: u64 = alive.map(|i| bytes[i] as u64).sum();
    assert_eq!(Some(alive), data["why"]["peak_live_bytes"].as_u64());
    // Nothing is loaded from anywhere.
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains(" src="));
}

#[test]
fn a_table_of_buffers_is_shown_with_its_own_offsets() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("t.csv"), "id,lower,upper,size\n0,0,4,10\n1,2,6,7\nlast,4,8,10\n").unwrap();
    let open = why(at, "why t.csv --json");
    assert_eq!((open["planned"].as_bool(), open["peak_live_bytes"].as_u64()), (Some(false), Some(17)));
    // The gap at the bottom is the table's own.
    std::fs::write(
        at.join("placed.csv"),
        "id,lower,upper,size,offset\n0,0,4,10,3\n1,2,6,7,13\nlast,4,8,10,2\n",
    )
    .unwrap();
    let placed = why(at, "why placed.csv --json");
    assert_eq!((placed["planned"].as_bool(), placed["arena_bytes"].as_u64()), (Some(true), Some(20)));
    expect_both(at, "report placed.csv -o placed.html", 0);
    let data = page_data(&std::fs::read_to_string(at.join("placed.html")).unwrap());
    let mut names: Vec<String> = Vec::new();
    for coded in data["names"].as_array().unwrap() {
        let (shared, rest) = coded.as_str().unwrap().split_at(1);
        let before = names.last().map_or("", |name| &name[..usize::from_str_radix(shared, 36).unwrap()]);
        names.push(format!("{before}{rest}"));
    }
    assert_eq!(names[..3], ["buffer 0", "buffer 1", "last"]);
    assert_eq!(data["residencies"]["offset"], serde_json::json!([3, 13, 2]));
    for (text, status, part) in [
        ("id,lower,upper,size,offset\na,0,4,10,0\nb,3,6,7,5\n", 1, "no legal placement"),
        ("id,lower,upper,size,gaps\na,0,4,10,1-2\n", 2, "gaps"),
        ("id,lower,upper,size\n", 2, "no buffers"),
    ] {
        std::fs::write(at.join("bad.csv"), text).unwrap();
        let (_, refusal) = expect_both(at, "why bad.csv", status);
        assert!(refusal.contains("bad.csv") && refusal.contains(part), "{refusal}");
    }
    let (_, refusal) = expect_both(at, "why t.csv some.plan", 2);
    assert!(refusal.contains("some.plan is for a trace"), "{refusal}");
}

#[test]
fn names_cannot_leave_the_pages_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(
        at.join("x.trace"),
        "elbowroom trace 1\nname \"{{data}}</title><script>\"\ns0 64\ns1 64\nt0 s0 \"</script><b>\"\nt1 s1 \"y\"\n\
         op0 relu \"r\" forward pure reads t0 makes t1\npersistent t0->t0\n",
    )
    .unwrap();
    expect_both(at, "report x.trace -o x.html", 0);
    let page = std::fs::read_to_string(at.join("x.html")).unwrap();
    assert_eq!(page.matches("</script>").count(), 2, "of the data and of the script");
    assert_eq!(page_data(&page)["why"]["trace"], "{{data}}</title><script>");
    let (_, unwritable) = expect_both(at, "report x.trace -o nowhere/x.html", 2);
    assert!(unwritable.contains("nowhere/x.html"), "{unwritable}");
}

#[test]
fn a_finished_training_is_explained_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = "train --model resnet20 --batch 2 --image 16 --iterations 3 --memory 60% --evaluations 5";
    let (printed, _) = expect_both(at, &format!("{train} --report run.json --json"), 0);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let explained = why(at, "why run.json --json --time 5m");
    assert_eq!(explained["planned"], true);
    assert_eq!(explained["arena_bytes"], printed["measured_peak_bytes"]);
    expect_both(at, "report run.json -o run.html --time 5m", 0);
    let data = page_data(&std::fs::read_to_string(at.join("run.html")).unwrap());
    assert_eq!(data["run"]["report"], printed);
    assert_eq!(data["why"], explained);
    assert_eq!(data["limit_bytes"], printed["limit_bytes"]);
    // Both courses have the same actions.
    for column in ["at", "what", "stream", "recompute"] {
        assert_eq!(data["spans"][column], data["run"]["measured"][column], "{column}");
    }
    assert_ne!(data["spans"]["duration"], data["run"]["measured"]["duration"]);

    // The plan is in the file, and is proved again.
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o a.trace", 0);
    expect_both(at, "plan a.trace --memory 60% --evaluations 5 -o a.plan", 0);
    let (_, twice) = expect_both(at, "why run.json a.plan", 2);
    assert!(twice.contains("leave out a.plan"), "{twice}");
    let run = std::fs::read_to_string(at.join("run.json")).unwrap();
    let mut other: Value = serde_json::from_str(&run).unwrap();
    let offsets = &mut other["elbowroom run 1"]["plan"]["plan"]["placement"]["offsets"];
    offsets.as_array_mut().expect("a plan has offsets").iter_mut().for_each(|offset| *offset = 0.into());
    std::fs::write(at.join("illegal.json"), other.to_string()).unwrap();
    let (_, illegal) = expect_both(at, "report illegal.json -o x.html", 1);
    assert!(illegal.contains("illegal.json"), "{illegal}");
    std::fs::write(at.join("cut.json"), &run[..run.len() / 2]).unwrap();
    let (_, cut) = expect_both(at, "report cut.json -o x.html", 2);
    assert!(cut.contains("cut.json is no finished training") && cut.contains("line 1"), "{cut}");
    // Any times are drawn.
    let mut other: Value = serde_json::from_str(&run).unwrap();
    for span in other["elbowroom run 1"]["measured"]["spans"].as_array_mut().unwrap() {
        (span["start"], span["end"]) = (u64::MAX.into(), 0.into());
    }
    std::fs::write(at.join("times.json"), other.to_string()).unwrap();
    expect_both(at, "report times.json -o x.html --time 1ms", 0);

    let (_, none) = expect_both(at, &format!("{train} --dynamic --report none.json"), 2);
    assert!(none.contains("none.json was not written") && !at.join("none.json").exists(), "{none}");
}

#[test]
fn an_empty_file_is_called_empty() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("e.run"), "\n").unwrap();
    for line in ["why e.run", "report e.run -o e.html"] {
        let (_, err) = expect_both(folder.path(), line, 2);
        assert!(err.contains("e.run is empty; name a trace, a finished training"), "{err}");
    }
}

#[test]
fn no_limit_that_works_is_below_the_lower_bound() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // 1,000 bytes are rounded up to 1,024 unless they lie highest.
    let events = "malloc a 1000\nmalloc b 1000\nwrite a\nwrite b\nread a\nread b\nfree a\nfree b\n";
    std::fs::write(at.join("log.txt"), events.repeat(3)).unwrap();
    let line = "plan log.txt --memory min --evaluations 50 --json";
    let report: Value = serde_json::from_str(&expect_both(at, line, 0).0).unwrap();
    assert_eq!([&report["limit_bytes"], &report["floor_bytes"]], [1_000, 1_000]);
    assert_eq!(report["largest_op_bytes"], 1_000);
}
