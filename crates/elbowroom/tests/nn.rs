//! Networks of layers: extents follow from one another, names are PyTorch's, and what does not fit is named.

use elbowroom::data::{Batch, DataError, Dataset};
use elbowroom::graph::{Graph, Mode};
use elbowroom::network::Network;
use elbowroom::nn::{
    Activation, BatchNorm, Branches, Classifier, Conv2d, ConvTranspose2d, Dropout, Embedding, Flatten,
    LayerNorm, Linear, Pool2d, Positions, Residual, SelfAttention, Sequential,
};
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;

fn shapes(graph: &Graph) -> Vec<(&str, Vec<usize>)> {
    let weights =
        graph.persistent.iter().filter(|parameter| parameter.role != elbowroom::graph::Role::Optimizer);
    weights
        .map(|parameter| (parameter.name.as_str(), graph.tensors[parameter.begin].shape.dims().to_vec()))
        .collect()
}

/// A convolution, a block whose shortcut halves the image, two branches, and a dense layer.
fn vision() -> Sequential {
    let block = Sequential::new()
        .then(Conv2d::new(8, 3).stride(2).padding(1).no_bias())
        .then(BatchNorm)
        .then(Activation::RELU)
        .then(Conv2d::new(8, 3).padding(1));
    let shortcut = Sequential::new().then(Conv2d::new(8, 1).stride(2));
    let branches = Branches(vec![
        Sequential::new().then(Conv2d::new(4, 1)),
        Sequential::new().then(Pool2d::average(2)).then(ConvTranspose2d::new(6, 2)),
    ]);
    Sequential::new()
        .named("stem", Conv2d::new(6, 3).padding(1))
        .then(Residual::new(block).shortcut(shortcut))
        .then(branches)
        .then(Pool2d::maximum(2))
        .then(Dropout(0.1))
        .then(Flatten)
        .named("head", Linear::new(3))
}

#[test]
fn extents_follow_and_names_are_those_of_a_sequential_module() {
    let graph = Classifier::of_images([3, 8, 8], 3, vision()).batch(2).graph(Mode::Training).unwrap();
    assert_eq!(
        shapes(&graph),
        [
            ("stem.weight", vec![6, 3, 3, 3]),
            ("stem.bias", vec![6]),
            ("1.0.weight", vec![8, 6, 3, 3]),
            ("1.1.weight", vec![8]),
            ("1.1.bias", vec![8]),
            ("1.1.running_mean", vec![8]),
            ("1.1.running_var", vec![8]),
            ("1.3.weight", vec![8, 8, 3, 3]),
            ("1.3.bias", vec![8]),
            ("1.shortcut.0.weight", vec![8, 6, 1, 1]),
            ("1.shortcut.0.bias", vec![8]),
            ("2.branch0.0.weight", vec![4, 8, 1, 1]),
            ("2.branch0.0.bias", vec![4]),
            ("2.branch1.1.weight", vec![8, 6, 2, 2]),
            ("2.branch1.1.bias", vec![6]),
            // Ten channels of 2 x 2 pixels.
            ("head.weight", vec![3, 40]),
            ("head.bias", vec![3]),
        ]
    );
}

/// Images whose brightest channel is their class.
struct Channels;

impl Dataset for Channels {
    fn samples(&self) -> Option<u64> {
        Some(60)
    }
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        for (image, &index) in batch.reals("images", &[3, 8, 8])?.chunks_exact_mut(192).zip(indices) {
            for (at, pixel) in image.iter_mut().enumerate() {
                let bright = if at as u64 / 64 == index % 3 { 1.0 } else { 0.0 };
                *pixel = bright + (at as u64 * (index + 3) % 17) as f32 / 40.0;
            }
        }
        for (label, &index) in batch.classes("labels", &[])?.iter_mut().zip(indices) {
            *label = (index % 3) as i32;
        }
        Ok(())
    }
}

#[test]
fn a_network_of_layers_learns_is_evaluated_and_built_for_other_batches() {
    let network = Classifier::of_images([3, 8, 8], 3, vision()).name("own").batch(12);
    assert_eq!(network.with_batch(5).unwrap().largest().unwrap().name, "own batch 5");
    let most: MemorySpec = "80%".parse().unwrap();
    let training = Training::new(network, most).data(Channels).evaluation_data(Channels).epochs(20);
    let report = training.micro_batch(6).evaluations(20).threads(2).verify(true).run().unwrap();
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.eval_accuracy.last(), Some(&1.0), "{:?}", report.eval_loss);
}

#[test]
fn tokens_are_classified_as_those_that_follow() {
    let attend = Sequential::new().then(LayerNorm).then(SelfAttention::new(2).causal());
    let dense =
        Sequential::new().then(LayerNorm).then(Linear::new(16)).then(Activation::GELU).then(Linear::new(8));
    let layers = Sequential::new()
        .then(Embedding::new(256, 8).std(0.1))
        .then(Positions { std: 0.1 })
        .then(Residual::new(attend))
        .then(Residual::new(dense))
        .then(Linear::new(256).no_bias());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "abcdefgh".repeat(60)).unwrap();
    let network = Classifier::of_tokens(8, 256, layers).batch(4);
    let most: MemorySpec = "90%".parse().unwrap();
    let training = Training::new(network, most).data_path(folder.path()).evaluation_path(folder.path());
    let report = training.evaluations(20).iterations(60).threads(2).verify(true).run().unwrap();
    assert_eq!(report.verified, Some(true));
    assert!(report.losses[59] < report.losses[0] - 1.0, "{:?}", report.losses);
}

#[test]
fn layers_that_do_not_fit_are_named() {
    let refusal = |layers: Sequential| {
        Classifier::of_images([3, 8, 8], 3, layers).graph(Mode::Training).unwrap_err().to_string()
    };
    let new = Sequential::new;
    let cases = [
        (new().then(Linear::new(3)), "need 96 numbers"),
        (
            new().then(Flatten).then(Conv2d::new(4, 3)),
            "`1`: a convolution takes [batch, channels, height, width]",
        ),
        (new().then(Conv2d::new(4, 9)), "does not fit"),
        (new().then(Conv2d::new(4, 3).stride(0)), "stride of at least 1"),
        (new().then(Residual::new(new().then(Conv2d::new(4, 3)))), "set a shortcut"),
        (new().then(Flatten).then(SelfAttention::new(2)), "takes [batch, tokens, width]"),
        (new().then(Dropout(1.5)), "0..1"),
        (new().named("a", Flatten).named("a", Flatten), "two layers are called `a`"),
        (new().then(Branches(Vec::new())), "nothing to concatenate"),
        (new(), "the last layer gives"),
        (new().then(Embedding::new(5, 3)), "an embedding takes"),
    ];
    for (layers, says) in cases {
        let refusal = refusal(layers);
        assert!(refusal.contains(says), "{refusal}");
    }
    let flat = || new().then(Flatten).then(Linear::new(3));
    for sample in [&[1; 5][..], &[2, 0]] {
        let error = Classifier::of_reals("x", sample, 3, flat()).graph(Mode::Training).unwrap_err();
        assert!(error.to_string().contains("at most 4 extents"), "{error}");
    }
    assert!(Classifier::of_reals("x", &[2], 3, flat()).batch(0).graph(Mode::Training).is_err());
}
