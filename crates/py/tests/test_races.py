"""``elbowroom.races``: offloaders with a race are caught with the right tensor, those without pass every order.

The offloaders are minimal copies, in own words, of patterns that were reported: two of trl#7195 (a stream kept from the time of construction; a
copy made contiguous behind the wait), Megatron-LM#7398 (a reload that does not wait for the copy to the host) and torchtune#1867 (a tensor freed
while a copy reads it).
"""

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks

import elbowroom


class Offload(saved_tensors_hooks):
    """Saved tensors go to the host on one stream and come back on another. ``fault`` leaves out one thing."""

    def __init__(self, fault=None):
        self.fault = fault
        self.to_host, self.to_device = torch.cuda.Stream(), torch.cuda.Stream()
        self.at_construction = torch.cuda.current_stream()
        self.kept = []
        super().__init__(self.pack, self.unpack)

    def compute(self):
        return self.at_construction if self.fault == "old stream" else torch.cuda.current_stream()

    def pack(self, tensor):
        if not tensor.is_cuda or isinstance(tensor, torch.nn.Parameter):
            return tensor
        main = torch.cuda.current_stream()
        if self.fault == "late clone":
            self.to_host.wait_stream(self.compute())
            whole = tensor.clone()  # behind the wait
        else:
            whole = tensor.clone()
            self.to_host.wait_stream(self.compute())
        with torch.cuda.stream(self.to_host):
            host = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True)
            host.copy_(whole, non_blocking=True)
            event = self.to_host.record_event()
        if self.fault != "early free":
            self.kept.append(whole)
        assert torch.cuda.current_stream() == main
        return host, event

    def unpack(self, saved):
        if isinstance(saved, torch.Tensor):
            return saved
        host, event = saved
        with torch.cuda.stream(self.to_device):
            if self.fault != "no event":
                self.to_device.wait_event(event)
            back = host.to("cuda", non_blocking=True)
        self.compute().wait_stream(self.to_device)
        back.record_stream(self.compute())
        return back


def training(fault=None, layers=1):
    def step():
        torch.manual_seed(0)
        size = 16
        weights = [torch.randn(size, size, device="cuda", requires_grad=True) for _ in range(layers)]
        x = torch.randn(4, size, device="cuda")
        offload = Offload(fault)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with offload:
                for weight in weights:
                    x = torch.tanh(x @ weight)
                loss = x.square().sum()
            loss.backward()
        torch.cuda.synchronize()
        return [weight.grad for weight in weights]

    return step


def test_an_offloader_that_waits_passes_a_thousand_orders():
    report = elbowroom.races(training(), schedules=1000)
    assert not report and str(report) == "no race in 1000 schedules", report


FAULTS = {
    "late clone": ("read before it was written", "clone", "`whole`", "whole = tensor.clone()  # behind", "host.copy_(whole"),
    "no event": ("read before it was written", "on the host", "`host`", "host.copy_(whole", "back = host.to("),
    "early free": ("block used again before", "clone", "", "host.copy_(whole", ""),
    "old stream": ("read before it was written", "clone", "`whole`", "whole = tensor.clone()", "host.copy_(whole"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_with_its_tensor_and_lines(fault):
    kind, made, name, first, second = FAULTS[fault]
    report = elbowroom.races(training(fault, layers=3), schedules=30)
    assert report.wrong, "some order yields wrong bits"
    again = elbowroom.races(training(fault, layers=3), schedules=1, seed=report.wrong[0])
    assert again.wrong == report.wrong[:1], "one seed is one order"
    with open(__file__) as file:
        lines = file.read().splitlines()

    def line(place):
        path, number = place.rsplit(":", 1)
        return lines[int(number) - 1] if path == __file__ else ""

    def fits(race):
        said = race.kind.startswith(kind) and made in race.tensor and name in race.tensor
        return said and first in line(race.first_line) and second in line(race.second_line)

    assert any(map(fits, report.races)), report


def test_a_step_on_one_stream_equals_that_of_the_cpu():
    def step(device):
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(3, 1, 8, 8).to(device), torch.tensor([1, 4, 0], device=device)
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert str(loss.device).startswith(device) and loss.is_cuda == (device == "cuda")
        return [loss, *(t.cpu() for t in model.state_dict().values())]

    # The device has the kernels of the CPU without those of oneDNN.
    torch._C._set_mkldnn_enabled(False)
    expected, found = step("cpu"), []
    torch._C._set_mkldnn_enabled(True)
    names = torch.cuda.Stream, torch.cuda.current_stream, torch.Tensor.record_stream, torch.accelerator.is_available

    def kept():
        result = step("cuda")
        found.append([t.detach() for t in result])
        return result

    report = elbowroom.races(kept, schedules=20)
    assert not report, report
    assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, found[0]))
    after = torch.cuda.Stream, torch.cuda.current_stream, torch.Tensor.record_stream, torch.accelerator.is_available
    assert names == after and "record_stream" not in vars(torch.Tensor), "PyTorch is what it was"


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(8, 8), torch.nn.Dropout(0.3)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(lambda t: self.dropout(self.layer(t)).relu(), x, use_reentrant=False)


MODELS = {
    "checkpoint": (Checkpointed, (3, 8)),
    "lstm": (lambda: torch.nn.LSTM(4, 8), (5, 2, 4)),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "save_on_cpu": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)), (3, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_kinds_pass(name):
    make, shape = MODELS[name]

    def step():
        model = make().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(shape, device="cuda")
        context = torch.autograd.graph.save_on_cpu(pin_memory=True) if name == "save_on_cpu" else torch.enable_grad()
        for _ in range(2):
            with context:
                out = model(x)
                loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss, *model.parameters()]

    report = elbowroom.races(step, schedules=5)
    assert not report, (report, report.errors)


def test_the_host_must_wait_for_a_copy_that_it_reads():
    def step(wait):
        a = torch.full((64,), 2.0, device="cuda")
        host = (a * 3).to("cpu", non_blocking=True)
        if wait:
            torch.cuda.current_stream().synchronize()
        return host.sum()

    assert not elbowroom.races(lambda: step(True), schedules=50)
    report = elbowroom.races(lambda: step(False), schedules=50)
    assert report.wrong and report.races[0].second.endswith("reads on the host") and "`host`" in report.races[0].tensor


def test_misuse_is_one_clear_error():
    with pytest.raises(ValueError, match="must return the tensors"):
        elbowroom.races(lambda: None)
    with pytest.raises(ValueError, match="schedules must be at least 1"):
        elbowroom.races(lambda: None, schedules=0)
    with pytest.raises(RuntimeError, match="65536 bytes; .* more are needed"):
        elbowroom.races(lambda: torch.ones(1 << 16, device="cuda"), memory=1 << 16)
    with pytest.raises(ZeroDivisionError):
        elbowroom.races(lambda: 1 / 0)


def on_a_side_stream(unpacks_on_main):
    """An operator on a side stream, whose saved tensor comes back on a third one; the backward pass of the operator runs on the side stream."""
    main, side, back = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    streams = []

    def pack(tensor):
        return tensor.cpu()

    def unpack(host):
        streams.append(torch.cuda.current_stream())
        with torch.cuda.stream(back):
            tensor = host.pin_memory().to("cuda", non_blocking=True)
        (main if unpacks_on_main else torch.cuda.current_stream()).wait_stream(back)
        tensor.record_stream(torch.cuda.current_stream())
        return tensor

    x = torch.arange(64.0, device="cuda", requires_grad=True)
    side.wait_stream(main)
    with torch.cuda.stream(side), saved_tensors_hooks(pack, unpack):
        y = x * x
    main.wait_stream(side)
    y.sum().backward()
    assert streams and all(stream == side for stream in streams)
    return x.grad.cpu()


def test_the_backward_pass_runs_on_the_stream_of_the_forward_operator():
    assert not elbowroom.races(lambda: on_a_side_stream(False), schedules=30)
    report = elbowroom.races(lambda: on_a_side_stream(True), schedules=30)
    assert report.wrong and "read before it was written" in str(report)
