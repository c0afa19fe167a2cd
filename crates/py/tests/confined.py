"""Trains in a process of its own, whose data may be limited: `python confined.py WAY MODEL STEPS [BYTES]` prints one JSON object.

`WAY` is `plain`, `blocks`, `save_on_cpu`, or the options of `elbowroom.fit` as `memory=50%,host=none`. `BYTES` is what the process may
allocate beyond what it has when training begins (RLIMIT_DATA: all private memory, shared pages of files not counted). Exit status 3: the
system refused memory.
"""

import contextlib
import hashlib
import json
import os
import resource
import sys
import time

import elbowroom
import torch
from loops import WithLoss, mlp
from torch import nn
from torch.utils.checkpoint import checkpoint


class Blocks(nn.Module):
    """Residual blocks with dropout, each of which can be checkpointed. Most bytes are activations."""

    def __init__(self, count=8, width=256, checkpointed=False):
        super().__init__()
        make = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width))  # noqa: E731
        self.blocks = nn.ModuleList(make() for _ in range(count))
        self.last, self.checkpointed = nn.Linear(width, 16), checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return self.last(x)


class Wide(nn.Module):
    """Linear layers whose parameters, with their gradients and moments, are most of the bytes."""

    def __init__(self, count=6, width=2048, checkpointed=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.last, self.checkpointed = nn.Linear(width, 16), checkpointed

    def forward(self, x):
        for layer in self.layers:
            run = lambda x, layer=layer: torch.relu(layer(x))  # noqa: E731
            x = checkpoint(run, x, use_reentrant=False) if self.checkpointed else run(x)
        return self.last(x)


MODELS = {"activations": (Blocks, (24576, 256)), "parameters": (Wide, (64, 2048))}


def status(field):
    """A size of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main(way, model, steps, data=None):
    torch.set_num_threads(1)
    # Both ways load the compiler, so that only training differs.
    tiny, args = mlp()
    elbowroom.fit(tiny, "80%", evaluations=20, host=None)
    tiny(*args).backward()
    del tiny, args
    torch._dynamo.reset()
    kind, shape = MODELS[model]
    torch.manual_seed(0)
    module = WithLoss(kind(checkpointed=way == "blocks"), nn.functional.cross_entropy)
    args = torch.randn(shape), torch.randint(0, 16, shape[:1])
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    context = contextlib.nullcontext
    if way == "save_on_cpu":
        context = torch.autograd.graph.save_on_cpu
    elif "=" in way:
        options = dict(item.split("=") for item in way.split(","))
        host = {"none": None}.get(options.get("host"), options.get("host", "auto"))
        elbowroom.fit(module, options["memory"], optimizer=optimizer, host=host, consume_gradients=options.get("gradients") == "consumed")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # The peak of resident memory begins again.
    start = status("VmRSS")
    if data:
        limit = status("VmData") + data
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    times = []
    try:
        for step in range(steps):
            torch.manual_seed(step)
            began = time.perf_counter(), time.process_time()
            with context():
                loss = module(*args)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append([time.perf_counter() - began[0], time.process_time() - began[1]])
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            print(json.dumps({"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}))
            sys.stdout.flush()
            os._exit(3)
        raise
    peak = status("VmHWM")
    digest = hashlib.sha256()
    states = [leaf for parameter in module.parameters() for leaf in optimizer.state[parameter].values()]
    for tensor in [*module.parameters(), *states]:
        digest.update(tensor.detach().numpy().tobytes())
    report = getattr(getattr(module, "elbowroom", None), "report", None)
    figures = {} if report is None else {"limit": report.limit_bytes, "predicted": report.predicted_peak_bytes, "unlimited": report.unlimited_peak_bytes}
    print(json.dumps({"start": start, "peak": peak, "times": times, "loss": loss.item(), "digest": digest.hexdigest(), **figures}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
