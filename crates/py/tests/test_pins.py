"""Decisions of the user: every plan obeys them, and says what each of them covers."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.pins import Pin, parse  # noqa: E402
from torch import nn  # noqa: E402

COMPUTE, RECOMPUTE, OFFLOAD, PREFETCH = range(4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x):
        return x + self.mlp(torch.softmax(self.query(x), -1))


class Net(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.breaks = breaks

    def forward(self, x):
        first, second, third, fourth = self.layers
        x = second(first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        x = fourth(third(x))
        return x.square().mean()


def inputs():
    torch.manual_seed(0)
    return Net(), torch.randn(256, 32)


def recomputed(fitted):
    """Names of the ops that the plans of a fitted model recompute."""
    names = set()
    for key, plan in fitted._plans.items():
        joint = next(graph for graph in fitted.graphs if graph.number == key[0]).joint
        names |= {joint.named(joint.op_numbers[number].node) for kind, number, _, _ in plan.planned.actions if kind == RECOMPUTE}
    return names


def test_a_fitted_model_recomputes_nothing_that_is_pinned():
    model, x = inputs()
    expected = model(x)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    free = recomputed(fit(*inputs(), "60%", None))
    assert any(name.startswith("layers.1.mlp") for name in free) and any("softmax" in name for name in free)
    elbowroom.fit(model, "60%", background=False, pins=["keep layers.1.mlp", "never-recompute *softmax*"])
    loss = model(x)
    loss.backward()
    assert torch.equal(loss, expected) and all(map(torch.equal, gradients, [p.grad for p in model.parameters()]))
    report = model.elbowroom.report
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= report.limit_bytes
    found = recomputed(model.elbowroom)
    assert found and not [name for name in found if name.startswith("layers.1.mlp") or "softmax" in name]
    keep, never = report.pins
    # Three tensors of the forward pass, and three gradients of activations and four of parameters in the backward pass.
    assert keep == Pin("keep", "layers.1.mlp", 10, keep.bytes) and keep.bytes > 256 * (128 + 128 + 32) * 4
    assert never.count >= 4 and str(never).startswith("never-recompute *softmax*: ")


def fit(model, x, memory, pins):
    elbowroom.fit(model, memory, background=False, pins=pins)
    model(x).backward()
    return model.elbowroom


def test_pins_hold_in_every_part_of_a_model():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="in parts"):
        fitted = fit(Net(breaks=True), torch.randn(256, 32), "80%", ["never-recompute layers.0", "never-recompute layers.3"])
    assert len(fitted.graphs) == 2 and [pin.count > 0 for pin in fitted.report.pins] == [True, True]
    assert not [name for name in recomputed(fitted) if name.startswith(("layers.0", "layers.3"))]


def test_a_pattern_without_a_match_is_refused():
    model, x = inputs()
    with pytest.raises(elbowroom.UnsupportedError, match=r"`layers.9` matches no tensor and no op; one is called layers.0.query/addmm"):
        fit(model, x, "60%", ["keep layers.9"])
    trace = elbowroom.trace(*inputs())
    with pytest.raises(ValueError, match="`layers.9` matches no op that may be recomputed"):
        elbowroom.plan(trace, "60%", pins="never-recompute layers.9")


def test_what_is_no_pin_is_refused():
    with pytest.raises(ValueError, match="line 2: `evict a` is no pin"):
        parse("keep a\nevict a")
    with pytest.raises(ValueError, match="3 is no pin"):
        parse([3])
    with pytest.raises(elbowroom.UnsupportedError, match="`host` pin is for elbowroom.plan"):
        elbowroom.fit(nn.Linear(2, 2), "60%", pins="host weight")
    with pytest.raises(elbowroom.UnsupportedError, match="takes no pins"):
        elbowroom.fit(nn.Linear(2, 2), "60%", mode="fast", pins="keep *")
    assert parse("# all\n\nkeep a.b # note") == [Pin("keep", "a.b")] == parse([Pin("keep", "a.b", 3, 5)])


@pytest.mark.parametrize("memory", ["60%", "min"])
def test_a_planned_step_obeys_pins(memory):
    model, x = inputs()
    trace = elbowroom.trace(model, x, optimizer=torch.optim.AdamW(model.parameters()))
    machine = elbowroom.Machine(link=25e9)
    pins = "keep layers.2\nhost layers.0.mlp.*.weight\nnever-recompute _softmax"
    plan = elbowroom.plan(trace, memory, machine, evaluations=300, pins=pins)
    assert [pin.count > 0 for pin in plan.pins] == [True] * 3
    assert plan.explain().splitlines()[:3] == [str(pin) for pin in plan.pins]
    named = {line.split()[0]: line.split('"')[1] for line in trace.iteration.text().splitlines() if line.startswith("t") and line[1].isdigit()}
    moved = {named[f"t{number}"] for kind, number, _, _ in plan.native.actions if kind in (OFFLOAD, PREFETCH)}
    assert moved and not [name for name in moved if name.startswith("layers.2")]
    assert {f"layers.0.mlp.{at}.weight" for at in (0, 2)} <= moved
    ops = [line.split('"')[1] for line in trace.iteration.text().splitlines() if line.startswith("op")]
    again = {ops[number] for kind, number, _, _ in plan.native.actions if kind == RECOMPUTE}
    assert not [name for name in again if name.startswith("layers.2") or "_softmax" in name and "backward" not in name]


def test_a_host_pin_needs_a_link():
    model, x = inputs()
    with pytest.raises(ValueError, match="contradicts a plan without offload"):
        elbowroom.plan(elbowroom.trace(model, x), "60%", pins="host layers.0")
