//! Curves as self-contained SVG: overhead against memory, one line for each planner, and the loss of a training.

use std::fmt::Write;

use crate::compare::Row;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Colours that remain apart for most colour-blind readers, cycled when there are more lines.
const COLOURS: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#72b7b2", "#9d755d", "#7f7f7f"];
/// Overheads above this are drawn at the upper edge: one hopeless planner must not flatten the others.
const HIGHEST: f64 = 2.0;
/// Points beyond this many are not marked one by one.
const MARKED: usize = 200;

/// One named line.
struct Line<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// Lines over two axes.
struct Chart<'a> {
    title: &'a str,
    /// The labels of the axes, x before y.
    axes: [&'a str; 2],
    /// Both ends of both axes, x before y.
    ranges: [[f64; 2]; 2],
    /// Digits behind the point of numbers at the axes.
    digits: [usize; 2],
    lines: Vec<Line<'a>>,
    /// Text after the name of a line without points.
    empty: &'a str,
}

/// Draws the rows of a comparison.
pub fn svg(title: &str, rows: &[Row]) -> String {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        let index = lines.iter().position(|line| line.name == row.planner).unwrap_or_else(|| {
            lines.push(Line { name: row.planner, points: Vec::new() });
            lines.len() - 1
        });
        let point = |overhead: f64| (100.0 * row.share, 100.0 * overhead.clamp(0.0, HIGHEST));
        lines[index].points.extend(row.overhead.map(point));
    }
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let low = all().map(|(share, _)| share).fold(100.0, f64::min).min(95.0);
    let high = all().map(|(share, _)| share).fold(100.0, f64::max);
    let top = all().map(|(_, overhead)| overhead).fold(5.0, f64::max) * 1.05;
    let axes = ["limit, % of the unconstrained peak", "overhead, %"];
    Chart { title, axes, ranges: [[low, high], [0.0, top]], digits: [0, 1], lines, empty: " (no plan)" }.svg()
}

/// Draws the losses of a training whose first iteration has this number.
pub fn losses(title: &str, first: u64, losses: &[f32]) -> String {
    let point = |(i, &loss): (usize, &f32)| ((first + i as u64) as f64, f64::from(loss));
    let points: Vec<(f64, f64)> =
        losses.iter().enumerate().map(point).filter(|(_, loss)| loss.is_finite()).collect();
    let last = first + (losses.len() as u64).saturating_sub(1).max(1);
    let low = points.iter().map(|&(_, loss)| loss).fold(f64::INFINITY, f64::min).min(0.0);
    let high = points.iter().map(|&(_, loss)| loss).fold(low + 1e-9, f64::max) * 1.05;
    let ranges = [[first as f64, last as f64], [if low.is_finite() { low } else { 0.0 }, high]];
    let lines = vec![Line { name: "loss", points }];
    Chart { title, axes: ["iteration", "loss"], ranges, digits: [0, 2], lines, empty: " (no finite loss)" }
        .svg()
}

impl Chart<'_> {
    fn svg(mut self) -> String {
        let [[left, right], [low, high]] = self.ranges;
        let x = |at: f64| LEFT + WIDTH * (at - left) / (right - left);
        let y = |at: f64| TOP + HEIGHT * (1.0 - (at - low) / (high - low));
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="{LEFT}" y="22" font-size="14">{}</text>
<text x="{}" y="{}" text-anchor="middle">{}</text>
<text x="16" y="{}" text-anchor="middle" transform="rotate(-90 16 {})">{}</text>
"#,
            LEFT + WIDTH + 150.0,
            TOP + HEIGHT + 60.0,
            self.title.replace('&', "&amp;").replace('<', "&lt;"),
            LEFT + WIDTH / 2.0,
            TOP + HEIGHT + 40.0,
            self.axes[0],
            TOP + HEIGHT / 2.0,
            TOP + HEIGHT / 2.0,
            self.axes[1],
        );
        for i in 0..=5 {
            let at = |[from, to]: [f64; 2]| from + (to - from) * f64::from(i) / 5.0;
            let (across, up) = (at(self.ranges[0]), at(self.ranges[1]));
            let [x_digits, y_digits] = self.digits;
            let _ = writeln!(
                out,
                r##"<line x1="{LEFT}" x2="{}" y1="{:.1}" y2="{:.1}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{up:.y_digits$}</text><text x="{:.1}" y="{}" text-anchor="middle">{across:.x_digits$}</text>"##,
                LEFT + WIDTH,
                y(up),
                y(up),
                LEFT - 6.0,
                y(up) + 4.0,
                x(across),
                TOP + HEIGHT + 18.0,
            );
        }
        for (index, Line { name, points }) in self.lines.iter_mut().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let path: Vec<String> =
                points.iter().map(|&(across, up)| format!("{:.1},{:.1}", x(across), y(up))).collect();
            let _ = writeln!(
                out,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
                path.join(" ")
            );
            let [x_digits, y_digits] = self.digits;
            for &(across, up) in points.iter().filter(|_| path.len() <= MARKED) {
                let _ = writeln!(
                    out,
                    r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"><title>{name}: {up:.y_digits$} at {across:.x_digits$}</title></circle>"#,
                    x(across),
                    y(up),
                );
            }
            let row = TOP + 18.0 * index as f64;
            let note = if points.is_empty() { self.empty } else { "" };
            let _ = writeln!(
                out,
                r#"<rect x="{}" y="{row}" width="12" height="12" fill="{colour}"/><text x="{}" y="{}">{name}{note}</text>"#,
                LEFT + WIDTH + 16.0,
                LEFT + WIDTH + 34.0,
                row + 11.0,
            );
        }
        out + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_is_a_point_and_no_coordinate_is_undefined() {
        for values in [&[2.5f32, 2.0, 1.0][..], &[0.0], &[f32::NAN, 1.0], &[f32::NAN], &[]] {
            let svg = losses("a < b & c", 7, values);
            let finite = values.iter().filter(|loss| loss.is_finite()).count();
            assert_eq!(svg.matches("<circle").count(), finite, "{values:?}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
            assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
        }
    }
}
