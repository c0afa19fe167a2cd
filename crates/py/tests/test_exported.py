"""Models that ExecuTorch exports: never above its own planner, at the most bytes alive at once, and fast. Skipped where ExecuTorch is missing."""

import time

import pytest
from elbowroom import executorch

torch = pytest.importorskip("torch")
planning = pytest.importorskip("executorch.exir.memory_planning")
exir = pytest.importorskip("executorch.exir")
passes = pytest.importorskip("executorch.exir.passes")

from torch import nn  # noqa: E402


class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.out((scores @ v).transpose(1, 2).flatten(2))


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.inner(x)


class Dense(nn.Module):
    """Each layer reads what all before it made."""

    def __init__(self, layers, growth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8 + growth * i, growth, 3, padding=1) for i in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        return x


class UNet(nn.Module):
    def __init__(self, depth, width=8):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(width << i, width << i + 1, 3, padding=1) for i in range(depth))
        self.up = nn.ModuleList(nn.Conv2d(3 * width << i, width << i, 3, padding=1) for i in range(depth))

    def forward(self, x):
        kept = []
        for conv in self.down:
            kept.append(x)
            x = nn.functional.max_pool2d(torch.relu(conv(x)), 2)
        for conv, skip in zip(reversed(self.up), reversed(kept)):
            x = torch.relu(conv(torch.cat([nn.functional.interpolate(x, scale_factor=2), skip], 1)))
        return x


class Inception(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(nn.Conv2d(8, w, 1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1)) for w in widths)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1).mean((2, 3))


class Gru(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.cell, self.width = nn.GRUCell(16, width), width

    def forward(self, x):
        state, out = x.new_zeros(x.shape[0], self.width), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            out.append(state)
        return torch.stack(out, 1)


def mlp(*widths):
    return nn.Sequential(*[layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())])


def pooled(*channels):
    convs = [(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)) for a, b in zip(channels, channels[1:])]
    return nn.Sequential(*[layer for conv in convs for layer in conv])


def transformer(blocks, width=32):
    mixed = [(Residual(nn.LayerNorm(width), Attention(width)), Residual(nn.LayerNorm(width), mlp(width, 4 * width, width))) for _ in range(blocks)]
    return nn.Sequential(*[layer for block in mixed for layer in block])


def resnet(blocks):
    return nn.Sequential(*[Residual(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(blocks)])


def mobilenet(*factors, width=8):
    def inverted(wide):
        middle = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        return Residual(nn.Conv2d(width, wide, 1), nn.Hardswish(), middle, nn.Hardswish(), nn.Conv2d(wide, width, 1))

    return nn.Sequential(*[inverted(width * factor) for factor in factors])


def text():
    head = nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4)
    return nn.Sequential(nn.Conv1d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.GELU(), *head)


IMAGE = (1, 8, 16, 16)
MODELS = {
    "mlp": (lambda: mlp(16, 64, 32, 8), (1, 16)),
    "mlp, 15 layers": (lambda: mlp(10, *range(20, 120, 7)), (4, 10)),
    "autoencoder": (lambda: mlp(128, 64, 16, 64, 128), (2, 128)),
    "lenet": (lambda: pooled(1, 6, 16), (1, 1, 28, 28)),
    "vgg": (lambda: pooled(3, 8, 16, 32), (1, 3, 32, 32)),
    "resnet": (lambda: resnet(2), IMAGE),
    "resnet, 5 blocks": (lambda: resnet(5), IMAGE),
    "densenet": (lambda: Dense(4, 8), IMAGE),
    "densenet, 9 layers": (lambda: Dense(9, 5), IMAGE),
    "unet": (lambda: UNet(2), IMAGE),
    "unet, 3 levels": (lambda: UNet(3), IMAGE),
    "inception": (lambda: Inception(4, 7, 12, 5, 9), IMAGE),
    "inception, 8 branches": (lambda: Inception(3, 20, 6, 17, 11, 2, 8, 13), IMAGE),
    "mobilenet": (lambda: mobilenet(2, 6, 3, 4), IMAGE),
    "attention": (lambda: Attention(), (1, 12, 32)),
    "transformer": (lambda: transformer(1), (1, 20, 32)),
    "transformer, 3 blocks": (lambda: transformer(3), (1, 20, 32)),
    "gru, 6 steps": (lambda: Gru(), (2, 6, 16)),
    "gru, 15 steps": (lambda: Gru(), (1, 15, 16)),
    "mixer": (lambda: nn.Sequential(*[Residual(nn.LayerNorm(24), mlp(24, 50, 24)) for _ in range(6)]), (1, 17, 24)),
    "text": (text, (1, 16, 40)),
    "classifier": (lambda: nn.Sequential(pooled(8, 12, 24), nn.Flatten(), mlp(384, 50, 20)), IMAGE),
}


def rows(results):
    """Memory, first byte, size and lifetime of every spec, for those that own their bytes."""
    own = [(spec, result) for spec, result in results.items() if getattr(spec, "storage_base", None) is None]
    return [(r.mem_id, r.mem_offset, s.allocated_memory, s.lifetime[0], s.lifetime[1]) for s, r in own]


def most_alive(placed):
    """The most bytes alive at once, of each memory, in all."""
    live = {}
    for memory, _, size, first, last in placed:
        for time_ in range(first, last + 1):
            live[memory, time_] = live.get((memory, time_), 0) + size
    return sum(max(bytes_ for (other, _), bytes_ in live.items() if other == memory) for memory in {memory for memory, _ in live})


def test_exported_models_are_never_above_executorchs_own_planner():
    found = {}

    def compared(alignment, specs, module, signature, padding=0):
        specs = list(specs)
        theirs = planning.greedy(alignment, specs, module, signature, padding)
        began = time.process_time()
        ours = executorch.plan(alignment, specs, module, signature, padding)
        seconds = time.process_time() - began
        found[name].append((sum(ours.bufsizes), sum(theirs.bufsizes), rows(ours.spec_dict), seconds))
        return ours

    for name, (make, shape) in MODELS.items():
        found[name] = []
        suite = planning.MemoryPlanningAlgorithmSuite([compared])
        exported = exir.to_edge(torch.export.export(make().eval(), (torch.randn(shape),)))
        pass_ = passes.MemoryPlanningPass(memory_planning_algo=suite)
        exported.to_executorch(exir.ExecutorchBackendConfig(memory_planning_pass=pass_))
    for name, plans in found.items():
        assert plans, name
        for ours, theirs, placed, seconds in plans:
            at = {"model": name, "ours": ours, "theirs": theirs, "alive": most_alive(placed), "seconds": seconds}
            print(at)
            assert ours <= theirs and ours == most_alive(placed) and seconds < 1, at
            for i, (memory, a, size, first, last) in enumerate(placed):
                for other, b, height, begin, end in placed[:i]:
                    apart = memory != other or a >= b + height or b >= a + size or first > end or begin > last
                    assert apart, at
