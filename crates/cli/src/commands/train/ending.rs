//! How a training ended: the exit status and the sentence on standard error.

use std::io;
use std::path::PathBuf;

use anyhow::Result;
use elbowroom::largest::LargestError;
use elbowroom::report::{Ending, TrainReport};
use elbowroom::train::TrainError;
use serde_json::json;

use crate::Answer;
use crate::args::TrainArgs;
use crate::printer::{self, counted};

/// The end of a training that has no report. `saved` is the last checkpoint and its iterations, `unprinted` why progress could not be
/// printed.
pub fn without_report(
    args: &TrainArgs,
    error: TrainError,
    saved: Option<(PathBuf, u64)>,
    unprinted: Option<io::Error>,
) -> Result<Answer> {
    match error {
        TrainError::Refused(refusal) => {
            if args.json {
                printer::json(&refusal)?;
            }
            Ok(Answer::No(refusal.sentence()))
        }
        TrainError::Largest(LargestError::None(_)) => Ok(Answer::No(error.to_string())),
        TrainError::Interrupted => {
            if args.json {
                printer::json(&json!({ "ending": Ending::Interrupted, "losses": [] }))?;
            }
            let sentence = match args.network.forward_only {
                true => "inference stopped before the first iteration".to_owned(),
                false => error.to_string(),
            };
            unprinted.map_or_else(|| Ok(Answer::Interrupted(sentence)), |why| Err(why.into()))
        }
        _ => {
            let error = anyhow::Error::from(error);
            Err(match saved {
                Some((path, iterations)) => {
                    let iterations = counted(iterations, "iteration");
                    error.context(format!("training stopped; {} contains {iterations}", path.display()))
                }
                None => error,
            })
        }
    }
}

/// What the exit status and the sentence on standard error say of a training.
pub fn answer(args: &TrainArgs, report: &TrainReport) -> Answer {
    let done =
        report.first_iteration + report.execution.planned_iterations + report.execution.dynamic_iterations;
    let done = counted(done, "iteration");
    let checkpoint = match (&args.save, report.saved.saved_iterations) {
        (Some(path), Some(saved)) => format!("{} contains {}", path.display(), counted(saved, "iteration")),
        (Some(_), None) => "nothing was saved".to_owned(),
        (None, _) => "nothing was saved, because --save was not given".to_owned(),
    };
    if let Some(error) = &report.saved.save_error {
        return Answer::NotKept(format!("the state after {done} is lost: {error}"));
    }
    if let Some(error) = &report.saved.weights_error {
        let kept = args.save.as_ref().map_or_else(String::new, |_| format!("; {checkpoint}"));
        return Answer::NotKept(format!("the weights after {done} are lost: {error}{kept}"));
    }
    // Inference changes nothing that could be saved.
    let (work, kept) = match args.network.forward_only {
        true => ("inference", String::new()),
        false => ("training", format!("; {checkpoint}")),
    };
    match (report.ending, report.verified) {
        (_, Some(false)) => {
            Answer::No("the run under the limit is not bit-exact with the run without one, which is a fault in elbowroom".into())
        }
        (Ending::Diverged, _) => {
            let what = report.diverged.as_deref().unwrap_or("the state is not finite");
            Answer::No(format!("{what}, so that {work} stopped{kept}; a smaller --learning-rate may help"))
        }
        (Ending::Interrupted, _) => Answer::Interrupted(format!("{work} stopped after {done}{kept}")),
        (_, None) if args.verify => {
            Answer::Interrupted(format!("the comparison with a run without a limit was not finished{kept}"))
        }
        _ => Answer::Yes,
    }
}
