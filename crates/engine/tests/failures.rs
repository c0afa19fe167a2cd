//! A failure returns one error and stops all streams.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_engine::{
    ChaosOptions, EngineError, HostError, HostOptions, HostPlace, Session, reserved_host_bytes,
};
use elbowroom_ir::Bytes;
use elbowroom_ir::check::check;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::timeline::Span;

use support::{convnet, counts, drawn, fill, run, threads, trace, transformer};

fn folder(path: &Path) -> HostOptions {
    HostOptions::default().place(HostPlace::Folder(path.to_owned()))
}

#[test]
fn any_copy_may_fail_and_the_session_says_so_once_and_stops() {
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (machine, plan) = drawn(&trace, 3, |plan| counts(plan).0[1] > 3 && counts(plan).0[2] > 3);
    let ([_, stores, loads], _) = counts(&plan);
    let checked = Arc::new(check(trace, machine, plan).unwrap());
    for copy in 0..(stores + loads) as u64 {
        let chaos = ChaosOptions::default()
            .seed(copy)
            .longest_delay(Duration::from_micros(50))
            .poison(true)
            .failing_copy(copy);
        let options = threads(2).chaos(chaos);
        let mut session = Session::new(graph.clone(), checked.clone(), options).unwrap();
        fill(&mut session, 0);
        let error = session.run_iteration(0).unwrap_err();
        assert!(matches!(error, EngineError::Copy { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("could not copy") && !text.contains('\n'), "{text}");
        assert!(matches!(session.run_iteration(1), Err(EngineError::Broken)));
        assert!(matches!(session.digests(), Err(EngineError::Broken)), "half an iteration is never saved");
    }
}

/// Set in the copy of this program that may not write large files.
const LIMITED: &str = "ELBOWROOM_TEST_FILE_LIMIT";

/// A limit on the size of files stands for a full disk: reserving the blocks of a file fails in the same call. The limit holds for a whole
/// process, so the test runs once more in a process of its own, in which exceeding the limit is an error and not a signal.
#[test]
#[cfg_attr(not(unix), ignore = "limits the size of files with a Unix shell")]
fn a_full_disk_is_found_before_the_first_iteration() {
    if std::env::var_os(LIMITED).is_none() {
        let own = std::env::current_exe().unwrap();
        let output = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact \"$1\" --nocapture"])
            .arg(own)
            .arg("a_full_disk_is_found_before_the_first_iteration")
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (machine, plan) = drawn(&trace, 4, |plan| counts(plan).0[1] > 10);
    let options = threads(1).host(folder(place.path()));
    let error = run(&graph, &trace, machine, plan, options, 1).map(|_| ()).unwrap_err();
    assert!(matches!(error, EngineError::Host(HostError::Reserve { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains(&place.path().display().to_string()) && text.contains("bytes"), "{text}");
}

/// The checker limits the sum of host copies; each lies in one range of bytes, so that a session may have to reserve more.
#[test]
fn host_copies_that_do_not_fit_in_host_memory_are_refused() {
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let legal_but_too_small = (0..200).find_map(|number| {
        let (machine, plan) = drawn(&trace, number, |plan| counts(plan).0[1] > 5);
        let ample = Arc::new(check(trace.clone(), machine.clone(), plan.clone()).unwrap());
        let host_memory = reserved_host_bytes(&ample).saturating_sub(Bytes(1));
        let tight = check(trace.clone(), Machine { host_memory, ..machine }, plan).ok()?;
        Some((ample, Arc::new(tight)))
    });
    let (ample, tight) = legal_but_too_small.expect("some plan leaves holes between its host copies");
    let refused = Session::new(graph.clone(), tight.clone(), threads(1)).map(|_| ()).unwrap_err();
    assert!(matches!(refused, EngineError::Host(HostError::Limit { .. })), "{refused}");
    let mut session = Session::new(graph.clone(), ample, threads(1)).unwrap();
    let refused = session.set_plan(&graph, &tight).unwrap_err();
    assert!(matches!(refused, EngineError::Host(HostError::Limit { .. })), "{refused}");
    fill(&mut session, 0);
    session.run_iteration(0).expect("the session is unchanged");
}

#[test]
fn an_unusable_spill_folder_is_named() {
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (machine, plan) = drawn(&trace, 4, |plan| counts(plan).0[1] > 0);
    let options = threads(1).host(folder(Path::new("/proc/elbowroom")));
    let error = run(&graph, &trace, machine, plan, options, 1).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("/proc/elbowroom"), "{error}");
}

#[test]
fn plans_of_another_network_and_values_of_another_size_are_refused() {
    let (convnet, transformer) = (convnet(), Arc::new(transformer()));
    let trace = trace(&convnet);
    let (machine, plan) = drawn(&trace, 5, |_| true);
    let checked = Arc::new(check(trace, machine, plan).unwrap());
    let refused = Session::new(transformer, checked.clone(), threads(1)).map(|_| ());
    assert!(matches!(refused, Err(EngineError::ForeignPlan { .. })));
    let mut session = Session::new(Arc::new(convnet), checked, threads(1)).unwrap();
    let error = session.write_persistent(0, &[0; 3]).unwrap_err();
    assert!(error.to_string().contains("conv1.weight has 864 bytes, but 3"), "{error}");
}

/// On a slower link, copies take the predicted time, and ops run meanwhile.
#[test]
fn copies_over_a_slow_link_take_their_time_and_overlap_with_ops() {
    let graph = convnet();
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let channel = elbowroom_ir::machine::Channel::with_rate(4_000_000);
    let mut overlap = 0;
    for number in 0..4 {
        let (machine, plan) =
            drawn(&trace, 10 + number, |plan| counts(plan).0[1] > 4 && counts(plan).0[2] > 4);
        let host = HostOptions::default().place(HostPlace::Memory).link((channel, channel));
        let options = threads(1).host(host);
        let start = Instant::now();
        let (_, session) = run(&graph, &trace, machine, plan, options, 1).unwrap();
        let timeline = session.timeline();
        assert!(timeline.iteration.get() <= start.elapsed().as_nanos() as u64);
        assert!(timeline.traffic.to_host.get() > 0 && timeline.traffic.to_device.get() > 0);
        for (stream, bytes) in
            [(Stream::ToHost, timeline.traffic.to_host), (Stream::ToDevice, timeline.traffic.to_device)]
        {
            let spans = timeline.spans.iter().filter(|span| span.stream == stream);
            let busy: u64 = spans.map(|span| (span.end - span.start).get()).sum();
            assert!(busy >= channel.time(bytes).get(), "{stream:?}: {busy} ns for {bytes}");
        }
        let (ops, copies): (Vec<&Span>, Vec<&Span>) =
            timeline.spans.iter().partition(|span| span.stream == Stream::Compute);
        overlap += ops
            .iter()
            .filter(|op| copies.iter().any(|copy| op.start < copy.end && copy.start < op.end))
            .count();
    }
    assert!(overlap > 0, "no op ran while a copy was under way");
}
