//! Dynamic iterations of a session.

use std::sync::Arc;

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::order::Order;
use elbowroom_ir::trace::Trace;

use super::{Session, SessionState, Shrink, trace};
use crate::arena::Extent;
use crate::device::{Exchange, IterationKey};
use crate::dynamic::dry_run::{DryRunDevice, NullTier};
use crate::dynamic::host_space::HostNeeds;
use crate::dynamic::{DynamicExecution, DynamicReport, DynamicRun, RunSetup};
use crate::error::{EngineError, HostError};
use crate::persistent::PersistentLocation;

impl Session {
    /// Runs one dynamic iteration, that is, without a plan: see [`dynamic`](crate::dynamic). `iteration` is its number, as for
    /// [`run_iteration`](Self::run_iteration); the batches are those in the input slots.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if an op does not fit within the limit; [`EngineError::ForeignOrder`] if the order is not for this graph.
    /// After any other error than the latter the session is unusable.
    pub fn run_dynamic(
        &mut self,
        iteration: u64,
        mut run_dynamic: DynamicExecution<'_>,
    ) -> Result<DynamicReport, EngineError> {
        self.expect_usable()?;
        let trace = self.trace_for(run_dynamic.order)?;
        self.broken = true;
        let needs = HostNeeds::new(&self.graph, &trace, run_dynamic.order);
        let (locations, host) = self.host_layout(&needs)?;
        self.move_persistent(&locations, host, Shrink::No)?;
        let SessionState::Idle(memory) = &mut self.state else { return Err(EngineError::Broken) };
        let setup = RunSetup {
            trace: &trace,
            device: &*memory.device,
            needs: &needs,
            key: IterationKey { seed: self.options.seed, iteration, rate: self.rate },
            exchange: &mut memory.exchange,
            align: self.align as usize,
            host,
        };
        let mut run = prepare_run(setup, run_dynamic.reborrow(), &self.graph, &memory.locations)?;
        // The first access to a page costs time, which would distort the durations measured for the first ops.
        memory.device.commit(self.dynamic_peak.take().unwrap_or_default());
        self.pool.install(|| run.run())?;
        for (parameter, location) in self.graph.persistent.iter().zip(&mut memory.locations) {
            let (offset, host) = run.location(parameter.end);
            location.device = offset.map(|offset| Extent { offset, len: location.bytes });
            location.host = host;
        }
        let report = run.report();
        self.broken = false;
        Ok(report)
    }

    /// Makes the same decisions as [`run_dynamic`](Self::run_dynamic) without running an op or a copy, and returns the report of that iteration
    /// with all durations zero. The session does not change. A real iteration takes the same course if its decider makes the same
    /// decisions.
    ///
    /// # Errors
    /// As [`run_dynamic`](Self::run_dynamic); the session stays usable.
    pub fn dry_run(&mut self, mut run_dynamic: DynamicExecution<'_>) -> Result<DynamicReport, EngineError> {
        self.expect_usable()?;
        let trace = self.trace_for(run_dynamic.order)?;
        let needs = HostNeeds::new(&self.graph, &trace, run_dynamic.order);
        let (locations, host) = self.host_layout(&needs)?;
        let device = DryRunDevice { limit: self.limit()?, host: NullTier };
        let mut exchange = Exchange::default();
        let setup = RunSetup {
            trace: &trace,
            device: &device,
            needs: &needs,
            key: IterationKey::default(),
            exchange: &mut exchange,
            align: self.align as usize,
            host,
        };
        let mut run = prepare_run(setup, run_dynamic.reborrow(), &self.graph, &locations)?;
        run.run()?;
        let report = run.report();
        self.dynamic_peak = Some(report.measured_peak);
        Ok(report)
    }

    /// Where the persistent tensors are when a dynamic iteration starts, and the size of its host tier: the current tier if it is large enough,
    /// otherwise a new one that obeys the limit on host memory.
    fn host_layout(&self, needs: &HostNeeds) -> Result<(Vec<PersistentLocation>, Bytes), EngineError> {
        let (mut locations, now) = (self.locations()?, self.host_bytes());
        let size = self.host_memory.min(Bytes(needs.most as u64));
        if now >= size {
            return Ok((locations, now));
        }
        let mut end = 0;
        for location in locations.iter_mut().filter(|location| location.host.is_some()) {
            location.host = Some(end);
            end += location.bytes;
        }
        let needed = Bytes(end as u64);
        if needed > size {
            return Err(HostError::Limit { needed, limit: self.host_memory }.into());
        }
        Ok((locations, size))
    }

    /// The trace of the current graph. An error if the order was made for another trace.
    fn trace_for(&mut self, order: &Order) -> Result<Arc<Trace>, EngineError> {
        let trace = match &self.trace {
            Some(trace) => Arc::clone(trace),
            None => Arc::new(trace(&self.graph)?),
        };
        self.trace = Some(Arc::clone(&trace));
        // An order is what its trace makes of its ops. To make it again proves that it is for this trace, which equal fingerprints do not.
        let ours = Order::new(&trace, order.ops().to_vec());
        if ours.is_ok_and(|ours| ours == *order) {
            Ok(trace)
        } else {
            Err(EngineError::ForeignOrder(self.graph.name.clone()))
        }
    }
}

/// Prepares a dynamic run in which the persistent tensors start at their current locations.
fn prepare_run<'a>(
    setup: RunSetup<'a>,
    run_dynamic: DynamicExecution<'a>,
    graph: &Graph,
    locations: &[PersistentLocation],
) -> Result<DynamicRun<'a>, EngineError> {
    let mut run = DynamicRun::new(setup, run_dynamic);
    for (parameter, place) in graph.persistent.iter().zip(locations) {
        let at = place.device.map(|extent| extent.offset);
        if !run.register(parameter.begin, at, place.host) {
            return Err(EngineError::Broken);
        }
    }
    Ok(run)
}
