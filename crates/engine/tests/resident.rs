//! The process stays small: with values spilled to a file, resident memory is the arena and little else.

mod support;

use std::sync::Arc;

use elbowroom_engine::{HostOptions, HostPlace};
use elbowroom_ir::Bytes;

use support::{convnet_of, counts, drawn, run, threads, trace};

/// What the process may use in addition to the arena: code, stacks, batches, and pieces of parameters on their way.
const OTHER: u64 = 12 << 20;

/// The largest resident memory that this process has had.
fn high_water() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// The only test of this binary: another one running meanwhile would be counted too.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads the resident memory from /proc")]
fn spilled_values_take_no_memory() {
    let before = high_water();
    let graph = convnet_of(128, 32);
    let (trace, graph) = (trace(&graph), Arc::new(graph));
    let (machine, plan) = drawn(&trace, 8, |plan| counts(plan).0[1] > 10);
    let limit = machine.memory;
    let host = HostOptions::default().place(HostPlace::Folder(std::env::temp_dir()));
    let (outcome, session) = run(&graph, &trace, machine, plan, threads(2).host(host), 2).unwrap();
    assert!(outcome.losses.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    let (host, after) = (session.host_bytes(), high_water());
    assert!(host.get() > 2 * OTHER, "only {host} are spilled, which would show nothing");
    let allowed = limit + Bytes(before + OTHER);
    assert!(after <= allowed.get(), "{} resident, {limit} of arena, {host} spilled", Bytes(after));
    assert_eq!(session.first_overwritten(), None);
}
