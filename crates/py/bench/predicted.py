"""What `elbowroom.trace` predicts beside what a GPU needs: where to look before trusting a plan that was made without one.

`python bench/predicted.py [NAME…]` traces the forward and backward pass of each network of `gpu.py` on fake tensors, and then runs it: the peak of the bytes
that PyTorch's allocator is asked for, with what kernels take, and the median time of five passes after three.
"""

import statistics
import time

import gpu
import torch


def measure(name: str) -> None:
    """Prints the row of one network."""
    import elbowroom

    model, _, args = gpu.built(name, False, "cuda")
    traced = elbowroom.trace(model, *args, device="cuda")
    peaks, times = [], []
    for _ in range(8):
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        model(*args).backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        peaks.append(torch.cuda.memory_stats()["requested_bytes.all.peak"])
    peak, seconds = max(peaks[3:]), statistics.median(times[3:])
    predicted = 1e-9 * traced.keep.nanos
    columns = f"{traced.unlimited_peak:,}", f"{peak:,}", f"{traced.unlimited_peak / peak:.3f}"
    print(f"| {name} | {' | '.join(columns)} | {1e3 * predicted:.1f} ms | {1e3 * seconds:.1f} ms | {predicted / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    names = gpu.named_networks(__doc__, "these peaks")
    print("| network | predicted peak | measured peak | predicted ÷ measured | predicted time | measured time | predicted ÷ measured |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name in names:
        measure(name)
