//! Weights in tiles compute the bits of whole ones: every tileable weight of networks of many kinds is cut as finely as it can be.

use std::collections::BTreeMap;

use elbowroom_engine::Interpreter;
use elbowroom_engine::kernels::tile_grain;
use elbowroom_graph::zoo::{self, OptimizerKind, Options};
use elbowroom_graph::{Content, Graph, Mode, Tiling};

/// The finest tiling of every weight that can be cut, in tiles of a row that suits no vector where nothing limits them.
fn finest(graph: &Graph) -> Tiling {
    let mut tiling = Tiling::default();
    for weight in graph.tileable() {
        let grain = tile_grain(graph, &weight);
        let rows = if grain == 1 { weight.rows.div_ceil(3) } else { grain };
        if rows < weight.rows {
            tiling.insert(weight.name, rows);
        }
    }
    tiling
}

/// The bits of losses and of all persistent tensors after some iterations.
type Bits = (Vec<Vec<u8>>, BTreeMap<String, Vec<u32>>);

fn bits(graph: &Graph, iterations: usize) -> Bits {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let mut interpreter = Interpreter::new(graph, 5);
    let mut outputs = Vec::new();
    for iteration in 0..iterations {
        let batch = |input: &elbowroom_graph::InputSpec| -> Vec<u8> {
            let len = graph.tensors[input.tensor].shape.len();
            let word = |i: usize| match input.content {
                Content::Real => (((i * 7919 + iteration) % 613) as f32 / 306.0 - 1.0).to_ne_bytes(),
                Content::Class { classes } => (((i * 31 + iteration) * 17 % classes) as i32).to_ne_bytes(),
            };
            (0..len).flat_map(word).collect()
        };
        let inputs: Vec<Vec<u8>> = graph.inputs.iter().map(batch).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        outputs.extend(interpreter.run(&pool, &inputs).expect("the inputs fit"));
    }
    let mut values: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for whole in graph.wholes() {
        let value = whole.tiles.flat_map(|tile| interpreter.persistent(tile).iter().map(|x| x.to_bits()));
        let value: Vec<u32> = value.collect();
        assert_eq!(value.len(), whole.shape.len(), "{}", whole.name);
        assert!(values.insert(whole.name, value).is_none());
    }
    (outputs, values)
}

/// Runs a graph whole and in tiles; at least `least` weights are cut.
fn agrees(graph: &Graph, least: usize) {
    let tiling = finest(graph);
    assert!(tiling.iter().count() >= least, "{}: {tiling:?}", graph.name);
    let tiled = graph.tiled(&tiling).expect("its weights can be cut");
    assert!(tiled.persistent.len() > graph.persistent.len());
    let names = |graph: &Graph| -> Vec<_> {
        graph.wholes().into_iter().map(|whole| (whole.name, whole.shape, whole.role)).collect()
    };
    assert_eq!(names(&tiled), names(graph));
    let ((losses, values), (losses_in_tiles, values_in_tiles)) = (bits(graph, 3), bits(&tiled, 3));
    assert_eq!(losses, losses_in_tiles, "{}", graph.name);
    for (name, value) in &values {
        assert!(*value == values_in_tiles[name], "{}: {name} has other bits", graph.name);
    }
}

fn network(name: &str, options: &Options) -> Graph {
    zoo::build(name, options).expect("the network can be built")
}

#[test]
fn dense_layers_and_convolutions() {
    let vgg = Options::new(2).classes(300);
    agrees(&network("vgg11", &vgg), 8);
    agrees(&network("vgg11", &vgg.clone().optimizer(OptimizerKind::Adam).weight_decay(0.01)), 8);
    agrees(&network("resnet18", &Options::new(2).image(16)), 4);
    agrees(&network("unet", &Options::new(1).image(32).width(32)), 2);
}

#[test]
fn layers_whose_sums_have_one_part() {
    // Their gradients to the input sum over at most 256 numbers, and go on at any row.
    agrees(&network("resnet20", &Options::new(2).image(8)), 10);
    agrees(&network("gpt", &Options::new(2).length(8).vocabulary(600).width(64).layers(2)), 6);
    agrees(&network("alexnet", &Options::new(2).classes(200)), 5);
}

#[test]
fn weights_that_are_used_several_times() {
    let language = Options::new(2).length(8).vocabulary(600).width(192).layers(2);
    for name in ["gpt", "lstm", "seq2seq"] {
        agrees(&network(name, &language), 3);
    }
}

#[test]
fn batches_in_parts() {
    let language = Options::new(2).length(6).vocabulary(600).width(192).layers(1);
    for graph in [network("gpt", &language), network("vgg11", &Options::new(1).classes(300))] {
        agrees(&graph.accumulated(3, None).unwrap(), 3);
    }
}

#[test]
fn gradients_that_are_clipped_by_the_norm_of_all() {
    let language = Options::new(2).length(6).vocabulary(600).width(192).layers(1);
    let vgg = Options::new(2).classes(300);
    for (graph, least) in [
        (network("gpt", &language), 3),
        (network("vgg11", &vgg), 8),
        (network("lstm", &language.clone().optimizer(OptimizerKind::Adam)), 2),
    ] {
        // Low enough that every gradient is multiplied.
        for parts in [1, 2] {
            let clipped = graph.accumulated(parts, Some(0.01)).unwrap();
            agrees(&clipped, least);
            assert_ne!(bits(&clipped, 2).1, bits(&graph.accumulated(parts, None).unwrap(), 2).1);
        }
    }
}

#[test]
fn forward_passes() {
    let options = Options::new(2).classes(300);
    let training = network("vgg11", &options);
    let evaluation = network("vgg11", &options.mode(Mode::Evaluation)).with_persistent_of(&training).unwrap();
    let tiling = finest(&training);
    let tiled = evaluation.tiled(&tiling).unwrap();
    assert_eq!(bits(&evaluation, 1), bits(&tiled, 1));
    // One session runs both.
    let facts = |graph: &Graph| -> Vec<_> {
        let fact = |p: &elbowroom_graph::Parameter| (p.name.clone(), graph.tensors[p.begin].shape);
        graph.persistent.iter().map(fact).collect()
    };
    assert_eq!(facts(&tiled), facts(&training.tiled(&tiling).unwrap()));
}

#[test]
fn what_is_no_weight_of_a_layer_is_not_cut() {
    let graph = network("vgg11", &Options::new(2));
    assert!(network("kmeans", &Options::new(8)).tileable().is_empty());
    let mut tiling = Tiling::default();
    tiling.insert("features.0.bias", 2);
    assert!(graph.tiled(&tiling).is_err());
}
