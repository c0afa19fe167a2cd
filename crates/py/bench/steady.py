"""What a step costs that keeps everything: prints the time of a step at ``memory="100%"`` ÷ that of a plain step.

`python bench/steady.py [NAME,NAME…] [STEPS]` alternates plain and fitted steps in one process, on one thread, and takes processor time.
"""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

import elbowroom
import torch
from loops import adamw, train
from models import MODELS


def alternate(name, steps):
    """Processor times of plain and of fitted steps, in the order in which they ran."""
    runs = []
    for fit in (False, True):
        model, args = MODELS[name]()
        optimizer = adamw(model)
        if fit:
            elbowroom.fit(model, "100%", optimizer=optimizer)
        train(model, args, optimizer, 5)
        runs.append((model, args, optimizer, []))
    for number in range(steps):
        for model, args, optimizer, times in runs if number % 2 else runs[::-1]:
            start = time.process_time()
            model(*args).backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.process_time() - start)
    return runs[0][3], runs[1][3]


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else ("llama", "bert")
    print("| model | plain, median | fitted, median | ratio of medians | median of ratios |\n| --- | --: | --: | --: | --: |")
    for name in names:
        plain, fitted = alternate(name, int(sys.argv[2]) if len(sys.argv) > 2 else 100)
        one, two = statistics.median(plain), statistics.median(fitted)
        paired = statistics.median(b / a for a, b in zip(plain, fitted, strict=True))
        print(f"| {name} | {one * 1e3:.1f} ms | {two * 1e3:.1f} ms | {two / one:.3f} | {paired:.3f} |", flush=True)
