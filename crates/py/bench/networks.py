"""Networks at full size for `budget.py`: a model that returns its loss, and the arguments of a step. `checkpointed` wraps their blocks."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Blockwise(nn.Module):
    """Runs blocks, each with `torch.utils.checkpoint` if `checkpointed`."""

    checkpointed = False

    def block(self, run, *args):
        return checkpoint(run, *args, use_reentrant=False) if self.checkpointed else run(*args)


class ResNet50(Blockwise):
    def __init__(self, **options):
        super().__init__()
        import torchvision

        self.net = torchvision.models.resnet50(**options)

    def forward(self, images, labels):
        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for unit in stage:
                x = self.block(unit, x)
        return nn.functional.cross_entropy(net.fc(torch.flatten(net.avgpool(x), 1)), labels)


def twice(inputs, outputs):
    layers = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(Blockwise):
    """The network of Ronneberger et al. 2015 with padded convolutions and batch normalization."""

    def __init__(self, widths=(64, 128, 256, 512, 1024), classes=2):
        super().__init__()
        pairs = list(zip(widths[::-1], widths[-2::-1]))
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.dec = nn.ModuleList(twice(a, b) for a, b in pairs)
        self.o = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images, labels):
        x, skips = images, []
        for number, unit in enumerate(self.down):
            x = self.block(unit, nn.functional.max_pool2d(x, 2) if number else x)
            skips.append(x)
        del skips[-1]
        for up, unit in zip(self.up, self.dec):
            x = self.block(unit, torch.cat([skips.pop(), up(x)], 1))
        return nn.functional.cross_entropy(self.o(x), labels)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(width, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(nn.functional.gelu(self.fc(self.ln2(x))))


class Gpt2(Blockwise):
    """The shape of GPT-2 small; embedding and head share their weights."""

    def __init__(self, vocabulary=50257, width=768, depth=12, heads=12, length=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.lnf = nn.LayerNorm(width)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for unit in self.blocks:
            x = self.block(unit, x)
        logits = nn.functional.linear(self.lnf(x), self.wte.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def resnet50(batch=32, size=224):
    return ResNet50(), (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))


def unet(batch=8, size=256):
    return UNet(), (torch.randn(batch, 3, size, size), torch.randint(0, 2, (batch, size, size)))


def gpt2(batch=8, length=1024):
    return Gpt2(), (torch.randint(0, 50257, (batch, length)), torch.randint(0, 50257, (batch, length)))


class Diffusion(Blockwise):
    """A noise predictor of diffusers with the blocks of Stable Diffusion, at half of its widths."""

    def __init__(self, size):
        super().__init__()
        import diffusers

        self.net = diffusers.UNet2DConditionModel(sample_size=size, block_out_channels=(160, 320, 640, 640), cross_attention_dim=768)

    def forward(self, noisy, times, text, noise):
        return nn.functional.mse_loss(self.net(noisy, times, text).sample, noise)


def diffusion(batch=4, size=64):
    args = torch.randn(batch, 4, size, size), torch.randint(0, 1000, (batch,)), torch.randn(batch, 77, 768), torch.randn(batch, 4, size, size)
    return Diffusion(size), args


NETWORKS = {"resnet50": resnet50, "unet": unet, "gpt2-small": gpt2, "diffusion": diffusion}
