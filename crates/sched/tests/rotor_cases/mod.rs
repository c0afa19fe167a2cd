//! Chains of the golden cases of `rotor`.

use elbowroom_ir::Nanos;
use elbowroom_sched::recompute::profile::Profile;
use serde_json::Value;

pub fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
}

/// What rotor knows of the chain of a case.
pub fn profile(instance: &Value) -> Profile {
    let list = |key: &str| numbers(&instance[key]);
    let times = |key: &str| list(key).into_iter().map(Nanos).collect();
    Profile {
        forward: times("uF"),
        backward: times("uB"),
        plain: list("x"),
        saved: list("xbar"),
        forward_extra: list("exF"),
        backward_extra: list("exB"),
    }
}
