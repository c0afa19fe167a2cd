//! A plan that was proved for another trace is refused, also if somebody has made that trace to have the fingerprint of the graph's.

mod support;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use elbowroom_engine::{EngineError, Session};
use elbowroom_ir::check::check;
use elbowroom_ir::trace::{Trace, TraceData};
use elbowroom_ir::{Bytes, Id, OpId};

use support::{convnet, drawn, threads, trace};

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// Free bytes of a name.
const FREE: usize = 16;

/// Short vectors d with sum d_i PRIME^(FREE - i) = 0 modulo 2^64, a basis of all of them (reduced by the algorithm of Lenstra, Lenstra and
/// Lovász). Changing the low byte of the states between 16 bytes by such differences leads to the same state.
#[rustfmt::skip]
const BASIS: [[i64; FREE]; FREE] = [
    [-5, 0, 2, -8, 3, 0, 7, 7, 2, -2, -8, -4, -5, -1, 6, 2],
    [-1, 6, -6, 0, -5, -4, 6, 3, 1, 6, -5, -4, -6, 9, 4, 4],
    [5, -3, 9, 3, 3, -5, 0, -11, 3, -9, 6, 3, -2, 1, -1, -8],
    [3, -2, -6, 4, -2, -5, -7, -8, 10, -4, 4, 1, -2, -3, 7, 4],
    [-3, 11, -5, 6, -5, 7, -4, 5, -11, -2, -1, -7, 0, 5, -6, 0],
    [-2, 5, -6, -8, -2, -5, 5, -1, -1, 14, -4, -6, 1, -3, -2, -3],
    [6, -1, 1, -1, -7, -7, 1, 2, 2, -3, 5, 1, -1, -1, -7, 10],
    [-2, 2, 5, -8, -7, -7, 3, 6, 0, 2, 9, 1, -4, 8, 1, -3],
    [-7, -4, -9, 9, 0, -4, -2, 0, 6, 2, 7, 4, -8, 4, 3, -5],
    [-3, 4, 2, -1, 1, -2, 2, 1, 1, -7, 7, -2, 3, 2, 15, 9],
    [7, 7, -1, -1, 3, 2, -6, -13, 7, 12, -2, 2, -2, 2, -6, 5],
    [2, -5, -3, -5, 5, 1, -3, -6, 0, 6, 2, 6, -11, -4, 10, 1],
    [3, 2, 1, 12, -3, 5, 4, 11, 0, 1, 0, -11, 0, 1, 2, -2],
    [-9, 7, 5, 1, -4, -1, -2, 13, -3, -7, -7, 7, 4, -2, 8, -2],
    [-10, -7, 9, -3, 0, 11, 8, -7, 3, -7, -6, -1, 0, 2, 1, -3],
    [-5, -10, 4, 0, 5, -4, -8, 8, -10, -5, -3, -5, -5, 0, 3, -7],
];

/// What a fingerprint is the hash of.
#[derive(Default)]
struct Hashed(Vec<u8>);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn write_u32(&mut self, number: u32) {
        self.write(&number.to_le_bytes());
    }
    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
    fn finish(&self) -> u64 {
        fnv(OFFSET, &self.0)
    }
}

fn hashed(data: &TraceData) -> Vec<u8> {
    let mut hasher = Hashed::default();
    data.hash(&mut hasher);
    hasher.0
}

fn fnv(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Short differences with sum d_i PRIME^(FREE - i) = `sum`: a long solution, less what of the basis is near it (Babai's nearest plane).
fn differences(sum: u64) -> [i64; FREE] {
    let mut inverse = PRIME;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(PRIME.wrapping_mul(inverse)));
    }
    let mut rest = [0i128; FREE];
    rest[FREE - 1] = i128::from(sum.wrapping_mul(inverse));
    let basis = BASIS.map(|row| row.map(|number| number as f64));
    let dot = |a: &[f64; FREE], b: &[f64; FREE]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut planes = basis;
    for i in 0..FREE {
        for j in 0..i {
            let share = dot(&basis[i], &planes[j]) / dot(&planes[j], &planes[j]);
            let below = planes[j];
            planes[i].iter_mut().zip(below).for_each(|(plane, below)| *plane -= share * below);
        }
    }
    // Each pass gains the digits of a double.
    for _ in 0..4 {
        for i in (0..FREE).rev() {
            let times = dot(&rest.map(|number| number as f64), &planes[i]) / dot(&planes[i], &planes[i]);
            for (rest, &number) in rest.iter_mut().zip(&BASIS[i]) {
                *rest -= times.round() as i128 * i128::from(number);
            }
        }
    }
    rest.map(|number| i64::try_from(number).unwrap())
}

/// A name that leads from one state to another.
fn name_between(from: u64, to: u64) -> String {
    let power = (0..FREE).fold(1u64, |power, _| power.wrapping_mul(PRIME));
    let between = |prefix: String| {
        let mut state = fnv(from, prefix.as_bytes());
        let mut name = prefix.into_bytes();
        for difference in differences(to.wrapping_sub(state.wrapping_mul(power))) {
            let low = (state & 0xff) as i64;
            let next = low + difference;
            // The name is text: its bytes are below 128.
            let byte = (0..256).contains(&next).then_some((low ^ next) as u8).filter(u8::is_ascii)?;
            state = fnv(state, &[byte]);
            name.push(byte);
        }
        (state == to).then(|| String::from_utf8(name).unwrap())
    };
    (1000..9999)
        .find_map(|prefix| between(prefix.to_string()))
        .expect("one of a few thousand prefixes leads there")
}

/// Another trace with the fingerprint of this one.
fn collision(trace: &Trace) -> Trace {
    let mut data = trace.data().clone();
    let first = OpId::new(0);
    data.ops[first].workspace += Bytes(64);
    let last = data.tensors.ids().last().unwrap();
    let unique = "the name to be found";
    data.tensors[last].name = unique.to_owned();
    let (ours, theirs) = (hashed(trace.data()), hashed(&data));
    let at = theirs.windows(unique.len()).position(|bytes| bytes == unique.as_bytes()).unwrap();
    let behind = &theirs[at + unique.len()..];
    let to = ours.strip_suffix(behind).expect("nothing else differs behind the name");
    data.tensors[last].name = name_between(fnv(OFFSET, &theirs[..at]), fnv(OFFSET, to));
    Trace::new(data).unwrap()
}

#[test]
fn a_plan_for_another_trace_with_the_same_fingerprint_is_refused() {
    let graph = convnet();
    let (ours, graph) = (trace(&graph), Arc::new(graph));
    let theirs = Arc::new(collision(&ours));
    assert_eq!(theirs.fingerprint(), ours.fingerprint());
    assert!(*theirs != *ours);

    let proved = |trace: &Arc<Trace>| {
        let (machine, plan) = drawn(trace, 3, |_| true);
        Arc::new(check(trace.clone(), machine, plan).unwrap())
    };
    let (own, foreign) = (proved(&ours), proved(&theirs));
    let opened = Session::new(graph.clone(), foreign.clone(), threads(1));
    assert!(matches!(opened, Err(EngineError::ForeignPlan { .. })), "a session opens with it");
    let mut session = Session::new(graph.clone(), own, threads(1)).unwrap();
    let adopted = session.set_plan(&graph, &foreign);
    assert!(matches!(adopted, Err(EngineError::ForeignPlan { .. })), "{adopted:?}");
}
