//! The `elbowroom` command: arguments become settings, settings become one call of the library per stage, and its answer becomes words.
//!
//! Standard output carries data, standard error carries talk. Exit status: 0 yes, 1 no (infeasible, illegal, not equal), 2 error.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod files;
mod learning;
mod networks;
mod printer;
mod progress;
mod settings;
mod values;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// The result of a command, apart from its output.
pub enum Answer {
    /// Success, and a positive answer.
    Yes,
    /// A negative answer, with a sentence for standard error.
    No(String),
}

fn main() -> ExitCode {
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
    match answer {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No(sentence)) => {
            eprintln!("elbowroom: {sentence}");
            ExitCode::from(1)
        }
        // A reader that closed the pipe (`| head`) has what it wanted.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elbowroom: {}", one_sentence(&error));
            ExitCode::from(2)
        }
    }
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
