//! While a planned iteration runs nothing is allocated, on no thread.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::DirEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use elbowroom_engine::kernels::algorithms;
use elbowroom_engine::{HostOptions, HostPlace, Session};
use elbowroom_graph::op::Algorithm;
use elbowroom_graph::zoo::{self, Options};
use elbowroom_graph::{Graph, Precision};
use elbowroom_ir::check::check;

use support::{convnet, counts, drawn, fill, threads, trace, transformer};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The networks of the table of speeds, in small. (VGG-16 cannot be small; it has no kind of op that these have not.)
fn networks() -> impl Iterator<Item = Graph> {
    let options = [
        ("resnet18", Options::new(2).width(8)),
        ("lstm", Options::new(3).length(4)),
        ("gpt", Options::new(2).length(9).layers(1)),
    ];
    let built = options.map(|(name, options)| zoo::build(name, &options).unwrap());
    let bf16 = built.clone().map(|graph| graph.in_precision(Precision::Bf16).unwrap());
    built.into_iter().chain(bf16)
}

/// The same graph, its convolutions computed by all algorithms in turn.
fn mixed(mut graph: Graph) -> Graph {
    for (index, op) in graph.nodes.ids().enumerate() {
        let kind = &graph.nodes[op].kind;
        let algorithms: Vec<Algorithm> = algorithms(kind).collect();
        if let Some(algorithm) = (!algorithms.is_empty()).then(|| algorithms[index % algorithms.len()]) {
            graph.nodes[op].kind = kind.computed_by(algorithm).unwrap();
        }
    }
    graph
}

/// Waits until every other thread sleeps. A thread allocates when it starts, which on a busy machine may be behind the first iterations.
fn wait_for_threads() {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let asleep = |task: std::io::Result<DirEntry>| {
        let task = task.unwrap();
        // `pid (name) state ...`; a thread may have ended meanwhile.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| state == 'S') || own.file_name() == Some(&task.file_name())
    };
    while !std::fs::read_dir("/proc/self/task").unwrap().all(asleep) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The only test of this binary: another one running meanwhile would be counted too.
#[test]
fn planned_iterations_allocate_nothing() {
    let small = [convnet(), transformer(), mixed(convnet())];
    for (number, graph) in small.into_iter().chain(networks()).enumerate() {
        let (trace, graph) = (trace(&graph), Arc::new(graph));
        let (machine, plan) = drawn(&trace, number as u64, |plan| {
            let ([_, stores, loads], recomputed) = counts(plan);
            stores > 2 && loads > 2 && recomputed > 2
        });
        // The harness allocates once a test has taken a minute, so that the larger networks run a few times only.
        let last = if graph.nodes.len() < 60 { 103 } else { 6 };
        let checked = Arc::new(check(trace, machine, plan).unwrap());
        for (place, count) in [(HostPlace::Memory, 1), (HostPlace::Folder(std::env::temp_dir()), 2)] {
            let options = threads(count).host(HostOptions::default().place(place));
            let mut session = Session::new(graph.clone(), checked.clone(), options).unwrap();
            fill(&mut session, 0);
            for iteration in 0..3 {
                session.run_iteration(iteration).unwrap();
            }
            wait_for_threads();
            let before = ALLOCATIONS.load(Relaxed);
            for iteration in 3..last {
                session.run_iteration(iteration).unwrap();
            }
            assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{} on {count} threads", graph.name);
        }
    }
}
