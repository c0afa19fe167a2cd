"""Training loops, and the comparison of their results to the bit."""

import elbowroom
import torch
from torch import nn


class WithLoss(nn.Module):
    """A model that returns its loss, so that the whole step is captured."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args):
        return self.loss(self.model(*args[:-1]), args[-1])


def mlp():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return WithLoss(model, nn.functional.cross_entropy), (torch.randn(512, 64), torch.randint(0, 10, (512,)))


def cnn():
    torch.manual_seed(0)
    layers = []
    for number in range(6):
        layers += [nn.Conv2d(16 if number else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return WithLoss(model, nn.functional.cross_entropy), (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def on(device, make):
    """A model and the arguments of its step on a device."""
    model, args = make()
    return model.to(device), tuple(arg.to(device) for arg in args)


def train(model, args, optimizer, steps=5, before=None):
    """``steps`` steps; the losses."""
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        if before:
            before(step)
        loss = model(*args)
        loss.backward()
        losses.append(loss.item())
        del loss
        optimizer.step()
        optimizer.zero_grad()
    return losses


def leaves(optimizer):
    return [leaf for _, state in sorted(optimizer.state_dict()["state"].items()) for leaf in state.values()]


def assert_same(first, first_optimizer, second, second_optimizer):
    """Parameters, buffers and optimizer state are equal to the bit."""
    for (name, one), two in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    for one, two in zip(leaves(first_optimizer), leaves(second_optimizer), strict=True):
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def assert_same_gradients(first, second):
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def check(make, memory, optimizer=adamw, steps=5, device="cpu", **options):
    """Trains plainly and fitted; requires equal bits, and that what an independent meter saw is what was predicted and within the limit."""
    plain, args = on(device, make)
    plain_optimizer = optimizer(plain)
    losses = train(plain, args, plain_optimizer, steps)
    fitted, args = on(device, make)
    fitted_optimizer = optimizer(fitted)
    elbowroom.fit(fitted, memory, optimizer=fitted_optimizer, evaluations=300, **options)
    with elbowroom.Meter(fitted.parameters(), fitted.buffers(), args) as meter:
        assert train(fitted, args, fitted_optimizer, steps) == losses
    assert_same(plain, plain_optimizer, fitted, fitted_optimizer)
    report = fitted.elbowroom.report
    assert meter.peak <= report.predicted_peak_bytes <= report.limit_bytes
    assert report.measured_peak_bytes <= report.predicted_peak_bytes
    return report, meter


def check_autocast(make, memory, device="cpu"):
    """Requires the gradients of plain training from a step under autocast."""
    plain, args = on(device, make)
    fitted, _ = on(device, make)
    elbowroom.fit(fitted, memory, evaluations=300)
    for model in (plain, fitted):
        torch.manual_seed(1)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(*args)
        loss.backward()
    assert_same_gradients(plain, fitted)


def check_accumulation(memory, **options):
    """Trains with three backward passes before each update, plainly and fitted, and requires equal bits."""

    def accumulate(model, args, optimizer):
        torch.manual_seed(1)
        for _ in range(2):
            for _ in range(3):
                model(*args).backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, args = cnn()
    plain_optimizer = adamw(plain)
    accumulate(plain, args, plain_optimizer)
    fitted, _ = cnn()
    fitted_optimizer = adamw(fitted)
    elbowroom.fit(fitted, memory, optimizer=fitted_optimizer, evaluations=300, **options)
    accumulate(fitted, args, fitted_optimizer)
    assert_same(plain, plain_optimizer, fitted, fitted_optimizer)
    return fitted.elbowroom.report
