//! `elbowroom train`: arguments become a training of the library, its report becomes output.

mod ending;
pub mod print;

use std::path::Path;

use anyhow::{Result, bail};
use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::data::{Augmentation, holds_test_data};
use elbowroom::engine;
use elbowroom::graph::Mode;
use elbowroom::ir::machine::Channel;
use elbowroom::network::Model;
use elbowroom::plot;
use elbowroom::run::Run;
use elbowroom::size::BatchSpec;
use elbowroom::train::Training;

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::trace;
use crate::progress::Progress;
use crate::watch::Watch;
use crate::{files, networks, printer, say, settings, signals};

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<Answer> {
    // The limit is a promise about the process.
    engine::return_freed_memory();
    for path in [&args.plot, &args.timeline, &args.report].into_iter().flatten() {
        files::expect_writable(path)?;
    }
    let training = training(args)?;
    signals::catch();
    let mut observer = Progress::of_training(!args.json);
    if let Some(path) = &args.log {
        observer.log_to(path)?;
    }
    if let Some(port) = args.watch {
        let watch = Watch::on(port)?;
        say(&format!("the training is shown at {}", watch.address()));
        observer.watch(watch);
    }
    if args.timeline.is_some() {
        observer.keep_timeline();
    }
    if args.report.is_some() {
        observer.keep_last();
    }
    let outcome = training.run_observed(&observer);
    let (saved, unprinted, timeline) = (observer.last_saved(), observer.unprinted(), observer.timeline());
    let last = observer.last();
    drop(observer);
    let report = match outcome {
        Ok(report) => report,
        Err(error) => return ending::without_report(args, error, saved, unprinted),
    };
    let answer = ending::answer(args, &report);
    let title = format!("{} under {}", report.plan.trace, report.plan.limit_bytes);
    let evaluations: Vec<(u64, f64)> =
        report.eval_iterations.iter().copied().zip(report.eval_loss.iter().copied()).collect();
    let losses = args
        .plot
        .as_ref()
        .map(|path| (path, plot::losses(&title, report.first_iteration, &report.losses, &evaluations)));
    let printed = match args.json {
        true => printer::json(&report).map_err(Into::into),
        false => print::print(&report, args.save.as_deref()),
    };
    let drawn = losses.map_or(Ok(()), |(path, losses)| files::write(Some(path), &losses));
    let drawn = drawn.and(write_last(args.timeline.as_deref(), timeline));
    let drawn = drawn.and(write_last(args.report.as_deref(), last.map(|last| Run::json(&report, &last))));
    // The reader of the output may have ended the training, instead of a signal.
    let gone = unprinted.filter(|_| signals::received().is_none());
    match (answer, gone) {
        // What failed in the last iteration did not end the training, but is missing all the same.
        (Answer::Yes, Some(why)) => printed.and(drawn).and(Err(why.into())),
        (Answer::Yes, None) => printed.and(drawn).map(|()| Answer::Yes),
        (Answer::Interrupted(_), Some(why)) => Err(why.into()),
        // After a signal the terminal may be gone as well. Output that fails changes nothing about the answer.
        (answer, _) => drawn.map(|()| answer),
    }
}

/// Writes a file about the last planned iteration, if it was asked for.
fn write_last(path: Option<&Path>, content: Option<String>) -> Result<()> {
    match (path, content) {
        (None, _) => Ok(()),
        (Some(path), Some(content)) => files::write(Some(path), &content),
        (Some(path), None) => bail!(
            "{} was not written, because no iteration followed a plan; with more --iterations, or without --dynamic, one does",
            path.display()
        ),
    }
}

/// The held-out data that the arguments name, if any.
fn evaluation_data(args: &TrainArgs) -> Result<Option<&Path>> {
    match (&args.eval_data, &args.data, args.eval_every) {
        (Some(path), _, _) => Ok(Some(path)),
        (None, _, _) if args.val_split.is_some() => Ok(None),
        (None, _, None) => Ok(None),
        (None, Some(data), Some(_)) if holds_test_data(data) => Ok(Some(data)),
        (None, _, Some(_)) => bail!(
            "--eval-every needs held-out data: name it with --eval-data, or give a --data folder with test_batch.bin or t10k-images-idx3-ubyte"
        ),
    }
}

/// The training that the arguments describe.
fn training(args: &TrainArgs) -> Result<Training<'static>> {
    let network = &args.network;
    let source = networks::source(network)?;
    let (batch, largest) = match networks::batch(network, &source) {
        BatchSpec::Samples(samples) => (samples as usize, false),
        BatchSpec::Largest => (1, true),
    };
    let options = trace::options(network, batch);
    networks::warn_of_options_without_effect(&source, &options);
    networks::warn_of_tiles_without_effect(network, args.tiles);
    let (tokenizer, options) = networks::tokenized(&source, options, &args.tokenizer)?;
    // The forward part is judged by its labels if the network has any.
    let options = match args.network.forward_only && Model::can_evaluate(&source, &options)? {
        true => options.mode(Mode::Evaluation),
        false => options,
    };
    let model = Model::of(source, options)?.epoch(args.samples.unwrap_or(0));
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
        .threads(settings::threads(&args.planner.search))
        .algorithms(algorithms)
        .tiles(args.tiles)
        .tokenizer(tokenizer)
        .verify(args.verify)
        .dynamic(args.dynamic);
    let link = args.host_rate.map(|rate| (Channel::with_rate(rate.0), Channel::with_rate(rate.0)));
    training = settings::host_at(&args.host, link, training);
    if let Some(seed) = args.planner.search.seed {
        training = training.seed(seed);
    }
    if let Some(bytes) = args.host_memory {
        training = training.host_memory(bytes);
    }
    if let Some(path) = &args.data {
        training = training.data_path(path);
    }
    training = match args.epochs {
        Some(epochs) => training.epochs(epochs),
        None => training.iterations(args.iterations),
    };
    if let Some(schedule) = args.schedule {
        training = training.schedule(schedule);
    }
    if let Some(length) = args.schedule_length {
        training = training.schedule_length(length);
    }
    if let Some(norm) = args.clip_norm {
        training = training.clip_norm(norm);
    }
    training = match args.micro_batch {
        None => training,
        Some(BatchSpec::Samples(samples)) => training.micro_batch(samples as usize),
        Some(BatchSpec::Largest) => training.largest_micro_batch(),
    };
    if let Some(every) = args.eval_every {
        training = training.evaluate_every(every);
    }
    if let Some(share) = args.val_split {
        training = training.hold_out(share);
    }
    training = training.augmentation(Augmentation { flip: args.flip, crop: args.crop as usize });
    if let Some(path) = evaluation_data(args)? {
        training = training.evaluation_path(path);
    }
    if let Some(path) = &args.save {
        training = training.save(path, args.save_every);
    }
    if let Some(path) = &args.weights {
        files::expect_file(path, "the weights")?;
        training = training.weights(path);
    }
    if let Some(path) = &args.save_weights {
        training = training.save_weights(path);
    }
    if let Some(path) = &args.resume {
        files::expect_file(path, "the checkpoint that --save wrote")?;
        training = training.resume(path);
    }
    Ok(if largest { training.largest_batch() } else { training })
}
