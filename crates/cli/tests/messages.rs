//! Data that does not fit the model: each sentence says what was found, what was expected and what to give.

mod support;

use std::fs;
use std::path::Path;

use support::expect_both;

/// A PNG image of 8 × 8 pixels.
fn png() -> Vec<u8> {
    let mut out = Vec::new();
    image::RgbImage::from_pixel(8, 8, image::Rgb([9; 3]))
        .write_to(&mut std::io::Cursor::new(&mut out), image::ImageFormat::Png)
        .unwrap();
    out
}

/// Writes the data that the table names.
fn write(at: &Path) {
    let image = png();
    let record = |label: u8| std::iter::once(label).chain([0; 3072]).collect::<Vec<u8>>();
    let files: [(&str, &[u8]); 32] = [
        ("three/ant/0.png", &image),
        ("three/bee/0.png", &image),
        ("three/cow/0.png", &image),
        ("other/cow/0.png", &image),
        ("other/dog/0.png", &image),
        ("part/cow/0.png", &image),
        ("one/ant/0.png", &image),
        ("flat/0.png", &image),
        ("flat/1.png", &image),
        ("outer/inner/ant/0.png", &image),
        ("broken/ant/0.png", b"no image"),
        ("texts/a.txt", b"some text, a few words long, for windows"),
        ("described/ant/0.png", &image),
        ("described/readme.txt", b"ants, photographed from the left, one of them twice"),
        ("nested/texts/a.txt", b"some text, a few words long, for windows"),
        ("nested/texts/cover.png", &image),
        ("words.txt", b"some text, a few words long, for windows"),
        ("short.txt", b"hello"),
        ("empty.txt", b""),
        ("rows.csv", b"three/ant/0.png,0\n"),
        ("head.csv", b"file,kind\nthree/ant/0.png,0\n"),
        ("headless.csv", b"file,kind\n"),
        ("negative.csv", b"three/ant/0.png,-1\n"),
        ("many.csv", b"three/ant/0.png,12\n"),
        ("huge.csv", b"three/ant/0.png,99999999\n"),
        ("lost.csv", b"three/ant/0.png,0\nno/such.png,1\n"),
        ("columns.csv", b"three/ant/0.png\n"),
        ("quote.csv", b"\"three/ant/0.png,0\n"),
        ("binary.csv", b"\xff\xfe\x00,1\n"),
        ("cifar/data_batch_1.bin", &record(3)),
        ("cut/data_batch_1.bin", &record(3)[..3000]),
        ("test/test_batch.bin", &record(3)),
    ];
    for (path, content) in files {
        fs::create_dir_all(at.join(path).parent().unwrap()).unwrap();
        fs::write(at.join(path), content).unwrap();
    }
    for folder in ["empty", "hollow/ant", "hollow/bee"] {
        fs::create_dir_all(at.join(folder)).unwrap();
    }
}

const IMAGES: &str = "train --model resnet20 --width 4 --batch 2 --iterations 1 --memory 90% --evaluations 5";
const TEXT: &str = "train --model gpt --layers 1 --width 64 --length 16 --batch 2 --iterations 1 --memory 95% --evaluations 5";

#[test]
fn data_that_does_not_fit_is_named_with_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at);
    let cases: &[(&str, &str, &[&str])] = &[
        // A network for images.
        (IMAGES, "--data none", &["cannot read none", "No such file"]),
        (IMAGES, "--data empty", &["empty is an empty folder", "give a folder"]),
        (IMAGES, "--data hollow", &["has 2 folders, like hollow/ant, without a JPEG or PNG image"]),
        (IMAGES, "--data texts", &["it takes images, and texts holds text", "CIFAR-10 or MNIST"]),
        (IMAGES, "--data words.txt", &["it takes images, and words.txt is a file", ".csv"]),
        (IMAGES, "--data flat", &["holds 2 images, but no folder", "PATH,LABEL"]),
        (IMAGES, "--data three/ant", &["the images of one class", "give the folder of all classes, three"]),
        (IMAGES, "--data three/ant/0.png", &["is one image", "give the folder of all classes, three"]),
        (IMAGES, "--data outer", &["give the folder in it that does, outer/inner"]),
        (IMAGES, "--data cifar/data_batch_1.bin", &["is one file of CIFAR-10", "give its folder, cifar"]),
        (IMAGES, "--data test", &["holds test data only", "--eval-data"]),
        (IMAGES, "--data cut", &["3000 bytes are no multiple of 3073-byte records"]),
        (IMAGES, "--data cifar --image 64", &["3×32×32", "3×64×64", "use --image 32 --classes 10"]),
        (IMAGES, "--data cifar --classes 2", &["of 10 classes", "of 2", "--classes 10"]),
        (IMAGES, "--data three --classes 2", &["three has 3 classes, and the network 2", "use --classes 3"]),
        (IMAGES, "--data broken", &["broken/ant/0.png", "replace it, or remove it"]),
        (IMAGES, "--data headless.csv", &["headless.csv", "names no image", "PATH,LABEL"]),
        (IMAGES, "--data negative.csv", &["label -1", "number the classes from 0"]),
        (IMAGES, "--data many.csv", &["many.csv has 13 classes, and the network 10", "--classes 13"]),
        (IMAGES, "--data huge.csv", &["label 99999999", "number the classes from 0"]),
        (IMAGES, "--data lost.csv", &["line 2", "no/such.png", "relative to the folder of the table"]),
        (IMAGES, "--data columns.csv", &["line 1 has no comma", "PATH,LABEL"]),
        (
            IMAGES,
            "--data quote.csv",
            &["quote.csv", "line 1 has a quote without its other one", "PATH,LABEL"],
        ),
        (IMAGES, "--data binary.csv", &["it is no text", "UTF-8"]),
        (IMAGES, "--data three --eval-data other", &["has a class dog", "only ant, bee, cow"]),
        (IMAGES, "--data three --eval-data words.txt", &["it takes images", "words.txt"]),
        (IMAGES, "--data three --eval-data empty", &["empty is an empty folder"]),
        (IMAGES, "--data one --val-split 10%", &["1 sample", "at least two"]),
        (IMAGES, "--data three --eval-every 1", &["--eval-data"]),
        (IMAGES, "--tokenizer words.txt", &["for networks that read text"]),
        (IMAGES, "--resume words.txt", &["not a whole checkpoint", "--save"]),
        (IMAGES, "--weights words.txt", &["not a whole safetensors file", "save_file"]),
        // A network for text.
        (TEXT, "--data three", &["it reads text, and three holds images", "give a text file"]),
        (TEXT, "--data flat", &["flat holds images"]),
        (TEXT, "--data three/ant/0.png", &["is an image", "give a text file"]),
        (TEXT, "--data cifar", &["cifar holds images"]),
        (
            TEXT,
            "--data described",
            &["holds images", "give the text file if that is meant, described/readme.txt"],
        ),
        (TEXT, "--data words.txt --eval-data described", &["holds images", "described/readme.txt"]),
        (TEXT, "--data empty", &["empty is an empty folder"]),
        (TEXT, "--data hollow", &["holds no file whose name ends in .txt"]),
        (TEXT, "--data short.txt", &["5 bytes are too few for one sequence of 16", "--length 4"]),
        (TEXT, "--data empty.txt", &["0 bytes are too few"]),
        (TEXT, "--data words.txt --eval-data short.txt", &["short.txt", "too few"]),
        (TEXT, "--data words.txt --vocabulary 100", &["the network has 100 tokens", "--vocabulary 256"]),
        (TEXT, "--data words.txt --flip", &["takes no images", "leave out --flip"]),
        (TEXT, "--data words.txt --tokenizer three", &["is a folder", "tokenizer.json"]),
        (TEXT, "--data words.txt --tokenizer short.txt", &["tokenizer.json of Hugging Face"]),
        // Others.
        ("train --model kmeans --batch 2 --iterations 1", "--data three", &["synthetic data only"]),
        ("train --model unet --image 32 --batch 1 --iterations 1", "--data three", &["synthetic data only"]),
    ];
    for (line, data, words) in cases {
        let (out, err) = expect_both(at, &format!("{line} {data}"), 2);
        for word in *words {
            assert!(err.contains(word), "{data}: {word:?} is not in: {err}");
        }
        assert_eq!(err.trim_end().lines().count(), 1, "{data}: {err}");
        assert!(!out.contains("Iterations"), "{data}: found too late: {out}");
    }
    // What fits is read: a head without the usual names, and held-out data that lacks classes.
    for data in ["--data head.csv", "--data rows.csv", "--data three --eval-data part"] {
        expect_both(at, &format!("{IMAGES} {data}"), 0);
    }
    for data in ["--data nested/texts", "--data described/readme.txt"] {
        expect_both(at, &format!("{TEXT} {data}"), 0);
    }
}

#[test]
fn a_share_that_leaves_nothing_to_one_side_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at);
    for share in ["150%", "100", "0%", "-5%"] {
        let line =
            format!("train --model resnet20 --batch 1 --iterations 1 --data three --val-split={share}");
        let (_, err) = expect_both(at, &line, 2);
        assert!(err.contains(share) && err.contains("--val-split"), "{err}");
    }
}

#[test]
#[cfg_attr(feature = "highs", ignore = "this build has the packer")]
fn a_packer_that_was_left_out_says_how_to_build_it() {
    let folder = tempfile::tempdir().unwrap();
    for line in ["pack --packer mip table.csv", "plan --model resnet20 --packer mip"] {
        let (_, message) = expect_both(folder.path(), line, 2);
        assert!(message.contains("--features highs") && message.lines().count() == 1, "{message}");
    }
}
