"""The ways to train in less memory, side by side: prints the rows of the README's comparison.

`python bench/compare.py [NAME,NAME…]` trains each model plainly, within limits of `elbowroom.fit`, with PyTorch's activation memory budget, with
the models' own checkpointing per block, and with `save_on_cpu`. One meter counts the bytes of tensors in all of them, parameters and optimizer
state included. Time is processor time of a step on one thread, the least of seven, without the meter.
"""

import contextlib
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

import elbowroom
import torch
from loops import adamw, train
from models import MODELS

STEPS = 7


def plain(model, optimizer):
    return model, contextlib.nullcontext


def fitted(limit, **options):
    def prepare(model, optimizer):
        return elbowroom.fit(model, limit, optimizer=optimizer, **options), contextlib.nullcontext

    return prepare


def budget(share):
    def prepare(model, optimizer):
        torch._functorch.config.activation_memory_budget = share
        return torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False), contextlib.nullcontext

    return prepare


def blocks(model, optimizer):
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, contextlib.nullcontext


def on_cpu(model, optimizer):
    return model, torch.autograd.graph.save_on_cpu


WAYS = {
    "plain": plain,
    **{f"elbowroom, {limit}": fitted(limit) for limit in ("100%", "70%", "50%", "min")},
    "elbowroom, min, gradients consumed": fitted("min", consume_gradients=True),
    **{f"activation_memory_budget = {share}": budget(share) for share in (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)},
    "checkpoint per block": blocks,
    "save_on_cpu": on_cpu,
}


def measure(name, prepare):
    """Peak of tensor bytes, processor time of a step, and the parameters after the steps."""
    torch._dynamo.reset()
    torch._functorch.config.activation_memory_budget = 1.0
    model, args = MODELS[name]()
    optimizer = adamw(model)
    run, context = prepare(model, optimizer)
    with context():
        train(run, args, optimizer, 4)
        before, times = [tensor.clone() for tensor in model.state_dict().values()], []
        for _ in range(STEPS):
            start = time.process_time()
            train(run, args, optimizer, 1)
            times.append(time.process_time() - start)
        states = [leaf for state in optimizer.state.values() for leaf in state.values()]
        with elbowroom.Meter(model.parameters(), model.buffers(), args, states) as meter:
            train(run, args, optimizer, 2)
    return meter.peak, min(times), before


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| model | way | metered peak | of plain | time of a step | of plain | bits after 4 steps |\n| --- | --- | --: | --: | --: | --: | --- |")
    for name in sys.argv[1].split(",") if len(sys.argv) > 1 else ("llama", "bert"):
        first = None
        for way, prepare in WAYS.items():
            peak, seconds, weights = measure(name, prepare)
            first = first or (peak, seconds, weights)
            same = all(torch.equal(one, two) for one, two in zip(first[2], weights, strict=True))
            cells = [name, way, f"{peak:,}", f"{peak / first[0]:.1%}", f"{seconds * 1e3:.1f} ms", f"{seconds / first[1]:.3f}"]
            print(f"| {' | '.join(cells)} | {'equal' if same else 'different'} |", flush=True)
