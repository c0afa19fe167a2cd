//! Files of networks: what is made of them, what is refused, and that no damaged file causes a panic.

use std::fs;
use std::path::{Path, PathBuf};

use elbowroom_graph::zoo::Options;
use elbowroom_graph::{Mode, Role};
use elbowroom_onnx::{Form, Loss, Model, OnnxError, Place};

/// Those that leave the batch open.
const NETWORKS: [&str; 16] = [
    "regression",
    "tokens",
    "images",
    "mobile",
    "merged",
    "language",
    "attention",
    "random",
    "resized",
    "sized",
    "blocks",
    "functions",
    "windows",
    "rotary",
    "dropped",
    "roots",
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.onnx"))
}

/// Writes bytes to a file of the test's own folder.
fn written(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnx");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// The file with one text in place of another of the same length, wherever it stands.
fn replaced(name: &str, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(data(name)).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty(), "{from}");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    written(&format!("{name}-{to}.onnx"), &bytes)
}

fn refusal(path: &Path, options: &Options) -> String {
    let built = Model::open(path).and_then(|model| model.build(options, Loss::CrossEntropy));
    built.unwrap_err().to_string()
}

#[test]
fn weights_have_the_names_and_values_of_the_file() {
    let model = Model::open(&data("regression")).unwrap();
    let built = model.build(&Options::new(3), Loss::SquaredError).unwrap();
    let weights = built.graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
    let names: Vec<&str> = weights.map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]);
    let bytes = fs::read(data("regression")).unwrap();
    for weight in &built.weights {
        let Place::File { path, offset } = &weight.place else { panic!("{} was copied", weight.name) };
        assert_eq!((&**path, weight.form), (data("regression").as_path(), Form::Plain));
        let mut value = vec![0; 4 * weight.len];
        weight.read(&[], &mut value).unwrap();
        assert_eq!(value, bytes[*offset as usize..][..value.len()]);
        let largest = value
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]).abs())
            .fold(0.0, f32::max);
        assert!(largest > 0.0 && largest < 1.0, "{}: {largest}", weight.name);
    }
}

#[test]
fn modes_have_the_same_parameters_and_their_own_ends() {
    for name in NETWORKS {
        let loss = if name == "regression" { Loss::SquaredError } else { Loss::CrossEntropy };
        let model = Model::open(&data(name)).unwrap();
        let build = |mode| model.build(&Options::new(2).length(6).mode(mode), loss).unwrap();
        let (training, inference, evaluation) =
            (build(Mode::Training), build(Mode::Inference), build(Mode::Evaluation));
        assert_eq!(training.weights, inference.weights, "{name}");
        let inference = inference.graph.with_persistent_of(&training.graph).unwrap();
        let names = |graph: &elbowroom_graph::Graph| -> Vec<String> {
            graph.outputs.iter().map(|output| output.name.clone()).collect()
        };
        assert_eq!(names(&inference), ["logits"], "{name}");
        assert_eq!(names(&training.graph), ["loss"], "{name}");
        let hits = loss == Loss::CrossEntropy;
        assert_eq!(names(&evaluation.graph).contains(&"hits".to_owned()), hits, "{name}");
    }
}

#[test]
fn what_is_missing_is_named_with_its_place_and_what_to_do() {
    let options = Options::new(2);
    let missing = refusal(&replaced("images", "Tanh", "Sinh"), &options);
    for part in ["Sinh (node `/Tanh`", "opset 17", "is not supported", "LayerNormalization", "elbowroom::nn"]
    {
        let part = part.replace("/Tanh", "/Sinh");
        assert!(missing.contains(&part), "{missing} lacks {part}");
    }
    let erf = refusal(&replaced("images", "Erf", "Sin"), &options);
    assert!(erf.contains("Sin (node"), "{erf}");
    let hardmax = refusal(&replaced("tokens", "Softmax", "Hardmax"), &options);
    assert!(hardmax.contains("Hardmax (node") && hardmax.contains("is not supported"), "{hardmax}");
    let none = refusal(Path::new("no/such.onnx"), &options);
    assert!(none.starts_with("cannot read no/such.onnx"), "{none}");
    let text = refusal(&written("text.onnx", b"This is no network."), &options);
    assert!(text.contains("is not a whole ONNX file"), "{text}");
    assert!(refusal(&written("empty.onnx", b""), &options).contains("it holds no network"));
    let regression = refusal(&data("regression"), &Options::new(0));
    assert!(regression.contains("the batch cannot be 0"), "{regression}");
    let cut = fs::read(data("images")).unwrap();
    assert!(
        refusal(&written("cut.onnx", &cut[..cut.len() / 2]), &options).contains("export the network again")
    );
}

#[test]
fn no_damaged_file_causes_a_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut built = 0;
    for name in NETWORKS {
        let whole = fs::read(data(name)).unwrap();
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                // Most of a file is weights; its structure lies at both ends of it.
                let at = match random(3) {
                    0 => random(bytes.len()),
                    1 => random(bytes.len().min(6000)),
                    _ => bytes.len() - 1 - random(bytes.len().min(6000)),
                };
                match random(4) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = random(256) as u8,
                    2 => bytes[at] = 0xff,
                    _ => bytes[at] = bytes[at].wrapping_add(1),
                }
            }
            let path = written(&format!("damaged-{name}.onnx"), &bytes);
            for loss in [Loss::CrossEntropy, Loss::SquaredError] {
                let made = Model::open(&path).and_then(|model| model.build(&Options::new(2), loss));
                built += usize::from(made.is_ok());
                if let Err(error @ OnnxError::Op { .. }) = made {
                    assert!(error.to_string().contains("(node `"), "{error}");
                }
            }
        }
    }
    assert!(built > 100, "{built} of the damaged files have damaged weights alone");
}
