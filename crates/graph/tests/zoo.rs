//! Every network of the zoo: its size as published, a valid trace, and a gradient for every weight.

use std::collections::{BTreeMap, HashSet};

use elbowroom_graph::zoo::{self, OptimizerKind, Options, ZooError};
use elbowroom_graph::{DType, Graph, Mode, OpKind, Role};
use elbowroom_ir::trace::{Again, Phase, Trace};
use elbowroom_ir::{Bytes, TensorId};

fn build(name: &str, options: &Options) -> Graph {
    zoo::build(name, options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn trace(graph: &Graph) -> Trace {
    graph.trace(&|_, _| Bytes::ZERO).unwrap_or_else(|error| panic!("{}: {error}", graph.name))
}

fn parameters(graph: &Graph) -> usize {
    let weights = graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
    weights.map(|parameter| graph.tensors[parameter.begin].shape.len()).sum()
}

fn image(batch: usize, size: usize) -> Options {
    Options::new(batch).image(size)
}

/// Every buildable name, with options that keep the graph small.
fn samples() -> Vec<(&'static str, Options)> {
    let named = zoo::NAMES.iter().copied().filter(|name| !name.ends_with('N'));
    named
        .chain(["resnet20", "resnet26", "resnet59", "stochastic-resnet18"])
        .map(|name| (name, Options::new(2).length(8)))
        .collect()
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // torchvision's documentation of its weights (`num_params`).
    let torchvision = [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("vgg11", 132_863_336),
        ("vgg13", 133_047_848),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("densenet121", 7_978_856),
        ("densenet161", 28_681_000),
        ("densenet169", 14_149_480),
        ("densenet201", 20_013_928),
        ("mobilenet-v2", 3_504_872),
        ("efficientnet-b0", 5_288_548),
        ("convnext-tiny", 28_589_128),
        ("vit-b-16", 86_567_656),
    ];
    for (name, count) in torchvision {
        assert_eq!(parameters(&build(name, &image(2, 224))), count, "{name}");
    }
    assert_eq!(parameters(&build("inception-v3", &image(2, 299))), 27_161_264);
    // `inceptionresnetv2` of Cadene's pretrained models, and of timm after it.
    assert_eq!(parameters(&build("inception-resnet-v2", &image(2, 299))), 55_843_464);
    // The sum of the paper's layers without the split over two devices, as in Chainer's example.
    let alexnet = [34_944, 614_656, 885_120, 1_327_488, 884_992, 37_752_832, 16_781_312, 4_097_000];
    for size in [224, 225, 226, 227, 258] {
        assert_eq!(parameters(&build("alexnet", &image(2, size))), alexnet.iter().sum::<usize>(), "{size}");
    }
    // `bvlc_googlenet` of the Caffe model zoo, with and without its auxiliary classifiers.
    assert_eq!(parameters(&build("googlenet", &image(2, 224))), 13_378_280);
    let inference = image(2, 224).mode(Mode::Inference);
    assert_eq!(parameters(&build("googlenet", &inference)), 6_998_552);
    // Milesi's U-Net with transposed convolutions, for two classes.
    assert_eq!(parameters(&build("unet", &Options::new(2))), 31_037_698);
    // He et al., 2015, Table 6 say 0.27 million for the variant that pads; projections add 2,752.
    assert_eq!(parameters(&build("resnet20", &Options::new(2))), 269_722 + 2_752);
    // The same table for other depths, in millions as it rounds them.
    for (name, published, half) in [
        ("resnet32", 0.46, 0.005),
        ("resnet44", 0.66, 0.005),
        ("resnet56", 0.85, 0.005),
        ("resnet110", 1.7, 0.05),
        ("resnet1202", 19.4, 0.05),
    ] {
        let millions = (parameters(&build(name, &Options::new(2))) - 2_752) as f64 / 1e6;
        assert!((millions - published).abs() < half, "{name}: {millions} million, not {published}");
    }
    // Half as many channels: a quarter of a convolution's weights between stages, and half of what stands at an end.
    let narrow = parameters(&build("resnet20", &Options::new(2).width(8)));
    assert!((269_722 / 4..269_722 / 3).contains(&narrow), "{narrow}");
    // Hugging Face's `gpt2`, and PyTorch's word language model on Penn Treebank at its default width.
    assert_eq!(parameters(&build("gpt2", &Options::new(1))), 124_439_808);
    // `TinyLlama-1.1B` of Hugging Face.
    assert_eq!(parameters(&build("tinyllama", &Options::new(1).length(8))), 1_100_048_384);
    let lstm = Options::new(2).vocabulary(10_000);
    assert_eq!(parameters(&build("lstm", &lstm)), 4_653_200);
}

/// Chainer's example of seq2seq at its default size: two tables, two `NStepLSTM` of three layers, an output layer.
#[test]
fn the_translator_has_the_parameters_of_its_layers() {
    let (words, units) = (40_000, 1024);
    let layer = 8 * units * units + 8 * units;
    let count = 2 * words * units + 2 * 3 * layer + (units + 1) * words;
    let options = Options::new(1).vocabulary(words).width(units).layers(3).length(2);
    assert_eq!(parameters(&build("seq2seq", &options)), count);
}

#[test]
fn every_graph_is_a_valid_trace_with_the_same_numbers() {
    for (name, options) in samples() {
        for mode in [Mode::Training, Mode::Inference] {
            let graph = build(name, &options.clone().mode(mode));
            let trace = trace(&graph);
            assert_eq!(trace.ops().len(), graph.nodes.len());
            for (id, node) in graph.nodes.iter() {
                assert_eq!(trace.ops()[id].reads, node.inputs);
                assert_eq!(trace.ops()[id].outputs, node.outputs);
            }
            for (id, value) in graph.tensors.iter() {
                assert_eq!(trace.bytes(id), value.bytes(), "{name} {}", value.name);
            }
            let mut names = HashSet::new();
            assert!(graph.persistent.iter().all(|parameter| names.insert(&parameter.name)), "{name}");
            let mut names = HashSet::new();
            for node in graph.nodes.values() {
                assert!(names.insert(&node.name), "{name}: {}", node.name);
            }
        }
    }
}

#[test]
fn training_updates_every_weight_once_and_inference_changes_nothing() {
    for (name, options) in samples() {
        for optimizer in [OptimizerKind::Sgd, OptimizerKind::Adam] {
            let graph = build(name, &options.clone().optimizer(optimizer));
            for parameter in &graph.persistent {
                assert_ne!(parameter.begin, parameter.end, "{name}: {} never changes", parameter.name);
            }
            let steps = graph
                .nodes
                .values()
                .filter(|node| {
                    matches!(
                        node.kind,
                        OpKind::SgdStep { .. } | OpKind::AdamStep { .. } | OpKind::CentroidUpdate { .. }
                    )
                })
                .count();
            let weights = graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight).count();
            assert_eq!(steps, weights, "{name}");
        }
        let graph = build(name, &options.clone().mode(Mode::Inference));
        assert!(graph.persistent.iter().all(|parameter| parameter.begin == parameter.end), "{name}");
        assert!(graph.nodes.values().all(|node| node.phase == Phase::Forward));
    }
}

/// A backward value without a reader is wasted work, unless its op has another output that is read.
#[test]
fn nothing_is_computed_for_nothing() {
    for (name, options) in samples() {
        let graph = build(name, &options);
        let mut read: HashSet<TensorId> =
            graph.nodes.values().flat_map(|node| node.inputs.iter().copied()).collect();
        read.extend(graph.persistent.iter().map(|parameter| parameter.end));
        for node in graph.nodes.values() {
            let sink = matches!(node.kind, OpKind::Output { .. });
            assert!(sink || node.outputs.iter().any(|output| read.contains(output)), "{name}: {}", node.name);
        }
    }
}

#[test]
fn gradients_have_the_shape_of_what_they_belong_to() {
    for (name, options) in samples() {
        let graph = build(name, &options);
        for node in graph.nodes.values() {
            if let OpKind::SgdStep { .. } | OpKind::AdamStep { .. } = node.kind {
                let [weight, gradient] = [0, 1].map(|position| &graph.tensors[node.inputs[position]]);
                assert_eq!(weight.shape.len(), gradient.shape.len(), "{name}: {}", node.name);
                assert_eq!(gradient.dtype, DType::F32);
            }
        }
    }
}

#[test]
fn shared_weights_accumulate_in_place() {
    let length = 5;
    // With this many sequences, every step is a block of its own.
    let options = Options::new(256).length(length).layers(1);
    let graph = build("lstm", &options);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for node in graph.nodes.values() {
        let accumulates = matches!(
            node.kind,
            OpKind::LinearGradWeight { accumulate: true, .. }
                | OpKind::EmbeddingGrad { accumulate: true, .. }
                | OpKind::Accumulate { .. }
        );
        if accumulates {
            *kinds.entry(node.kind.name()).or_default() += 1;
            let (old, new) = match node.kind {
                OpKind::Accumulate { .. } => (node.inputs[0], node.outputs[0]),
                _ => (node.inputs[2], node.outputs[0]),
            };
            assert_eq!(graph.tensors[old].storage, graph.tensors[new].storage);
            assert_eq!(node.kind.again(), Again::Never);
        }
    }
    // Three weight matrices (input, state, decoder), three biases, one table: each joined at all steps but one.
    let joins = length - 1;
    let expected = BTreeMap::from([
        ("accumulate", 3 * joins),
        ("embedding-grad", joins),
        ("linear-grad-weight", 3 * joins),
    ]);
    assert_eq!(kinds, expected);

    // GPT's token table is the output layer's weight too.
    let graph = build("gpt", &Options::new(2).length(8));
    let joined = graph
        .nodes
        .values()
        .filter(|node| matches!(node.kind, OpKind::EmbeddingGrad { accumulate: true, .. }));
    assert_eq!(joined.count(), 1);
}

/// The gradient of a parameter lives for as long as its own layer's backward pass: its update follows at once.
#[test]
fn updates_follow_their_gradients_closely() {
    let graph = build("resnet50", &Options::new(2));
    let mut made = BTreeMap::new();
    let mut pending = 0i64;
    let mut most = 0;
    for (id, node) in graph.nodes.iter() {
        for output in &node.outputs {
            made.insert(*output, id);
        }
        match node.kind {
            OpKind::Conv2dGradWeight(_) => pending += 1,
            OpKind::SgdStep { .. }
                if matches!(graph.nodes[made[&node.inputs[1]]].kind, OpKind::Conv2dGradWeight(_)) =>
            {
                pending -= 1;
            }
            _ => {}
        }
        most = most.max(pending);
    }
    assert_eq!((pending, most), (0, 1));
}

#[test]
fn every_mask_has_a_stream_of_its_own_that_its_gradient_repeats() {
    for name in ["vgg16", "lstm", "gpt"] {
        let graph = build(name, &Options::new(2).length(8));
        let mut streams: BTreeMap<u32, Vec<Phase>> = BTreeMap::new();
        for node in graph.nodes.values() {
            if let OpKind::Dropout(mask) = node.kind {
                streams.entry(mask.stream).or_default().push(node.phase);
                assert_eq!(node.kind.again(), Again::Rng { stream: u64::from(mask.stream) });
            }
        }
        assert!(streams.len() > 1, "{name}");
        assert!(streams.values().all(|phases| phases == &[Phase::Forward, Phase::Backward]), "{name}");
    }
}

#[test]
fn initial_values_draw_from_streams_of_their_own() {
    let graph = build("resnet18", &Options::new(2));
    let draw = |seed| -> Vec<Vec<f32>> {
        graph
            .persistent
            .iter()
            .filter(|parameter| parameter.name.ends_with("conv1.weight") || parameter.name == "fc.weight")
            .map(|parameter| {
                let mut values = vec![0.0; 64];
                parameter.init.fill(seed, 0, &mut values);
                values
            })
            .collect()
    };
    let values = draw(1);
    assert_eq!(values, draw(1));
    assert_ne!(values, draw(2));
    for (index, one) in values.iter().enumerate() {
        for other in &values[index + 1..] {
            let scale = one[0] / other[0];
            assert!(
                one.iter().zip(other).any(|(a, b)| (a - scale * b).abs() > 1e-6),
                "two weights are alike"
            );
        }
    }
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let refused = |name: &str, options: Options| zoo::build(name, &options).unwrap_err();
    let error = refused("resnet51x", Options::new(2));
    assert!(matches!(error, ZooError::Unknown { .. }) && error.to_string().contains("vgg16"), "{error}");
    for name in ["resnet8", "resnet49", "stochastic-resnet7", "resnet99999999999999999999"] {
        let error = refused(name, Options::new(2));
        let text = error.to_string();
        assert!(matches!(error, ZooError::Depth { .. }) && text.contains("from 10 to 48"), "{error}");
    }
    for name in ["resnetN", "resnet", "resnet+18", "my-resnet18"] {
        assert!(matches!(refused(name, Options::new(2)), ZooError::Unknown { .. }), "{name}");
    }
    // The sentence on depths is true.
    for depth in 0..20_010 {
        let said =
            (10..=48).contains(&depth) && depth % 2 == 0 || (50..=20_000).contains(&depth) && depth % 3 == 2;
        let kept = !matches!(
            zoo::resolved(&format!("resnet{depth}"), &Options::new(1)),
            Err(ZooError::Depth { .. })
        );
        assert_eq!(kept, said, "{depth}");
    }
    assert!(matches!(refused("vgg16", Options::new(0)), ZooError::Option { what: "batch", .. }));
    assert!(matches!(refused("vgg16", Options::new(usize::MAX)), ZooError::Option { .. }));
    let error = refused("vgg16", image(2, 8));
    assert!(error.to_string().contains("does not fit"), "{error}");
    let rate = Options::new(2).learning_rate(f32::NAN);
    assert!(matches!(refused("resnet18", rate), ZooError::Option { what: "learning rate", .. }));
    assert!(matches!(refused("gpt", Options::new(2).width(100)), ZooError::Build(_)));
    assert!("rmsprop".parse::<OptimizerKind>().is_err());
}

#[test]
fn stochastic_depth_leaves_out_branches_but_keeps_what_persists() {
    let with = |draw| build("stochastic-resnet110", &Options::new(2).draw(draw));
    let all = with(None);
    let names = |graph: &Graph| -> Vec<String> { graph.persistent.iter().map(|p| p.name.clone()).collect() };
    assert_eq!(parameters(&all), parameters(&build("resnet110", &Options::new(2))));
    let mut sizes = HashSet::new();
    for draw in 0..8 {
        let graph = with(Some(draw));
        trace(&graph);
        assert_eq!(names(&graph), names(&all));
        assert_eq!(graph.nodes.len(), with(Some(draw)).nodes.len());
        sizes.insert(graph.nodes.len());
        // A quarter of the branches is left out on average: 13.5 of 54.
        let adds = graph.nodes.values().filter(|node| node.name.ends_with(".add")).count();
        assert!((28..54).contains(&adds), "{adds}");
    }
    assert!(sizes.len() > 2);
}

#[test]
fn the_largest_options_overflow_nothing() {
    let many = 1 << 20;
    let sizes = [
        Options::new(many).image(256).classes(many),
        Options::new(1 << 8).image(1 << 14).width(1024),
        Options::new(many).image(16).length(256).width(1 << 15).vocabulary(1 << 19),
        Options::new(1 << 14).length(1 << 13).target(1 << 13).width(1 << 12).layers(8),
    ];
    let mut built = 0;
    for name in zoo::NAMES.iter().filter(|name| !name.ends_with('N')) {
        for options in &sizes {
            // Unrolling every step at every size would take a while.
            if matches!(*name, "lstm" | "seq2seq") && options.length.is_some_and(|length| length > 256) {
                continue;
            }
            if let Ok(graph) = zoo::build(name, options) {
                // Past 2⁶⁰ bytes a trace is refused, which is an answer too.
                let _ = graph.trace(&|_, _| Bytes::ZERO);
                built += 1;
            }
        }
    }
    assert!(built > 40, "{built}");
    let most = Some(usize::MAX);
    let past = [
        Options::new(2).image(most),
        Options::new(2).length(most).target(most).layers(most),
        Options::new(2).width(most).vocabulary(most),
    ];
    for options in past {
        assert!(matches!(zoo::build("gpt", &options), Err(ZooError::Option { .. })));
    }
    let steps = Options::new(1).length(1 << 14).layers(1 << 10);
    assert!(matches!(zoo::build("lstm", &steps), Err(ZooError::Option { .. })));
}

/// Multiply-adds of the forward products, per image, in billions.
fn giga_multiply_adds(graph: &Graph, batch: usize) -> f64 {
    let products = graph.nodes.values().filter(|node| {
        matches!(node.kind, OpKind::Conv2d { .. } | OpKind::GroupedConv2d { .. } | OpKind::Linear { .. })
    });
    products.map(|node| node.kind.flops()).sum::<u64>() as f64 / (2 * batch) as f64 / 1e9
}

#[test]
fn forward_work_is_the_published_one() {
    // torchvision's documentation of its weights (`_ops`, in billions of multiply-adds, to three places).
    let torchvision = [
        ("resnet18", 224, 1.814),
        ("resnet34", 224, 3.664),
        ("resnet50", 224, 4.089),
        ("resnet101", 224, 7.801),
        ("resnet152", 224, 11.514),
        ("vgg11", 224, 7.609),
        ("vgg13", 224, 11.308),
        ("vgg16", 224, 15.470),
        ("vgg19", 224, 19.632),
        ("densenet121", 224, 2.834),
        ("densenet161", 224, 7.728),
        ("densenet169", 224, 3.360),
        ("densenet201", 224, 4.291),
        ("inception-v3", 299, 5.713),
        ("mobilenet-v2", 224, 0.301),
        ("efficientnet-b0", 224, 0.386),
        ("convnext-tiny", 224, 4.456),
    ];
    for (name, size, published) in torchvision {
        let graph = build(name, &image(3, size).mode(Mode::Inference));
        let found = giga_multiply_adds(&graph, 3);
        assert!((found - published).abs() < 6e-4, "{name}: {found} instead of {published}");
    }
}

#[test]
fn feature_maps_have_the_published_sizes() {
    // Per image, as the papers' tables have them.
    let published: [(&str, usize, &str, &[usize]); 11] = [
        ("resnet50", 224, "layer4.2.relu", &[2048, 7, 7]),
        ("vgg16", 224, "features.30", &[512, 7, 7]),
        ("densenet121", 224, "features.norm5", &[1024, 7, 7]),
        ("inception-v3", 299, "Mixed_6e", &[768, 17, 17]),
        ("inception-v3", 299, "Mixed_7c", &[2048, 8, 8]),
        ("inception-resnet-v2", 299, "mixed_6a", &[1088, 17, 17]),
        ("inception-resnet-v2", 299, "mixed_7a", &[2080, 8, 8]),
        ("googlenet", 224, "inception_5b", &[1024, 7, 7]),
        ("alexnet", 227, "pool5", &[256, 6, 6]),
        ("alexnet", 224, "conv1", &[96, 55, 55]),
        ("alexnet", 224, "pool5", &[256, 6, 6]),
    ];
    for (name, size, node, extents) in published {
        let graph = build(name, &image(2, size));
        let node = graph.nodes.values().find(|other| other.name == node).expect("the feature map exists");
        let found = graph.tensors[node.outputs[0]].shape.len();
        assert_eq!(found, 2 * extents.iter().product::<usize>(), "{name}: {}", node.name);
    }
    let graph = build("unet", &image(2, 64).mode(Mode::Inference).classes(5));
    assert_eq!(graph.tensors[graph.outputs[0].tensor].shape.dims(), [2, 5, 64, 64]);
}

/// Plans for several lengths or batches of one network share what persists between iterations.
#[test]
fn graphs_of_other_extents_agree_on_what_persists() {
    let persists = |name: &str, options: &Options| -> Vec<(String, Vec<usize>)> {
        let graph = build(name, options);
        let shape = |value| graph.tensors[value].shape.dims().to_vec();
        graph.persistent.iter().map(|parameter| (parameter.name.clone(), shape(parameter.begin))).collect()
    };
    let lengths = |length, target, batch| Options::new(batch).length(length).target(target);
    assert_eq!(persists("seq2seq", &lengths(3, 9, 2)), persists("seq2seq", &lengths(12, 1, 7)));
    assert_eq!(persists("lstm", &lengths(3, 1, 2)), persists("lstm", &lengths(8, 1, 5)));
    assert_eq!(persists("resnet18", &image(4, 32)), persists("resnet18", &image(3, 32)));
}

/// What does not depend on the step before is computed for several steps at once, forward and backward; the gradients to the recurrent weights
/// are as well.
#[test]
fn recurrent_networks_compute_several_steps_at_once() {
    let count = |graph: &Graph, of: &dyn Fn(&OpKind) -> Option<usize>| {
        graph
            .nodes
            .values()
            .filter_map(|node| of(&node.kind))
            .fold([0, 0], |[ops, rows], more| [ops + 1, rows + more])
    };
    // Blocks of 13 steps.
    let (batch, length, layers) = (20, 39, 2);
    let graph = build("lstm", &Options::new(batch).length(length).layers(layers));
    let forward = count(&graph, &|kind| match kind {
        OpKind::Linear { product, .. } => Some(product.rows),
        _ => None,
    });
    let weights = count(&graph, &|kind| match kind {
        OpKind::LinearGradWeight { product, .. } => Some(product.rows),
        _ => None,
    });
    let inputs = count(&graph, &|kind| match kind {
        OpKind::LinearGradInput(product) => Some(product.rows),
        _ => None,
    });
    // For every block the products of the layers' inputs and that of the decoder; for every step those of the layers' states.
    let (blocks, steps) = (3, layers * length);
    let rows = (2 * layers + 1) * batch * length;
    assert_eq!(forward, [blocks * (layers + 1) + steps, rows]);
    assert_eq!(weights, [blocks * (2 * layers + 1), rows]);
    // Nothing leads to the state before the first step.
    assert_eq!(inputs, [blocks * (layers + 1) + steps - layers, rows - layers * batch]);
}
