"""Loops of other libraries, unchanged: DistributedDataParallel and the Trainer of transformers."""

import copy
import os
import tempfile

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from loops import adamw, cnn  # noqa: E402
from torch import nn  # noqa: E402


def _rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = []
    for fit in (False, True):
        model, (x, y) = cnn()
        # Every rank has data of its own.
        x = x + rank
        optimizer = adamw(model)
        if fit:
            elbowroom.fit(model, "80%", optimizer=optimizer, evaluations=300)
        parallel = nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(1)
        for _ in range(4):
            parallel(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([tensor.clone() for tensor in model.state_dict().values()])
    report = model.elbowroom.report
    same = all(torch.equal(one, two) for one, two in zip(*results, strict=True))
    torch.save(
        {
            "same": same,
            "source": model.elbowroom.graphs[0].program.source,
            "graphs": report.graphs,
            "recomputed": report.recomputed,
            "within": report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes,
            "weight": results[1][0],
        },
        os.path.join(folder, f"rank{rank}"),
    )
    torch.distributed.destroy_process_group()


def test_two_processes_plan_alike_and_average_the_same_gradients():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder,), nprocs=2)
        first, second = (torch.load(os.path.join(folder, f"rank{rank}")) for rank in range(2))
    for result in (first, second):
        assert result["same"] and result["within"] and result["recomputed"] and result["graphs"] == 1
    assert first["source"] == second["source"]
    assert torch.equal(first["weight"], second["weight"])


def test_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2)
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(attention_dropout=0.1, **sizes))
    fitted = copy.deepcopy(plain)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(3, 64, (24, 32))]
    options = dict(per_device_train_batch_size=8, num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
    for model in (plain, fitted):
        if model is fitted:
            elbowroom.fit(model, "70%", evaluations=300)
        transformers.Trainer(model, transformers.TrainingArguments(str(tmp_path), **options), train_dataset=rows).train()
    report = fitted.elbowroom.report
    assert report.recomputed and report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes
    for (name, one), two in zip(plain.state_dict().items(), fitted.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
