//! `train --watch`: a page on the loopback address that shows the training while it runs. Nothing is written to a disk.
//!
//! One thread answers one request after the other: `/` is the page, and `/state?from=N` what is known now, with the losses from the `N`-th on.
//! A request that is slow, long or for another host is refused, so that no other program and no page of another site learns anything.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elbowroom::ir::timeline::{Span, Timeline};
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::page;
use elbowroom::report::Evaluation;
use elbowroom::train::Iteration;
use serde::Serialize;

/// Bytes of a request that are read; browsers send fewer.
const LONGEST: usize = 16 << 10;

/// How long a client may take to send its request or to receive the answer.
const PATIENCE: Duration = Duration::from_secs(2);

const BODY: &str = include_str!("watch/watch.html");
const SCRIPT: &str = include_str!("watch/watch.js");

/// What is known of the training.
#[derive(Default)]
struct State {
    stage: String,
    title: String,
    /// Iterations of the run, and those that have ended.
    iterations: u64,
    done: u64,
    first: u64,
    losses: Vec<Option<f32>>,
    evaluations: Vec<(u64, f64)>,
    last: Option<Iteration>,
    /// When the run began.
    since: Option<Instant>,
    /// The streams of the last planned iteration: stream, start and end of every action.
    spans: Vec<[u64; 3]>,
    iteration_ns: u64,
}

/// What the page receives. Losses are written with the digits that `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    title: &'a str,
    stage: &'a str,
    iterations: u64,
    done: u64,
    first_iteration: u64,
    losses: &'a [Option<f32>],
    evaluations: &'a [(u64, f64)],
    last: Option<Last>,
    left_seconds: Option<f64>,
    streams: Streams<'a>,
}

/// The iteration that ended last.
#[derive(Serialize)]
struct Last {
    number: u64,
    iteration_ns: Nanos,
    measured_peak_bytes: Bytes,
    limit_bytes: Bytes,
    planned: bool,
}

#[derive(Serialize)]
struct Streams<'a> {
    spans: &'a [[u64; 3]],
    iteration_ns: u64,
}

impl State {
    fn answer(&self, from: usize) -> Answer<'_> {
        let last = self.last.map(|last| Last {
            number: last.number,
            iteration_ns: last.time,
            measured_peak_bytes: last.peak,
            limit_bytes: last.limit,
            planned: last.planned,
        });
        let left_seconds = self.since.filter(|_| self.done > 0).map(|since| {
            let each = since.elapsed().as_secs_f64() / self.done as f64;
            each * self.iterations.saturating_sub(self.done) as f64
        });
        Answer {
            title: &self.title,
            stage: &self.stage,
            iterations: self.iterations,
            done: self.done,
            first_iteration: self.first,
            losses: self.losses.get(from..).unwrap_or_default(),
            evaluations: &self.evaluations,
            last,
            left_seconds,
            streams: Streams { spans: &self.spans, iteration_ns: self.iteration_ns },
        }
    }

    /// What the page receives, with the losses from this one on.
    fn json(&self, from: usize) -> String {
        // Strings, finite numbers and lists are JSON; what is not finite is null.
        serde_json::to_string(&self.answer(from)).unwrap_or_default()
    }
}

/// The page of a training, until the process ends.
pub struct Watch {
    state: Arc<Mutex<State>>,
    address: String,
}

impl Watch {
    /// Serves the page on this port, or on any free one if it is 0.
    ///
    /// # Errors
    ///
    /// Nothing can listen on the port.
    pub fn on(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
            format!("--watch cannot serve a page on port {port} of 127.0.0.1; choose another port, or 0 for any free one")
        })?;
        let port = listener.local_addr()?.port();
        let state: Arc<Mutex<State>> = Arc::default();
        let served = state.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away early is its own affair.
                let _ = answer(stream, port, &served);
            }
        };
        std::thread::Builder::new().name("watch".to_owned()).spawn(serve).context("cannot start a thread")?;
        Ok(Self { state, address: format!("http://127.0.0.1:{port}/") })
    }

    /// Where the page is.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A stage begins.
    pub fn stage(&self, what: &str) {
        what.clone_into(&mut self.state().stage);
    }

    /// The name of the network is known.
    pub fn network(&self, name: &str) {
        name.clone_into(&mut self.state().title);
    }

    /// A run begins.
    pub fn begin(&self, iterations: u64) {
        let mut state = self.state();
        (state.iterations, state.since) = (iterations, Some(Instant::now()));
    }

    /// An iteration has ended.
    pub fn iteration(&self, done: &Iteration) {
        let mut state = self.state();
        if state.done == 0 {
            state.first = done.number;
        }
        // Plans are also made between iterations.
        "training".clone_into(&mut state.stage);
        state.done += 1;
        state.losses.extend(done.loss.map(|loss| Some(loss).filter(|loss| loss.is_finite())));
        state.last = Some(*done);
    }

    /// The iteration followed a plan, and this is when its actions ran.
    pub fn measured(&self, timeline: &Timeline) {
        let span = |span: &Span| [span.stream.index() as u64, span.start.get(), span.end.get()];
        let mut state = self.state();
        state.spans.clear();
        state.spans.extend(timeline.spans.iter().map(span));
        state.iteration_ns = timeline.iteration.get();
    }

    /// An evaluation has ended.
    pub fn evaluated(&self, evaluation: &Evaluation) {
        self.state().evaluations.push((evaluation.iterations, evaluation.loss));
    }
}

/// A thread that panicked while holding the lock can at worst leave something that is out of date.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request and closes the connection.
fn answer(mut stream: TcpStream, port: u16, state: &Mutex<State>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(&mut stream)?;
    let (status, kind, body) = respond(&request, port, state);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The head of a request.
fn request(stream: &mut impl Read) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut part)?;
        if count == 0 || head.len() > LONGEST || Instant::now() > until {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Status, media type and body for a request.
fn respond(request: &str, port: u16, state: &Mutex<State>) -> (&'static str, &'static str, String) {
    let text = |status, what: &str| (status, "text/plain", what.to_owned());
    let mut lines = request.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let host =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = host.map(|(_, host)| host.trim()).unwrap_or_default();
    // A name of another site that leads to this address must not read the answer.
    if ![format!("127.0.0.1:{port}"), format!("localhost:{port}")].iter().any(|own| own == host) {
        return text("403 Forbidden", "open the address that elbowroom printed");
    }
    if method != "GET" {
        return text("405 Method Not Allowed", "this page is only read");
    }
    match target.split_once('?').unwrap_or((target, "")) {
        ("/", _) => ("200 OK", "text/html", page::document("Training", BODY, SCRIPT)),
        ("/state", query) => {
            let from = query.strip_prefix("from=").and_then(|from| from.parse().ok()).unwrap_or(0);
            ("200 OK", "application/json", lock(state).json(from))
        }
        _ => text("404 Not Found", "there is nothing here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_host_is_answered_and_only_reading() {
        let state = Mutex::default();
        let status = |request: &str| respond(request, 80, &state).0.split(' ').next().unwrap().to_owned();
        assert_eq!(status("GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n"), "200");
        assert_eq!(status("GET /state?from=x HTTP/1.1\r\nhost:localhost:80\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "403");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "403");
        assert_eq!(status("POST / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n"), "405");
        assert_eq!(status("GET /etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n"), "404");
        assert_eq!(status(""), "403");
    }

    #[test]
    fn a_request_without_end_is_refused() {
        assert!(request(&mut io::repeat(b'a')).is_err());
        assert!(request(&mut &b"GET /"[..]).is_err());
        assert_eq!(request(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).unwrap(), "GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn the_state_has_the_losses_from_a_number_on() {
        let mut state = State { losses: vec![Some(1.5), None, Some(0.5)], ..State::default() };
        assert_eq!(state.answer(1).losses, [None, Some(0.5)]);
        assert_eq!(state.answer(9).losses, []);
        assert_eq!(state.answer(0).left_seconds, None);
        (state.since, state.done, state.iterations) = (Some(Instant::now()), 2, 2);
        assert_eq!(state.answer(0).left_seconds, Some(0.0));
        // As `--json` prints it.
        state.losses = vec![Some(2.237_903), None];
        assert!(state.json(0).contains("\"losses\":[2.237903,null]"), "{}", state.json(0));
    }
}
