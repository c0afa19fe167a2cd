//! What comparisons with PyTorch share: a program that computes training iterations in a process of its own and answers questions in lines, and
//! options.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub type Failure = Box<dyn std::error::Error>;

/// The process. It ends with this value.
pub struct Peer {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a command, which reads questions from its standard input and answers each with a line.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().ok_or("standard input is a pipe")?;
        let answers = BufReader::new(process.stdout.take().ok_or("standard output is a pipe")?);
        Ok(Self { process, questions, answers })
    }

    /// `pytorch.py` on this many threads, in one of its ways.
    pub fn pytorch(python: &str, threads: usize, way: &str) -> Result<Self, Failure> {
        // Threads that spin while they wait would take the cores from the other sides.
        Self::start(
            Command::new(python)
                .arg(script())
                .args([&threads.to_string(), way])
                .env("OMP_WAIT_POLICY", "PASSIVE"),
        )
    }

    /// The answer to a question.
    pub fn ask(&mut self, question: &str) -> Result<String, Failure> {
        writeln!(self.questions, "{question}")?;
        self.questions.flush()?;
        self.answer()
    }

    /// The next line that it prints.
    pub fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("a process that is measured ended; standard error has the reason".into());
        }
        Ok(line.trim().to_owned())
    }

    /// The median of an answer's numbers.
    pub fn median(&mut self, question: &str) -> Result<f64, Failure> {
        let numbers: Result<Vec<f64>, _> = self.ask(question)?.split_whitespace().map(str::parse).collect();
        Ok(median(&numbers?))
    }
}

/// The path of `pytorch.py`.
pub fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/peers/pytorch.py")
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads `--json`, and options with a value each, which `set` takes if it knows them. Says whether `--json` is there.
pub fn options(
    mut words: impl Iterator<Item = String>,
    mut set: impl FnMut(&str, String) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let mut json = false;
    while let Some(word) = words.next() {
        if word == "--json" {
            json = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        if !set(&word, value)? {
            return Err(format!("there is no option {word}").into());
        }
    }
    Ok(json)
}

/// The median of some numbers.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { sorted[middle - 1].midpoint(sorted[middle]) }
}
