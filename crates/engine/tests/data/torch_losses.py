"""Writes torch_losses.txt: what PyTorch computes in double precision for networks of today, with weights and inputs by formulas.

    python torch_losses.py > torch_losses.txt
    python torch_losses.py bf16 > torch_losses_bf16.txt

The second writes the losses alone, of iterations in bf16: parameters, which are in single precision, are rounded to bf16 for every iteration,
except those of most normalizations; every operation gives bf16; losses, gradients of parameters and updates are in single precision.

Needs torch, torchvision, transformers and numpy. `torch_networks.rs` computes the same with the kernels. Lines, with tabs between the fields:

    NETWORK loss ITERATION LOSS            losses of three iterations of SGD (rate 0.01, momentum 0.9, weight decay 0.0005), no dropout
    NETWORK NAME NORM PROBE                a parameter's gradient in the first iteration: its norm, and its product with a fixed vector
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

BF16 = sys.argv[1:] == ["bf16"]
# Of what is computed from formulas, and of parameters, losses and updates.
WIDE = torch.float32 if BF16 else torch.float64
# Of activations.
NARROW = torch.bfloat16 if BF16 else torch.float64
torch.set_default_dtype(WIDE)
torch.set_num_threads(1)
SEED = 77
CLASSES = 10


def values(name, count):
    """Numbers in -1..1 that look random."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(h) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(32)
    return (x >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def single(numbers):
    """The nearest single-precision numbers, as doubles where those are computed with."""
    return torch.from_numpy(numbers.astype(np.float32)).to(WIDE)


def weight(name, shape):
    u = values(name, int(np.prod(shape)))
    if len(shape) == 1:
        u = 1 + 0.2 * u if name.endswith("weight") else 0.1 * u
    else:
        u = u * np.sqrt(3 / np.prod(shape[1:]))
    return single(u).reshape(tuple(shape))


def picks(name, count, below):
    return torch.from_numpy(np.floor((values(name, count) + 1) / 2 * below).astype(np.int64))


def philox(block, stream, iteration):
    c = [block, stream, iteration % 2**32, iteration >> 32]
    k = [SEED % 2**32, SEED >> 32]
    for turn in range(10):
        if turn:
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32]
    return c


def words(count, stream, iteration):
    return np.array([w for b in range(-(-count // 4)) for w in philox(b, stream, iteration)][:count], dtype=np.float64)


class Residual(nn.Module):
    def __init__(self, before, channels, time):
        super().__init__()
        self.norm1 = norm(before)
        self.conv1 = nn.Conv2d(before, channels, 3, padding=1)
        self.time = nn.Linear(time, channels)
        self.norm2 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        if before != channels:
            self.shortcut = nn.Conv2d(before, channels, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return (self.shortcut(x) if hasattr(self, "shortcut") else x) + y


def norm(channels):
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


class Attend(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.heads = channels // 32 if channels % 32 == 0 else 1

    def forward(self, x):
        n, c, h, w = x.shape
        y = self.qkv(self.norm(x).flatten(2).transpose(1, 2))
        q, k, v = y.reshape(n, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.out(y).transpose(1, 2).reshape(n, c, h, w)


class Diffusion(nn.Module):
    """The zoo's `diffusion`."""

    def __init__(self, width):
        super().__init__()
        self.width, time = width, 4 * width
        wide = [width, 2 * width, 2 * width]
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time), nn.SiLU())
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(b, c, time) for b, c in zip([width] + wide, wide))
        self.halve = nn.ModuleList(nn.Conv2d(c, c, 3, stride=2, padding=1) for c in wide[:2])
        self.middle = nn.ModuleList([Residual(wide[2], wide[2], time), Attend(wide[2]), Residual(wide[2], wide[2], time)])
        before = [wide[1] + wide[0], wide[2] + wide[1], wide[2] + wide[2]]
        self.up = nn.ModuleList(Residual(b, c, time) for b, c in zip(before, wide))
        self.enlarge = nn.ModuleDict({str(i): nn.ConvTranspose2d(wide[i], wide[i], 4, stride=2, padding=1) for i in (1, 2)})
        self.end = nn.ModuleList([norm(width), nn.Conv2d(width, 3, 3, padding=1)])

    def forward(self, x, iteration):
        n = len(x)
        # The streams in the order in which the network draws.
        u = (words(x.numel(), 0, iteration) + 0.5) / 2**32
        radius, angle = np.sqrt(-2 * np.log(u[0::2])), 2 * np.pi * u[1::2]
        noise = single(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)).reshape(x.shape)
        steps = np.floor(words(n, 1, iteration) * 1000 / 2**32).astype(int)
        kept = torch.from_numpy(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[steps])[:, None, None, None]
        half = self.width // 2
        angle = torch.from_numpy(steps[:, None] * 10_000.0 ** (-np.arange(half) / half))
        time = self.time(torch.cat([angle.cos(), angle.sin()], 1).to(NARROW))
        y = self.begin((kept.sqrt() * x + (1 - kept).sqrt() * noise).to(NARROW))
        skips = []
        for level in range(3):
            y = self.down[level](y, time)
            skips.append(y)
            if level < 2:
                y = self.halve[level](y)
        y = self.middle[2](self.middle[1](self.middle[0](y, time)), time)
        for level in (2, 1, 0):
            y = self.up[level](torch.cat([y, skips[level]], 1), time)
            if level:
                y = self.enlarge[str(level)](y)
        y = self.end[1](F.silu(self.end[0](y)))
        return F.mse_loss(y.to(WIDE), noise.to(NARROW).to(WIDE))


def images(batch, size):
    return single(values("images", batch * 3 * size * size)).reshape(batch, 3, size, size)


def classifier(model, batch, size):
    x, labels = images(batch, size).to(NARROW), picks("labels", batch, CLASSES)
    return model, lambda call, iteration: F.cross_entropy(call(x).to(WIDE), labels)


def language(model, batch, length, vocabulary):
    tokens = picks("tokens", batch * length, vocabulary).reshape(batch, length)
    labels = picks("labels", batch * length, vocabulary)
    return model, lambda call, iteration: F.cross_entropy(call(input_ids=tokens).logits.flatten(0, 1).to(WIDE), labels)


def diffusion(model, batch, size):
    x = images(batch, size)
    return model, lambda call, iteration: call(x, iteration)


def networks():
    from torchvision import models
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    from transformers import LlamaConfig, LlamaForCausalLM

    yield "mobilenet-v2", classifier(models.mobilenet_v2(num_classes=CLASSES), 6, 96)
    yield "efficientnet-b0", classifier(models.efficientnet_b0(num_classes=CLASSES), 6, 96)
    wide = [24, 48, 96, 192]
    stages = [CNBlockConfig(c, d, n) for c, d, n in zip(wide, wide[1:] + [None], [3, 3, 9, 3])]
    yield "convnext-tiny", classifier(ConvNeXt(stages, num_classes=CLASSES), 2, 96)
    vit = models.VisionTransformer(96, 16, 2, 2, 128, 512, num_classes=CLASSES)
    yield "vit-b-16", classifier(vit, 2, 96)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    yield "llama", language(LlamaForCausalLM(config).to(WIDE), 2, 20, 50)
    yield "diffusion", diffusion(Diffusion(16), 2, 16)


def rounded(model):
    """The model with parameters as activations are, except those of PyTorch's normalizations, which take wider ones."""
    if not BF16:
        return model
    wide = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    stay = {f"{name}.{key}" for name, module in model.named_modules() if isinstance(module, wide) for key, _ in module.named_parameters()}
    narrow = {key: parameter.to(NARROW) for key, parameter in model.named_parameters() if key not in stay}
    return lambda *args, **kwargs: functional_call(model, narrow, args, kwargs)


def main():
    for name, (model, loss_of) in networks():
        for module in model.modules():
            if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
                module.p = 0.0
        model.train()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(weight(key, parameter.shape))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        for iteration in range(3):
            optimizer.zero_grad()
            loss = loss_of(rounded(model), iteration)
            loss.backward()
            print(f"{name}\tloss\t{iteration}\t{loss.item():.12e}")
            if iteration == 0 and not BF16:
                for key, parameter in model.named_parameters():
                    g = parameter.grad.flatten().numpy()
                    probe = g @ values(key + ".probe", g.size)
                    print(f"{name}\t{key}\t{np.linalg.norm(g):.9e}\t{probe:.9e}")
            optimizer.step()


if __name__ == "__main__":
    main()
