//! Each kind of file, small enough to be followed by hand.

use std::collections::BTreeSet;

use elbowroom_import::snapshot::Snapshot;
use elbowroom_import::{Chain, Format, ImportError, Imported, Options, Units, import};
use elbowroom_ir::packing::Interval;
use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Again, Op, Phase};
use elbowroom_ir::{Bytes, Nanos, OpId};

fn read(text: &str) -> Imported {
    read_with(text, &Options::default())
}

fn read_with(text: &str, options: &Options) -> Imported {
    import(text.as_bytes(), "some/small.json", options).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    import(text.as_bytes(), "bad.json", &Options::default()).unwrap_err().to_string()
}

fn op<'a>(imported: &'a Imported, name: &str) -> &'a Op {
    imported.trace.ops().values().find(|op| op.name == name).unwrap_or_else(|| panic!("no op {name}"))
}

/// The trace as one line per op: `name: reads -> outputs`, with `!` at what writes over persistent state and `~` at what may reuse.
fn lines(imported: &Imported) -> Vec<String> {
    let name = |&t: &elbowroom_ir::TensorId| imported.trace.tensors()[t].name.clone();
    let names = |list: &[elbowroom_ir::TensorId]| list.iter().map(name).collect::<Vec<_>>().join(" ");
    let line = |op: &Op| {
        let marks = "!".repeat(op.mutates.len()) + &"~".repeat(op.may_reuse.len());
        format!("{}{marks}: {} -> {}", op.name, names(&op.reads), names(&op.outputs))
    };
    imported.trace.ops().values().map(line).collect()
}

const CHAIN: &str = r#"{"name": "two", "n": 2, "uF": [1, 2.5], "uB": [3, 4], "x": [0, 100, 40], "xbar": [0, 130, 40],
    "y": [0, 100, 40], "exF": [8, 0], "exB": [0, 16], "labels": ["conv", "relu"], "units": {"time": "ms", "mem": "bytes"}}"#;

#[test]
fn a_chain() {
    let imported = read(CHAIN);
    assert_eq!(imported.notes.kind, Format::Chain);
    assert_eq!(
        lines(&imported),
        ["F0:  -> x1 saved1", "F1: x1 -> x2", "loss: x2 -> y2", "B1: x1 x2 y2 -> y1", "B0: x1 saved1 y1 -> "]
    );
    assert_eq!(imported.costs.total(), Nanos(10_500_000));
    // At B1: x1, saved1, x2, y2, y1 and its scratch.
    assert_eq!(imported.notes.peak, Bytes(100 + 30 + 40 + 40 + 100 + 16));
    let chain = Chain::read(CHAIN.as_bytes(), "two.json").unwrap();
    assert_eq!((chain.len(), chain.saved[1], chain.labels[0].as_str()), (2, Bytes(130), "conv"));
}

/// The ops that have to follow others, in addition to those that write what they read.
fn follows(imported: &Imported) -> Vec<String> {
    let name = |id: &OpId| imported.trace.ops()[*id].name.clone();
    let followers = imported.trace.ops().values().filter(|op| !op.after.is_empty());
    followers
        .map(|op| format!("{} after {}", op.name, op.after.iter().map(name).collect::<Vec<_>>().join(" ")))
        .collect()
}

/// Tensors of no bytes are left out of a trace, but the ops that would read them still follow the ops that would write them.
#[test]
fn tensors_without_bytes_order_the_ops() {
    // A chain without gradients: the backward ops follow one another, and where an x is empty as well, the forward ops.
    let chain = read(r#"{"n": 3, "uF": [1, 1, 1], "uB": [1, 1, 1], "x": [0, 8, 0, 8], "y": [0, 0, 0, 0]}"#);
    assert_eq!(
        lines(&chain),
        ["F0:  -> x1", "F1: x1 -> ", "F2:  -> x3", "B2: x3 -> ", "B1: x1 -> ", "B0: x1 -> "]
    );
    assert_eq!(follows(&chain), ["F2 after F1", "B2 after F1", "B1 after F1 B2", "B0 after B1"]);
    // Without a loss, the first gradient depends on the last output.
    let short = read(r#"{"n": 1, "uF": [1], "uB": [1], "x": [0, 0], "y": [0, 0]}"#);
    assert_eq!(follows(&short), ["B0 after F0"]);
    assert_eq!(follows(&read(CHAIN)), Vec::<String>::new());

    // An op in a graph without a result.
    let graph = read(
        r#"{"name": "g", "loss": 1, "T": 3, "nodes": [
        {"id": 0, "op": "seed", "kind": "fwd", "time_ms": 1, "out_bytes": 0, "workspace_mib": 0, "fixed_bytes": 0},
        {"id": 1, "op": "loss", "kind": "loss", "time_ms": 1, "out_bytes": 8, "workspace_mib": 0, "fixed_bytes": 0},
        {"id": 2, "op": "grad", "kind": "bwd", "time_ms": 1, "out_bytes": 8, "workspace_mib": 0, "fixed_bytes": 0, "fwd_id": 0}],
        "edges": [[0, 1], [1, 2], [0, 2]], "reference": []}"#,
    );
    assert_eq!(follows(&graph), ["loss@1 after seed@0", "grad@2 after seed@0"]);

    // A storage without bytes that is written, read twice, and written again.
    let log = read(
        r#"{"sizes": [8, 0, 8, 8, 8, 0], "const": [0], "const_first_op": {}, "ops": [
        {"name": "init", "t": 0, "reads": [0], "writes": [1], "allocs": [1], "frees": [], "pure": true},
        {"name": "f", "t": 1, "reads": [0, 1], "writes": [2], "allocs": [2], "frees": [], "pure": true},
        {"name": "g", "t": 1, "reads": [1], "writes": [3], "allocs": [3], "frees": [], "pure": true},
        {"name": "again_", "t": 1, "reads": [2], "writes": [1], "allocs": [], "frees": [], "pure": false},
        {"name": "h", "t": 1, "reads": [1, 2], "writes": [4, 5], "allocs": [4, 5], "frees": [], "pure": true}]}"#,
    );
    assert_eq!(
        follows(&log),
        ["f@1 after init@0", "g@2 after init@0", "again_@3 after init@0 g@2", "h@4 after again_@3"]
    );
}

const CAPTURED_EAGER: &str = r#"{"k":"meta","model":"tiny","mode":"eager","torch":"2.15","cost_gpu":"H100","peak_MB":0.0}
{"k":"st","s":0,"b":64,"c":"param","n":"bn.weight"}
{"k":"st","s":1,"b":64,"c":"buffer","n":"bn.running_mean"}
{"k":"st","s":2,"b":64,"c":"buffer","n":"bn.running_var"}
{"k":"st","s":3,"b":1000,"c":"input","n":"in0"}
{"k":"st","s":4,"b":1000,"c":"act","n":"bn"}
{"k":"st","s":5,"b":64,"c":"tmp","n":"mean"}
{"k":"st","s":6,"b":64,"c":"tmp","n":"invstd"}
{"k":"st","s":7,"b":0,"c":"tmp","n":"reserve"}
{"k":"st","s":8,"b":64,"c":"tmp","n":"grad"}
{"k":"st","s":9,"b":500,"c":"act","n":"dropout"}
{"k":"op","i":0,"op":"prim.device.default","ph":"fwd","r":[3],"w":[],"m":[],"v":1,"us":0}
{"k":"op","i":1,"op":"aten.empty.memory_format","ph":"fwd","r":[],"w":[7],"m":[],"v":0,"us":0}
{"k":"op","i":2,"op":"aten.native_batch_norm.default","ph":"fwd","r":[3,0,1,2],"w":[4,5,6],"m":[],"v":0,"br":2000,"bw":1000,"us":1.5}
{"k":"op","i":3,"op":"aten.relu_.default","ph":"fwd","r":[4],"w":[],"m":[4],"v":0,"us":1}
{"k":"op","i":4,"op":"aten.native_dropout.default","ph":"fwd","r":[4],"w":[9],"m":[],"v":0,"us":1,"f":["rng"]}
{"k":"op","i":5,"op":"aten.native_batch_norm_backward.default","ph":"bwd","r":[9,3,0,1,2,5,6],"w":[8],"m":[],"v":0,"us":2}
{"k":"free","i":5,"s":4}
{"k":"free","i":5,"s":5}
{"k":"free","i":5,"s":6}
{"k":"free","i":5,"s":7}
{"k":"free","i":5,"s":9}
{"k":"op","i":6,"op":"aten.add_.Tensor","ph":"opt","r":[0,8],"w":[],"m":[0],"v":0,"us":0.25}
{"k":"free","i":6,"s":8}
"#;

#[test]
fn an_eager_capture() {
    let imported = read(CAPTURED_EAGER);
    assert_eq!(imported.notes.kind, Format::Captured);
    assert_eq!(
        lines(&imported),
        [
            "in0:  -> in0",
            "native_batch_norm@2: in0 bn.weight -> bn mean invstd",
            "native_batch_norm@2.update!!: bn.running_mean bn.running_var mean invstd -> bn.running_mean' bn.running_var'",
            "relu_@3~: bn -> bn",
            "native_dropout@4: bn -> dropout",
            "native_batch_norm_backward@5: dropout in0 bn.weight bn.running_mean' bn.running_var' mean invstd -> grad",
            "add_@6!: bn.weight grad -> bn.weight'",
        ]
    );
    assert_eq!(imported.costs.total(), Nanos(5_750));
    assert_eq!(imported.costs.source, CostSource::Captured);
    assert_eq!(op(&imported, "native_batch_norm@2.update").again, Again::Never);
    assert_eq!(op(&imported, "native_dropout@4").again, Again::Rng { stream: 4 });
    assert_eq!(op(&imported, "add_@6").phase, Phase::Update);
    assert_eq!(op(&imported, "in0").again, Again::Pure);
    assert_eq!(op(&imported, "native_batch_norm@2").work.moved, Bytes(3000));
    let changed = imported.trace.persistent().iter().filter(|pair| pair.begin != pair.end).count();
    assert_eq!((imported.trace.persistent().len(), changed), (3, 3));
    // The recorded program held the normalized values until step 5; no op reads them after step 4.
    assert_eq!(imported.notes.recorded_peak, Some(Bytes(3 * 64 + 1000 + 1000 + 128 + 500 + 64)));
    assert_eq!(imported.notes.peak, Bytes(3 * 64 + 1000 + 1000 + 128 + 500));

    let held = read_with(CAPTURED_EAGER, &Options::default().remake_inputs(false));
    assert_eq!(op(&held, "in0").again, Again::Never);
}

const CAPTURED_JOINT: &str = r#"{"k":"meta","model":"tiny","mode":"joint"}
{"k":"st","s":0,"b":64,"c":"param","n":"primals_1","d":"ParamAOTInput(target='bn.weight')"}
{"k":"st","s":1,"b":64,"c":"buffer","n":"primals_2","d":"BufferAOTInput(target='bn.running_mean')"}
{"k":"st","s":2,"b":64,"c":"buffer","n":"primals_3","d":"BufferAOTInput(target='bn.running_var')"}
{"k":"st","s":3,"b":8,"c":"buffer","n":"primals_4","d":"BufferAOTInput(target='bn.num_batches_tracked')"}
{"k":"st","s":4,"b":1000,"c":"input","n":"primals_5","d":"PlainAOTInput(idx=0)"}
{"k":"st","s":5,"b":1000,"c":"act","n":"bn"}
{"k":"st","s":6,"b":64,"c":"tmp","n":"mean"}
{"k":"st","s":7,"b":64,"c":"tmp","n":"invstd"}
{"k":"st","s":8,"b":64,"c":"act","n":"new_mean"}
{"k":"st","s":9,"b":64,"c":"act","n":"new_var"}
{"k":"st","s":10,"b":8,"c":"act","n":"add"}
{"k":"st","s":11,"b":1000,"c":"act","n":"relu"}
{"k":"st","s":12,"b":64,"c":"tmp","n":"sum"}
{"k":"op","i":0,"op":"aten.add.Tensor","n":"add","ph":"fwd","r":[3],"w":[10],"m":[],"v":0,"us":0}
{"k":"op","i":1,"op":"aten._native_batch_norm_legit_functional.default","n":"bn","ph":"fwd","r":[4,0,1,2],"w":[5,6,7,8,9],"m":[],"v":0,"us":3}
{"k":"op","i":2,"op":"aten.relu.default","n":"relu","ph":"fwd","r":[5],"w":[11],"m":[],"v":0,"us":1}
{"k":"free","i":2,"s":5}
{"k":"op","i":3,"op":"aten.sum.dim_IntList","n":"sum","ph":"bwd","r":[11],"w":[12],"m":[],"v":0,"us":1}
{"k":"free","i":3,"s":11}
{"k":"out","s":8,"d":"InputMutationAOTOutput(mutated_input=BufferAOTInput(target='bn.running_mean'))"}
{"k":"out","s":9,"d":"InputMutationAOTOutput(mutated_input=BufferAOTInput(target='bn.running_var'))"}
{"k":"out","s":10,"d":"InputMutationAOTOutput(mutated_input=BufferAOTInput(target='bn.num_batches_tra"}
{"k":"out","s":12,"d":"GradAOTOutput(grad_of=ParamAOTInput(target='bn.weight'))"}
"#;

#[test]
fn a_joint_capture() {
    let imported = read(CAPTURED_JOINT);
    assert_eq!(
        lines(&imported),
        [
            "primals_5:  -> primals_5",
            "add!: bn.num_batches_tracked -> bn.num_batches_tracked'",
            "bn: primals_5 bn.weight -> bn mean invstd",
            "bn.update!!: bn.running_mean bn.running_var mean invstd -> bn.running_mean' bn.running_var'",
            "relu: bn -> relu",
            "sum: relu -> sum",
            "results: sum -> ",
        ]
    );
    let inplace = read_with(CAPTURED_JOINT, &Options::default().inplace(true));
    assert_eq!(lines(&inplace)[4], "relu~: bn -> relu");
    assert!(inplace.notes.peak < imported.notes.peak + Bytes(1));
}

const RECORDED: &str = r#"{"name": "tiny", "sizes": [10, 10, 100, 100, 4, 0, 70], "const": [0, 1, 2],
    "const_first_op": {"0": 0, "1": 0, "2": 1}, "backward_starts_at_op": 3, "total_time_ns": 70, "peak_bytes": 320, "ops": [
    {"name": "conv", "t": 10, "reads": [0, 2], "writes": [3], "allocs": [3], "frees": [], "pure": true},
    {"name": "view", "t": 5, "reads": [3], "writes": [3], "allocs": [], "frees": [], "pure": true},
    {"name": "relu_", "t": 10, "reads": [3], "writes": [3], "allocs": [], "frees": [], "pure": false},
    {"name": "sum", "t": 20, "reads": [3], "writes": [4, 5], "allocs": [4, 5], "frees": [], "pure": true},
    {"name": "conv_backward", "t": 20, "reads": [2], "writes": [6], "allocs": [6], "frees": [3], "pure": true},
    {"name": "t", "t": 5, "reads": [6], "writes": [6], "allocs": [], "frees": [], "pure": true}]}"#;

#[test]
fn a_recorded_trace() {
    let imported = read(RECORDED);
    assert_eq!(
        lines(&imported),
        [
            "conv@0: x0 x2 -> x3",
            "relu_@2~: x3 -> x3",
            "sum@3: x3 -> x4",
            "conv_backward@4: x2 -> x6",
            "results: x4 x6 -> "
        ]
    );
    // The view's time is carried by the op after it, that of the last one by the last op.
    assert_eq!(imported.costs.nanos.values().map(|n| n.get()).collect::<Vec<_>>(), [10, 15, 20, 20, 5]);
    assert_eq!(Some(imported.costs.total()), imported.notes.stated_time);
    assert_eq!(imported.notes.recorded_peak, Some(Bytes(294)));
    assert_eq!(imported.notes.peak, Bytes(224));
    assert_eq!(op(&imported, "sum@3").phase, Phase::Backward);
}

const MEASURED: &str = r#"{"name": "tiny", "loss": 1, "T": 3, "nodes": [
    {"id": 0, "op": "aten::conv", "kind": "fwd", "time_ms": 1.005, "out_bytes": 2560, "workspace_mib": 0.5, "fixed_bytes": 10240},
    {"id": 1, "op": "loss::loss", "kind": "loss", "time_ms": 0.0, "out_bytes": 1536, "workspace_mib": 0, "fixed_bytes": 10240},
    {"id": 2, "op": "aten::conv_grad", "kind": "bwd", "time_ms": 2, "out_bytes": 0, "workspace_mib": -1, "fixed_bytes": 18432, "fwd_id": 0}],
    "edges": [[0, 1], [1, 2], [0, 2]],
    "reference": [{"budget_gb": 5.0, "gurobi_checkmate_obj": 300, "no_recompute_obj": 200, "solve_time_s": 1.5}]}"#;

#[test]
fn a_measured_graph() {
    let imported = read(MEASURED);
    assert_eq!(
        lines(&imported),
        [
            "aten::conv@0: parameters and batch -> aten::conv@0",
            "loss::loss@1: aten::conv@0 -> loss::loss@1",
            "aten::conv_grad@2: loss::loss@1 aten::conv@0 parameters and batch -> aten::conv_grad@2.gradient",
            "results: aten::conv_grad@2.gradient -> ",
        ]
    );
    assert_eq!(imported.notes.peak, Bytes(10240 + 2560 + (512 << 10)));
    assert_eq!(imported.costs.total(), Nanos(3_005_000));

    let published = read_with(MEASURED, &Options::default().units(Units::Published));
    assert_eq!(
        lines(&published),
        [
            "aten::conv@0:  -> aten::conv@0",
            "loss::loss@1: aten::conv@0 -> loss::loss@1",
            "aten::conv_grad@2: loss::loss@1 aten::conv@0 -> ",
        ]
    );
    // 2.5 KiB and 1.5 KiB go to the even neighbour, and so would a time between two ticks.
    assert_eq!(published.notes.peak, Bytes(4 << 10));
    assert_eq!(published.costs.total().get() % 10_000, 0);
    let reference = &published.notes.references[0];
    assert_eq!(reference.live_limit, Bytes((5 << 30) - (18 << 10)));
    assert_eq!((reference.time, reference.unlimited_time), (Nanos(3_000_000), Nanos(2_000_000)));
    let text = published.notes.to_string();
    assert!(
        text.starts_with("measured op graph\npeak load 4.00 KiB, and 18.00 KiB that are left out\n"),
        "{text}"
    );
    assert!(
        text.contains("published for 5.00 GiB (load limit 5.00 GiB): 3.0 ms, +50.00 %, after 2 s"),
        "{text}"
    );
}

#[test]
fn checkmate_graphs_of_both_shapes() {
    let network = r#"{"graph": {"name": "net"}, "nodes": [{"name": "a", "backward": false, "cost_cpu": 5, "cost_ram": 64, "id": 0},
        {"name": "b", "backward": true, "cost_cpu": 7.5, "cost_ram": 32, "id": 1}], "links": [{"source": 0, "target": 1}]}"#;
    let options = Options::default().time_unit(Nanos(10));
    let imported = read_with(network, &options);
    assert_eq!(imported.notes.kind, Format::CheckmateGraph);
    assert_eq!(lines(&imported), ["a:  -> a", "b: a -> b"]);
    assert_eq!(imported.costs.total(), Nanos(125));

    let random = r#"{"graph": {"name": "random", "order": [0, 2, 1]}, "nodes": [{"out_cost": 5, "duration": 0, "name": 0},
        {"out_cost": 6, "duration": 1, "name": 1}, {"out_cost": 7, "duration": 2, "name": 2}],
        "links": [{"0": 0, "1": 2}, {"0": 2, "1": 1}]}"#;
    assert_eq!(lines(&read(random)), ["n0:  -> n0", "n2: n0 -> n2", "n1: n2 -> n1"]);
}

#[test]
fn a_chainer_graph() {
    // loss(dropout(x·W) + x·W): the sum is read twice, so its gradient is added up.
    let text = r#"{"name": "tiny", "vars": [{"id": 0, "bytes": 8, "name": null}, {"id": 1, "bytes": 16, "name": "W"},
        {"id": 2, "bytes": 32, "name": null}, {"id": 3, "bytes": 32, "name": null}, {"id": 4, "bytes": 4, "name": null}],
        "functions": [
        {"dir": "backward", "op": "Add", "ins": [[4, "gradient"], [2, "input"], [3, "input"]], "outs": [2, 3], "t": 1},
        {"dir": "forward", "op": "Add", "ins": [[3, "_"], [2, "_"]], "outs": [4], "t": 1},
        {"dir": "forward", "op": "Dropout", "ins": [[2, "_"]], "outs": [3], "t": 1},
        {"dir": "forward", "op": "Linear", "ins": [[0, "_"], [1, "_"]], "outs": [2], "t": 10},
        {"dir": "backward", "op": "Linear", "ins": [[2, "gradient"], [0, "input"], [1, "input"]], "outs": [0, 1], "t": 10},
        {"dir": "backward", "op": "Dropout", "ins": [[3, "gradient"], [2, "input"]], "outs": [2], "t": 1}]}"#;
    let imported = read(text);
    assert_eq!(imported.notes.kind, Format::ChainerGraph);
    assert_eq!(
        lines(&imported),
        [
            "input 0:  -> input 0",
            "Linear@3: input 0 W -> v2",
            "Dropout@2: v2 -> v3",
            "Add@1: v3 v2 -> v4",
            "v4.gradient:  -> v4.gradient",
            "Add.backward@0: v4.gradient v2 v3 -> v2.gradient v3.gradient",
            "Dropout.backward@5~: v3.gradient v2 v2.gradient -> v2.gradient",
            "Linear.backward@4: v2.gradient input 0 W -> W.gradient",
            "results: W.gradient -> ",
        ]
        .map(|line| line.replace("W.gradient", "v1.gradient"))
    );
    assert_eq!(op(&imported, "Dropout@2").again, op(&imported, "Dropout.backward@5").again);
    assert_eq!(imported.costs.total(), Nanos(24_000));
}

#[test]
fn memory_snapshots_of_every_protocol() {
    for protocol in 2..=5 {
        let path = format!("{}/tests/fixtures/snapshot_p{protocol}.pickle", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let imported = import(&bytes, "snapshot.pickle", &Options::default()).unwrap();
        assert_eq!(imported.notes.kind, Format::MemorySnapshot);
        assert_eq!(
            lines(&imported),
            [
                "there before:  -> block 0x7f0000000400",
                "forward (model.py:7):  -> forward (model.py:7)",
                "free@1: block 0x7f0000000400 -> ",
                "forward (model.py:9):  -> forward (model.py:9)",
                "free@3: forward (model.py:7) -> ",
                "there after: forward (model.py:9) -> ",
            ]
        );
        // The block of 900 bytes was there all the time; the others overlap at the first free.
        assert_eq!(imported.notes.peak, Bytes(900 + 600 + 1000));
        assert_eq!(imported.costs.total(), Nanos(40_000));
        assert!(imported.trace.ops().values().all(|op| op.again == Again::Never));

        let snapshot = Snapshot::read(&bytes, "snapshot.pickle", Some(1)).unwrap();
        assert_eq!(snapshot.reserved, Bytes(2 << 20));
        let alive =
            snapshot.problem(Bytes(512)).blocks.values().map(|b| (b.size, b.alive[0])).collect::<Vec<_>>();
        assert_eq!(
            alive,
            [
                (Bytes(600), Interval::new(0, 2)),
                (Bytes(900), Interval::new(0, 5)),
                (Bytes(1000), Interval::new(1, 4)),
                (Bytes(512), Interval::new(3, 5)),
            ]
        );
        let none = import(&bytes, "s.pickle", &Options::default().device(0)).unwrap_err();
        assert!(none.to_string().contains("device 0 has events"), "{none}");
    }
}

#[test]
fn a_snapshot_of_a_gpu_names_lines_of_the_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/snapshot_h200.pickle.gz");
    let snapshot = Snapshot::read(&std::fs::read(path).unwrap(), "snapshot_h200.pickle.gz", None).unwrap();
    let places: BTreeSet<&str> = snapshot.allocations.iter().map(|a| a.place.as_str()).collect();
    let expected = [
        "<module> (snap.py:10) › _init_group",
        "<module> (snap.py:10) › _make_grads",
        "<module> (snap.py:10) › _multi_tensor_adam",
        "<module> (snap.py:6) › <lambda>",
        "<module> (snap.py:7)",
        "AddmmBackward0 (backward pass)",
        "GeluBackward0 (backward pass)",
        "MseLossBackward0 (backward pass)",
        "NativeDropoutBackward0 (backward pass)",
        "forward (loops.py:16) › activation",
        "forward (loops.py:16) › dropout",
        "forward (loops.py:16) › linear",
        "forward (loops.py:16) › mse_loss",
        "sum_dim_IntList (backward pass)",
    ];
    assert_eq!(
        places.iter().copied().filter(|place| !place.starts_with("block ")).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn gzip_is_taken_off() {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(CHAIN.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let imported = import(&packed, "two.json.gz", &Options::default()).unwrap();
    assert_eq!(imported.trace, read(CHAIN).trace);
    let cut = import(&packed[..packed.len() - 9], "two.json.gz", &Options::default()).unwrap_err();
    assert!(matches!(cut, ImportError::Gzip { .. }), "{cut}");
}

#[test]
fn errors_say_where_and_what() {
    for (text, wanted) in [
        ("", "bad.json: the file is empty, and no kind of trace known here"),
        ("id,lower,upper,size\n", "does not begin like JSON or a pickle"),
        ("{\"a\": 1}", "has none of the keys"),
        ("{\"uF\": [1,\n 2,, 3]}", "bad.json, line 2, column 4: expected value"),
        ("{\"n\": 1, \"uF\": [-1], \"uB\": [1], \"x\": [0, 1]}", "`uF` holds -1, which is no duration"),
        ("{\"n\": 2, \"uF\": [1], \"uB\": [1], \"x\": [0, 1]}", "`uF` has 1 entries where `n` says 2"),
        (
            "{\"k\":\"meta\"}\n{\"k\":\"op\",\"i\":0,\"op\":\"a\",\"ph\":\"fwd\",\"r\":[3]}",
            "line 2: storage 3 is not declared before",
        ),
        (
            "{\"k\":\"st\",\"s\":0,\"b\":4,\"c\":\"act\"}\n{\"k\":\"op\",\"i\":0,\"op\":\"a\",\"ph\":\"fwd\",\"r\":[0]}",
            "line 2: it reads storage `storage 0` before anything is written to it",
        ),
        (
            "{\"sizes\": [1], \"ops\": [{\"name\": \"add\", \"t\": 1, \"reads\": [1]}]}",
            "op 0 (add): storage 1 is no index",
        ),
        (
            "{\"nodes\": [], \"links\": [{\"source\": 0, \"target\": 0}]}",
            "the link from 0 to 0 names a node that is not there",
        ),
        ("{\"nodes\": [], \"edges\": [[0, 1]]}", "the edge [0, 1] names a node that is not there"),
        (
            "{\"vars\": [], \"functions\": [{\"dir\": \"forward\", \"op\": \"f\", \"ins\": [[0, \"_\"]], \"outs\": [], \"t\": 1}]}",
            "function 0 (f) names variable 0",
        ),
        ("{\"n\": 1, \"uF\": [1], \"uB\": [1], \"x\": [0, 18446744073709551615]}", "2^60"),
    ] {
        let message = error(text);
        assert!(message.contains(wanted), "{message}\nlacks: {wanted}");
    }
    let hostile = import(b"\x80\x02cos\nsystem\n.", "x.pickle", &Options::default()).unwrap_err();
    assert!(
        hostile.to_string().starts_with("x.pickle, byte 2: it would import or call something"),
        "{hostile}"
    );
}

#[test]
fn an_op_over_state_and_other_values_stays_whole() {
    let imported = read(
        r#"{"k":"meta","mode":"eager"}
{"k":"st","s":0,"b":64,"c":"param","n":"w"}
{"k":"st","s":1,"b":64,"c":"act","n":"a"}
{"k":"op","i":0,"op":"aten.mul.Tensor","ph":"fwd","r":[0],"w":[1],"m":[],"v":0,"us":1}
{"k":"op","i":1,"op":"aten._foreach_add_.Scalar","ph":"opt","r":[0,1],"w":[],"m":[0,1],"v":0,"us":1}"#,
    );
    assert_eq!(lines(&imported), ["mul@0: w -> a", "_foreach_add_@1!~: w a -> a w'", "results: a -> "]);
    assert_eq!(op(&imported, "_foreach_add_@1").again, Again::Never);
}
