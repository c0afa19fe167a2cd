"""An ordinary PyTorch training script for the CPU. It knows nothing of Elbowroom: `compare.py` runs it with and without the library.

Usage: train.py {resnet18,gpt,gpt2} [iterations]
`gpt` is a small block, `gpt2` one of the width of GPT-2 small.
Prints one JSON line for each iteration: its loss to the last bit and its time in seconds.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """The residual block of ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = None
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


def resnet18(classes=10):
    """ResNet-18 for images of 32 x 32."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        layers.append(Block(inputs, outputs, stride))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class GPTBlock(nn.Module):
    """One transformer block with causal attention, between an embedding and a head."""

    def __init__(self, vocabulary=1000, width=256, heads=8, context=128):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return self.head(x + self.mlp(self.norm2(x)))


def main():
    name = sys.argv[1]
    iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    torch.manual_seed(0)
    torch.set_num_threads(2)
    if name == "resnet18":
        model, batch = resnet18(), 32
    elif name == "gpt2":
        model, batch = GPTBlock(width=768, heads=12), 8
    else:
        model, batch = GPTBlock(), 16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(iterations):
        begin = time.perf_counter()
        if name == "resnet18":
            x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
            loss = F.cross_entropy(model(x), y)
        else:
            tokens = torch.randint(1000, (batch, 129))
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 1000), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(json.dumps({"loss": value.hex(), "seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
