//! Trains a network of your own on data of your own in 6 MiB: `cargo run --release --example train_your_own`

use elbowroom::data::{Batch, DataError, Dataset};
use elbowroom::graph::layers::{Part, WeightInit};
use elbowroom::graph::op::Adam;
use elbowroom::graph::{BuildError, Builder, Content, Graph, Mode, Optimizer};
use elbowroom::ir::Bytes;
use elbowroom::train::Training;

/// Two spirals around each other; each point belongs to one of them.
struct Spirals;

impl Dataset for Spirals {
    fn samples(&self) -> Option<u64> {
        Some(100_000)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        for (point, &index) in batch.reals("points", &[2])?.chunks_exact_mut(2).zip(indices) {
            let (turn, radius) = ((index % 2) as f32, index as f32 / 100_000.0);
            let angle = 6.0 * radius + std::f32::consts::PI * turn;
            point.copy_from_slice(&[2.0 * radius * angle.cos(), 2.0 * radius * angle.sin()]);
        }
        for (label, &index) in batch.classes("labels", &[])?.iter_mut().zip(indices) {
            *label = (index % 2) as i32;
        }
        Ok(())
    }
}

/// Eight hidden layers of 128 units, for batches of this size.
fn network(batch: usize) -> Result<Graph, BuildError> {
    let mut b = Builder::new("spirals", Mode::Training);
    let mut x = b.input("points", [batch, 2], Content::Real);
    let labels = b.input("labels", [batch], Content::Class { classes: 2 });
    for layer in 0..8 {
        let name = format!("hidden{layer}");
        let weights = b.linear_weights(&name, [x.dim(1), 128], true, WeightInit::KaimingFanIn);
        x = b.linear(&name, x, weights)?;
        x = b.relu(&format!("{name}.relu"), x)?;
    }
    let weights = b.linear_weights("logits", [128, 2], true, WeightInit::FanInUniform);
    let logits = b.linear("logits", x, weights)?;
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / batch as f32)?;
    let adam = Adam { learning_rate: 1e-3, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0 };
    b.finish_training(loss, Optimizer::Adam(adam))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let training = Training::new(network(2048)?, Bytes(6 << 20)).data(Spirals);
    let report = training.iterations(20).evaluations(200).verify(true).run()?;
    println!("unlimited, it takes {}", report.plan.unconstrained_peak_bytes);
    println!("measured peak {} of {}", report.measured_peak_bytes, report.plan.limit_bytes);
    println!("equal to the unlimited run to the bit: {:?}", report.verified);
    println!("loss {:?}", report.losses);
    Ok(())
}
