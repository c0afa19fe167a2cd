//! The printer. The parser reads its output back, equal in every field.

use std::fmt::{self, Display, Formatter, Write};

use super::{File, PlanFile, TraceFile};
use crate::Bytes;
use crate::machine::{Channel, Machine};
use crate::packing::Placement;
use crate::schedule::{Action, BoundaryState, Launch, Schedule, Step};
use crate::trace::{Again, Op, Phase, Work};

impl Display for File {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(file) => file.fmt(f),
            Self::Plan(file) => file.fmt(f),
        }
    }
}

impl Display for TraceFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let trace = &self.trace;
        writeln!(f, "elbowroom trace 1\nname {}", Quoted(trace.name()))?;
        if let Some(machine) = &self.machine {
            writeln!(f, "{}", MachineLine(machine))?;
        }
        if let Some(costs) = &self.costs {
            writeln!(f, "costs {}", costs.source.name())?;
        }
        for (id, storage) in trace.storages().iter() {
            writeln!(f, "{id} {}", storage.bytes.get())?;
        }
        for (id, tensor) in trace.tensors().iter() {
            writeln!(f, "{id} {} {}", tensor.storage, Quoted(&tensor.name))?;
        }
        for (id, op) in trace.ops().iter() {
            write!(f, "{id} {}", OpFields(op))?;
            if let Some(nanos) = self.costs.as_ref().and_then(|costs| costs.nanos.get(id)) {
                write!(f, " nanos {}", nanos.get())?;
            }
            writeln!(f)?;
        }
        for pair in trace.persistent() {
            writeln!(f, "persistent {}->{}", pair.begin, pair.end)?;
        }
        Ok(())
    }
}

impl Display for PlanFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "elbowroom plan 1\ntrace {}", self.plan.trace)?;
        writeln!(f, "{}", MachineLine(&self.machine))?;
        let placement = &self.plan.placement;
        writeln!(f, "height {}", placement.height.get())?;
        schedule(f, &self.plan.schedule, Some(placement))
    }
}

/// The lines of a plan that say when things happen, without offsets.
impl Display for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        schedule(f, self, None)
    }
}

fn schedule(f: &mut Formatter<'_>, schedule: &Schedule, placement: Option<&Placement>) -> fmt::Result {
    for (id, buffer) in schedule.buffers.iter() {
        write!(f, "{id} {}", buffer.bytes.get())?;
        if let Some(offset) = placement.and_then(|placement| placement.offsets.get(id)) {
            write!(f, " at {}", offset.get())?;
        }
        writeln!(f)?;
    }
    for at_boundary in &schedule.boundary {
        writeln!(f, "{at_boundary}")?;
    }
    for (id, step) in schedule.steps.iter() {
        writeln!(f, "{id} {step}")?;
    }
    Ok(())
}

impl Display for BoundaryState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("home")?;
        if let Some(buffer) = self.device {
            write!(f, " {buffer}")?;
        }
        if self.host { f.write_str(" host") } else { Ok(()) }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        list(f, "waits", &self.waits)
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(launch) => write!(f, "compute {launch}"),
            Self::Recompute(launch) => write!(f, "recompute {launch}"),
            Self::Offload { tensor: value, from } => write!(f, "offload {value} from {from}"),
            Self::Prefetch { tensor: value, to } => write!(f, "prefetch {value} to {to}"),
            Self::Release { buffer } => write!(f, "release {buffer}"),
            Self::HostRelease { tensor: value } => write!(f, "host-release {value}"),
        }
    }
}

impl Display for Launch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        list(f, "reads", &self.reads)?;
        list(f, "writes", &self.writes)?;
        match self.workspace {
            Some(buffer) => write!(f, " workspace {buffer}"),
            None => Ok(()),
        }
    }
}

struct OpFields<'a>(&'a Op);

impl Display for OpFields<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let op = self.0;
        if super::line::is_bare(&op.kind) {
            f.write_str(&op.kind)?;
        } else {
            write!(f, "{}", Quoted(&op.kind))?;
        }
        write!(f, " {} {}", Quoted(&op.name), phase(op.phase))?;
        match op.again {
            Again::Pure => f.write_str(" pure")?,
            Again::Rng { stream } => write!(f, " rng {stream}")?,
            Again::Never => f.write_str(" never")?,
        }
        list(f, "reads", &op.reads)?;
        list(f, "makes", &op.outputs)?;
        pairs(f, "mutates", op.mutates.iter().map(|m| (m.old, m.new)))?;
        pairs(f, "reuses", op.may_reuse.iter().map(|r| (r.input, r.output)))?;
        list(f, "after", &op.after)?;
        let Bytes(moved) = op.work.moved;
        let Work { flops, half_flops, .. } = op.work;
        for (word, number) in [
            ("workspace", op.workspace.get()),
            ("flops", flops),
            ("half-flops", half_flops),
            ("moved", moved),
        ] {
            if number != 0 {
                write!(f, " {word} {number}")?;
            }
        }
        if !op.line.is_empty() {
            write!(f, " line {}", Quoted(&op.line))?;
        }
        Ok(())
    }
}

struct MachineLine<'a>(&'a Machine);

impl Display for MachineLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let machine = self.0;
        let channel = |c: Channel| format!("{} {}", c.latency.get(), c.rate);
        write!(
            f,
            "machine {} memory {} align {} host-memory {} to-host {} to-device {} link {} flops-per-second {} \
             bytes-per-second {} launch {}",
            Quoted(&machine.name),
            machine.memory.get(),
            machine.align.get(),
            machine.host_memory.get(),
            channel(machine.to_host),
            channel(machine.to_device),
            if machine.shared_link { "shared" } else { "separate" },
            machine.flops_per_second,
            machine.bytes_per_second,
            machine.launch.get(),
        )?;
        machine.half_flops_per_second.map_or(Ok(()), |rate| write!(f, " half-flops-per-second {rate}"))
    }
}

/// A word and the items after it; nothing for an empty list.
fn list<T: Display>(f: &mut Formatter<'_>, word: &str, items: &[T]) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, " {word}")?;
    items.iter().try_for_each(|item| write!(f, " {item}"))
}

fn pairs<T: Display>(f: &mut Formatter<'_>, word: &str, pairs: impl Iterator<Item = (T, T)>) -> fmt::Result {
    let printed: Vec<String> = pairs.map(|(from, to)| format!("{from}->{to}")).collect();
    list(f, word, &printed)
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

/// A string in quotes, on one line whatever it contains.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
