//! What the generators make is legal, and survives printing, parsing and JSON; whatever else is fed to the parser is refused politely.

use std::collections::BTreeMap;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_ir::arbitrary::{Case, placement};
use elbowroom_ir::check::{check, check_schedule};
use elbowroom_ir::machine::MachineError;
use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::text::{File, FileError, PlanFile, TraceFile, is_json};
use elbowroom_ir::trace::{LONGEST_NAME, Trace, TraceData, TraceError};
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

fn trace_file(u: &mut Unstructured<'_>, case: &Case) -> arbtest::arbitrary::Result<TraceFile> {
    let source =
        *u.choose(&[CostSource::Measured, CostSource::Recorded, CostSource::Captured, CostSource::Roofline])?;
    let nanos =
        case.trace.ops().ids().map(|_| Ok(Nanos(u.int_in_range(0..=1 << 40)?))).collect::<Result<_, _>>()?;
    let costs = u.arbitrary::<bool>()?.then_some(Costs { nanos, source });
    let machine = u.arbitrary::<bool>()?.then(|| case.machine.clone());
    Ok(TraceFile::new((*case.trace).clone(), costs, machine).expect("a usable machine and fitting costs"))
}

fn plan_file(case: &Case) -> PlanFile {
    PlanFile::new(case.plan.clone(), case.machine.clone()).expect("a usable machine")
}

#[test]
fn generated_plans_are_legal_and_cover_everything() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        let (trace, schedule) = (&case.trace, &case.plan.schedule);
        let checked = check(trace.clone(), case.machine.clone(), case.plan.clone());
        if let Err(illegal) = &checked {
            let trace = TraceFile::new((**trace).clone(), None, None).expect("a trace");
            panic!("{trace}{}{:#?}", plan_file(&case), illegal.violations);
        }
        let limit = Bytes(1 << 20);
        let placeless = check_schedule(trace.clone(), case.machine.clone(), schedule.clone(), limit);
        let mut saw = |what, how_often| *seen.entry(what).or_default() += how_often;
        saw("case", 1);
        saw("waits for every placement", usize::from(placeless.is_ok() && schedule.buffers.len() > 8));
        let mut last_computed = None;
        for step in schedule.steps.values() {
            let kind = match &step.action {
                Action::Compute(launch) => {
                    saw("another order", usize::from(last_computed > Some(launch.op)));
                    last_computed = Some(launch.op);
                    "compute"
                }
                Action::Recompute(_) => "recompute",
                Action::Offload { .. } => "offload",
                Action::Prefetch { .. } => "prefetch",
                Action::Release { .. } => "release",
                Action::HostRelease { .. } => "host release",
            };
            saw(kind, 1);
            saw("wait", step.waits.len());
            if let Some(launch) = step.action.launch() {
                let op = &trace.ops()[launch.op];
                saw("mutation", op.mutates.len());
                saw("has to follow", op.after.len());
                saw("workspace", usize::from(launch.workspace.is_some()));
                let in_place = launch.writes.iter().filter(|buffer| launch.reads.contains(buffer)).count();
                saw("reuse", in_place - op.mutates.len());
            }
        }
        for (at_boundary, pair) in schedule.boundary.iter().zip(trace.persistent()) {
            saw("home on both sides", usize::from(at_boundary.host && at_boundary.device.is_some()));
            saw("home on the host", usize::from(at_boundary.host && at_boundary.device.is_none()));
            saw("end in another storage", usize::from(trace.storage(pair.begin) != trace.storage(pair.end)));
            let leaves = schedule.steps.values().any(|step| match step.action {
                Action::Release { buffer } => at_boundary.device == Some(buffer),
                _ => false,
            });
            saw("home left and returned to", usize::from(leaves));
        }
        Ok(())
    };
    for seed in 0..6_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    let cases = seen["case"];
    assert!(seen.values().all(|&count| count > cases / 100) && seen.len() == 18, "{seen:?}");
}

#[test]
fn a_schedule_proved_without_a_placement_is_legal_in_every_placement() {
    let mut proved = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let Case { trace, machine, mut plan } = Case::arbitrary(u)?;
        let schedule = plan.schedule.clone();
        let by_load = |limit| check_schedule(trace.clone(), machine.clone(), schedule.clone(), Bytes(limit));
        let Ok(checked) = by_load(1 << 20) else { return Ok(()) };
        proved += 1;
        let peak = checked.peak_live();
        let taken_later = schedule.buffers.len() > schedule.boundary.len();
        assert!(by_load(peak.get()).is_ok());
        assert!(peak.is_zero() || !taken_later || by_load(peak.get() - 1).is_err());
        for _ in 0..4 {
            plan.placement = placement(u, &plan.schedule, machine.align)?;
            let machine = machine.clone().with_memory(plan.placement.height);
            let checked =
                check(trace.clone(), machine, plan.clone()).unwrap_or_else(|illegal| panic!("{illegal}"));
            assert_eq!(checked.peak_live(), peak);
        }
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..3_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(proved > 1_000, "{proved}");
}

#[test]
fn text_and_json_round_trip() {
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        let trace = trace_file(u, &case)?;
        let plan = plan_file(&case);
        assert_eq!(trace.to_string().parse(), Ok(trace.clone()));
        assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
        let schedule = &plan.plan.schedule;
        assert_eq!(schedule.to_string().parse::<Schedule>().as_ref(), Ok(schedule));
        for file in [File::Trace(Box::new(trace)), File::Plan(Box::new(plan))] {
            let text = file.to_string();
            assert!(!is_json(&text));
            assert_eq!(text.parse(), Ok(file.clone()));
            let json = serde_json::to_string(&file).expect("plain data");
            assert!(is_json(&json));
            assert_eq!(serde_json::from_str::<File>(&json).expect("what was written"), file);
        }
        Ok(())
    };
    for seed in 0..6_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

/// Changed plans are still plans: they print and parse even though they are illegal.
#[test]
fn broken_plans_round_trip_too() {
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?.changed(u)?;
        let plan = plan_file(&case);
        // The text has a place for one offset beside each buffer, and for no other.
        if plan.plan.placement.offsets.len() == plan.plan.schedule.buffers.len() {
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        Ok(())
    };
    for seed in 0..4_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

#[test]
fn no_text_makes_the_parser_panic() {
    let words = [
        "elbowroom",
        "trace",
        "plan",
        "1",
        "name",
        "\"",
        "\"a b\"",
        "\\u{",
        "machine",
        "costs",
        "measured",
        "s0",
        "s1",
        "t0",
        "t1",
        "op0",
        "b0",
        "b1",
        "a0",
        "a1",
        "home",
        "host",
        "reads",
        "makes",
        "mutates",
        "reuses",
        "t0->t1",
        "->",
        "waits",
        "at",
        "0",
        "18446744073709551615",
        "99999999999999999999",
        "op4294967295",
        "t99999999999",
        "compute",
        "offload",
        "from",
        "\n",
        "#",
        "ü",
        "\u{2028}",
        "persistent",
        "forward",
        "pure",
        "rng",
        "nanos",
        "height",
    ];
    let mut case = |u: &mut Unstructured<'_>| {
        // A file with a few words put in, taken out or exchanged, or nothing but such words.
        let mut text = match u.int_in_range(0..=4)? {
            0 => String::new(),
            1 | 2 => trace_file_text(u)?,
            _ => plan_file(&Case::arbitrary(u)?).to_string(),
        };
        for _ in 0..u.int_in_range(1..=8)? {
            let (mut from, mut to) = (u.int_in_range(0..=text.len())?, 0);
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            to = (from + u.int_in_range(to..=12)?).min(text.len());
            while !text.is_char_boundary(to) {
                to += 1;
            }
            text.replace_range(from..to, u.choose(&words)?);
        }
        for result in [text.parse::<File>().map(drop), text.parse::<Schedule>().map(drop)] {
            if let Err(error) = result {
                assert!(error.to_string().chars().count() < 400, "{error}");
            }
        }
        let _ = serde_json::from_str::<File>(&text);
        Ok(())
    };
    for seed in 0..8_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

#[test]
fn no_numbers_make_the_checker_panic() {
    let numbers = [
        "0",
        "1",
        "3",
        "64",
        "4294967295",
        "9223372036854775807",
        "18446744073709551608",
        "18446744073709551615",
    ];
    let mut parsed = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let case = Case::arbitrary(u)?;
        let mut text = plan_file(&case).to_string();
        for _ in 0..u.int_in_range(1..=3)? {
            let digit = |c: char| c.is_ascii_digit();
            let starts: Vec<usize> = text.match_indices(digit).map(|(at, _)| at).collect();
            let start = *u.choose(&starts)?;
            let end = text[start..].find(|c| !digit(c)).map_or(text.len(), |length| start + length);
            text.replace_range(start..end, u.choose(&numbers)?);
        }
        let Ok(PlanFile { plan, mut machine }) = text.parse() else { return Ok(()) };
        parsed += 1;
        if u.ratio(1, 4)? {
            (machine.memory, machine.host_memory) = (Bytes::MAX, Bytes::MAX);
        }
        let _ = check_schedule(case.trace.clone(), machine.clone(), plan.schedule.clone(), Bytes::MAX);
        let _ = check(case.trace.clone(), machine, plan);
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..8_000u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(parsed > 500, "{parsed}");
}

fn trace_file_text(u: &mut Unstructured<'_>) -> arbtest::arbitrary::Result<String> {
    let case = Case::arbitrary(u)?;
    Ok(trace_file(u, &case)?.to_string())
}

#[test]
fn errors_say_where_and_what_to_do() {
    let cases = [
        (
            "",
            "line 1, column 1: expected `elbowroom trace 1` or `elbowroom plan 1` as the first line, but the line ends",
        ),
        (
            "elbowroom trace 2",
            "line 1, column 17: expected version 1 of the format, the only one that this program reads, but found `2`",
        ),
        (
            "elbowroom trace 1\nt0 s0 \"ü\" x",
            "line 2, column 11: expected the end of the line, but found `x`",
        ),
        (
            "elbowroom trace 1\ns1 64",
            "line 2, column 4: s1 stands here, but the next of its kind is number 0; ids count up from zero",
        ),
        (
            "elbowroom trace 1\ns0 -1",
            "line 2, column 4: expected a size in bytes, a whole number, but found `-1`",
        ),
        (
            "elbowroom trace 1\ns0 18446744073709551616",
            "line 2, column 4: expected a size in bytes, a number below 2^64, but found `18446744073709551616`",
        ),
        (
            "elbowroom trace 1\nt0 s0 \"open",
            "line 2, column 7: the quotes of the tensor's name are not closed; a string ends on its line",
        ),
        (
            "elbowroom trace 1\nt0 s0 \"a\\q\"",
            "line 2, column 9: this escape is unknown; use \\\" \\\\ \\n \\r \\t or \\u{...} with a character's number in hex",
        ),
        (
            "elbowroom trace 1\nname \"a\"\nname \"b\"",
            "line 3, column 1: expected each of these words once, but found `name`",
        ),
        (
            "elbowroom trace 1\nt0 s0 \"a\"",
            "the lines do not make a trace: t0 names s0, but there are only 0 of its kind",
        ),
        (
            "elbowroom trace 1\nop0 x \"x\" sideways",
            "line 2, column 11: expected the op's phase (forward, backward, update), but found `sideways`",
        ),
        (
            "elbowroom trace 1\nop0 x \"x\" forward pure after op0",
            "the lines do not make a trace: op0 is said to follow op0, which does not come before it",
        ),
        (
            "elbowroom trace 1\ncosts measured\nop0 x \"x\" forward pure",
            "there are 0 durations for 1 ops; give every op its duration, or none",
        ),
        (
            "elbowroom plan 1\nb0 64",
            "line 2, column 6: a plan says where every buffer lies; add `at` and its offset",
        ),
        (
            "elbowroom plan 1\nheight 0",
            "line 2, column 1: the plan ends here without its `trace` line; add it",
        ),
        (
            "elbowroom plan 1\na0 fly",
            "line 2, column 4: expected an action (compute, recompute, offload, prefetch, release, host-release), but found `fly`",
        ),
        (
            "elbowroom plan 1\na0 release b01",
            "line 2, column 12: expected an id like b7, below b4294967296 and without leading zeros, but found `b01`",
        ),
    ];
    for (text, message) in cases {
        let error = text.parse::<File>().expect_err(text);
        assert_eq!(error.to_string(), message, "{text}");
    }
    let error = "elbowroom plan 1".parse::<TraceFile>().expect_err("a plan");
    assert_eq!(error, FileError::Kind { found: "plan", wanted: "trace" });
    let machine = "elbowroom trace 1\nmachine \"m\" memory 1 align 3 host-memory 1 to-host 0 1 to-device 0 1 link shared \
                   flops-per-second 1 bytes-per-second 1 launch 0";
    let error = machine.parse::<TraceFile>().expect_err("a bad alignment");
    assert_eq!(
        error.to_string(),
        "the machine cannot be used: its alignment is 3; it must be a power of two"
    );
}

/// Files outlive the program that wrote them.
#[test]
fn formats_do_not_change_unnoticed() {
    let text = "elbowroom trace 1\nname \"one op\"\ncosts measured\ns0 64\ns1 8\nt0 s0 \"x\"\nt1 s0 \"x'\"\nt2 s1 \"y\"\n\
                op0 \"\" \"a \\\"b\\\"\" update rng 7 reads t0 makes t1 t2 mutates t0->t1 reuses t0->t2 workspace 16 flops 5 moved 80 \
                nanos 250\npersistent t0->t1\n";
    let file: File = text.parse().expect("a trace");
    assert_eq!(file.to_string(), text);
    let json = concat!(
        r#"{"elbowroom trace 1":{"trace":{"name":"one op","ops":[{"name":"a \"b\"","kind":"","phase":"update","#,
        r#""again":{"rng":{"stream":7}},"reads":[0],"outputs":[1,2],"mutates":[{"old":0,"new":1}],"#,
        r#""may_reuse":[{"input":0,"output":2}],"workspace":16,"work":{"flops":5,"moved":80}}],"#,
        r#""tensors":[{"name":"x","storage":0},{"name":"x'","storage":0},{"name":"y","storage":1}],"#,
        r#""storages":[{"bytes":64},{"bytes":8}],"persistent":[{"begin":0,"end":1}]},"#,
        r#""costs":{"nanos":[250],"source":"measured"},"machine":null}}"#,
    );
    assert_eq!(serde_json::to_string(&file).expect("plain data"), json);

    // Fingerprints are in every plan. An op that follows no other has none of the new words, and the fingerprint of before.
    let file: TraceFile = text.parse().expect("a trace");
    assert_eq!(file.trace.fingerprint().to_string(), "21f033676e0030be");
    let text = "elbowroom trace 1\nname \"two ops\"\nop0 x \"a\" forward never\nop1 x \"b\" forward pure after op0 workspace 4\n";
    let file: File = text.parse().expect("a trace");
    assert_eq!(file.to_string(), text);
    assert!(
        serde_json::to_string(&file)
            .expect("plain data")
            .contains(r#""may_reuse":[],"after":[0],"workspace":4"#)
    );

    let text = "elbowroom trace 1\nname \"halves\"\nmachine \"m\" memory 64 align 8 host-memory 1 to-host 2 3 to-device 4 5 link \
                shared flops-per-second 6 bytes-per-second 7 launch 8 half-flops-per-second 9\n\
                op0 x \"a\" forward pure flops 1 half-flops 2 moved 3\n";
    let file: File = text.parse().expect("a trace");
    assert_eq!(file.to_string(), text);
    let json = serde_json::to_string(&file).expect("plain data");
    assert!(json.contains(r#""work":{"flops":1,"half_flops":2,"moved":3}"#), "{json}");
    assert!(
        json.contains(r#""flops_per_second":6,"half_flops_per_second":9,"bytes_per_second":7"#),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<File>(&json).expect("its own output"), file);

    let text = "elbowroom plan 1\ntrace 00000000000000ff\nmachine \"m\" memory 64 align 8 host-memory 1 to-host 2 3 to-device 4 5 link \
                shared flops-per-second 6 bytes-per-second 7 launch 8\nheight 64\nb0 64 at 0\nhome b0 host\n\
                a0 compute op0 reads b0 writes b0 workspace b1\na1 offload t1 from b0 waits a0\na2 prefetch t1 to b2\n\
                a3 release b2\na4 host-release t1\na5 recompute op0 waits a0 a1\n";
    let file: File = text.parse().expect("a plan");
    assert_eq!(file.to_string(), text);
    let json = concat!(
        r#"{"elbowroom plan 1":{"plan":{"trace":"00000000000000ff","schedule":{"buffers":[{"bytes":64}],"steps":["#,
        r#"{"action":{"compute":{"op":0,"reads":[0],"writes":[0],"workspace":1}},"waits":[]},"#,
        r#"{"action":{"offload":{"value":1,"from":0}},"waits":[0]},{"action":{"prefetch":{"value":1,"to":2}},"waits":[]},"#,
        r#"{"action":{"release":{"buffer":2}},"waits":[]},{"action":{"host-release":{"value":1}},"waits":[]},"#,
        r#"{"action":{"recompute":{"op":0,"reads":[],"writes":[],"workspace":null}},"waits":[0,1]}],"#,
        r#""boundary":[{"device":0,"host":true}]},"placement":{"offsets":[0],"height":64}},"#,
        r#""machine":{"name":"m","memory":64,"align":8,"host_memory":1,"to_host":{"latency":2,"rate":3},"#,
        r#""to_device":{"latency":4,"rate":5},"shared_link":true,"flops_per_second":6,"bytes_per_second":7,"launch":8}}}"#,
    );
    assert_eq!(serde_json::to_string(&file).expect("plain data"), json);
    let error =
        serde_json::from_str::<File>(&json.replace("\"rate\":5", "\"rate\":0")).expect_err("a rate of zero");
    assert!(error.to_string().contains("its rate to the device is zero"), "{error}");
}

/// What can be made can be written and read: a name is refused where it enters, not by the reader of the file.
#[test]
fn a_name_is_at_most_as_long_as_files_allow() {
    let text = "elbowroom trace 1\ns0 8\nt0 s0 \"t\"\nop0 relu \"op\" forward pure makes t0\n";
    let small: TraceData = text.parse::<File>().and_then(File::into_trace).unwrap().trace.into();
    let (most, more) = ("x".repeat(LONGEST_NAME), "x".repeat(LONGEST_NAME + 1));
    for name in 0..4 {
        let named = |long: &String| {
            let mut data = small.clone();
            let (tensor, op) = (&mut data.tensors[TensorId(0)], &mut data.ops[OpId(0)]);
            let names = [&mut data.name, &mut tensor.name, &mut op.name, &mut op.kind];
            names.into_iter().nth(name).unwrap().clone_from(long);
            Trace::new(data)
        };
        let file = File::Trace(Box::new(TraceFile::new(named(&most).unwrap(), None, None).unwrap()));
        assert_eq!(file.to_string().parse::<File>().unwrap(), file);
        assert!(matches!(named(&more), Err(TraceError::LongName(_))), "{name}");
    }
    let mut machine = Case::arbitrary(&mut Unstructured::new(&[7; 4096])).unwrap().machine;
    machine.name = most;
    assert_eq!(machine.validate(), Ok(()));
    machine.name = more;
    assert_eq!(machine.validate(), Err(MachineError::LongName));
}
