//! The JSON field names of the `elbowroom` command: the manifest and the data files use the names of the glossary.

use serde_json::{Map, Value};

use crate::manifest::Fields;

/// Names of the manifest that differ from the printed ones. Most are the same: `unconstrained_peak_bytes`, `arena_bytes`, `peak_live_bytes`.
const NAMES: &[(&str, &str)] = &[("unconstrained_iteration_ns", "unlimited_iteration_ns")];

/// A field of a printed object, by its name in the manifest. A dot descends into an inner object: `plan.predicted_peak_bytes`.
#[must_use]
pub fn get<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some((outer, inner)) = name.split_once('.') {
        return object.get(outer)?.as_object().and_then(|object| get(object, inner));
    }
    let printed = NAMES.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, printed)| printed);
    object.get(printed)
}

/// Keeps the named fields of a record, which may also be those of the object around it. Lists and objects are not kept whole.
#[must_use]
pub fn keep(outer: &Map<String, Value>, record: &Map<String, Value>, names: &[String]) -> Fields {
    let field = |name: &String| {
        let value = get(record, name).or_else(|| get(outer, name)).filter(|value| !value.is_object())?;
        Some((name.clone(), value.clone()))
    };
    names.iter().filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_found_by_the_manifests_name() {
        let printed = json!({"unlimited_iteration_ns": 7, "planner": "bo", "plan": {"arena_bytes": 5}});
        let printed = printed.as_object().unwrap();
        assert_eq!(get(printed, "unconstrained_iteration_ns"), Some(&json!(7)));
        assert_eq!(get(printed, "planner"), Some(&json!("bo")));
        assert_eq!(get(printed, "plan.arena_bytes"), Some(&json!(5)));
        assert_eq!(get(printed, "peak_live_bytes"), None);
    }

    #[test]
    fn a_record_takes_what_it_lacks_from_the_object_around_it() {
        let outer = json!({"trace": "resnet18", "rows": []});
        let row = json!({"planner": "bo", "planning_ns": 12});
        let names = ["trace", "planner", "gone"].map(String::from);
        let kept = keep(outer.as_object().unwrap(), row.as_object().unwrap(), &names);
        assert_eq!(kept.len(), 2);
        assert_eq!(kept["trace"], "resnet18");
        assert_eq!(kept["planner"], "bo");
    }
}
