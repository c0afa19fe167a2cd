"""``why``: what the peak of memory consists of, and what would lower it."""

from __future__ import annotations

import html
import json
import os
import pickle
from dataclasses import dataclass, field
from typing import Any

from . import _native
from .errors import ElbowroomError


@dataclass(frozen=True)
class Why:
    """The explanation of a peak. ``print`` it to read it; its figures are in :attr:`figures`."""

    text: str = field(repr=False)
    """What the command ``elbowroom why`` prints."""
    figures: dict[str, Any] = field(repr=False)
    """The object that ``elbowroom why --json`` prints; ``docs/formats.md`` explains its fields."""

    @property
    def peak(self) -> int:
        """Peak of live memory in bytes."""
        return self.figures["peak_live_bytes"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Groups of tensors by module and kind, those with most bytes at the peak first, with what each saves of the peak."""
        return self.figures["groups"]

    @property
    def suggestions(self) -> list[str]:
        """Up to three ways to a lower peak, with the figures of plans that were made."""
        return [suggestion["text"] for suggestion in self.figures["suggestions"]]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Why(peak={self.peak}, groups={len(self.groups)}, suggestions={len(self.suggestions)})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


def why(source, *, machine: str = "cpu", seconds: float = 10.0) -> Why:
    """Explains why the peak of memory is where it is, and what would lower it.

    ``source`` is the path of a memory snapshot (``torch.cuda.memory._dump_snapshot``) or of a trace, what ``torch.cuda.memory._snapshot()``
    returns, or what :func:`elbowroom.trace` returns. What copies to the host take is that of the preset ``machine`` (``"a100"``) unless the
    trace states a machine. Plans for suggestions are searched for at most ``seconds``.
    Raises ``OSError`` if the file cannot be read, ``ValueError`` if it is of no kind that can be explained, and :class:`ElbowroomError` where the
    system is not Linux.

    >>> print(elbowroom.why("snapshot.pickle"))  # doctest: +SKIP
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be more than 0, not {seconds}")
    name, content = _content(source)
    try:
        explain = _native.why
    except AttributeError:
        raise ElbowroomError("elbowroom.why is built on Linux only; use `elbowroom why FILE` there") from None
    text, figures = explain(content, name, machine, seconds)
    return Why(text, json.loads(figures))


def _content(source) -> tuple[str, bytes]:
    """A name for messages, and the bytes that a file with the source has."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            return os.fspath(source), file.read()
    if isinstance(source, dict):
        return "the snapshot", pickle.dumps(source)
    text = getattr(getattr(source, "iteration", None), "text", None)
    if text is None:
        raise TypeError(f"why takes the path of a snapshot or a trace, a snapshot, or what elbowroom.trace returns, not {type(source).__name__}")
    return source.name, text().encode()
