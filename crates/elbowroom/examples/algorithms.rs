//! What the convolutions of a network can be computed by: time and workspace of every algorithm, each kind of operation once.
//!
//! `cargo run --release -p elbowroom --example algorithms -- [--model resnet18] [--batch 64] [--threads 2]`

use std::sync::Arc;

use elbowroom::algorithms::Candidates;
use elbowroom::graph::OpKind;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::search::Silent;
use elbowroom::ir::{Bytes, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut model, mut batch, mut threads) = ("resnet18".to_owned(), 64, 2);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--model" => model = value,
            "--batch" => batch = value.parse()?,
            "--threads" => threads = value.parse()?,
            _ => return Err(format!("there is no option {word}").into()),
        }
    }
    let graph = Arc::new(zoo::build(&model, &Options::new(batch))?);
    let candidates = Candidates::measure(&graph, threads, Bytes(u64::MAX), true, &Silent)?;
    println!("{:<36}{:>6}  time and workspace of each algorithm", "operation", "times");
    let mut shown: Vec<&OpKind> = Vec::new();
    for (op, node) in graph.nodes.iter() {
        let measured = candidates.of(op);
        if measured.len() < 2 || shown.contains(&&node.kind) {
            continue;
        }
        shown.push(&node.kind);
        let times = graph.nodes.values().filter(|other| other.kind == node.kind).count();
        print!("{:<36}{times:>6}", node.name);
        for candidate in measured {
            let name = candidate.kind.conv().map_or("", |conv| conv.algorithm.name());
            print!("  {name} {} {}", candidate.time, candidate.workspace);
        }
        println!();
    }
    let total = |choose: &dyn Fn(usize) -> Option<Nanos>| -> Nanos {
        graph.nodes.ids().filter_map(|op| choose(elbowroom::ir::Id::index(op))).sum()
    };
    let ids: Vec<_> = graph.nodes.ids().collect();
    let usual = total(&|op| Some(candidates.of(ids[op])[0].time));
    let equal = total(&|op| {
        let same = |candidate: &&elbowroom::algorithms::Candidate| {
            candidate.kind.conv().is_none_or(|conv| conv.algorithm.has_usual_bits())
        };
        candidates.of(ids[op]).iter().filter(same).map(|candidate| candidate.time).min()
    });
    let any = total(&|op| candidates.of(ids[op]).iter().map(|candidate| candidate.time).min());
    println!("sum over all operations: usual {usual}, fastest of equal bits {equal}, fastest {any}");
    Ok(())
}
