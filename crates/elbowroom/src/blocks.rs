//! The planner of [`elbowroom_alloc::device`]: when to offload and prefetch the blocks of a program that runs its own operations.
//!
//! ```
//! use elbowroom::alloc::device::Device;
//! use elbowroom::blocks::Swap;
//!
//! let device = Device::new(1 << 20, Some(Box::new(Swap::default())));
//! # assert_eq!(device.stats().plans, 0);
//! ```

use std::sync::Arc;

use elbowroom_alloc::device::SwapPlanner;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Costs, Freedom, Planner};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_pack::Auto;
use elbowroom_sched::offload::autoswap::BestScore;

use crate::pipeline::{Method, Task, plan};
use crate::registry;

/// Plans with the pipeline: a swap schedule first, a placement second (Zhang, section V).
pub struct Swap {
    planner: &'static dyn Planner,
    to_host: u64,
    to_device: u64,
    shared: bool,
}

impl Default for Swap {
    /// Zhang's AutoSwap.
    fn default() -> Self {
        Self::by(&BestScore)
    }
}

impl Swap {
    /// The planner of a name; `None` if there is none. One that cannot do without running operations again, or in another order, plans
    /// nothing here, because the program's operations are its own.
    pub fn with(name: &str) -> Option<Self> {
        registry::planner(name).ok().map(Self::by)
    }

    fn by(planner: &'static dyn Planner) -> Self {
        Self { planner, to_host: COPIES, to_device: COPIES, shared: true }
    }

    /// Sets the bytes per second of copies in each direction, and whether the directions share one link. The default is 8 GB/s, shared, as
    /// for copies within the host; a GPU's directions are apart.
    #[must_use]
    pub fn link(self, to_host: u64, to_device: u64, shared: bool) -> Self {
        Self { to_host: to_host.max(1), to_device: to_device.max(1), shared, ..self }
    }
}

/// Bytes per second of a copy within the host's memory, and of an operation whose time was too short to be measured.
const COPIES: u64 = 8_000_000_000;

impl SwapPlanner for Swap {
    fn plan(&self, trace: &Trace, costs: &Costs, limit: Bytes, align: Bytes) -> Option<CheckedPlan> {
        let machine = Machine {
            name: "blocks".to_owned(),
            memory: limit,
            align,
            // No limit: the program has asked for these bytes.
            host_memory: Bytes(1 << 60),
            to_host: Channel::with_rate(self.to_host),
            to_device: Channel::with_rate(self.to_device),
            shared_link: self.shared,
            flops_per_second: COPIES,
            half_flops_per_second: None,
            bytes_per_second: COPIES,
            launch: Nanos::ZERO,
        };
        let freedom = Freedom { offload: true, recompute: false, reorder: false };
        let task =
            Task { trace: Arc::new(trace.clone()), costs: costs.clone(), machine, freedom, pins: None };
        let method = Method::new(self.planner, &Auto, Budget::default()).at_once();
        let planned = plan(&task, &method, &Silent).ok()?;
        Arc::try_unwrap(planned.plan).ok()
    }
}
