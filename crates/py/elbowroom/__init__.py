"""Train PyTorch models in the memory you have: ``elbowroom.fit(model, memory="6GiB")``."""

from . import pack, pins
from ._native import __version__
from .errors import ElbowroomError, InfeasibleError, UnsupportedError, VersionError
from .explaining import Why, why

_TORCH = {
    "fit": "fitted",
    "limit": "limited",
    "Limit": "limited",
    "LimitReport": "limited",
    "Report": "fitted",
    "Meter": "meter",
    "Machine": "tracing",
    "Plan": "tracing",
    "Trace": "tracing",
    "plan": "tracing",
    "Race": "simulated",
    "RaceReport": "racing",
    "races": "racing",
    "trace": "tracing",
}

__all__ = ["ElbowroomError", "InfeasibleError", "UnsupportedError", "VersionError", "Why", "__version__", "pack", "pins", "why", *_TORCH]


def __getattr__(name):
    # What needs PyTorch is imported when it is asked for: the packer and the planner need none.
    if name in _TORCH:
        from importlib import import_module

        return getattr(import_module(f".{_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
