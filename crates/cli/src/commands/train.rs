//! `elbowroom train`: arguments become a training of the library, its report becomes output.

mod ending;
mod print;

use anyhow::Result;
use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::network::Model;
use elbowroom::plot;
use elbowroom::size::BatchSpec;
use elbowroom::train::Training;

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::trace;
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
        Err(error) => return ending::without_report(args, error, saved, unprinted),
    };
    let answer = ending::answer(args, &report);
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
