//! The `elbowroom` command: arguments become settings, settings become one call of the library per stage, and its answer becomes words.
//!
//! Standard output carries data, standard error carries talk. Exit status: 0 yes, 1 no (infeasible, illegal, not equal, diverged), 2 error,
//! 128 + n after the signal of number n.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod files;
mod learning;
mod networks;
mod printer;
mod progress;
mod settings;
mod signals;
mod values;

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
    let cli = Cli::parse();
    let answer = match &cli.command {
        Command::Train(args) => commands::train::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Pack(args) => commands::pack::run(args),
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

/// Prints a sentence on standard error. The exit status counts even where nobody can read the sentence.
pub fn say(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "elbowroom: {sentence}");
}

/// An error with its causes, on one line, no cause repeated that its effect has already quoted.
fn one_sentence(error: &anyhow::Error) -> String {
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
