//! `mip`: Sekiyama's mixed-integer program (Sekiyama et al. 2018, equations (1)–(6)), solved by HiGHS.
//!
//! ```text
//! min u    x_i + w_i ≤ u    x_i + w_i ≤ x_j + z_ij W    x_j + w_j ≤ x_i + (1 − z_ij) W    for every pair (i, j) alive together
//! ```
//!
//! Sizes are divided by their greatest common divisor. *W* is the height of a heuristic's placement, which is also the result if the solver finds
//! none lower. An aligned offset is a multiple of the alignment by an integer variable; a fixed one has equal bounds. Solvers compute with
//! tolerances, so only the order of the offsets is taken from the solution: the buffers are then placed in this order, each as low as
//! possible. The program is solved for each component in time; one of more than 200 buffers or 5,000 pairs gets the heuristic's placement.
//! The packer reports to the [observer](Observer::origin) how many components were solved.

use std::fmt;
use std::time::Instant;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use highs::{HighsModelStatus, RowProblem, Sense};

use crate::canonical_tree::scale_of;
use crate::clock::Clock;
use crate::component::components;
use crate::greedy::size_order;
use crate::instance::{Instance, infeasible};
use crate::partial_placement::Fit;
use crate::search::initial_placement;
use crate::windowed;

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

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            // The program has one binary variable per pair and no windows.
            return windowed::in_order(problem, size_order, Fit::First, budget, observer);
        }
        let clock = Clock::start(budget, observer);
        let whole = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let mut stops = clock.stops_above(whole.len());
        let mut offsets = vec![0; whole.len()];
        let mut solved = Counts::default();
        let mut evaluations = 0;
        for component in components(&whole) {
            let Some(heuristic) = initial_placement(&component, whole.bound, &mut stops) else {
                return clock.stopped();
            };
            // A solve does not ask the observer, so it gets the deadline.
            let until = observer.deadline().map(|end| end.saturating_duration_since(Instant::now()));
            let left = clock.time_left().into_iter().chain(until).min().map(|time| time.as_secs_f64());
            let interrupted = observer.interrupted();
            let Solution { offsets: best, end } = match interrupted {
                true => Solution { offsets: heuristic, end: End::Interrupted },
                false => solve(&component.instance, heuristic, left, budget.evaluations.is_some()),
            };
            if let Some(capacity) = whole.capacity
                && end == End::Optimal
                && component.instance.height(&best) > capacity
            {
                let blocks = component.instance.items.iter().map(|item| item.block).collect();
                return infeasible(blocks, component.instance.height(&best), problem.capacity);
            }
            let end = if end == End::Time && observer.interrupted() { End::Interrupted } else { end };
            solved.add(end);
            evaluations += u64::from(!interrupted);
            for (&item, offset) in component.items.iter().zip(best) {
                offsets[item as usize] = offset;
            }
        }
        observer.origin(&solved.to_string());
        whole.conclude(problem, &offsets, evaluations, observer, solved.stop())
    }
}

/// How the solution of one component ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The solver proved its solution optimal.
    Optimal,
    /// The solver reached its time limit.
    Time,
    /// The solver reached its node limit.
    Nodes,
    /// The component has too many buffers or pairs, or the solver failed: the heuristic's placement.
    Heuristic,
    /// The observer interrupted before, or its deadline ended the solve.
    Interrupted,
}

/// The offsets of a component.
struct Solution {
    offsets: Vec<u64>,
    end: End,
}

/// Numbers of components by how their solution ended.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    optimal: usize,
    time: usize,
    nodes: usize,
    heuristic: usize,
    interrupted: usize,
}

impl Counts {
    fn add(&mut self, end: End) {
        *match end {
            End::Optimal => &mut self.optimal,
            End::Time => &mut self.time,
            End::Nodes => &mut self.nodes,
            End::Heuristic => &mut self.heuristic,
            End::Interrupted => &mut self.interrupted,
        } += 1;
    }

    /// The weakest of the reasons.
    fn stop(&self) -> StopReason {
        match self {
            Self { interrupted: 1.., .. } => StopReason::Interrupted,
            Self { heuristic: 1.., .. } => StopReason::Finished,
            Self { time: 1.., .. } => StopReason::Time,
            Self { nodes: 1.., .. } => StopReason::Evaluations,
            _ => StopReason::Optimal,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { optimal, time, nodes, heuristic, interrupted } = *self;
        let all = optimal + time + nodes + heuristic + interrupted;
        write!(f, "solver: {optimal} of {all} components optimal")?;
        let parts = [
            (time, "stopped by the time limit"),
            (nodes, "stopped by the node limit"),
            (heuristic, "placed by a heuristic, not by the program"),
            (interrupted, "interrupted"),
        ];
        parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .try_for_each(|(count, what)| write!(f, ", {count} {what}"))
    }
}

/// The lowest offsets found.
fn solve(instance: &Instance, heuristic: Vec<u64>, seconds: Option<f64>, counted: bool) -> Solution {
    let given = |offsets| Solution { offsets, end: End::Heuristic };
    let height = instance.height(&heuristic);
    let n = instance.len();
    let pairs: Vec<(usize, usize)> = (0..n)
        .flat_map(|i| (i + 1..n).map(move |j| (i, j)))
        .filter(|&(i, j)| instance.conflict(i, j))
        .collect();
    if n > MOST_ITEMS || pairs.len() > MOST_PAIRS {
        return given(heuristic);
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
    let Ok(mut model) = program.try_optimise(Sense::Minimise) else { return given(heuristic) };
    model.make_quiet();
    model.set_option("mip_rel_gap", 0.0);
    model.set_option("threads", 1);
    if counted {
        model.set_option("mip_max_nodes", MOST_NODES);
    }
    if let Some(seconds) = seconds {
        model.set_option("time_limit", seconds);
    }
    let Ok(solved) = model.try_solve() else { return given(heuristic) };
    let status = solved.status();
    let columns = solved.get_solution().columns().to_vec();
    let end = match status {
        HighsModelStatus::Optimal => End::Optimal,
        HighsModelStatus::ReachedTimeLimit => End::Time,
        HighsModelStatus::ReachedSolutionLimit | HighsModelStatus::ReachedIterationLimit => End::Nodes,
        _ => End::Heuristic,
    };
    if columns.len() <= n {
        return Solution { offsets: heuristic, end: if end == End::Optimal { End::Heuristic } else { end } };
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| columns[1 + a].total_cmp(&columns[1 + b]));
    let mut offsets: Vec<u64> = instance.items.iter().map(|item| item.fixed.unwrap_or(0)).collect();
    for (at, &item) in order.iter().enumerate() {
        if instance.items[item].fixed.is_none() {
            let below = order[..at].iter().filter(|&&other| instance.conflict(item, other));
            let rest = below.map(|&other| offsets[other] + instance.items[other].size).max().unwrap_or(0);
            offsets[item] = instance.items[item].align_up(rest);
        }
    }
    // If a tolerance has put a fixed buffer out of order, an item placed in this order may overlap it.
    let legal = pairs.iter().all(|&(i, j)| {
        offsets[i] + instance.items[i].size <= offsets[j] || offsets[j] + instance.items[j].size <= offsets[i]
    });
    if legal && instance.height(&offsets) <= height {
        Solution { offsets, end }
    } else {
        Solution { offsets: heuristic, end: if end == End::Optimal { End::Heuristic } else { end } }
    }
}
