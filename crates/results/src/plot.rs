//! SVG plots from records: lines over a numeric axis, or groups of bars over names.

use anyhow::{Result, anyhow};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::data::take;
use crate::manifest::{Fields, Plot, matches};
use crate::table::value;

const SIZE: (u32, u32) = (760, 420);
/// Colours that remain apart for most colour-blind readers.
const COLOURS: [RGBColor; 8] = [
    RGBColor(76, 120, 168),
    RGBColor(245, 133, 24),
    RGBColor(84, 162, 75),
    RGBColor(228, 87, 86),
    RGBColor(178, 121, 162),
    RGBColor(114, 183, 178),
    RGBColor(157, 117, 93),
    RGBColor(127, 127, 127),
];

/// A named sequence of points.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws a plot.
///
/// # Errors
///
/// If several values fall on one point, or there is nothing to draw.
pub fn svg(plot: &Plot, records: &[Fields]) -> Result<String> {
    let records: Vec<&Fields> = records.iter().filter(|record| matches(record, &plot.filter)).collect();
    let numeric = records.iter().all(|record| value(&plot.x, record).is_some_and(|x| x.is_number()));
    let labels: Vec<String> = if numeric { Vec::new() } else { names(plot, &records) };
    let series = series(plot, &records, &labels)?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        if numeric {
            lines(plot, &series, &area)?
        } else {
            bars(plot, &series, &labels, &area)?
        }
        area.present().map_err(drawing)?;
    }
    Ok(text)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

/// The names on the horizontal axis, in the order of the records.
fn names(plot: &Plot, records: &[&Fields]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for record in records {
        let name = plot.x.format.write(value(&plot.x, record).as_ref(), plot.x.digits);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn series(plot: &Plot, records: &[&Fields], labels: &[String]) -> Result<Vec<Series>> {
    let of = |record: &Fields| match &plot.series {
        Some(field) => record.get(field).map(|name| name.as_str().map_or(name.to_string(), str::to_owned)),
        None => Some(plot.y.head.clone()),
    };
    let mut names: Vec<String> = Vec::new();
    for name in records.iter().filter_map(|record| of(record)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut all = Vec::new();
    for name in names {
        let own: Vec<&Fields> =
            records.iter().copied().filter(|record| of(record).as_ref() == Some(&name)).collect();
        all.push(Series { name, points: points(plot, &plot.y, &own, labels)? });
    }
    for other in &plot.others {
        all.push(Series { name: other.head.clone(), points: points(plot, other, records, labels)? });
    }
    Ok(all)
}

fn points(
    plot: &Plot,
    y: &crate::manifest::Column,
    records: &[&Fields],
    labels: &[String],
) -> Result<Vec<(f64, f64)>> {
    let position = |record: &Fields| {
        let x = value(&plot.x, record)?;
        if labels.is_empty() {
            return x.as_f64().map(|x| plot.x.format.scale(x));
        }
        let name = plot.x.format.write(Some(&x), plot.x.digits);
        labels.iter().position(|label| *label == name).map(|at| at as f64)
    };
    let mut positions: Vec<f64> = records.iter().filter_map(|record| position(record)).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let mut points = Vec::new();
    for x in positions {
        let here = records.iter().filter(|record| position(record) == Some(x));
        let values: Vec<_> = here.map(|record| value(y, record)).collect();
        if let Some(number) = take(&values, y.take)?.and_then(|value| value.as_f64()) {
            points.push((x, y.format.scale(number)));
        }
    }
    Ok(points)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn chart<'a, 'b>(
    area: &'a Area<'b>,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> Result<Chart<'a, 'b>> {
    ChartBuilder::on(area)
        .margin(14)
        .margin_right(36)
        .x_label_area_size(46)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)
        .map_err(drawing)
}

/// The range of the vertical axis: from zero, or from the smallest value below it.
fn height(series: &[Series]) -> std::ops::Range<f64> {
    let values = || series.iter().flat_map(|series| series.points.iter().map(|&(_, y)| y));
    let low = values().fold(0.0, f64::min);
    let high = values().fold(low + 1e-9, f64::max);
    1.05 * low..high + 0.08 * (high - low)
}

fn lines(plot: &Plot, series: &[Series], area: &Area<'_>) -> Result<()> {
    let xs = || series.iter().flat_map(|series| series.points.iter().map(|&(x, _)| x));
    let (left, right) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    anyhow::ensure!(left <= right, "there is nothing to draw");
    let mut chart = chart(area, left..right.max(left + 1e-9), height(series))?;
    chart
        .configure_mesh()
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .x_desc(plot.x.head.as_str())
        .y_desc(plot.y.head.as_str())
        .light_line_style(WHITE)
        .draw()
        .map_err(drawing)?;
    for (at, series) in series.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)).point_size(3))
            .map_err(drawing)?
            .label(series.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    legend(&mut chart, series)
}

fn bars(plot: &Plot, series: &[Series], labels: &[String], area: &Area<'_>) -> Result<()> {
    anyhow::ensure!(!labels.is_empty(), "there is nothing to draw");
    let right = labels.len() as f64 - 0.5;
    let mut chart = chart(area, -0.5..right, height(series))?;
    let name = |x: &f64| {
        let nearest = x.round();
        let exact = (x - nearest).abs() < 1e-6 && nearest >= 0.0;
        labels.get(nearest as usize).filter(|_| exact).cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * labels.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&short)
        .x_desc(plot.x.head.as_str())
        .y_desc(plot.y.head.as_str())
        .light_line_style(WHITE)
        .draw()
        .map_err(drawing)?;
    let width = 0.8 / series.len() as f64;
    for (at, series) in series.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let offset = width * at as f64 - 0.4;
        let bar = |&(x, y): &(f64, f64)| {
            Rectangle::new([(x + offset, 0.0), (x + offset + width, y)], colour.filled())
        };
        chart
            .draw_series(series.points.iter().map(bar))
            .map_err(drawing)?
            .label(series.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    legend(&mut chart, series)
}

/// A number at an axis, without trailing zeros.
fn short(number: &f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').replace('-', "−")
}

/// Draws the names of the series in the upper corner in which the values are smaller.
fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>, series: &[Series]) -> Result<()> {
    if series.len() < 2 {
        return Ok(());
    }
    let largest = |points: &mut dyn Iterator<Item = (f64, f64)>| points.map(|(_, y)| y).fold(0.0, f64::max);
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let xs = || points().map(|(x, _)| x);
    let middle = (xs().fold(f64::INFINITY, f64::min) + xs().fold(f64::NEG_INFINITY, f64::max)) / 2.0;
    let left = largest(&mut points().filter(|&(x, _)| x < middle));
    let right = largest(&mut points().filter(|&(x, _)| x > middle));
    let corner = if left < right { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::UpperRight };
    chart
        .configure_series_labels()
        .position(corner)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
        .map_err(drawing)
}
