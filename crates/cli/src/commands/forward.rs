//! `elbowroom evaluate` and `elbowroom predict`: one pass over a data set, forward only, under a limit.

use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use elbowroom::data::Tokenizer;
use elbowroom::files::write_whole;
use elbowroom::graph::Mode;
use elbowroom::ir::search::Observer;
use elbowroom::network::Model;
use elbowroom::report::{Ending, TrainReport};
use elbowroom::size::BatchSpec;
use elbowroom::train::{Outputs, TrainError, TrainObserver, Training};
use serde_json::json;

use crate::Answer;
use crate::args::{EvaluateArgs, ForwardArgs, PredictArgs};
use crate::commands::trace;
use crate::commands::train::print;
use crate::printer::{self, row};
use crate::progress::Progress;
use crate::{files, networks, settings, signals};

/// Takes the outputs of a batch.
type Collect<'a> = Box<dyn FnMut(&Outputs) + Send + 'a>;

/// Passes on the outputs of every batch, and shows progress.
struct Collector<'a> {
    progress: Progress,
    collect: Mutex<Collect<'a>>,
}

impl Observer for Collector<'_> {
    fn interrupted(&self) -> bool {
        self.progress.interrupted()
    }
}

impl TrainObserver for Collector<'_> {
    fn stage(&self, what: &str) {
        TrainObserver::stage(&self.progress, what);
    }

    fn outputs(&self, outputs: &Outputs) {
        (self.collect.lock().unwrap_or_else(PoisonError::into_inner))(outputs);
    }
}

/// Runs the pass; the answer instead of a report if there is none. `collect` takes the outputs.
fn pass<'c>(
    args: &ForwardArgs,
    mode: Mode,
    collect: impl FnOnce(Tokenizer) -> Collect<'c>,
) -> Result<Result<TrainReport, Answer>> {
    let source = networks::source(&args.network)?;
    let BatchSpec::Samples(batch) = networks::batch(&args.network, &source) else {
        bail!("--batch max is for `train`; give a number of samples, like --batch 32");
    };
    let options = trace::options(&args.network, batch as usize).mode(mode);
    networks::warn_of_options_without_effect(&source, &options);
    match &args.weights {
        Some(weights) => files::expect_file(weights, "the weights")?,
        None if source.is_file() => {}
        None => bail!(
            "name the weights with --weights: a checkpoint or a safetensors file; only an ONNX file has its own"
        ),
    }
    let (tokenizer, options) = networks::tokenized(&source, options, &args.tokenizer)?;
    let collect = collect(tokenizer.clone());
    let mut training = Training::new(Model::of(source, options)?, args.memory)
        .method(settings::method(&args.planner)?)
        .freedom(settings::freedom(&args.planner.freedom))
        .threads(settings::threads(&args.planner.search))
        .data_path(&args.data)
        .tokenizer(tokenizer)
        .one_pass();
    if let Some(weights) = &args.weights {
        training = training.weights(weights);
    }
    training = settings::host_at(&args.host, None, training);
    signals::catch();
    let observer = Collector { progress: Progress::of_training(false), collect: Mutex::new(collect) };
    let outcome = training.run_observed(&observer);
    drop(observer);
    Ok(match outcome {
        Ok(report) if report.ending == Ending::Interrupted => {
            Err(Answer::Interrupted("the pass over the data was not finished".to_owned()))
        }
        Ok(report) => Ok(report),
        Err(TrainError::Refused(refusal)) => Err(Answer::No(refusal.sentence())),
        Err(TrainError::Interrupted) => Err(Answer::Interrupted("nothing was computed".to_owned())),
        Err(error) => return Err(error.into()),
    })
}

/// Runs `elbowroom evaluate`.
pub fn evaluate(args: &EvaluateArgs) -> Result<Answer> {
    let report = match pass(&args.forward, Mode::Evaluation, |_| Box::new(|_| ()))? {
        Ok(report) => report,
        Err(answer) => return Ok(answer),
    };
    let [samples] = report.eval_samples[..] else {
        bail!("{} has no labels to compare with", args.forward.data.display());
    };
    if args.json {
        printer::json(&json!({
            "eval_loss": report.eval_loss,
            "eval_accuracy": report.eval_accuracy,
            "eval_perplexity": report.eval_perplexity,
            "samples": samples,
            "limit_bytes": report.plan.limit_bytes,
            "measured_peak_bytes": report.measured_peak_bytes,
        }))?;
        return Ok(Answer::Yes);
    }
    printer::line(&report.plan.trace)?;
    let mut rows = print::evaluated(&report);
    rows.push(row("samples", printer::grouped(samples), ""));
    let limit = format!("of {}", report.plan.limit_bytes);
    rows.push(row("measured peak", report.measured_peak_bytes, limit));
    printer::section("Evaluation", &rows)?;
    Ok(Answer::Yes)
}

/// The most probable class of a row of logits, and its probability.
fn most_probable(logits: &[f32]) -> (usize, f64) {
    let best =
        (0..logits.len()).reduce(|best, class| if logits[class] > logits[best] { class } else { best });
    let best = best.unwrap_or(0);
    let at_best = logits.get(best).copied().map_or(0.0, f64::from);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - at_best).exp()).sum();
    (best, 1.0 / sum)
}

/// Writes a line for every sample as its batch ends.
struct Lines<'w> {
    out: &'w mut (dyn Write + Send),
    begun: bool,
    /// Whether the network gives nothing that could be predicted.
    unusable: bool,
    /// Why lines could not be written.
    failed: Option<io::Error>,
}

impl<'w> Lines<'w> {
    fn new(out: &'w mut (dyn Write + Send)) -> Self {
        Self { out, begun: false, unusable: false, failed: None }
    }

    /// Writes the lines of a batch. If that fails, the pass ends as Ctrl-C ends it.
    fn add(&mut self, outputs: &Outputs, tokenizer: &Tokenizer) {
        if self.failed.is_none()
            && let Err(error) = self.write(outputs, tokenizer)
        {
            self.failed = Some(error);
            signals::interrupt();
        }
    }

    fn write(&mut self, outputs: &Outputs, tokenizer: &Tokenizer) -> io::Result<()> {
        let logits = outputs.values.iter().find(|(name, _)| name == "logits" && outputs.classes > 0);
        let Some((_, logits)) = logits else {
            self.unusable = true;
            return Ok(());
        };
        if !std::mem::replace(&mut self.begun, true) {
            let head =
                if outputs.language { "sample,token,probability,text" } else { "sample,class,probability" };
            writeln!(self.out, "{head}")?;
        }
        let (size, classes) = (logits.len() / outputs.batch.max(1), outputs.classes.max(1));
        for (row, logits) in logits.chunks_exact(size.max(1)).take(outputs.samples).enumerate() {
            let sample = outputs.first + row as u64;
            let Some(last) = logits.chunks_exact(classes).last() else { continue };
            let (class, probability) = most_probable(last);
            write!(self.out, "{sample},{class},{probability:.6}")?;
            if outputs.language {
                let tokens: Vec<u32> =
                    logits.chunks_exact(classes).map(|row| most_probable(row).0 as u32).collect();
                let text = tokenizer.decode(&tokens).replace('"', "\"\"");
                write!(self.out, ",\"{}\"", printer::printable(&text))?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// Runs `elbowroom predict`. Lines are written as they come; a file appears whole or not at all.
pub fn predict(args: &PredictArgs) -> Result<Answer> {
    let Some(path) = &args.output else {
        return predict_to(args, &mut BufWriter::new(printer::output()));
    };
    files::expect_writable(path)?;
    let mut answer = None;
    let written = write_whole(path, |out| {
        let ended = answer.insert(predict_to(args, out));
        match ended {
            Ok(Answer::Yes) => Ok(()),
            // The file must not appear; the answer says why.
            _ => Err(io::Error::other("the pass over the data was not finished")),
        }
    });
    match answer {
        Some(Ok(Answer::Yes)) | None => {
            written.with_context(|| format!("cannot write {}", path.display()))?;
            Ok(Answer::Yes)
        }
        Some(answer) => answer,
    }
}

fn predict_to(args: &PredictArgs, out: &mut (dyn Write + Send)) -> Result<Answer> {
    let mut lines = Lines::new(out);
    let ended = pass(&args.forward, Mode::Inference, |tokenizer| {
        let lines = &mut lines;
        Box::new(move |outputs| lines.add(outputs, &tokenizer))
    });
    let Lines { out, unusable, failed, .. } = lines;
    if let Some(error) = failed {
        return Err(error).context("the predictions cannot be written");
    }
    match ended? {
        Ok(_) if unusable => bail!("{} gives no classes to predict", args.forward.network.model),
        Ok(_) => {}
        Err(answer) => return Ok(answer),
    }
    out.flush()?;
    Ok(Answer::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_a_softmax() {
        let (class, probability) = most_probable(&[0.0, 2.0, 2.0, -1.0]);
        let sum = 2.0 + (-2.0f64).exp() + (-3.0f64).exp();
        assert_eq!(class, 1);
        assert!((probability - 1.0 / sum).abs() < 1e-12);
        assert_eq!(most_probable(&[1e30, -1e30]), (0, 1.0));
    }
}
