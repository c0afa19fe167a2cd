"""Loops that hold results of a step while the next one runs: they count, and plans leave room for them."""

import gc
import warnings

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())], nn.Linear(64, 256))

    def forward(self, x):
        y = self.layers(x)
        return y.square().mean(), y.detach()


def run(memory, steps, hold):
    """Peaks of the steps as a meter of the whole loop sees them, the fitted model's report, and the sentences of its warnings."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(128, 64)
    elbowroom.fit(model, memory, background=False)
    peaks, held = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meter = elbowroom.Meter(model.parameters(), x)
        for _ in range(steps):
            with meter:
                meter.bytes.peak = meter.bytes.now
                loss, result = model(x)
                loss.backward()
            peaks.append(meter.peak)
            hold(held, result)
            del loss, result
            model.zero_grad(set_to_none=True)
    return peaks, model.elbowroom.report, [str(warning.message) for warning in caught if "elbowroom" in str(warning.message)]


def last(held, result):
    held[:] = [result]


def test_a_result_that_outlives_its_step_is_seen_and_planned_for():
    peaks, report, sentences = run("min", 6, last)
    result = 128 * 256 * 4
    assert sentences and "more than the limit" in sentences[0]
    assert [note for note in report.notes if f"holds {result} bytes of earlier steps' results" in note]
    # The step that showed it is the only one above its limit.
    assert max(peaks[2:]) <= report.predicted_peak_bytes == report.limit_bytes


def test_a_loop_that_frees_its_results_is_left_alone():
    peaks, report, sentences = run("min", 6, lambda held, result: None)
    assert not report.notes and not sentences
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_results_that_are_held_later_are_seen():
    def late(held, result):
        if len(held) >= 6:
            last(held, result)
        else:
            held.append(None)

    peaks, report, sentences = run("min", 12, late)
    assert len(sentences) >= 1 and len(report.notes) == 1
    assert max(peaks[-3:]) <= report.limit_bytes


def test_a_loop_that_collects_results_is_not_planned_in_every_step():
    peaks, report, sentences = run("min", 12, lambda held, result: held.append(result))
    assert 2 <= len(report.notes) <= 5
    assert peaks[-1] <= report.limit_bytes


class Breaking(nn.Module):
    """Two graph breaks, at ops whose sizes depend on values."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x, y):
        x = torch.tanh(self.first(x))
        most = torch.bincount(y, minlength=10).max()
        x = torch.tanh(self.second(x)) * most
        return (self.last(x) * torch.bincount(y).sum()).square().mean()


@pytest.mark.filterwarnings("ignore:elbowroom. PyTorch captured the model in parts")
@pytest.mark.parametrize("threshold", [100, 300, 700])
def test_nothing_of_the_step_that_compiled_is_alive_in_later_ones(threshold):
    before = gc.get_threshold()
    torch.manual_seed(0)
    model, x, y = Breaking(), torch.randn(64, 64), torch.randint(0, 10, (64,))
    elbowroom.fit(model, "100%", host=None)
    gc.set_threshold(threshold, 5, 5)
    try:
        with elbowroom.Meter(model.parameters(), x, y) as meter:
            built, left = meter.now, []
            for _ in range(3):
                model(x, y).backward()
                model.zero_grad()
                left.append(meter.now - built)
    finally:
        gc.set_threshold(*before)
    assert left[1:] == [0, 0]
