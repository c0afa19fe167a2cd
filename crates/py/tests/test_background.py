"""Plans for further shapes, searched in the background."""

import pytest

torch = pytest.importorskip("torch")

import elbowroom  # noqa: E402
from loops import adamw, assert_same, mlp  # noqa: E402

BATCHES = (512, 256, 256, 512, 256, 384)


def train(model, args, optimizer, after=None):
    torch.manual_seed(1)
    losses = []
    for batch in BATCHES:
        loss = model(*(arg[:batch] for arg in args))
        loss.backward()
        losses.append(loss.item())
        del loss
        optimizer.step()
        optimizer.zero_grad()
        if after:
            after()
    return losses


def run(**options):
    torch._dynamo.reset()
    model, args = mlp()
    optimizer = adamw(model)
    elbowroom.fit(model, 1_100_000, optimizer=optimizer, host=None, **options)
    after = model.elbowroom.background.wait if options.get("background", True) else None
    with elbowroom.Meter(model.parameters(), args) as meter:
        losses = train(model, args, optimizer, after)
    return model, optimizer, losses, meter.peak


def test_a_short_search_serves_until_the_whole_one_has_ended():
    plain, args = mlp()
    plain_optimizer = adamw(plain)
    losses = train(plain, args, plain_optimizer)
    runs = [run(background=background, evaluations=400) for background in (True, False)]
    for model, optimizer, limited, peak in runs:
        assert limited == losses
        assert_same(plain, plain_optimizer, model, optimizer)
        report = model.elbowroom.report
        assert peak <= report.predicted_peak_bytes <= report.limit_bytes == 1_100_000
        assert report.plans == 3 and report.recomputed
    sources = [{graph.number - model.elbowroom.graphs[0].number: graph.program.source for graph in model.elbowroom.graphs[:2]} for model, *_ in runs]
    assert sources[0] == sources[1], "the plans of both runs are those of whole searches"


def test_the_plan_that_serves_is_of_a_short_search(monkeypatch):
    from elbowroom import _native

    searched = []

    class Recorder:
        def __init__(self, native):
            self.native = native

        def __getattr__(self, name):
            return getattr(self.native, name)

        def plan(self, limit, **options):
            searched.append(options["evaluations"])
            return self.native.plan(limit, **options)

    original = _native.Iteration
    monkeypatch.setattr(_native, "Iteration", lambda *columns, **more: Recorder(original(*columns, **more)))
    run(evaluations=400)
    first = searched.index(50)
    # The first shape is searched to the end at once, the others briefly and then to the end.
    assert first and set(searched[:first]) == {400} and searched.count(50) < searched.count(400)


def test_a_limit_that_a_short_search_does_not_meet_is_searched_to_the_end():
    from elbowroom.background import Background, Search

    class Hard:
        def plan(self, limit, evaluations):
            if evaluations < 400:
                raise elbowroom.InfeasibleError("too short")
            return limit

    background = Background(True)
    search = Search(None, Hard(), background)
    with background.serve("key", first=False):
        assert search.plan(7, evaluations=400) == 7
    assert not background.requests and not background.ready("key")
    with pytest.raises(elbowroom.InfeasibleError, match="too short"):
        search.plan(7, evaluations=20)
