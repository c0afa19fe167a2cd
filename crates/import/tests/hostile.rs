//! Whatever the bytes, importing ends with a trace or a sentence, never with a panic.

use arbtest::arbitrary::{Result, Unstructured};
use elbowroom_import::{Options, Units, import};
use elbowroom_ir::Nanos;
use elbowroom_ir::text::{File, TraceFile};
use elbowroom_ir::trace::LONGEST_NAME;

#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

fn options(u: &mut Unstructured<'_>) -> Result<Options> {
    Ok(Options::default()
        .units(if u.arbitrary()? { Units::Exact } else { Units::Published })
        .time_unit(Nanos(*u.choose(&[0, 1, 1_000, u64::MAX])?))
        .remake_inputs(u.arbitrary()?)
        .inplace(u.arbitrary()?)
        .device(u.arbitrary::<Option<u8>>()?.map(usize::from)))
}

/// Imports, and reads everything of what comes out that could still overflow or be empty.
fn try_import(bytes: &[u8], options: &Options) {
    match import(bytes, "hostile", options) {
        Ok(imported) => {
            assert_eq!(imported.trace.ops().len(), imported.costs.nanos.len());
            imported.costs.total();
            assert!(imported.notes.peak.get() < 1 << 60);
        }
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.starts_with("hostile") && !sentence.contains('\n'), "{sentence}");
        }
    }
}

#[test]
fn names_that_no_trace_can_hold_are_shortened() {
    let long = "å".repeat(LONGEST_NAME);
    let recorded = format!(
        r#"{{"sizes": [10, 10], "const": [0], "const_first_op": {{"0": 0}}, "backward_starts_at_op": 2, "ops": [
        {{"name": "{long}", "t": 9, "reads": [0], "writes": [1], "allocs": [1], "frees": [], "pure": true}},
        {{"name": "relu", "t": 9, "reads": [1], "writes": [1], "allocs": [], "frees": [1], "pure": false}}]}}"#
    );
    let chain = format!(r#"{{ "n": 2, "name": "{long}", "uF": [1, 1], "uB": [2, 2], "x": [10, 20, 10] }}"#);
    for text in [recorded, chain] {
        let imported = import(text.as_bytes(), "long", &Options::default()).unwrap();
        let remark = imported.notes.remarks.join(" ");
        assert!(remark.contains("longer than 65536 bytes"), "{remark}");
        let file = TraceFile::new(imported.trace.clone(), Some(imported.costs), None).unwrap();
        let written = File::Trace(Box::new(file)).to_string();
        let read = written.parse::<File>().and_then(File::into_trace).unwrap();
        assert_eq!(read.trace.fingerprint(), imported.trace.fingerprint());
    }
}

/// Small files of every kind, to be broken.
const SEEDS: [&str; 8] = [
    r#"{"n": 2, "uF": [1, 2.5], "uB": [3, 4], "x": [0, 100, 40], "xbar": [0, 130, 40], "y": [0, 100, 40], "exF": [8, 0], "exB": [0, 16]}"#,
    r#"{"sizes": [10, 10, 100, 100, 4, 7], "const": [0, 1, 2], "const_first_op": {"0": 0}, "backward_starts_at_op": 2, "ops": [
        {"name": "cudnn_batch_norm", "t": 9, "reads": [0, 1, 2], "writes": [3, 4, 5], "allocs": [3, 4, 5], "frees": [4], "pure": true},
        {"name": "view", "t": 5, "reads": [3], "writes": [3], "allocs": [], "frees": [], "pure": true},
        {"name": "relu_", "t": 9, "reads": [3], "writes": [3], "allocs": [], "frees": [3], "pure": false}]}"#,
    r#"{"k":"meta","mode":"eager"}
{"k":"st","s":0,"b":64,"c":"param","n":"w"}
{"k":"st","s":1,"b":64,"c":"buffer","n":"m"}
{"k":"st","s":2,"b":64,"c":"input"}
{"k":"st","s":3,"b":64,"c":"act"}
{"k":"op","i":0,"op":"aten.native_batch_norm.default","ph":"fwd","r":[2,0,1],"w":[3],"m":[],"v":0,"us":1}
{"k":"op","i":1,"op":"aten.add_.Tensor","ph":"opt","r":[0,3],"w":[],"m":[0,3],"v":0,"us":1}
{"k":"free","i":1,"s":3}"#,
    r#"{"k":"meta","mode":"joint"}
{"k":"st","s":1,"b":64,"c":"buffer","d":"B(m)"}
{"k":"st","s":2,"b":64,"c":"act"}
{"k":"st","s":3,"b":64,"c":"act"}
{"k":"op","i":0,"op":"aten.add.Tensor","ph":"fwd","r":[1],"w":[2],"m":[],"v":0,"us":1}
{"k":"op","i":1,"op":"aten.add.Tensor","ph":"bwd","r":[1,2],"w":[3],"m":[],"v":0,"us":1}
{"k":"out","s":2,"d":"I(mutated_input=B(m))"}
{"k":"out","s":3,"d":"G"}"#,
    r#"{"nodes": [{"id": 0, "op": "c", "kind": "fwd", "time_ms": 1.5, "out_bytes": 2560, "workspace_mib": 0.5, "fixed_bytes": 1024},
        {"id": 1, "op": "d", "kind": "bwd", "time_ms": 2, "out_bytes": 8, "workspace_mib": 0, "fixed_bytes": 2048, "fwd_id": 0}],
        "edges": [[0, 1]], "reference": [{"budget_gb": 5.0, "gurobi_checkmate_obj": 3, "no_recompute_obj": 2, "solve_time_s": 1.5}]}"#,
    r#"{"graph": {"order": [0, 1]}, "nodes": [{"name": "a", "cost_cpu": 5, "cost_ram": 64, "id": 0}, {"name": 1, "duration": 7, "out_cost": 3}],
        "links": [{"source": 0, "target": 1}, {"0": 0, "1": 1}]}"#,
    r#"{"vars": [{"id": 0, "bytes": 8, "name": null}, {"id": 1, "bytes": 6, "name": "W"}, {"id": 2, "bytes": 2, "name": null}], "functions": [
        {"dir": "forward", "op": "Dropout", "ins": [[0, "_"], [1, "_"]], "outs": [2], "t": 10},
        {"dir": "backward", "op": "Dropout", "ins": [[2, "gradient"], [1, "input"]], "outs": [1], "t": 10}]}"#,
    r#"{"k":"op","i":0,"op":"a","ph":"fwd"}"#,
];

/// Replaces a few stretches by others that mean something, or by anything.
fn damage(u: &mut Unstructured<'_>, seed: &[u8]) -> Result<Vec<u8>> {
    const PIECES: [&str; 14] = [
        "0",
        "1",
        "-1",
        "2",
        "3",
        "18446744073709551615",
        "1e308",
        "1152921504606846976",
        "null",
        "[]",
        "{}",
        "\"fwd\"",
        "true",
        "",
    ];
    let mut bytes = seed.to_vec();
    for _ in 0..u.int_in_range(1..=6)? {
        if bytes.is_empty() {
            break;
        }
        let from = u.choose_index(bytes.len())?;
        // Whole numbers and words, rather than parts of them: most of what is left then still parses.
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
        let start = (0..=from).rev().find(|&i| !is_word(bytes[i])).map_or(0, |i| i + 1);
        let end = (from..bytes.len()).find(|&i| !is_word(bytes[i])).unwrap_or(bytes.len());
        let piece = u.choose(&PIECES)?.as_bytes();
        if start < end {
            bytes.splice(start..end, piece.iter().copied());
        } else if u.ratio(1, 4)? {
            bytes[from] = u.arbitrary()?;
        }
    }
    Ok(bytes)
}

#[test]
fn damaged_text() {
    for (index, seed) in SEEDS.iter().enumerate() {
        // The seed itself is good, or its damage would prove little.
        assert!(import(seed.as_bytes(), "seed", &Options::default()).is_ok(), "seed {index}");
        let mut case = |u: &mut Unstructured<'_>| {
            try_import(&damage(u, seed.as_bytes())?, &options(u)?);
            Ok(())
        };
        for seed in 0..20_000u64 {
            arbtest::arbtest(&mut case).seed(seed << 32 | 2_048).run();
        }
    }
}

#[test]
fn damaged_snapshots() {
    for protocol in [2, 4] {
        let path = format!("{}/tests/fixtures/snapshot_p{protocol}.pickle", env!("CARGO_MANIFEST_DIR"));
        let seed = std::fs::read(path).unwrap();
        for end in 0..seed.len() {
            try_import(&seed[..end], &Options::default());
        }
        let mut case = |u: &mut Unstructured<'_>| {
            let mut bytes = seed.clone();
            for _ in 0..u.int_in_range(1..=8)? {
                let at = u.choose_index(bytes.len())?;
                bytes[at] = u.arbitrary()?;
            }
            try_import(&bytes, &options(u)?);
            Ok(())
        };
        for seed in 0..10_000u64 {
            arbtest::arbtest(&mut case).seed(seed << 32 | 2_048).run();
        }
    }
}

#[test]
fn any_bytes_as_pickle_and_gzip() {
    let mut case = |u: &mut Unstructured<'_>| {
        let options = options(u)?;
        let mut bytes =
            u.choose(&[&[0x80, 4][..], &[0x1f, 0x8b, 8, 0], b"{", b"{\"k\":\"meta\"}\n"])?.to_vec();
        bytes.extend_from_slice(u.bytes(u.len())?);
        try_import(&bytes, &options);
        Ok(())
    };
    for seed in 0..50_000u64 {
        arbtest::arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

#[test]
fn a_pickle_cannot_ask_for_more_memory_than_it_has_bytes() {
    // It promises four gigabytes of text, and remembers something under the largest number.
    try_import(b"\x80\x04\x8d\xff\xff\xff\xff\x00\x00\x00\x00x.", &Options::default());
    try_import(b"\x80\x04Nr\xff\xff\xff\xff.", &Options::default());
    // A list that holds itself, as the list of devices.
    try_import(b"\x80\x04}\x8c\x0ddevice_traces]\x94h\x00as.", &Options::default());
}

#[test]
#[ignore = "needs the shared data"]
fn truncated_real_files() {
    let data = shared("data");
    for file in [
        "chains/p100_un_11.json",
        "recorded/unet-6-8000000000.0.json",
        "traces/unet_joint.jsonl.gz",
        "traces/lstm_lm_eager.jsonl.gz",
        "graphs/monet_p100/vgg16_176.json",
        "graphs/checkmate/VGG16_256_train.json",
        "graphs/chainer/unet.json",
    ] {
        let mut whole = std::fs::read(data.join(file)).unwrap();
        if file.ends_with(".gz") {
            use std::io::Read;
            let packed = std::mem::take(&mut whole);
            for end in (0..packed.len()).step_by(packed.len() / 8) {
                try_import(&packed[..end], &Options::default());
            }
            flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut whole).unwrap();
        }
        for part in 0..16 {
            try_import(&whole[..whole.len() * part / 16], &Options::default());
        }
        let mut case = |u: &mut Unstructured<'_>| {
            try_import(&damage(u, &whole)?, &options(u)?);
            Ok(())
        };
        for seed in 0..500u64 {
            arbtest::arbtest(&mut case).seed(seed << 32 | 2_048).run();
        }
    }
}

/// Lines of a memory log, most of them well formed.
#[test]
fn memory_logs_in_any_order() {
    arbtest::arbtest(|u| {
        let mut text = String::new();
        let pattern: Vec<(u8, u8, u16)> = u.arbitrary()?;
        for _ in 0..u.int_in_range(1..=4)? {
            for &(action, block, bytes) in &pattern {
                let block = block % 4;
                text += &match action % 9 {
                    0..=2 => format!("malloc {block} {bytes}\n"),
                    3 | 4 => format!("free {block}\n"),
                    5 | 6 => format!("read {block}\n"),
                    7 => format!("write {block}\n"),
                    _ => "# nothing\n".to_owned(),
                };
            }
        }
        try_import(format!("malloc x 1\n{text}").as_bytes(), &options(u)?);
        Ok(())
    })
    .budget_ms(500);
}
