//! `elbowroom pack` on the tables that other programs write: windows, standard input, bad files among good ones, missed capacities.

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{expect_both, json};

#[test]
fn windows_are_used_and_written_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(
        at.join("w.csv"),
        "# two\nid;lower;upper;size;gaps;op\na;0;9;10;3-6@0:4;conv\nb;3;6;6;;relu\n",
    )
    .unwrap();
    let (output, _) = expect_both(at, "pack w.csv -o placed.csv --json", 0);
    let packed = json(&output);
    assert_eq!((packed["arena_bytes"].as_u64(), packed["proved_optimal"].as_bool()), (Some(10), Some(true)));
    assert!(packed["total_ns"].as_u64() >= packed["packing_ns"].as_u64());
    let placed = std::fs::read_to_string(at.join("placed.csv")).unwrap();
    assert_eq!(placed, "id;lower;upper;size;gaps;op;offset\na;0;9;10;3-6@0:4;conv;0\nb;3;6;6;;relu;4\n");
    // What is written is fixed where it lies, and still legal.
    assert_eq!(json(&expect_both(at, "pack placed.csv --json", 0).0)["arena_bytes"].as_u64(), Some(10));
}

#[test]
fn a_bad_file_does_not_lose_the_results_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("good.csv"), "a,0,4,100\nb,2,6,50\n").unwrap();
    std::fs::write(at.join("bad.csv"), "id,lower,upper,size\na,0,4,100\na,0,4,1\n").unwrap();
    let (output, errors) = expect_both(at, "pack good.csv bad.csv nowhere.csv good.csv --json", 2);
    assert_eq!(json(&output)["rows"].as_array().unwrap().len(), 2);
    assert!(
        errors.contains("bad.csv") && errors.contains("line 3") && errors.contains("nowhere.csv"),
        "{errors}"
    );
    let (table, _) = expect_both(at, "pack good.csv bad.csv", 2);
    assert!(table.contains("good.csv") && table.contains("150"), "{table}");
}

#[test]
fn a_missed_capacity_still_gives_the_best_placement() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("b.csv"), "a,0,4,100\nb,2,6,50\nc,4,8,100\n").unwrap();
    for packer in ["auto", "size"] {
        let line = format!("pack b.csv --capacity 149 --packer {packer} -o placed.csv --json");
        let (output, errors) = expect_both(at, &line, 1);
        let packed = json(&output);
        assert_eq!((packed["arena_bytes"].is_null(), packed["height_bytes"].as_u64()), (true, Some(150)));
        assert!(errors.contains("149") && !at.join("placed.csv").exists(), "{errors}");
        expect_both(at, &format!("{line} --keep-missed"), 1);
        assert_eq!(std::fs::read_to_string(at.join("placed.csv")).unwrap().lines().count(), 4);
        std::fs::remove_file(at.join("placed.csv")).unwrap();
    }
    std::fs::write(at.join("f.csv"), "id,lower,upper,size,offset\na,0,4,100,0\nb,2,6,50,90\n").unwrap();
    let (output, errors) = expect_both(at, "pack f.csv --json", 1);
    assert!(json(&output)["height_bytes"].is_null());
    assert!(
        errors.contains(
            "buffers a and b are alive together and fixed at overlapping offsets, 0 to 100 and 90 to 140"
        ),
        "{errors}"
    );
}

#[test]
fn a_table_may_come_from_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
        .args(["pack", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all("\u{feff}lower\tupper\tsize\tid\n0\t4\t100\ta\n".as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let packed = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(
        (packed["file"].as_str(), packed["arena_bytes"].as_u64()),
        (Some("standard input"), Some(100))
    );
}

#[test]
fn a_changed_table_keeps_the_offsets_of_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, rows: &str| {
        std::fs::write(at.join(name), format!("id,lower,upper,size\n{rows}")).unwrap();
    };
    write("before.csv", "a,0,9,100\nb,0,4,50\nc,4,9,50\nd,0,2,10\n");
    expect_both(at, "pack before.csv -o placed.csv", 0);
    // `d` is gone, `b` has grown, and `e` is new.
    write("after.csv", "a,0,9,100\nb,0,4,60\nc,4,9,50\ne,5,9,10\n");
    let (output, _) =
        expect_both(at, "pack after.csv --previous placed.csv --capacity 160 --json -o new.csv", 0);
    let packed = json(&output);
    assert!(packed["arena_bytes"].as_u64().unwrap() <= 160, "{output}");
    assert_eq!(packed["moved_bytes"], packed["least_moved_bytes"], "{output}");
    assert_eq!((packed["added"].as_u64(), packed["removed"].as_u64()), (Some(1), Some(1)), "{output}");
    let moved: Vec<&str> = packed["moved"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(!moved.contains(&"a"), "{output}");
    let offsets = |name: &str| -> Vec<(String, String)> {
        let text = std::fs::read_to_string(at.join(name)).unwrap();
        let fields = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        fields.map(|f| (f[0].to_owned(), f[f.len() - 1].to_owned())).collect()
    };
    for (id, offset) in offsets("placed.csv") {
        let now = offsets("new.csv").into_iter().find(|(other, _)| *other == id);
        assert!(now.is_none_or(|(_, now)| (now == offset) != moved.contains(&id.as_str())), "{id}: {output}");
    }
    let (text, _) = expect_both(at, "pack before.csv --previous placed.csv", 0);
    assert!(text.contains("4 buffers") && text.contains("proved: no placement moves fewer bytes"), "{text}");
    let (_, errors) = expect_both(at, "pack after.csv --previous before.csv", 2);
    assert!(errors.contains("before.csv has no offsets"), "{errors}");
    expect_both(at, "pack after.csv before.csv --previous placed.csv", 2);
    // Whatever moves, 160 bytes are needed.
    let (output, errors) = expect_both(at, "pack after.csv --previous placed.csv --capacity 159 --json", 1);
    assert!(json(&output)["arena_bytes"].is_null() && errors.contains("infeasible"), "{output}{errors}");
}

#[test]
fn buffers_are_placed_in_banks_and_spills_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rows = "w,0,9,600,,6000\ni,0,3,500,sram,500\nh,2,6,400,,4000\no,5,9,500,,500\n";
    std::fs::write(at.join("b.csv"), format!("id,lower,upper,size,bank,traffic\n{rows}")).unwrap();
    let line = "pack b.csv --bank tcm=1000@1 --bank sram=800@5 -o placed.csv --json";
    let packed = json(&expect_both(at, line, 0).0);
    assert_eq!(
        (packed["traffic_cost"].as_u64(), packed["proved_optimal"].as_bool()),
        (Some(15_000), Some(true))
    );
    assert_eq!(packed["banks"][0]["arena_bytes"].as_u64(), Some(1000));
    // What is written pins every buffer in its bank.
    let placed = std::fs::read_to_string(at.join("placed.csv")).unwrap();
    assert!(placed.starts_with("id,lower,upper,size,bank,traffic,offset\nw,0,9,600,tcm,6000,"), "{placed}");
    let again = json(&expect_both(at, &line.replace("b.csv", "placed.csv"), 0).0);
    assert_eq!(again["traffic_cost"], packed["traffic_cost"]);
    std::fs::remove_file(at.join("placed.csv")).unwrap();
    // Without room for it, the least used buffer is spilled.
    let line = "pack b.csv --bank tcm=1000@1 --bank sram=499 -o placed.csv --json";
    let (output, errors) = expect_both(at, line, 1);
    let packed = json(&output);
    let spilled: Vec<&str> = packed["spilled"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!((spilled, packed["spilled_bytes"].as_u64()), (vec!["i", "o"], Some(1000)), "{output}");
    assert!(
        errors.contains("i, o") && errors.contains("proved") && !at.join("placed.csv").exists(),
        "{errors}"
    );
    expect_both(at, &format!("{line} --keep-missed"), 1);
    let placed = std::fs::read_to_string(at.join("placed.csv")).unwrap();
    assert!(placed.contains("i,0,3,500,,500,\n"), "{placed}");
    for (line, error) in [
        ("pack b.csv --bank tcm=1000", "names the bank `sram`"),
        ("pack b.csv --bank sram=1 --bank sram=2", "twice"),
        ("pack b.csv --bank sram", "a bank is NAME=CAPACITY"),
        ("pack b.csv b.csv --bank sram=1", "one file"),
        ("pack b.csv --bank sram=1 --capacity 4", "--capacity"),
    ] {
        let (_, errors) = expect_both(at, line, 2);
        assert!(errors.contains(error), "{line}: {errors}");
    }
}

#[test]
fn the_command_line_of_minimalloc_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rows = "b1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
    std::fs::write(at.join("input.12.csv"), format!("id,lower,upper,size\n{rows}")).unwrap();
    let line = "pack --minimalloc --capacity=12 --input=input.12.csv --output=output.12.csv --validate";
    let (output, errors) = expect_both(at, line, 0);
    assert!(output.is_empty() && errors.starts_with("Elapsed time 0."), "{output}{errors}");
    assert!(errors.contains("\nValidation PASS, height 12\n"), "{errors}");
    let placed = std::fs::read_to_string(at.join("output.12.csv")).unwrap();
    assert!(placed.starts_with("id,lower,upper,size,offset\nb1,0,3,4,"), "{placed}");
    assert_eq!(placed.lines().count(), 6);
    for (flags, status, said) in [
        ("--capacity=11", 1, "infeasible"),
        ("--capacity=100 --minimize_capacity --validate", 0, "height 12"),
        ("--capacity=11 --minimize_capacity", 1, "Elapsed"),
        (
            "-capacity 12 --novalidate --timeout=1m --nocheck_dominance --preordering_heuristics=WAT",
            0,
            "Elapsed",
        ),
        ("--capacity=12x", 1, "Illegal value '12x' specified for flag 'capacity'"),
        ("--capacity=12 --timeout=5", 1, "Illegal value '5' specified for flag 'timeout'"),
        ("--foo=1", 1, "Unknown command line flag 'foo'"),
        ("--capacity=-1", 1, "negative"),
        ("", 1, "Elapsed"),
    ] {
        let line = format!("pack --minimalloc {flags} --input=input.12.csv");
        let (_, errors) = expect_both(at, &line, status);
        assert!(errors.contains(said), "{line}: {errors}");
    }
    let (_, errors) = expect_both(at, "pack --minimalloc --capacity=12 --input=nowhere.csv", 1);
    assert!(errors.contains("nowhere.csv"), "{errors}");
}

#[test]
fn every_packer_that_searches_keeps_its_time_on_a_large_table() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let row = |i: u64| format!("{i},{},{},{}\n", i * 7 % 60_000, i * 7 % 60_000 + 900, 64 + i % 1_000 * 8);
    let rows: String = (0..60_000).map(row).collect();
    std::fs::write(at.join("large.csv"), format!("id,lower,upper,size\n{rows}")).unwrap();
    for packer in ["--packer auto", "--packer exact", "--bank near=1GiB --bank far=1GiB"] {
        let (_, err) = expect_both(at, &format!("pack large.csv {packer} --time 1ms"), 1);
        let sentence = "elbowroom: the time ended before every buffer was placed; give it more with --time";
        assert_eq!(err.trim(), sentence, "{packer}");
    }
}
