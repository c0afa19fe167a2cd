"""The host tier in a file: equal bits and peaks that hold, and its own space."""

import gc
import io
import os
import random
import weakref

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.tier import FileTier, TierError  # noqa: E402
from loops import WithLoss, adamw, assert_same, assert_same_gradients, check, check_accumulation, cnn, mlp, train  # noqa: E402
from torch import nn  # noqa: E402


def tier_of(model):
    return model.elbowroom.tier


def check_later(make, memory, optimizer=adamw, steps=4, **options):
    """As `check`, for limits below the bytes of the parameters, which are in memory when the first step begins: the meter begins after it."""
    plain, args = make()
    plain_optimizer = optimizer(plain)
    losses = train(plain, args, plain_optimizer, 1) + train(plain, args, plain_optimizer, steps)
    fitted, args = make()
    fitted_optimizer = optimizer(fitted)
    elbowroom.fit(fitted, memory, optimizer=fitted_optimizer, evaluations=300, **options)
    found = train(fitted, args, fitted_optimizer, 1)
    state = [leaf for state in fitted_optimizer.state.values() for leaf in state.values()]
    with elbowroom.Meter(fitted.parameters(), fitted.buffers(), args, state) as meter:
        found += train(fitted, args, fitted_optimizer, steps)
    assert found == losses
    assert_same(plain, plain_optimizer, fitted, fitted_optimizer)
    report = fitted.elbowroom.report
    assert meter.peak <= report.predicted_peak_bytes <= report.limit_bytes
    assert report.measured_peak_bytes <= report.predicted_peak_bytes
    return fitted, meter


@pytest.mark.parametrize("memory", ["80%", "50%", "min"])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_bits_and_peak(make, memory, tmp_path):
    report, meter = check(make, memory, host="file")
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert report.offloaded_bytes or report.recomputed
    if memory == "min":
        assert report.offloaded_bytes


def test_the_file_makes_smaller_limits_feasible():
    peaks = []
    for host in (None, "file"):
        torch._dynamo.reset()
        peaks.append(check(mlp, "min", host=host)[0].predicted_peak_bytes)
    assert peaks[1] < 0.9 * peaks[0]


def test_unasked_the_file_serves_only_where_recomputing_is_not_enough():
    smallest = check(mlp, "min", host=None)[0].predicted_peak_bytes
    torch._dynamo.reset()
    assert check(mlp, smallest)[0].offloaded_bytes == 0
    torch._dynamo.reset()
    assert check(mlp, int(0.9 * smallest))[0].offloaded_bytes > 0
    torch._dynamo.reset()
    model, args = mlp()
    elbowroom.fit(model, int(0.9 * smallest), optimizer=adamw(model), host=None)
    with pytest.raises(elbowroom.InfeasibleError, match="the smallest limit for which a plan was found"):
        model(*args)


def test_a_model_whose_parameters_lie_in_the_file_ends():
    model, args = mlp()
    optimizer = adamw(model)
    elbowroom.fit(model, "min", optimizer=optimizer, host="file")
    train(model, args, optimizer, 2)
    assert any(elbowroom.tier.mapped(parameter) is not None for parameter in model.parameters())
    parameter, tier = weakref.ref(next(model.parameters())), weakref.ref(tier_of(model))
    del model, optimizer
    torch._dynamo.reset()
    gc.collect()
    assert parameter() is None and tier() is None, "the file's space is free again"


def random_model(seed):
    """Layers of random kinds and widths, with residual connections, dropout and batch normalization."""
    rng = random.Random(seed)
    torch.manual_seed(seed)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.norm = rng.choice([nn.LayerNorm(width), nn.BatchNorm1d(width)])
            self.act = rng.choice([nn.GELU(), nn.ReLU(), nn.Tanh(), nn.SiLU()])
            self.drop = nn.Dropout(rng.choice([0.0, 0.1, 0.5]))
            self.residual = rng.random() < 0.7

        def forward(self, x):
            made = self.drop(self.last(self.act(self.first(self.norm(x)))))
            return x + made if self.residual else made

    width = rng.choice([48, 64, 96])
    model = nn.Sequential(*[Block(width) for _ in range(rng.randint(3, 6))], nn.Linear(width, 10))
    batch = rng.choice([64, 256])
    return WithLoss(model, nn.functional.cross_entropy), (torch.randn(batch, width), torch.randint(0, 10, (batch,)))


@pytest.mark.parametrize("seed", range(6))
def test_random_models_and_limits(seed):
    smallest = check_later(lambda: random_model(seed), "min", host="file", steps=2)[0].elbowroom.report
    torch._dynamo.reset()
    limit = random.Random(seed).randint(smallest.predicted_peak_bytes, smallest.unlimited_peak_bytes)
    check_later(lambda: random_model(seed), limit, host="file", steps=3)


@pytest.mark.parametrize("memory", ["90%", "min"])
def test_graphs_share_a_limit(memory):
    from test_fit import Parts

    with pytest.warns(UserWarning, match="in parts"):
        report, _ = check(lambda: (Parts(), mlp()[1]), memory, host="file")
    assert report.graphs == 3


def test_accumulation():
    report = check_accumulation("45%", host="file")
    assert report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes


def test_two_forward_passes_before_one_backward_pass():
    plain, args = cnn()
    fitted, _ = cnn()
    elbowroom.fit(fitted, "80%", evaluations=300, host="file")
    for model in (plain, fitted):
        torch.manual_seed(1)
        (model(*args) * 2 + model(*args)).backward()
    assert_same_gradients(plain, fitted)


def test_a_dropped_forward_pass_frees_its_space_in_the_file():
    model, args = cnn()
    elbowroom.fit(model, "min", evaluations=200, host="file")
    loss = model(*args)
    tier = tier_of(model)
    tier._join()
    assert tier.used > 0
    del loss
    gc.collect()
    before = tier.size
    for _ in range(5):
        model(*args).backward()
        model.zero_grad()
    assert tier.size == before


# --- parameters, optimizer state and gradients ------------------------------------------------------------------------------------------------


def wide():
    """A model whose bytes are mostly parameters."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1))]
    return WithLoss(nn.Sequential(*layers, nn.Linear(128, 10)), nn.functional.cross_entropy), (torch.randn(32, 128), torch.randint(0, 10, (32,)))


OPTIMIZERS = {
    "adamw": adamw,
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, weight_decay=0.1),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "nadam": lambda model: torch.optim.NAdam(model.parameters()),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), momentum=0.5, centered=True),
    "groups": lambda model: torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim == k], "lr": k * 1e-3} for k in (1, 2)]),
}


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_leave_memory_with_their_state(optimizer, consume):
    fitted, _ = check_later(wide, "min", OPTIMIZERS[optimizer], consume_gradients=consume)
    report = fitted.elbowroom.report
    parameters = sum(p.numel() * p.element_size() for p in fitted.parameters())
    assert report.limit_bytes < 0.75 * parameters
    assert "parameters" in report.notes[0]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [4096 * 5, 300_001])
def test_updates_of_pieces_have_the_bits_of_whole_updates(count, threads):
    torch.set_num_threads(threads)
    from elbowroom.persist import Persistent

    for make in OPTIMIZERS.values():
        models = []
        for _ in range(2):
            torch.manual_seed(0)
            model = nn.Module()
            model.weight = nn.Parameter(torch.randn(count, 1))
            models.append((model, make(model)))
        (plain, plain_optimizer), (filed, filed_optimizer) = models
        persistent = Persistent(filed, filed_optimizer, FileTier())
        persistent.piece = 8192
        for step in range(3):
            gradient = torch.randn(count, 1)
            for model in (plain, filed):
                model.weight.grad = gradient.clone()
            if step == 1:
                persistent.adopt(True, False)
            plain_optimizer.step()
            filed_optimizer.step()
        assert_same(plain, plain_optimizer, filed, filed_optimizer)


def test_a_limit_between_uses_the_least_that_is_needed():
    notes = []
    for share in (100, 40, 15):
        torch._dynamo.reset()
        fitted, _ = check_later(wide, f"{share}%")
        notes.append("".join(fitted.elbowroom.report.notes))
    assert notes[0] == "" and "gradients" not in notes[1] and "gradients" in notes[2]


def test_a_loop_may_clip_read_replace_and_save_what_is_in_the_file(tmp_path):
    def loop(model, args, optimizer):
        torch.manual_seed(1)
        norms = []
        for step in range(5):
            for _ in range(2):
                model(*args).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=step != 3)
            if step == 2:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                file.seek(0)
                saved = torch.load(file)
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            if step == 3:
                with torch.no_grad():
                    model.model[0].weight.mul_(0.5)
                model.model[3].weight.data = model.model[3].weight.detach() + 1
        return norms

    plain, args = wide()
    plain_optimizer = adamw(plain)
    fitted, _ = wide()
    fitted_optimizer = adamw(fitted)
    elbowroom.fit(fitted, "min", optimizer=fitted_optimizer, evaluations=200)
    assert loop(plain, args, plain_optimizer) == loop(fitted, args, fitted_optimizer)
    assert_same(plain, plain_optimizer, fitted, fitted_optimizer)
    assert "gradients" in fitted.elbowroom.report.notes[0]


def test_closures_are_refused_where_parameters_lie_in_the_file():
    model, args = wide()
    optimizer = adamw(model)
    elbowroom.fit(model, "30%", optimizer=optimizer, evaluations=200)
    model(*args).backward()
    with pytest.raises(elbowroom.UnsupportedError, match="closure"):
        optimizer.step(lambda: model(*args))


# --- the file itself ----------------------------------------------------------------------------------------------------------------------


def test_values_come_back_with_their_shape_and_strides(tmp_path):
    tier = FileTier(tmp_path)
    assert not os.listdir(tmp_path), "a crash would leave nothing"
    for tensor in (torch.randn(300, 700).t(), torch.randint(0, 9, (5,), dtype=torch.int8), torch.randn(64, 64)[3:9, ::2], torch.randn(3).bfloat16()):
        copy = tier.offload(tensor, tensor[1:])
        copy.wait()
        (whole, part), future = tier.prefetch(copy)
        future.result()
        assert whole.stride() == tensor.stride() and torch.equal(whole, tensor) and torch.equal(part, tensor[1:])
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_space_is_used_again():
    tier, rng = FileTier(), random.Random(0)
    alive = []
    for _ in range(300):
        if alive and (len(alive) > 20 or rng.random() < 0.4):
            tensor, copy = alive.pop(rng.randrange(len(alive)))
            made, future = tier.prefetch(copy)
            future.result()
            assert torch.equal(made, tensor)
        else:
            tensor = torch.randn(rng.randint(1, 100_000))
            alive.append((tensor, tier.offload(tensor)))
    for tensor, copy in alive:
        copy.wait()
    del alive, tensor, copy
    tier._join()
    assert tier.used == 0 and tier._free == [[0, tier.size]] and tier.size <= 64 << 20


def test_a_full_tier_and_folders_that_cannot_hold_it_are_named(tmp_path):
    tier = FileTier(tmp_path, capacity=1 << 20)
    with pytest.raises(TierError, match="may hold 1048576 bytes"):
        tier.offload(torch.empty(2 << 20, dtype=torch.uint8))
    with pytest.raises(TierError, match="is no folder"):
        elbowroom.fit(nn.Linear(1, 1), "70%", folder=tmp_path / "missing")
    if os.path.isdir("/dev/shm"):
        with pytest.raises(TierError, match="are memory"):
            elbowroom.fit(nn.Linear(1, 1), "70%", folder="/dev/shm")
    with pytest.raises(ValueError, match="no host tier 'disk'"):
        elbowroom.fit(nn.Linear(1, 1), "70%", host="disk")
