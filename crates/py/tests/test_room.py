"""The search near a limit, which a program may exceed although its schedule does not: recorded generator states are known only with the plan."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.background import Search  # noqa: E402
from elbowroom.errors import InfeasibleError  # noqa: E402
from loops import WithLoss, adamw, train  # noqa: E402
from torch import nn  # noqa: E402


def planned(memory):
    """The report of a step whose generator states are as large as some of its activations."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    model = WithLoss(nn.Sequential(*layers, nn.Linear(64, 10)), nn.functional.cross_entropy)
    args, optimizer = (torch.randn(256, 64), torch.randint(0, 10, (256,))), adamw(model)
    elbowroom.fit(model, memory, optimizer=optimizer, host=None)
    train(model, args, optimizer, 2)
    report = model.elbowroom.report
    assert report.measured_peak_bytes <= report.predicted_peak_bytes <= report.limit_bytes
    return report


@pytest.mark.parametrize("memory", ["50%", "65%"])
def test_generator_states_do_not_send_the_search_to_the_smallest_limit(memory):
    assert planned(memory).overhead < 0.75


def test_a_limit_at_which_nothing_is_found_has_a_whole_search_below(monkeypatch):
    original, refused = Search.plan, []

    def plan(search, limit, **options):
        if not refused:
            refused.append(limit)
            raise InfeasibleError("no schedule was found")
        assert limit < refused[0]
        return original(search, limit, **options)

    monkeypatch.setattr(Search, "plan", plan)
    assert planned("70%").overhead < 0.75
    assert refused
