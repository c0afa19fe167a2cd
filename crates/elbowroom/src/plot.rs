//! Curves as self-contained SVG: overhead against memory, one line for each planner, and the loss of a training.

use std::fmt::Write;

use crate::compare::Row;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Colours that remain apart for most colour-blind readers, cycled when there are more lines.
pub(crate) const COLOURS: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#72b7b2", "#9d755d", "#7f7f7f"];
/// No axis of overheads ends above this, in percent: one hopeless planner must not flatten the others. Points above it are arrows at the
/// upper edge that carry their values.
pub(crate) const HIGHEST: f64 = 200.0;
/// About this many numbers stand at an axis.
const TICKS: f64 = 5.0;
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
    /// Digits behind the point of the numbers of a point, x before y.
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
        lines[index].points.extend(row.overhead.map(|overhead| (100.0 * row.share, 100.0 * overhead)));
    }
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let low = all().map(|(share, _)| share).fold(100.0, f64::min).min(95.0);
    let high = all().map(|(share, _)| share).fold(100.0, f64::max);
    let top = all().map(|(_, overhead)| overhead).fold(5.0, f64::max).min(HIGHEST);
    let axes = ["limit, % of the unconstrained peak", "overhead, %"];
    Chart {
        title,
        axes,
        ranges: [[low, high], [0.0, 1.05 * top]],
        digits: [0, 1],
        lines,
        empty: " (no plan)",
    }
    .svg()
}

/// Draws named lines over two axes with these labels, x before y. The lower axis begins at the least point, the upright one at zero or below.
pub fn curves(title: &str, axes: [&str; 2], lines: &[(String, Vec<(f64, f64)>)]) -> String {
    let finite = |&&(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
    let of = |points: &[(f64, f64)]| points.iter().filter(finite).copied().collect::<Vec<_>>();
    let lines: Vec<Line<'_>> = lines.iter().map(|(name, points)| Line { name, points: of(points) }).collect();
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let left = all().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
    let left = if left.is_finite() { left } else { 0.0 };
    let right = all().map(|(x, _)| x).fold(left + 1e-9, f64::max);
    let low = all().map(|(_, y)| y).fold(0.0, f64::min);
    let high = all().map(|(_, y)| y).fold(low + 1e-9, f64::max);
    let ranges = [[left, right], [low, low + 1.05 * (high - low)]];
    Chart { title, axes, ranges, digits: [1, 2], lines, empty: " (nothing found)" }.svg()
}

/// Draws the losses of a training whose first iteration has this number, and of its evaluations: the iterations before each, and its loss.
pub fn losses(title: &str, first: u64, losses: &[f32], evaluations: &[(u64, f64)]) -> String {
    let point = |(i, &loss): (usize, &f32)| ((first + i as u64) as f64, f64::from(loss));
    let points: Vec<(f64, f64)> =
        losses.iter().enumerate().map(point).filter(|(_, loss)| loss.is_finite()).collect();
    let held_out: Vec<(f64, f64)> = evaluations.iter().map(|&(at, loss)| (at as f64, loss)).collect();
    let held_out: Vec<_> = held_out.into_iter().filter(|(_, loss)| loss.is_finite()).collect();
    let all = || points.iter().chain(&held_out).map(|&(_, loss)| loss);
    let after = evaluations.iter().map(|&(at, _)| at).max().unwrap_or(0);
    let last = (first + (losses.len() as u64).saturating_sub(1).max(1)).max(after);
    let low = all().fold(f64::INFINITY, f64::min).min(0.0);
    let high = all().fold(low + 1e-9, f64::max) * 1.05;
    let ranges = [[first as f64, last as f64], [if low.is_finite() { low } else { 0.0 }, high]];
    let mut lines = vec![Line { name: "loss", points }];
    if !evaluations.is_empty() {
        lines.push(Line { name: "evaluation", points: held_out });
    }
    Chart { title, axes: ["iteration", "loss"], ranges, digits: [0, 2], lines, empty: " (no finite loss)" }
        .svg()
}

impl Chart<'_> {
    fn svg(mut self) -> String {
        let [[left, right], [low, high]] = self.ranges;
        let x = |at: f64| LEFT + WIDTH * (at - left) / (right - left);
        let y = |at: f64| TOP + HEIGHT * (1.0 - (at.clamp(low, high) - low) / (high - low));
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
        for (at, label) in ticks(low, high) {
            let _ = writeln!(
                out,
                r##"<line x1="{LEFT}" x2="{}" y1="{:.1}" y2="{:.1}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{label}</text>"##,
                LEFT + WIDTH,
                y(at),
                y(at),
                LEFT - 6.0,
                y(at) + 4.0,
            );
        }
        for (at, label) in ticks(left, right) {
            let _ = writeln!(
                out,
                r#"<text x="{:.1}" y="{}" text-anchor="middle">{label}</text>"#,
                x(at),
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
            let marked = |&&(_, up): &&(f64, f64)| path.len() <= MARKED || up > high;
            for &(across, up) in points.iter().filter(marked) {
                let title = format!("<title>{name}: {up:.y_digits$} at {across:.x_digits$}</title>");
                let (x, y) = (x(across), y(up));
                let _ = if up > high {
                    // The value is also printed as text: a document that embeds the picture shows no titles.
                    writeln!(
                        out,
                        r#"<path d="M{:.1} {:.1}h10l-5 -9z" fill="{colour}">{title}</path><text x="{:.1}" y="{:.1}" fill="{colour}">{up:.0}</text>"#,
                        x - 5.0,
                        y + 4.0,
                        x + 7.0,
                        y + 4.0,
                    )
                } else {
                    writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}">{title}</circle>"#)
                };
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

/// Where numbers stand at an axis from `low` to `high`, and the numbers: multiples of 1, 2 or 5 times a power of ten.
pub(crate) fn ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let rough = (high - low) / TICKS;
    let power = rough.log10().floor();
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|nice| nice * 10f64.powf(power)).into_iter().find(|&step| step >= rough);
    // An axis without length has no tick between its ends.
    let Some(step) = step.filter(|step| step.is_finite() && *step > 0.0) else { return Vec::new() };
    let digits = (-(step * 1.001).log10().floor()).max(0.0) as usize;
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|n| n as f64 * step).map(|at| (at, format!("{at:.digits$}"))).collect()
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::{Bytes, Nanos};

    use super::*;

    #[test]
    fn numbers_at_an_axis_are_round() {
        let labels = |low, high| ticks(low, high).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(0.0, 210.0), ["0", "50", "100", "150", "200"]);
        assert_eq!(labels(30.0, 100.0), ["40", "60", "80", "100"]);
        assert_eq!(labels(0.0, 5.25), ["0", "2", "4"]);
        assert_eq!(labels(0.0, 0.3), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(7.0, 8.0), ["7.0", "7.2", "7.4", "7.6", "7.8", "8.0"]);
        assert_eq!(labels(3.0, 3.0), Vec::<String>::new());
    }

    #[test]
    fn an_overhead_above_the_axis_is_an_arrow_with_its_value() {
        let row = |share: f64, overhead: f64| Row {
            planner: "greedy",
            limit_bytes: Bytes(1),
            share,
            feasible: true,
            arena_bytes: None,
            peak_live_bytes: None,
            iteration_ns: None,
            overhead: Some(overhead),
            ratio_to_bound: None,
            lower_bound_ns: Nanos(1),
            ratio_to_chain_bound: None,
            relaxed_bound_ns: None,
            traffic_bytes: None,
            recomputed_ops: None,
            planning_ns: Nanos(1),
            stop_reason: "done",
            found_by: None,
            warm_starts: 0,
        };
        let picture = svg("title", &[row(0.3, 3.06), row(0.6, 2.0), row(1.0, -0.01)]);
        assert_eq!((picture.matches("<path").count(), picture.matches("<circle").count()), (1, 2));
        assert!(picture.contains(">306</text>") && picture.contains("greedy: 306.0 at 30"), "{picture}");
        assert!(picture.contains(">200</text>") && !picture.contains(">210</text>"), "{picture}");
    }

    #[test]
    fn curves_have_a_circle_for_every_finite_point() {
        let lines = [("a".to_owned(), vec![(1.0, 2.0), (2.0, f64::NAN)]), ("b".to_owned(), Vec::new())];
        for lines in [&lines[..], &[]] {
            let picture = curves("a < b", ["x", "y"], lines);
            assert_eq!(picture.matches("<circle").count(), usize::from(!lines.is_empty()));
            assert!(!picture.contains("NaN") && !picture.contains("inf") && picture.contains("a &lt; b"));
        }
    }

    #[test]
    fn every_loss_is_a_point_and_no_coordinate_is_undefined() {
        for values in [&[2.5f32, 2.0, 1.0][..], &[0.0], &[f32::NAN, 1.0], &[f32::NAN], &[]] {
            let svg = losses("a < b & c", 7, values, &[]);
            assert_eq!(losses("", 7, values, &[(8, 1.5)]).matches("<polyline").count(), 2);
            let finite = values.iter().filter(|loss| loss.is_finite()).count();
            assert_eq!(svg.matches("<circle").count(), finite, "{values:?}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
            assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
        }
    }
}
