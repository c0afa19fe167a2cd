//! Trains a network of your own on data of your own in 6 MiB: `cargo run --release --example train_your_own`

use elbowroom::data::{Batch, DataError, Dataset};
use elbowroom::graph::layers::WeightInit;
use elbowroom::ir::Bytes;
use elbowroom::nn::{Activation, Classifier, Linear, Sequential};
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

/// Eight hidden layers of 128 units.
fn network() -> Classifier {
    let hidden = |layers: Sequential, _| {
        layers.then(Linear::new(128).init(WeightInit::KaimingFanIn)).then(Activation::RELU)
    };
    let layers = (0..8).fold(Sequential::new(), hidden).then(Linear::new(2));
    Classifier::of_reals("points", &[2], 2, layers).name("spirals").batch(2048)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let training = Training::new(network(), Bytes(6 << 20)).data(Spirals);
    let report = training.iterations(20).evaluations(200).verify(true).run()?;
    println!("unlimited, it takes {}", report.plan.unconstrained_peak_bytes);
    println!("measured peak {} of {}", report.measured_peak_bytes, report.plan.limit_bytes);
    println!("equal to the unlimited run to the bit: {:?}", report.verified);
    println!("loss {:?}", report.losses);
    Ok(())
}
