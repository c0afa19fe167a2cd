"""Which versions of PyTorch the package works with."""

from __future__ import annotations

import torch

from .errors import VersionError

#: The oldest PyTorch that is accepted, and those that the tests run with.
OLDEST, TESTED = (2, 12), ((2, 13), (2, 15))


def check() -> list[str]:
    """Refuses a PyTorch that lacks what the backend needs; what to note of one that was never tested."""
    found = torch.__version__
    release = tuple(int(part) for part in found.split(".")[:2])
    if release < OLDEST:
        raise VersionError(f"elbowroom needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later; this is {found}")
    if release in TESTED:
        return []
    tested = " and ".join(f"{major}.{minor}" for major, minor in TESTED)
    return [f"tested with PyTorch {tested}; this is {found}"]
