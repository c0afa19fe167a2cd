"""``fit``: equal bits, and peaks that hold."""

import copy
import io
import re

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from loops import WithLoss, adamw, assert_same, assert_same_gradients, check, check_accumulation, check_autocast, cnn, mlp, train  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize("memory", ["100%", "85%", "70%", "min"])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_bits_and_peak(make, memory):
    report, _ = check(make, memory, host=None)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert report.graphs == report.plans == 1
    assert report.offloaded_bytes == 0
    assert (report.recomputed > 0) == (memory != "100%")
    assert (report.overhead > 0) == (memory != "100%")


def test_nothing_recomputed_is_what_a_meter_sees_to_the_byte():
    report, meter = check(mlp, "100%")
    assert meter.peak == report.predicted_peak_bytes == report.unlimited_peak_bytes


def test_a_smaller_limit_never_raises_the_peak():
    peaks = []
    for share in (100, 90, 80, 70):
        torch._dynamo.reset()
        peaks.append(check(cnn, f"{share}%", steps=1)[0].measured_peak_bytes)
    assert peaks == sorted(peaks, reverse=True)


def test_gradients_agree_with_a_central_difference_with_dropout_on():
    torch.manual_seed(0)
    # Smooth activations: a difference across a kink would be no derivative.
    layers = [layer for _ in range(5) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.2))]
    model = WithLoss(nn.Sequential(*layers), nn.functional.mse_loss).double()
    x, y = torch.randn(256, 32).double(), torch.randn(256, 32).double()
    directions = [torch.randn_like(p) for p in model.parameters()]
    for memory in ("100%", "80%", "60%", "min"):
        torch._dynamo.reset()
        fitted = elbowroom.fit(copy.deepcopy(model), memory, evaluations=300)
        torch.manual_seed(3)
        fitted(x, y).backward()
        slope = sum((p.grad * d).sum() for p, d in zip(fitted.parameters(), directions)).item()

        def loss_at(step):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for parameter, direction in zip(moved.parameters(), directions):
                    parameter += step * direction
            torch.manual_seed(3)
            return moved(x, y).item()

        difference = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
        assert slope == pytest.approx(difference, rel=1e-6)


def test_gradients_are_accumulated_as_without_a_limit():
    check_accumulation("70%")


def test_two_forward_passes_before_one_backward_pass():
    plain, args = mlp()
    fitted, _ = mlp()
    elbowroom.fit(fitted, "90%", evaluations=300)
    for model in (plain, fitted):
        torch.manual_seed(1)
        (model(*args) * 2 + model(*args)).backward()
    assert_same_gradients(plain, fitted)


def test_autocast():
    check_autocast(mlp, "70%")


def test_checkpointing_inside_the_model_is_planned_through():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, _ = mlp()

        def forward(self, x, y):
            hidden = torch.utils.checkpoint.checkpoint(self.inner.model[:9], x, use_reentrant=False)
            return self.inner.loss(self.inner.model[9:](hidden), y)

    def make():
        _, args = mlp()
        return Checkpointed(), args

    check(make, "80%")


def test_a_criterion_outside_of_the_model():
    plain, (x, y) = mlp()
    fitted, _ = mlp()
    elbowroom.fit(fitted.model, "80%", evaluations=300)
    for model in (plain.model, fitted.model):
        torch.manual_seed(1)
        nn.functional.cross_entropy(model(x), y).backward()
    assert_same_gradients(plain, fitted)


def test_evaluation_without_gradients():
    plain, args = cnn()
    fitted, _ = cnn()
    elbowroom.fit(fitted, "70%", evaluations=300)
    for model in (plain, fitted):
        model.eval()
    with torch.no_grad():
        assert torch.equal(plain(*args), fitted(*args))


def test_every_shape_has_a_plan():
    fitted, (x, y) = mlp()
    elbowroom.fit(fitted, "80%", evaluations=100)
    for batch in (512, 256, 512):
        fitted(x[:batch], y[:batch]).backward()
        fitted.zero_grad()
    assert fitted.elbowroom.report.plans == 2


def test_the_model_saves_as_it_is():
    plain, _ = mlp()
    fitted, args = mlp()
    elbowroom.fit(fitted, "80%", evaluations=100)
    fitted(*args).backward()
    assert list(plain.state_dict()) == list(fitted.state_dict())
    file = io.BytesIO()
    torch.save(fitted.state_dict(), file)
    file.seek(0)
    plain.load_state_dict(torch.load(file))


def test_an_infeasible_limit_names_the_smallest_that_works():
    fitted, args = cnn()
    elbowroom.fit(fitted, "20%", evaluations=100)
    with pytest.raises(elbowroom.InfeasibleError, match="no schedule .* at once|no schedule was found") as error:
        fitted(*args)
    smallest = int(re.search(r"the smallest limit for which a plan was found is (\d+) bytes", str(error.value))[1])
    torch._dynamo.reset()
    fitted, args = cnn()
    elbowroom.fit(fitted, smallest, evaluations=300)
    fitted(*args).backward()
    assert fitted.elbowroom.report.measured_peak_bytes <= smallest


def test_a_limit_below_the_parameters_says_so():
    fitted, args = mlp()
    elbowroom.fit(fitted, 1000)
    with pytest.raises(elbowroom.InfeasibleError, match="by themselves"):
        fitted(*args)


@pytest.mark.parametrize("memory", ["lots", "-3GiB", 0, "0%", True])
def test_sizes_that_are_none(memory):
    with pytest.raises(ValueError):
        elbowroom.fit(nn.Linear(1, 1), memory)


def test_a_second_backward_pass_is_refused():
    fitted, args = mlp()
    elbowroom.fit(fitted, "80%", evaluations=100)
    loss = fitted(*args)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


def test_a_parameter_overwritten_before_the_backward_pass_is_an_error_as_without_a_limit():
    fitted, args = mlp()
    elbowroom.fit(fitted, "80%", evaluations=100)
    loss = fitted(*args)
    with torch.no_grad():
        fitted.model[3].weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_a_result_overwritten_before_the_backward_pass_is_an_error_as_without_a_limit():
    class Result(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.tanh(self.layer(x))

    model = elbowroom.fit(Result(), "100%")
    result = model(torch.randn(4, 8))
    with torch.no_grad():
        result.mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation: a result"):
        result.sum().backward()


def test_a_result_that_is_made_again_is_read_from_the_caller_later():
    class Maps(nn.Module):
        """Its result is an early tensor that later layers read through views."""

        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 16, 3, padding=1)
            self.rest = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))

        def forward(self, x):
            result = hidden = torch.tanh(self.first(x))
            for layer in self.rest:
                hidden = torch.tanh(layer(hidden) + result.transpose(2, 3).contiguous() * result)
            return hidden.mean(), result

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.maps = Maps()

        def forward(self, x):
            loss, self.result = self.maps(x)
            return loss

    for memory in ("90%", "min"):
        torch._dynamo.reset()
        check(lambda: (Loss(), (torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)),)), memory, steps=2)


def test_a_forward_pass_whose_result_is_dropped_frees_what_it_kept():
    fitted, args = mlp()
    elbowroom.fit(fitted, "80%", evaluations=100)
    loss = fitted(*args)
    graph = fitted.elbowroom.graphs[0]
    assert len(graph.contexts) == 1
    del loss
    assert not graph.contexts


def test_a_step_that_pytorch_does_not_capture_is_refused():

    fitted, args = mlp()
    elbowroom.fit(fitted, "80%")
    with torch._dynamo.config.patch(disable=True), pytest.raises(elbowroom.UnsupportedError, match="without capturing"):
        fitted(*args)


def test_ranks_plan_alike():
    programs = []
    for _ in range(2):
        torch._dynamo.reset()
        fitted, args = cnn()
        elbowroom.fit(fitted, "70%", evaluations=300)
        fitted(*args).backward()
        programs.append(fitted.elbowroom.graphs[0].program.source)
    assert programs[0] == programs[1]


def test_a_kernel_that_returns_more_bytes_than_pytorch_states_is_planned_for():
    def make():
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
        model = WithLoss(nn.Sequential(*layers), nn.functional.mse_loss)
        return model, (torch.randn(512, 64), torch.randn(512, 64))

    report, meter = check(make, "60%")
    assert meter.peak == report.measured_peak_bytes == report.predicted_peak_bytes
    assert "more bytes than PyTorch states" in report.notes[0]
    # After one step the figures are those of that step.
    torch._dynamo.reset()
    model, args = make()
    elbowroom.fit(model, "60%", evaluations=50)(*args).backward()
    first = model.elbowroom.report
    assert first.predicted_peak_bytes and first.unlimited_peak_bytes and f"measured {first.measured_peak_bytes} bytes" in first.notes[0]


def test_an_old_pytorch_is_refused_and_an_untested_one_is_noted(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(elbowroom.VersionError, match="2.12 or later; this is 2.4.1"):
        elbowroom.fit(nn.Linear(1, 1), "70%")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert "this is 2.99.0" in elbowroom.fit(nn.Linear(1, 1), "70%").elbowroom.report.notes[0]


class Parts(nn.Module):
    """A model that PyTorch captures in three graphs, without tensors between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (mlp()[0].model[:12] for _ in range(3))
        self.last = nn.Linear(64, 10)

    def forward(self, x, y):
        hidden = self.first(x)
        torch._dynamo.graph_break()
        hidden = self.second(hidden)
        torch._dynamo.graph_break()
        return nn.functional.cross_entropy(self.last(self.third(hidden)), y)


@pytest.mark.parametrize("memory", ["100%", "90%", "min"])
def test_graphs_share_a_limit(memory):
    def make():
        _, args = mlp()
        return Parts(), args

    with pytest.warns(UserWarning, match="in parts"):
        report, _ = check(make, memory)
    assert report.graphs == 3


def test_ops_with_gradients_between_graphs_are_refused():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

        @torch._dynamo.disable
        def between(self, x):
            return torch.tanh(x)

        def forward(self, x):
            return self.last(self.between(self.first(x))).sum()

    model = elbowroom.fit(Hidden(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match="aten.tanh.default outside of the captured graphs"):
        model(torch.randn(4, 8, 16))


def test_a_function_with_its_own_backward_pass_between_graphs_is_refused():
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return torch.cat([gradient * x for _ in range(64)])[: len(x)] * 2

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

        @torch._dynamo.disable
        def between(self, x):
            return Squared.apply(x)

        def forward(self, x):
            return self.last(self.between(self.first(x))).sum()

    model = elbowroom.fit(Hidden(), "1GiB")
    with pytest.raises(elbowroom.UnsupportedError, match="Squared outside of the captured graphs"):
        model(torch.randn(4, 8, 16))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Upsample(scale_factor=2, mode="nearest-exact"),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(scale_factor=2, mode="bicubic"),
        nn.Hardshrink(),
        nn.Softshrink(),
    ],
    ids=repr,
)
def test_kernels_are_those_of_plain_execution(layer):
    """PyTorch traces these as other operators, which forget the layout and round differently."""

    def make():
        torch.manual_seed(0)
        first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        model = nn.Sequential(first, layer, last, nn.GroupNorm(4, 8), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
        images = torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last)
        return WithLoss(model, nn.functional.cross_entropy), (images, torch.randint(0, 10, (4,)))

    check(make, "100%", steps=2)
    joint = make()[0]
    elbowroom.fit(joint, "100%", evaluations=100)
    joint(*make()[1]).backward()
    kinds = {str(made.target) for made in joint.elbowroom.graphs[0].joint.op_of}
    assert not any("index" in kind or "where" in kind for kind in kinds), kinds


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(16, 16, batch_first=True, **options)
        self.last = nn.LazyLinear(8)
        self.last(self.rnn(torch.randn(1, 2, 16))[0])

    def forward(self, x):
        return self.last(self.rnn(x)[0]).square().mean()


@pytest.mark.parametrize("memory", ["100%", "70%"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm(memory, bidirectional):
    def make():
        model = Recurrent(nn.LSTM, num_layers=3, dropout=0.1, bidirectional=bidirectional)
        return model, (torch.randn(16, 32, 16),)

    report, _ = check(make, memory)
    assert report.graphs == 1
    assert (report.recomputed > 0) == (memory != "100%")


@pytest.mark.parametrize(("kind", "reason"), [(nn.GRU, "torch.gru"), (nn.RNN, "torch.rnn_tanh"), (nn.LSTM, "without bias")])
def test_recurrent_layers_that_are_refused(kind, reason):
    model = elbowroom.fit(Recurrent(kind, bias=kind is not nn.LSTM), "80%")
    with pytest.raises(elbowroom.UnsupportedError, match=reason):
        model(torch.randn(4, 8, 16))


def test_an_associative_scan_is_refused():
    from torch._higher_order_ops.associative_scan import associative_scan

    class Scan(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return associative_scan(lambda a, b: a * b, self.layer(x), dim=1, combine_mode="generic").sum()

    model = elbowroom.fit(Scan(), "80%")
    with pytest.raises(elbowroom.UnsupportedError, match="associative scan"):
        model(torch.randn(4, 8, 8))


def test_a_message_in_the_model_does_not_end_the_capture():
    import logging

    class Talks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()[0]

        def forward(self, x, y):
            logging.getLogger("talks").warning("hello")
            return self.inner(x, y)

    report, _ = check(lambda: (Talks(), mlp()[1]), "80%")
    assert report.graphs == 1


@pytest.mark.parametrize("memory", ["100%", "70%", "min"])
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("optimizer", [adamw, lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1)])
def test_consumed_gradients(make, memory, optimizer):
    check(make, memory, optimizer, consume_gradients=True)


def test_consumed_gradients_lower_the_smallest_limit():
    def wide():
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU())]
        return WithLoss(nn.Sequential(*layers, nn.Linear(128, 10)), nn.functional.cross_entropy), (torch.randn(32, 128), torch.randint(0, 10, (32,)))

    smallest = []
    for consume in (False, True):
        torch._dynamo.reset()
        smallest.append(check(wide, "min", consume_gradients=consume, host=None)[0].predicted_peak_bytes)
    assert smallest[1] < 0.9 * smallest[0]


def test_loops_that_consumed_gradients_would_change_are_refused():
    model, args = mlp()
    optimizer = adamw(model)
    elbowroom.fit(model, "100%", optimizer, consume_gradients=True)
    model(*args).backward()
    with pytest.raises(elbowroom.UnsupportedError, match="accumulated"):
        model(*args).backward()
    with pytest.raises(elbowroom.UnsupportedError, match="may not treat every parameter by itself"):
        elbowroom.fit(mlp()[0], "100%", torch.optim.LBFGS(model.parameters()), consume_gradients=True)
    torch._dynamo.reset()
    model, args = mlp()
    optimizer = adamw(model)
    elbowroom.fit(model, "100%", optimizer, consume_gradients=True)
    (model(*args) + sum(p.square().sum() for p in model.parameters())).backward()
    with pytest.raises(elbowroom.UnsupportedError, match="second gradient"):
        optimizer.step()
