//! One iteration as columns, and its schedules under limits on live memory.
//!
//! The limit is on live memory and not on an arena, because PyTorch's allocator assigns the addresses: a schedule's peak is what a meter of
//! tensor bytes measures.

use std::collections::BTreeMap;
use std::sync::Arc;

use elbowroom_ir::check::{self, CheckedSchedule};
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Pins, Planner, Request};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Infeasible, Silent, StopReason};
use elbowroom_ir::text::TraceFile;
use elbowroom_ir::trace::{
    Again, Fingerprint, Mutation, Op, Persistent, Phase, Reuse, Storage, Tensor, Trace, TraceData, Work,
};
use elbowroom_ir::{ActionId, Bytes, Nanos, OpId, StorageId, TensorId};
use elbowroom_sched::keep::Keep;
use elbowroom_sched::pins::{self, Pin, PinError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::InfeasibleError;
use crate::pack::duration;

/// The op may run only once.
const ONCE: u8 = 1;
/// The op belongs to the backward pass.
const BACKWARD: u8 = 2;
/// The op belongs to the update.
const UPDATE: u8 = 4;

/// More than any real limit, and far from overflow.
const UNLIMITED: Bytes = Bytes(1 << 60);

/// One iteration: its ops in execution order, and the tensors that they read and write.
#[pyclass(frozen, module = "elbowroom._native")]
pub(crate) struct Iteration {
    trace: Arc<Trace>,
    /// The trace in which no op may reuse bytes: what runs without a limit.
    plain: Arc<Trace>,
    costs: Costs,
    /// What the user has decided about the trace. The schedule that keeps everything need not obey it.
    pins: Option<Pins>,
}

/// A checked schedule with its predictions.
#[pyclass(frozen, module = "elbowroom._native")]
pub(crate) struct Planned {
    /// `(kind, id, reads, writes)` for each action. Kinds: 0 compute op `id`, 1 recompute op `id`, 2 offload tensor `id` from the buffer in
    /// `reads`, 3 prefetch tensor `id` to the buffer in `writes`, 4 release buffer `id`, 5 discard the host copy of tensor `id`.
    #[pyo3(get)]
    actions: Vec<Row>,
    /// For each action, the positions of the earlier actions on other streams that must finish before it starts. Ops, copies to the host and
    /// copies from it are three streams, each of which runs its actions in order; releases run on none.
    #[pyo3(get)]
    waits: Vec<Vec<u32>>,
    /// Hash of the trace.
    #[pyo3(get)]
    trace: String,
    /// Hash of the trace, the actions and their waits as they were checked: [`fingerprint`] of what runs must be equal.
    #[pyo3(get)]
    fingerprint: String,
    /// Where each persistent tensor is between two iterations, in ascending order of tensors: its device buffer, if any, and whether there
    /// is a host copy.
    #[pyo3(get)]
    boundary: Vec<(Option<u32>, bool)>,
    /// The limit on live memory.
    #[pyo3(get)]
    limit_bytes: u64,
    /// Peak of live memory, computed by the checker.
    #[pyo3(get)]
    peak_bytes: u64,
    /// Predicted iteration time.
    #[pyo3(get)]
    nanos: u64,
    /// Iteration time without a limit: the sum of all op durations.
    #[pyo3(get)]
    unlimited_nanos: u64,
    /// Lower bound on the iteration time at this limit.
    #[pyo3(get)]
    bound_nanos: u64,
    /// Ops that are recomputed, counted by launches.
    #[pyo3(get)]
    recomputed: usize,
    /// Bytes offloaded.
    #[pyo3(get)]
    offloaded_bytes: u64,
    /// Evaluations of the search.
    #[pyo3(get)]
    evaluations: u64,
    /// Why the search ended.
    #[pyo3(get)]
    stop: &'static str,
    /// The largest gaps, one line each.
    #[pyo3(get)]
    explanation: String,
    checked: CheckedSchedule,
}

#[pymethods]
impl Planned {
    /// What the checker objects to in this schedule with other `waits`; `None` if it is legal with them, too.
    fn objection(&self, py: Python<'_>, waits: Vec<Vec<u32>>) -> PyResult<Option<String>> {
        let mut schedule = self.checked.schedule().clone();
        if waits.len() != schedule.steps.len() {
            return Err(PyValueError::new_err(format!(
                "there are {} actions and {} rows of waits",
                schedule.steps.len(),
                waits.len()
            )));
        }
        for (action, waits) in schedule.steps.ids().zip(waits) {
            schedule.steps[action].waits = waits.into_iter().map(ActionId).collect();
        }
        let (trace, machine) = (self.checked.trace().clone(), self.checked.machine().clone());
        let checked = py.detach(|| check::check_schedule(trace, machine, schedule, Bytes(self.limit_bytes)));
        Ok(checked.err().map(|illegal| illegal.to_string()))
    }
}

/// What a decision covers: a number of tensors or ops, and their bytes.
type Covered = (usize, u64);

/// The decisions of a text, one a line: verb and pattern.
#[pyfunction]
pub(crate) fn parse_pins(text: &str) -> PyResult<Vec<(&'static str, String)>> {
    let pins = pins::parse(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(pins.into_iter().map(|pin| (pin.verb.name(), pin.pattern)).collect())
}

/// An action as Python has it: kind, id, buffers read, buffers written.
type Row = (u8, u32, Vec<u32>, Vec<u32>);

/// Hash of the actions of a schedule and their waits, for the trace with this fingerprint.
#[pyfunction]
pub(crate) fn fingerprint(trace: &str, actions: Vec<Row>, waits: Vec<Vec<u32>>) -> String {
    Fingerprint::of(&(trace, actions, waits)).to_string()
}

/// How to search, and for which machine.
struct Settings {
    machine: Machine,
    freedom: Freedom,
    budget: Budget,
    planner: &'static dyn Planner,
}

#[pymethods]
impl Iteration {
    /// Columns: one row an op, one row a tensor. `flags` are 1 (may run only once), 2 (backward), 4 (update). The `persistent` tensors exist
    /// before the iteration and after it; `mutates` lists those that an op overwrites, which it also reads; `lines` are
    /// the lines of the user's program that call the ops; `reuses` lists pairs of tensors, a read one that nothing else needs any more and
    /// an output that may take its bytes; `works` are floating-point operations, those on numbers of 16 bits, and bytes moved. With
    /// `works`, durations are estimates; without, they are recorded.
    #[new]
    #[pyo3(signature = (name, sizes, reads, outputs, nanos, workspaces, flags, names, kinds, persistent=Vec::new(), mutates=None, lines=None, reuses=None, works=None))]
    #[expect(clippy::too_many_arguments, reason = "the Python side names them")]
    fn new(
        name: String,
        sizes: Vec<u64>,
        reads: Vec<Vec<u32>>,
        outputs: Vec<Vec<u32>>,
        nanos: Vec<u64>,
        workspaces: Vec<u64>,
        flags: Vec<u8>,
        names: Vec<String>,
        kinds: Vec<String>,
        persistent: Vec<(u32, String)>,
        mutates: Option<Vec<Vec<u32>>>,
        lines: Option<Vec<String>>,
        reuses: Option<Vec<Vec<(u32, u32)>>>,
        works: Option<Vec<(u64, u64, u64)>>,
    ) -> PyResult<Self> {
        let rows = reads.len();
        let mutates = mutates.unwrap_or_else(|| vec![Vec::new(); rows]);
        let reuses = reuses.unwrap_or_else(|| vec![Vec::new(); rows]);
        let lines = lines.unwrap_or_else(|| vec![String::new(); rows]);
        let source = if works.is_some() { CostSource::Captured } else { CostSource::Recorded };
        let works = works.unwrap_or_else(|| vec![(0, 0, 0); rows]);
        let lengths = [
            outputs.len(),
            nanos.len(),
            workspaces.len(),
            flags.len(),
            names.len(),
            kinds.len(),
            mutates.len(),
            lines.len(),
            reuses.len(),
            works.len(),
        ];
        if lengths.iter().any(|&length| length != rows) {
            return Err(PyValueError::new_err("all columns of ops must have the same length"));
        }
        let mut data = TraceData { name, ..TraceData::default() };
        for (number, &bytes) in sizes.iter().enumerate() {
            let storage = data.storages.push(Storage { bytes: Bytes(bytes) });
            data.tensors.push(Tensor { name: format!("t{number}"), storage });
        }
        let known = sizes.len();
        if let Some((id, _)) = persistent.iter().find(|(id, _)| *id as usize >= known) {
            return Err(PyValueError::new_err(format!(
                "persistent tensor {id} is not among the {known} tensors"
            )));
        }
        for (id, name) in &persistent {
            data.tensors[TensorId(*id)].name.clone_from(name);
        }
        // The tensor that each storage holds: an overwritten one is followed by a new tensor in the same storage.
        let mut holds: Vec<TensorId> = data.tensors.ids().collect();
        for row in 0..rows {
            let flags = flags[row];
            let phase = match flags {
                _ if flags & UPDATE != 0 => Phase::Update,
                _ if flags & BACKWARD != 0 => Phase::Backward,
                _ => Phase::Forward,
            };
            for &id in &outputs[row] {
                if (id as usize) < data.tensors.len() {
                    data.tensors[TensorId(id)].name.clone_from(&names[row]);
                }
            }
            let tensors = |ids: &[u32]| -> Vec<TensorId> {
                ids.iter().map(|&id| holds.get(id as usize).copied().unwrap_or(TensorId(id))).collect()
            };
            let (reads, mut outputs) = (tensors(&reads[row]), tensors(&outputs[row]));
            let pairs = reuses[row].iter();
            let may_reuse = pairs
                .map(|&(input, output)| Reuse { input: tensors(&[input])[0], output: TensorId(output) })
                .collect();
            let (flops, half_flops, moved) = works[row];
            let mut mutations = Vec::new();
            for &id in &mutates[row] {
                let Some(&old) = holds.get(id as usize) else {
                    return Err(PyValueError::new_err(format!(
                        "op {row} overwrites tensor {id}, which does not exist"
                    )));
                };
                let Tensor { name, storage } = data.tensors[old].clone();
                let new = data.tensors.push(Tensor { name, storage });
                outputs.push(new);
                mutations.push(Mutation { old, new });
                holds[id as usize] = new;
            }
            data.ops.push(Op {
                name: names[row].clone(),
                kind: kinds[row].clone(),
                phase,
                again: if flags & ONCE == 0 { Again::Pure } else { Again::Never },
                reads,
                outputs,
                mutates: mutations,
                may_reuse,
                after: Vec::new(),
                workspace: Bytes(workspaces[row]),
                work: Work { flops, half_flops, moved: Bytes(moved) },
                line: lines[row].clone(),
            });
        }
        let mut pairs: Vec<Persistent> = persistent
            .iter()
            .map(|&(id, _)| Persistent { begin: TensorId(id), end: holds[id as usize] })
            .collect();
        pairs.sort_by_key(|pair| pair.begin);
        data.persistent = pairs;
        let mut without = data.ops.values().any(|op| !op.may_reuse.is_empty()).then(|| data.clone());
        for (_, op) in without.iter_mut().flat_map(|without| without.ops.iter_mut()) {
            op.may_reuse.clear();
        }
        let checked =
            |data| Trace::new(data).map(Arc::new).map_err(|error| PyValueError::new_err(error.to_string()));
        let trace = checked(data)?;
        let plain = without.map_or_else(|| Ok(trace.clone()), checked)?;
        let costs = Costs { nanos: nanos.into_iter().map(Nanos).collect(), source };
        Ok(Self { trace, plain, costs, pins: None })
    }

    /// Hash of the trace: ranks with equal traces have equal plans.
    #[getter]
    fn fingerprint(&self) -> String {
        self.trace.fingerprint().to_string()
    }

    /// The trace with its durations in the text format of the command's trace files (`docs/formats.md`).
    fn text(&self) -> PyResult<String> {
        let file = TraceFile::new((*self.trace).clone(), Some(self.costs.clone()), None)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(file.to_string())
    }

    /// This iteration under decisions that no plan may change, and what each covers. Where some
    /// decisions may be `unmatched`, those that cover nothing have a number of zero; otherwise they are an error.
    #[pyo3(signature = (pins, *, offload, unmatched=false))]
    fn pin(
        &self,
        pins: Vec<(String, String)>,
        offload: bool,
        unmatched: bool,
    ) -> PyResult<(Self, Vec<Covered>)> {
        let freedom = Freedom { offload, recompute: true, reorder: false };
        let wrong = |error: PinError| PyValueError::new_err(error.to_string());
        let (mut obeyed, mut covered) = (Vec::new(), Vec::new());
        for (verb, pattern) in pins {
            let pin = Pin { verb: verb.parse().map_err(wrong)?, pattern };
            match pins::decide(&self.trace, freedom, std::slice::from_ref(&pin)) {
                Ok(decided) => {
                    covered.extend(decided.pinned.iter().map(|pinned| (pinned.count, pinned.bytes.get())));
                    obeyed.push(pin.clone());
                }
                Err(PinError::Unmatched { .. }) if unmatched => covered.push((0, 0)),
                Err(error) => return Err(wrong(error)),
            }
        }
        let decided = pins::decide(&self.trace, freedom, &obeyed).map_err(wrong)?;
        let pinned = Self {
            trace: decided.trace,
            plain: self.plain.clone(),
            costs: self.costs.clone(),
            pins: Some(decided.pins),
        };
        Ok((pinned, covered))
    }

    /// The schedule that keeps every tensor until its last use, each in bytes of its own.
    fn keep(&self, py: Python<'_>) -> PyResult<Planned> {
        let settings = Settings {
            machine: machine(UNLIMITED, None, Nanos::ZERO)?,
            freedom: Freedom { offload: false, recompute: false, reorder: false },
            budget: Budget::evaluations(1),
            planner: &Keep,
        };
        py.detach(|| self.planned(&self.plain, UNLIMITED, &settings, None))
    }

    /// The largest op, and the bytes of its inputs, outputs and workspace: no limit below can be met.
    fn largest_op(&self) -> (String, u64) {
        let (op, bytes) = self.floor(Freedom::ALL);
        (op.map_or_else(String::new, |op| self.trace.ops()[op].name.clone()), bytes)
    }

    /// A schedule within the limit, as fast as the search finds.
    #[pyo3(signature = (limit, *, link=None, latency=0, host_memory=None, evaluations=None, seconds=None, seed=0, threads=1, planner="auto"))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn plan(
        &self,
        py: Python<'_>,
        limit: u64,
        link: Option<(u64, u64)>,
        latency: u64,
        host_memory: Option<u64>,
        evaluations: Option<u64>,
        seconds: Option<f64>,
        seed: u64,
        threads: usize,
        planner: &str,
    ) -> PyResult<Planned> {
        let settings =
            settings(limit, link, latency, host_memory, evaluations, seconds, seed, threads, planner)?;
        py.detach(|| self.at(Bytes(limit), &settings, self.pins.as_ref()))
    }

    /// The schedule at the smallest limit that the search finds, to within half a percent.
    #[pyo3(signature = (*, link=None, latency=0, host_memory=None, evaluations=None, seconds=None, seed=0, threads=1, planner="auto"))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn smallest(
        &self,
        py: Python<'_>,
        link: Option<(u64, u64)>,
        latency: u64,
        host_memory: Option<u64>,
        evaluations: Option<u64>,
        seconds: Option<f64>,
        seed: u64,
        threads: usize,
        planner: &str,
    ) -> PyResult<Planned> {
        let keep = self.keep(py)?;
        let settings = settings(
            keep.peak_bytes,
            link,
            latency,
            host_memory,
            evaluations,
            seconds,
            seed,
            threads,
            planner,
        )?;
        py.detach(|| self.bisect(keep, &settings))
    }
}

impl Iteration {
    /// Plans at a limit and has the schedule checked. A search that finds nothing among the schedules that reuse bytes may still find one that
    /// reuses none.
    fn at(&self, limit: Bytes, settings: &Settings, pins: Option<&Pins>) -> PyResult<Planned> {
        let found = self.planned(&self.trace, limit, settings, pins);
        if found.is_ok() || pins.is_some() || Arc::ptr_eq(&self.trace, &self.plain) {
            return found;
        }
        self.planned(&self.plain, limit, settings, None).or(found)
    }

    /// Plans a trace at a limit and has the schedule checked.
    fn planned(
        &self,
        trace: &Arc<Trace>,
        limit: Bytes,
        settings: &Settings,
        pins: Option<&Pins>,
    ) -> PyResult<Planned> {
        let machine = settings.machine.clone().with_memory(limit);
        let request = Request {
            trace,
            costs: &self.costs,
            machine: &machine,
            live_limit: limit,
            freedom: settings.freedom,
            packer: None,
            pins,
        };
        let outcome = settings.planner.schedule(&request, &settings.budget, &Silent);
        let Some(schedule) = outcome.best else {
            return Err(InfeasibleError::new_err(self.refusal(limit, &outcome.stop)));
        };
        let fault = |error: String| {
            PyRuntimeError::new_err(format!(
                "the schedule is illegal, which is a fault in elbowroom: {error}"
            ))
        };
        let checked = check::check_schedule(trace.clone(), machine.clone(), schedule, limit)
            .map_err(|illegal| fault(illegal.to_string()))?;
        let schedule = checked.schedule();
        let timeline = elbowroom_sim::simulate(trace, &self.costs, &machine, schedule)
            .map_err(|error| fault(error.to_string()))?;
        let gaps = elbowroom_sched::explain::gap_costs(trace, &self.costs, &machine, schedule, &timeline);
        let lines: Vec<String> = gaps
            .iter()
            .map(|gap| {
                let tensor = &trace.tensors()[gap.value].name;
                format!("{tensor}: {} {:?}, away {}, costs {}", gap.bytes, gap.how, gap.time(), gap.cost)
            })
            .collect();
        let (actions, waits, hash) = (actions(schedule), waits(schedule), trace.fingerprint().to_string());
        Ok(Planned {
            fingerprint: Fingerprint::of(&(hash.as_str(), &actions, &waits)).to_string(),
            trace: hash,
            actions,
            waits,
            boundary: schedule
                .boundary
                .iter()
                .map(|at| (at.device.map(|buffer| buffer.0), at.host))
                .collect(),
            limit_bytes: limit.get(),
            peak_bytes: checked.peak_live().get(),
            nanos: timeline.iteration.get(),
            unlimited_nanos: self.costs.total().get(),
            bound_nanos: elbowroom_sim::bound::lower_bound(&request).get(),
            recomputed: schedule.steps.values().filter(|s| matches!(s.action, Action::Recompute(_))).count(),
            offloaded_bytes: offloaded(trace, schedule),
            evaluations: outcome.evaluations,
            stop: outcome.stop.name(),
            explanation: lines.join("\n"),
            checked,
        })
    }

    /// Bisects between the largest op and the peak that keeps everything.
    fn bisect(&self, keep: Planned, settings: &Settings) -> PyResult<Planned> {
        let pins = self.pins.as_ref();
        let mut works = keep.peak_bytes;
        let mut best = if pins.is_some() { self.at(Bytes(works), settings, pins)? } else { keep };
        let mut too_small = self.floor(settings.freedom).1.saturating_sub(1);
        while works.saturating_sub(too_small) > (works / 200).max(1) {
            let middle = too_small + (works - too_small) / 2;
            match self.at(Bytes(middle), settings, pins) {
                Ok(planned) => {
                    works = planned.peak_bytes.min(middle);
                    best = planned;
                }
                Err(_) => too_small = middle,
            }
        }
        Ok(best)
    }

    /// The op during which the most bytes must be on the device if only this is permitted, and their number.
    fn floor(&self, freedom: Freedom) -> (Option<OpId>, u64) {
        let floor = elbowroom_sim::bound::floor(&self.trace, freedom, Bytes(1));
        floor.map_or((None, 0), |floor| (Some(floor.op), floor.bytes.get()))
    }

    fn refusal(&self, limit: Bytes, stop: &StopReason) -> String {
        match stop {
            StopReason::Infeasible(proof) => match proof.as_ref() {
                Infeasible::Op { op, tensors: needs, held, needed, .. } => {
                    // Equal storages count once.
                    let tensors: BTreeMap<StorageId, (&str, Bytes)> = needs
                        .iter()
                        .map(|&value| {
                            let row = &self.trace.tensors()[value];
                            (row.storage, (row.name.as_str(), self.trace.bytes(value)))
                        })
                        .collect();
                    let mut tensors: Vec<_> = tensors.into_values().collect();
                    tensors.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
                    let listed: Vec<String> =
                        tensors.iter().take(4).map(|(name, bytes)| format!("{name} ({bytes})")).collect();
                    let others = match held.iter().map(|&value| self.trace.bytes(value)).sum::<Bytes>() {
                        Bytes(0) => String::new(),
                        bytes => format!(", and {bytes} of tensors that may not leave the device meanwhile"),
                    };
                    format!(
                        "no schedule exists within {limit}: op {} needs {needed} at once: {}{others}",
                        self.trace.ops()[*op].name,
                        listed.join(", ")
                    )
                }
                Infeasible::Blocks { needed, .. } => {
                    format!("no schedule exists within {limit}: {needed} are needed at once")
                }
            },
            StopReason::GaveUp { best: Some(best) } => {
                format!(
                    "no schedule was found within {limit} (infeasibility not proved); one was found for {best}"
                )
            }
            _ => format!("no schedule was found within {limit} (infeasibility not proved)"),
        }
    }
}

/// The actions, with ids as numbers.
fn actions(schedule: &Schedule) -> Vec<Row> {
    let row = |action: &Action| match action {
        Action::Compute(launch) | Action::Recompute(launch) => {
            let numbers = |ids: &[elbowroom_ir::BufferId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
            let again = u8::from(matches!(action, Action::Recompute(_)));
            (again, launch.op.0, numbers(&launch.reads), numbers(&launch.writes))
        }
        Action::Offload { tensor, from } => (2, tensor.0, vec![from.0], Vec::new()),
        Action::Prefetch { tensor, to } => (3, tensor.0, Vec::new(), vec![to.0]),
        Action::Release { buffer } => (4, buffer.0, Vec::new(), Vec::new()),
        Action::HostRelease { tensor } => (5, tensor.0, Vec::new(), Vec::new()),
    };
    schedule.steps.values().map(|step| row(&step.action)).collect()
}

/// The waits of each action, as positions.
fn waits(schedule: &Schedule) -> Vec<Vec<u32>> {
    schedule.steps.values().map(|step| step.waits.iter().map(|wait| wait.0).collect()).collect()
}

fn offloaded(trace: &Trace, schedule: &Schedule) -> u64 {
    let copied = schedule.steps.values().filter_map(|step| match step.action {
        Action::Offload { tensor, .. } => Some(trace.bytes(tensor).get()),
        _ => None,
    });
    copied.sum()
}

/// A device with this much memory and a link whose copies have a fixed cost. Rates of ops do not matter: every op has its duration.
fn machine(memory: Bytes, link: Option<((u64, u64), Bytes)>, latency: Nanos) -> PyResult<Machine> {
    let ((to_host, to_device), host_memory) = link.unwrap_or(((1, 1), Bytes::ZERO));
    let machine = Machine {
        name: "python".to_owned(),
        memory,
        align: Bytes(1),
        host_memory,
        to_host: Channel { latency, rate: to_host },
        to_device: Channel { latency, rate: to_device },
        shared_link: false,
        flops_per_second: 1,
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    };
    machine
        .validate()
        .map_err(|error| PyValueError::new_err(format!("the machine cannot be planned for: {error}")))?;
    Ok(machine)
}

#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
fn settings(
    limit: u64,
    link: Option<(u64, u64)>,
    latency: u64,
    host_memory: Option<u64>,
    evaluations: Option<u64>,
    seconds: Option<f64>,
    seed: u64,
    threads: usize,
    planner: &str,
) -> PyResult<Settings> {
    let planner = elbowroom_sched::planner(planner)
        .ok_or_else(|| PyValueError::new_err(format!("there is no planner `{planner}`")))?;
    let host = Bytes(host_memory.unwrap_or(1 << 60));
    Ok(Settings {
        machine: machine(Bytes(limit), link.map(|link| (link, host)), Nanos(latency))?,
        freedom: Freedom { offload: link.is_some(), recompute: true, reorder: false },
        budget: Budget { evaluations, time: duration(seconds)?, seed, threads: threads.max(1) },
        planner,
    })
}
