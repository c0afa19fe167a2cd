"""What each class of operators reaches on a GPU, beside the estimate: where the rates of `elbowroom/costs.py` are from.

`python bench/rates.py [NAME…]` runs the third of three training steps of each network of `gpu.py` operator by operator, in bfloat16 where the network
is, else in float32 with and without TF32. Columns: operators that take 60 µs or more, their time in all, operations and bytes per second, and
measured ÷ estimated time.
"""

import collections

import gpu
import torch
from elbowroom import costs
from torch.utils._python_dispatch import TorchDispatchMode

#: Shorter operators show how long a launch takes.
SHORTEST = 60e-6


class Timed(TorchDispatchMode):
    """Notes what operators do, with an event before and after each."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before, after = (torch.Event(device="cuda", enable_timing=True) for _ in range(2))
        before.record()
        result = func(*args, **kwargs)
        after.record()
        if any(tensor.is_cuda for tensor in costs.tensors_of((args, kwargs, result))):
            made = costs.tensors_of(result)
            work = costs.flops(func, args, kwargs, result), costs.moved_bytes(args, kwargs, made), 1e-9 * costs.duration(func, args, kwargs, result)
            self.calls.append((costs.classify(func, result), costs.overload_name(func), work, before, after))
        return result


def measure(name: str) -> None:
    """Prints the rows of one network."""
    model, _, args = gpu.built(name, False, "cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with Timed() as timed:
            model(*args).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
    rows = collections.defaultdict(lambda: [0] * 5)
    for group, operator, (flops, moved, estimated), before, after in timed.calls:
        seconds = 1e-3 * before.elapsed_time(after)
        if seconds >= SHORTEST:
            rows[group, operator] = [a + b for a, b in zip(rows[group, operator], (1, seconds, flops, moved, estimated))]
    for (group, operator), (count, seconds, flops, moved, estimated) in sorted(rows.items(), key=lambda row: -row[1][1]):
        rates = f"{1e-12 * flops / seconds:.0f} | {1e-12 * moved / seconds:.2f} | {seconds / estimated:.2f}"
        print(f"| {name} | {' '.join(group)} | {operator} | {count} | {1e3 * seconds:.1f} ms | {rates} |", flush=True)


if __name__ == "__main__":
    names = gpu.named_networks(__doc__, "these rates")
    print("| network | class | operator | calls | time | TFLOP/s | TB/s | measured ÷ estimated |\n| --- | --- | --- | --: | --: | --: | --: | --: |")
    for name in names:
        for tf32 in (False,) if name in gpu.HALF else (False, True):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            measure(name)
