"""Errors, each with what a person can do about it."""

from ._native import InfeasibleError


class ElbowroomError(Exception):
    """Base class of the errors of this package, except :class:`InfeasibleError`."""


class UnsupportedError(ElbowroomError):
    """The model uses something that cannot be planned without a risk to its results. The message names it."""


class VersionError(ElbowroomError):
    """PyTorch is missing or older than what this package supports."""


__all__ = ["ElbowroomError", "InfeasibleError", "UnsupportedError", "VersionError"]
