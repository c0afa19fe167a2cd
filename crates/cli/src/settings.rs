//! What the typed words mean: names looked up, defaults filled in, contradictions refused.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use elbowroom::engine::{HostOptions, HostPlace};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::{Channel, Machine};
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::Budget;
use elbowroom::machine::UnknownMachine;
use elbowroom::pipeline::{Evaluations, Method, Rounds};
use elbowroom::registry;
use elbowroom::train::Training;

use crate::args::{FreedomArgs, MachineArgs, PlannerArgs, SearchArgs};
use crate::planners::planners;

/// The planner, the packer and how long to look.
pub fn method(args: &PlannerArgs) -> Result<Method<'static>> {
    let planner = planners([args.planner.as_str()], &args.options, &args.network)?[0];
    let packer = registry::packer(&args.packer)?;
    let method = Method::new(planner, packer, looked(&args.search));
    Ok(match &args.search.evaluations {
        Some(recorded) if recorded.single().is_none() => {
            Method { rounds: Rounds::Recorded(recorded.clone()), ..method }
        }
        _ => method,
    })
}

/// How long a search may take that nothing else bounds.
pub fn time(args: &SearchArgs) -> Duration {
    args.time.unwrap_or(Duration::from_secs(10))
}

/// How long a search may take that is not one of the rounds of a plan.
pub fn budget(args: &SearchArgs) -> Result<Budget> {
    match &args.evaluations {
        Some(recorded) if recorded.single().is_none() => {
            bail!(
                "--evaluations {recorded} lists the rounds of one plan, but this command makes several searches; give one number"
            )
        }
        _ => Ok(looked(args)),
    }
}

/// The evaluations and the time, if they are named, else the time alone. A list of rounds is a record of another search, which no clock changes.
fn looked(args: &SearchArgs) -> Budget {
    let evaluations = args.evaluations.as_ref().and_then(Evaluations::single);
    let time = match &args.evaluations {
        None => Some(time(args)),
        Some(_) => args.time.filter(|_| evaluations.is_some()),
    };
    Budget { evaluations, time, seed: args.seed.unwrap_or(0), threads: threads(args) }
}

/// What may be decided.
pub fn freedom(args: &FreedomArgs) -> Freedom {
    Freedom { offload: !args.no_offload, recompute: !args.no_recompute, reorder: args.reorder }
}

/// The machine of a preset, or `default` without one, with what the user changed about it.
pub fn machine(args: &MachineArgs, default: Machine) -> Result<Machine> {
    let mut machine = match &args.machine {
        Some(name) => {
            elbowroom::sim::presets::machine(name).ok_or_else(|| UnknownMachine { name: name.clone() })?
        }
        None => default,
    };
    if let Some(link) = args.link {
        machine = link.apply(machine);
    }
    if let Some(align) = args.align {
        expect_alignment(align)?;
        machine.align = align;
    }
    Ok(machine)
}

/// Refuses an alignment that is not a power of two.
pub fn expect_alignment(align: Bytes) -> Result<()> {
    if !align.get().is_power_of_two() {
        bail!("an alignment of {} is not a power of two; use 64, 256 or 512, for example", align.get());
    }
    Ok(())
}

/// Where host copies lie, and the link to which copies are slowed down. By default a file in the folder for temporary files if that lies on
/// a disk, or in `/var/tmp`.
pub fn host_at<'a>(host: &str, link: Option<(Channel, Channel)>, training: Training<'a>) -> Training<'a> {
    let place = match host {
        "disk" => return training.host_on_disk(vec![std::env::temp_dir(), "/var/tmp".into()], link),
        "memory" => HostPlace::Memory,
        folder => HostPlace::Folder(PathBuf::from(folder)),
    };
    training.host(HostOptions::default().place(place).link(link))
}

/// Threads that search and compute, all cores if none are named.
pub fn threads(args: &SearchArgs) -> usize {
    args.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |threads| threads as usize,
    )
}
