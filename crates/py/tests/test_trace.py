"""``trace`` and ``plan``: a step that is planned and not run."""

import json

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())])

    def forward(self, x, target):
        return nn.functional.mse_loss(self.layers(x), target)


def traced(optimizer=True):
    with torch.device("meta"):
        model = Net()
    x = torch.empty(512, 64, device="meta")
    update = torch.optim.AdamW(model.parameters()) if optimizer else None
    return elbowroom.trace(model, x, target=x, optimizer=update), sum(p.numel() * 4 for p in model.parameters())


def test_a_model_without_memory_is_planned_with_its_optimizer():
    trace, parameters = traced()
    # Parameters, two moments of each, the input and the target, which are one tensor each.
    assert trace.persistent_bytes == 3 * parameters + 2 * 512 * 64 * 4
    half = elbowroom.plan(trace, "60%", evaluations=200)
    assert half.peak <= 0.6 * trace.unlimited_peak
    assert half.overhead >= half.bound > 0
    assert "Recomputed" in half.explain()


def test_a_fitted_model_is_traced_as_it_was():
    model, x = Net(), torch.randn(16, 64)
    plain = elbowroom.trace(model, x, target=x).iteration.text()
    elbowroom.fit(model, "100%", background=False)
    model(x, x).backward()
    steps = model.elbowroom.runs
    assert elbowroom.trace(model, x, target=x).iteration.text() == plain
    assert model.elbowroom.runs == steps and model(x, x).requires_grad and model.elbowroom.runs == steps + 1


def test_rates_replace_those_of_the_device():
    with torch.device("meta"):
        model = Net()
    x = torch.empty(512, 64, device="meta")
    slow, fast = (elbowroom.trace(model, x, target=x, rates=(rate, rate, 0)) for rate in (1e9, 1e12))
    assert 900 * fast.keep.nanos < slow.keep.nanos <= 1000 * fast.keep.nanos


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_missing_is_named():
    with torch.device("meta"):
        model = Net()
    x = torch.empty(512, 64, device="meta")
    with pytest.raises(elbowroom.UnsupportedError, match="finds no GPU"):
        elbowroom.trace(model, x, target=x, device="cuda")
    assert elbowroom.trace(model, x, target=x, rates=elbowroom.costs.RATES["cuda"]).keep.nanos > 0


def test_a_link_lowers_the_smallest_limit_below_the_parameters():
    trace, parameters = traced()
    smallest = elbowroom.plan(trace, "min", elbowroom.Machine(link=25e9), evaluations=50)
    assert smallest.peak < trace.persistent_bytes
    assert smallest.native.offloaded_bytes > 0


def test_gradients_that_no_optimizer_consumes_stay():
    with_update, without = traced()[0], traced(optimizer=False)[0]
    assert without.keep.nanos < with_update.keep.nanos


def test_a_plan_is_saved_and_shown(tmp_path):
    trace, _ = traced()
    plan = elbowroom.plan(trace, "70%", evaluations=100)
    plan.save(tmp_path / "step.json")
    saved = json.loads((tmp_path / "step.json").read_text())
    assert saved["trace"] == trace.iteration.fingerprint and saved["peak_bytes"] == plan.peak
    assert "<table>" in plan._repr_html_()


def test_a_trace_is_saved_as_the_command_reads_it(tmp_path):
    trace, _ = traced()
    trace.save(tmp_path / "step.trace")
    lines = (tmp_path / "step.trace").read_text().splitlines()
    assert lines[0] == "elbowroom trace 1" and "costs captured" in lines
    ops = [line for line in lines if line.startswith("op")]
    assert len(ops) == trace.ops
    assert sum(int(line.split(" nanos ")[1].split()[0]) for line in ops if " nanos " in line) == trace.keep.nanos


@pytest.mark.parametrize("dtype, operations", [(torch.float32, " flops "), (torch.bfloat16, " half-flops ")])
def test_a_trace_says_what_its_ops_do(dtype, operations):
    with torch.device("meta"):
        model = Net().to(dtype)
    x = torch.empty(512, 64, device="meta", dtype=dtype)
    text = elbowroom.trace(model, x, target=x, optimizer=torch.optim.SGD(model.parameters())).iteration.text()
    ops = [line for line in text.splitlines() if line.startswith("op")]
    products = [line for line in ops if operations in line]
    assert len(products) == 8 + 2 * 8 - 1  # the first layer's input needs no gradient
    assert all(int(line.split(operations)[1].split()[0]) == 2 * 512 * 64 * 64 for line in products)
    assert all(" moved " in line for line in ops if "/update" in line or line in products)


def test_a_model_without_a_loss_is_refused():
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(elbowroom.UnsupportedError, match="must return its loss"):
        elbowroom.trace(model, torch.empty(2, 4, device="meta"))


def test_a_step_is_traced_with_the_kernels_that_run():
    class Enlarged(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

        def forward(self, x):
            return self.last(nn.functional.interpolate(self.first(x), scale_factor=2)).square().mean()

    with torch.device("meta"):
        model, x = Enlarged(), torch.empty(2, 3, 16, 16)
    text = elbowroom.trace(model, x).iteration.text()
    # PyTorch would trace gathers by index in their place.
    assert "upsample_nearest2d_backward" in text and "index" not in text
