"""Limits as users write them: bytes, ``"6GiB"``, ``"70%"`` or ``"min"``."""

from __future__ import annotations

import html
import math
import re

_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", start=1):
    _UNITS[f"{_prefix}IB"] = 1024**_power
    _UNITS[f"{_prefix}B"] = 1000**_power

_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)\s*")


def resolve(memory: int | str, unlimited_peak: int) -> int | None:
    """The limit in bytes; ``None`` for ``"min"``. Percentages are of ``unlimited_peak``.

    Raises :class:`ValueError` for anything that is no size.
    """
    if isinstance(memory, bool):
        raise ValueError("a limit is a number of bytes, a size like '6GiB', a share like '70%', or 'min'")
    if isinstance(memory, int):
        if memory <= 0:
            raise ValueError(f"a limit of {memory} bytes is not positive")
        return memory
    if isinstance(memory, str):
        if memory.strip().lower() == "min":
            return None
        match = _PATTERN.fullmatch(memory)
        if match:
            number, unit = float(match[1]), match[2]
            if unit == "%":
                share = number / 100
                if share <= 0:
                    raise ValueError(f"a limit of {memory!r} is not positive")
                return math.floor(unlimited_peak * share)
            factor = _UNITS.get(unit.upper())
            if factor is not None and number > 0:
                return math.floor(number * factor)
    raise ValueError(f"{memory!r} is no limit; write bytes, a size like '6GiB', a share like '70%', or 'min'")


def show(count: int) -> str:
    """Bytes for people: ``6.0 GiB``."""
    number = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{number:.1f} {unit}"


def table(report, bytes: tuple[str, ...], shares: tuple[str, ...]) -> str:
    """A data class as an HTML table, one row a field. Fields of ``bytes`` are named without ``_bytes``; ``shares`` are percentages."""
    rows = []
    for key, value in vars(report).items():
        name = key.removesuffix("_bytes")
        if name in bytes:
            shown = show(value)
        elif key in shares:
            shown = f"{value:.1%}"
        elif isinstance(value, list):
            shown = "\n".join(map(str, value))
        else:
            shown = str(value)
        rows.append(f"<tr><th>{html.escape(name.replace('_', ' '))}</th><td>{html.escape(shown)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"
