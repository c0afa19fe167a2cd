//! Weights in PyTorch's names: what is written has exactly the names, types and shapes of the real modules, and what has them is read.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use elbowroom::graph::zoo::{self, Options};
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use elbowroom::weights;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use support::{Quiet, method};

/// What `tests/data/torch_names.py` wrote.
const NAMES: &str = include_str!("data/torch_names.txt");

#[test]
fn the_files_have_the_names_and_shapes_of_the_real_modules() {
    let models = ["resnet18", "resnet50", "vgg16", "densenet121", "inception-v3", "gpt2"];
    let today = ["mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16", "tinyllama"];
    for model in models.into_iter().chain(today) {
        let own = |name: &&str| name.split('\t').next() == Some(model);
        let expected: BTreeSet<String> = NAMES.lines().filter(own).map(str::to_owned).collect();
        assert!(expected.len() > 30, "{model}");
        let image = match model {
            "gpt2" | "tinyllama" => None,
            // The auxiliary classifier of Inception needs the images of the paper.
            "inception-v3" => Some(299),
            _ => Some(224),
        };
        let graph = zoo::build(&model.replace('_', "-"), &Options::new(1).image(image)).unwrap();
        let found = weights::layout(&graph).into_iter().map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            format!("{model}\t{}\t{:?}\t{}", tensor.name, tensor.dtype(), shape.join(","))
        });
        assert_eq!(found.collect::<BTreeSet<String>>(), expected, "{model}");
    }
}

fn training(name: &str, options: &Options) -> Training<'static> {
    let most: MemorySpec = "80%".parse().unwrap();
    Training::new(Model::new(name, options.clone()).unwrap(), most).method(method()).threads(2).iterations(1)
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

#[test]
fn a_training_begins_where_saved_weights_are() {
    let folder = tempfile::tempdir().unwrap();
    let (saved, weights) = (folder.path().join("checkpoint"), folder.path().join("weights"));
    let small = Options::new(2).image(16).width(8);
    let cases = [("resnet18", small), ("gpt", Options::new(2).length(8).width(64).layers(1))];
    for (name, options) in cases {
        run(training(name, &options).save(&saved, 10).save_weights(&weights));
        let read = |path: &Path| run(training(name, &options).weights(path).seed(7)).losses;
        // The checkpoint has our own names and the same values. The seed decides data and dropout, not the weights.
        assert_eq!(read(&weights), read(&saved), "{name}");
        assert_ne!(read(&weights), run(training(name, &options).seed(7)).losses, "{name}");
    }
    // The last file is of a GPT.
    let error =
        training("resnet18", &Options::new(2).image(16).width(8)).weights(&weights).run().err().unwrap();
    assert!(error.to_string().contains("has no conv1.weight"), "{error}");
}

/// A file of zeros with these names and shapes.
fn write(path: &Path, tensors: &[(&str, &[usize])]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| vec![0; 4 * shape.iter().product::<usize>()]).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn torchvisions_other_networks_of_the_same_name_are_refused_with_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    write(
        &path,
        &[("features.0.weight", &[64, 3, 11, 11]), ("inception3a.branch1.conv.weight", &[64, 192, 1, 1])],
    );
    for (name, words) in [("alexnet", "that of 2014"), ("googlenet", "normalizes by batches")] {
        let graph = zoo::build(name, &Options::new(1)).unwrap();
        let error = weights::Weights::open(&path, &graph).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn positions_that_a_shorter_sequence_does_not_use_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [long, short, tuned] = ["long", "short", "tuned"].map(|name| folder.path().join(name));
    let options = |length| Options::new(2).length(length).width(64).layers(1);
    run(training("gpt", &options(12)).save_weights(&long));
    run(training("gpt", &options(8)).weights(&long).save_weights(&tuned));
    run(training("gpt", &options(8)).save_weights(&short));
    // The same through checkpoints: of the training, of one that resumes it, and as weights.
    let [saved, resumed, again] = ["saved", "resumed", "again"].map(|name| folder.path().join(name));
    run(training("gpt", &options(8)).weights(&long).save(&saved, 10));
    run(training("gpt", &options(8)).resume(&saved).save(&saved, 10).save_weights(&resumed));
    run(training("gpt", &options(8)).weights(&saved).save_weights(&again));
    let positions = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let table = file.tensor("transformer.wpe.weight").unwrap();
        (table.shape().to_vec(), table.data().to_vec())
    };
    let ((shape, before), (_, after)) = (positions(&long), positions(&tuned));
    assert_eq!((shape, positions(&short).0), (vec![12, 64], vec![8, 64]));
    let used = 8 * 64 * 4;
    assert_ne!(before[..used], after[..used]);
    assert_eq!(before[used..], after[used..]);
    for path in [&resumed, &again] {
        assert_eq!(before[used..], positions(path).1[used..]);
    }
    // The file is read again for either length.
    for length in [8, 12] {
        run(training("gpt", &options(length)).weights(&tuned));
    }
}

#[test]
fn files_that_hold_no_weights_are_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let options = Options::new(2).image(16).width(8);
    let graph = zoo::build("resnet18", &options).unwrap();
    let refusal = |path: &Path| weights::Weights::open(path, &graph).unwrap_err().to_string();
    assert!(refusal(folder.path()).contains("it is a folder"));
    assert!(refusal(&path).contains("No such file"));
    run(training("resnet18", &options).save_weights(&path));
    let whole = std::fs::read(&path).unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"", "only 0 bytes"),
        (b"not weights", "head is cut off"),
        (&whole[..whole.len() - 1], "its head promises"),
        (&[&whole[..8], b"[", &whole[9..]].concat(), "its head cannot be read"),
    ];
    for (content, says) in cases {
        std::fs::write(&path, content).unwrap();
        let refusal = refusal(&path);
        assert!(refusal.contains(says) && refusal.contains("safetensors.torch.save_file"), "{refusal}");
    }
    // A value that is not finite.
    let mut damaged = whole;
    let end = damaged.len();
    damaged[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &damaged).unwrap();
    let error = training("resnet18", &options).weights(&path).run().err().unwrap();
    assert!(error.to_string().contains("NaN"), "{error}");
}

#[test]
fn another_number_of_classes_keeps_the_last_layer_as_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let options = Options::new(2).image(16).width(8);
    run(training("resnet18", &options).save_weights(&path));
    let fewer = options.clone().classes(3);
    let graph = zoo::build("resnet18", &fewer).unwrap();
    let open = weights::Weights::open(&path, &graph).unwrap();
    assert_eq!(open.kept, ["fc.weight", "fc.bias"]);
    assert!(run(training("resnet18", &fewer).weights(&path)).losses[0].is_finite());
    // An auxiliary classifier has as many classes.
    let inception =
        |classes| zoo::build("inception-v3", &Options::new(1).image(299).classes(classes)).unwrap();
    let tensors = weights::layout(&inception(9));
    let tensors = tensors.iter().filter(|tensor| tensor.dtype() == Dtype::F32);
    let tensors: Vec<(&str, &[usize])> =
        tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
    let others = folder.path().join("inception");
    write(&others, &tensors);
    let open = weights::Weights::open(&others, &inception(4)).unwrap();
    assert_eq!(open.kept, ["AuxLogits.fc.weight", "AuxLogits.fc.bias", "fc.weight", "fc.bias"]);
    let wider = zoo::build("resnet18", &options.width(16)).unwrap();
    assert!(weights::Weights::open(&path, &wider).unwrap_err().to_string().contains("has shape"));
}
