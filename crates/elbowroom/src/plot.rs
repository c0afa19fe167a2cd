//! Overhead against memory, one line for each planner, as a self-contained SVG.

use std::fmt::Write;

use crate::compare::Row;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Colours that remain apart for most colour-blind readers, cycled when there are more planners.
const COLOURS: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#72b7b2", "#9d755d", "#7f7f7f"];
/// Overheads above this are drawn at the upper edge: one hopeless planner must not flatten the others.
const HIGHEST: f64 = 2.0;

/// One planner's points: share of memory, overhead.
struct Line<'a> {
    planner: &'a str,
    points: Vec<(f64, f64)>,
}

/// Draws the rows of a comparison.
pub fn svg(title: &str, rows: &[Row]) -> String {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        let index = lines.iter().position(|line| line.planner == row.planner).unwrap_or_else(|| {
            lines.push(Line { planner: row.planner, points: Vec::new() });
            lines.len() - 1
        });
        lines[index].points.extend(row.overhead.map(|overhead| (row.share, overhead.clamp(0.0, HIGHEST))));
    }
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let low = all().map(|(share, _)| share).fold(1.0, f64::min).min(0.95);
    let high = all().map(|(share, _)| share).fold(1.0, f64::max);
    let top = all().map(|(_, overhead)| overhead).fold(0.05, f64::max) * 1.05;
    let x = |share: f64| LEFT + WIDTH * (share - low) / (high - low);
    let y = |overhead: f64| TOP + HEIGHT * (1.0 - overhead / top);

    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="{LEFT}" y="22" font-size="14">{}</text>
<text x="{}" y="{}" text-anchor="middle">memory, % of the natural peak</text>
<text x="16" y="{}" text-anchor="middle" transform="rotate(-90 16 {})">overhead, %</text>
"#,
        LEFT + WIDTH + 150.0,
        TOP + HEIGHT + 60.0,
        title.replace('&', "&amp;").replace('<', "&lt;"),
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 40.0,
        TOP + HEIGHT / 2.0,
        TOP + HEIGHT / 2.0,
    );
    for i in 0..=5 {
        let (share, overhead) = (low + (high - low) * f64::from(i) / 5.0, top * f64::from(i) / 5.0);
        let _ = writeln!(
            out,
            r##"<line x1="{LEFT}" x2="{}" y1="{:.1}" y2="{:.1}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{:.1}</text><text x="{:.1}" y="{}" text-anchor="middle">{:.0}</text>"##,
            LEFT + WIDTH,
            y(overhead),
            y(overhead),
            LEFT - 6.0,
            y(overhead) + 4.0,
            100.0 * overhead,
            x(share),
            TOP + HEIGHT + 18.0,
            100.0 * share,
        );
    }
    for (index, Line { planner, points }) in lines.iter_mut().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            points.iter().map(|&(share, over)| format!("{:.1},{:.1}", x(share), y(over))).collect();
        let _ = writeln!(
            out,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            path.join(" ")
        );
        for &(share, overhead) in points.iter() {
            let _ = writeln!(
                out,
                r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"><title>{planner}: {:.1} % at {:.1} %</title></circle>"#,
                x(share),
                y(overhead),
                100.0 * overhead,
                100.0 * share
            );
        }
        let row = TOP + 18.0 * index as f64;
        let note = if points.is_empty() { " (no plan)" } else { "" };
        let _ = writeln!(
            out,
            r#"<rect x="{}" y="{row}" width="12" height="12" fill="{colour}"/><text x="{}" y="{}">{planner}{note}</text>"#,
            LEFT + WIDTH + 16.0,
            LEFT + WIDTH + 34.0,
            row + 11.0,
        );
    }
    out + "</svg>\n"
}
