"""`fit` on a GPU: bits equal those of plain training, and what PyTorch's allocator is asked for is what was predicted."""

import ctypes
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

import elbowroom  # noqa: E402
from elbowroom.state import predict  # noqa: E402
from loops import WithLoss, adamw, assert_same, check, check_autocast, cnn, mlp, on, train  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _deterministic():
    """Kernels that give the same bits every time, without which plain training does not equal itself."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("memory", ["100%", "70%", "min"])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_bits_and_peak_of_plans_that_recompute(make, memory):
    report, _ = check(make, memory, device="cuda", host=None)
    assert report.offloaded_bytes == 0 and (report.recomputed > 0) == (memory != "100%")


def wide():
    """Layers whose copies take longer than a launch: 16 MiB each."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (torch.randn(8192, 512), torch.randn(8192, 512))


@pytest.mark.parametrize("memory", ["80%", "60%", "min"])
@pytest.mark.parametrize("host", [None, "pinned"])
def test_the_allocator_is_asked_for_no_more_than_was_predicted(memory, host):
    plain, args = on("cuda", wide)
    optimizer = adamw(plain)
    losses = train(plain, args, optimizer, 8)
    fitted, _ = on("cuda", wide)
    fitted_optimizer = adamw(fitted)
    # What is there besides the fitted model, its optimizer's state and the arguments: the plain one, and what cuBLAS keeps.
    torch.cuda.synchronize()
    own = sum(tensor.nbytes for tensor in [*fitted.parameters(), *args])
    besides = torch.cuda.memory_stats()["requested_bytes.all.current"] - own
    elbowroom.fit(fitted, memory, optimizer=fitted_optimizer, evaluations=300, host=host)

    def begin(step):
        # The first step shows what kernels take, and tensors whose storage is larger than PyTorch states.
        if step == 4:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    assert train(fitted, args, fitted_optimizer, 8, begin) == losses
    assert_same(plain, optimizer, fitted, fitted_optimizer)
    report = fitted.elbowroom.report
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - besides
    # The smallest limit is that of tensors; what kernels take comes on top.
    assert peak <= report.predicted_peak_bytes + (report.workspace_bytes if memory == "min" else 0), (peak, report)
    assert report.predicted_peak_bytes <= report.limit_bytes
    assert memory != "min" or (report.offloaded_bytes > 0) == (host is not None)


@pytest.mark.parametrize("make", [adamw, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda model: torch.optim.RMSprop(model.parameters())])
def test_what_an_update_takes_is_predicted(make):
    model, _ = on("cuda", wide)
    optimizer = make(model)
    state, temporary = predict(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for step in range(2):
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert taken <= temporary + (0 if step else state)


def test_autocast_gives_the_same_bits():
    check_autocast(wide, "60%", "cuda")


def test_a_loop_that_never_waits_for_the_gpu_gives_the_same_bits():
    """Steps are issued far ahead of the device, so the allocator's order and the plan's waits are all that keeps them apart."""

    def ahead(model, args):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(30):
            model(*args).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain, args = on("cuda", wide)
    expected = ahead(plain, args)
    for memory in ("70%", "50%"):
        fitted, _ = on("cuda", wide)
        elbowroom.fit(fitted, memory, evaluations=300, host="pinned")
        assert all(map(torch.equal, expected, ahead(fitted, args))), memory
        torch._dynamo.reset()


def test_why_reads_a_snapshot_of_the_gpu(tmp_path):
    model, args = on("cuda", wide)
    torch.cuda.memory._record_memory_history()
    model(*args).backward()
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    found = str(elbowroom.why(tmp_path / "snapshot.pickle"))
    # The forward pass by line of the program, the backward pass, which runs in a thread without one, by node of the graph.
    assert "loops.py" in found and "AddmmBackward0 (backward pass)" in found, found


_POOLED = """
import ctypes, sys, torch
library = sys.argv[1]
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, "elbowroom_cuda_alloc", "elbowroom_cuda_free"))
sys.path.insert(0, sys.argv[2])
from test_gpu import wide, on, train, adamw
model, args = on("cuda", wide)
losses = train(model, args, adamw(model), 12)
counts = (ctypes.c_uint64 * 32)()
ctypes.CDLL(library).elbowroom_cuda_stats(0, counts)
print(losses, list(counts)[:12])
"""


@pytest.mark.skipif("ELBOWROOM_CAPI" not in os.environ, reason="ELBOWROOM_CAPI does not name libelbowroom_capi.so")
def test_the_pluggable_allocator_serves_training_and_gives_the_same_losses():
    library = os.environ["ELBOWROOM_CAPI"]
    ctypes.CDLL(library)
    model, args = on("cuda", wide)
    losses = train(model, args, adamw(model), 12)
    run = subprocess.run([sys.executable, "-c", _POOLED, library, os.path.dirname(__file__)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found, counts = run.stdout.strip().rsplit(" [", 1)
    assert found == str(losses)
    requests, _, planned = (int(number) for number in counts.rstrip("]").split(", ")[:3])
    assert planned > requests // 2, counts
