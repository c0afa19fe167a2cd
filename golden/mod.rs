//! How tests read the golden cases; a module of each test that does, by path.

use serde_json::Value;

/// A file of this folder. Panics if it is missing: every checkout has it.
pub fn json(file: &str) -> Value {
    let path = format!("{}/../../golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}
