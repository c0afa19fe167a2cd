//! The `elbowroom` command: arguments become settings, settings become one call of the library per stage, and its answer becomes words.
//!
//! Standard output carries data, standard error carries talk. Exit status: 0 yes, 1 no (infeasible, illegal, not equal, diverged), 2 error,
//! 128 + n after the signal of number n.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod files;
mod learning;
mod log;
mod networks;
mod planners;
mod printer;
mod progress;
mod settings;
mod signals;
mod values;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// The result of a command, apart from its output.
pub enum Answer {
    /// Success, and a positive answer.
    Yes,
    /// A negative answer, with a sentence for standard error.
    No(String),
    /// The result is complete, but it could not be kept, with a sentence for standard error.
    NotKept(String),
    /// A signal ended the work early, with a sentence that says when and what was kept.
    Interrupted(String),
}

fn main() -> ExitCode {
    signals::survive_size_limits();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return said(&answer),
    };
    let answer = match &cli.command {
        Command::Train(args) => commands::train::run(args),
        Command::Evaluate(args) => commands::forward::evaluate(args),
        Command::Predict(args) => commands::forward::predict(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Why(args) => commands::why::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Pack(args) => commands::pack::run(args),
        Command::Reproduce(args) => commands::reproduce::run(args),
    };
    let (status, sentence) = match answer {
        Ok(Answer::Yes) => (0, None),
        Ok(Answer::No(sentence)) => (1, Some(sentence)),
        Ok(Answer::NotKept(sentence)) => {
            say(&sentence);
            return ExitCode::from(2);
        }
        Ok(Answer::Interrupted(sentence)) => (2, Some(sentence)),
        // A reader that closed the pipe (`| head`) has what it wanted.
        Err(error) if is_broken_pipe(&error) => (0, None),
        Err(error) => (2, Some(one_sentence(&error))),
    };
    if let Some(signal) = signals::received() {
        let kept = sentence.unwrap_or_else(|| "the result is the best that was found until then".to_owned());
        say(&format!("interrupted by {}: {kept}", signal.name));
        return ExitCode::from(signal.status);
    }
    if let Some(sentence) = sentence {
        say(&sentence);
    }
    ExitCode::from(status)
}

/// Prints help, the version or what is wrong with the arguments.
fn said(answer: &clap::Error) -> ExitCode {
    let printed = answer.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say(&printer::unwritable("standard output", &error).to_string());
            ExitCode::from(2)
        }
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2)),
    }
}

/// Characters of a sentence that are shown at its beginning and at its end if it is longer than both together. Sentences quote names
/// and values, and a file can contain one of any length.
const SHOWN: [usize; 2] = [600, 300];

/// Prints a sentence on standard error, on one line. The exit status is the same if the sentence cannot be written.
pub fn say(sentence: &str) {
    let sentence = shortened(&printer::printable(sentence));
    let _ = writeln!(std::io::stderr(), "elbowroom: {sentence}");
}

/// A sentence without the middle if it is too long: its beginning names the file, its end says what to do.
fn shortened(sentence: &str) -> String {
    let [first, last] = SHOWN;
    let count = sentence.chars().count();
    if count <= first + last {
        return sentence.to_owned();
    }
    let beginning: String = sentence.chars().take(first).collect();
    let end: String = sentence.chars().skip(count - last).collect();
    format!("{beginning} [...] {end}")
}

/// An error with its causes, on one line, no cause repeated that its effect has already quoted.
pub fn one_sentence(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_keep_their_beginning_and_their_end() {
        let fits = "é".repeat(900);
        assert_eq!(shortened(&fits), fits);
        let long = shortened(&format!("f.csv: `{}` is no number", "9".repeat(100_000)));
        assert!(long.starts_with("f.csv: `99") && long.ends_with("99` is no number"), "{long}");
        assert!(long.chars().count() < 910);
    }
}
