//! `elbowroom train --watch`: the page is served on the loopback address while the training runs, and changes nothing of it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::expect_both;

const TRAIN: &str =
    "train --model resnet20 --batch 4 --image 16 --memory 60% --evaluations 20 --json --iterations";

/// The body of the answer to a request; `None` if nothing answers.
fn get(address: &str, target: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Some(body.to_owned())
}

#[test]
fn a_training_is_watched_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut training = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
        .args(format!("{TRAIN} 4000 --watch 0").split(' '))
        .current_dir(at)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(training.stderr.take().unwrap());
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the command says where the page is");
        if let Some((_, rest)) = line.split_once("http://") {
            break rest.trim().trim_end_matches('/').to_owned();
        }
    };
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let page = get(&address, "/").unwrap();
    assert!(page.contains("drawLosses") && !page.contains("https://") && !page.contains(" src="));
    // Until a planned iteration has ended; the training is longer than this takes.
    let state = loop {
        let state: Value = serde_json::from_str(&get(&address, "/state?from=0").unwrap()).unwrap();
        if state["streams"]["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
            break state;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert_eq!(state["iterations"], 4000);
    let last = &state["last"];
    assert!(last["measured_peak_bytes"].as_u64() <= last["limit_bytes"].as_u64(), "{last}");
    assert!(state["left_seconds"].as_f64() > Some(0.0), "{state}");
    let losses = state["losses"].as_array().unwrap();
    assert_eq!(losses.len() as u64, state["done"].as_u64().unwrap());

    // The port is taken now.
    let port = address.split(':').nth(1).unwrap();
    let (_, taken) = expect_both(at, &format!("{TRAIN} 2 --watch {port}"), 2);
    assert!(taken.contains(&format!("port {port} of 127.0.0.1; choose another")), "{taken}");
    assert_eq!(taken.lines().count(), 1, "{taken}");

    // A signal ends the training as without a page.
    let stopped = Command::new("kill").args(["-INT", &training.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let mut printed = String::new();
    training.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(training.wait().unwrap().code(), Some(130));
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["losses"].as_array().unwrap()[..losses.len()], losses[..]);
    assert_eq!(get(&address, "/"), None, "nothing is served afterwards");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 0, "nothing is written");

    // The same bits as without a page.
    let iterations = losses.len().min(20);
    let (alone, _) = expect_both(at, &format!("{TRAIN} {iterations}"), 0);
    let alone: Value = serde_json::from_str(&alone).unwrap();
    assert_eq!(alone["losses"].as_array().unwrap()[..], losses[..iterations]);
}

#[test]
fn a_port_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for port in ["70000", "-1", "http"] {
        let (_, refusal) = expect_both(folder.path(), &format!("train --watch={port}"), 2);
        assert!(refusal.contains(port) && refusal.contains("--watch"), "{refusal}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (_, refusal) = expect_both(folder.path(), &format!("train --watch {port}"), 2);
    assert!(refusal.contains(&port.to_string()), "{refusal}");
}
