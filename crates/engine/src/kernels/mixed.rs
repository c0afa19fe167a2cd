//! Ops with bf16 operands, computed by the kernels for `f32`: part after part, the operands of a part are widened into the workspace, the kernel
//! runs there, and its results are narrowed. Products that pack their factors, also those of attention, convert them on that way, so these are read
//! where they lie.
//!
//! ```text
//! operands  bf16  ▒▒▒▒░░░░▒▒▒▒░░░░        workspace  f32  ████████ ████████ + that of the kernel
//!                 part 0  part 2 …                        widened  result, to be narrowed
//! ```
//!
//! Parts ([`super::cut`]) are as large as a cache, so that neither the workspace nor the traffic of memory is that of `f32`. Their sizes follow
//! from the extents, so the bits do too. An operand that stays in `f32` is used where it lies. Where a kernel may write a result over an
//! operand, both share one range of the workspace.

use std::ops::Range;

use elbowroom_graph::signature::Size;
use elbowroom_graph::{DType, Mixed, OpKind};
use elbowroom_ir::Bytes;
use rayon::ThreadPool;

use super::bf16::{self, Bf16};
use super::cut::{self, Cut, Span};
use super::parallel::{CHUNK, Shared, each, over_rows};
use super::{Context, Operands, bf16_factors, workspace as workspace_of};

/// Floats of the widened operands of a part, about: half of a second-level cache. With it a part is large enough to be shared by threads.
const PART: usize = 1 << 18;

/// Floats to which ranges of the workspace are aligned: a cache line.
const LINE: usize = 16;

/// Operands for which there is room where nothing may be allocated; ops with more are moves ([`super::moves`]).
const OPERANDS: usize = cut::MOST;

/// An operand, and where its part is widened.
#[derive(Clone, Copy)]
struct Place {
    span: Span,
    dtype: DType,
    /// The type of which the kernel takes it.
    taken: DType,
    /// Elements of all of it; at least.
    len: usize,
    /// The first of the floats of the workspace in which it is converted, gathered or summed up; `None` if it is used where it lies.
    start: Option<usize>,
}

/// Operands, in the order of the kind.
#[derive(Clone, Copy)]
struct Places {
    all: [Place; OPERANDS],
    count: usize,
}

impl std::ops::Deref for Places {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        &self.all[..self.count]
    }
}

impl FromIterator<Place> for Places {
    fn from_iter<I: IntoIterator<Item = Place>>(places: I) -> Self {
        let none = Place::new(Span::Whole, DType::F32, 0);
        let mut found = Self { all: [none; OPERANDS], count: 0 };
        for place in places {
            found.all[found.count] = place;
            found.count += 1;
        }
        found
    }
}

/// How an op is computed: a function of its kind and types.
pub struct Layout {
    is_cut: bool,
    /// Whether parts add to what those before have written.
    adds_in_place: bool,
    units: usize,
    /// Units of every part but the last.
    step: usize,
    reads: Places,
    writes: Places,
    /// Floats of the workspace before that of the kernel.
    floats: usize,
    inner: Bytes,
}

impl Place {
    /// An operand that is used where it lies.
    const fn new(span: Span, dtype: DType, len: usize) -> Self {
        Self { span, dtype, taken: dtype, len, start: None }
    }

    /// Floats of the workspace for a part of some units.
    const fn floats(&self, units: usize) -> usize {
        (self.part(units) * self.taken.size()).div_ceil(size_of::<f32>())
    }

    /// Elements of a part of some units.
    const fn part(&self, units: usize) -> usize {
        match self.span {
            Span::Slab { outer, inner } => outer * units * inner,
            Span::Whole | Span::Sum => self.len,
        }
    }

    const fn is_slab(&self) -> bool {
        matches!(self.span, Span::Slab { .. })
    }

    /// The runs of elements that belong to units, of all units.
    const fn runs(&self, all: usize, units: &Range<usize>) -> Runs {
        match self.span {
            Span::Slab { outer, inner } => Runs {
                count: outer,
                len: (units.end - units.start) * inner,
                distance: all * inner,
                first: units.start * inner,
            },
            Span::Whole | Span::Sum => Runs { count: 1, len: self.len, distance: self.len, first: 0 },
        }
    }

    /// Whether a part is more than one run, in an op of several parts.
    const fn is_scattered(&self, parts: usize) -> bool {
        parts > 1 && matches!(self.span, Span::Slab { outer, .. } if outer > 1)
    }
}

impl Layout {
    /// How [`run`] computes an op.
    pub fn of(mixed: &Mixed) -> Self {
        let signature = mixed.kind.signature();
        // Sums over parts are f32.
        let adds_up = |cut: &Cut| {
            let mut results = mixed.outputs.iter().zip(&cut.writes);
            results.all(|(&dtype, &span)| matches!(span, Span::Slab { .. }) || dtype == DType::F32)
        };
        let cut = Cut::of(&mixed.kind).filter(adds_up);
        let (read_spans, write_spans) =
            cut.map_or(([Span::Whole; OPERANDS], [Span::Whole; OPERANDS]), |cut| (cut.reads, cut.writes));
        let inputs = signature.inputs.iter().zip(&mixed.inputs).zip(read_spans);
        let mut reads: Places = inputs
            .map(|((&(Size::Exactly(len) | Size::AtLeast(len), _), &dtype), span)| {
                Place::new(span, dtype, len)
            })
            .collect();
        let outputs = signature.outputs.iter().zip(&mixed.outputs).zip(write_spans);
        let mut writes: Places =
            outputs.map(|(((shape, _), &dtype), span)| Place::new(span, dtype, shape.len())).collect();
        let factors = bf16_factors(mixed);
        for (at, read) in reads.all[..reads.count].iter_mut().enumerate() {
            read.taken = match read.dtype {
                DType::F32 | DType::Bf16 if factors.contains(&at) => DType::Bf16,
                DType::Bf16 => DType::F32,
                other => other,
            };
        }
        for write in writes.all[..writes.count].iter_mut().filter(|write| write.dtype == DType::Bf16) {
            write.taken = DType::F32;
        }
        let rounds = |at: usize, read: &Place| {
            at < 2 && Mixed::is_product(&mixed.kind) && factors.is_empty() && read.dtype == DType::F32
        };
        let units = cut.map_or(1, |cut| cut.units);
        let moves = |place: &Place| place.dtype != place.taken;
        let rounded = reads.iter().enumerate().filter(|&(at, read)| moves(read) || rounds(at, read));
        let in_workspace = rounded.map(|(_, read)| read).chain(writes.iter().filter(|write| moves(write)));
        let whole = reads.iter().chain(writes.iter()).filter(|place| !place.is_slab());
        let step = step(units, in_workspace, whole.map(|place| place.len).max().unwrap_or(0));
        let parts = units.div_ceil(step);

        let mut floats = 0;
        let mut take = |len: usize| {
            let start = floats;
            floats += len.next_multiple_of(LINE);
            Some(start)
        };
        for (at, read) in reads.all[..reads.count].iter_mut().enumerate() {
            let is_gathered = read.dtype == DType::F32 && read.is_scattered(parts);
            if read.dtype != read.taken || rounds(at, read) || is_gathered {
                read.start = take(read.floats(step));
            }
        }
        for at in 0..writes.count {
            let write = writes[at];
            let is_scattered = write.dtype == DType::F32 && write.is_scattered(parts);
            let is_sum = write.span == Span::Sum && parts > 1;
            if write.dtype == DType::Bf16 || is_scattered || is_sum {
                // A range serves one result.
                let shared = shared(&mixed.kind, at, &write, &reads, parts);
                let free =
                    shared.filter(|start| !writes[..at].iter().any(|other| other.start == Some(*start)));
                writes.all[at].start = free.or_else(|| take(write.floats(step)));
            }
        }
        let last = units - (parts.max(1) - 1) * step;
        let of_kernel = |units: usize| match cut {
            Some(_) => workspace_of(&cut::part(&mixed.kind, units, false)),
            None => workspace_of(&mixed.kind),
        };
        let inner = of_kernel(step.min(units)).max(of_kernel(last));
        let adds_in_place = matches!(mixed.kind, OpKind::LinearGradWeight { accumulate: false, .. });
        Self { is_cut: cut.is_some(), adds_in_place, units, step, reads, writes, floats, inner }
    }
}

/// Units of a part, of whose operands some are converted: enough that operands which are not cut, the largest of `whole` elements, and which are
/// converted, added up or packed once for a part or for all, are no larger than it.
fn step<'p>(units: usize, converted: impl Iterator<Item = &'p Place>, whole: usize) -> usize {
    let of_unit: usize = converted.filter(|place| place.is_slab()).map(|place| place.part(1)).sum();
    if of_unit == 0 {
        return units.max(1);
    }
    let most = (PART.max(whole) / of_unit).clamp(1, units.max(1));
    // In parts of one size, about.
    units.max(1).div_ceil(units.max(1).div_ceil(most))
}

/// The range of an operand over which the kernel may write a result: what it overwrites, it has read.
fn shared(kind: &OpKind, at: usize, write: &Place, reads: &[Place], parts: usize) -> Option<usize> {
    let mutated = kind.mutations().into_iter().find(|&(_, output)| output == at);
    if let Some((input, _)) = mutated {
        return reads[input].start;
    }
    // An operand that all parts read stays.
    let is_free = |read: &&Place| (read.is_slab() || parts == 1) && read.span == write.span;
    let reuses = kind.reusable().into_iter().filter(|reuse| reuse.output == at);
    reuses.filter_map(|reuse| Some(&reads[reuse.input]).filter(is_free)?.start).next()
}

/// Workspace that [`run`] needs, in bytes.
pub fn workspace(mixed: &Mixed) -> Bytes {
    let layout = Layout::of(mixed);
    Bytes((layout.floats * size_of::<f32>()) as u64) + layout.inner
}

/// # Safety
/// As [`super::run`].
pub unsafe fn run(mixed: &Mixed, layout: &Layout, o: &Operands<'_>, context: &Context<'_>) {
    if layout.units == 0 {
        // SAFETY: the caller's promise; nothing is bf16 where there are no elements.
        return unsafe { super::run(&mixed.kind, o, context) };
    }
    let own = layout.floats * size_of::<f32>();
    let needed = own + layout.inner.get() as usize;
    assert!(o.workspace.len() >= needed, "a workspace of {} bytes should have {needed}", o.workspace.len());
    assert!(o.workspace.cast::<f32>().is_aligned(), "the workspace is aligned to floats");
    let floats = Shared::new(o.workspace.cast::<f32>());
    // SAFETY: inside the workspace, as checked.
    let inner = unsafe {
        std::ptr::slice_from_raw_parts_mut(o.workspace.cast::<u8>().add(own), layout.inner.get() as usize)
    };
    for (place, operand) in layout.reads.iter().zip(o.reads) {
        super::check_typed(place.dtype, *operand, place.len);
    }
    for (place, result) in layout.writes.iter().zip(o.writes) {
        super::check_typed(place.dtype, result.cast_const(), place.len);
    }

    let round = Mixed::is_product(&mixed.kind);
    let factors_are_bf16 = !bf16_factors(mixed).is_empty();
    let nothing: *mut [u8] = std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0);
    let (mut reads, mut writes) = ([nothing.cast_const(); OPERANDS + 1], [nothing; OPERANDS]);
    let mut start = 0;
    while start < layout.units {
        let units = start..(start + layout.step).min(layout.units);
        // SAFETY: ranges of the workspace are apart, except where the kernel may write over an operand; sizes were checked above; widening has
        // ended when the kernel starts, and the kernel when narrowing starts.
        unsafe {
            for (at, (place, &operand)) in layout.reads.iter().zip(o.reads).enumerate() {
                if place.is_slab() || start == 0 {
                    enter(context.pool, place, operand, floats, layout.units, &units, round && at < 2);
                }
                reads[at] = address(place, operand.cast_mut(), floats, layout.units, &units).cast_const();
            }
            for (at, (place, &result)) in layout.writes.iter().zip(o.writes).enumerate() {
                // The first part of a sum lies where the sum will.
                let start = place.start.filter(|_| place.span != Span::Sum || start > 0);
                writes[at] = address(&Place { start, ..*place }, result, floats, layout.units, &units);
            }
            // A sum to which a part adds in place is one more operand.
            let adds = layout.adds_in_place && start > 0;
            reads[layout.reads.len()] = if adds { writes[0].cast_const() } else { nothing.cast_const() };
            let operands = Operands {
                reads: &reads[..layout.reads.len() + usize::from(adds)],
                writes: &writes[..layout.writes.len()],
                workspace: inner,
                factors_are_bf16,
            };
            match layout.is_cut {
                true => super::run(&cut::part(&mixed.kind, units.len(), adds), &operands, context),
                false => super::run(&mixed.kind, &operands, context),
            }
            for (place, &result) in layout.writes.iter().zip(o.writes) {
                leave(context.pool, place, result, floats, layout.units, &units);
            }
        }
        start = units.end;
    }
}

/// Where the kernel finds a part of an operand.
///
/// # Safety
/// The operand has the elements of its place, the workspace its range.
unsafe fn address(
    place: &Place,
    operand: *mut [u8],
    floats: Shared<f32>,
    all: usize,
    units: &Range<usize>,
) -> *mut [u8] {
    let len = place.part(units.len());
    // SAFETY: the caller's promise.
    unsafe {
        match place.start {
            Some(start) => {
                std::ptr::slice_from_raw_parts_mut(floats.add(start).cast::<u8>(), len * place.taken.size())
            }
            // Operands of which a part of the elements is read may be larger than they must be.
            None if !place.is_slab() => operand,
            None => {
                let Runs { len: run, first, .. } = place.runs(all, units);
                let size = place.dtype.size();
                // Where there is one part, its runs follow each other.
                let len = if units.len() == all { len } else { run };
                std::ptr::slice_from_raw_parts_mut(operand.cast::<u8>().add(first * size), len * size)
            }
        }
    }
}

/// Converts, rounds or gathers a part of an operand into its range of the workspace, if it has one.
///
/// # Safety
/// As [`address`]; nothing else uses the range, and nothing writes the operand.
unsafe fn enter(
    pool: &ThreadPool,
    place: &Place,
    operand: *const [u8],
    floats: Shared<f32>,
    all: usize,
    units: &Range<usize>,
    round: bool,
) {
    let Some(start) = place.start else { return };
    let (narrow, wide) =
        (Shared::new(operand.cast::<Bf16>().cast_mut()), Shared::new(operand.cast::<f32>().cast_mut()));
    let types = (place.dtype, place.taken);
    each_run(pool, place.runs(all, units), |from, to, len| {
        // SAFETY: the caller's promise; every task has its own elements of the range.
        unsafe {
            if let (DType::F32, DType::Bf16) = types {
                let range = Shared::new(floats.add(start).cast::<Bf16>());
                return bf16::narrow(wide.view(from, len), range.slice(to, len));
            }
            let to = floats.slice(start + to, len);
            match types {
                (DType::Bf16, _) => bf16::widen(narrow.view(from, len), to),
                _ => {
                    to.copy_from_slice(wide.view(from, len));
                    if round {
                        bf16::round(to);
                    }
                }
            }
        }
    });
}

/// Narrows, scatters or adds a part of a result from its range of the workspace, if it has one.
///
/// # Safety
/// As [`address`]; nothing else uses the range and the result.
unsafe fn leave(
    pool: &ThreadPool,
    place: &Place,
    result: *mut [u8],
    floats: Shared<f32>,
    all: usize,
    units: &Range<usize>,
) {
    let Some(start) = place.start else { return };
    let is_sum = place.span == Span::Sum;
    if is_sum && units.start == 0 {
        return;
    }
    let (narrow, wide) = (Shared::new(result.cast::<Bf16>()), Shared::new(result.cast::<f32>()));
    let dtype = place.dtype;
    each_run(pool, place.runs(all, units), |to, from, len| {
        // SAFETY: the caller's promise; every task has its own elements of the result.
        unsafe {
            let from = floats.view(start + from, len);
            match dtype {
                DType::Bf16 => bf16::narrow(from, narrow.slice(to, len)),
                _ if is_sum => {
                    super::vectorized(
                        #[inline(always)]
                        || wide.slice(to, len).iter_mut().zip(from).for_each(|(to, from)| *to += from),
                    );
                }
                _ => wide.slice(to, len).copy_from_slice(from),
            }
        }
    });
}

/// Runs of elements in an operand: their number, length and distance, and where the first begins.
#[derive(Clone, Copy)]
struct Runs {
    count: usize,
    len: usize,
    distance: usize,
    first: usize,
}

/// Calls `task(far, near, len)` for pieces of runs: `far` as they lie in an operand, `near` as they follow each other in the workspace.
fn each_run(pool: &ThreadPool, runs: Runs, task: impl Fn(usize, usize, usize) + Sync + Send) {
    let Runs { count, len, distance, first } = runs;
    if len == 0 {
        return;
    }
    if len > CHUNK {
        let pieces = len.div_ceil(CHUNK);
        return each(pool, count * pieces, |index| {
            let (run, start) = (index / pieces, index % pieces * CHUNK);
            task(first + run * distance + start, run * len + start, CHUNK.min(len - start));
        });
    }
    over_rows(pool, count, len, |rows| rows.for_each(|run| task(first + run * distance, run * len, len)));
}
