"""The accelerator for tests: its limit, its memory, and that its seeds show a wait that is missing. On a GPU the same tests run where they need no seed."""

import ctypes
import os
import signal

import pytest
import torch
from torch import nn

import accelerator

if not torch.cuda.is_available() and accelerator.missing():
    pytest.skip(accelerator.missing(), allow_module_level=True)

# Before any test of any file: PyTorch makes the queues of all devices at the first backward pass, and none for a device that comes later.
accelerator.device()

simulated = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU draws no order from a seed")


@pytest.fixture
def device():
    found = accelerator.device()
    found.begin()
    yield found
    found.begin()


def copied_out(device, wait=True, keep=True):
    """A product that a second stream copies to the host."""
    side = torch.Stream(device=device.name)
    made = torch.full((64, 64), 2.0, device=device.name) @ torch.full((64, 64), 3.0, device=device.name)
    host = torch.empty(64, 64, pin_memory=True)
    if wait:
        side.wait_event(torch.accelerator.current_stream().record_event())
    with accelerator.on(side):
        host.copy_(made, non_blocking=True)
    if keep == "recorded":
        made.record_stream(side)
    if not keep or keep == "recorded":
        del made
        torch.zeros(64, 64, device=device.name)
    side.synchronize()
    return bool((host == 384).all())


@simulated
def test_the_host_cannot_read_device_memory(device):
    tensor = torch.ones(8, device=device.name)
    torch.accelerator.synchronize()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(tensor.data_ptr(), 4)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


@simulated
def test_the_limit_holds_to_the_byte(device):
    before = device.used
    device.begin(limit=before + 4096)
    whole = torch.empty(1024, device=device.name)
    assert device.used == device.peak == before + 4096
    with pytest.raises(torch.OutOfMemoryError, match=f"1 bytes wanted, {before + 4096} of {before + 4096} in use"):
        torch.empty(1, dtype=torch.uint8, device=device.name)
    del whole
    assert device.used == before
    torch.empty(1024, device=device.name)


@simulated
def test_a_missing_wait_shows_and_a_seed_repeats_it(device):
    def wrong():
        found = []
        for seed in range(60):
            device.begin(seed)
            found += [] if copied_out(device, wait=False) else [seed]
        return found

    first = wrong()
    assert 10 < len(first) < 50
    assert wrong() == first


@simulated
def test_a_block_that_is_freed_while_a_copy_reads_it_is_overwritten(device):
    found = []
    for seed in range(60):
        device.begin(seed)
        found += [] if copied_out(device, keep=False) else [seed]
    assert found


@simulated
def test_a_block_may_get_part_of_freed_memory(device):
    def right():
        out, back = torch.Stream(device=device.name), torch.Stream(device=device.name)
        made = torch.full((64, 64), 2.0, device=device.name)
        ready = torch.accelerator.current_stream().record_event()
        host, other = torch.empty(64, 64, pin_memory=True), torch.ones(40, 64, pin_memory=True)
        out.wait_event(ready)
        with accelerator.on(out):
            host.copy_(made, non_blocking=True)
        # No kernel runs behind the release, only a copy to a smaller block, which has to wait for the copy to the host.
        del made
        smaller = torch.empty(40, 64, device=device.name)
        back.wait_event(ready)
        with accelerator.on(back):
            smaller.copy_(other, non_blocking=True)
        torch.accelerator.synchronize()
        return bool((host == 2).all())

    found = []
    for seed in range(60):
        device.begin(seed)
        found.append(right())
    assert not all(found) and any(found)


@pytest.mark.parametrize("keep", [True, "recorded"])
def test_what_is_ordered_is_right_under_every_seed(device, keep):
    for seed in range(100):
        device.begin(seed)
        assert copied_out(device, keep=keep), seed


@simulated
def test_the_log_has_every_wait(device):
    device.begin(7, log=True)
    copied_out(device)
    what = [line.split()[0] for line in device.log]
    assert what.count("wait") == what.count("record") == 1
    assert sum("copy to host 16384" in line for line in device.log) == 1


class Small(nn.Module):
    """Convolution, normalization, attention, dropout, a lookup."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Dropout(0.2)
        self.attention, self.table = nn.MultiheadAttention(16, 2, batch_first=True), nn.Embedding(10, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, images, labels):
        x = self.drop(torch.relu(self.norm(self.conv(images)))).flatten(2).transpose(1, 2)
        x = self.attention(x, x, x, need_weights=False)[0] + self.table(labels)[:, None]
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def trained(device, seed):
    """Losses and parameters after three steps."""
    device.begin(seed)
    torch.manual_seed(0)
    model = Small().to(device.name)
    images, labels = torch.randn(4, 3, 8, 8).to(device.name), torch.randint(0, 10, (4,)).to(device.name)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        loss = model(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [tensor.cpu() for tensor in [*losses, *model.state_dict().values()]]


def test_training_gives_the_same_bits_under_every_seed(device):
    expected = trained(device, None)
    assert all(tensor.isfinite().all() for tensor in expected)
    for seed in range(3):
        assert all(map(torch.equal, expected, trained(device, seed))), seed
