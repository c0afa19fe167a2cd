//! The loop that a person uses: train on images, evaluate, resume, predict.

mod support;

use std::path::Path;

use serde_json::Value;
use support::expect_both;

/// CIFAR-10's form: the class decides the brightness of a third of the image.
fn write_cifar(folder: &Path) {
    for (name, count, seed) in [("data_batch_1.bin", 24, 1), ("test_batch.bin", 9, 5)] {
        let record = |index: usize| {
            let label = (index + seed) % 3;
            let pixel = |at: usize| {
                if at / 1024 == label { 200 + (at * index % 50) as u8 } else { (at * 7 % 60) as u8 }
            };
            std::iter::once(label as u8).chain((0..3072).map(pixel)).collect::<Vec<u8>>()
        };
        std::fs::write(folder.join(name), (0..count).flat_map(record).collect::<Vec<u8>>()).unwrap();
    }
}

const NETWORK: &str = "--model resnet20 --width 4 --batch 6 --memory 70% --evaluations 20 --threads 2";

#[test]
fn a_training_is_evaluated_resumed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_cifar(at);
    let json = |line: &str| -> Value { serde_json::from_str(&expect_both(at, line, 0).0).unwrap() };
    let train = format!("train {NETWORK} --data . --eval-data . --flip --crop 2 --schedule cosine:2 --json");
    let whole =
        json(&format!("{train} --epochs 2 --save whole --save-weights weights --log log --plot plot.svg"));
    assert_eq!(whole["eval_iterations"], serde_json::json!([4, 8]));
    assert_eq!(whole["losses"].as_array().unwrap().len(), 8);

    // A run that ends after the first epoch, and one that continues it.
    json(&format!("{train} --iterations 4 --schedule-length 8 --save part"));
    let rest = json(&format!("{train} --epochs 2 --resume part --save part"));
    assert_eq!(rest["eval_loss"][0], whole["eval_loss"][1]);
    assert_eq!(std::fs::read(at.join("part")).unwrap(), std::fs::read(at.join("whole")).unwrap());

    let log = std::fs::read_to_string(at.join("log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10);
    assert_eq!(lines[4]["eval_loss"], whole["eval_loss"][0]);
    assert!(std::fs::read_to_string(at.join("plot.svg")).unwrap().contains(">evaluation"));

    // Both files hold the weights that were evaluated last.
    for weights in ["whole", "weights"] {
        let evaluated = json(&format!("evaluate {NETWORK} --weights {weights} --data . --json"));
        assert_eq!(evaluated["eval_loss"][0], whole["eval_loss"][1], "{weights}");
        assert_eq!(evaluated["eval_accuracy"][0], whole["eval_accuracy"][1], "{weights}");
    }
    let (text, _) = expect_both(at, &format!("predict {NETWORK} --weights weights --data ."), 0);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("sample,class,probability", 10));
    let right =
        |&(index, line): &(usize, &&str)| line.split(',').nth(1) == Some(&((index + 5) % 3).to_string());
    let hits = lines[1..].iter().enumerate().filter(right).count();
    assert_eq!(whole["eval_accuracy"][1].as_f64().unwrap(), hits as f64 / 9.0);
}

#[test]
fn own_images_are_split_and_messages_say_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for class in ["ape", "bee", "cow"] {
        std::fs::create_dir_all(at.join("images").join(class)).unwrap();
        for number in 0..4u8 {
            let value = number * 9 + class.as_bytes()[0];
            let image = image::RgbImage::from_pixel(10, 12, image::Rgb([value, 30, 255 - value]));
            image.save(at.join(format!("images/{class}/{number}.png"))).unwrap();
        }
    }
    let train = format!("train {NETWORK} --image 16 --iterations 2 --data images");
    let (text, _) = expect_both(at, &format!("{train} --val-split 25%"), 0);
    assert!(text.contains("on 3 samples after 2 iterations"), "{text}");
    // The network has outputs that no sample trains.
    let (_, err) = expect_both(at, &format!("{train} --classes 5"), 0);
    assert!(err.contains("warning: the data has 3 classes and the network 5"), "{err}");
    let (_, err) = expect_both(at, &format!("{train} --classes 3"), 0);
    assert!(!err.contains("warning"), "{err}");
    for (line, expected) in [
        (format!("{train} --classes 2"), "use --classes 3"),
        (format!("{train} --eval-every 1"), "--eval-data"),
        (
            format!("train {NETWORK} --iterations 1 --data images/ape"),
            "give the folder of all classes, images",
        ),
        (
            format!("train {NETWORK} --iterations 1 --data images/ape/1.png"),
            "is one image; give the folder of all classes, images",
        ),
        ("train --model gpt --iterations 1 --data images".to_owned(), "reads text"),
        (format!("train {NETWORK} --epochs 1"), "no epochs"),
        (format!("train {NETWORK} --micro-batch 4 --iterations 1"), "no multiple"),
        (format!("evaluate {NETWORK} --weights images --data images"), "images"),
    ] {
        let (_, err) = expect_both(at, &line, 2);
        assert!(err.contains(expected), "{line}: {err}");
    }
}

#[test]
fn a_language_model_predicts_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("t.txt"), "abcd".repeat(30)).unwrap();
    let network =
        "--model gpt --width 64 --layers 1 --length 8 --batch 2 --memory 90% --evaluations 10 --threads 2";
    expect_both(
        at,
        &format!("train {network} --data t.txt --epochs 2 --micro-batch 1 --clip-norm 1 --save m"),
        0,
    );
    let (text, _) = expect_both(at, &format!("evaluate {network} --weights m --data t.txt"), 0);
    assert!(text.contains("perplexity"), "{text}");
    expect_both(at, &format!("predict {network} --weights m --data t.txt -o p.csv"), 0);
    let lines = std::fs::read_to_string(at.join("p.csv")).unwrap();
    // 119 tokens are 14 windows of eight.
    assert_eq!((lines.lines().next(), lines.lines().count()), (Some("sample,token,probability,text"), 15));
}

#[test]
fn a_pass_without_a_limit_runs_where_half_of_its_peak_is_too_little() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for class in ["ant", "bee"] {
        std::fs::create_dir_all(at.join("data").join(class)).unwrap();
        let image = image::RgbImage::from_pixel(8, 8, image::Rgb([class.as_bytes()[0]; 3]));
        image.save(at.join("data").join(class).join("0.png")).unwrap();
    }
    // The first convolution needs its input and its output, which are most of the peak.
    let network = "--model resnet18 --image 128 --width 8 --batch 12 --classes 2 --threads 2";
    let train = format!("train {network} --data data --iterations 1 --evaluations 20 --save-weights w");
    expect_both(at, &train, 0);
    let predict = format!("predict {network} --weights w --data data -o p.csv");
    let (_, err) = expect_both(at, &format!("{predict} --memory 50%"), 1);
    assert!(err.contains("no plan exists"), "{err}");
    expect_both(at, &predict, 0);
    assert_eq!(std::fs::read_to_string(at.join("p.csv")).unwrap().lines().count(), 1 + 2);
    expect_both(at, &format!("evaluate {network} --weights w --data data"), 0);
}
