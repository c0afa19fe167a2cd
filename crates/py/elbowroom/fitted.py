"""``fit``: a model whose training step keeps to a limit."""

from __future__ import annotations

import functools
import logging
import os

import torch
import torch._dynamo
from torch.utils._pytree import tree_leaves

from . import pins as _pins, size, version
from .backend import make
from .between import NOT_CAPTURED, Between, check_functions
from .consume import Consumer
from .errors import InfeasibleError, UnsupportedError
from .report import Report  # noqa: F401 - part of the interface
from .step import Step
from .tier import check_host, choose_folder


#: Where PyTorch's capture lies.
_CAPTURE = os.path.dirname(torch._dynamo.__file__) + os.sep


def _raised_by_capture(error: Exception) -> bool:
    """Whether PyTorch's capture itself raised an error, rather than the model or an operator."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CAPTURE)


def fit(
    model,
    memory,
    optimizer=None,
    mode="exact",
    *,
    consume_gradients=False,
    evaluations=20_000,
    seconds=None,
    seed=0,
    background=True,
    host="auto",
    host_memory=None,
    folder=None,
    pins=None,
):
    """Makes the training step of ``model`` keep to ``memory``, and returns the model. The training loop stays as it is.

    ``memory`` is a number of bytes, a size like ``"6GiB"``, a share of the unlimited peak like ``"70%"``, or ``"min"``. It covers parameters,
    buffers, gradients, the inputs, every tensor of the forward and backward pass, and, if an ``optimizer`` is given, its state. Results equal
    those of the model as it was, to the bit. ``evaluations`` and ``seed`` determine the plan, on every machine and every rank.

    With ``mode="fast"`` the kernels are those of Inductor: results are numerically different, which the report notes. The limit then holds for
    the storages that Inductor's code allocates. Shares are of what ``torch.compile`` takes without a limit, and the limit is kept by
    recomputing only.

    The first plan is made while the first step waits. With ``background``, another shape is served by the plan of a short search, within the
    same limit and with the same bits, until the whole search has ended in another thread.

    With ``consume_gradients`` the optimizer updates every parameter in the backward pass, as soon as its gradient is complete, and frees the
    gradient; ``optimizer.step()`` then finds nothing left to do. The loop must call it after every backward pass, and must not read, clip
    or scale gradients.

    On CPUs a file is the host tier. ``host="file"`` offloads tensors wherever that is faster, at the rates measured, than recomputing them;
    ``"auto"`` does so only where recomputing alone cannot meet the limit, because it writes to the disk in every step; ``None`` never does.
    The file has no name and lies in ``folder`` (by default a temporary folder on a disk); it has at most ``host_memory`` bytes (by default
    the free space of the disk). On an accelerator pinned memory is the host tier: ``"auto"`` and ``"pinned"`` offload tensors on streams of their
    own wherever that is faster, at the rates measured, than recomputing them; several processes that train together only recompute.

    ``pins`` are decisions that every plan obeys, one a line: ``"keep layers.3.*"`` leaves tensors on the device from when they are made to their
    last use, ``"never-recompute *softmax*"`` runs ops once (see :mod:`elbowroom.pins`). ``report.pins`` says what each covers; a pattern that
    covers nothing is refused.

    The figures are in ``model.elbowroom.report``. Raises :class:`InfeasibleError` at the first step if the limit cannot be met and
    :class:`UnsupportedError` if the model cannot be planned without a risk to its results.
    """
    if mode not in ("exact", "fast"):
        raise UnsupportedError(f"there is no mode {mode!r}; the modes are 'exact' and 'fast'")
    if mode == "fast" and (host in ("file", "pinned") or host_memory is not None or folder is not None):
        raise UnsupportedError("mode='fast' keeps the limit by recomputing only; a host tier, host_memory and folder are for mode='exact'")
    if mode == "fast" and consume_gradients:
        raise UnsupportedError("Inductor's code returns all gradients at once, so mode='fast' cannot consume them one by one")
    size.resolve(memory, 1)
    pins = _pins.parse(pins)
    if any(pin.verb == "host" for pin in pins):
        raise UnsupportedError("a `host` pin is for elbowroom.plan; in fit the host tier holds parameters where `host=` permits it and the limit needs it")
    if mode == "fast" and pins:
        raise UnsupportedError("mode='fast' takes no pins: Inductor fuses ops, so which tensors exist is its decision")
    check_host(host, model)
    host_memory = None if host_memory is None else size.resolve(host_memory, 0)
    if folder is not None:
        choose_folder(folder)
    if consume_gradients and optimizer is None:
        raise ValueError("consume_gradients needs the optimizer")
    consumer = Consumer(model, optimizer) if consume_gradients else None
    if mode == "fast":
        from . import fast  # Inductor takes a second to import.

        step = fast.FastStep(model, memory, optimizer, evaluations, seconds, seed, None, False, None)
        backend = fast.make(step)
    else:
        step = Step(model, memory, optimizer, evaluations, seconds, seed, consumer, background, host, host_memory, folder, pins)
        backend = make(step)
    step.report.notes += version.check()
    forward = model._call_impl
    if torch._dynamo.trace_rules.check(model.forward):
        # Capture never begins in a module of PyTorch itself, such as Sequential; it continues into one. Older versions leave that to the caller.
        forward = torch._dynamo.external_utils.wrap_inline(forward)
    compiled = torch.compile(forward, backend=backend, dynamic=False)

    # A message in the model's forward would end the capture there.
    ignored = torch._dynamo.config.ignore_logging_functions | {value for value in vars(logging.Logger).values() if callable(value)}
    # DistributedDataParallel would have the graph split at its buckets. The settings are made once: that takes most of a millisecond.
    settings = torch._dynamo.config.patch(recompile_limit=64, ignore_logging_functions=ignored, optimize_ddp=False, allow_rnn=True)

    @functools.wraps(model._call_impl)
    def call(*args, **kwargs):
        try:
            runs = step.runs
            with settings:
                step._inputs = tree_leaves((args, kwargs))
                if step.watching:
                    plans = len(step._plans)
                    with Between(step):
                        result = compiled(*args, **kwargs)
                    step.watching = len(step._plans) > plans
                    check_functions(tree_leaves(result), step._inputs)
                    step.check_results(tree_leaves(result))
                    step.check_pins()
                else:
                    result = compiled(*args, **kwargs)
            if step.runs == runs and not torch.compiler.is_compiling():
                raise UnsupportedError(NOT_CAPTURED)
            return result
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, (UnsupportedError, InfeasibleError)):
                raise error.inner_exception from None
            raise
        except torch._dynamo.exc.TorchRuntimeError as error:
            # Ops that fail on tensors without memory: the model's own fault, or a model that computes otherwise when it is captured.
            reason = " ".join(str(error).split("Hint:")[0].split())
            raise UnsupportedError(f"PyTorch cannot capture the model: {reason}") from error
        except Exception as error:
            if not _raised_by_capture(error):
                raise
            reason = " ".join(str(error).split("Set TORCHDYNAMO_VERBOSE")[0].split())
            raise UnsupportedError(f"PyTorch's capture of the model fails: {type(error).__name__}: {reason}") from error
        finally:
            step._inputs = []

    model._compiled_call_impl = call
    model.elbowroom = step
    return model
