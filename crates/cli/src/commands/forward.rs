//! `elbowroom evaluate` and `elbowroom predict`: one pass over a data set, forward only, under a limit.

use std::fmt::Write;
use std::io;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
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
use crate::printer::{self, counted, row};
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

/// Runs the pass; the answer instead of a report if there is none.
fn pass(args: &ForwardArgs, mode: Mode, collect: Collect<'_>) -> Result<Result<TrainReport, Answer>> {
    let BatchSpec::Samples(batch) = args.network.batch else {
        bail!("--batch max is for `train`; give a number of samples, like --batch 32");
    };
    let options = trace::options(&args.network, batch as usize).mode(mode);
    networks::warn_of_options_without_effect(&args.network.model, &options);
    files::expect_file(&args.weights, "the weights")?;
    let mut training = Training::new(Model::new(&args.network.model, options)?, args.memory)
        .method(settings::method(&args.planner)?)
        .freedom(settings::freedom(&args.planner.freedom))
        .threads(settings::threads(&args.planner.search))
        .weights(&args.weights)
        .data_path(&args.data)
        .one_pass();
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
    let (mut loss, mut hits, mut labels, mut samples, mut language) = (0.0, 0.0, 0, 0, false);
    let collect = |outputs: &Outputs| {
        (labels, samples) = (labels + outputs.labels, samples + outputs.samples as u64);
        language = outputs.language;
        for (name, values) in &outputs.values {
            let value = values.first().copied().map_or(f64::NAN, f64::from);
            match name.as_str() {
                "loss" => loss += value,
                "hits" => hits += value,
                _ => {}
            }
        }
    };
    let report = match pass(&args.forward, Mode::Evaluation, Box::new(collect))? {
        Ok(report) => report,
        Err(answer) => return Ok(answer),
    };
    if labels == 0 {
        bail!("{} has no labels to compare with", args.forward.data.display());
    }
    let (loss, accuracy) = (loss / labels as f64, hits / labels as f64);
    let perplexity = language.then(|| loss.exp());
    if args.json {
        printer::json(&json!({
            "eval_loss": [loss],
            "eval_accuracy": [accuracy],
            "eval_perplexity": perplexity.into_iter().collect::<Vec<f64>>(),
            "samples": samples,
            "limit_bytes": report.plan.limit_bytes,
            "measured_peak_bytes": report.measured_peak_bytes,
        }))?;
        return Ok(Answer::Yes);
    }
    printer::line(&report.plan.trace)?;
    let mut rows = vec![
        row("loss", format!("{loss:.6}"), "mean over all labels"),
        row("accuracy", format!("{:.2} %", 100.0 * accuracy), format!("of {}", counted(labels, "label"))),
    ];
    rows.extend(perplexity.map(|perplexity| row("perplexity", format!("{perplexity:.3}"), "")));
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

/// Runs `elbowroom predict`.
pub fn predict(args: &PredictArgs) -> Result<Answer> {
    args.output.as_deref().map_or(Ok(()), files::expect_writable)?;
    let mut lines = String::new();
    let mut unusable = false;
    let collect = |outputs: &Outputs| {
        let logits = outputs.values.iter().find(|(name, _)| name == "logits" && outputs.classes > 0);
        let Some((_, logits)) = logits else {
            unusable = true;
            return;
        };
        let (size, classes) = (logits.len() / outputs.batch.max(1), outputs.classes.max(1));
        for (row, logits) in logits.chunks_exact(size.max(1)).take(outputs.samples).enumerate() {
            let sample = outputs.first + row as u64;
            let Some(last) = logits.chunks_exact(classes).last() else { continue };
            let (class, probability) = most_probable(last);
            // Writing to a string cannot fail.
            let _ = write!(lines, "{sample},{class},{probability:.6}");
            if outputs.language {
                let bytes: Vec<u8> = logits
                    .chunks_exact(classes)
                    .filter_map(|row| u8::try_from(most_probable(row).0).ok())
                    .collect();
                let text = String::from_utf8_lossy(&bytes).replace('"', "\"\"");
                let _ = write!(lines, ",\"{}\"", printer::printable(&text));
            }
            lines.push('\n');
        }
    };
    match pass(&args.forward, Mode::Inference, Box::new(collect))? {
        Ok(_) if unusable => bail!("{} gives no classes to predict", args.forward.network.model),
        Ok(_) => {}
        Err(answer) => return Ok(answer),
    }
    let language = lines.lines().next().is_some_and(|line| line.matches(',').count() > 2);
    let head = if language { "sample,token,probability,text\n" } else { "sample,class,probability\n" };
    match &args.output {
        Some(path) => files::write(Some(path), &(head.to_owned() + &lines))?,
        None => {
            let mut out = io::stdout().lock();
            io::Write::write_all(&mut out, (head.to_owned() + &lines).as_bytes())?;
        }
    }
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
