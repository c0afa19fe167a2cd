"""Models and loops that the tests share."""

import pytest


@pytest.fixture(autouse=True)
def _fresh():
    """Every test compiles from nothing, on one thread."""
    try:
        import torch
    except ImportError:
        yield
        return
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
