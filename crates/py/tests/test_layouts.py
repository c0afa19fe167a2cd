"""Tensors without memory have the strides that kernels return."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.layouts import OPERATORS, of_kernels  # noqa: E402
from loops import adamw, assert_same, check  # noqa: E402
from schemas import kinds  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

KINDS = {"Tensor": None, "Optional[Tensor]": None, "number": 2, "float": 0.5, "int": 2, "Optional[number]": 0.25, "bool": False, "str": "none"}


def values(*shape):
    return torch.rand(shape) * 0.8 + 0.1


LAYOUTS = {
    "contiguous": lambda: values(3, 5, 7),
    "transposed": lambda: values(3, 7, 5).transpose(1, 2),
    "permuted": lambda: values(7, 3, 5).permute(1, 2, 0),
    "broadcast": lambda: values(5, 1).expand(3, 5, 7),
    "sliced": lambda: values(3, 5, 14)[:, :, ::2],
    "one row": lambda: values(1, 7, 5).transpose(1, 2),
}


def overloads(name):
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, overload) for overload in packet.overloads()]


def stated(func, args):
    with FakeTensorMode() as mode:
        results = tree_leaves(func(*(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)))
    return [(result.shape, result.stride()) for result in results if isinstance(result, torch.Tensor)]


def calls(name):
    """An operator on arguments of every combination of layouts."""
    for func in overloads(name):
        known = kinds(func, KINDS)
        count = len(known or []) and sum("Tensor" in kind for kind in known)
        for layouts in itertools.product(LAYOUTS.values(), repeat=count) if 0 < count < 4 and not func._schema.is_mutable else ():
            tensors = [layout() for layout in layouts]
            if len({tensor.shape for tensor in tensors}) == 1:
                made = iter(tensors)
                yield func, [next(made) if "Tensor" in kind else KINDS[kind] for kind in known]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_stated_strides_are_those_of_the_kernel(name):
    compared = differed = 0
    for func, args in calls(name):
        try:
            results = [result for result in tree_leaves(func(*args)) if isinstance(result, torch.Tensor)]
            before = stated(func, args)
        except Exception:  # noqa: BLE001 - not an operator on these values
            continue
        with of_kernels():
            found = stated(func, args)
        own = [(result.shape, result.stride()) for result in results]
        assert found == own, (func, [getattr(arg, "stride", lambda: arg)() for arg in args])
        compared += 1
        differed += before != own
    assert compared > 0 and differed > 0


class Decays(nn.Module):
    """The gradient of softplus has other strides than PyTorch states, and the gradient of the layer views it."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 2), nn.Parameter(torch.randn(4, 2, 8))

    def forward(self, x):
        return (nn.functional.softplus(self.layer(x)).transpose(1, 2) * self.weight).sum()


def decays():
    torch.manual_seed(0)
    return Decays(), (torch.randn(4, 8, 6),)


@pytest.mark.parametrize("memory", ["100%", "min"])
def test_a_view_of_a_result_with_other_strides_is_planned(memory):
    check(decays, memory)


def test_strides_that_differ_all_the_same_are_named(monkeypatch):
    monkeypatch.setattr("elbowroom.layouts.OPERATORS", set())
    model, args = decays()
    elbowroom.fit(model, "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match=r"aten.softplus_backward.*strides \(16, 1, 8\).*test_layouts\.py:\d+"):
        model(*args).backward()


def segmentation():
    """Its result has its channels innermost, and the gradient of a loss outside of it has them outermost."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Dropout2d(0.1))]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers, nn.Conv2d(32, 5, 1))
    return model, torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last), torch.randint(0, 5, (4, 16, 16))


@pytest.fixture
def one_thread():
    """Sums that several threads share may be equal in both layouts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("memory", ["100%", "70%", "min"])
def test_the_gradient_of_a_result_keeps_the_layout_in_which_it_comes(memory, one_thread):
    results = []
    for fit in (False, True):
        model, x, y = segmentation()
        optimizer = adamw(model)
        if fit:
            elbowroom.fit(model, memory, optimizer=optimizer, evaluations=300, host=None)
        torch.manual_seed(1)
        for _ in range(3):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        results += [model, optimizer]
    assert_same(*results)
    report = model.elbowroom.report
    assert report.measured_peak_bytes <= report.predicted_peak_bytes
