"""Room for what kernels of a GPU take. There is none here, so the allocator's figures are made up."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from elbowroom.state import predict  # noqa: E402
from elbowroom.step import Step  # noqa: E402
from loops import adamw, assert_same, mlp, train  # noqa: E402


class Made:
    """An allocator that sees kernels take some bytes, and ``more`` with each plan."""

    def __init__(self, step, taken, more=0):
        self.step, self.taken, self.more = step, taken, more

    def begin(self, counted):
        pass

    def beyond(self, peak):
        return self.taken + self.more * (len(self.step._rooms) - 1)


@pytest.mark.parametrize("taken, noted", [(20_000, "plans leave room for them"), (10_000_000, "they come on top of the limit"), (0, None)])
def test_plans_leave_room_if_there_is_any(monkeypatch, taken, noted):
    monkeypatch.setattr(Step, "_begin_workspaces", lambda self: setattr(self, "_workspaces", Made(self, taken)))
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


@pytest.mark.parametrize("more, plans", [(0, 1), (10_000, 3), (10_000_000, 1)])
def test_plans_leave_more_room_where_kernels_of_the_new_plan_take_more(monkeypatch, more, plans):
    monkeypatch.setattr(Step, "_begin_workspaces", lambda self: setattr(self, "_workspaces", Made(self, 20_000, more)))
    fitted, args = mlp()
    optimizer = adamw(fitted)
    elbowroom.fit(fitted, 1_100_000, optimizer=optimizer, host=None, evaluations=300)
    train(fitted, args, optimizer, 12)
    report = fitted.elbowroom.report
    # Kernels that take more after each of these plans have had their chances; room that no plan leaves is not left.
    assert fitted.elbowroom._rooms == [0, *(20_000 + more * at for at in range(plans))]
    assert sum("plans leave room" in note for note in report.notes) == plans + (more > 10**6)
    assert sum("come on top" in note for note in report.notes) == (more > 10**6)
    assert report.predicted_peak_bytes <= report.limit_bytes


def test_an_update_of_all_parameters_at_once_is_predicted_for_a_gpu():
    model, _ = mlp()
    whole = sum(parameter.nbytes for parameter in model.parameters())
    one_by_one = predict(torch.optim.AdamW(model.parameters(), foreach=False), device="cuda")[1]
    assert predict(torch.optim.AdamW(model.parameters()), device="cuda")[1] == whole > one_by_one
    assert predict(torch.optim.AdamW(model.parameters()))[1] == one_by_one
