"""The gradient of a cross entropy, computed some rows at a time."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom import rewrite  # noqa: E402
from elbowroom.rewrite import cross_entropy_backward  # noqa: E402
from loops import WithLoss, check  # noqa: E402
from torch import nn  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_groups_of_rows_have_the_bits_of_the_whole(reduction, weighted, rows, dtype):
    torch.manual_seed(0)
    logarithms = torch.randn(150, 333, dtype=dtype).log_softmax(1)
    target = torch.randint(0, 333, (150,))
    target[::5] = -100
    weight = torch.rand(333, dtype=dtype) if weighted else None
    gradient = torch.randn(150 if reduction == 0 else (), dtype=dtype)
    _, total = aten.nll_loss_forward.default(logarithms, target, weight, reduction, -100)
    arguments = gradient, logarithms, target, weight, reduction, -100, total
    whole = aten._log_softmax_backward_data.default(aten.nll_loss_backward.default(*arguments), logarithms, 1, dtype)
    assert torch.equal(cross_entropy_backward(*arguments, logarithms, rows), whole)


def language(**options):
    """A model whose logits are most of its bytes: 4 groups of rows."""

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(4096, 16), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4096), nn.Flatten(0, 1))
        ids = torch.randint(0, 4096, (8, 128))
        return WithLoss(model, nn.CrossEntropyLoss(**options)), (ids, ids.flatten())

    return make


@pytest.mark.parametrize("options", [{}, {"ignore_index": 3}, {"label_smoothing": 0.1}, {"reduction": "sum"}], ids=str)
def test_training_keeps_its_bits(options):
    for limit in ("100%", "min"):
        check(language(**options), limit, host=None)


def test_the_largest_op_is_smaller(monkeypatch):
    grouped = check(language(), "100%", host=None)[0].unlimited_peak_bytes
    monkeypatch.setattr(rewrite, "_GROUPS", 1)
    torch._dynamo.reset()
    whole = check(language(), "100%", host=None)[0].unlimited_peak_bytes
    assert whole - grouped > 8 * 128 * 4096 * 4 // 2  # half of a matrix


def test_other_uses_of_the_logarithms_are_left_alone():
    """A model that returns them, or whose loss reads them twice, has the bits of before."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 4096)

        def forward(self, x, y):
            logarithms = self.layer(x).log_softmax(-1)
            return nn.functional.nll_loss(logarithms, y) + nn.functional.nll_loss(logarithms, y.flip(0)) + logarithms.square().mean()

    def make():
        torch.manual_seed(0)
        return Twice(), (torch.randn(1024, 16), torch.randint(0, 4096, (1024,)))

    for limit in ("100%", "min"):
        check(make, limit, host=None)


def test_traces_have_the_smaller_op():
    model, args = language()()
    traced = elbowroom.trace(model, *args)
    assert traced.iteration.largest_op()[0] != "_log_softmax_backward_data"
