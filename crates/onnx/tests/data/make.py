"""Writes the networks of the tests, and the losses that PyTorch trains them to.

Usage: make.py [NAME…] (needs torch, onnx and onnxscript; writes NAME.onnx, of every network without a name, and losses.json to its own folder)

Each network is exported in training mode, and trained by SGD (rate 0.05, momentum 0.9, weight decay 5e-4) on one fixed batch, whose numbers the
tests compute as well: element i of the input is sin(0.37 i), label i is (7 i + 3) mod classes, token i is (5 i + i // 7) mod vocabulary, target i is cos(0.21 i)."""

import copy
import json
import sys
from pathlib import Path

import onnx
import torch
from torch import nn

HERE = Path(__file__).parent
RATE, MOMENTUM, DECAY, ITERATIONS = 0.05, 0.9, 5e-4, 3
# How networks are exported: by the exporter that PyTorch 2.9 and later use by default, or by the older one.
DEFAULT = {"dynamo": True, "external_data": False, "dynamic_shapes": ({0: "batch"},), "opset_version": 20}
NEWER = {
    "mobile": {**DEFAULT, "optimize": False},
    "merged": {**DEFAULT, "optimize": True},
    "random": {**DEFAULT, "optimize": False},
    "functions": {**DEFAULT, "optimize": False},
    # Sizes are tensors of the file here.
    "sized": {**DEFAULT, "optimize": True},
    # Its batch is that of the example.
    "fixed": {**DEFAULT, "optimize": False, "dynamic_shapes": None},
    "resized": {**DEFAULT, "optimize": False},
    "language": {**DEFAULT, "optimize": False},
    "windows": {**DEFAULT, "optimize": False},
    "rotary": {**DEFAULT, "optimize": False},
    "dropped": {**DEFAULT, "optimize": False},
    "roots": {**DEFAULT, "optimize": False},
    # The same network in a version that has attention as one operation.
    "attention": {**DEFAULT, "optimize": False, "opset_version": 23},
}
OLDER = {
    "dynamo": False,
    "training": torch.onnx.TrainingMode.TRAINING,
    "do_constant_folding": False,
    "opset_version": 17,
    "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}},
}
BATCH, CLASSES, VOCABULARY, LENGTH, WIDTH, HEADS = 16, 5, 11, 6, 16, 4


class Images(nn.Module):
    """Convolutions of every kind, normalizations, squeeze and excitation, attention as of PyTorch's own layer, and GELU."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.SiLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid())
        self.down = nn.Conv2d(8, 8, 2, stride=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.project = nn.Conv2d(12, WIDTH, 1)
        self.scale = nn.Parameter(torch.full((WIDTH, 1, 1), 0.5))
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        y = torch.relu(self.depthwise(x)) + x
        y = y * self.squeeze(y)
        x = torch.cat([y, self.up(self.down(y))], 1)
        x = self.project(self.pool(x)) * self.scale
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        z = self.norm1(x)
        x = x + self.attention(z, z, z, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.head(torch.tanh(x[:, 0] + x[:, 1:].mean(1)))


class Tokens(nn.Module):
    """A causal transformer with its own projections."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=bias) for bias in [True, False, True, True])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        y = self.norm(x)
        q, k, v = (layer(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2) for layer in [self.q, self.k, self.v])
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return self.head(nn.functional.gelu(x))


class Regression(nn.Module):
    """Two dense layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.Sigmoid(), nn.Linear(9, 4))

    def forward(self, x):
        return self.layers(x)


class Mobile(nn.Module):
    """What small networks of today have: hard activations, shuffled halves of channels, padding on one side, sums over axes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid())
        self.left, self.right = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(5, 6, 1)
        self.leaky, self.head = nn.LeakyReLU(0.2), nn.Linear(48, CLASSES)

    def forward(self, x):
        x = self.stem(nn.functional.pad(x, (0, 1, 0, 1)))
        x = x * self.squeeze(x)
        left, right = torch.split(x, [3, 5], 1)
        x = torch.stack([self.left(left), self.right(right)], 2).flatten(1, 2)
        x = nn.functional.pixel_unshuffle(nn.functional.pixel_shuffle(self.leaky(x), 2) ** 2, 4)
        return self.head(x.sum((2, 3)))


class Merged(nn.Module):
    """Normalizations and scales with equal weights, which the exporter stores once."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
            self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
            self.gamma1, self.gamma2 = nn.Parameter(torch.full((12,), 0.5)), nn.Parameter(torch.full((12,), 0.5))

        def forward(self, x):
            x = x + self.gamma1 * self.first(self.norm1(x))
            return x + self.gamma2 * torch.tanh(self.second(self.norm2(x)))

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(9, 12), nn.Linear(12, CLASSES)
        self.blocks = nn.Sequential(self.Block(), self.Block())
        self.twice = nn.LayerNorm(12)

    def forward(self, x):
        return self.head(self.twice(self.blocks(self.twice(self.stem(x)))))


class Language(nn.Module):
    """A causal transformer as libraries of language models write it: positions and token types that known numbers look up, GELU in parts."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions, self.types = (nn.Embedding(count, WIDTH) for count in [VOCABULARY, 8, 2])
        self.register_buffer("order", torch.arange(8)[None])
        self.register_buffer("kinds", torch.zeros(1, 8, dtype=torch.long))
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, tokens):
        tokens = tokens.view(-1, LENGTH)
        order = self.order[:, :LENGTH]
        kinds = torch.gather(self.kinds, 1, order).expand(2, LENGTH)[:1]
        x = self.tokens(tokens) + self.positions(order) + self.types(kinds)
        q, k, v = (part.view(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(self.norm(x)).split(WIDTH, 2))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.up(x)
        y = 0.5 * y * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (y + 0.044715 * torch.pow(y, 3.0))))
        y = self.last(x + self.down(y))
        return y @ self.tokens.weight.t() + torch.pow(y.mean(2, keepdim=True), 3.0) - torch.pow(y.mean(2, keepdim=True), 2.0)


class Random(nn.Module):
    """Dropout in the forms that the exporter writes in parts: in place, of planes, and of samples as stochastic depth has it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(0.25, inplace=True)

    def forward(self, x):
        x = nn.functional.dropout2d(torch.relu(self.first(x)), 0.1, self.training)
        y = self.second(x)
        if self.training:
            y = y * torch.empty(y.shape[0], 1, 1, 1).bernoulli_(0.8).div_(0.8)
        return self.head(self.drop((x + y).mean((2, 3))))


class Resized(nn.Module):
    """Images that become larger and smaller in every way that exporters write as one operation."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, CLASSES)
        self.inner = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))
        self.ways = nn.ModuleList(
            nn.Upsample(**way)
            for way in [
                {"scale_factor": 2},
                {"size": (11, 7), "mode": "bilinear"},
                {"size": (5, 9), "mode": "bilinear", "align_corners": True},
                {"scale_factor": (1.6, 0.75), "mode": "bicubic"},
                {"size": (3, 11)},
            ]
        )

    def forward(self, x):
        x = self.stem(x)
        for layer, way in zip(self.inner, self.ways):
            x = torch.tanh(layer(way(x)))
        return self.head(x.mean((2, 3)))


class Functions(nn.Module):
    """Functions of elements, each between two layers, then what repeats over distant axes, elements with gaps, and maxima."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, CLASSES)
        self.inner = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(5))
        self.functions = [nn.ELU(0.7), nn.PReLU(8), nn.PReLU(), nn.Hardtanh(-0.4, 0.3), lambda x: x.clamp(min=-0.1)]
        self.register_buffer("order", torch.tensor([3, 0, 7, 7, 1, 2, 6, 5]))
        self.slopes, self.largest = nn.ModuleList(self.functions[1:3]), nn.AdaptiveMaxPool2d(1)

    def forward(self, x):
        x = self.stem(x)
        for layer, function in zip(self.inner, self.functions):
            x = x + function(layer(x))
        x = torch.clamp(x, -1.5, 1.5)
        x = x * torch.sigmoid(x.mean(1, keepdim=True)) + x.mean(2, keepdim=True).expand(-1, -1, 8, -1)
        x = nn.functional.pad(nn.functional.pad(x, (2, 1, 0, 3), "reflect"), (1, 0, 2, 0), "replicate").flip(3).roll(1, 1)
        x = torch.index_select(x, 1, self.order)[:, :, 3:11, 2:10]
        largest = x[:, :, 1:6:2].amax((2, 3)) + self.largest(x).flatten(1)
        return self.head(x[:, :, ::2, 1::3].mean((2, 3)) + 0.2 * largest)


class Windows(nn.Module):
    """Attention that is no op by itself: in windows with a table of biases and a mask, with heads that are mixed, and with wider values."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, WIDTH, 1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.table, self.biases = nn.Parameter(torch.randn(49, HEADS)), nn.Parameter(torch.randn(2, 7, 7))
        self.qkv, self.out, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(HEADS, HEADS)
        self.key, self.value, self.project = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 12), nn.Linear(24, WIDTH)
        self.slope = nn.Parameter(torch.tensor(0.7))
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])
        self.register_buffer("rows", apart[0])
        self.register_buffer("columns", apart[1])
        area = torch.zeros(1, 8, 8, 1)
        area[:, 2:6, :] = 1
        area[:, 6:, 4:] = 2
        area = self.cut(area).squeeze(-1)
        self.register_buffer("mask", torch.zeros(4, 16, 16).masked_fill(area[:, :, None] != area[:, None, :], -100.0))

    def cut(self, x):
        return x.view(-1, 2, 4, 2, 4, x.shape[-1]).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, x.shape[-1])

    def windows(self, x):
        x = self.cut(torch.roll(x, (-2, -2), (1, 2)))
        q, k, v = self.qkv(x).view(-1, 16, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(16, 16, HEADS).permute(2, 0, 1)
        scores = (q * 0.5) @ k.transpose(-2, -1) + bias
        scores = (scores.view(-1, 4, HEADS, 16, 16) + self.mask[None, :, None]).view(-1, HEADS, 16, 16)
        p = self.mix(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.out((p @ v).transpose(1, 2).reshape(-1, 16, WIDTH))
        return x.view(-1, 2, 2, 4, 4, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, 8, WIDTH)

    def pooled(self, x):
        x = x[:, ::2, ::2].flatten(1, 2)
        # Both heads share keys and values.
        k, v = self.key(x)[:, None, :, :4].transpose(2, 3), self.value(x)[:, None]
        q = self.key(x).view(-1, 16, 2, 4).transpose(1, 2)
        p = (q @ k * 0.5 + self.biases[:, self.rows, self.columns]).softmax(-1)
        return self.project((p @ v).transpose(1, 2).flatten(2)).tile(1, 2, 1)

    def forward(self, x):
        x = self.norm(self.stem(x).permute(0, 2, 3, 1))
        x = x + self.windows(x)
        x = self.pooled(x)
        x = x * torch.softmax(self.slope * x, 1)
        return self.head(x.sum(1))


class Rotary(nn.Module):
    """A language model as LLaMA's users write it: roots of mean squares and rotary positions in parts, keys that heads share."""

    def __init__(self, dropped):
        super().__init__()
        self.dropped = dropped
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.q, self.k, self.v = (nn.Linear(WIDTH, width, bias=False) for width in [WIDTH, 8, 8])
        self.out, self.gate, self.up = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.norm1, self.norm2 = nn.Parameter(torch.full((WIDTH,), 0.9)), nn.Parameter(torch.full((WIDTH,), 1.1))
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4), persistent=False)

    def norm(self, x, weight):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def turned(self, x, angles):
        half = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * angles.cos() + half * angles.sin()

    def forward(self, tokens):
        tokens = tokens.view(-1, LENGTH)
        x = self.tokens(tokens)
        angles = (self.frequencies[None, :, None] @ torch.arange(LENGTH)[None, None, :].float()).transpose(1, 2)
        angles = torch.cat([angles, angles], -1)[:, None]
        y = self.norm(x, self.norm1)
        q, k, v = (layer(y).view(-1, LENGTH, layer.out_features // 4, 4).transpose(1, 2) for layer in [self.q, self.k, self.v])
        q, k = self.turned(q, angles), self.turned(k, angles)
        k, v = (part[:, :, None].expand(-1, 2, 2, LENGTH, 4).reshape(-1, HEADS, LENGTH, 4) for part in [k, v])
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        scores = torch.where(seen, q @ k.transpose(2, 3) / 2.0, torch.finfo(torch.float32).min)
        p = nn.functional.dropout(scores.softmax(-1), self.dropped, self.training)
        x = x + self.out((p @ v).transpose(1, 2).flatten(2))
        y = self.norm(x, self.norm2)
        return self.head(x + nn.functional.silu(self.gate(y)) * self.up(y))


class Roots(nn.Module):
    """Exponentials, logarithms, roots and quotients, weights that are computed, comparisons, and a normalization that is written in parts."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, CLASSES)
        self.inner = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(9))
        self.functions = [
            lambda x: torch.exp(-x.abs()),
            lambda x: torch.log(x * x + 0.5),
            lambda x: x / torch.sqrt(x * x + 1.0),
            lambda x: 1.0 / (2.0 + x.abs()),
            nn.Softplus(),
            nn.Mish(),
            nn.SELU(),
            nn.CELU(0.7),
            lambda x: nn.functional.normalize(x, dim=1),
        ]
        self.gamma, self.beta = nn.Parameter(torch.full((8,), 0.8)), nn.Parameter(torch.full((8,), 0.1))
        self.plain, self.filters = nn.BatchNorm2d(8, track_running_stats=False), nn.Parameter(torch.randn(8, 8, 3, 3))
        self.matrix, self.gates, self.shift = (nn.Parameter(torch.randn(*dims)) for dims in [(8, 8), (8, 8), (8,)])
        self.register_buffer("kept", torch.arange(64).view(8, 8) % 3 != 0)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8).view(8, 1))

    def forward(self, x):
        x = self.stem(x)
        for layer, function in zip(self.inner, self.functions):
            x = x + function(layer(x))
        x = nn.functional.conv2d(x, self.filters / self.filters.pow(2).sum((1, 2, 3), keepdim=True).sqrt(), padding=1)
        x = self.plain(x)
        x = torch.where(x > 0.3, x, 0.2 * x) + (x.mean(2, keepdim=True) * x.mean(3, keepdim=True)).relu()
        x = torch.einsum("bchw,dc->bdhw", x, torch.tanh(self.gates))
        x = torch.where(self.kept, x, 0.25) * self.scale
        x = x.permute(0, 2, 3, 1)
        d = x - x.mean(-1, keepdim=True)
        x = d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gamma + self.beta
        x = x.mean((1, 2)) + 0.1 * x.norm(p=1, dim=(1, 2)) / 64 + (x**2).sum((1, 2)) ** 0.5 / 64
        return self.head(nn.functional.linear(x, nn.functional.normalize(self.matrix, dim=1), self.shift))


class Blocks(nn.Module):
    """Blocks of pixels as channels and back, as ONNX defines them."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Conv2d(12, 8, 1), nn.Linear(2 * 8 * 8, CLASSES)

    def forward(self, x):
        x = x.view(-1, 3, 4, 2, 4, 2).permute(0, 3, 5, 1, 2, 4).reshape(-1, 12, 4, 4)
        x = torch.relu(self.inner(x))
        x = x.view(-1, 2, 2, 2, 4, 4).permute(0, 3, 4, 1, 5, 2).reshape(-1, 2, 8, 8)
        return self.head(x.flatten(1))

    def save(self, path):
        """PyTorch's exporters write neither SpaceToDepth nor this order of channels in DepthToSpace."""
        node = onnx.helper.make_node
        weights = [onnx.numpy_helper.from_array(value.detach().numpy(), name) for name, value in self.named_parameters()]
        nodes = [
            node("SpaceToDepth", ["x"], ["deep"], blocksize=2),
            node("Conv", ["deep", "inner.weight", "inner.bias"], ["inner"], kernel_shape=[1, 1]),
            node("Relu", ["inner"], ["relu"]),
            node("DepthToSpace", ["relu"], ["wide"], blocksize=2, mode="DCR"),
            node("Flatten", ["wide"], ["flat"]),
            node("Gemm", ["flat", "head.weight", "head.bias"], ["y"], transB=1),
        ]
        value = lambda name, dims: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        graph = onnx.helper.make_graph(nodes, "blocks", [value("x", ["batch", 3, 8, 8])], [value("y", ["batch", CLASSES])], weights)
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)


# Modules of nodes, and whether a tensor is a parameter or a buffer.
KEPT = ["pkg.torch.onnx.name_scopes", "pkg.torch.export.graph_signature.InputSpec.kind"]


def strip(path):
    """Removes what the exporter says of its sources, but for what is read."""
    model = onnx.load(path)
    graph = model.graph
    for part in [model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info]:
        kept = [entry for entry in part.metadata_props if entry.key in KEPT]
        del part.metadata_props[:]
        part.metadata_props.extend(kept)
    onnx.save(model, path)


def losses(module, x, loss):
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    found = []
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        value = loss(module(x))
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def main():
    torch.manual_seed(1)
    count = torch.arange(10_000, dtype=torch.float64)
    sine = lambda *shape: torch.sin(0.37 * count[: torch.Size(shape).numel()]).float().view(shape)
    labels = lambda count, classes: torch.tensor([(7 * i + 3) % classes for i in range(count)])
    tokens = torch.tensor([(5 * i + i // 7) % VOCABULARY for i in range(BATCH * LENGTH)]).view(BATCH, LENGTH)
    entropy = nn.functional.cross_entropy
    cases = {
        "images": (Images(), sine(BATCH, 3, 8, 8), lambda y: entropy(y, labels(BATCH, CLASSES))),
        "tokens": (Tokens(), tokens, lambda y: entropy(y.flatten(0, 1), labels(BATCH * LENGTH, VOCABULARY))),
        "regression": (
            Regression(),
            sine(BATCH, 6),
            lambda y: nn.functional.mse_loss(y, torch.cos(0.21 * count[: y.numel()]).float().view(y.shape)),
        ),
    }
    cases["mobile"] = (Mobile(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["merged"] = (Merged(), sine(BATCH, 9), cases["images"][2])
    cases["random"] = (Random(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["resized"] = (Resized(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["sized"] = cases["resized"]
    cases["fixed"] = (Regression(), sine(4, 6), cases["regression"][2])
    cases["functions"] = (Functions(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["blocks"] = (Blocks(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["language"] = (Language(), tokens, cases["tokens"][2])
    cases["attention"] = cases["language"]
    cases["windows"] = (Windows(), sine(BATCH, 3, 8, 8), cases["images"][2])
    cases["rotary"] = (Rotary(0.0), tokens, cases["tokens"][2])
    cases["dropped"] = (Rotary(0.2), tokens, cases["tokens"][2])
    cases["roots"] = (Roots(), sine(BATCH, 3, 8, 8), cases["images"][2])
    table = json.loads((HERE / "losses.json").read_text())
    for name in sys.argv[1:] or cases:
        module, x, loss = cases[name]
        module.train()
        path = str(HERE / f"{name}.onnx")
        if name == "blocks":
            module.save(path)
        else:
            torch.onnx.export(module, (x,), path, input_names=["x"], output_names=["y"], **NEWER.get(name, OLDER))
        if name in NEWER:
            strip(path)
        if name in ["random", "dropped"]:
            # PyTorch's masks are other ones, and evaluation has none.
            table[name] = [loss(module.eval()(x)).item()]
        else:
            table[name] = losses(copy.deepcopy(module), x, loss)
    (HERE / "losses.json").write_text(json.dumps(table, indent=1) + "\n")


main()
