//! What comes out: rows and curves.

use serde::Serialize;

/// One figure of a paper beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The table or figure.
    pub name: &'static str,
    /// What the figure is of.
    pub row: String,
    /// Unit of both figures; empty for a number.
    pub unit: &'static str,
    /// The printed figure; `null` where the paper prints a curve or a drawing without numbers.
    pub paper: Option<f64>,
    /// Ours; `null` where it cannot be computed here.
    pub ours: Option<f64>,
    /// Ours ÷ the paper's; `null` if one of them is missing or the paper's is zero.
    pub ratio: Option<f64>,
    /// Whether ours is the same on every machine; measured times are not.
    pub exact: bool,
    /// Why the two differ, or why one is missing. Empty if they are equal to the printed digits.
    pub reason: String,
}

/// Lines over two axes, for a picture.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Curves {
    /// Heading of the picture.
    pub title: String,
    /// Labels of the axes, x before y.
    pub axes: [&'static str; 2],
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// A table or figure, computed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Sheet {
    /// Its rows.
    pub rows: Vec<Row>,
    /// Its curves; none for a table or a drawing.
    pub curves: Vec<Curves>,
}

impl Row {
    /// A figure of ours beside the paper's.
    pub(crate) fn new(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Option<f64>>,
        ours: impl Into<Option<f64>>,
    ) -> Self {
        let (paper, ours) = (paper.into(), ours.into());
        let ratio = match (paper, ours) {
            (Some(paper), Some(ours)) if paper != 0.0 => Some(ours / paper),
            _ => None,
        };
        Self { name: "", row: row.into(), unit, paper, ours, ratio, exact: true, reason: String::new() }
    }

    /// The same with a reason.
    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// The same, measured on this machine.
    pub(crate) fn timed(mut self) -> Self {
        self.exact = false;
        self
    }

    /// Whether the two figures are equal to about the digits that papers print.
    pub fn agrees(&self) -> bool {
        match (self.paper, self.ours) {
            (Some(paper), Some(ours)) => (paper - ours).abs() <= 0.005 * paper.abs(),
            _ => false,
        }
    }
}

impl Sheet {
    pub(crate) fn of(rows: Vec<Row>) -> Self {
        Self { rows, curves: Vec::new() }
    }

    pub(crate) fn with(mut self, curves: Curves) -> Self {
        self.curves.push(curves);
        self
    }
}
