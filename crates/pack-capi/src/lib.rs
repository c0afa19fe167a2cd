//! `elbowroom-pack` as a C library, for compilers and planners in C and C++: one function, declared in `include/elbowroom_pack.h`.
//!
//! ```sh
//! cargo build --release -p elbowroom-pack-capi
//! cc planner.c -I crates/pack-capi/include -L target/release -lelbowroom_pack_c
//! ```
//!
//! This is a crate of its own because `elbowroom-capi` defines `malloc`, which a compiler does not want.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use elbowroom_pack::{
    Block, Budget, Bytes, Interval, Missed, Observer, Packer, Placement, Problem, StopReason, Window,
};

const OPTIMAL: c_int = 0;
const FOUND: c_int = 1;
const GAVE_UP: c_int = 2;
const INFEASIBLE: c_int = 3;
const BAD_INPUT: c_int = 4;
const FAULT: c_int = 5;

/// `struct elbowroom_pack_gap` of the header.
#[repr(C)]
pub struct CGap {
    lower: u64,
    upper: u64,
    from: u64,
    to: u64,
}

/// `struct elbowroom_pack_buffer` of the header.
#[repr(C)]
pub struct CBuffer {
    lower: u64,
    upper: u64,
    size: u64,
    alignment: u64,
    offset: i64,
    hint: i64,
    gaps: *const CGap,
    gap_count: usize,
}

/// `struct elbowroom_pack_options` of the header.
#[repr(C)]
pub struct COptions {
    capacity: u64,
    seconds: f64,
    evaluations: u64,
    seed: u64,
    threads: usize,
    packer: *const c_char,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps a sentence for [`elbowroom_pack_error`].
fn remember(sentence: &str) {
    // A sentence has no zero byte; should one have, it ends there.
    let text = sentence.split('\0').next().unwrap_or("");
    ERROR.with(|error| *error.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// Keeps the lowest placement where none fits.
#[derive(Default)]
struct Keeper(Mutex<Option<Placement>>);

impl Observer for Keeper {
    fn note(&self, note: &dyn Any) {
        if let Some(Missed(placement)) = note.downcast_ref::<Missed>() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(placement.clone());
        }
    }
}

/// An optional number of the header, in which negative ones stand for none.
fn optional(number: i64) -> Option<Bytes> {
    u64::try_from(number).ok().map(Bytes)
}

fn block(number: usize, buffer: &CBuffer, gaps: &[CGap]) -> Result<Block, String> {
    let CBuffer { lower, upper, .. } = *buffer;
    if lower >= upper {
        return Err(format!("buffer {number}: its lifetime {lower}..{upper} is empty"));
    }
    let mut alive = Vec::with_capacity(gaps.len() + 1);
    let mut windows = Vec::new();
    let mut start = lower;
    for gap in gaps {
        if gap.lower >= gap.upper || gap.lower < start || gap.upper > upper {
            return Err(format!(
                "buffer {number}: gap {}..{} is empty, overlaps the one before it, or leaves the lifetime {lower}..{upper}",
                gap.lower, gap.upper
            ));
        }
        if start < gap.lower {
            alive.push(Interval::new(start, gap.lower));
        }
        if gap.from < gap.to {
            let during = Interval::new(gap.lower, gap.upper);
            windows.push(Window { during, from: Bytes(gap.from), to: Bytes(gap.to) });
        }
        start = gap.upper;
    }
    if start < upper {
        alive.push(Interval::new(start, upper));
    }
    Ok(Block {
        size: Bytes(buffer.size),
        alive,
        windows,
        align: Bytes(buffer.alignment.max(1)),
        fixed: optional(buffer.offset),
        hint: optional(buffer.hint),
    })
}

/// The budget and the packer that the options name.
fn settings(
    options: Option<&COptions>,
    name: Option<&CStr>,
) -> Result<(Budget, &'static dyn Packer), String> {
    let Some(options) = options else {
        return Ok((Budget::time(Duration::from_secs(1)), &elbowroom_pack::Auto));
    };
    let time = match options.seconds {
        0.0 => None,
        seconds => Some(Duration::try_from_secs_f64(seconds).map_err(|error| format!("seconds: {error}"))?),
    };
    let budget = Budget {
        evaluations: Some(options.evaluations).filter(|&limit| limit > 0),
        time,
        seed: options.seed,
        threads: options.threads.clamp(1, 1024),
    };
    let name = name.map_or("auto".into(), CStr::to_string_lossy);
    let packer = elbowroom_pack::packer(&name).ok_or_else(|| {
        let known: Vec<&str> = elbowroom_pack::PACKERS.iter().map(|known| known.name()).collect();
        format!("there is no packer `{name}`; there are: {}", known.join(", "))
    })?;
    Ok((budget, packer))
}

/// What a call returns and writes.
fn pack(problem: &Problem, budget: &Budget, packer: &dyn Packer) -> (c_int, Option<Placement>) {
    let keeper = Keeper::default();
    let outcome = packer.pack(problem, budget, &keeper);
    let missed = keeper.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let result = match (&outcome.best, &outcome.stop) {
        (Some(_), StopReason::Optimal) => OPTIMAL,
        (Some(_), _) => FOUND,
        (None, StopReason::Infeasible(_)) => {
            remember("no placement exists within the capacity, or fixed buffers overlap");
            INFEASIBLE
        }
        (None, _) => {
            remember("no placement was found within the capacity (infeasibility not proved)");
            GAVE_UP
        }
    };
    (result, outcome.best.or(missed))
}

/// A slice of C, which may be null if it is empty.
///
/// # Safety
/// `first` points to `count` elements that live and do not change, or `count` is zero.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Places buffers; the header says how.
///
/// # Safety
/// All pointers are as the header asks: arrays of their counts, and memory for `count` offsets and one height.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pack(
    buffers: *const CBuffer,
    count: usize,
    options: *const COptions,
    offsets: *mut u64,
    height: *mut u64,
) -> c_int {
    remember("");
    if height.is_null() || (count > 0 && (buffers.is_null() || offsets.is_null())) {
        remember("buffers, offsets and height must not be null");
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    let buffers = unsafe { slice(buffers, count) };
    // SAFETY: the caller's promise; null is no options.
    let options = unsafe { options.as_ref() };
    let name = options.map(|options| options.packer).filter(|name| !name.is_null());
    // SAFETY: the header asks for a text that ends in zero.
    let name = name.map(|name| unsafe { CStr::from_ptr(name) });
    let made = (|| {
        let (budget, packer) = settings(options, name)?;
        let mut blocks = Vec::with_capacity(count);
        for (number, buffer) in buffers.iter().enumerate() {
            if buffer.gaps.is_null() && buffer.gap_count > 0 {
                return Err(format!("buffer {number}: it has gaps, but their address is null"));
            }
            // SAFETY: the caller's promise.
            blocks.push(block(number, buffer, unsafe { slice(buffer.gaps, buffer.gap_count) })?);
        }
        let capacity = options.map(|options| options.capacity).filter(|&capacity| capacity > 0).map(Bytes);
        let problem = Problem { blocks: blocks.into(), capacity };
        problem.validate().map_err(|error| error.to_string())?;
        Ok((problem, budget, packer))
    })();
    let (problem, budget, packer) = match made {
        Ok(made) => made,
        Err(sentence) => {
            remember(&sentence);
            return BAD_INPUT;
        }
    };
    // A panic must not cross into C.
    let packed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pack(&problem, &budget, packer)));
    let Ok((result, placement)) = packed else {
        remember("the packer failed, which is a fault in elbowroom");
        return FAULT;
    };
    let placement = placement.unwrap_or_default();
    for (number, offset) in placement.offsets.values().enumerate() {
        // SAFETY: the caller's promise; there are as many offsets as buffers.
        unsafe { offsets.add(number).write(offset.get()) };
    }
    // SAFETY: the caller's promise.
    unsafe { height.write(placement.height.get()) };
    result
}

/// The sentence that the last call of this thread left.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_pack_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}
