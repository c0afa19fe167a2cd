"""Results that take the bytes of an argument: the same bits in one tensor fewer, and only where nothing else shows these bytes."""

import pytest

torch = pytest.importorskip("torch")

from elbowroom import _native, reusing  # noqa: E402
from elbowroom.joint import Joint  # noqa: E402
from loops import WithLoss, check, cnn, mlp  # noqa: E402
from schemas import kinds  # noqa: E402
from torch import fx, nn  # noqa: E402

aten = torch.ops.aten


def iteration(reuses):
    """Two ops, the second of which reads what the first makes."""
    ops = dict(nanos=[1, 1, 1], workspaces=[0] * 3, flags=[0] * 3, names=["one", "two", "end"], kinds=["op"] * 3)
    return _native.Iteration("two", [8, 8], [[], [0], [1]], [[0], [1], []], **ops, reuses=reuses)


def test_a_plan_reuses_bytes_and_what_keeps_everything_does_not():
    made = iteration([[], [(0, 1)], []])
    assert made.keep().peak_bytes == 16
    planned = made.plan(8)
    assert planned.peak_bytes == 8
    launches = {number: (reads, writes) for kind, number, reads, writes in planned.actions if kind == 0}
    assert launches[1][0] == launches[1][1]
    with pytest.raises(_native.InfeasibleError):
        iteration(None).plan(8)


@pytest.mark.parametrize("reuses", [[[]], [[], [(1, 0)], []], [[], [(0, 7)], []]])
def test_pairs_that_are_no_reuse_are_refused(reuses):
    with pytest.raises(ValueError):
        iteration(reuses)


def fitting(op, tensors):
    """A node that calls an operator on these tensors, and the positions of the arguments whose bytes its result may take."""
    graph = fx.Graph()
    given = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in given:
            given[id(tensor)] = graph.placeholder(f"x{len(given)}")
            given[id(tensor)].meta["val"] = tensor
    node = graph.call_function(op, tuple(given.get(id(tensor), tensor) for tensor in tensors))
    node.meta["val"] = op(*tensors)
    return node, [list(given.values()).index(argument) for argument in reusing.reusable(node)]


def pointwise():
    """Every pointwise operator that takes only tensors and numbers and has a form that writes into given bytes."""
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) and not name.endswith("_") else ():
            target = getattr(packet, overload)
            if torch.Tag.pointwise in target.tags and not target._schema.is_mutable and reusing._into(target, "CPU"):
                yield target


NUMBERS = {"Tensor": None, "number": 2, "float": 0.5, "int": 2, "Optional[number]": 0.25, "Optional[Tensor]": None, "bool": False}


def arguments(target, layout):
    """Arguments of an operator, or ``None`` if no values are known for one of them."""
    found = kinds(target, NUMBERS)
    if found is None:
        return None
    return [layout(torch.rand(3, 5, 7, 33) * 0.8 + 0.1) if kind == "Tensor" else NUMBERS[kind] for kind in found]


def contiguous(tensor):
    return tensor


def channels_last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def transposed(tensor):
    return tensor.transpose(0, 2).contiguous().transpose(0, 2)


@pytest.mark.parametrize("layout", [contiguous, channels_last, transposed])
def test_every_operator_writes_the_same_bits_into_an_argument(layout):
    torch.manual_seed(0)
    tried = 0
    for target in pointwise():
        args = arguments(target, layout)
        if args is None:
            continue
        try:
            expected = target(*args)
        except RuntimeError:
            continue  # Of whole numbers only, or of other shapes.
        node, positions = fitting(target, args)
        for position in positions:
            own = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            taken = [arg for arg in own if isinstance(arg, torch.Tensor)][position]
            into, keyword = reusing.form(node)
            result = into(*own, **({keyword: taken} if keyword else {}))
            assert result.data_ptr() == taken.data_ptr(), target
            assert torch.equal(taken.view(torch.int32), expected.view(torch.int32)), target
            assert taken.stride() == expected.stride(), target
            tried += 1
    assert tried > 100


def test_bytes_are_not_reused_where_another_argument_shows_them_otherwise():
    x = torch.rand(4, 4)
    assert fitting(aten.add.Tensor, (x, torch.rand(4, 4)))[1] == [0, 1]
    assert fitting(aten.add.Tensor, (x, x))[1] == [0]
    assert fitting(aten.add.Tensor, (x, x.t()))[1] == []
    assert fitting(aten.relu.default, (x,))[1] == [0]
    # Another type, another shape, part of a storage, a random result, and an operator that is not pointwise.
    assert fitting(aten.gt.Scalar, (x, 0))[1] == []
    assert fitting(aten.add.Tensor, (torch.rand(4), x))[1] == [1]
    assert fitting(aten.relu.default, (torch.rand(8, 4)[:4],))[1] == []
    assert fitting(aten.bernoulli.p, (x, 0.5))[1] == []
    assert fitting(aten.mm.default, (x, torch.rand(4, 4)))[1] == []


class Residual(nn.Module):
    """Sums, activations and views of what they read."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = (x + torch.sigmoid(layer(x)).view(-1, 8, 8).tanh().view(-1, 64)) * 0.5
        return self.last(x)


def residual():
    torch.manual_seed(0)
    return WithLoss(Residual(), nn.functional.cross_entropy), (torch.randn(512, 64), torch.randint(0, 10, (512,)))




@pytest.mark.parametrize("host", [None, "file"])
@pytest.mark.parametrize("make", [mlp, cnn, residual])
@pytest.mark.parametrize("memory", ["70%", "min"])
def test_a_step_within_a_limit_reuses_bytes_and_keeps_its_bits(make, memory, host, monkeypatch):
    written = []
    original = Joint.reuses

    def reuses(joint, op):
        found = original(joint, op)
        written.append(bool(found))
        return found

    monkeypatch.setattr(Joint, "reuses", reuses)
    with_reuse, _ = check(make, memory, host=host)
    assert any(written)
    if memory == "min" and host is None:
        monkeypatch.setattr(Joint, "reuses", lambda joint, op: {})
        without, _ = check(make, memory, host=host)
        assert with_reuse.predicted_peak_bytes <= without.predicted_peak_bytes
