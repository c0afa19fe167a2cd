"""Room for what kernels of a GPU take. There is none here, so the allocator's figures are made up."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.state import predict  # noqa: E402
from elbowroom.step import Step  # noqa: E402
from loops import adamw, assert_same, mlp, train  # noqa: E402


class Made:
    """An allocator that sees kernels take some bytes."""

    def __init__(self, taken):
        self.taken = taken

    def begin(self, counted):
        pass

    def beyond(self, peak):
        return self.taken


@pytest.mark.parametrize("taken, noted", [(20_000, "plans leave room for them"), (10_000_000, "they come on top of the limit"), (0, None)])
def test_plans_leave_room_if_there_is_any(monkeypatch, taken, noted):
    monkeypatch.setattr(Step, "_begin_workspaces", lambda self: setattr(self, "_workspaces", Made(taken)))
    plain, args = mlp()
    optimizer = adamw(plain)
    losses = train(plain, args, optimizer)
    fitted, _ = mlp()
    fitted_optimizer = adamw(fitted)
    elbowroom.fit(fitted, 1_100_000, optimizer=fitted_optimizer, host=None, evaluations=300)
    assert train(fitted, args, fitted_optimizer) == losses
    assert_same(plain, optimizer, fitted, fitted_optimizer)
    report = fitted.elbowroom.report
    assert report.workspace_bytes == taken
    # A step whose plan leaves no room is planned again once, however many follow.
    assert sum("kernels" in note for note in report.notes) == {None: 0, "plans leave room for them": 1}.get(noted, 2)
    assert noted is None or any(noted in note for note in report.notes)
    above = report.measured_peak_bytes + taken - report.limit_bytes
    assert above <= 0 or noted == "they come on top of the limit"


def test_an_update_of_all_parameters_at_once_is_predicted_for_a_gpu():
    model, _ = mlp()
    whole = sum(parameter.nbytes for parameter in model.parameters())
    one_by_one = predict(torch.optim.AdamW(model.parameters(), foreach=False), device="cuda")[1]
    assert predict(torch.optim.AdamW(model.parameters()), device="cuda")[1] == whole > one_by_one
    assert predict(torch.optim.AdamW(model.parameters()))[1] == one_by_one
