"""`fit` on an accelerator: copies overlap with kernels, bits stay, no byte goes above the limit, and a wait that is left out shows. On a GPU the
same tests run under the GPU's own order."""

import collections
import random

import pytest
import torch

import accelerator
import elbowroom

if not torch.cuda.is_available() and accelerator.missing():
    pytest.skip(accelerator.missing(), allow_module_level=True)

# Before any test of any file: PyTorch makes the queues of all devices at the first backward pass, and none for a device that comes later.
accelerator.device()

from elbowroom.program import Writer
from overlapped import MODELS, Trial, try_plans, try_waits

simulated = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU draws no order from a seed, and has no log")


@pytest.mark.parametrize("name", MODELS)
def test_random_plans_give_the_same_bits_in_every_order_within_the_limit(name):
    trial, rng = Trial(name), random.Random(name)
    count, wrong, offloading = try_plans(trial, rng, plans=3, runs=8)
    assert (count, wrong) == (24, 0) and offloading


def offloading(name):
    """A trial and a plan of it that offloads, over a link faster than any kernel."""
    trial = Trial(name)
    for seed in range(4):
        plan, limit = trial.plan(0.5 + 0.1 * seed, seed, 10**12)
        if plan.planned.offloaded_bytes:
            return trial, plan, limit
    raise AssertionError("no plan offloads")


@simulated
def test_each_wait_is_redundant_or_shows():
    for name in ("chain", "encoder"):
        trial, plan, _ = offloading(name)
        redundant, shown, missed = try_waits(trial, random.Random(1), seeds=200, most=6, plan=plan)
        assert not missed
        assert shown and redundant + shown == 6


@simulated
def test_a_wait_that_host_memory_implies_is_redundant():
    # A copy to the host takes the place of one that an earlier action fetched, and waits for that action. Seeds cannot show what that implies.
    trial = Trial("unet")
    rng = random.Random(7)
    plan, _ = trial.plan(rng.uniform(0.4, 0.8), rng.randrange(1 << 30), rng.choice([10**10, 10**11, 10**12]))
    redundant, shown, missed = try_waits(trial, rng, 400, plan=plan)
    assert not missed and shown and redundant > 1


@simulated
def test_the_order_that_runs_is_the_plan_that_was_checked():
    trial, plan, _ = offloading("chain")
    for seed in range(3, 6):
        trial.device.begin(seed, log=True)
        trial.step(trial.model)
        lines = [line.split() for line in trial.device.log]
        copies = {kind: [int(line[-1]) for line in lines if line[0] == "run" and line[4:7] == ["copy", "to", kind] and line[1] != "0"] for kind in ("host", "device")}
        (graph,) = trial.fitted.graphs
        planned = lambda wanted: [graph.joint.tensors[number].bytes for kind, number, _, _ in plan.planned.actions if kind == wanted]
        assert copies["host"] == planned(2) and copies["device"] == planned(3)
        assert sum(line[0] == "wait" for line in lines) >= sum(map(len, plan.planned.waits))


@simulated
def test_a_program_of_another_plan_is_refused():
    trial, plan, _ = offloading("chain")
    at, which = next((at, which) for at, which in trial.waits(plan))
    with pytest.raises(AssertionError, match="was checked: a fault in elbowroom"):
        trial.without(plan, at, which, honest=False)


@simulated
def test_a_pass_that_fails_leaves_the_device_usable():
    trial, plan, limit = offloading("chain")
    for seed in range(6):
        with pytest.raises(torch.OutOfMemoryError):
            trial.right(seed, limit - 20_000 - 9_000 * seed)
        assert trial.right(seed, limit)


class Asked:
    """A plan that counts how often each of its columns is asked for. Every time, a column is made anew."""

    def __init__(self, planned):
        self.planned, self.times = planned, collections.Counter()

    def __getattr__(self, name):
        self.times[name] += 1
        return getattr(self.planned, name)


def test_columns_of_a_plan_are_not_made_anew_for_each_action():
    trial, plan, _ = offloading("chain")
    (graph,) = trial.fitted.graphs
    asked = Asked(plan.planned)
    Writer(graph.joint, asked, False, trial.fitted.tier).write()
    assert asked.times["waits"] == 1 and asked.times["actions"] <= 2, asked.times


def test_two_forward_passes_have_slabs_of_their_own():
    trial, plan, limit = offloading("chain")
    for seed in range(4):
        trial.device.begin(seed)
        torch.manual_seed(1)
        losses = [trial.model(*trial.args) for _ in range(2)]
        for loss in losses:
            loss.backward()
        found = [p.grad.cpu() for p in trial.model.parameters()]
        trial.model.zero_grad(set_to_none=True)
        if not seed:
            expected = found
        assert all(map(torch.equal, found, expected)), seed


def test_a_host_tier_that_is_not_there_is_refused():
    with pytest.raises(elbowroom.UnsupportedError, match="the model is not on one"):
        elbowroom.fit(torch.nn.Linear(2, 2), "50%", host="pinned")
    with pytest.raises(elbowroom.UnsupportedError, match="host='pinned'"):
        elbowroom.fit(torch.nn.Linear(2, 2).to(accelerator.device().name), "50%", host="file")


@pytest.mark.parametrize("name", ["chain", "residual"])
def test_deterministic_algorithms_do_not_fill_what_a_copy_fills(name):
    # PyTorch then fills what `empty` returns, on the stream of the kernels, while the copy to it runs on another.
    trial, rng = Trial(name), random.Random(name)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        count, wrong, offloading = try_plans(trial, rng, plans=2, runs=8)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (count, wrong) == (16, 0) and offloading
