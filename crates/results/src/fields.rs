//! The JSON field names of the `elbowroom` command, in one place: the manifest and the data files use the names of this table's first column.

use serde_json::{Map, Value};

use crate::manifest::Fields;

/// The name in the manifest, and the names under which the command may print the field.
const NAMES: &[(&str, &[&str])] = &[
    ("unconstrained_peak_bytes", &["unconstrained_peak_bytes", "natural_peak_bytes"]),
    ("unconstrained_iteration_ns", &["unconstrained_iteration_ns", "unlimited_iteration_ns"]),
    ("arena_bytes", &["arena_bytes", "height_bytes", "height"]),
    ("peak_live_bytes", &["peak_live_bytes", "peak_load_bytes", "peak_load"]),
    ("packing_ns", &["packing_ns", "nanos"]),
    ("predicted_peak_bytes", &["predicted_peak_bytes", "peak_bytes"]),
];

/// A field of a printed object, by its name in the manifest. A dot descends into an inner object: `plan.predicted_peak_bytes`.
#[must_use]
pub fn get<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some((outer, inner)) = name.split_once('.') {
        return object.get(outer)?.as_object().and_then(|object| get(object, inner));
    }
    let printed = NAMES.iter().find(|(ours, _)| *ours == name).map(|(_, printed)| *printed);
    match printed {
        Some(printed) => printed.iter().find_map(|name| object.get(*name)),
        None => object.get(name),
    }
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
    fn fields_are_found_under_either_name() {
        let printed = json!({"natural_peak_bytes": 7, "planner": "bo", "plan": {"height": 5}});
        let printed = printed.as_object().unwrap();
        assert_eq!(get(printed, "unconstrained_peak_bytes"), Some(&json!(7)));
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
