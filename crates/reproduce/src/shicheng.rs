//! Shicheng (2020), *GPU memory management for neural networks using deep Q-network*.

use elbowroom::compare;
use elbowroom::graph::zoo::Options;
use elbowroom::ir::planning::Freedom;
use elbowroom::registry;

use crate::bench;
use crate::row::{Curves, Row, Sheet};
use crate::{Bench, Error};

/// Figure 5: overhead by reduction of memory.
pub(crate) fn figure_5(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let networks: &[(&str, usize)] = bench.pick(
        &[("vgg11", 32)],
        &[
            ("resnet18", 32),
            ("resnet34", 32),
            ("vgg11", 32),
            ("vgg16", 32),
            ("unet", 4),
            ("lstm", 32),
            ("kmeans", 1_000),
        ],
    );
    let learned = registry::planner("dqn").is_ok().then_some(("this paper", "dqn"));
    let methods: Vec<(&str, &str)> = learned
        .into_iter()
        .chain([
            ("MXNet-memonger", "sublinear"),
            ("SuperNeurons", "supernn"),
            ("TFLMS", "tflms"),
            ("not in the paper", "auto"),
        ])
        .collect();
    let planners: Vec<&str> = methods.iter().map(|method| method.1).collect();
    let mut sheet = Sheet::default();
    for &(network, batch) in networks {
        if bench.stopped() {
            break;
        }
        bench.begins(network);
        let task = bench::task(network, &Options::new(batch), "gtx1080ti", 256, Freedom::ALL)?;
        let found = bench.sweep(&task, &planners, [50.0, 90.0], bench.pick(2, 5), bench.pick(50, 200))?;
        let mut lines = Vec::new();
        for &(name, planner) in &methods {
            let points = bench::by_reduction(&found, planner);
            let half = points.iter().find(|point| (point.0 - 50.0).abs() < 0.5).map(|point| point.1);
            let at_half = |row: &&compare::Row| row.planner == planner && (row.share - 0.5).abs() < 0.005;
            let found_by = found.iter().find(at_half).and_then(|row| row.found_by.clone());
            let reason = match (half, planner, found_by) {
                (None, ..) => {
                    "curves without numbers; the planner finds no schedule at half of the peak".to_owned()
                }
                (_, "auto", _) => "not in the paper: the default planner of this project".to_owned(),
                (_, "dqn", Some(by)) => format!("curves without numbers; found by {by}"),
                _ => "curves without numbers".to_owned(),
            };
            sheet.rows.push(
                Row::new(
                    format!("{network}: {planner} ({name}), overhead at a reduction of 50 %"),
                    "%",
                    None,
                    half,
                )
                .because(reason),
            );
            lines.push((planner.to_owned(), points));
        }
        sheet = sheet.with(Curves {
            title: format!("{network}, batch {batch}"),
            axes: ["reduction of live memory, %", "overhead, %"],
            lines,
        });
    }
    if learned.is_none() {
        sheet.rows.push(Row::new("dqn", "%", None, None).because("built without the feature dqn"));
    }
    Ok(sheet)
}
