//! Compares a new measurement with the recorded one, number by number, and tests what an entry requires.

use serde_json::Value;

use crate::data::{Data, Run};
use crate::manifest::{Entry, Fields, Requirement, matches};

/// Every difference beyond the tolerance, one sentence each.
#[must_use]
pub fn differences(recorded: &[Run], measured: &[Run], tolerance: f64) -> Vec<String> {
    if recorded.len() != measured.len() {
        return vec![format!("{} runs are recorded, {} were made", recorded.len(), measured.len())];
    }
    recorded.iter().zip(measured).flat_map(|(old, new)| of_run(old, new, tolerance)).collect()
}

fn of_run(old: &Run, new: &Run, tolerance: f64) -> Vec<String> {
    let name = describe(&new.case);
    if old.case != new.case {
        return vec![format!("{name}: recorded is {}", describe(&old.case))];
    }
    if old.records.len() != new.records.len() {
        return vec![format!("{name}: {} records, recorded are {}", new.records.len(), old.records.len())];
    }
    let mut found = Vec::new();
    for (number, (old, new)) in old.records.iter().zip(&new.records).enumerate() {
        let missing = old.keys().filter(|field| !new.contains_key(*field));
        for field in new.keys().chain(missing) {
            let (before, now) =
                (old.get(field).unwrap_or(&Value::Null), new.get(field).unwrap_or(&Value::Null));
            if !equal(before, now, tolerance) {
                found.push(format!("{name}, record {}: {field} is {now}, recorded is {before}", number + 1));
            }
        }
    }
    found
}

/// Whether two values agree: numbers within the relative tolerance, lists element by element, all else exactly.
#[must_use]
pub fn equal(before: &Value, now: &Value, tolerance: f64) -> bool {
    match (before, now) {
        (Value::Number(before), Value::Number(now)) => {
            before == now
                || before
                    .as_f64()
                    .zip(now.as_f64())
                    .is_some_and(|(a, b)| (a - b).abs() <= tolerance * a.abs().max(b.abs()))
        }
        (Value::Array(before), Value::Array(now)) => {
            before.len() == now.len() && before.iter().zip(now).all(|(a, b)| equal(a, b, tolerance))
        }
        _ => before == now,
    }
}

/// Every requirement of an entry that a record breaks, one sentence each.
#[must_use]
pub fn broken(entry: &Entry, data: &Data) -> Vec<String> {
    let mut found = Vec::new();
    for record in data.records(entry) {
        for require in entry.require.iter().filter(|require| matches(&record, &require.filter)) {
            if let Some(why) = broken_by(require, &record) {
                found.push(format!("{}: {why}", describe(&record)));
            }
        }
    }
    found
}

fn broken_by(require: &Requirement, record: &Fields) -> Option<String> {
    let field = &require.field;
    let Some(value) = record.get(field).filter(|value| !value.is_null()) else {
        return Some(format!("{field} is missing"));
    };
    if let Some(wanted) = &require.equals {
        let wanted = wanted.as_str().and_then(|name| record.get(name)).unwrap_or(wanted);
        return (!equal(value, wanted, 0.0)).then(|| format!("{field} is {value}, but must be {wanted}"));
    }
    let number = value.as_f64()?;
    let above = require.at_most.filter(|&most| number > most);
    let below = require.at_least.filter(|&least| number < least);
    above
        .map(|most| format!("{field} is {value}, but must be at most {most}"))
        .or_else(|| below.map(|least| format!("{field} is {value}, but must be at least {least}")))
}

fn describe(fields: &Fields) -> String {
    let pairs: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { "the only run".to_owned() } else { pairs.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(records: Value) -> Run {
        Run { case: Fields::new(), records: serde_json::from_value(records).unwrap() }
    }

    #[test]
    fn numbers_agree_within_the_tolerance() {
        assert!(equal(&json!(100), &json!(100), 0.0));
        assert!(!equal(&json!(100), &json!(101), 0.0));
        assert!(equal(&json!(100), &json!(101), 0.01));
        assert!(!equal(&json!(100), &json!(102), 0.01));
        assert!(equal(&json!(0.0), &json!(-0.0), 0.0));
        assert!(!equal(&json!(0.0), &json!(1e-9), 0.5));
        assert!(equal(&json!([1.0, 2.0]), &json!([1.0, 2.01]), 0.01));
        assert!(!equal(&json!([1.0]), &json!([1.0, 2.0]), 0.5));
        assert!(!equal(&json!("bo"), &json!("doa"), 0.5));
        assert!(!equal(&Value::Null, &json!(1), 0.5));
    }

    #[test]
    fn a_difference_names_the_field_and_both_values() {
        let old = [run(json!([{"planner": "bo", "overhead": 0.25}]))];
        assert!(differences(&old, &old, 0.0).is_empty());
        let new = [run(json!([{"planner": "bo", "overhead": 0.5}]))];
        assert_eq!(
            differences(&old, &new, 0.1),
            ["the only run, record 1: overhead is 0.5, recorded is 0.25"]
        );
        let gone = [run(json!([{"planner": "bo"}]))];
        assert_eq!(
            differences(&old, &gone, 0.1),
            ["the only run, record 1: overhead is null, recorded is 0.25"]
        );
        assert_eq!(differences(&old, &[run(json!([]))], 0.1).len(), 1);
        assert_eq!(differences(&old, &[], 0.1).len(), 1);
    }

    #[test]
    fn requirements_bound_and_equate_fields() {
        let record: Fields =
            serde_json::from_value(json!({"measured": 5, "predicted": 5, "equal": true})).unwrap();
        let require = |text: &str| toml::from_str::<Requirement>(text).unwrap();
        let broken = |text: &str| broken_by(&require(text), &record);
        assert_eq!(broken("field = 'measured'\nequals = 'predicted'"), None);
        assert_eq!(broken("field = 'equal'\nequals = true"), None);
        assert_eq!(broken("field = 'measured'\nat_most = 5.0"), None);
        assert!(broken("field = 'measured'\nat_most = 4.0").is_some());
        assert!(broken("field = 'measured'\nat_least = 6.0").is_some());
        assert!(broken("field = 'equal'\nequals = false").is_some());
        assert!(broken("field = 'gone'\nequals = 1").is_some());
    }
}
