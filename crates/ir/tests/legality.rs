//! Every rule of the checker is broken here, by edits of one legal plan that stand in `legality/cases.txt`. With `BLESS=1` in the
//! environment the answers in that file are written anew, to be read over.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use elbowroom_ir::check::{Illegal, Rule, check, check_schedule};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::schedule::{Action, Step};
use elbowroom_ir::text::{PlanFile, TraceFile};
use elbowroom_ir::{ActionId, BufferId, Bytes, OpId};

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "legality", name].iter().collect()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The plan's text, edited by the case's `-` and `+` lines: what follows a `-` line goes where it was.
fn edited(base: &str, edits: &[&str]) -> String {
    let mut lines: Vec<&str> = base.lines().collect();
    let mut at = 0;
    for edit in edits {
        if let Some(old) = edit.strip_prefix("- ") {
            let found = lines.iter().position(|line| *line == old);
            at = found.unwrap_or_else(|| panic!("no line `{old}` in the plan"));
            lines.remove(at);
        } else if let Some(new) = edit.strip_prefix("+ ") {
            lines.insert(at, new);
            at += 1;
        }
    }
    lines.join("\n")
}

fn answer<T>(result: Result<T, Illegal>) -> String {
    match result {
        Ok(_) => "legal".to_owned(),
        Err(illegal) => illegal.to_string(),
    }
}

#[test]
fn every_rule_is_enforced() {
    let trace = Arc::new(read("small.trace").parse::<TraceFile>().expect("small.trace").trace);
    let cases = read("cases.txt");
    let base = read("small.plan");
    let mut blessed = String::new();
    let mut edits: Vec<&str> = Vec::new();
    let mut title = "";
    let mut rules_broken = [false; 11];
    for line in cases.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            (title, edits) = (text, Vec::new());
        } else if line.starts_with("- ") || line.starts_with("+ ") {
            edits.push(line);
        }
        let Some((question, _)) = line
            .split_once(": ")
            .filter(|(q, _)| q.split(' ').next().is_some_and(|q| q == "plan" || q == "schedule"))
        else {
            writeln!(blessed, "{line}").expect("a string");
            continue;
        };
        let text = edited(&base, &edits);
        let mut file: PlanFile = text.parse().unwrap_or_else(|error| panic!("{title}: {error}"));
        if file.plan.trace.0 == 0 {
            file.plan.trace = trace.fingerprint();
        }
        let (found, first) = match question.strip_prefix("schedule ") {
            None => {
                let result = check(trace.clone(), file.machine, file.plan);
                let first = result.as_ref().err().map(|illegal| illegal.first().rule);
                (answer(result), first)
            }
            Some(limit) => {
                let limit = Bytes(limit.parse().expect("a limit"));
                let result = check_schedule(trace.clone(), file.machine, file.plan.schedule, limit);
                let first = result.as_ref().err().map(|illegal| illegal.first().rule);
                (answer(result), first)
            }
        };
        if let Some(rule) = first {
            assert!(title.starts_with(&format!("{rule}:")), "{title}: {found}");
            rules_broken[rule as usize] = true;
        }
        writeln!(blessed, "{question}: {found}").expect("a string");
    }
    assert!(rules_broken[1..].iter().all(|&broken| broken), "a rule that no case breaks: {rules_broken:?}");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path("cases.txt"), &blessed).expect("cases.txt");
    }
    for (blessed, line) in blessed.lines().zip(cases.lines()) {
        assert_eq!(blessed, line);
    }
}

/// Ops that depend on one another although no bytes pass between them.
#[test]
fn an_op_is_computed_after_those_that_it_has_to_follow() {
    let text = read("small.trace");
    let report = text.lines().find(|line| line.starts_with("op5 ")).expect("the last op");
    let text = text.replace(report, &format!("{report} after op3 op4"));
    let trace = Arc::new(text.parse::<TraceFile>().expect("a trace").trace);
    assert_eq!(trace.ops()[OpId(5)].after, [OpId(3), OpId(4)]);
    let mut file: PlanFile = read("small.plan").parse().expect("small.plan");
    file.plan.trace = trace.fingerprint();
    check(trace.clone(), file.machine.clone(), file.plan.clone()).expect("in the trace's order");
    // Nothing but `after` forbids to report before the update.
    let (update, report) = (ActionId(14), ActionId(15));
    let steps = &mut file.plan.schedule.steps;
    (steps[update], steps[report]) = (steps[report].clone(), steps[update].clone());
    let illegal = check(trace, file.machine, file.plan).expect_err("another order");
    assert_eq!(
        illegal.first().to_string(),
        "rule L6 is broken at a14: op5 is computed before op4, which it has to follow"
    );
}

#[test]
fn an_unusable_machine_and_a_thousand_mistakes_are_answered_shortly() {
    let trace = Arc::new(read("small.trace").parse::<TraceFile>().expect("small.trace").trace);
    let mut file: PlanFile = read("small.plan").parse().expect("small.plan");
    file.plan.trace = trace.fingerprint();
    for align in [0, 3] {
        let machine = Machine { align: Bytes(align), ..file.machine.clone() };
        let illegal = check(trace.clone(), machine, file.plan.clone()).expect_err("no alignment");
        assert_eq!(illegal.first().rule, Rule::L4);
    }
    let release = Step { action: Action::Release { buffer: BufferId(u32::MAX) }, waits: Vec::new() };
    let steps = std::iter::repeat_n(release, 1_000).collect();
    file.plan.schedule.steps = steps;
    let illegal = check(trace, file.machine, file.plan).expect_err("nonsense");
    assert_eq!((illegal.violations.len(), illegal.unlisted), (50, 1_000 + 6 + 7 - 50));
}
