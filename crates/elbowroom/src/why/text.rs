//! The explanation of a peak as text: the peak in words, then its groups, then the suggestions.

use std::fmt::{self, Display, Formatter};

use elbowroom_ir::Bytes;

use super::{Group, Moment, Saving, Why};
use crate::layout::{self, Row, SizeUnit, counted, percent, printable, row};

/// Characters of a group's name that are shown. The end of a line of code is what distinguishes it.
const SHOWN: usize = 48;

impl Display for Why {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let of = if self.planned { "the plan" } else { "the iteration without a limit" };
        writeln!(f, "{} on {}: the peak of {of}", printable(&self.trace), printable(&self.machine))?;
        f.write_str(&layout::section("Peak", &self.rows()))?;
        groups(self, f)?;
        suggestions(self, f)
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let phase = format!("{:?}", self.phase).to_lowercase();
        write!(f, "op {}, {} ({phase})", self.number, self.op)?;
        if self.line.is_empty() { Ok(()) } else { write!(f, ", called at {}", self.line) }
    }
}

impl Why {
    /// The figures of the peak.
    fn rows(&self) -> Vec<Row> {
        let place = if self.allocations_only {
            format!("at event {}, {}", self.peak.number, self.peak.op)
        } else {
            format!("during {}", self.peak)
        };
        let kinds: Vec<String> =
            self.kinds.iter().map(|share| format!("{} {}", share.kind.name(), share.bytes)).collect();
        let mut rows = vec![
            row("peak live memory", self.peak_live_bytes, place),
            row(
                "of it",
                kinds.first().cloned().unwrap_or_default(),
                kinds.get(1..).unwrap_or_default().join(", "),
            ),
        ];
        if !self.allocations_only {
            rows.push(row(
                "in use",
                self.in_use_bytes,
                "read or written by the op at the peak: it cannot leave",
            ));
        }
        rows.push(row("arena size", self.arena_bytes, format!("{} fragmentation", self.fragmentation_bytes)));
        if !self.allocations_only {
            rows.push(row(
                "lower bound on limit",
                self.floor_bytes,
                format!("decided by op {}", self.floor_op),
            ));
        }
        if let Some(limit) = self.smallest_limit_bytes {
            rows.push(row("smallest limit found", limit, "smaller ones may work too"));
        }
        if let Some(saving) = &self.prompt_updates {
            let note = format!("less if each update runs right behind its gradient ({})", saving.peak_bytes);
            rows.push(row("order of updates", saving.saved_bytes, note));
        }
        if self.unevaluated_groups > 0 {
            let note = "whose savings were not evaluated: the time ended";
            rows.push(row("groups left out", self.unevaluated_groups, note));
        }
        rows
    }
}

/// The groups as a table.
fn groups(why: &Why, f: &mut Formatter<'_>) -> fmt::Result {
    let sizes = SizeUnit::for_size(why.peak_live_bytes);
    writeln!(f, "\nGroups of tensors, most bytes at the peak first")?;
    writeln!(
        f,
        "  without: how far the peak falls if nothing of the group existed; then another moment is the peak"
    )?;
    let treated = !why.planned && !why.allocations_only;
    if treated {
        writeln!(
            f,
            "  offload, recompute: how far it falls if this is done to what is idle there, and the overhead"
        )?;
    }
    let saved = |group: &Group| sizes.number(why.peak_live_bytes.saturating_sub(group.peak_without_bytes));
    let saving = |saving: &Option<Saving>| match saving {
        Some(saving) => [sizes.number(saving.saved_bytes), percent(saving.overhead)],
        None => ["-".to_owned(), String::new()],
    };
    let line = |group: &Group| {
        let mut cells = vec![
            group.kind.name().to_owned(),
            shortened(&group.module),
            sizes.number(group.bytes),
            group.tensors.to_string(),
            saved(group),
        ];
        if treated {
            cells.extend(saving(&group.offload));
            cells.extend(saving(&group.recompute));
        }
        cells
    };
    let mut head = layout::head([
        ("kind", ""),
        ("module", ""),
        ("at peak", sizes.name),
        ("tensors", ""),
        ("without", sizes.name),
    ]);
    if treated {
        let columns = layout::head([("offload", sizes.name), ("", ""), ("recompute", sizes.name), ("", "")]);
        head.iter_mut().zip(columns).for_each(|(line, more)| line.extend(more));
    }
    let mut rows: Vec<Vec<String>> = why.groups.iter().map(line).collect();
    if !why.other_bytes.is_zero() {
        let mut rest = vec!["others".to_owned(), String::new(), sizes.number(why.other_bytes)];
        rest.resize(head[0].len(), String::new());
        rows.push(rest);
    }
    f.write_str(&layout::table(2, &head, &rows))?;
    let elsewhere =
        |group: &&Group| group.peak_without_bytes == why.peak_live_bytes && group.most_bytes > Bytes::ZERO;
    for group in why.groups.iter().filter(elsewhere) {
        writeln!(
            f,
            "Offloading {} {} saves 0 bytes of the peak: its {} are alive at another time.",
            group.kind.name(),
            printable(&group.module),
            group.most_bytes
        )?;
    }
    Ok(())
}

/// The suggestions as a list.
fn suggestions(why: &Why, f: &mut Formatter<'_>) -> fmt::Result {
    if why.suggestions.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nWhat lowers it ({})", counted(why.suggestions.len() as u64, "suggestion"))?;
    for suggestion in &why.suggestions {
        writeln!(f, "  - {}", printable(&suggestion.text))?;
    }
    Ok(())
}

/// A name without its beginning if it is too long.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= SHOWN {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count + 1 - SHOWN).collect();
    format!("…{end}")
}
