"""In-place writes between forward and backward pass: seen wherever plain execution sees them, and never with other gradients."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from torch import nn  # noqa: E402


class Shows(nn.Module):
    """Returns a loss, and tensors that a function picks from a layer's result, which the backward pass reads."""

    def __init__(self, pick):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last, self.pick = nn.Linear(8, 8), nn.Linear(8, 8), pick

    def forward(self, x):
        hidden = torch.tanh(self.layer(x))
        return (torch.tanh(self.last(hidden)).sum(), *self.pick(self, hidden, x))


PICKS = {
    "a result": lambda model, hidden, x: (hidden,),
    "a view": lambda model, hidden, x: (hidden.view(-1),),
    "a slice": lambda model, hidden, x: (hidden[1:],),
    "a view of a view": lambda model, hidden, x: (hidden.t()[1:],),
    "two views": lambda model, hidden, x: (hidden.t(), hidden[0]),
    "a result and its view": lambda model, hidden, x: (hidden, hidden.t()),
    "a view and its base": lambda model, hidden, x: (hidden[1:], hidden),
    "chunks": lambda model, hidden, x: hidden.chunk(2),
    "unbound": lambda model, hidden, x: hidden.view(4, 2, 4).unbind(1),
    "expanded": lambda model, hidden, x: (hidden[:1].expand(4, 8),),
    "an alias": lambda model, hidden, x: (torch.ops.aten.alias(hidden),),
    "detached": lambda model, hidden, x: (hidden.detach(),),
    "a detached view": lambda model, hidden, x: (hidden.detach()[1:],),
    "a view of .data": lambda model, hidden, x: (hidden.data[1:],),
    "the input": lambda model, hidden, x: (x,),
    "a view of the input": lambda model, hidden, x: (x.t()[1:],),
    "a parameter": lambda model, hidden, x: (model.last.weight,),
    "a view of a parameter": lambda model, hidden, x: (model.last.weight.t(),),
    "a detached view of a parameter": lambda model, hidden, x: (model.last.weight.detach()[1:],),
    "a list of views": lambda model, hidden, x: ([hidden[:1], {"rest": hidden[1:]}],),
}


def _augmented(shown):
    shown[:1] += 1


def _assigned(shown):
    shown[..., 0] = 3.0


WRITES = {
    "nothing": lambda shown: None,
    "mul_": lambda shown: shown.mul_(2),
    "+= on a slice": _augmented,
    "an assigned column": _assigned,
    "out=": lambda shown: torch.add(shown.detach().clone(), 1, out=shown),
    "a view that the caller makes": lambda shown: shown.view(-1)[1:].zero_() if shown.is_contiguous() else shown.t()[1:].zero_(),
    "a detached tensor": lambda shown: shown.detach().mul_(2),
    "_foreach": lambda shown: torch._foreach_mul_([shown], 2.0),
    "copy_": lambda shown: shown.copy_(torch.zeros_like(shown)),
}


def _step(model, write, grad):
    """The gradients, or why there are none."""
    model.zero_grad()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        loss, shown, *_ = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
        with torch.set_grad_enabled(grad):
            write(shown[0] if isinstance(shown, list) else shown)
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]
    except RuntimeError as error:
        return str(error)
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.data = value


@pytest.mark.parametrize(("pick", "memory"), [*((pick, "100%") for pick in PICKS), ("a view", "min"), ("chunks", "min"), ("a view of a parameter", "min")])
def test_no_write_is_missed(pick, memory):
    plain, fitted = Shows(PICKS[pick]), Shows(PICKS[pick])
    elbowroom.fit(fitted, memory, evaluations=50, host=None)
    refused = 0
    for name, write in WRITES.items():
        for grad in (False, True):
            expected, found = _step(plain, write, grad), _step(fitted, write, grad)
            refused += isinstance(found, str)
            if isinstance(expected, str):
                assert isinstance(found, str), f"{name}: plain execution refuses it ({expected})"
            else:
                assert name != "nothing" or not isinstance(found, str), found
            if not isinstance(expected, str) and not isinstance(found, str):
                assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True)), name
    assert refused


def test_what_nobody_overwrites_and_what_the_backward_pass_does_not_read_is_no_error():
    class Tail(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(torch.tanh(self.layer(x)))[1:]

    gradients = []
    for fit in (False, True):
        model = Tail()
        if fit:
            elbowroom.fit(model, "100%")
        result = model(torch.ones(4, 8))
        result.mul_(3)
        result.sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))
