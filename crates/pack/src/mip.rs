//! `mip`: Sekiyama's mixed-integer program (Sekiyama et al. 2018, equations (1)–(6)), solved by HiGHS.
//!
//! ```text
//! min u    x_i + w_i ≤ u    x_i + w_i ≤ x_j + z_ij W    x_j + w_j ≤ x_i + (1 − z_ij) W    for every pair (i, j) alive together
//! ```
//!
//! Sizes are divided by their greatest common divisor. *W* is the height of a heuristic's placement, which is also the result if the solver finds
//! none lower. An aligned offset is a multiple of the alignment by an integer variable; a fixed one has equal bounds. Solvers compute with
//! tolerances, so only the order of the offsets is taken from the solution: the buffers are then placed in this order, each as low as
//! possible. Problems of more than 200 buffers or 5,000 pairs get the heuristic's placement.

use std::time::Instant;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use highs::{HighsModelStatus, RowProblem, Sense};

use crate::canonical_tree::scale_of;
use crate::component::components;
use crate::instance::{Instance, infeasible};
use crate::search::initial_placement;

/// The mixed-integer program. An evaluation is one connected component in time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mip;

const MOST_ITEMS: usize = 200;
const MOST_PAIRS: usize = 5_000;
/// The node limit of one solve if the budget counts evaluations: a time limit would not reproduce the result.
const MOST_NODES: i32 = 2_000;

impl Packer for Mip {
    fn name(&self) -> &'static str {
        "mip"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, _observer: &dyn Observer) -> Outcome<Placement> {
        let start = Instant::now();
        let whole = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let mut offsets = vec![0; whole.len()];
        let (mut proved, mut evaluations) = (true, 0);
        for component in components(&whole) {
            let heuristic = initial_placement(&component, whole.bound);
            let left = budget.time.map(|limit| limit.saturating_sub(start.elapsed()).as_secs_f64());
            let (best, optimal) = solve(&component.instance, heuristic, left, budget.evaluations.is_some());
            if let Some(capacity) = whole.capacity
                && optimal
                && component.instance.height(&best) > capacity
            {
                let blocks = component.instance.items.iter().map(|item| item.block).collect();
                return infeasible(blocks, component.instance.height(&best), problem.capacity);
            }
            proved &= optimal;
            evaluations += 1;
            for (&item, offset) in component.items.iter().zip(best) {
                offsets[item as usize] = offset;
            }
        }
        whole.conclude(
            problem,
            &offsets,
            evaluations,
            if proved { StopReason::Optimal } else { StopReason::Time },
        )
    }
}

/// The lowest offsets found, and whether they are proved optimal.
fn solve(instance: &Instance, heuristic: Vec<u64>, seconds: Option<f64>, counted: bool) -> (Vec<u64>, bool) {
    let height = instance.height(&heuristic);
    let n = instance.len();
    let pairs: Vec<(usize, usize)> = (0..n)
        .flat_map(|i| (i + 1..n).map(move |j| (i, j)))
        .filter(|&(i, j)| instance.conflict(i, j))
        .collect();
    if n > MOST_ITEMS || pairs.len() > MOST_PAIRS {
        return (heuristic, false);
    }
    let scale = scale_of(instance);
    let scaled = |bytes: u64| (bytes / scale) as f64;
    let top = height.div_ceil(scale) as f64;
    let mut program = RowProblem::default();
    let u = program.add_column(1.0, instance.bound as f64 / scale as f64..=top);
    let x: Vec<_> = instance
        .items
        .iter()
        .map(|item| match item.fixed {
            Some(offset) => program.add_column(0.0, scaled(offset)..=scaled(offset)),
            None => program.add_column(0.0, 0.0..=top),
        })
        .collect();
    for (item, &x) in instance.items.iter().zip(&x) {
        program.add_row(..=-(item.bytes as f64 / scale as f64), [(x, 1.0), (u, -1.0)]);
        if item.align > instance.unit {
            let multiple = program.add_integer_column(0.0, 0.0..);
            program.add_row(0.0..=0.0, [(x, 1.0), (multiple, -scaled(item.align))]);
        }
    }
    for &(i, j) in &pairs {
        let z = program.add_integer_column(0.0, 0.0..=1.0);
        program.add_row(..=-scaled(instance.items[i].size), [(x[i], 1.0), (x[j], -1.0), (z, -2.0 * top)]);
        program.add_row(
            ..=2.0 * top - scaled(instance.items[j].size),
            [(x[j], 1.0), (x[i], -1.0), (z, 2.0 * top)],
        );
    }
    let Ok(mut model) = program.try_optimise(Sense::Minimise) else { return (heuristic, false) };
    model.make_quiet();
    model.set_option("mip_rel_gap", 0.0);
    model.set_option("threads", 1);
    if counted {
        model.set_option("mip_max_nodes", MOST_NODES);
    }
    if let Some(seconds) = seconds {
        model.set_option("time_limit", seconds);
    }
    let Ok(solved) = model.try_solve() else { return (heuristic, false) };
    let status = solved.status();
    let columns = solved.get_solution().columns().to_vec();
    if columns.len() <= n {
        return (heuristic, false);
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| columns[1 + a].total_cmp(&columns[1 + b]));
    let mut offsets: Vec<u64> = instance.items.iter().map(|item| item.fixed.unwrap_or(0)).collect();
    for (at, &item) in order.iter().enumerate() {
        if instance.items[item].fixed.is_none() {
            let below = order[..at].iter().filter(|&&other| instance.conflict(item, other));
            let rest = below.map(|&other| offsets[other] + instance.items[other].size).max().unwrap_or(0);
            offsets[item] = instance.align_up(item, rest);
        }
    }
    // If a tolerance has put a fixed buffer out of order, an item placed in this order may overlap it.
    let legal = pairs.iter().all(|&(i, j)| {
        offsets[i] + instance.items[i].size <= offsets[j] || offsets[j] + instance.items[j].size <= offsets[i]
    });
    if legal && instance.height(&offsets) <= height {
        (offsets, status == HighsModelStatus::Optimal)
    } else {
        (heuristic, false)
    }
}
