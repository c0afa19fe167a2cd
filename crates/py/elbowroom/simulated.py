"""A device with streams, simulated on the CPU: code for ``torch.cuda`` runs on it unchanged, in an order of the streams that a seed draws.

Tensors of the device are CPU tensors whose bytes lie in an arena of blocks. An operator on them returns at once, with outputs of the right
shape, and becomes a task of the current stream. Tasks run later: between two calls of the program, a seed decides how many of which streams. So
the bytes are wrong wherever the program has left out a wait and the seed draws an order that shows it; one seed is one order, every time.

A freed block is used again by its stream at once, as PyTorch's caching allocator does, unless ``record_stream`` named another stream.

Next to this, each task knows what it is ordered behind (a position in every stream). Two tasks that use the same bytes, one of which writes, and
that nothing orders, are a race, whatever the seed has drawn.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils._python_dispatch import _disable_current_modes

GRANULE = 512
_OWN = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
_HOST = -1


class RanOut(RuntimeError):
    """The simulated device has no memory left."""


def caller() -> tuple[str, object]:
    """The innermost line of Python outside of PyTorch and of this package, and its frame."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((*_OWN, "<")):
        frame = frame.f_back
    return (f"{frame.f_code.co_filename}:{frame.f_lineno}", frame) if frame else ("?", None)


@dataclass(eq=False)
class Task:
    """What a stream has to do."""

    what: str
    line: str
    stream: int
    position: int
    known: dict[int, int]
    run: object = None
    event: Event | None = None
    generation: int = 0


@dataclass(eq=False)
class Access:
    """A use of bytes by a task or by the host."""

    task: Task
    writes: bool
    start: int
    end: int
    tensor: str
    made: object


@dataclass(eq=False)
class Block:
    """Bytes of the arena, as one tensor after another has them."""

    offset: int
    size: int
    stream: int
    tensor: str
    lease: object = None
    used_by: set = field(default_factory=set)


@dataclass(frozen=True)
class Race:
    """Two uses of the same bytes that nothing orders: the first is the one that was issued first."""

    #: What went wrong, such as "read before it was written".
    kind: str
    #: The tensor: type, shape, the operator that made it and where, and the name of a variable that holds it.
    tensor: str
    #: What each of them is, and the line of Python that issued it, as ``file:line``.
    first: str
    first_line: str
    second: str
    second_line: str

    def __str__(self):
        return f"{self.kind}: {self.tensor}\n  {self.first} issued at {self.first_line}\n  {self.second} issued at {self.second_line}"


class Stream:
    """Stands for ``torch.cuda.Stream``."""

    def __init__(self, device=None, priority=0, **_):
        self._device = Device.current
        self.number = self._device.new_stream()
        self._before: list[Stream] = []
        self.device = torch.device("cuda", 0)
        self.cuda_stream = self.stream_id = self.number

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def wait_event(self, event):
        self._device.wait(self.number, event)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        self._device.synchronize(self.number)

    def query(self):
        return self._device.is_done(self.number, self._device.issued[self.number])

    def is_capturing(self):
        return False

    def __enter__(self):
        # One stream may be entered within itself.
        self._before.append(self._device.stream)
        self._device.stream = self
        return self

    def __exit__(self, *_):
        self._device.stream = self._before.pop()

    def __eq__(self, other):
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self):
        return hash(self.number)


class Event:
    """Stands for ``torch.cuda.Event``."""

    def __init__(self, *_, **__):
        self._device = Device.current
        self.issued = self.reached = 0
        self.stream = self.position = None
        self.known: dict[int, int] = {}

    def record(self, stream=None):
        self._device.record(self, (stream or self._device.stream).number)

    def wait(self, stream=None):
        self._device.wait((stream or self._device.stream).number, self)

    def query(self):
        return self._device.query(self)

    def synchronize(self):
        if self.stream is not None:
            self._device.finish(lambda wanted=self.issued: self.reached >= wanted)
            self._device.learn(self.known)

    def elapsed_time(self, other):
        return 0.0


class Device:
    """Streams, blocks and the order of tasks."""

    current: Device | None = None

    def __init__(self, memory: int, seed: int | None):
        #: Without a seed every task runs when it is issued.
        self.random = None if seed is None else random.Random(seed)
        # Pages that nothing touches cost nothing.
        self.arena = mmap.mmap(-1, memory)
        self._bytes = torch.frombuffer(self.arena, dtype=torch.uint8)
        self.free: dict[int, dict[int, list[int]]] = {}
        # No block begins where the arena does: their storages could not be told apart.
        self.top = GRANULE
        self.blocks: dict[int, Block] = {}
        self.pending: list[tuple[Block, dict[int, int]]] = []
        self.queues: dict[int, list[Task]] = {}
        self.issued: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.known: dict[int, dict[int, int]] = {_HOST: {}}
        self.priority: dict[int, float] = {}
        self.pace = self.random.randrange(3) if self.random else 2
        self.uses: dict[object, list[Access]] = {}
        self.races: dict[tuple, Race] = {}
        self.errors: list[str] = []
        Device.current = self
        self.default = self.stream = Stream()
        #: Streams on which the backward pass that runs has run operators.
        self.entered: set[Stream] = set()

    # Streams and events

    def new_stream(self) -> int:
        number = len(self.queues)
        self.queues[number], self.issued[number], self.done[number] = [], 0, 0
        self.known[number] = {}
        self.priority[number] = self.random.random() if self.random else 0.0
        return number

    def enqueue(self, what, stream, run=None, event=None) -> Task:
        self.issued[stream] += 1
        known = self.known[stream]
        for other, position in self.known[_HOST].items():
            known[other] = max(known.get(other, 0), position)
        known[stream] = self.issued[stream]
        task = Task(what, caller()[0], stream, self.issued[stream], dict(known), run, event)
        self.queues[stream].append(task)
        return task

    def event_of(self, stream) -> Event:
        """An event at the end of what a stream has been given."""
        event = Event()
        self.record(event, stream)
        return event

    def record(self, event, stream):
        event.issued += 1
        task = self.enqueue("record", stream, event=event)
        task.generation = event.issued
        event.stream, event.position, event.known = stream, task.position, task.known
        self.go_on()

    def wait(self, stream, event):
        if event.stream is None:
            return
        known = self.known[stream]
        for other, position in event.known.items():
            known[other] = max(known.get(other, 0), position)
        task = self.enqueue("wait", stream, event=event)
        task.generation = -event.issued
        self.go_on()

    def query(self, event):
        self.go_on()
        done = event.reached >= event.issued
        if done:
            self.learn(event.known)
        return done

    def is_done(self, stream, position):
        self.go_on()
        if self.done[stream] >= position:
            self.learn({stream: position})
        return self.done[stream] >= position

    def learn(self, known):
        """The host goes on behind these tasks, and what it issues from now on as well."""
        host = self.known[_HOST]
        for stream, position in known.items():
            host[stream] = max(host.get(stream, 0), position)

    def synchronize(self, stream=None):
        for number in list(self.queues) if stream is None else [stream]:
            wanted = self.issued[number]
            self.finish(lambda number=number, wanted=wanted: self.done[number] >= wanted)
            if self.issued[number]:
                self.learn({number: wanted, **self.known[number]})

    # Running tasks

    def _ready(self):
        for number, queue in self.queues.items():
            if queue and not (queue[0].generation < 0 and queue[0].event.reached < -queue[0].generation):
                yield number

    def _step(self) -> bool:
        ready = list(self._ready())
        if not ready:
            return False
        chosen = ready[0]
        if self.random:
            if self.random.random() < 0.05:
                self.priority[self.random.choice(ready)] = self.random.random()
            chosen = max(ready, key=self.priority.__getitem__)
            if self.random.random() < 0.1:
                chosen = self.random.choice(ready)
        task = self.queues[chosen].pop(0)
        if task.run:
            try:
                with torch.no_grad(), _disable_current_modes():
                    task.run()
            except Exception as error:  # a kernel that read what it should not, such as an index
                self.errors.append(f"{task.what} at {task.line}: {error}")
        if task.generation > 0:
            task.event.reached = max(task.event.reached, task.generation)
        self.done[chosen] = task.position
        return True

    def finish(self, until=None):
        """Runs tasks until a condition holds, or all."""
        while not (until and until()) and self._step():
            pass

    def go_on(self):
        """Runs as many tasks as the seed says."""
        if self.random is None:
            return self.finish()
        if self.random.random() < 0.03:
            self.pace = self.random.randrange(3)
        steps = (0, self.random.randrange(3), self.random.randrange(64))[self.pace]
        while steps and self._step():
            steps -= 1

    # Memory

    def allocate(self, size, stride, dtype, what) -> torch.Tensor:
        """A tensor in a block of its own."""
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if all(size) else 0
        bytes_ = max(1, -(-span * dtype.itemsize // GRANULE)) * GRANULE
        self._reclaim()
        number = self.stream.number
        slots = self.free.setdefault(number, {}).get(bytes_)
        if slots:
            offset = slots.pop()
        else:
            offset, self.top = self.top, self.top + bytes_
            if self.top > len(self.arena):
                raise RanOut(f"the simulated device has {len(self.arena)} bytes; {bytes_} more are needed (memory=)")
        text = f"{str(dtype).removeprefix('torch.')}{list(size)} made by {what.removeprefix('aten::')} at {caller()[0]}"
        block = Block(offset, bytes_, number, text)
        lease = (ctypes.c_char * bytes_).from_buffer(self.arena, offset)
        block.lease = weakref.ref(lease, lambda _, block=block: self._freed(block))
        tensor = torch.frombuffer(lease, dtype=dtype, count=bytes_ // dtype.itemsize).as_strided(size, stride)
        del lease
        self.blocks[tensor.untyped_storage().data_ptr()] = block
        return tensor

    def _freed(self, block):
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.arena)) + block.offset
        if self.blocks.get(start) is block:
            del self.blocks[start]
        others = {stream: self.issued[stream] for stream in block.used_by if stream != block.stream}
        self.pending.append((block, others))

    def _reclaim(self):
        still = []
        for block, others in self.pending:
            if all(self.done[stream] >= position for stream, position in others.items()):
                self.learn(others)
                self.free.setdefault(block.stream, {}).setdefault(block.size, []).append(block.offset)
            else:
                still.append((block, others))
        self.pending = still

    def block_of(self, tensor) -> Block | None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return None
        return self.blocks.get(tensor.untyped_storage().data_ptr())

    def shadow(self, tensor, block):
        """The same bytes, for a task: it does not keep the block."""
        if not tensor.numel():
            return tensor.detach()
        start = block.offset + tensor.storage_offset() * tensor.dtype.itemsize
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        flat = self._bytes[start : start + span * tensor.dtype.itemsize].view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride())

    # Races

    def use(self, task, tensor, writes):
        """Notes a use of a tensor's bytes, and compares it with those before."""
        if not tensor.numel():
            return
        block = self.block_of(tensor)
        storage = tensor.untyped_storage()
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        begin = tensor.storage_offset() * tensor.dtype.itemsize
        key, made, text = "arena", block, block.tensor if block else None
        if block:
            begin += block.offset
        else:
            key, made = ("host", storage.data_ptr()), None
            text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on the host"
        end = begin + span * tensor.dtype.itemsize
        earlier = self.uses.get(key)
        if earlier is None:
            if task.stream == _HOST:
                return
            earlier = self.uses[key] = []
            if not block:
                weakref.finalize(storage, self.uses.pop, key, None)
        kept = []
        for access in earlier:
            overlaps = access.start < end and begin < access.end
            ordered = access.task.stream in (task.stream, _HOST) or access.task.position <= task.known.get(access.task.stream, 0)
            if overlaps and not ordered and (access.writes or writes):
                self._race(access, task, writes, made, text, tensor)
            if not (ordered and overlaps and writes and begin <= access.start and access.end <= end):
                kept.append(access)
        if task.stream != _HOST:
            kept.append(Access(task, writes, begin, end, text, made))
        self.uses[key] = kept[-4096:]

    def _race(self, access, task, writes, made, text, tensor):
        name = self._name(tensor)
        if access.made is not made:
            kind = "block used again before its last use had ended"
            tensor = f"{access.tensor} (its bytes now belong to {text}{name})"
        elif access.writes and not writes:
            kind, tensor = "read before it was written", text + name
        elif access.writes:
            kind, tensor = "written twice in no order", text + name
        else:
            kind, tensor = "written before it was read", text + name

        def told(task, writes):
            where = "the host" if task.stream == _HOST else f"stream {task.stream}"
            return f"{task.what} {'writes' if writes else 'reads'} on {where}"

        race = Race(kind, tensor, told(access.task, access.writes), access.task.line, told(task, writes), task.line)
        self.races.setdefault((kind, access.task.line, task.line, access.task.what, task.what), race)

    def _name(self, tensor):
        frame = caller()[1]
        values = dict(frame.f_locals) if frame else {}
        pointer = tensor.untyped_storage().data_ptr()
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.untyped_storage().data_ptr() == pointer:
                return f", `{name}`"
        return ""

    def host_task(self, what) -> Task:
        return Task(what, caller()[0], _HOST, 0, self.known[_HOST])
