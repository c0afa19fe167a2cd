//! What `--explain` adds to a report: which tensors are offloaded or evicted, what that saves and what it costs.

use std::io;

use elbowroom::choices::{Choice, Choices};
use elbowroom::ir::Nanos;
use elbowroom::pins::{Pinned, Verb};
use serde::Serialize;

use crate::printer::{self, Row, SizeUnit, TimeUnit, counted};

/// Choices shown on the terminal; the rest are summed up, and listed by `--json`.
const SHOWN: usize = 20;

/// A report as one JSON object, with all choices if they were requested.
#[derive(Serialize)]
pub struct Explained<'a, R: Serialize> {
    /// What is reported in any case.
    #[serde(flatten)]
    pub report: &'a R,
    /// The choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<&'a Choices>,
}

/// Prints what the user decided.
fn print_pins(pins: &[Pinned]) -> io::Result<()> {
    let row = |Pinned { pin, count, bytes }: &Pinned| {
        let what = if pin.verb == Verb::NeverRecompute { "op" } else { "tensor" };
        printer::row(pin.verb.name(), counted(*count as u64, what), format!("{bytes}, {}", pin.pattern))
    };
    let rows: Vec<Row> = pins.iter().map(row).collect();
    if rows.is_empty() { Ok(()) } else { printer::section("Pins, all obeyed", &rows) }
}

/// Prints the choices that save most, and the sum of all.
pub fn print(explanation: &Choices) -> io::Result<()> {
    let choices = &explanation.choices;
    let largest = choices.iter().map(|choice| choice.bytes).max().unwrap_or_default();
    let sizes = SizeUnit::for_size(largest);
    let gap = |choice: &Choice| choice.to_ns.saturating_sub(choice.from_ns);
    let times = TimeUnit::for_time(choices.iter().map(gap).max().unwrap_or_default());
    let saved = |amount: f64| sizes.byte_seconds(amount);
    let cost = |time: Nanos| TimeUnit::MILLISECONDS.number(time, 3);
    let line = |choice: &Choice| {
        vec![
            choice.tensor.clone(),
            choice.restored.to_owned(),
            sizes.number(choice.bytes),
            times.number(gap(choice), 3),
            saved(choice.saved_byte_seconds),
            cost(choice.cost_ns),
        ]
    };
    let none = String::new;
    let mut rows: Vec<Vec<String>> = choices.iter().take(SHOWN).map(line).collect();
    let rest = &choices[rows.len()..];
    if !rest.is_empty() {
        let amount = rest.iter().map(|choice| choice.saved_byte_seconds).sum();
        let time = rest.iter().map(|choice| choice.cost_ns).sum();
        rows.push(vec![format!("{} more", rest.len()), none(), none(), none(), saved(amount), cost(time)]);
    }
    let how = format!("{} prefetched, {} recomputed", explanation.prefetched, explanation.recomputed);
    let total = saved(explanation.saved_byte_seconds);
    rows.push(vec!["all".to_owned(), how, none(), none(), total, cost(explanation.cost_ns)]);
    print_pins(&explanation.pins)?;
    printer::line("")?;
    printer::line("Offloaded or evicted tensors, largest saving (bytes x time) first")?;
    printer::line("  cost: time of both copies, or of the recomputed op; copies may overlap with compute")?;
    let amount = format!("{}·s", sizes.name);
    let head = printer::head([
        ("tensor", ""),
        ("restored", ""),
        ("size", sizes.name),
        ("gap", times.name),
        ("saved", &amount),
        ("cost", TimeUnit::MILLISECONDS.name),
    ]);
    printer::table(2, &head, &rows)
}
