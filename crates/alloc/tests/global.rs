//! The global allocator under a real program: this test itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use elbowroom_alloc::{PROCESS, Planned, ProcessStats};

#[global_allocator]
static ALLOCATOR: Planned = Planned::system();

/// One "iteration": vectors of many sizes that live for some steps, each full of its own number.
fn iterate(seed: u8) -> u64 {
    let mut living: VecDeque<Vec<u8>> = VecDeque::new();
    let mut sum = 0u64;
    for i in 0..40usize {
        let mark = seed.wrapping_add(i as u8);
        living.push_back(vec![mark; 20_000 + 3_000 * (i * 7 % 11)]);
        if living.len() > 6 {
            let oldest = living.pop_front().unwrap();
            let expected = seed.wrapping_add((i - 6) as u8);
            assert!(oldest.iter().all(|&byte| byte == expected), "somebody wrote to a living block");
            sum += oldest.len() as u64;
        }
    }
    sum
}

/// One test function: the allocator and its counts are the whole process's.
#[test]
fn a_program_is_planned_and_stays_correct() {
    let before = PROCESS.stats();
    for i in 0..50 {
        assert_eq!(iterate(i), iterate(i + 1));
    }
    let after = PROCESS.stats();
    let planned = after.large.planned - before.large.planned;
    assert!(planned > 3_000, "{after:?}");

    // Zeroed, grown and shrunk blocks hold what they should.
    for i in 0..50usize {
        let mut zeros = vec![0u8; 30_000];
        assert!(zeros.iter().all(|&byte| byte == 0));
        zeros.fill(9);
        let mut growing = vec![i as u8; 17_000];
        growing.resize(90_000, 1);
        assert!(growing[..17_000].iter().all(|&byte| byte == i as u8));
        growing.truncate(20);
        growing.shrink_to_fit();
        assert!(growing.iter().all(|&byte| byte == i as u8));
    }

    threads_have_sequences_of_their_own();
    blocks_freed_by_other_threads_come_back();
    idle_arenas_are_discarded_while_others_are_in_use();
}

/// Far more often than a watching thread does, so that arenas become idle between any two requests.
fn idle_arenas_are_discarded_while_others_are_in_use() {
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                PROCESS.discard_idle();
            }
        })
    };
    let before = PROCESS.stats();
    let workers: Vec<_> =
        (0..3u8).map(|t| std::thread::spawn(move || (0..100).map(|i| iterate(i ^ t)).sum::<u64>())).collect();
    let sums: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert!(sums.iter().all(|&sum| sum == sums[0]));
    stop.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    let after = PROCESS.stats();
    assert!(after.large.planned > before.large.planned, "{before:?} {after:?}");
    // Two looks without a request in between: everything is idle, and the contents of live blocks stay.
    let kept: Vec<Vec<u8>> = (0..10u8).map(|i| vec![i; 50_000]).collect();
    for _ in 0..3 {
        PROCESS.discard_idle();
    }
    assert!(kept.iter().enumerate().all(|(i, block)| block.iter().all(|&byte| byte as usize == i)));
}

fn threads_have_sequences_of_their_own() {
    let before = PROCESS.stats();
    let workers: Vec<_> = (0..4u8)
        .map(|t| std::thread::spawn(move || (0..40).map(|i| iterate(t.wrapping_mul(50) + i)).sum::<u64>()))
        .collect();
    let sums: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert!(sums.iter().all(|&sum| sum == sums[0]));
    let after: ProcessStats = PROCESS.stats();
    assert!(after.large.planned - before.large.planned > 4 * 30 * 40, "{before:?} {after:?}");
}

fn blocks_freed_by_other_threads_come_back() {
    let (send, receive) = mpsc::sync_channel::<Vec<u8>>(4);
    let consumer = std::thread::spawn(move || {
        let mut sum = 0u64;
        for block in receive {
            assert!(block.iter().all(|&byte| byte == block[0]), "somebody wrote to a living block");
            sum += u64::from(block[0]);
        }
        sum
    });
    let mut expected = 0u64;
    for i in 0..4_000usize {
        expected += (i % 250) as u64;
        send.send(vec![(i % 250) as u8; 20_000 + 1_000 * (i % 20)]).unwrap();
    }
    drop(send);
    assert_eq!(consumer.join().unwrap(), expected);
}
