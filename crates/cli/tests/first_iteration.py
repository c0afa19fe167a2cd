"""Measures when the first iteration of a training begins, and how long planning takes in all.

Usage: first_iteration.py ELBOWROOM [ITERATIONS] [ARGUMENTS-OF-TRAIN…] (by default every network of the zoo in half of its unconstrained peak).

Prints wall and processor seconds of the process when the first iteration began, the same for what passed between the first iteration and the second
one besides the second one itself (the plan for measured durations), and the training's length. On a busy machine the processor time counts; it is that
of both threads."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

NETWORKS = [
    "resnet18", "resnet50 --image 224 --batch 8", "resnet152 --image 224 --batch 2", "resnet1001 --batch 4", "stochastic-resnet18", "vgg16",
    "vgg16 --image 224 --batch 8", "densenet121", "densenet201 --image 224 --batch 2", "alexnet --batch 8", "googlenet --batch 4",
    "inception-v3 --batch 4", "inception-resnet-v2 --batch 2", "mobilenet-v2", "efficientnet-b0 --batch 4", "convnext-tiny --batch 4",
    "vit-b-16 --batch 4", "unet --batch 2", "diffusion --batch 4", "lstm", "lstm --length 200", "seq2seq", "gpt", "llama", "kmeans",
]
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(program, arguments):
    begun, marks, times = time.monotonic(), {}, []
    process = subprocess.Popen([program, "train", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        mark = "begins" if line.startswith("Iterations") else (re.match(r"\s*(iteration [01])\s", line) or [None])[0]
        if mark:
            marks.setdefault(mark.strip(), (time.monotonic() - begun, processor(process.pid)))
    error = process.stderr.read()
    process.wait()
    return marks, (time.monotonic() - begun), error


def main():
    program, iterations = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "5"
    own = [" ".join(sys.argv[3:])] if len(sys.argv) > 3 else []
    for network in own or [f"--model {network} --memory 50%" for network in NETWORKS]:
        marks, length, error = measure(program, [*network.split(), "--iterations", iterations])
        if "begins" not in marks:
            print(f"{network}: {error.strip()}", flush=True)
            continue
        steps = [marks.get(name, (0, 0)) for name in ["begins", "iteration 0", "iteration 1"]]
        first, zero, one = steps
        print(
            f"{network}: begins at {first[0]:.2f} s (processor {first[1]:.2f}), iteration 0 {zero[0] - first[0]:.2f} s ({zero[1] - first[1]:.2f}),"
            f" up to the end of iteration 1 {one[0] - zero[0]:.2f} s ({one[1] - zero[1]:.2f}); {length:.1f} s in all",
            flush=True,
        )


main()
