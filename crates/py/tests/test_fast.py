"""``mode="fast"``: Inductor's kernels within the limit, with right gradients. Every test compiles C++, so there are few and they are small."""

import copy
import re

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from loops import WithLoss, adamw, cnn  # noqa: E402
from torch import nn  # noqa: E402


def attention():
    """Without dropout, so that plain execution draws no other random numbers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
    return WithLoss(nn.TransformerEncoder(layer, 2), nn.functional.mse_loss), (torch.randn(8, 24, 16), torch.randn(8, 24, 16))


def gradients(model, args):
    model.zero_grad()
    model(*args).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def farthest(found, exact):
    """The largest difference of a gradient from the exact one, relative to the largest element of the exact one."""
    return max(((one.double() - two).abs().max() / two.abs().max().clamp(min=1e-12)).item() for one, two in zip(found, exact, strict=True))


def assert_within(report):
    assert report.measured_peak_bytes <= report.limit_bytes
    assert report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes
    assert any("numerically different" in note for note in report.notes)


@pytest.mark.parametrize("make", [cnn, attention])
def test_gradients_are_as_near_to_those_of_float64_as_plain_ones(make):
    plain, args = make()
    exact = copy.deepcopy(plain).double()
    # Batch normalization of a constant channel divides by nearly nothing; its bias has a gradient of rounding errors only.
    wanted = gradients(exact, [arg.double() if arg.is_floating_point() else arg for arg in args])
    fitted = copy.deepcopy(plain)
    optimizer, plain_optimizer = adamw(fitted), adamw(plain)
    elbowroom.fit(fitted, "70%", optimizer, mode="fast", evaluations=100)
    found, usual = gradients(fitted, args), gradients(plain, args)
    # Both round in float32, in another order; sums of the same length have errors of the same size.
    scale = [gradient.abs().max() for gradient in wanted]
    small = [index for index, size in enumerate(scale) if size > 1e-6 * max(scale)]
    pick = [[of[index] for index in small] for of in (found, usual, wanted)]
    assert farthest(pick[0], pick[2]) <= 20 * farthest(pick[1], pick[2]) + 1e-6
    for one, two in zip(plain.buffers(), fitted.buffers(), strict=True):
        torch.testing.assert_close(one, two)
    losses = [[], []]
    for kind, (model, its) in enumerate(((fitted, optimizer), (plain, plain_optimizer))):
        for _ in range(4):
            loss = model(*args)
            loss.backward()
            losses[kind].append(loss.item())
            its.step()
            its.zero_grad()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    report = fitted.elbowroom.report
    assert_within(report)
    assert report.recomputed and report.overhead > 0
    assert report.limit_bytes <= 0.7 * report.unlimited_peak_bytes


@pytest.mark.parametrize("memory", ["100%", "72%"])
def test_gradients_with_dropout_agree_with_a_central_difference(memory):
    """Inductor with a budget of 0 draws other masks in the backward pass (pytorch#190758)."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.2))]
    model = WithLoss(nn.Sequential(*layers), nn.functional.mse_loss).double()
    args = torch.randn(256, 32).double(), torch.randn(256, 32).double()
    elbowroom.fit(model, memory, mode="fast", evaluations=100)
    directions = [torch.randn_like(parameter) for parameter in model.parameters()]

    def loss():
        # The same seed draws the same masks in every forward pass.
        torch.manual_seed(3)
        return model(*args)

    loss().backward()
    slope = sum((parameter.grad * direction).sum() for parameter, direction in zip(model.parameters(), directions, strict=True)).item()
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter += step * direction
        values.append(loss().item())
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)
    report = model.elbowroom.report
    assert_within(report)
    assert (memory == "100%") == (report.overhead == 0)


def deep():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (torch.randn(1024, 32), torch.randn(1024, 32))


def test_a_limit_that_cannot_be_held_names_the_smallest_which_every_shape_holds():
    model, (x, y) = deep()
    elbowroom.fit(model, "1KiB", mode="fast", evaluations=50)
    with pytest.raises(elbowroom.InfeasibleError, match=r"the smallest limit for which a plan was found is \d+ bytes .*; there \S+ \(\S+, called at .* decides") as error:
        model(x, y)
    smallest = int(re.search(r"is (\d+) bytes", str(error.value))[1])
    torch._dynamo.reset()
    model, _ = deep()
    elbowroom.fit(model, smallest, mode="fast", evaluations=50)
    for batch in (1024, 512):
        model(x[:batch], y[:batch]).backward()
        model.zero_grad()
    report = model.elbowroom.report
    assert report.graphs == report.plans == 2
    assert_within(report)


def test_what_the_backward_pass_reads_is_not_overwritten_unseen():
    class Shows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            hidden = torch.tanh(self.layer(x))
            return torch.tanh(self.last(hidden)).sum(), hidden, hidden.t()[1:]

    model = elbowroom.fit(Shows(), "100%", mode="fast")
    for number in (1, 2):
        results = model(torch.randn(4, 8))
        with torch.no_grad():
            results[number].mul_(2)
        with pytest.raises(RuntimeError, match="inplace operation"):
            results[0].backward()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(mode="quick"), "the modes are 'exact' and 'fast'"),
        (dict(mode="fast", host="file"), "recomputing only"),
        (dict(mode="fast", host_memory="1GiB"), "recomputing only"),
        (dict(mode="fast", consume_gradients=True), "cannot consume"),
    ],
)
def test_options_that_do_not_fit_the_mode_are_refused(options, reason):
    model, _ = deep()
    with pytest.raises(elbowroom.UnsupportedError, match=reason):
        elbowroom.fit(model, "1GiB", adamw(model), **options)


def test_recurrent_layers_are_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(8, 8, 2, dropout=0.5)

        def forward(self, x):
            return self.rnn(x)[0].sum()

    model = elbowroom.fit(Recurrent(), "1GiB", mode="fast")
    with pytest.raises(elbowroom.UnsupportedError, match=r"a recurrent layer \(lstm\)"):
        model(torch.randn(4, 2, 8))
