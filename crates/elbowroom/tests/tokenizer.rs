//! Byte pairs from files of Hugging Face's library give the tokens that the library itself gives; `tokenizer/make.py` writes them.

use std::path::Path;

use elbowroom::data::{Batch, Dataset, Text, Tokenizer, Windows};
use elbowroom::graph::zoo::{self, Options};
use serde_json::Value;

/// A file of `make.py`: the tokenizer, and texts with their tokens.
fn read(name: &str, folder: &Path) -> (Tokenizer, Vec<(String, Vec<u32>)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer").join(format!("{name}.json"));
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, file["tokenizer"].take().to_string()).unwrap();
    (Tokenizer::open(&path).unwrap(), serde_json::from_value(file["expected"].take()).unwrap())
}

#[test]
fn tokens_are_those_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["gpt2", "prefix", "llama3", "digits"] {
        let (tokenizer, expected) = read(name, folder.path());
        assert_eq!(tokenizer.vocabulary(), 402, "{name}");
        for (text, tokens) in expected {
            assert_eq!(tokenizer.encode(&text), tokens, "{name}: {text:?}");
            // A space was put before a text that began without one, and before a text behind an added token.
            let decoded = tokenizer.decode(&tokens);
            assert!(decoded == text || name == "prefix", "{name}: {decoded:?}");
        }
    }
}

#[test]
fn a_file_is_read_in_parts_that_give_the_tokens_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (tokenizer, expected) = read("llama3", folder.path());
    // Larger than a part, with characters of several bytes at every offset.
    let text: String = (0..4000).map(|n| format!("{}{n} {}", "é".repeat(n % 7), expected[n % 9].0)).collect();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, &text).unwrap();
    let tokens = tokenizer.encode(&text);
    let length = 64;
    let mut windows = Windows::open_tokenized(&path, length, &tokenizer).unwrap();
    assert_eq!(windows.samples(), Some((tokens.len() as u64 - 1) / length as u64));
    let options = Options::new(1).length(length).vocabulary(402).width(64).layers(1);
    let mut batch = Batch::new(&zoo::build("gpt", &options).unwrap());
    for (index, window) in tokens.chunks_exact(length).enumerate().take(windows.samples().unwrap() as usize) {
        windows.fill(&[index as u64], &mut batch).unwrap();
        let read: Vec<u32> =
            batch.classes("tokens", &[length]).unwrap().iter().map(|&token| token as u32).collect();
        assert_eq!(read, window, "window {index}");
    }
    let mut few = Batch::new(&zoo::build("gpt", &options.vocabulary(300)).unwrap());
    let error = Text::open_tokenized(&path, 0, &tokenizer).unwrap().fill(&[0], &mut few).unwrap_err();
    assert!(error.to_string().contains("--vocabulary 402"), "{error}");
}

#[test]
fn what_is_not_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let (_, _) = read("gpt2", folder.path());
    let good: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let changes: [(&str, Value, &str); 7] = [
        ("/model/type", "WordPiece".into(), "WordPiece"),
        ("/normalizer", serde_json::json!({"type": "NFC"}), "NFC"),
        ("/pre_tokenizer/type", "Whitespace".into(), "Whitespace"),
        ("/model/vocab/a", Value::from(-1), "no number"),
        ("/model/merges/0", "zz qq".into(), "merge 1"),
        ("/model/vocab", serde_json::json!({"a": 0}), "no token for byte 0"),
        ("/added_tokens/0/lstrip", true.into(), "endoftext"),
    ];
    for (place, value, words) in changes {
        let mut file = good.clone();
        *file.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
        std::fs::write(&path, file.to_string()).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("tokenizer.json"), "{place}: {error}");
    }
    for broken in ["", "[]", "{", "text"] {
        std::fs::write(&path, broken).unwrap();
        assert!(Tokenizer::open(&path).is_err(), "{broken}");
    }
    let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is a folder"), "{error}");
}
