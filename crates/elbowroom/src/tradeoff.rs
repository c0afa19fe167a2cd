//! A comparison of planners as a page: overhead against memory, one line for each planner, and the region below the lower bound.
//!
//! Every point that has a plan is a link to the page of that plan.

use std::fmt::Write;

use elbowroom_ir::Nanos;

use crate::compare::Row;
use crate::page::{document, escaped};
use crate::plot::{COLOURS, HIGHEST, ticks};
use crate::report::PlanReport;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 26.0;
/// Room for half of the last number of the axis.
const RIGHT: f64 = 24.0;
/// Width and height of an arrow with its number.
const ARROW: (f64, f64) = (52.0, 16.0);

/// Shows and hides the lines of planners.
const SCRIPT: &str = r#"
for (const box of document.querySelectorAll("input[data-line]"))
  box.addEventListener("change", () => { document.getElementById(box.dataset.line).hidden = !box.checked; document.getElementById(box.dataset.line).style.display = box.checked ? "" : "none"; });
"#;

/// A comparison to draw.
#[derive(Clone, Copy, Debug)]
pub struct Tradeoff<'a> {
    /// The heading, a text.
    pub title: &'a str,
    /// Iteration time without a limit, to which overheads refer.
    pub unlimited: Nanos,
    /// The rows of the comparison.
    pub rows: &'a [Row],
    /// The page of each row's plan, relative to the page of the comparison; `None` without a plan. As many as rows.
    pub pages: &'a [Option<String>],
}

/// Where points lie on the chart.
struct Scale {
    left: f64,
    right: f64,
    high: f64,
}

impl Scale {
    fn x(&self, percent: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (percent - self.left) / (self.right - self.left)
    }

    /// Percent above the axis lie at its end.
    fn y(&self, percent: f64) -> f64 {
        TOP + HEIGHT * (1.0 - percent.clamp(0.0, self.high) / self.high)
    }
}

impl Tradeoff<'_> {
    /// The page.
    pub fn html(&self) -> String {
        let mut body = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            body,
            "<section aria-labelledby=\"chart-heading\">\n<h2 id=\"chart-heading\">Overhead against memory</h2>\n\
             <p>Each line is a planner, each point a plan: choose one to see it. No plan lies in the grey region, below the lower bound. \
             Arrows at the upper edge stand for plans with larger overheads, which are written next to them.</p>\n"
        );
        self.legend(&mut body);
        self.chart(&mut body);
        body += "</section>\n<section aria-labelledby=\"table-heading\">\n<h2 id=\"table-heading\">All plans</h2>\n";
        self.table(&mut body);
        body += "</section>\n";
        document(self.title, &body, SCRIPT)
    }

    /// Planners in the order of their first rows.
    fn planners(&self) -> Vec<&'static str> {
        let mut planners: Vec<&'static str> = Vec::new();
        for row in self.rows {
            if !planners.contains(&row.planner) {
                planners.push(row.planner);
            }
        }
        planners
    }

    fn scale(&self) -> Scale {
        let shares = || self.rows.iter().map(|row| 100.0 * row.share);
        let (left, right) = (shares().fold(100.0, f64::min), shares().fold(0.0, f64::max));
        let overheads = self.rows.iter().flat_map(|row| [row.overhead, Some(self.bound(row))]).flatten();
        let high = overheads.map(|overhead| 100.0 * overhead).fold(5.0, f64::max).min(HIGHEST);
        // One limit alone has some room around it.
        let (left, right) = if right - left < 1.0 { (left - 1.0, right + 1.0) } else { (left, right) };
        Scale { left, right, high: 1.05 * high }
    }

    /// Overhead of the lower bound at a row's limit.
    fn bound(&self, row: &Row) -> f64 {
        PlanReport::overhead(row.lower_bound_ns, self.unlimited)
    }

    fn legend(&self, out: &mut String) {
        *out += "<ul id=\"legend\" aria-label=\"Planners\">\n";
        for (index, planner) in self.planners().iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let found = self.rows.iter().any(|row| row.planner == *planner && row.overhead.is_some());
            let note = if found { "" } else { " (no plan)" };
            let _ = writeln!(
                out,
                "<li><label><input type=\"checkbox\" checked data-line=\"line-{planner}\"> <i style=\"background:{colour}\"></i>{planner}{note}</label></li>"
            );
        }
        *out += "</ul>\n";
    }

    fn chart(&self, out: &mut String) {
        let scale = self.scale();
        let _ = writeln!(
            out,
            "<svg id=\"tradeoff\" viewBox=\"0 0 {WIDTH} {}\" role=\"group\" aria-label=\"Overhead against memory\">",
            TOP + HEIGHT + 50.0
        );
        // The region that no plan reaches.
        let mut bounds: Vec<(f64, f64)> =
            self.rows.iter().map(|row| (100.0 * row.share, 100.0 * self.bound(row))).collect();
        bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        bounds.dedup_by(|a, b| a.0 == b.0);
        if let (Some(first), Some(last)) = (bounds.first(), bounds.last()) {
            let mut points = vec![(first.0, 0.0)];
            points.extend(&bounds);
            points.push((last.0, 0.0));
            let points: Vec<String> =
                points.iter().map(|&(x, y)| format!("{:.1},{:.1}", scale.x(x), scale.y(y))).collect();
            let _ = writeln!(
                out,
                "<polygon points=\"{}\" fill=\"var(--faint)\" fill-opacity=\"0.35\"><title>below the lower bound</title></polygon>",
                points.join(" ")
            );
        }
        for (at, label) in ticks(0.0, scale.high) {
            let y = scale.y(at);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"var(--line)\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for (at, label) in ticks(scale.left, scale.right) {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                scale.x(at),
                TOP + HEIGHT + 20.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">limit, % of the unconstrained peak</text>\n\
             <text x=\"{LEFT}\" y=\"14\">overhead, %</text>",
            (LEFT + WIDTH) / 2.0,
            TOP + HEIGHT + 42.0
        );
        let depths = self.depths(&scale);
        for (index, planner) in self.planners().iter().enumerate() {
            self.line(out, &scale, &depths, planner, COLOURS[index % COLOURS.len()]);
        }
        *out += "</svg>\n";
    }

    /// How many arrows lie above that of each row. The arrows of one limit would all have the same place, so they are stacked.
    fn depths(&self, scale: &Scale) -> Vec<u32> {
        let mut drawn: Vec<(f64, u32)> = Vec::new();
        let depth = |row: &Row| {
            let x = scale.x(100.0 * row.share);
            if row.overhead.is_none_or(|overhead| 100.0 * overhead <= scale.high) {
                return 0;
            }
            let taken = |depth: u32| drawn.iter().any(|&(at, own)| own == depth && (at - x).abs() < ARROW.0);
            let depth = (0..).find(|&depth| !taken(depth)).unwrap_or(0);
            drawn.push((x, depth));
            depth
        };
        self.rows.iter().map(depth).collect()
    }

    fn line(&self, out: &mut String, scale: &Scale, depths: &[u32], planner: &str, colour: &str) {
        let mut points: Vec<(f64, f64, f64, Option<&String>)> = self
            .rows
            .iter()
            .zip(self.pages)
            .zip(depths)
            .filter(|((row, _), _)| row.planner == planner)
            .filter_map(|((row, page), &depth)| {
                let (share, overhead) = (100.0 * row.share, 100.0 * row.overhead?);
                Some((share, overhead, scale.y(overhead) + ARROW.1 * f64::from(depth), page.as_ref()))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            points.iter().map(|&(x, _, y, _)| format!("{:.1},{y:.1}", scale.x(x))).collect();
        let _ = writeln!(
            out,
            "<g id=\"line-{planner}\"><polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (share, overhead, y, page) in points {
            let label = format!("{planner} at {share:.1} %: overhead {overhead:+.1} %");
            let x = scale.x(share);
            let mark = if overhead > scale.high {
                format!(
                    "<path d=\"M{:.1} {:.1}h12l-6 -10z\" fill=\"{colour}\"><title>{label}</title></path><text x=\"{:.1}\" y=\"{:.1}\" paint-order=\"stroke\" stroke=\"var(--ground)\" stroke-width=\"5\">{overhead:.0}</text>",
                    x - 6.0,
                    y + 5.0,
                    x + 8.0,
                    y + 4.0
                )
            } else {
                format!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"><title>{label}</title></circle>"
                )
            };
            let _ = match page {
                Some(page) => {
                    writeln!(out, "<a href=\"{}\" aria-label=\"{label}\">{mark}</a>", escaped(page))
                }
                None => writeln!(out, "{mark}"),
            };
        }
        *out += "</g>\n";
    }

    fn table(&self, out: &mut String) {
        *out += "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Table of all plans\"><table id=\"rows\">\n<tr>";
        let head =
            ["planner", "limit", "arena", "iteration time", "overhead", "lower bound", "recomputed ops"];
        for name in head {
            let _ = write!(out, "<th scope=\"col\">{name}</th>");
        }
        *out += "</tr>\n";
        // A figure with the number that `--json` prints.
        let data = |value: String, text: String| format!("<data value=\"{value}\">{}</data>", escaped(&text));
        let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
        for (row, page) in self.rows.iter().zip(self.pages) {
            let name = match page {
                Some(page) => format!("<a href=\"{}\">{}</a>", escaped(page), row.planner),
                None => row.planner.to_owned(),
            };
            let bytes = |bytes: elbowroom_ir::Bytes| data(bytes.get().to_string(), bytes.to_string());
            let time = |time: Nanos| data(time.get().to_string(), time.to_string());
            let or_stopped = |cell: Option<String>| cell.unwrap_or_else(|| row.stop_reason.to_owned());
            let cells = [
                name,
                bytes(row.limit_bytes),
                row.arena_bytes.map(bytes).unwrap_or_default(),
                or_stopped(row.iteration_ns.map(time)),
                row.overhead
                    .map(|overhead| data(overhead.to_string(), percent(overhead)))
                    .unwrap_or_default(),
                time(row.lower_bound_ns),
                row.recomputed_ops.map(|ops| data(ops.to_string(), ops.to_string())).unwrap_or_default(),
            ];
            *out += "<tr>";
            for cell in cells {
                let _ = write!(out, "<td>{cell}</td>");
            }
            *out += "</tr>\n";
        }
        *out += "</table></div>\n";
    }
}
