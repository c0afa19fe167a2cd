//! `elbowroom train`: arguments become a training of the library, its report becomes output.

mod print;

use anyhow::Result;
use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::largest::LargestError;
use elbowroom::network::Model;
use elbowroom::plot;
use elbowroom::report::{Ending, TrainReport};
use elbowroom::size::BatchSpec;
use elbowroom::train::{TrainError, Training};
use serde_json::json;

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::trace;
use crate::printer::counted;
use crate::progress::Progress;
use crate::{files, networks, printer, settings, signals};

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<Answer> {
    args.plot.as_deref().map_or(Ok(()), files::expect_writable)?;
    let training = training(args)?;
    signals::catch();
    let observer = Progress::of_training(!args.json);
    let outcome = training.run_observed(&observer);
    let (saved, unprinted) = (observer.last_saved(), observer.unprinted());
    drop(observer);
    let report = match outcome {
        Ok(report) => report,
        Err(TrainError::Refused(refusal)) => {
            if args.json {
                printer::json(&refusal)?;
            }
            return Ok(Answer::No(refusal.sentence()));
        }
        Err(error @ TrainError::Largest(LargestError::None(_))) => return Ok(Answer::No(error.to_string())),
        Err(error @ TrainError::Interrupted) => {
            if args.json {
                printer::json(&json!({ "ending": Ending::Interrupted, "losses": [] }))?;
            }
            return unprinted
                .map_or_else(|| Ok(Answer::Interrupted(error.to_string())), |why| Err(why.into()));
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            return Err(match saved {
                Some((path, iterations)) => {
                    let iterations = counted(iterations, "iteration");
                    error.context(format!("training stopped; {} contains {iterations}", path.display()))
                }
                None => error,
            });
        }
    };
    let answer = answer(args, &report);
    let title = format!("{} under {}", report.plan.trace, report.plan.limit_bytes);
    let losses =
        args.plot.as_ref().map(|path| (path, plot::losses(&title, report.first_iteration, &report.losses)));
    let printed = match args.json {
        true => printer::json(&report).map_err(Into::into),
        false => print::print(&report, args.save.as_deref()),
    };
    let drawn = losses.map_or(Ok(()), |(path, losses)| files::write(Some(path), &losses));
    // The reader of the output may have ended the training, instead of a signal.
    let gone = unprinted.filter(|_| signals::received().is_none());
    match (answer, gone) {
        (Answer::Yes, _) => printed.and(drawn).map(|()| Answer::Yes),
        (Answer::Interrupted(_), Some(why)) => Err(why.into()),
        // After a signal the terminal may be gone as well. Output that fails changes nothing about the answer.
        (answer, _) => drawn.map(|()| answer),
    }
}

/// What the exit status and the sentence on standard error say of a training.
fn answer(args: &TrainArgs, report: &TrainReport) -> Answer {
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
    match (report.ending, report.verified) {
        (_, Some(false)) => {
            Answer::No("the run under the limit is not bit-exact with the run without one, which is a fault in elbowroom".into())
        }
        (Ending::Diverged, _) => {
            let what = report.diverged.as_deref().unwrap_or("the state is not finite");
            Answer::No(format!("{what}, so that training stopped; {checkpoint}; a smaller --learning-rate may help"))
        }
        (Ending::Interrupted, _) => Answer::Interrupted(format!("training stopped after {done}; {checkpoint}")),
        (_, None) if args.verify => {
            Answer::Interrupted(format!("the comparison with a run without a limit was not finished; {checkpoint}"))
        }
        _ => Answer::Yes,
    }
}

/// The training that the arguments describe.
fn training(args: &TrainArgs) -> Result<Training<'static>> {
    let network = &args.network;
    let (batch, largest) = match network.batch {
        BatchSpec::Samples(samples) => (samples as usize, false),
        BatchSpec::Largest => (1, true),
    };
    let options = trace::options(network, batch);
    networks::warn_of_options_without_effect(&network.model, &options);
    let model = Model::new(&network.model, options)?.epoch(args.samples.unwrap_or(0));
    let model = match args.longest {
        Some(words) => model.longest(words as usize)?,
        None => model,
    };
    let algorithms = match args.allow_numeric_changes {
        true => AlgorithmChoice::NumericChanges,
        false => AlgorithmChoice::BitExact,
    };
    let mut training = Training::new(model, args.memory)
        .method(settings::method(&args.planner)?)
        .freedom(settings::freedom(&args.planner.freedom))
        .iterations(args.iterations)
        .threads(settings::threads(&args.planner.search))
        .algorithms(algorithms)
        .verify(args.verify)
        .dynamic(args.dynamic);
    training = settings::host(args, training);
    if let Some(seed) = args.planner.search.seed {
        training = training.seed(seed);
    }
    if let Some(bytes) = args.host_memory {
        training = training.host_memory(bytes);
    }
    if let Some(path) = &args.data {
        training = training.data_path(path);
    }
    if let Some(path) = &args.save {
        training = training.save(path, args.save_every);
    }
    if let Some(path) = &args.resume {
        files::expect_file(path, "the checkpoint that --save wrote")?;
        training = training.resume(path);
    }
    Ok(if largest { training.largest_batch() } else { training })
}
