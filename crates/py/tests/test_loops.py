"""Loops of other libraries, unchanged: DistributedDataParallel, the Trainer of transformers, and Lightning."""

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
        results.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    report = model.elbowroom.report
    torch.save(
        {
            "different": [name for name, tensor in results[0].items() if not torch.equal(tensor, results[1][name])],
            "source": model.elbowroom.graphs[0].program.source,
            "graphs": report.graphs,
            "plans": report.plans,
            "notes": report.notes,
            "recomputed": report.recomputed,
            "peaks": (report.measured_peak_bytes, report.predicted_peak_bytes, report.limit_bytes),
            "weight": next(iter(results[1].values())),
        },
        os.path.join(folder, f"rank{rank}"),
    )
    torch.distributed.destroy_process_group()


def test_two_processes_plan_alike_and_average_the_same_gradients():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder,), nprocs=2)
        first, second = (torch.load(os.path.join(folder, f"rank{rank}")) for rank in range(2))
    for result in (first, second):
        assert not result["different"]
        measured, predicted, limit = result["peaks"]
        assert measured <= predicted <= limit, result["notes"]
        assert result["recomputed"] and result["graphs"] == 1
        # A second plan would be of a short search until a whole one has ended, which may be sooner in one process.
        assert result["plans"] == 1, result["notes"]
    assert first["source"] == second["source"]
    assert torch.equal(first["weight"], second["weight"])


def _fast_rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())))
    fitted = copy.deepcopy(plain)
    x = torch.randn(2048, 32) + rank
    elbowroom.fit(fitted, "80%", mode="fast", evaluations=100)
    for model in (plain, fitted):
        parallel = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            parallel(x).square().mean().backward()
    report = fitted.elbowroom.report
    near = all(torch.allclose(one.grad, two.grad, rtol=1e-3, atol=1e-6) for one, two in zip(plain.parameters(), fitted.parameters(), strict=True))
    torch.save(
        {
            "near": near,
            "source": fitted.elbowroom.graphs[0].program.source,
            "recomputed": report.recomputed,
            "within": report.measured_peak_bytes <= report.limit_bytes,
            "gradients": [parameter.grad for parameter in fitted.parameters()],
        },
        os.path.join(folder, f"rank{rank}"),
    )
    torch.distributed.destroy_process_group()


def test_two_processes_with_kernels_of_inductor():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_fast_rank, (folder,), nprocs=2)
        first, second = (torch.load(os.path.join(folder, f"rank{rank}")) for rank in range(2))
    for result in (first, second):
        assert result["near"] and result["within"] and result["recomputed"]
    assert first["source"] == second["source"]
    assert all(torch.equal(one, two) for one, two in zip(first["gradients"], second["gradients"], strict=True))


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


def test_the_loop_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(*batch)

        def configure_optimizers(self):
            return adamw(self.model)

    plain, (x, y) = cnn()
    fitted = copy.deepcopy(plain)
    elbowroom.fit(fitted, "80%", evaluations=300)
    rows = torch.utils.data.TensorDataset(torch.cat([x, x + 1, x + 2]), torch.cat([y, y, y]))
    options = dict(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    for model in (plain, fitted):
        torch.manual_seed(1)
        lightning.Trainer(default_root_dir=tmp_path, **options).fit(Task(model), torch.utils.data.DataLoader(rows, batch_size=8))
    report = fitted.elbowroom.report
    assert report.recomputed and report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes
    for (name, one), two in zip(plain.state_dict().items(), fitted.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_a_saved_model_is_the_plain_one(tmp_path):
    plain, args = cnn()
    fitted = elbowroom.fit(copy.deepcopy(plain), "80%", evaluations=100)
    fitted(*args).backward()
    plain(*args).backward()
    torch.save(fitted.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    assert list(loaded) == list(plain.state_dict())
    assert all(torch.equal(one, loaded[name]) for name, one in plain.state_dict().items())
    torch.save(fitted, tmp_path / "model.pt")
    whole = torch.load(tmp_path / "model.pt", weights_only=False)
    assert type(whole) is type(plain) and torch.equal(whole.eval()(*args), plain.eval()(*args))


def test_a_report_is_shown_as_a_table():
    model, args = cnn()
    elbowroom.fit(model, "80%", evaluations=100)
    model(*args).backward()
    shown = model.elbowroom.report._repr_html_()
    assert f"<tr><th>limit</th><td>{elbowroom.size.show(model.elbowroom.report.limit_bytes)}</td></tr>" in shown
    assert "<tr><th>overhead</th><td>" in shown and shown.count("<tr>") == len(vars(model.elbowroom.report))
    assert "<tr><th>evicted</th><td>0 bytes</td></tr>" in elbowroom.limit("1GiB").report._repr_html_()
