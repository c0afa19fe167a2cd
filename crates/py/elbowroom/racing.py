"""``elbowroom.races(step)``: runs a step written for ``torch.cuda`` under many orders of its streams, on a CPU, and names its races."""

from __future__ import annotations

import contextlib
import functools
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from .errors import UnsupportedError
from .simulated import Device, Event, Race, RanOut, Stream

_CUDA = torch.device("cuda", 0)
_EMPTY = ("aten::empty", "aten::new_empty")


@dataclass
class RaceReport:
    """What ``races`` found."""

    #: How many orders were run, and the seeds of those whose results had wrong bits or which failed.
    schedules: int
    wrong: list[int] = field(default_factory=list)
    #: The races, each once, in the order in which they were found.
    races: list[Race] = field(default_factory=list)
    #: What a seed of ``wrong`` raised, if it did.
    errors: dict[int, str] = field(default_factory=dict)

    def __bool__(self):
        return bool(self.races or self.wrong)

    def __str__(self):
        if not self:
            return f"no race in {self.schedules} schedules"
        count = len(self.races)
        lines = [f"{count} race{'s' * (count != 1)}; wrong results in {len(self.wrong)} of {self.schedules} schedules"]
        return "\n".join([*lines, *map(str, self.races)])


def races(step, schedules=100, seed=0, memory=64 << 20) -> RaceReport:
    """Runs a step under many orders of its streams and reports which uses of memory nothing orders.

    ``step()`` builds what it needs, runs on ``"cuda"`` with ``torch.cuda``'s streams and events, and returns the tensors whose bits count; it is
    called once in the order in which it issues its work, and once for each of ``schedules`` seeds from ``seed`` on, every time with the same
    state of the CPU's generator. It needs no GPU: the device is simulated, with ``memory`` bytes. As in PyTorch, the backward pass of an operator
    runs on the stream of the operator, behind what made its gradients, and what follows the backward pass runs behind all of it.

    A race is found in any order, because each use of bytes is compared with those that it is not ordered behind; ``report.wrong`` lists the
    seeds whose results differ from those of the issued order. ``report.races`` states for each race what happened, the tensor, and the two
    uses with the lines of Python that issued them. ``bool(report)`` is whether there is any.
    """
    if schedules < 1:
        raise ValueError("schedules must be at least 1")
    report = RaceReport(schedules)
    found: dict[tuple, Race] = {}
    state = torch.get_rng_state()
    try:
        expected = _run(step, memory, None, found)
        if not any(isinstance(leaf, torch.Tensor) for leaf in expected):
            raise ValueError("the step must return the tensors whose bits count")
        for number in range(seed, seed + schedules):
            torch.set_rng_state(state)
            try:
                same = _same(expected, _run(step, memory, number, found))
            except RanOut:
                raise
            except Exception as error:  # wrong values may lead anywhere
                report.errors[number] = f"{type(error).__name__}: {error}"
                same = False
            if not same:
                report.wrong.append(number)
    finally:
        torch.set_rng_state(state)
    report.races = list(found.values())
    return report


def _same(one, other):
    bits = lambda t: t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)
    return len(one) == len(other) and all(
        (a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one, other)
    )


def _run(step, memory, seed, found):
    """The leaves that a step returns, as tensors of the host; adds its races."""
    device = Device(memory, seed)
    try:
        # Kernels of oneDNN return workspaces of which shapes are not known beforehand.
        with _without_onednn(), _Kernels(device) as kernels:
            names = _Names(device, kernels)
            with _Patched(device, names), names:
                result = step()
        device.finish()
        if device.errors and seed is None:
            raise UnsupportedError(f"the simulated device cannot run {device.errors[0]}")
        if device.errors:
            raise RuntimeError(device.errors[0])
        return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(result)]
    finally:
        for key, race in device.races.items():
            found.setdefault(key, race)
        device.uses.clear()
        Device.current = None


@contextlib.contextmanager
def _without_onednn():
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _is_cuda(device) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return device is not None and torch.device(device).type == "cuda"


class _Kernels(TorchDispatchMode):
    """Makes tasks of operators on tensors of the device."""

    _shapes: dict = {}

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.place = False
        self.pin = False
        self.pinned: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # What follows is not the program's: tensors show themselves as they are.
        with torch._C.DisableTorchFunction():
            return self._called(func, args, kwargs or {})

    def _called(self, func, args, kwargs):
        device = self.device
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = any(device.block_of(tensor) is not None for tensor in tensors)
        place = self.place and not tensors
        if not on_device and not place:
            return self._on_host(func, args, kwargs)
        returns = func._schema.returns
        if func.namespace in ("prim",) or any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return func(*args, **kwargs)
        name = func._schema.name
        if name in ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"):
            device.synchronize(device.stream.number)
            task = device.host_task(name)
            for tensor in tensors:
                device.use(task, tensor, False)
            return func(*args, **kwargs)
        if name == "aten::set_":
            return func(*args, **kwargs)
        if name == "aten::copy_" and (device.block_of(args[0]) is None or device.block_of(args[1]) is None):
            if device.block_of(args[1]) is None and args[1].dim() == 0:
                return self._kernel(func, args, kwargs)
            blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            self.transfer(args[0], args[1], not blocking)
            return args[0]
        return self._kernel(func, args, kwargs)

    def _on_host(self, func, args, kwargs):
        device = self.device
        if any(isinstance(key, tuple) for key in device.uses):
            task = device.host_task(func._schema.name)
            for tensor, writes in _operands(func, args, kwargs):
                if ("host", tensor.untyped_storage().data_ptr()) in device.uses:
                    device.use(task, tensor, writes)
        result = func(*args, **kwargs)
        if self.pin:
            for tensor in tree_leaves(result):
                self.note_pinned(tensor)
        return result

    def note_pinned(self, tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        self.pinned.add(key)
        weakref.finalize(storage, self.pinned.discard, key)

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.pinned

    def transfer(self, to, source, non_blocking):
        """Issues a copy between the device and the host to the current stream."""
        device = self.device
        to_block, from_block = device.block_of(to), device.block_of(source)
        host = source if from_block is None else to
        asynchronous = non_blocking and self.is_pinned(host)
        what = "copy to the host" if to_block is None else "copy to the device"
        if from_block is None and not asynchronous:
            # Taken at once, into a buffer of the driver's.
            if ("host", source.untyped_storage().data_ptr()) in device.uses:
                device.use(device.host_task(what), source, False)
            source_bytes = source.detach().clone()
        else:
            source_bytes = device.shadow(source.detach(), from_block) if from_block else source.detach()
        to_bytes = device.shadow(to.detach(), to_block) if to_block else to.detach()
        task = device.enqueue(what, device.stream.number, lambda: to_bytes.copy_(source_bytes))
        if from_block or asynchronous:
            device.use(task, source, False)
        device.use(task, to, True)
        if asynchronous or (from_block is None and non_blocking):
            device.go_on()
        else:
            device.synchronize(device.stream.number)

    def _kernel(self, func, args, kwargs):
        device = self.device
        schema = func._schema
        operands = _operands(func, args, kwargs)
        outputs = self._outputs(func, args, kwargs)
        written, results, fresh = {}, [], []
        for argument, value in _arguments(func, args, kwargs):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written[frozenset(argument.alias_info.before_set)] = value
        for at, declared in enumerate(schema.returns):
            alias = declared.alias_info
            if alias is not None and alias.is_write:
                results.append(written.get(frozenset(alias.before_set)))
                fresh.append(None)
                continue
            make = lambda meta: device.allocate(meta.shape, meta.stride(), meta.dtype, schema.name)
            made = tree_map_only(torch.Tensor, make, outputs[at])
            results.append(made)
            fresh.append(made)
        result = None if not results else results[0] if len(results) == 1 else tuple(results)
        if schema.name.startswith(_EMPTY):
            return result
        shadow = lambda t: device.shadow(t.detach(), device.block_of(t)) if device.block_of(t) else t.detach().clone()
        leaves, spec = tree_flatten((args, kwargs))
        shadows = [shadow(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        own = [shadow(t) for t in tree_leaves(fresh) if isinstance(t, torch.Tensor)]
        places = [at for at, made in enumerate(fresh) if made is not None]
        single = len(schema.returns) == 1
        seed = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            seed = int(torch.randint(1 << 62, ()).item())

        def run():
            run_args, run_kwargs = tree_unflatten(shadows, spec)
            if _is_cuda(run_kwargs.get("device")):
                run_kwargs = {**run_kwargs, "device": "cpu"}
            with _seeded(seed):
                computed = func(*run_args, **run_kwargs)
                values = (computed,) if single else computed
                if places:
                    leaves = [leaf for at in places for leaf in tree_leaves(values[at]) if isinstance(leaf, torch.Tensor)]
                    for place, value in zip(own, leaves, strict=True):
                        place.copy_(value)

        task = device.enqueue(schema.name.removeprefix("aten::"), device.stream.number, run)
        for tensor, writes in operands:
            if device.block_of(tensor) is not None:
                device.use(task, tensor, writes)
        for tensor in tree_leaves(fresh):
            if isinstance(tensor, torch.Tensor):
                device.use(task, tensor, True)
        device.go_on()
        return result

    def _outputs(self, func, args, kwargs):
        """The shapes of what an operator returns, as tensors without bytes."""
        if all(r.alias_info is not None for r in func._schema.returns):
            return [None] * len(func._schema.returns)
        leaves, spec = tree_flatten((args, kwargs))
        describe = lambda leaf: (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)
        key = (func, str(spec), tuple(map(describe, leaves)))
        if key not in self._shapes:
            meta = lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
            shaped = [meta(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            meta_args, meta_kwargs = tree_unflatten(shaped, spec)
            if any(argument.name == "device" for argument in func._schema.arguments):
                meta_kwargs = {**meta_kwargs, "device": "meta"}
            try:
                computed = func(*meta_args, **meta_kwargs)
            except (NotImplementedError, RuntimeError):
                # The shape depends on values, or is not known: as on a device, the host waits.
                self.device.synchronize()
                state = torch.get_rng_state()
                copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
                copy_args, copy_kwargs = tree_unflatten(copies, spec)
                computed = func(*copy_args, **copy_kwargs)
                torch.set_rng_state(state)
                return [computed] if len(func._schema.returns) == 1 else list(computed)
            self._shapes[key] = [computed] if len(func._schema.returns) == 1 else list(computed)
        return self._shapes[key]


@contextlib.contextmanager
def _seeded(seed):
    if seed is None:
        yield
        return
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _arguments(func, args, kwargs):
    for at, argument in enumerate(func._schema.arguments):
        if at < len(args) and not argument.kwarg_only:
            yield argument, args[at]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _operands(func, args, kwargs):
    """Each tensor that an operator is given, and whether it writes it."""
    return [
        (leaf, argument.alias_info is not None and argument.alias_info.is_write)
        for argument, value in _arguments(func, args, kwargs)
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


class _Move(torch.autograd.Function):
    """A copy to the device or to the host, which gradients take in the other direction."""

    @staticmethod
    def forward(ctx, tensor, kernels, to_device, non_blocking):
        ctx.kernels, ctx.to_device, ctx.non_blocking = kernels, to_device, non_blocking
        with _disable_current_modes():
            stride = torch.empty_like(tensor, device="meta").stride()
            if to_device:
                new = kernels.device.allocate(tensor.shape, stride, tensor.dtype, "a copy to the device")
            else:
                new = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
                if non_blocking:
                    kernels.note_pinned(new)
            kernels.transfer(new, tensor, non_blocking)
        return new

    @staticmethod
    def backward(ctx, gradient):
        return _Move.apply(gradient, ctx.kernels, not ctx.to_device, ctx.non_blocking), None, None, None


def _on_its_stream(device, result):
    """Has the backward pass of what made a result run on the stream that is current now; operators that were seen before keep theirs."""
    if not torch.is_grad_enabled():
        return result
    with torch._C.DisableTorchFunction():
        pending = [leaf.grad_fn for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
    while pending:
        node = pending.pop()
        if _SEEN in node.metadata or node.name().endswith("AccumulateGrad"):
            continue
        node.metadata[_SEEN] = True
        node.register_prehook(functools.partial(_enter, device, device.stream))
        pending.extend(after for after, _ in node.next_functions if after is not None)
    return result


_SEEN = "elbowroom: its stream is known"


def _enter(device, stream, gradients):
    """Goes on with a stream, behind those that made the gradients."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        blocks = [device.block_of(gradient) for gradient in gradients if isinstance(gradient, torch.Tensor)]
    device.stream = stream
    device.entered.add(stream)
    for number in sorted({block.stream for block in blocks if block is not None} - {stream.number}):
        stream.wait_event(device.event_of(number))


_TO_HOST = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__repr__, torch.Tensor.item, torch.Tensor.__array__}


class _Names(TorchFunctionMode):
    """Shows tensors of the device as such, and places new ones there."""

    def __init__(self, device, kernels):
        super().__init__()
        self.device, self.kernels = device, kernels

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return _on_its_stream(self.device, self._called(func, args, kwargs))

    def _called(self, func, args, kwargs):
        kwargs = dict(kwargs or {})
        device, kernels = self.device, self.kernels
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None:
            on_device = device.block_of(first) is not None
            if func == torch.Tensor.device.__get__:
                return _CUDA if on_device else torch.device("cpu")
            if func == torch.Tensor.is_cuda.__get__:
                return on_device
            if func == torch.Tensor.is_cpu.__get__:
                return not on_device
            if func is torch.Tensor.get_device:
                return 0 if on_device else -1
            if func is torch.Tensor.is_pinned:
                return kernels.is_pinned(first)
            if func is torch.Tensor.pin_memory:
                if on_device:
                    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor', only dense CPU tensors can be pinned")
                copy = first.detach().clone()
                kernels.note_pinned(copy)
                return copy
            if func is torch.Tensor.cuda:
                return self._move(first, True, args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if func is torch.Tensor.cpu:
                return self._move(first, False, False)
            if func is torch.Tensor.to:
                return self._to(first, args[1:], kwargs)
            if func in _TO_HOST and on_device and func is not torch.Tensor.item:
                if func is torch.Tensor.__repr__:
                    return func(self._move(first.detach(), False, False), **kwargs)
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        where = kwargs.get("device")
        pin = kwargs.pop("pin_memory", False)
        if where is None and not pin:
            return func(*args, **kwargs)
        place = where is not None and _is_cuda(where)
        kwargs.pop("device", None)
        if func in (torch.tensor, torch.as_tensor) or (place and first is None and func.__name__ in ("from_numpy",)):
            made = func(*args, **kwargs)
            return self._move(made, True, False) if place else made
        if first is not None and where is not None and place != (device.block_of(first) is not None):
            made = func(*args, **kwargs)
            return self._move(made.detach(), place, False)
        before = kernels.place, kernels.pin
        kernels.place, kernels.pin = place, pin
        try:
            return func(*args, **kwargs)
        finally:
            kernels.place, kernels.pin = before

    def _to(self, tensor, args, kwargs):
        where = kwargs.pop("device", None)
        non_blocking = kwargs.pop("non_blocking", False)
        copy = kwargs.pop("copy", False)
        dtype = kwargs.pop("dtype", None)
        other = kwargs.pop("other", None)
        rest = list(args)
        if rest and isinstance(rest[0], torch.Tensor):
            other = rest.pop(0)
        elif rest and isinstance(rest[0], torch.dtype):
            dtype = rest.pop(0)
        elif rest:
            where = rest.pop(0) if rest[0] is not None else (rest.pop(0), where)[1]
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                dtype = rest.pop(0) or dtype
        if rest:
            non_blocking = rest.pop(0)
        if rest:
            copy = rest.pop(0)
        on_device = self.device.block_of(tensor) is not None
        if other is not None:
            where, dtype = ("cuda" if self.device.block_of(other) is not None else "cpu"), other.dtype
        result = tensor
        if where is not None and _is_cuda(where) != on_device:
            result = self._move(tensor, not on_device, non_blocking)
            copy = False
        if dtype is not None and dtype != result.dtype or copy:
            result = result.to(dtype or result.dtype, copy=copy, **kwargs)
        elif kwargs.get("memory_format") not in (None, torch.preserve_format):
            result = result.contiguous(memory_format=kwargs["memory_format"])
        return result

    def _move(self, tensor, to_device, non_blocking):
        if (self.device.block_of(tensor) is not None) == to_device:
            return tensor
        return _Move.apply(tensor, self.kernels, to_device, bool(non_blocking))


class _Patched:
    """``torch.cuda`` as that of the simulated device, while a step runs."""

    def __init__(self, device, names):
        self.device, self.names = device, names

    def __enter__(self):
        device = self.device
        run_backward = torch.autograd._engine_run_backward

        def backward(*args, **kwargs):
            # Hooks and functions of the program run within; PyTorch has left the mode by then.
            caller, outer, device.entered = device.stream, device.entered, set()
            try:
                with self.names:
                    return run_backward(*args, **kwargs)
            finally:
                device.stream = caller
                for stream in sorted(device.entered - {caller}, key=lambda stream: stream.number):
                    caller.wait_stream(stream)
                device.entered |= outer

        apply = vars(torch.autograd.Function)["apply"]

        def apply_on_its_stream(function, *args, **kwargs):
            return _on_its_stream(device, apply.__get__(None, function)(*args, **kwargs))

        push_hooks = torch._C._autograd._push_saved_tensors_default_hooks

        def seen(hook):
            def call(value):
                with self.names:
                    return hook(value)

            return call

        def push(pack, unpack):
            push_hooks(seen(pack), seen(unpack))

        def stream(wanted):
            return wanted if wanted is not None else contextlib.nullcontext()

        def set_stream(wanted):
            device.stream = wanted

        names = {
            "Stream": Stream,
            "Event": Event,
            "stream": stream,
            "StreamContext": stream,
            "current_stream": lambda *_, **__: device.stream,
            "default_stream": lambda *_, **__: device.default,
            "set_stream": set_stream,
            "synchronize": lambda *_, **__: device.synchronize(),
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda *_: None,
            "empty_cache": lambda: None,
            "init": lambda: None,
            "is_current_stream_capturing": lambda: False,
            "is_bf16_supported": lambda *_, **__: True,
            "get_device_name": lambda *_: "simulated",
            "get_device_capability": lambda *_: (8, 0),
            "get_device_properties": lambda *_: properties,
            "memory_allocated": lambda *_: sum(block.size for block in device.blocks.values()),
            "mem_get_info": lambda *_: (len(device.arena) - device.top, len(device.arena)),
            "_lazy_init": lambda: None,
        }
        generic = {"Stream": Stream, "Event": Event}
        accelerator = {
            "is_available": lambda: True,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_stream": lambda *_, **__: device.stream,
            "set_stream": set_stream,
            "synchronize": lambda *_, **__: device.synchronize(),
            "current_device_index": lambda: 0,
            "device_count": lambda: 1,
        }

        properties = SimpleNamespace(name="simulated", major=8, minor=0, total_memory=len(device.arena), multi_processor_count=1)

        def record_stream(tensor, wanted):
            with _disable_current_modes():
                block = device.block_of(tensor)
            if block is not None:
                block.used_by.add(wanted.number)

        self.before = []
        engine = {"_engine_run_backward": backward}
        function = {"apply": classmethod(apply_on_its_stream)}
        hooks = {"_push_saved_tensors_default_hooks": push}
        tensor = {"record_stream": record_stream}
        cudnn = {"is_acceptable": lambda *_: False}
        everything = (
            (torch.backends.cudnn, cudnn),
            (torch.Tensor, tensor),
            (torch._C._autograd, hooks),
            (torch.autograd.Function, function),
            (torch.autograd, engine),
            (torch.cuda, names),
            (torch, generic),
            (torch.accelerator, accelerator),
        )
        for module, replaced in everything:
            for name, value in replaced.items():
                if hasattr(module, name):
                    self.before.append((module, name, vars(module).get(name)))
                    setattr(module, name, value)
        return self

    def __exit__(self, *_):
        for module, name, value in self.before:
            if value is None:  # it was inherited
                delattr(module, name)
            else:
                setattr(module, name, value)
