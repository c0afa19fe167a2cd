"""What kernels take besides the tensors of a step. On a GPU PyTorch's allocator counts it; on a CPU nobody sees it."""

from __future__ import annotations

import torch


class Workspaces:
    """Compares what the allocator of a GPU has given with the tensors that are counted.

    The allocator's own peak begins again in every step whose bytes are counted.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._besides = 0

    def begin(self, counted: int) -> None:
        """A step begins, and ``counted`` bytes of tensors are there. Everything else in use belongs to others, or to kernels that keep it."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self._besides = torch.cuda.memory_allocated(self.device) - counted

    def beyond(self, peak: int) -> int:
        """Bytes above the ``peak`` of the counted tensors, with what the allocator adds to round sizes up."""
        return max(0, torch.cuda.max_memory_allocated(self.device) - self._besides - peak)
