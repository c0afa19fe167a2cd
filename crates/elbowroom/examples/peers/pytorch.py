"""The networks of the examples `speed` and `today` in PyTorch on the processor: same shapes, same optimizers.

Run as `python pytorch.py THREADS [WAY]`, where a way is `eager` (in f32, unless named), `autocast` (eager with operations in bf16 where PyTorch's autocast
wants it), `compiled` (`torch.compile`) or `checkpointed` (sequences of modules in about √n segments, which are computed again). Reads lines from standard input. `NETWORK ITERATIONS` is answered with the times of so many training
iterations in milliseconds, processor times if there is one thread; two that are not counted precede the first ones of a network. `resident` is
answered with the largest resident memory of the process so far in bytes. The examples run it, so that both sides are timed in turns on one machine.
"""

import contextlib
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint_sequential


class Block(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, 0, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return F.relu(y, inplace=True)


def resnet18():
    """The form for CIFAR: a 3x3 stem without pooling."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    inputs = 64
    for stage, outputs in enumerate([64, 128, 256, 512]):
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Bottleneck(nn.Module):
    """The bottleneck block of ResNet, its stride in the middle."""

    def __init__(self, inputs, hidden, stride):
        super().__init__()
        conv = lambda a, b, size, stride: nn.Conv2d(a, b, size, stride, size // 2, bias=False)
        self.conv1, self.bn1 = conv(inputs, hidden, 1, 1), nn.BatchNorm2d(hidden)
        self.conv2, self.bn2 = conv(hidden, hidden, 3, stride), nn.BatchNorm2d(hidden)
        self.conv3, self.bn3 = conv(hidden, 4 * hidden, 1, 1), nn.BatchNorm2d(4 * hidden)
        self.shortcut = None
        if stride != 1 or inputs != 4 * hidden:
            self.shortcut = nn.Sequential(conv(inputs, 4 * hidden, 1, stride), nn.BatchNorm2d(4 * hidden))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return F.relu(y, inplace=True)


def resnet50():
    """The form for ImageNet."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (hidden, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, hidden, 2 if stage and not block else 1))
            inputs = 4 * hidden
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class DenseLayer(nn.Module):
    """Adds 32 channels to what it reads."""

    def __init__(self, inputs):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 128, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        y = self.conv2(F.relu(self.norm2(y), inplace=True))
        return torch.cat([x, y], 1)


def densenet121():
    """The form for CIFAR: a 3x3 stem without pooling."""
    layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for block, count in enumerate([6, 12, 24, 16]):
        for _ in range(count):
            layers.append(DenseLayer(channels))
            channels += 32
        if block < 3:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, 10))


class VitBlock(nn.Module):
    """Normalization first, fused attention of heads of 64 columns, exact GELU, no dropout."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.out_proj(attention(self.in_proj(self.ln_1(x))))
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """ViT-B/16 over images of 224 x 224."""

    def __init__(self):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 768, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 768))
        self.positions = nn.Parameter(torch.randn(1, 197, 768) * 0.02)
        self.layers = nn.Sequential(*[VitBlock(768) for _ in range(12)])
        self.ln, self.head = nn.LayerNorm(768, 1e-6), nn.Linear(768, 1000)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.ln(self.layers(x))[:, 0])


def attention(qkv, causal=False):
    """Fused attention of heads of 64 columns."""
    batch, tokens, width = qkv.shape
    heads = lambda t: t.view(batch, tokens, width // 192, 64).transpose(1, 2)
    q, k, v = (heads(t) for t in qkv.split(width // 3, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return y.transpose(1, 2).reshape(batch, tokens, width // 3)


def vgg16():
    """Configuration D without batch normalization, with the narrow classifier for CIFAR."""
    layers, inputs = [], 3
    for outputs, convolutions in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    hidden = lambda: [nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden(), *hidden(), nn.Linear(512, 10))


class Lstm(nn.Module):
    """The word language model of PyTorch's examples: two layers of 200, dropout around every layer, 256 tokens."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(256, 200)
        self.rnn = nn.LSTM(200, 200, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(200, 256)

    def forward(self, tokens):
        x, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(x)).flatten(0, 1)


class GptBlock(nn.Module):
    """Normalization first, fused causal attention, dropout on both branches."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = self.c_proj(attention(self.c_attn(self.ln_1(x)), causal=True))
        x = x + self.drop(y)
        y = self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return x + self.drop(y)


class Gpt(nn.Module):
    """The output is tied to the token table. Its default size: four blocks of width 256 over 128 bytes."""

    def __init__(self, layers=4, width=256, length=128, vocabulary=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        # GPT-2's deviation. With PyTorch's default of 1, many gradients are subnormal, and products of them take 20 times as long on an Intel processor.
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        self.drop = nn.Dropout(0.1)
        self.h = nn.Sequential(*[GptBlock(width) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe.weight)
        return F.linear(self.ln_f(self.h(x)), self.wte.weight).flatten(0, 1)


def network(name):
    """The model, its inputs and labels, its optimizer."""
    images = lambda batch, size: torch.randn(batch, 3, size, size)
    classes = lambda batch, count=10: torch.randint(count, (batch,))
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    adam = lambda model: torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens = lambda *shape, vocabulary=256: torch.randint(vocabulary, shape)
    gpt2 = lambda: Gpt(12, 768, 1024, 50257)
    make, x, y, optimizer = {
        "resnet18": (resnet18, images(64, 32), classes(64), sgd),
        "resnet50": (resnet50, images(8, 224), classes(8, 1000), sgd),
        "vgg16": (vgg16, images(64, 32), classes(64), sgd),
        "densenet121": (densenet121, images(32, 32), classes(32), sgd),
        "vit-b-16": (Vit, images(4, 224), classes(4, 1000), adam),
        "lstm": (Lstm, tokens(20, 35), tokens(20 * 35), adam),
        "gpt": (Gpt, tokens(8, 128), tokens(8 * 128), adam),
        "gpt2": (gpt2, tokens(1, 1024, vocabulary=50257), tokens(1024, vocabulary=50257), adam),
    }[name]
    model = make().train()
    return model, x, y, optimizer(model)


class Segments(nn.Module):
    """A sequence of modules of which only about √n results are kept (Chen et al. 2016, section 4.1)."""

    def __init__(self, modules):
        super().__init__()
        self.modules_in_order = modules
        self.segments = round(math.sqrt(len(modules)))
        # What a segment begins with is needed again.
        for first in modules[:: len(modules) // self.segments]:
            if isinstance(first, nn.ReLU):
                first.inplace = False

    def forward(self, x):
        return checkpoint_sequential(self.modules_in_order, self.segments, x, use_reentrant=False)


def checkpointed(model):
    """The model with each of its long sequences in segments."""
    for name, child in model.named_children():
        setattr(model, name, checkpointed(child))
    return Segments(model) if isinstance(model, nn.Sequential) and len(model) > 4 else model


def iteration(model, x, y, optimizer, precision):
    """One training iteration, its loss read at the end."""
    optimizer.zero_grad(set_to_none=True)
    with precision():
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def resident():
    """The largest resident memory of this process so far, in bytes."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def main():
    threads, way = int(sys.argv[1]), "".join(sys.argv[2:]) or "eager"
    prepare = {"compiled": torch.compile, "checkpointed": checkpointed}.get(way, lambda model: model)
    precision = (lambda: torch.autocast("cpu", torch.bfloat16)) if way == "autocast" else contextlib.nullcontext
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    networks = {}
    for line in sys.stdin:
        question, *count = line.split()
        if question == "version":
            print(torch.__version__, flush=True)
            continue
        if question == "resident":
            print(resident(), flush=True)
            continue
        if question not in networks:
            model, *others = network(question)
            networks[question] = (prepare(model), *others, precision)
            for _ in range(2):
                iteration(*networks[question])
        times = []
        for _ in range(int(*count)):
            started = clock()
            iteration(*networks[question])
            times.append(1e3 * (clock() - started))
        print(*(f"{t:.4f}" for t in times), flush=True)


main()
