"""Compares losses with PyTorch's, from weights in the names of torchvision and Hugging Face, and loads what `--save-weights` writes.

Usage: torch_weights.py ELBOWROOM [MODEL…] (needs torch, torchvision, transformers, safetensors and pillow; downloads nothing, the weights are random).

For each model: a state dict of the real module becomes a file; the loss of `evaluate --weights` equals that of the module in evaluation to 1e-4 of the
loss, and so does the loss of the first training iteration, for which the module drops what our masks drop; after an iteration, the module loads the file
of `--save-weights` with strict=True, and its loss equals that of `evaluate` on this file. With other classes: the last layer begins as without the
file, everything else as in the file, and a module with as many classes loads what was saved."""

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
FEWER = 7
# Image sizes.
VISION = {
    "resnet18": 224,
    "resnet50": 224,
    "densenet121": 224,
    "vgg16": 224,
    "inception-v3": 299,
    "mobilenet-v2": 224,
    "efficientnet-b0": 224,
    "convnext-tiny": 224,
    "vit-b-16": 224,
}
AUXILIARY_WEIGHT = 0.4


class Masks:
    """The random masks of the first iteration, as `elbowroom_graph::op::Mask` describes them: one for every dropout, in the order of the network."""

    def __init__(self, seed=0):
        self.stream, self.key = 0, seed
        self.depth = sys.modules["torchvision.ops.stochastic_depth"]

    def __enter__(self):
        self.before = torch.nn.functional.dropout, self.depth.stochastic_depth
        torch.nn.functional.dropout, self.depth.stochastic_depth = self.dropout, self.stochastic_depth

    def __exit__(self, *_):
        torch.nn.functional.dropout, self.depth.stochastic_depth = self.before

    def dropout(self, x, p=0.5, training=True, inplace=False):
        return x if p == 0 or not training else x * self.mask(x.numel(), p).view(x.shape)

    def stochastic_depth(self, x, p, mode, training=True):
        return x if p == 0 or not training else x * self.mask(len(x), p).view(-1, *[1] * (x.dim() - 1))

    def mask(self, count, p):
        p = float(np.float32(p))
        words = philox(np.arange(-(-count // 4), dtype=np.uint64), self.stream, self.key)
        self.stream += 1
        kept = words.T.reshape(-1)[:count] >= int(p * 2**32)
        return torch.tensor(kept / np.float32(1 - p), dtype=torch.float32)


def philox(counters, stream, seed):
    """The words of Philox4x32-10 for these first words of the counter, in iteration 0."""
    low = np.uint64(0xFFFFFFFF)
    a, b, c, d = counters, np.full_like(counters, stream), np.zeros_like(counters), np.zeros_like(counters)
    for turn in range(10):
        keys = [np.uint64((seed + turn * 0x9E3779B9) % 2**32), np.uint64(turn * 0xBB67AE85 % 2**32)]
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        high = np.uint64(32)
        a, b, c, d = (second >> high) ^ b ^ keys[0], second & low, (first >> high) ^ d ^ keys[1], first & low
    return np.stack([a, b, c, d])


def epoch_order(seed=0):
    """The order in which the first epoch visits the samples (`crates/elbowroom/src/data/order.rs`)."""

    def mix(seed, counter):
        z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    samples, epoch = list(range(SAMPLES)), mix(seed, 0)
    for i in range(SAMPLES - 1, 0, -1):
        other = mix(epoch, i) % (i + 1)
        samples[i], samples[other] = samples[other], samples[i]
    return samples


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
    # Training reads windows at random places: of this text there is one.
    (folder / "one.txt").write_bytes(content[: TOKENS + 1])
    tokens = torch.tensor(list(content))
    return tokens[:-1].view(SAMPLES, TOKENS), tokens[1:].view(SAMPLES, TOKENS)


def loss(module, x, labels):
    with torch.no_grad(), Masks():
        y = module(x)
    logits, auxiliary = getattr(y, "logits", y), getattr(y, "aux_logits", None)
    entropy = lambda logits: torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).item()
    return entropy(logits) + (AUXILIARY_WEIGHT * entropy(auxiliary) if auxiliary is not None else 0)


def compare(name, module, size, fewer):
    print(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if size is None:
            x, labels = text(folder)
            network = ["--length", str(TOKENS), "--data", "t.txt"]
        else:
            x, labels = images(folder, size)
            network = ["--image", str(size), "--classes", str(CLASSES), "--data", "table.csv"]
        network = ["--model", name, "--batch", str(SAMPLES), "--memory", "95%", "--evaluations", "10", *network]
        # A module begins with zeros in places, ViT in its last layer, or close to it, ConvNeXt in the scales of its blocks: no fault would show.
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.abs().max() < 1e-3:
                    parameter.normal_(0, 0.1)
        # Running statistics as after a training, so that activations stay in range.
        norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        for part in norms:
            part.momentum = None
        if norms:
            module.train()
            loss(module, x, labels)
        tied = "lm_head.weight" if name == "gpt2" else None
        state = {k: v.clone() for k, v in module.state_dict().items() if k != tied}
        save_file(state, folder / "w")
        module.eval()
        expect_equal("evaluation", run(folder, "evaluate", *network, "--weights", "w")["eval_loss"][0], loss(module, x, labels))
        arguments = ["--weights", "w", "--iterations", "1", "--save-weights", "tuned"]
        first_samples = epoch_order() if size else [0] * SAMPLES
        seen, answers = x[first_samples], labels[first_samples]
        trained = network if size else [*network[:-1], "one.txt"]
        first = run(folder, "train", *trained, *arguments)["losses"][0]
        module.train()
        expect_equal("first iteration", first, loss(module, seen, answers))
        module.load_state_dict(load_file(folder / "tuned"), strict=True)
        module.eval()
        tuned = run(folder, "evaluate", *network, "--weights", "tuned")["eval_loss"][0]
        expect_equal("after an iteration", tuned, loss(module, x, labels))
        if fewer is not None:
            other_classes(folder, network, state, fewer)


def other_classes(folder, network, state, module):
    """Fine-tuning with other classes; a learning rate of zero changes nothing but running statistics."""
    lines = [f"{index}.png,{index % FEWER}" for index in range(SAMPLES - 1)] + [f"{SAMPLES - 1}.png,{FEWER - 1}"]
    (folder / "fewer.csv").write_text("\n".join(lines))
    network = [*network[:-4], "--classes", str(FEWER), "--data", "fewer.csv"]
    still = ["--learning-rate", "1e-30", "--weight-decay", "0", "--iterations", "1"]
    run(folder, "train", *network, *still, "--weights", "w", "--save-weights", "fewer")
    saved = load_file(folder / "fewer")
    module.load_state_dict(saved, strict=True)
    for name, value in state.items():
        trained = value.dtype == torch.float32 and "running" not in name
        if trained and saved[name].shape == value.shape:
            assert torch.allclose(saved[name], value, rtol=1e-6, atol=1e-12), name
    heads = [name for name, value in state.items() if saved[name].shape != value.shape]
    print(f"  {FEWER} classes: {', '.join(heads)} begin anew, {len(saved) - len(heads)} tensors as in the file", flush=True)


chosen = sys.argv[2:] or [*VISION, "gpt2", "llama"]
for name in chosen:
    torch.manual_seed(7)
    if name == "gpt2":
        # Sequences are shorter than the module's positions, which are all kept. Attention drops nothing here.
        config = transformers.GPT2Config(attn_pdrop=0)
        compare(name, transformers.GPT2LMHeadModel(config), None, None)
    elif name == "llama":
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=256, intermediate_size=768, rms_norm_eps=1e-5, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2
        )
        compare(name, transformers.LlamaForCausalLM(config), None, None)
    else:
        more = {"init_weights": False} if name == "inception-v3" else {}
        module = lambda classes: getattr(torchvision.models, name.replace("-", "_"))(num_classes=classes, **more)
        compare(name, module(CLASSES), VISION.get(name, 224), module(FEWER))
