"""Loops that hold results of a step while the next one runs: they count, and plans leave room for them."""

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
