"""PyTorch's functions in place of operators: only where they are the same call."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.calls import quickest  # noqa: E402
from loops import adamw, cnn, mlp, train  # noqa: E402
from torch import fx  # noqa: E402

aten = torch.ops.aten


def node(target, *args, **kwargs):
    """A node of a traced graph; tensors among its arguments become placeholders."""
    graph = fx.Graph()

    def placed(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder("x")
        made.meta["val"] = value
        return made

    return graph.call_function(target, tuple(map(placed, args)), {key: placed(value) for key, value in kwargs.items()})


X = torch.randn(4, 4)


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (node(aten.mul.Tensor, X, X), torch.mul),
        (node(aten.mul.Tensor, X, 2.0), torch.mul),
        (node(aten.native_dropout.default, X, 0.1, True), torch.native_dropout),
        (node(aten.view.default, X, [16]), torch.Tensor.view),
        (node(aten.sum.dim_IntList, X, [1], True), torch.sum),
    ],
)
def test_an_equal_call_is_taken(made, function):
    assert quickest(made) is function


@pytest.mark.parametrize(
    "made",
    [
        node(aten.mul.Scalar, X, 2.0),  # torch.mul makes a tensor of the number.
        node(aten.slice.Tensor, X, 0, 0, 2),  # torch has no such function.
        node(aten.split.Tensor, X, 2),  # torch.split is Python.
        node(aten.linear.default, X, X),  # Made of other operators: what follows the first is not seen.
    ],
)
def test_another_call_is_not(made):
    assert quickest(made) is made.target


@pytest.mark.parametrize("make", [mlp, cnn])
def test_most_calls_of_a_step_are_quick(make):
    model, args = make()
    optimizer = adamw(model)
    elbowroom.fit(model, "70%", optimizer, evaluations=300)
    train(model, args, optimizer, 1)
    joint = model.elbowroom.graphs[0].joint
    quick = [made for made, call in joint.calls.items() if call is not made.target]
    assert 2 * len(quick) > len(joint.calls)
