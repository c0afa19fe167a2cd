//! `elbowroom reproduce`: tables and figures of the papers, computed again.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use elbowroom::{page, plot};
use elbowroom_reproduce::{Bench, ITEMS, Item, Row, Sheet, item, run as compute};

use crate::Answer;
use crate::args::ReproduceArgs;
use crate::files::Folder;
use crate::progress::Progress;
use crate::{files, printer, signals};

/// Runs the command.
pub fn run(args: &ReproduceArgs) -> Result<Answer> {
    if args.names.is_empty() {
        return list(args);
    }
    let items = chosen(&args.names)?;
    let _folder = args.output.as_deref().map(Folder::make).transpose()?;
    let progress = Progress::new("reading");
    signals::catch();
    let stages = |what: &str| progress.stage_begins(what.to_owned());
    let bench = if args.quick { Bench::quick(&progress) } else { Bench::full(&progress) }.stages(&stages);
    let mut rows: Vec<Row> = Vec::new();
    for item in items {
        if signals::interrupted() {
            break;
        }
        progress.stage_begins(item.name);
        let sheet = compute(item, &bench).with_context(|| format!("{} cannot be computed", item.name))?;
        if !args.json {
            progress.above(|| print(item, &sheet))?;
        }
        if let Some(folder) = &args.output {
            let title = format!("{} ({:?} et al., {}): {}", item.name, item.paper, item.place, item.title);
            let page = page::document(&title, &body(&sheet), "");
            files::write(Some(&folder.join(format!("{}.html", item.name))), &page)?;
            for (i, curves) in sheet.curves.iter().enumerate() {
                let title = format!("{}: {}", item.name, curves.title);
                let picture = plot::curves(&title, curves.axes, &curves.lines);
                files::write(Some(&folder.join(format!("{}-{}.svg", item.name, i + 1))), &picture)?;
            }
        }
        rows.extend(sheet.rows);
    }
    drop(progress);
    if args.json {
        printer::json(&rows)?;
    }
    if let Some(folder) = &args.output {
        files::write(Some(&folder.join("reproduce.json")), &(serde_json::to_string_pretty(&rows)? + "\n"))?;
    }
    Ok(Answer::Yes)
}

/// The items of these names; `all` stands for every one.
fn chosen(names: &[String]) -> Result<Vec<&'static Item>> {
    if names.iter().any(|name| name == "all") {
        return Ok(ITEMS.iter().collect());
    }
    let find = |name: &String| match item(name) {
        Some(item) => Ok(item),
        None => bail!("there is no table or figure called `{name}`; `elbowroom reproduce` lists all names"),
    };
    names.iter().map(find).collect()
}

/// Prints the names of all items.
fn list(args: &ReproduceArgs) -> Result<Answer> {
    if args.quick || args.output.is_some() {
        bail!("name a table or figure to compute, or all of them by `all`");
    }
    if args.json {
        printer::json(&ITEMS.iter().map(|item| item.name).collect::<Vec<_>>())?;
        return Ok(Answer::Yes);
    }
    let rows: Vec<Vec<String>> = ITEMS
        .iter()
        .map(|item| vec![item.name.to_owned(), item.title.to_owned(), item.place.to_owned()])
        .collect();
    printer::table(3, &printer::head([("name", ""), ("what", ""), ("where in the paper", "")]), &rows)?;
    Ok(Answer::Yes)
}

/// A number with about four digits that count.
fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let size = value.abs();
    match () {
        () if size >= 10_000.0 => printer::grouped(value.round() as u64),
        () if size >= 100.0 => format!("{value:.0}"),
        () if size >= 10.0 => format!("{value:.1}"),
        () if size > 0.0 && size < 2.0 => format!("{value:.3}"),
        () if value == 0.0 => "0".to_owned(),
        () => format!("{value:.2}"),
    }
}

/// The contents of the page of a sheet: its curves, then its table with the reasons for differences.
fn body(sheet: &Sheet) -> String {
    let mut body = String::new();
    for curves in &sheet.curves {
        let title = page::escaped(&curves.title);
        let picture = plot::curves(&curves.title, curves.axes, &curves.lines);
        body += &format!("<figure aria-label=\"{title}\">{picture}</figure>\n");
    }
    body += "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table of all figures\"><table id=\"rows\">\n<tr>";
    for name in ["row", "unit", "paper", "ours", "ratio", "reason for a difference"] {
        body += &format!("<th scope=\"col\">{name}</th>");
    }
    body += "</tr>\n";
    for row in &sheet.rows {
        let figure = |value: Option<f64>| {
            let text = number(value);
            value.map_or(text.clone(), |value| format!("<data value=\"{value}\">{text}</data>"))
        };
        let ratio = row
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("<data value=\"{ratio}\">{ratio:.3}</data>"));
        body += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{ratio}</td><td>{}</td></tr>\n",
            page::escaped(&row.row),
            page::escaped(row.unit),
            figure(row.paper),
            figure(row.ours),
            page::escaped(&row.reason)
        );
    }
    body + "</table></div>\n"
}

/// Prints one table; reasons stand below it, each once.
fn print(item: &Item, sheet: &Sheet) -> std::io::Result<()> {
    printer::line("")?;
    printer::line(&format!("{} ({:?} et al., {}): {}", item.name, item.paper, item.place, item.title))?;
    let mut reasons: Vec<&str> = Vec::new();
    let rows: Vec<Vec<String>> = sheet
        .rows
        .iter()
        .map(|row| {
            let note = if row.reason.is_empty() {
                String::new()
            } else {
                let at = reasons.iter().position(|reason| *reason == row.reason).unwrap_or_else(|| {
                    reasons.push(&row.reason);
                    reasons.len() - 1
                });
                format!("[{}]", at + 1)
            };
            let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
            vec![row.row.clone(), row.unit.to_owned(), number(row.paper), number(row.ours), ratio, note]
        })
        .collect();
    let columns = [("", ""), ("unit", ""), ("paper", ""), ("ours", ""), ("ratio", ""), ("note", "")];
    printer::table(2, &printer::head(columns)[..1], &rows)?;
    let timed: BTreeSet<&str> =
        sheet.rows.iter().filter(|row| !row.exact).map(|row| row.reason.as_str()).collect();
    for (number, reason) in reasons.iter().enumerate() {
        let timed = if timed.contains(reason) { " (timed)" } else { "" };
        printer::line(&format!("  [{}] {reason}{timed}", number + 1))?;
    }
    Ok(())
}
