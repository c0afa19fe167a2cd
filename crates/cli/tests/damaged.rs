//! Damaged files of every kind that the command reads: whatever their bytes, it ends in time with an exit status that it documents, and an error
//! is one readable sentence. `ELBOWROOM_DAMAGED` says how many files of each kind are damaged.

#[path = "../../pack/tests/random/mod.rs"]
mod random;
#[path = "support/snapshot.rs"]
mod snapshot;
mod support;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use random::Random;
use support::{end_within, expect_both};

/// No command below takes longer on an undamaged file than a fraction of a second; a busy machine is slower.
const PATIENCE: Duration = Duration::from_secs(60);

const TRAINING: &str = "train --model gpt --layers 1 --width 64 --length 16 --vocabulary 402 --batch 1 --iterations 1 --memory 95% \
                        --evaluations 5 --threads 1";
const IMAGES: &str = "train --model resnet20 --width 4 --batch 2 --iterations 1 --memory 95% --evaluations 5 --threads 1 --data images";

/// A file to be damaged, and the command that reads it then.
const TARGETS: [(&str, &str); 26] = [
    ("net.trace", "plan net.trace --memory 70% --evaluations 20 -o out"),
    ("net.trace", "why net.trace --time 50ms"),
    ("net.trace", "check net.trace net.plan"),
    ("net.plan", "check net.trace net.plan"),
    ("net.plan", "check net.trace net.plan --memory 100% --align 64"),
    ("net.plan", "simulate net.trace net.plan --explain"),
    ("chain.json", "plan chain.json --memory 100% --evaluations 20"),
    ("capture.jsonl", "plan capture.jsonl --memory 100% --evaluations 20"),
    ("graph.json", "trace --import graph.json"),
    ("memory.log", "trace --import memory.log"),
    ("memory.log", "pack memory.log --evaluations 100"),
    ("snapshot.pickle", "trace --import snapshot.pickle"),
    ("table.csv", "pack table.csv --evaluations 100 -o out"),
    ("table.csv", "pack table.csv --evaluations 100 --bank fast=1MiB@1 --bank slow=4MiB@4 --json"),
    ("table.csv", "pack --minimalloc --input=table.csv --output=out --capacity=1048576 --timeout=1s"),
    ("placed.csv", "pack table.csv --previous placed.csv --evaluations 100"),
    ("pins", "plan net.trace --memory 90% --evaluations 20 --pins pins"),
    ("marks", "plan net.trace --memory 100% --planner marked --marks marks"),
    ("checkpoint", "TRAINING --resume checkpoint"),
    ("weights", "TRAINING --weights weights"),
    ("tokenizer.json", "TRAINING --data words.txt --tokenizer tokenizer.json"),
    ("net.onnx", "trace --model net.onnx --batch 2"),
    ("learned", "plan net.trace --memory 70% --planner dqn --dqn-from learned --evaluations 2"),
    ("images/a/0.png", "IMAGES"),
    ("images/b/1.jpg", "IMAGES"),
    ("run.json", "report run.json --time 50ms -o page.html"),
];

/// Whole files of every kind, as the command and others write them.
fn write_whole_files(at: &Path) {
    let write = |name: &str, content: &[u8]| fs::write(at.join(name), content).unwrap();
    write(
        "chain.json",
        br#"{"n": 2, "uF": [1, 2.5], "uB": [3, 4], "x": [0, 100, 40], "xbar": [0, 130, 40], "y": [0, 100, 40]}"#,
    );
    write(
        "capture.jsonl",
        br#"{"k":"meta","mode":"eager"}
{"k":"st","s":0,"b":64,"c":"param","n":"w"}
{"k":"st","s":1,"b":64,"c":"input"}
{"k":"st","s":2,"b":64,"c":"act"}
{"k":"op","i":0,"op":"aten.mm.default","ph":"fwd","r":[1,0],"w":[2],"m":[],"v":0,"us":1}
{"k":"op","i":1,"op":"aten.add_.Tensor","ph":"opt","r":[0,2],"w":[],"m":[0],"v":0,"us":1}
{"k":"free","i":1,"s":2}"#,
    );
    write(
        "graph.json",
        br#"{"graph": {"order": [0, 1]}, "nodes": [{"name": "a", "cost_cpu": 5, "cost_ram": 64, "id": 0},
{"name": "b", "cost_cpu": 7, "cost_ram": 3, "id": 1}], "links": [{"source": 0, "target": 1}]}"#,
    );
    write(
        "memory.log",
        b"malloc w 4000\nmalloc a 1000\nread w\nwrite a\nfree a\nmalloc a 1000\nread w\nwrite a\nfree a\n",
    );
    write("snapshot.pickle", &snapshot::of_blocks(3));
    write(
        "table.csv",
        b"id,lower,upper,size,alignment,offset,hint,gaps,bank,traffic\na,0,9,4096,512,,-1,3-6,,9\nb,3,5,1000,1,,0,,fast slow,\n\
          c,0,5,64,64,8192,,1-2@0:32,slow,100\n",
    );
    write("pins", b"keep *relu*\nnever-recompute *relu*\nhost *\n");
    write("marks", b"kind batch-norm 1\ntensor *relu* 2\nop *conv* 0\n");
    write("words.txt", b"some text, a few words long, for windows of sixteen tokens, and some more of it than one window takes");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tokenizer = fs::read(tests.join("elbowroom/tests/tokenizer/gpt2.json")).unwrap();
    let tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    write("tokenizer.json", tokenizer["tokenizer"].to_string().as_bytes());
    write("net.onnx", &fs::read(tests.join("onnx/tests/data/images.onnx")).unwrap());
    for (class, name) in [("a", "0.png"), ("b", "1.jpg")] {
        fs::create_dir_all(at.join("images").join(class)).unwrap();
        let picture = image::RgbImage::from_fn(32, 32, |x, y| image::Rgb([x as u8 * 7, y as u8 * 5, 90]));
        picture.save(at.join("images").join(class).join(name)).unwrap();
    }
    for line in [
        "trace --model resnet20 --width 4 --batch 2 --image 8 -o net.trace",
        "plan net.trace --memory 70% --evaluations 20 -o net.plan",
        "pack table.csv -o placed.csv",
        "plan net.trace --memory 70% --planner dqn --dqn episodes=2 --dqn-save learned",
        "TRAINING --save checkpoint",
        "TRAINING --save-weights weights",
        "TRAINING --report run.json",
    ] {
        expect_both(at, &whole(line), 0);
    }
}

/// The command line that `TARGETS` abbreviates.
fn whole(line: &str) -> String {
    line.replace("TRAINING", TRAINING).replace("IMAGES", IMAGES)
}

/// What replaces a word of a text: numbers at the edges of types, and what other places of a file hold.
const PIECES: [&str; 16] = [
    "0",
    "1",
    "-1",
    "3",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "1e308",
    "nan",
    "null",
    "[]",
    "{}",
    "\"",
    "\u{202e}",
    "",
];

/// Changes bytes, bits, words and stretches of a file.
fn damage(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut below = |end: usize| random.below(end as u64) as usize;
    let mut bytes = whole.to_vec();
    for _ in 0..=below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = below(bytes.len());
        let stretch = at..(at + 1 + below(40)).min(bytes.len());
        match below(8) {
            0 => bytes[at] = below(256) as u8,
            1 => bytes[at] ^= 1 << below(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(stretch)),
            4 => {
                let copied = bytes[stretch].to_vec();
                let to = below(bytes.len());
                bytes.splice(to..to, copied);
            }
            5 => {
                let fill = [0, 0xff, b'\n', b'9'][below(4)];
                bytes[stretch].fill(fill);
            }
            // Whole numbers and words: most of what is left then still parses.
            _ => {
                let of_word = |&byte: &u8| byte.is_ascii_alphanumeric() || byte == b'.';
                let start =
                    bytes[..at].iter().rposition(|byte| !of_word(byte)).map_or(0, |before| before + 1);
                let end =
                    bytes[at..].iter().position(|byte| !of_word(byte)).map_or(bytes.len(), |len| at + len);
                bytes.splice(start..end.max(start), PIECES[below(PIECES.len())].bytes());
            }
        }
    }
    bytes
}

/// What is wrong with how the command ended, if anything is.
fn fault(at: &Path, line: &str) -> Option<String> {
    let errors = at.join("errors");
    let mut child = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
        .args(line.split_whitespace())
        .current_dir(at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let Some(status) = end_within(PATIENCE, &mut child) else {
        return Some(format!("does not end in {PATIENCE:?}"));
    };
    let mut text = Vec::new();
    fs::File::open(&errors).unwrap().take(1 << 20).read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let sentences: Vec<&str> = text.lines().filter(|line| line.starts_with("elbowroom: ")).collect();
    let readable = !text.contains("panicked") && !text.contains(|c: char| c.is_control() && c != '\n');
    let ended = match status.code() {
        Some(0 | 1) => readable,
        Some(2) => readable && sentences.len() == 1 && sentences[0].len() < 2000,
        _ => false,
    };
    (!ended).then(|| format!("{status}: {text}"))
}

/// Damages files of every kind, `each` of each, and returns the commands that ended as none should, with the files that made them.
fn faults(each: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    write_whole_files(folder.path());
    for (name, line) in TARGETS {
        // The file itself is good, or its damage would prove little.
        let line = whole(line);
        let output = support::run(folder.path(), &line);
        assert!(output.status.success(), "{name}: {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let next = AtomicUsize::new(0);
    let work = |place: PathBuf| {
        copy(folder.path(), &place);
        let mut found = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(name, line)) = TARGETS.get(number / each) else { return found };
            let (whole_file, line) = (fs::read(folder.path().join(name)).unwrap(), whole(line));
            let damaged = damage(&whole_file, &mut Random::new(number as u64));
            fs::write(place.join(name), &damaged).unwrap();
            if let Some(fault) = fault(&place, &line) {
                let kept = std::env::temp_dir().join(format!("elbowroom-damaged-{number}"));
                fs::write(&kept, &damaged).unwrap();
                found.push(format!("{} as {name}: elbowroom {line}\n{fault}", kept.display()));
            }
            fs::write(place.join(name), &whole_file).unwrap();
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let places: Vec<tempfile::TempDir> = (0..workers).map(|_| tempfile::tempdir().unwrap()).collect();
    std::thread::scope(|scope| {
        let begun: Vec<_> = places
            .iter()
            .map(|place| {
                let place = place.path().to_owned();
                scope.spawn(|| work(place))
            })
            .collect();
        begun.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn damaged_files_end_in_one_sentence() {
    let each = std::env::var("ELBOWROOM_DAMAGED").ok().and_then(|each| each.parse().ok()).unwrap_or(12);
    let faults = faults(each);
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), TARGETS.len() * each, faults.join("\n"));
}
