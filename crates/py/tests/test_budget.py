"""The comparison with PyTorch's activation memory budget: its meter on fake tensors counts what an independent meter counts on real ones."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytest.importorskip("networkx")

import elbowroom  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "bench"))

import budget  # noqa: E402
import networks  # noqa: E402


class Real(elbowroom.Meter):
    """The package's meter with the interface of the comparison's."""

    nanos = 0

    def add(self, values):
        self.bytes.add(*(leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)))


def small():
    torch.manual_seed(0)
    args = torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))
    return networks.UNet(widths=(8, 16, 32)), args


def decoder():
    torch.manual_seed(0)
    return networks.Gpt2(vocabulary=500, width=32, depth=2, heads=4, length=16), (torch.randint(0, 500, (4, 16)), torch.randint(0, 500, (4, 16)))


@pytest.mark.parametrize("make", [small, decoder])
def test_fake_and_real_tensors_have_one_peak(make, monkeypatch):
    torch.set_num_threads(1)
    captured = budget.Captured(*make())
    middle = captured.iteration.plan(captured.iteration.keep().peak_bytes * 6 // 10, evaluations=300)
    ways = {
        "plain": lambda: budget.eager(make),
        "checkpointed": lambda: budget.eager(make, checkpointed=True),
        "budget": lambda: budget.budget(captured, 0.3),
        "planned": lambda: budget.planned(captured, middle),
    }
    with budget.fake():
        fake = {way: run() for way, run in ways.items()}
    monkeypatch.setattr(budget, "Watch", Real)
    assert {way: watch.peak for way, watch in fake.items()} == {way: run().peak for way, run in ways.items()}
    # What the schedule predicts is what runs.
    assert fake["planned"].peak == captured.base + middle.peak_bytes
    assert fake["planned"].nanos == pytest.approx(middle.nanos, rel=1e-3, abs=5)


def test_a_smaller_budget_can_raise_the_peak_and_a_smaller_limit_cannot():
    captured = budget.Captured(*small())
    with budget.fake():
        budgets = [budget.budget(captured, share).peak for share in (1.0, 0.5, 0.0)]
    assert budgets[1] < budgets[2]
    curve = budget.Curve(captured, 300)
    assert curve.falls() and len(curve.points) == len(budget.STEPS)
