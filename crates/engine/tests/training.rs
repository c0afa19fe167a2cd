//! Small networks learn: the loss of one batch falls, on every kind of network, by the kernels alone.

use elbowroom_engine::Interpreter;
use elbowroom_graph::Content;
use elbowroom_graph::zoo::{self, Options};

/// Trains on one batch and returns the losses.
fn losses(name: &str, options: &Options, iterations: usize) -> Vec<f32> {
    let graph = zoo::build(name, options).expect("the network can be built");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let inputs: Vec<Vec<u8>> = graph
        .inputs
        .iter()
        .map(|input| {
            let len = graph.tensors[input.tensor].shape.len();
            let word = |i: usize| match input.content {
                Content::Real => (((i * 7919) % 613) as f32 / 306.0 - 1.0).to_ne_bytes(),
                Content::Class { classes } => (((i * 31) % 101 % classes) as i32).to_ne_bytes(),
            };
            (0..len).flat_map(word).collect()
        })
        .collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut interpreter = Interpreter::new(&graph, 3);
    (0..iterations)
        .map(|_| {
            let outputs = interpreter.run(&pool, &inputs).expect("the inputs fit");
            f32::from_ne_bytes(outputs[0][..4].try_into().expect("a loss is a float"))
        })
        .collect()
}

fn falls(name: &str, options: &Options) {
    falls_within(name, options, 20);
}

fn falls_within(name: &str, options: &Options, iterations: usize) {
    let losses = losses(name, options, iterations);
    // With dropout and batches this small single losses jump.
    let (first, last) =
        (losses[0], losses[iterations * 3 / 4..].iter().copied().fold(f32::INFINITY, f32::min));
    assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
    assert!(last < 0.8 * first, "{name}: the loss went from {first} to {last}: {losses:?}");
}

#[test]
fn networks_for_images_learn_a_batch() {
    falls("resnet18", &Options::new(4).image(16).learning_rate(0.02));
    falls("vgg11", &Options::new(2).learning_rate(0.01));
}

#[test]
fn networks_for_language_learn_a_batch() {
    let options = Options::new(4).length(16).vocabulary(64).width(64).layers(2).learning_rate(3e-3);
    falls("gpt", &options);
    falls("lstm", &options.learning_rate(0.02));
}

#[test]
fn networks_of_further_kinds_learn_a_batch() {
    let image = |image, batch, rate| Options::new(batch).image(image).classes(10).learning_rate(rate);
    falls("stochastic-resnet20", &image(16, 4, 0.02).draw(3));
    falls_within("densenet121", &image(16, 2, 0.02), 5);
    falls_within("alexnet", &image(67, 2, 0.003), 10);
    falls("googlenet", &image(48, 2, 0.003));
    falls("unet", &image(16, 1, 0.1).width(16).classes(2));
    falls_within("inception-v3", &image(75, 2, 0.01), 4);
    falls("kmeans", &Options::new(400).width(3).classes(8));
    let language = Options::new(4).length(6).vocabulary(32).width(32).learning_rate(5e-3);
    falls("seq2seq", &language);
}
