"""The networks of the example `speed` in PyTorch, eager, on the processor: same shapes, same optimizers, f32.

Run as `python pytorch.py THREADS`. Reads lines `NETWORK ITERATIONS` from standard input; answers each with the times of so many training
iterations in milliseconds, after two that are not counted. The example runs it, so that both sides are timed in turns on one machine.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


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
    """Normalization first, fused causal attention of four heads, dropout on both branches."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = lambda t: t.view(batch, tokens, width // 64, 64).transpose(1, 2)
        q, k, v = (heads(t) for t in self.c_attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.c_proj(y.transpose(1, 2).reshape(batch, tokens, width))
        x = x + self.drop(y)
        y = self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return x + self.drop(y)


class Gpt(nn.Module):
    """Four blocks of width 256 over 128 bytes, the output tied to the token table."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, 256), nn.Embedding(128, 256)
        self.drop = nn.Dropout(0.1)
        self.h = nn.Sequential(*[GptBlock(256) for _ in range(4)])
        self.ln_f = nn.LayerNorm(256)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe.weight)
        return F.linear(self.ln_f(self.h(x)), self.wte.weight).flatten(0, 1)


def network(name):
    """The model, its inputs and labels, its optimizer."""
    images, classes = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    adam = lambda model: torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens = lambda *shape: torch.randint(256, shape)
    make, x, y, optimizer = {
        "resnet18": (resnet18, images, classes, sgd),
        "vgg16": (vgg16, images, classes, sgd),
        "lstm": (Lstm, tokens(20, 35), tokens(20 * 35), adam),
        "gpt": (Gpt, tokens(8, 128), tokens(8 * 128), adam),
    }[name]
    model = make().train()
    return model, x, y, optimizer(model)


def iteration(model, x, y, optimizer):
    """One training iteration, its loss read at the end."""
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.set_num_threads(int(sys.argv[1]))
    networks = {}
    print("version", torch.__version__, flush=True)
    for line in sys.stdin:
        name, count = line.split()
        if name not in networks:
            networks[name] = network(name)
        times = []
        for index in range(2 + int(count)):
            started = time.perf_counter()
            iteration(*networks[name])
            if index >= 2:
                times.append(1e3 * (time.perf_counter() - started))
        print(*(f"{t:.4f}" for t in times), flush=True)


main()
