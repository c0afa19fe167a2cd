//! What `compare` prints, line by line as rows are found: one trace as a table of its rows, several traces as one table.

use std::io;

use elbowroom::compare::{self, Row};
use elbowroom::ir::planning::Planner;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::Task;
use elbowroom::report::PlanReport;

use crate::args::{CompareArgs, RatioTo};
use crate::printer::{self, SizeUnit, Table, TimeUnit, row};

/// Stands where there is no figure.
const NONE: &str = "-";

/// What is printed for each row or trace.
enum Form {
    /// Nothing: one JSON object follows at the end.
    Json,
    /// A line of comma-separated values for each row.
    Csv,
    /// A line for each row of the only trace.
    Rows,
    /// A line for each trace and limit, a column for each planner.
    Overheads,
    /// A line for each trace, a column for each planner: its smallest limit.
    Smallest,
    /// A line for each trace, three columns for each planner.
    Ratios(RatioTo),
}

/// The output of a comparison.
pub struct Output<'a> {
    args: &'a CompareArgs,
    form: Form,
    planners: Vec<&'static str>,
    /// Planners that start from the plans of other rows.
    warm: Vec<&'static str>,
    /// Width of the longest name of a trace.
    names: usize,
    table: Option<Table>,
    trace: Option<Trace>,
    /// Rows at the limit that is being planned.
    line: Vec<Row>,
}

/// What is needed of the trace that is being planned.
struct Trace {
    name: String,
    peak: Bytes,
    unlimited: Nanos,
}

impl<'a> Output<'a> {
    /// Prints nothing yet.
    pub fn new(args: &'a CompareArgs, tasks: &[Task], planners: &[&'static dyn Planner]) -> Self {
        let form = match args.ratio {
            Some(to) => Form::Ratios(to),
            None if args.json => Form::Json,
            None if args.csv => Form::Csv,
            None if tasks.len() == 1 => Form::Rows,
            None if args.overhead.is_some() => Form::Smallest,
            None => Form::Overheads,
        };
        let starts_warm = |planner: &&&dyn Planner| {
            let peers = tasks.iter().any(|task| !planner.peers(&task.trace).is_empty());
            peers && planners.len() > 1 && !args.alone && args.overhead.is_none()
        };
        Self {
            args,
            form,
            planners: planners.iter().map(|planner| planner.name()).collect(),
            warm: planners.iter().filter(starts_warm).map(|planner| planner.name()).collect(),
            names: tasks.iter().map(|task| task.trace.name().chars().count()).max().unwrap_or(0),
            table: None,
            trace: None,
            line: Vec::new(),
        }
    }

    /// The next trace begins.
    pub fn begin(&mut self, task: &Task, peak: Bytes) -> io::Result<()> {
        let first = self.trace.is_none();
        self.trace = Some(Trace { name: task.trace.name().to_owned(), peak, unlimited: task.costs.total() });
        if matches!(self.form, Form::Rows) {
            self.baseline(task, peak)?;
        }
        if !first {
            return Ok(());
        }
        match self.form {
            Form::Json => {}
            Form::Csv => self.csv_head()?,
            _ => {
                if !self.warm.is_empty() {
                    let who = self.warm.join(" and ");
                    let start = if self.warm.len() == 1 { "starts" } else { "start" };
                    printer::line(&format!(
                        "{who} {start} from the plans of the other rows at the same limit"
                    ))?;
                    printer::line("(--alone plans every row on its own).")?;
                }
                self.table =
                    Some(self.head(SizeUnit::for_size(peak), TimeUnit::for_time(task.costs.total()))?);
            }
        }
        Ok(())
    }

    /// A row was found.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        match self.form {
            Form::Csv => self.csv_line(row),
            Form::Rows => self.print(&self.cells(row)),
            Form::Overheads => {
                self.line.push(row.clone());
                if self.line.len() == self.planners.len() { self.overheads() } else { Ok(()) }
            }
            Form::Json | Form::Smallest | Form::Ratios(_) => Ok(()),
        }
    }

    /// All rows of the trace are found, or all that there will be.
    pub fn end(&mut self, rows: &[Row]) -> io::Result<()> {
        match self.form {
            Form::Overheads if !self.line.is_empty() => self.overheads(),
            Form::Smallest => self.print(&self.smallest(rows)),
            Form::Ratios(to) => self.print(&self.ratios(rows, to)),
            _ => Ok(()),
        }
    }

    fn print(&self, cells: &[String]) -> io::Result<()> {
        self.table.as_ref().map_or(Ok(()), |table| table.print(cells))
    }

    /// What shares and overheads are relative to.
    fn baseline(&self, task: &Task, peak: Bytes) -> io::Result<()> {
        printer::line(&format!("{} on {}", task.trace.name(), task.machine.name))?;
        let mut what = if self.args.live_limit.is_some() {
            "peak live memory when every tensor stays on the device".to_owned()
        } else {
            "arena size with every tensor on the device".to_owned()
        };
        if let Some(packer) = &self.args.baseline {
            what += &format!(", placed by {packer}");
        }
        let rows = [
            row("unconstrained peak", peak, format!("100 %: {what}")),
            row("iteration time", task.costs.total(), "overhead 0 %: without a limit"),
        ];
        printer::section("Baseline", &rows)?;
        let what = if self.args.live_limit.is_some() { "live" } else { "arena" };
        printer::section(
            "Columns",
            &[
                row(what, "", "bytes that the plan uses"),
                row("time/bound", "", "iteration time / lower bound at that limit; 1 is optimal"),
                row("copied", "", "to the host and back, together"),
                row("found by", "", "part of the planner that found the plan"),
                row("gave up", "", "no plan found, infeasibility not proved"),
            ],
        )?;
        printer::line("")
    }

    /// Begins the table.
    fn head(&self, size: SizeUnit, time: TimeUnit) -> io::Result<Table> {
        let text = |line: &[&str]| line.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>();
        let with = |first: &[&str], each: &dyn Fn(&'static str) -> Vec<String>| {
            let mut line = text(first);
            line.extend(self.planners.iter().flat_map(|name| each(name)));
            line
        };
        match self.form {
            Form::Overheads => {
                let head = [
                    with(&["trace", "limit", "bound"], &|name| vec![name.to_owned()]),
                    with(&["", "%", "overhead %"], &|_| vec!["overhead %".to_owned()]),
                ];
                Table::begin(1, &head, &[self.names, 5])
            }
            Form::Smallest => {
                let head = [
                    with(&["trace", "peak"], &|name| vec![name.to_owned()]),
                    with(&["", "MiB"], &|_| vec!["limit %".to_owned()]),
                ];
                Table::begin(1, &head, &[self.names, 9])
            }
            Form::Ratios(_) => {
                let three = |name: &str| [name, "", ""].map(str::to_owned).to_vec();
                let units = ["time/bound", "planned", "planning s"].map(str::to_owned).to_vec();
                let head = [with(&["trace"], &three), with(&[""], &|_| units.clone())];
                Table::begin(1, &head, &[self.names])
            }
            Form::Rows | Form::Json | Form::Csv => {
                let used = if self.args.live_limit.is_some() { "live" } else { "arena" };
                let mut head = vec![
                    ("limit", "%"),
                    ("planner", ""),
                    (used, size.name),
                    ("time", time.name),
                    ("overhead", "%"),
                    ("time/bound", ""),
                    ("copied", size.name),
                    ("recomputed", "ops"),
                    ("planning", "s"),
                ];
                if self.args.samples.is_some() {
                    head.push(("samples", "per s"));
                }
                head.push(("found by", ""));
                let planner = self.planners.iter().map(|name| name.len()).max().unwrap_or(0);
                Table::begin(2, &printer::head(head), &[6, planner, 8, 10, 8, 0, 8, 0, 8])
            }
        }
    }

    /// A row of the only trace.
    fn cells(&self, row: &Row) -> Vec<String> {
        let (peak, unlimited) =
            self.trace.as_ref().map_or_else(Default::default, |trace| (trace.peak, trace.unlimited));
        let (size, time) = (SizeUnit::for_size(peak), TimeUnit::for_time(unlimited));
        let decimals = usize::from(self.args.overhead.is_some());
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| NONE.to_owned());
        let used = row.arena_bytes.or(row.peak_live_bytes);
        let stopped = || printer::stopped(row.stop_reason).to_owned();
        let mut cells = vec![
            format!("{:.decimals$}", 100.0 * row.share),
            row.planner.to_owned(),
            or_none(used.map(|bytes| size.number(bytes))),
            row.iteration_ns.map_or_else(stopped, |iteration| time.number(iteration, 1)),
            or_none(row.overhead.map(|overhead| format!("{:+.1}", 100.0 * overhead))),
            or_none(row.ratio_to_bound.map(|ratio| format!("{ratio:.3}"))),
            or_none(row.traffic_bytes.map(|bytes| size.number(bytes))),
            or_none(row.recomputed_ops.map(|ops| ops.to_string())),
            TimeUnit::SECONDS.number(row.planning_ns, 3),
        ];
        if let Some(samples) = self.args.samples {
            let speed = |time: Nanos| format!("{:.1}", samples as f64 * 1e9 / time.get().max(1) as f64);
            cells.push(or_none(row.iteration_ns.map(speed)));
        }
        // A planner that found its own plan says nothing new.
        cells.push(row.found_by.clone().filter(|by| by != row.planner).unwrap_or_default());
        cells
    }

    /// The rows at one limit as a line.
    fn overheads(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.line);
        let (Some(trace), Some(first)) = (&self.trace, rows.first()) else { return Ok(()) };
        let percent = |overhead: f64| format!("{:+.2}", 100.0 * overhead);
        let bound = PlanReport::overhead(first.lower_bound_ns, trace.unlimited);
        let mut line = vec![trace.name.clone(), format!("{:.0}", 100.0 * first.share), percent(bound)];
        line.extend(self.planners.iter().map(|&name| {
            let row = rows.iter().find(|row| row.planner == name);
            row.map_or_else(String::new, |row| {
                row.overhead.map_or_else(|| printer::stopped(row.stop_reason).to_owned(), percent)
            })
        }));
        self.print(&line)
    }

    /// The smallest limit of every planner as a share of the unconstrained peak.
    fn smallest(&self, rows: &[Row]) -> Vec<String> {
        let Some(trace) = &self.trace else { return Vec::new() };
        let peak = format!("{:.2}", trace.peak.get() as f64 / f64::from(1 << 20));
        let mut line = vec![trace.name.clone(), peak];
        line.extend(self.planners.iter().map(|&name| {
            let row = rows.iter().find(|row| row.planner == name);
            row.map_or_else(String::new, |row| match row.feasible {
                true => format!("{:.1}", 100.0 * row.share),
                false => printer::stopped(row.stop_reason).to_owned(),
            })
        }));
        line
    }

    /// Every planner's largest ratio to a bound over the limits at which it found a plan, and its longest planning.
    fn ratios(&self, rows: &[Row], to: RatioTo) -> Vec<String> {
        let mut line = vec![self.trace.as_ref().map(|trace| trace.name.clone()).unwrap_or_default()];
        for &name in &self.planners {
            let of = || rows.iter().filter(|row| row.planner == name);
            let ratio = |row: &Row| match to {
                RatioTo::Bound => row.ratio_to_bound,
                RatioTo::Chain => row.ratio_to_chain_bound,
                RatioTo::Relaxed => {
                    row.iteration_ns.zip(row.relaxed_bound_ns).map(|(time, bound)| time.ratio(bound))
                }
            };
            let planned = of().filter(|row| row.feasible).count();
            let worst = of().filter_map(ratio).max_by(f64::total_cmp);
            line.push(worst.map_or_else(|| NONE.to_owned(), |ratio| format!("{ratio:.3}")));
            line.push(format!("{planned}/{}", of().count()));
            let longest = of().map(|row| row.planning_ns).max().unwrap_or_default();
            line.push(TimeUnit::SECONDS.number(longest, 3));
        }
        line
    }

    fn csv_head(&self) -> io::Result<()> {
        let trace = if self.args.traces.len() > 1 { "trace," } else { "" };
        printer::line(&format!("{trace}{}", compare::CSV_HEAD))
    }

    fn csv_line(&self, row: &Row) -> io::Result<()> {
        match &self.trace {
            // Names of traces are free text.
            Some(trace) if self.args.traces.len() > 1 => {
                let name = trace.name.replace('"', "\"\"");
                printer::line(&format!("\"{name}\",{}", compare::csv_line(row)))
            }
            _ => printer::line(&compare::csv_line(row)),
        }
    }
}
