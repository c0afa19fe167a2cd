"""Trains networks that PyTorch exported to ONNX, and compares the first losses with PyTorch's.

Usage: torch_onnx.py ELBOWROOM [MODEL…] (needs torch, torchvision, onnx, onnxscript and pillow; downloads nothing, the weights are random)

For each model of torchvision: both exporters of PyTorch export the module in training mode with an open batch, its dropout and stochastic depth set to zero, because PyTorch's
masks are not ours. `train --model FILE.onnx` runs three iterations on eight images in half of the unconstrained peak, and PyTorch's SGD of the
same rate, momentum and decay runs three on the same batch. Every loss is equal to 1e-4 of it; `evaluate` without weights, before any training,
gives the loss of the module in evaluation."""

import itertools
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image

warnings.filterwarnings("ignore")
program = str(Path(sys.argv[1]).resolve())
TOLERANCE, ITERATIONS, SAMPLES, SIZE = 1e-4, 3, 8, 224
# Rounding grows from step to step in MobileNet-v2 with random weights: at a rate of 0.01, PyTorch on one thread and on two is 1e-3 of the second loss
# apart; at 0.001, our third loss is 2e-4 from PyTorch's, and this script says so.
RATE, MOMENTUM, DECAY = 0.001, 0.9, 5e-4
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def without_chance(module):
    """The module with no random part, and with eager attention, which alone exports as operations of ONNX."""
    for part in module.modules():
        if isinstance(part, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            part.p = 0.0
    return module


def images(folder):
    """Writes images of two classes, and returns them as the network sees them, with their labels."""
    random = np.random.default_rng(1)
    batch, labels = [], []
    for sample in range(SAMPLES):
        pixels = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        place = folder / f"class{sample % 2}"
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(place / f"{sample}.png")
        batch.append((pixels / 255.0 - MEAN) / DEVIATION)
        labels.append(sample % 2)
    return torch.tensor(np.stack(batch)).permute(0, 3, 1, 2).float().contiguous(), torch.tensor(labels)


def run(*arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stderr}")
    return json.loads(done.stdout)


# The default since PyTorch 2.9 and the older exporter, both so that the file has every weight of the module by itself. The first one wants an example
# whose memory is in the usual order.
EXPORTERS = {
    "default": {"dynamo": True, "optimize": False, "dynamic_shapes": ({0: "batch"},)},
    "older": {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.TRAINING,
        "do_constant_folding": False,
        "opset_version": 17,
        "dynamic_axes": {"images": {0: "batch"}, "logits": {0: "batch"}},
    },
}


def compare(name, exporter, folder):
    torch.manual_seed(0)
    module = without_chance(getattr(torchvision.models, name)(weights=None))
    x, labels = images(folder)
    path = folder / f"{name}.onnx"
    module.train()
    torch.onnx.export(module, (x[:2],), str(path), input_names=["images"], output_names=["logits"], **EXPORTERS[exporter])
    loss = torch.nn.functional.cross_entropy
    module.eval()
    with torch.no_grad():
        theirs = [loss(module(x), labels).item()]
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        value = loss(module(x), labels)
        value.backward()
        optimizer.step()
        theirs.append(value.item())
    common = ["--model", path, "--batch", SAMPLES, "--data", folder, "--json", "--time", "2s"]
    sgd = ["--optimizer", "sgd", "--learning-rate", RATE, "--weight-decay", DECAY]
    evaluated = run("evaluate", *common, "--memory", "100%")["eval_loss"][0]
    trained = run("train", *common, *sgd, "--memory", "50%", "--iterations", ITERATIONS)
    ours = [evaluated, *trained["losses"]]
    worst = max(abs(a / b - 1) for a, b in zip(ours, theirs))
    print(f"{name}, {exporter} exporter: {ours} ours, {theirs} PyTorch's, at most {worst:.1e} apart")
    return worst <= TOLERANCE


def main():
    small = ["mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x0_5"]
    names = sys.argv[2:] or [*small, "resnet18", "vgg11", "densenet121", "vit_b_16", "convnext_tiny"]
    wrong = []
    for name, exporter in itertools.product(names, EXPORTERS):
        with tempfile.TemporaryDirectory() as folder:
            if not compare(name, exporter, Path(folder)):
                wrong.append(f"{name}, {exporter} exporter")
    if wrong:
        sys.exit(f"different losses: {', '.join(wrong)}")


main()
