//! The planner as a Python module, `elbowroom._native`. Python passes an iteration once, as columns; planning returns the actions of a
//! checked schedule. Nothing here knows PyTorch, and the interpreter lock is released while a planner or a packer runs.

#![forbid(unsafe_code)]

mod iteration;
mod pack;
#[cfg(target_os = "linux")]
mod why;

use pyo3::prelude::*;

pyo3::create_exception!(
    elbowroom._native,
    InfeasibleError,
    pyo3::exceptions::PyRuntimeError,
    "No schedule exists within the limit, or none was found."
);

/// The native part of the package `elbowroom`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<iteration::Iteration>()?;
    module.add_class::<iteration::Planned>()?;
    module.add_function(wrap_pyfunction!(iteration::fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(iteration::parse_pins, module)?)?;
    module.add_function(wrap_pyfunction!(pack::place, module)?)?;
    #[cfg(target_os = "linux")]
    module.add_function(wrap_pyfunction!(why::why, module)?)?;
    module.add("InfeasibleError", module.py().get_type::<InfeasibleError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
