//! Why the peak of a memory snapshot or a trace is where it is: `elbowroom.why` of the Python package.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom::import::{self, ImportError, Imported};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::Silent;
use elbowroom::ir::text::{File, TraceFile};
use elbowroom::machine::UnknownMachine;
use elbowroom::pipeline::{self, Task, sizes};
use elbowroom::registry;
use elbowroom::sim::cost::Roofline;
use elbowroom::sim::presets;
use elbowroom::why::Why;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::pack::duration;

/// The explanation for the content of a file called `name`, as text and as JSON. `machine` is the name of a preset whose link and alignment
/// count where the file states no machine.
#[pyfunction]
#[pyo3(signature = (content, name, machine, seconds))]
pub(crate) fn why(
    py: Python<'_>,
    content: &[u8],
    name: &str,
    machine: &str,
    seconds: f64,
) -> PyResult<(String, String)> {
    let time = duration(Some(seconds))?.unwrap_or_default();
    py.detach(|| {
        let started = Instant::now();
        let task = task(content, name, machine)?;
        let fault = |error: String| PyRuntimeError::new_err(error);
        let packer = registry::packer(registry::DEFAULT_PACKER).map_err(|error| fault(error.to_string()))?;
        let unconstrained =
            pipeline::unconstrained(&task, packer, &Silent).map_err(|error| fault(error.to_string()))?;
        let left: Duration = time.saturating_sub(started.elapsed());
        let why = Why::within(left, &task, None, &unconstrained, &Silent)
            .map_err(|error| fault(error.to_string()))?;
        let json = serde_json::to_string(&why).map_err(|error| fault(error.to_string()))?;
        Ok((why.to_string(), json))
    })
}

/// What is explained: a trace of ours, or an iteration that another program recorded.
fn task(content: &[u8], name: &str, machine: &str) -> PyResult<Task> {
    let wrong = |error: String| PyValueError::new_err(error);
    let file = file(content, name).map_err(|error| wrong(format!("cannot explain {name}: {error}")))?;
    let machine = match file.machine {
        Some(machine) => machine,
        None => presets::machine(machine)
            .ok_or_else(|| wrong(UnknownMachine { name: machine.to_owned() }.to_string()))?,
    };
    let costs = file.costs.unwrap_or_else(|| Costs::estimate(&file.trace, &Roofline::new(&machine)));
    let task = Task { trace: Arc::new(file.trace), costs, machine, freedom: Freedom::ALL, pins: None };
    sizes::expect(&task).map_err(|error| wrong(format!("cannot explain {name}: {error}")))?;
    Ok(task)
}

/// The trace in the bytes of a file, with what the file states about it.
fn file(content: &[u8], name: &str) -> Result<TraceFile, String> {
    let own = match std::str::from_utf8(content) {
        Ok(text) => match text.parse::<File>() {
            Ok(file) => return file.into_trace().map_err(|error| error.to_string()),
            Err(error) => error.to_string(),
        },
        Err(_) => "it is neither a trace nor a memory snapshot".to_owned(),
    };
    match import::import(content, name, &import::Options::default().remake_inputs(false)) {
        Ok(Imported { trace, costs, .. }) => Ok(TraceFile { trace, costs: Some(costs), machine: None }),
        Err(ImportError::UnknownKind { .. }) => Err(own),
        Err(error) => Err(error.to_string()),
    }
}
