//! Convolutions in groups of channels with a distance between taps. Without groups they are those of [`super::convolution`] over the whole
//! batch; with one input channel per group they are [`super::depthwise`]; otherwise every group of every image is a matrix product.

use elbowroom_graph::op::{Conv, GroupedConv};
use rayon::ThreadPool;

use super::Operands;
use super::convolution::{area, extents, grad_weight_extents, leaves_gaps, residues, sums, windows};
use super::depthwise;
use super::pack::Strided;
use super::parallel::{Shared, chunks, each};
use super::product::{Initial, Target, product};
use super::shared_taps::weight_sums;
use super::windows::{Planes, Taps};

/// Tasks that run at the same time at most; each has scratch of its own.
const SLOTS: usize = 16;

/// How a convolution is computed.
enum Form {
    /// The whole batch as one product.
    Dense,
    /// Plane by plane.
    Depthwise,
    /// One product for each group of each image, which this is.
    Group(Conv),
}

fn form(grouped: &GroupedConv) -> Form {
    let GroupedConv { conv, groups, .. } = *grouped;
    let [inputs, outputs] = [conv.in_channels, conv.out_channels].map(|channels| channels / groups.max(1));
    match (groups, inputs) {
        (1, _) => Form::Dense,
        (_, 1) => Form::Depthwise,
        _ => Form::Group(Conv { batch: 1, in_channels: inputs, out_channels: outputs, ..conv }),
    }
}

/// Number of slots for this many tasks.
pub const fn slots(tasks: usize) -> usize {
    if tasks < SLOTS { tasks } else { SLOTS }
}

/// Floats of scratch of one product, of a whole batch or of a group.
fn grad_input_each(conv: &Conv, dilation: [usize; 2], alone: bool) -> usize {
    let scratch = residues(conv, dilation).map(|residue| {
        let extents = residue.extents(conv, conv.out_channels);
        if alone { extents.scratch_alone() } else { extents.scratch() }
    });
    scratch.max().unwrap_or(0)
}

/// Floats of scratch of [`forward`].
pub fn scratch(grouped: &GroupedConv) -> usize {
    match form(grouped) {
        Form::Dense => extents(&grouped.conv).scratch(),
        Form::Depthwise => depthwise::scratch(grouped),
        Form::Group(one) => slots(grouped.conv.batch * grouped.groups) * extents(&one).scratch_alone(),
    }
}

/// Floats of scratch of [`grad_input`].
pub fn grad_input_scratch(grouped: &GroupedConv) -> usize {
    match form(grouped) {
        Form::Dense => grad_input_each(&grouped.conv, grouped.dilation, false),
        Form::Depthwise => depthwise::grad_input_scratch(grouped),
        Form::Group(one) => {
            slots(grouped.conv.batch * grouped.groups) * grad_input_each(&one, grouped.dilation, true)
        }
    }
}

/// Floats of scratch of [`grad_weight`].
pub fn grad_weight_scratch(grouped: &GroupedConv) -> usize {
    match form(grouped) {
        Form::Dense => grad_weight_extents(&grouped.conv).scratch(),
        Form::Depthwise => depthwise::grad_weight_scratch(grouped),
        Form::Group(one) => slots(grouped.groups) * grad_weight_extents(&one).scratch_alone(),
    }
}

/// Runs `task(index, scratch)` for every index below `count`, on slots of `len` floats.
pub fn each_slot(
    pool: &ThreadPool,
    count: usize,
    scratch: &mut [f32],
    len: usize,
    task: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    let slots = slots(count);
    assert!(scratch.len() >= slots * len, "scratch as large as declared");
    let scratch = Shared::new(scratch.as_mut_ptr());
    each(pool, slots, |at| {
        // SAFETY: every slot is its task's own.
        let scratch = unsafe { scratch.slice(at * len, len) };
        for index in (at..count).step_by(slots) {
            task(index, scratch);
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, grouped: &GroupedConv, bias: bool) {
    let GroupedConv { conv, groups, dilation } = *grouped;
    // SAFETY: the result is apart from all operands.
    let (x, w, bias) = unsafe {
        let bias = bias.then(|| o.read::<f32>(2, conv.out_channels));
        (o.read::<f32>(0, conv.x().len()), o.read::<f32>(1, grouped.w().len()), bias)
    };
    let y = Shared::new(o.target::<f32>(0, conv.y().len()));
    let plane = area(conv.out_size);
    // SAFETY: the scratch is used once; every product has its own part of the result.
    unsafe {
        let scratch = o.scratch(scratch(grouped));
        let rows = |start: usize, count: usize| match bias {
            Some(bias) => Initial::Rows(&bias[start..start + count]),
            None => Initial::Zero,
        };
        match form(grouped) {
            Form::Depthwise => depthwise::forward(pool, grouped, (x, w, bias), y, scratch),
            Form::Dense => {
                let extents = extents(&conv);
                let lines = Strided { data: w, line_step: extents.depth, depth_step: 1 };
                let target = Target::planes(y, conv.out_channels * plane, plane);
                let operands = (&lines, &windows(&conv, dilation, x));
                product(Some(pool), extents, operands, rows(0, conv.out_channels), target, scratch);
            }
            Form::Group(one) => {
                let extents = extents(&one);
                let (x_len, w_len, y_len) = (one.x().len(), one.w().len(), one.y().len());
                let len = extents.scratch_alone();
                each_slot(pool, conv.batch * groups, scratch, len, |index, scratch| {
                    let group = index % groups;
                    let data = &w[group * w_len..][..w_len];
                    let lines = Strided { data, line_step: extents.depth, depth_step: 1 };
                    let image = windows(&one, dilation, &x[index * x_len..][..x_len]);
                    let start = Shared::new(y.add(index * y_len));
                    let initial = rows(group * one.out_channels, one.out_channels);
                    let target = Target::planes(start, y_len, plane);
                    product(None, extents, (&lines, &image), initial, target, scratch);
                });
            }
        }
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input(o: &Operands<'_>, pool: &ThreadPool, grouped: &GroupedConv) {
    let GroupedConv { conv, groups, dilation } = *grouped;
    // SAFETY: the result is apart from all operands.
    let (dy, w) = unsafe { (o.read::<f32>(0, conv.y().len()), o.read::<f32>(1, grouped.w().len())) };
    let dx = Shared::new(o.target::<f32>(0, conv.x().len()));
    // SAFETY: the scratch is used once; every product has its own part of the result.
    unsafe {
        let scratch = o.scratch(grad_input_scratch(grouped));
        if let Form::Depthwise = form(grouped) {
            return depthwise::grad_input(pool, grouped, (dy, w), dx, scratch);
        }
        if leaves_gaps(&conv, dilation) {
            chunks(pool, conv.x().len(), |start, len| dx.slice(start, len).fill(0.0));
        }
        let Form::Group(one) = form(grouped) else {
            return sums(Some(pool), (&conv, dilation), None, (dy, w), dx, scratch);
        };
        let (x_len, w_len, y_len) = (one.x().len(), one.w().len(), one.y().len());
        let len = grad_input_each(&one, dilation, true);
        each_slot(pool, conv.batch * groups, scratch, len, |index, scratch| {
            let group = index % groups;
            let operands = (&dy[index * y_len..][..y_len], &w[group * w_len..][..w_len]);
            let start = Shared::new(dx.add(index * x_len));
            sums(None, (&one, dilation), None, operands, start, scratch);
        });
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_weight(o: &Operands<'_>, pool: &ThreadPool, grouped: &GroupedConv) {
    let GroupedConv { conv, groups, dilation } = *grouped;
    // SAFETY: the result is apart from all operands.
    let (x, dy) = unsafe { (o.read::<f32>(0, conv.x().len()), o.read::<f32>(1, conv.y().len())) };
    let dw = Shared::new(o.target::<f32>(0, grouped.w().len()));
    // SAFETY: the scratch is used once; every group has its own part of the result.
    unsafe {
        let scratch = o.scratch(grad_weight_scratch(grouped));
        match form(grouped) {
            Form::Depthwise => depthwise::grad_weight(pool, grouped, (x, dy), dw, scratch),
            Form::Dense => {
                let extents = grad_weight_extents(&conv);
                let planes = Planes { images: dy, channels: conv.out_channels, plane: area(conv.out_size) };
                weight_sums(pool, extents, (&planes, windows(&conv, dilation, x)), dw, scratch);
            }
            Form::Group(one) => {
                let extents = grad_weight_extents(&one);
                let (x_len, w_len, y_len) = (one.x().len(), one.w().len(), one.y().len());
                each_slot(pool, groups, scratch, extents.scratch_alone(), |group, scratch| {
                    let start = Shared::new(dw.add(group * w_len));
                    start.slice(0, w_len).fill(0.0);
                    for image in 0..conv.batch {
                        let index = image * groups + group;
                        let taps = Taps(windows(&one, dilation, &x[index * x_len..][..x_len]));
                        let images = &dy[index * y_len..][..y_len];
                        let planes =
                            Planes { images, channels: one.out_channels, plane: area(conv.out_size) };
                        let target = Target::matrix(start, extents.columns);
                        product(None, extents, (&planes, &taps), Initial::Keep, target, scratch);
                    }
                });
            }
        }
    }
}
