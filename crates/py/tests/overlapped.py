"""Steps of `fit` on an accelerator, whose copies overlap with its kernels: many plans under many orders of the streams.

`python tests/overlapped.py [RUNS] [PLANS] [MODEL…]` runs random plans of all models, or of some, under random seeds and counts wrong bits, and takes
every wait out of some plans, one at a time: the checker proves it redundant, or a seed has to show it. `test_streams.py` runs a small part of both.
"""

from __future__ import annotations

import random
import sys
import time
import types

import torch
from torch import nn

import accelerator
import elbowroom
from elbowroom import _native
from elbowroom.pinned import PinnedTier
from elbowroom.program import Writer
from elbowroom.report import Report


class Chain(nn.Module):
    """Linear layers with dropout."""

    def __init__(self, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x, y):
        for layer in self.layers:
            x = nn.functional.dropout(nn.functional.gelu(layer(x)), 0.1)
        return nn.functional.cross_entropy(x, y)


class Residual(nn.Module):
    """Convolutions with batch normalization and sums."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.head = nn.Linear(8, 32)

    def forward(self, x, y):
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms):
            x = x + torch.relu(norm(conv(x)))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), y)


class Encoder(nn.Module):
    """Attention and feed-forward blocks with layer normalization."""

    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(32, 32)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(q=nn.Linear(32, 96), o=nn.Linear(32, 32), u=nn.Linear(32, 64), d=nn.Linear(64, 32), n=nn.LayerNorm(32), m=nn.LayerNorm(32))) for _ in range(3))
        self.head = nn.Linear(32, 32)

    def forward(self, tokens, y):
        x = self.table(tokens)
        for block in self.blocks:
            q, k, v = block["q"](block["n"](x)).unflatten(-1, (3, 2, 16)).movedim(-3, 0).transpose(2, 3)
            weights = q @ k.transpose(-1, -2) / 4
            if self.causal:
                weights = weights.masked_fill(torch.ones_like(weights, dtype=torch.bool).triu(1), -1e9)
            a = nn.functional.dropout(weights.softmax(-1), 0.1) @ v
            x = x + block["o"](a.transpose(1, 2).flatten(2))
            x = x + block["d"](nn.functional.silu(block["u"](block["m"](x))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


class Bottleneck(nn.Module):
    """Down, up, and a connection between: a small U-Net."""

    def __init__(self):
        super().__init__()
        self.down, self.middle, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out, self.norm = nn.ConvTranspose2d(16, 3, 2, 2), nn.GroupNorm(2, 8)

    def forward(self, x, y):
        first = nn.functional.silu(self.norm(self.down(x)))
        second = nn.functional.silu(self.middle(first))
        return nn.functional.mse_loss(self.out(torch.cat([self.up(second), first], 1)), y)


class Recurrence(nn.Module):
    """A cell that is unrolled."""

    def __init__(self):
        super().__init__()
        self.input, self.state, self.head = nn.Linear(16, 64), nn.Linear(32, 64), nn.Linear(32, 32)

    def forward(self, x, y):
        h = x.new_zeros(x.shape[0], 32)
        for at in range(x.shape[1]):
            gate, new = (self.input(x[:, at]) + self.state(h)).chunk(2, -1)
            gate = torch.sigmoid(gate)
            h = gate * h + (1 - gate) * torch.tanh(new)
        return nn.functional.cross_entropy(self.head(h), y)


def _classes(*shape):
    return torch.randint(0, 32, shape)


MODELS = {
    "chain": (Chain, lambda: (torch.randn(256, 32), _classes(256))),
    "residual": (Residual, lambda: (torch.randn(4, 3, 16, 16), _classes(4))),
    "encoder": (Encoder, lambda: (_classes(4, 24), _classes(4, 24))),
    "decoder": (lambda: Encoder(causal=True), lambda: (_classes(4, 24), _classes(4, 24))),
    "unet": (Bottleneck, lambda: (torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16))),
    "recurrence": (Recurrence, lambda: (torch.randn(96, 8, 16), _classes(96))),
}


class Trial:
    """One model whose steps are planned again and again. Everything but the step's own tensors lies on the host."""

    def __init__(self, name: str):
        self.device = accelerator.device()
        self.device.begin()
        torch.manual_seed(0)
        build, inputs = MODELS[name]
        self.name, self.model = name, build()
        self.args = [tensor.to(self.device.name) for tensor in inputs()]
        self.state = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        self.model.to(self.device.name)
        self.expected = self.step(self.model)
        PinnedTier.rates = 10**10, 10**10, 200  # A tier remembers rates that it has measured, and no plan would have others.
        elbowroom.fit(self.model, "100%", background=False)
        assert self.right(None), name

    @property
    def fitted(self):
        return self.model.elbowroom

    def step(self, model):
        """Loss, gradients and buffers of one step from the same state, as tensors of the host."""
        with torch.no_grad():
            for key, tensor in model.state_dict().items():
                tensor.copy_(self.state[key])
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        loss = model(*self.args)
        loss.backward()
        results = [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()]
        results = [tensor.cpu() for tensor in results]
        model.zero_grad(set_to_none=True)
        return results

    def right(self, seed, limit=None) -> bool:
        """Whether a step under the order of a seed gives the expected bits, with ``limit`` bytes for the model and its step."""
        tier = self.fitted.tier
        for memory in tier.free if tier is not None else ():
            memory.fill_(255)  # Bytes of an earlier step would be the right ones.
        own = sum(tensor.untyped_storage().nbytes() for tensor in [*self.model.parameters(), *self.model.buffers(), *self.args])
        self.device.begin(seed, *([] if limit is None else [self.device.used - own + limit]))
        try:
            found = self.step(self.model)
        except (RuntimeError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError) or seed is None:
                raise
            self.device.begin()
            return False
        return all(map(torch.equal, found, self.expected))

    def plan(self, share: float, seed: int, link=10**10):
        """Plans the step again: within a share of its unlimited peak, or, where that is too small, within the next larger one that is not.
        Returns the plan and its limit in bytes."""
        step = self.fitted
        PinnedTier.rates = (link, link, 200)
        while True:
            step._plans.clear()
            for search in step._iterations.values():
                search._found.clear()
            step.report, step.memory, step.seed, step.evaluations = Report(), f"{100 * share:.4f}%", seed, 300
            try:
                assert self.right(None), (self.name, share, seed)
            except elbowroom.InfeasibleError:
                share += 0.05
                continue
            (plan,) = step._plans.values()
            return plan, step.report.limit_bytes

    def waits(self, plan):
        """Every wait of a plan: the action that waits, and which of its waits."""
        return [(at, which) for at, row in enumerate(plan.planned.waits) for which in range(len(row))]

    def without(self, plan, at: int, which: int, honest=True):
        """What the checker says to what runs for a plan without one wait, and the plan's program without it; unless ``honest``, with the plan's
        fingerprint. What runs has waits that no plan says: they may make the missing one redundant."""
        planned = plan.planned
        waits = [list(row) for row in planned.waits]
        del waits[at][which]
        altered = types.SimpleNamespace(actions=planned.actions, waits=waits, boundary=planned.boundary, trace=planned.trace)
        altered.fingerprint = _native.fingerprint(planned.trace, planned.actions, waits) if honest else planned.fingerprint
        (graph,) = self.fitted.graphs
        writer = Writer(graph.joint, altered, False, self.fitted.tier)
        program = writer.write()
        executed = [[*row, *writer.streams.added.get(at, ())] for at, row in enumerate(waits)]
        return planned.objection(executed), program

    def shows(self, plan, program, seeds) -> int | None:
        """The first seed under which a program in the place of a plan's gives wrong bits."""
        own = plan.program, plan.metered
        plan.program = plan.metered = program
        try:
            return next((seed for seed in seeds if not self.right(seed)), None)
        finally:
            plan.program, plan.metered = own


def try_plans(trial: Trial, rng: random.Random, plans: int, runs: int):
    """Random plans, each under ``runs`` seeds within its limit to the byte: the number of runs, of wrong ones, and of plans that offload."""
    count = wrong = offloading = 0
    for _ in range(plans):
        plan, limit = trial.plan(rng.uniform(0.4, 0.9), rng.randrange(1 << 30), rng.choice([10**9, 10**10, 10**11, 10**12]))
        offloading += plan.planned.offloaded_bytes > 0
        for _ in range(runs):
            wrong += not trial.right(rng.randrange(1 << 40), limit)
            count += 1
    return count, wrong, offloading


def try_waits(trial: Trial, rng: random.Random, seeds: int, most=None, plan=None):
    """Takes each wait out of a plan, a random one if none is given: how many the checker proves redundant, how many a seed shows, and those that
    none shows."""
    if plan is None:
        plan, _ = trial.plan(rng.uniform(0.4, 0.8), rng.randrange(1 << 30), rng.choice([10**10, 10**11, 10**12]))
    redundant = shown = 0
    missed = []
    waits = trial.waits(plan)
    for at, which in waits if most is None else rng.sample(waits, min(most, len(waits))):
        objection, program = trial.without(plan, at, which)
        if objection is None:
            redundant += 1
        elif trial.shows(plan, program, (rng.randrange(1 << 40) for _ in range(seeds))) is not None:
            shown += 1
        else:
            missed.append((trial.name, plan.planned.actions[at], plan.planned.waits[at][which], objection))
    return redundant, shown, missed


def main(runs=10_000, plans=20, models=()) -> None:
    torch.set_num_threads(1)
    rng, started = random.Random(0), time.process_time()
    each = 20
    models = models or list(MODELS)
    per_plan = -(-runs // (len(models) * each))
    totals = [0, 0]
    trials = {}
    for name in models:
        trials[name] = trial = Trial(name)
        if not runs:
            continue
        count, wrong, offloading = try_plans(trial, rng, each, per_plan)
        totals = [totals[0] + count, totals[1] + wrong]
        print(f"{name}: {count} runs of {each} plans, of which {offloading} offload, {wrong} wrong", flush=True)
    print(f"{totals[0]} runs, {totals[1]} wrong, {time.process_time() - started:.0f} s of processor time", flush=True)
    sums, missed = [0, 0], []
    for number in range(plans):
        trial = trials[models[number % len(models)]]
        redundant, shown, unseen = try_waits(trial, rng, 400)
        sums, missed = [sums[0] + redundant, sums[1] + shown], missed + unseen
        print(f"plan {number} of {trial.name}: {redundant} waits redundant, {shown} shown, {len(unseen)} missed", flush=True)
    print(f"{plans} plans: {sums[0]} waits proved redundant, {sums[1]} shown by a seed, {len(missed)} missed; {time.process_time() - started:.0f} s", flush=True)
    for line in missed:
        print("missed:", *line)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), sys.argv[3:])
