//! What `--explain` adds to a report: which values were chosen to leave the device, what that saves and what it costs.

use std::io;

use elbowroom::choices::{Choice, Choices};
use elbowroom::ir::Bytes;
use serde::Serialize;

use crate::printer;

/// Choices shown on the terminal; the rest are counted, and listed by `--json`.
const SHOWN: usize = 20;

/// A report as one JSON object, with all choices if they were asked for.
#[derive(Serialize)]
pub struct Explained<'a, R: Serialize> {
    /// What is reported in any case.
    #[serde(flatten)]
    pub report: &'a R,
    /// The choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<&'a Choices>,
}

/// Prints the choices that save most, and the sum of all.
pub fn print(explanation: &Choices) -> io::Result<()> {
    printer::blank()?;
    let row = |choice: &Choice| {
        [
            choice.tensor.clone(),
            choice.restored.to_owned(),
            choice.bytes.to_string(),
            (choice.to_ns.saturating_sub(choice.from_ns)).to_string(),
            byte_seconds(choice.saved_byte_seconds),
            choice.cost_ns.to_string(),
        ]
    };
    let mut rows: Vec<[String; 6]> = explanation.choices.iter().take(SHOWN).map(row).collect();
    let rest = &explanation.choices[rows.len()..];
    let none = String::new;
    if !rest.is_empty() {
        let saved = rest.iter().map(|choice| choice.saved_byte_seconds).sum();
        let cost = rest.iter().map(|choice| choice.cost_ns).sum::<elbowroom::ir::Nanos>();
        let more = format!("{} more", rest.len());
        rows.push([more, none(), none(), none(), byte_seconds(saved), cost.to_string()]);
    }
    let saved = byte_seconds(explanation.saved_byte_seconds);
    let how = format!("{} prefetched, {} recomputed", explanation.prefetched, explanation.recomputed);
    rows.push(["all".to_owned(), how, none(), none(), saved, explanation.cost_ns.to_string()]);
    printer::table(&["value", "comes back", "size", "away for", "saves", "costs"], rows)
}

/// Bytes × seconds: `1.5 GiB·s`.
fn byte_seconds(amount: f64) -> String {
    format!("{}·s", Bytes(amount.round() as u64))
}
