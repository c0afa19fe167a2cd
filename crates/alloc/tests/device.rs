//! The device on demand, and with planners that are of no use: contents survive, the limit holds, and misuse is an error.

use std::cell::Cell;
use std::rc::Rc;

use elbowroom_alloc::device::{BlockHandle, Device, DeviceError, SwapPlanner};
use elbowroom_ir::Bytes;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::trace::Trace;

#[test]
fn contents_survive_leaving_and_returning() {
    let mut device = Device::new(64 * 10, None);
    let blocks: Vec<BlockHandle> = (0..30).map(|_| device.malloc(100)).collect();
    for (i, &block) in blocks.iter().enumerate() {
        device.exec(|_, writes| writes[0].fill(i as u8), &[], &[block]).unwrap();
    }
    for round in 0..3 {
        for (i, pair) in blocks.windows(2).enumerate() {
            let check = |reads: &[&[u8]], writes: &mut [&mut [u8]]| {
                assert!(reads[0].iter().all(|&byte| byte == i as u8 + round));
                assert!(writes[0].iter().all(|&byte| byte == i as u8 + 1 + round));
            };
            device.exec(check, &[pair[0]], &[pair[1]]).unwrap();
        }
        for &block in &blocks {
            device.exec(|_, writes| writes[0].iter_mut().for_each(|byte| *byte += 1), &[], &[block]).unwrap();
        }
    }
    let stats = device.stats();
    assert!(stats.device_bytes <= device.limit() && stats.peak_live == 3_000, "{stats:?}");
    assert!(stats.to_host > 0 && stats.to_device > 0);
}

#[test]
fn a_new_block_is_zero_even_where_others_were() {
    let mut device = Device::new(256, None);
    for _ in 0..10 {
        let block = device.malloc(200);
        let operation = |_: &[&[u8]], writes: &mut [&mut [u8]]| {
            assert!(writes[0].iter().all(|&byte| byte == 0));
            assert_eq!(writes[0].as_ptr() as usize % 64, 0);
            writes[0].fill(7);
        };
        device.exec(operation, &[], &[block]).unwrap();
        device.free(block).unwrap();
    }
}

#[test]
fn misuse_is_an_error() {
    let mut device = Device::new(256, None);
    let (one, other) = (device.malloc(128), device.malloc(200));
    let needed = DeviceError::TooSmall { needed: 384, limit: 256 };
    assert_eq!(device.exec(|_, _| (), &[one], &[other]), Err(needed));
    assert_eq!(device.exec(|_, _| (), &[], &[one, one]), Err(DeviceError::Twice(one)));
    assert_eq!(device.exec(|_, _| (), &[one], &[one]), Err(DeviceError::Twice(one)));
    assert_eq!(device.exec(|reads, _| assert_eq!(reads.len(), 2), &[one, one], &[]), Ok(()));
    assert_eq!(device.free(one), Ok(()));
    assert_eq!(device.free(one), Err(DeviceError::Unknown(one)));
    assert_eq!(device.exec(|_, _| (), &[one], &[]), Err(DeviceError::Unknown(one)));
    let huge = device.malloc(usize::MAX);
    assert!(matches!(device.exec(|_, _| (), &[huge], &[]), Err(DeviceError::TooSmall { .. })));
}

#[test]
fn an_operation_that_panics_leaves_what_it_wrote() {
    let mut device = Device::new(128, None);
    let (one, other) = (device.malloc(128), device.malloc(128));
    for &block in &[one, other, one] {
        device.exec(|_, writes| writes[0].fill(1), &[], &[block]).unwrap();
    }
    let mut panics = || {
        device.exec(
            |_, writes| {
                writes[0].fill(2);
                panic!("an operation's own")
            },
            &[],
            &[one],
        )
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut panics)).is_err());
    // It leaves and returns with its latest contents.
    for (block, byte) in [(other, 1), (one, 2)] {
        device.exec(|reads, _| assert!(reads[0].iter().all(|&b| b == byte)), &[block], &[]).unwrap();
    }
}

/// Has no plan for anybody, and counts how often it is asked.
struct Useless(Rc<Cell<u32>>);

impl SwapPlanner for Useless {
    fn plan(&self, _: &Trace, _: &Costs, _: Bytes, _: Bytes) -> Option<CheckedPlan> {
        self.0.set(self.0.get() + 1);
        None
    }
}

#[test]
fn a_planner_that_has_no_plan_is_asked_ever_more_rarely() {
    let asked = Rc::new(Cell::new(0));
    let mut device = Device::new(1 << 10, Some(Box::new(Useless(asked.clone()))));
    let blocks: Vec<BlockHandle> = (0..12).map(|_| device.malloc(200)).collect();
    let rounds = if cfg!(miri) { 40 } else { 2_000 };
    for _ in 0..rounds {
        for &block in &blocks {
            device.exec(|_, writes| writes[0][0] = writes[0][0].wrapping_add(1), &[], &[block]).unwrap();
        }
    }
    assert!((1..=20).contains(&asked.get()), "{}", asked.get());
    for &block in &blocks {
        device.exec(|reads, _| assert_eq!(reads[0][0], (rounds % 256) as u8), &[block], &[]).unwrap();
    }
    assert_eq!((device.stats().planned, device.stats().plans), (0, 0));
}
