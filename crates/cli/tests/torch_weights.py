"""Compares losses with PyTorch's, from weights in the names of torchvision and Hugging Face, and loads what `--save-weights` writes.

Usage: torch_weights.py ELBOWROOM [MODEL…] (needs torch, torchvision, transformers, safetensors and pillow; downloads nothing, the weights are random).

For each model: a state dict of the real module becomes a file; loss and accuracy of `evaluate --weights` equal those of the module in evaluation to
1e-4 of the loss, and so does the loss of the first training iteration where the module has no dropout; after an iteration, the module loads the file of
`--save-weights` with strict=True, and its loss equals that of `evaluate` on this file."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
program = str(Path(sys.argv[1]).resolve())
TOLERANCE = 1e-4
SAMPLES, CLASSES, TOKENS = 4, 1000, 64
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# Image size, and whether a training iteration is the same computation: no dropout, no auxiliary classifier.
VISION = {
    "resnet18": (224, True),
    "resnet50": (224, True),
    "densenet121": (224, True),
    "vgg16": (224, False),
    "inception-v3": (299, False),
}


def run(folder, command, *arguments):
    done = subprocess.run([program, command, *arguments, "--json"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expect_equal(what, ours, theirs):
    difference = abs(ours - theirs)
    print(f"  {what}: {ours:.6f}, PyTorch {theirs:.6f}, difference {difference:.1e}", flush=True)
    assert difference <= TOLERANCE * max(1.0, abs(theirs)), what


def images(folder, size):
    """Random images in a table, with their labels and what the module is given."""
    random, lines, batch, labels = np.random.default_rng(size), [], [], []
    for index in range(SAMPLES):
        pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        labels.append(int(random.integers(CLASSES - 1)))
        lines.append(f"{index}.png,{labels[-1]}")
        batch.append((pixels.astype(np.float32) / 255 - MEAN) / DEVIATION)
    # The last label makes the number of classes known.
    labels[-1] = CLASSES - 1
    lines[-1] = f"{SAMPLES - 1}.png,{CLASSES - 1}"
    (folder / "table.csv").write_text("\n".join(lines))
    return torch.tensor(np.array(batch), dtype=torch.float32).permute(0, 3, 1, 2), torch.tensor(labels)


def text(folder):
    """Windows of a text as evaluation reads them: side by side, each with the token that follows every token."""
    content = bytes(np.random.default_rng(1).integers(32, 127, SAMPLES * TOKENS + 1, dtype=np.uint8))
    (folder / "t.txt").write_bytes(content)
    tokens = torch.tensor(list(content))
    return tokens[:-1].view(SAMPLES, TOKENS), tokens[1:].view(SAMPLES, TOKENS)


def loss(module, x, labels):
    with torch.no_grad():
        y = module(x)
    logits = getattr(y, "logits", y)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).item()


def compare(name, module, size, same_in_training):
    print(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if size is None:
            x, labels = text(folder)
            network = ["--length", str(TOKENS), "--data", "t.txt"]
        else:
            x, labels = images(folder, size)
            network = ["--image", str(size), "--classes", str(CLASSES), "--data", "table.csv"]
        network = ["--model", name, "--batch", str(SAMPLES), "--memory", "90%", "--evaluations", "10", *network]
        # Running statistics as after a training, so that activations stay in range.
        norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        for part in norms:
            part.momentum = None
        if norms:
            module.train()
            loss(module, x, labels)
        state = {k: v for k, v in module.state_dict().items() if k != "lm_head.weight"}
        save_file(state, folder / "w")
        module.eval()
        expect_equal("evaluation", run(folder, "evaluate", *network, "--weights", "w")["eval_loss"][0], loss(module, x, labels))
        arguments = ["--weights", "w", "--iterations", "1", "--save-weights", "tuned"]
        first = run(folder, "train", *network, *arguments)["losses"][0]
        if same_in_training:
            module.train()
            expect_equal("first iteration", first, loss(module, x, labels))
        module.load_state_dict(load_file(folder / "tuned"), strict=True)
        module.eval()
        tuned = run(folder, "evaluate", *network, "--weights", "tuned")["eval_loss"][0]
        expect_equal("after an iteration", tuned, loss(module, x, labels))


chosen = sys.argv[2:] or [*VISION, "gpt2"]
for name in chosen:
    torch.manual_seed(7)
    if name == "gpt2":
        # Sequences are shorter than the module's positions, which are all kept.
        config = transformers.GPT2Config()
        compare(name, transformers.GPT2LMHeadModel(config), None, False)
    else:
        size, same_in_training = VISION[name]
        more = {"init_weights": False} if name == "inception-v3" else {}
        module = getattr(torchvision.models, name.replace("-", "_"))(num_classes=CLASSES, **more)
        compare(name, module, size, same_in_training)
