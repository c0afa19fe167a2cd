"""Offline memory plans for TensorFlow Lite Micro.

``plan`` reads a ``.tflite`` model, places the tensors of its graph, and returns the model with the metadata ``OfflineMemoryAllocation``, whose
format TensorFlow Lite Micro documents in ``tensorflow/lite/micro/docs/memory_management.md``. Its memory planner keeps these offsets, and places
the scratch buffers of kernels around them. The command ``python -m elbowroom.tflm IN.tflite OUT.tflite`` does the same.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from . import pack

ALIGNMENT = 16
"""The alignment of TensorFlow Lite Micro's buffers, in bytes."""

_NAME = b"OfflineMemoryAllocation"
# Bytes of an element, by `TensorType` of schema.fbs; strings, resources and variants have no fixed size, and four bits are half a byte.
_BYTES = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 15: 4, 16: 2, 17: 0.5, 18: 2}


class Plan(NamedTuple):
    """A model with its plan."""

    model: bytes
    """The model with the metadata."""
    offsets: list[int]
    """First byte of every tensor of the graph; -1 for constants and variables, which the plan does not place."""
    height: int
    """Bytes of the arena's head for the planned tensors."""
    stop: str
    """Why the packer stopped; ``"optimal"`` if no plan can be lower."""


class _Table:
    """A table of a FlatBuffer."""

    def __init__(self, data: bytes, at: int):
        self.data, self.at = data, at
        self.vtable = at - struct.unpack_from("<i", data, at)[0]

    def field(self, number: int) -> int | None:
        """Where a field lies, if it is present."""
        if 4 + 2 * number >= struct.unpack_from("<H", self.data, self.vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self.data, self.vtable + 4 + 2 * number)[0]
        return self.at + offset if offset else None

    def number(self, number: int, form: str, default: int = 0) -> int:
        at = self.field(number)
        return default if at is None else struct.unpack_from("<" + form, self.data, at)[0]

    def reference(self, number: int) -> int | None:
        """Where a table, vector or text lies to which a field refers."""
        at = self.field(number)
        return None if at is None else at + struct.unpack_from("<I", self.data, at)[0]

    def numbers(self, number: int) -> list[int]:
        at = self.reference(number)
        if at is None:
            return []
        return list(struct.unpack_from(f"<{struct.unpack_from('<I', self.data, at)[0]}i", self.data, at + 4))

    def tables(self, number: int) -> list[_Table]:
        at = self.reference(number)
        count = 0 if at is None else struct.unpack_from("<I", self.data, at)[0]
        places = [at + 4 + 4 * index for index in range(count)]
        return [_Table(self.data, place + struct.unpack_from("<I", self.data, place)[0]) for place in places]

    def text(self, number: int) -> bytes:
        at = self.reference(number)
        return b"" if at is None else self.data[at + 4 : at + 4 + struct.unpack_from("<I", self.data, at)[0]]


def _size(tensor: _Table) -> int:
    code = tensor.number(1, "b")
    if code not in _BYTES:
        raise ValueError(f"tensor {tensor.text(3).decode(errors='replace')!r} has type {code}, whose size the model does not state")
    elements = 1
    for length in tensor.numbers(0):
        if length < 0:
            raise ValueError(f"tensor {tensor.text(3).decode(errors='replace')!r} has a length that is not known before it runs")
        elements *= length
    return int(-(-elements * _BYTES[code] // 1))


def lifetimes(graph: _Table, buffers: list[_Table]) -> dict[int, tuple[int, int, int]]:
    """Size and half-open lifetime of every tensor to place, by its number: operator ``k`` runs at ``k + 1``, inputs exist from 0."""
    tensors = graph.tables(0)
    operators = graph.tables(3)
    constant = lambda tensor: buffers[tensor.number(2, "I")].reference(0) is not None or bool(tensor.number(5, "B"))
    first, last = {}, {}
    for index in graph.numbers(1):
        first[index] = last[index] = 0
    for time, operator in enumerate(operators, start=1):
        # Intermediates live while their operator runs.
        for index in operator.numbers(2) + operator.numbers(8):
            first.setdefault(index, time)
            last[index] = time
        for index in operator.numbers(1):
            last[index] = time
    for index in graph.numbers(2):
        last[index] = len(operators)
        first.setdefault(index, 0)
    placed = (index for index in sorted(last) if index >= 0 and not constant(tensors[index]))
    return {index: (_size(tensors[index]), first.get(index, 0), last[index] + 1) for index in placed}


def _with_metadata(data: bytes, model: _Table, plan: list[int]) -> bytes:
    """The model with a new root table in front, which refers to all that the old one refers to, and to the plan."""
    payload = struct.pack(f"<{len(plan)}i", *plan)
    fields = []
    for number in range(max(8, (struct.unpack_from("<H", data, model.vtable)[0] - 4) // 2)):
        fields.append(("number", model.number(0, "I")) if number == 0 else ("old", model.reference(number)))
    buffers = [table.at for table in model.tables(4)]
    metadata = [table.at for table in model.tables(6) if table.text(0) != _NAME]
    # The new part: root offset and identifier, vtable, root table, vectors, the new metadata entry and the new buffer.
    count = len(fields)
    vtable = 8
    root = vtable + 4 + 2 * count
    root += -root % 4
    buffer_vector = root + 4 + 4 * count
    metadata_vector = buffer_vector + 4 + 4 * (len(buffers) + 1)
    entry_vtable = metadata_vector + 4 + 4 * (len(metadata) + 1)
    entry = entry_vtable + 8
    name = entry + 12
    buffer_vtable = name + 4 + len(_NAME) + 1
    buffer_vtable += -buffer_vtable % 4
    buffer = buffer_vtable + 8
    vector = buffer + 8
    vector += -(vector + 4) % 16
    size = vector + 4 + len(payload)
    size += -size % 16
    out = bytearray(size)
    struct.pack_into("<I4s", out, 0, root, data[4:8])
    struct.pack_into("<HH", out, vtable, 4 + 2 * count, 4 + 4 * count)
    struct.pack_into("<i", out, root, root - vtable)
    refer = lambda at, target: struct.pack_into("<I", out, at, target - at)
    for number, (kind, value) in enumerate(fields):
        at = root + 4 + 4 * number
        new = {4: buffer_vector, 6: metadata_vector}.get(number)
        if new is None and value is None:
            continue
        struct.pack_into("<H", out, vtable + 4 + 2 * number, 4 + 4 * number)
        if kind == "number":
            struct.pack_into("<I", out, at, value)
        else:
            refer(at, new if new is not None else size + value)
    for start, old, new in ((buffer_vector, buffers, buffer), (metadata_vector, metadata, entry)):
        struct.pack_into("<I", out, start, len(old) + 1)
        for index, target in enumerate([size + place for place in old] + [new]):
            refer(start + 4 + 4 * index, target)
    struct.pack_into("<HHHH", out, entry_vtable, 8, 12, 4, 8)
    struct.pack_into("<i", out, entry, entry - entry_vtable)
    refer(entry + 4, name)
    struct.pack_into("<I", out, entry + 8, len(buffers))
    struct.pack_into(f"<I{len(_NAME)}s", out, name, len(_NAME), _NAME)
    struct.pack_into("<HHH", out, buffer_vtable, 6, 8, 4)
    struct.pack_into("<i", out, buffer, buffer - buffer_vtable)
    refer(buffer + 4, vector)
    struct.pack_into("<I", out, vector, len(payload))
    out[vector + 4 : vector + 4 + len(payload)] = payload
    return bytes(out) + data


def plan(model: bytes, *, packer: str = "auto", seconds: float | None = 1.0, evaluations: int | None = None) -> Plan:
    """Places the tensors of a model with one graph, and returns the model with the plan.

    Raises :class:`ValueError` for what is no such model: more than one graph, or tensors whose size is not known before they run.
    """
    if model[4:8] != b"TFL3":
        raise ValueError("this is no TensorFlow Lite model: bytes 4 to 8 are not `TFL3`")
    try:
        root = _Table(model, struct.unpack_from("<I", model, 0)[0])
        graphs, buffers = root.tables(2), root.tables(4)
        if len(graphs) != 1:
            raise ValueError(f"the model has {len(graphs)} graphs; a plan is made for models with one")
        if any(buffer.number(1, "Q") > 1 for buffer in buffers):
            raise ValueError("the model keeps its constants outside of the FlatBuffer, which a plan cannot be added to")
        tensors = len(graphs[0].tables(0))
        lives = lifetimes(graphs[0], buffers)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the model ends in the middle or is damaged: {error}") from None
    rows = list(lives.values())
    placement = pack.place(
        [size for size, _, _ in rows],
        [start for _, start, _ in rows],
        [end for _, _, end in rows],
        aligns=ALIGNMENT,
        packer=packer,
        seconds=seconds,
        evaluations=evaluations,
    )
    if placement.height >= 1 << 31:
        raise ValueError(f"the tensors need {placement.height} bytes; a plan has offsets below 2^31")
    offsets = [-1] * tensors
    for index, offset in zip(lives, placement.offsets):
        offsets[index] = offset
    # Version, number of graphs, number of offsets, and the offsets.
    return Plan(_with_metadata(model, root, [1, 1, tensors, *offsets]), offsets, placement.height, placement.stop)


def main(arguments: list[str]) -> int:
    """``IN.tflite OUT.tflite``: adds a plan to a model."""
    if len(arguments) != 2:
        print("usage: python -m elbowroom.tflm IN.tflite OUT.tflite", file=sys.stderr)
        return 2
    try:
        with open(arguments[0], "rb") as file:
            found = plan(file.read())
        with open(arguments[1], "wb") as file:
            file.write(found.model)
    except (OSError, ValueError) as error:
        print(f"elbowroom: {error}", file=sys.stderr)
        return 2
    placed = sum(offset >= 0 for offset in found.offsets)
    print(f"{arguments[1]}: {placed} of {len(found.offsets)} tensors in {found.height} bytes ({found.stop})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
