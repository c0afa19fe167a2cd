"""Decisions of the user that no plan may change, by patterns of names.

A decision is a line of a verb and a pattern::

    keep             layers.3.attention     # these tensors stay on the device from when they are made to their last use
    never-recompute  *softmax*              # these ops are never recomputed
    host             *.mlp.weight           # these persistent tensors are on the host between two steps (``plan`` only)

``*`` stands for any characters and ``?`` for one. A pattern means the names that it matches as a whole, and everything inside a module that it
matches. Names are those of modules as ``model.named_modules()`` has them, of ops in them as the captured graph has them
(``layers.3.attention/softmax``), of parameters and buffers, and, for ``never-recompute``, kinds of ops (``_softmax``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import _native, size


@dataclass(frozen=True)
class Pin:
    """One decision, and what it covers in a trace: tensors, or ops for ``never-recompute``, and their bytes."""

    verb: str
    pattern: str
    count: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        what = "op" if self.verb == "never-recompute" else "tensor"
        return f"{self.verb} {self.pattern}: {self.count} {what}{'' if self.count == 1 else 's'}, {size.show(self.bytes)}"


def parse(pins: str | Iterable[str | Pin] | None) -> list[Pin]:
    """Decisions from a text of lines, or from lines one by one. Raises :class:`ValueError` for a line that is not a verb and a pattern."""
    if pins is None:
        return []
    if isinstance(pins, str):
        return [Pin(*line) for line in _native.parse_pins(pins)]
    found = []
    for pin in pins:
        if isinstance(pin, Pin):
            found.append(Pin(pin.verb, pin.pattern))
        elif isinstance(pin, str):
            found += parse(pin)
        else:
            raise ValueError(f"{pin!r} is no pin; write a line like 'keep layers.3.*'")
    return found


def apply(iteration: _native.Iteration, pins: list[Pin], offload: bool, unmatched: bool = False) -> tuple[_native.Iteration, list[Pin]]:
    """An iteration under decisions, and what each of them covers."""
    if not pins:
        return iteration, []
    pinned, covered = iteration.pin([(pin.verb, pin.pattern) for pin in pins], offload=offload, unmatched=unmatched)
    return pinned, [Pin(pin.verb, pin.pattern, *found) for pin, found in zip(pins, covered)]
