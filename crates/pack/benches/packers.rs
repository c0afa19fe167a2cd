//! Every packer on generated problems. `cargo bench -p elbowroom-pack`.

mod generate;

use divan::Bencher;
use elbowroom_ir::packing::Problem;
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_pack::packer;

fn main() {
    divan::main();
}

const NAMES: [&str; 8] =
    ["auto", "best-fit", "smartpool-best", "smartpool-first", "size", "conflict", "pool", "sharing"];

fn bench(bencher: Bencher<'_, '_>, name: &str, problem: &Problem) {
    let packer = packer(name).expect("a packer of this name");
    // Heuristics and the first searches only: benchmarks measure speed, not luck.
    bencher.bench(|| packer.pack(problem, &Budget::evaluations(4), &Silent));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn training_1000(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::training(1_000, 1));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn tiling_200(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::tiling(200, 1 << 20, 1));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn strip_200(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::strip(200, 1));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn cuts_200(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::cuts(200, 1));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn open_200(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::open(200, 1));
}

#[divan::bench(args = NAMES, sample_count = 10)]
fn full_200(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::full(200, 1));
}

#[divan::bench(args = NAMES, sample_count = 3)]
fn overlapping_5000(bencher: Bencher<'_, '_>, name: &str) {
    let tile: Vec<_> = generate::training(960, 0).blocks.iter().map(|(_, block)| block.clone()).collect();
    bench(bencher, name, &generate::overlapping(&tile, 5_000, 5, 1));
}

#[divan::bench(args = ["auto", "best-fit", "pool", "sharing"], sample_count = 3)]
fn training_100_000(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::training(100_000, 1));
}

#[divan::bench(args = ["auto", "best-fit", "pool", "sharing"], sample_count = 1)]
fn training_1_000_000(bencher: Bencher<'_, '_>, name: &str) {
    bench(bencher, name, &generate::training(1_000_000, 1));
}
