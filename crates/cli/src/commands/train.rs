//! `elbowroom train`: arguments become a training of the library, its report becomes output.

mod print;

use anyhow::Result;
use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::largest::LargestError;
use elbowroom::network::Model;
use elbowroom::plot;
use elbowroom::size::BatchSpec;
use elbowroom::train::{TrainError, Training};

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::trace;
use crate::progress::{self, Progress};
use crate::{files, networks, printer, settings};

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<Answer> {
    args.plot.as_deref().map_or(Ok(()), files::expect_writable)?;
    let training = training(args)?;
    progress::interrupt_on_ctrl_c();
    let observer = Progress::of_training(!args.json);
    let outcome = training.run_observed(&observer);
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
        Err(error) => return Err(error.into()),
    };
    if let Some(path) = &args.plot {
        let title = format!("{} under {}", report.plan.trace, report.plan.limit_bytes);
        files::write(Some(path), &plot::losses(&title, report.first_iteration, &report.losses))?;
    }
    if args.json {
        printer::json(&report)?
    } else {
        print::print(&report)?
    };
    Ok(match report.verified {
        Some(false) => {
            Answer::No("the run under the limit is not bit-exact with the run without one, which is a fault in elbowroom".into())
        }
        _ => Answer::Yes,
    })
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
        .seed(args.planner.search.seed)
        .threads(settings::threads(&args.planner.search))
        .algorithms(algorithms)
        .verify(args.verify)
        .dynamic(args.dynamic);
    training = settings::host(args, training);
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
