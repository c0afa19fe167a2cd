//! While a planned iteration runs nothing is allocated, on no thread.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use elbowroom_engine::{HostOptions, HostPlace, Session, SessionOptions};
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

/// The only test of this binary: another one running meanwhile would be counted too.
#[test]
fn planned_iterations_allocate_nothing() {
    for (number, graph) in [convnet(), transformer()].into_iter().enumerate() {
        let (trace, graph) = (trace(&graph), Arc::new(graph));
        let (machine, plan) = drawn(&trace, number as u64, |plan| {
            let ([_, stores, loads], recomputed) = counts(plan);
            stores > 2 && loads > 2 && recomputed > 2
        });
        let checked = Arc::new(check(trace, machine, plan).unwrap());
        for (place, count) in [(HostPlace::Memory, 1), (HostPlace::Folder(std::env::temp_dir()), 2)] {
            let options = SessionOptions { host: HostOptions { place, link: None }, ..threads(count) };
            let mut session = Session::new(graph.clone(), checked.clone(), options).unwrap();
            fill(&mut session, 0);
            for iteration in 0..3 {
                session.run_iteration(iteration).unwrap();
            }
            let before = ALLOCATIONS.load(Relaxed);
            for iteration in 3..103 {
                session.run_iteration(iteration).unwrap();
            }
            assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{} on {count} threads", graph.name);
        }
    }
}
