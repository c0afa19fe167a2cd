"""A joint graph of forward and backward, as an iteration to be planned.

A node either computes (it makes at least one new storage) or shows (every result shares a storage that exists: views, ``getitem``, slices).
Only computing nodes are ops of the iteration, and only storages are its tensors; what shows a storage costs nothing and is evaluated again
wherever it is read. Storages are compared by the fake tensors of the trace, so no list of view operators is needed.

What exists before the step and stays after it is no part of the iteration: parameters, buffers, the inputs. The results of the forward
pass belong to the caller from the moment they are returned, so they count in every later op and are never evicted after that.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from . import _native
from .costs import overload_name, tensors_of
from .errors import UnsupportedError
from .recurrent import workspace_bytes
from .reusing import reusable
from .rewrite import FUNCTIONS, rewrite

ONCE, BACKWARD, UPDATE = 1, 2, 4

#: The name of a module in the annotations of nodes.
MODULE = "elbowroom.module"

#: Bytes of a recorded state of the CPU's generator.
RNG_STATE_BYTES = 5056

_SEEDED = torch.Tag.nondeterministic_seeded

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')

_COPY = torch.ops.aten.copy_.default

#: Batch normalization reads running statistics that it replaces; in training its first result does not depend on them.
_BATCH_NORM = {
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update_functional",
    "cudnn_batch_norm_functional",
    "native_batch_norm_backward",
    "batch_norm_backward",
}

#: These change tensors that their schema says they only read.
_HIDDEN_WRITES = {"cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm", "_batch_norm_with_update"}


@dataclass(eq=False)
class Storage:
    """The bytes of one result and of everything that shows them."""

    bytes: int
    node: fx.Node
    """The node that makes it, or the placeholder or constant that holds it."""
    index: int | None = None
    """Which of the node's results, if it has several."""
    tensor: int | None = None
    """Its number among the tensors of the iteration; ``None`` if it outlives the step or has no bytes."""
    held: bool = False
    """Returned by the forward pass: from then on the caller holds it."""


@dataclass(eq=False)
class Op:
    """A node that computes."""

    node: fx.Node
    makes: list[Storage]
    reads: list[Storage] = field(default_factory=list)
    random: bool = False
    once: bool = False
    backward: bool = False

    @property
    def workspace(self) -> int:
        """Bytes that the op makes and frees."""
        return self.node.meta.get("workspace", 0)

    @property
    def device(self) -> torch.device:
        """The device of its first result."""
        return tensors_of(self.node.meta["val"])[0].device

    @property
    def state_bytes(self) -> int:
        """Bytes of the generator state that is recorded for running the op again."""
        if not self.random or self.once:
            return 0
        return RNG_STATE_BYTES if self.device.type == "cpu" else 16


@dataclass
class Update:
    """The optimizer's step of the parameter whose gradient is the result ``index`` of the backward pass."""

    index: int
    temporary: int


@dataclass
class Store:
    """The result ``index`` of the backward pass, a gradient, is written to the host tier."""

    index: int
    temporary: int


def place(node: fx.Node) -> str:
    """Where the model calls an op, as ``file:line``; empty if the trace does not say."""
    found = _PLACE.findall(node.meta.get("stack_trace") or "")
    return f"{found[-1][0]}:{found[-1][1]}" if found else ""


def _called(node: fx.Node) -> str:
    """The place where the model calls an op and the module that calls it, as the end of a sentence."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = f" in {stack[-1][0]} ({getattr(stack[-1][1], '__name__', stack[-1][1])})" if stack else ""
    where = place(node)
    return f"; called at {where}{module}" if where else f"; called{module}" if module else ""


def _masked_results(node: fx.Node) -> set[int]:
    """Results that a kernel does not make, because the call says that nobody reads them. PyTorch traces some of them as tensors."""
    if isinstance(node.target, torch._ops.OpOverload):
        for argument, value in zip(node.target._schema.arguments, node.args):
            if argument.name == "output_mask":
                return {index for index, wanted in enumerate(value) if wanted is False}
    return set()


def _is_fresh_scalar(value) -> bool:
    return isinstance(value, (int, float, bool, str, torch.dtype, torch.device)) and not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class Joint:
    """The analysis of one joint graph. ``fwd_outputs`` is the number of leading results that the forward pass returns. The graph is rewritten first,
    so that it needs less (see ``rewrite``), unless another compiler is to read it. A graph that is ``compiled`` may write its new buffers itself,
    and cannot draw recorded random numbers again."""

    def __init__(self, module: fx.GraphModule, fwd_outputs: int, name: str = "step", rewritten: bool = True, compiled: bool = False):
        if rewritten:
            rewrite(module)
        self.module, self.name, self.compiled = module, name, compiled
        #: Names of modules by what stands for them in the graph.
        self.modules: dict[str, str] = {}
        #: Nodes that write a new value into an input when the forward pass ends.
        self.writes: list[fx.Node] = []
        nodes = list(module.graph.nodes)
        self.position = {node: number for number, node in enumerate(nodes)}
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.tangents = [node for node in self.placeholders if node.name.startswith("tangents")]
        self.primals = [node for node in self.placeholders if not node.name.startswith("tangents")]
        self.output = nodes[-1]
        results = list(self.output.args[0])
        self.forward_results, self.gradients = results[:fwd_outputs], results[fwd_outputs:]
        values = (leaf for node in nodes for leaf in tensors_of(node.meta.get("val")))
        #: Whether any tensor of the step lies on an accelerator.
        self.on_accelerator = any(leaf.device.type not in ("cpu", "meta") for leaf in values)
        self.primal_set = set(self.primals)
        self.boundary = self._last_forward()
        self.mutated = self._mutated()
        #: The storage of every node with one result, and of every result of the others.
        self.storage: dict[fx.Node, Storage] = {}
        self.results: dict[fx.Node, list[Storage | None]] = {}
        self._known: dict[int, Storage] = {}
        self.ops: list[Op] = []
        #: Sizes that differ in the running step from those of the fake tensors.
        self.corrections: dict[Storage, int] = {}
        #: Results whose strides differ in the running step: shape, strides, and strides of the fake tensor.
        self.strides: dict[fx.Node, tuple] = {}
        self.op_of: dict[fx.Node, Op] = {}
        #: Gradients that are consumed in the backward pass, by position, each with the temporary bytes of its update.
        self.updates: dict[int, int] = {}
        self.consume = None
        #: What to call for a node, found when it is first written.
        self.calls: dict[fx.Node, object] = {}
        #: Gradients that are written to the host tier, by position, each with the temporary bytes of that; `store` does it.
        self.stored: dict[int, int] = {}
        self.store = None
        #: Parameters in the host tier, by position, of which a step makes resident what it needs; rates to the tier and back.
        self.filed: set[int] = set()
        self.rates = (1, 1)
        #: Bytes that the update of such a parameter reads and writes ÷ bytes of the parameter.
        self.update_traffic = 1
        self._keep = []
        for node in nodes[:-1]:
            try:
                self._visit(node)
            except UnsupportedError as error:
                raise UnsupportedError(f"{error}{_called(node)}") from None
        self._hold_results()
        self._number()

    # --- analysis -------------------------------------------------------------------------------------------------------------------

    def _last_forward(self) -> int:
        """Position of the last node that the results of the forward pass need. Tracing runs the whole forward pass first."""
        last, pending, seen = -1, [node for node in self.forward_results if isinstance(node, fx.Node)], set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            last = max(last, self.position[node])
            pending.extend(node.all_input_nodes)
        return last

    def _mutated(self) -> set[fx.Node]:
        """Placeholders that are overwritten when the forward pass has ended."""
        mutated = set()
        self.replacing: set[int] = set()
        by_desc = {repr(node.meta.get("desc")): node for node in self.primals}
        for index, desc in enumerate(self.output.meta.get("desc") or ()):
            target = getattr(desc, "mutated_input", None)
            if target is None:
                continue
            self.replacing.add(index)
            if repr(target) in by_desc:
                mutated.add(by_desc[repr(target)])
        if self.compiled:
            mutated |= {node.args[0] for node in self.module.graph.find_nodes(op="call_function", target=_COPY) if node.args[0] in self.primal_set}
        return mutated

    def _new_storage(self, node: fx.Node, tensor: torch.Tensor, index: int | None) -> Storage:
        storage = tensor.untyped_storage()
        count = storage.nbytes()
        if not isinstance(count, int):
            try:
                count = int(count)
            except Exception:
                raise UnsupportedError(f"{node} has a size that is not known when the step is planned; use static shapes") from None
        made = Storage(count, node, index)
        self._known[storage._cdata] = made
        # A storage's address may be used again once it is freed.
        self._keep.append(storage)
        return made

    def _known_storage(self, tensor: torch.Tensor) -> Storage | None:
        return self._known.get(tensor.untyped_storage()._cdata)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder" or node.op == "get_attr":
            value = node.meta.get("val")
            if node.op == "get_attr" and value is None:
                value = getattr(self.module, node.target)
            if not isinstance(value, torch.Tensor):
                if isinstance(value, fx.GraphModule):
                    raise UnsupportedError(f"{node} is a nested graph, which is not supported")
                if node.users and not _is_fresh_scalar(value):
                    raise UnsupportedError(f"the input {node} is a {type(value).__name__}; only tensors of static shape are planned")
                return
            self._check_plain(node, value)
            self.storage[node] = self._known_storage(value) or self._new_storage(node, value, None)
            return
        if node.op != "call_function":
            raise UnsupportedError(f"{node} is a {node.op}, which is not supported")
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            return  # What it checks was fixed when the step was traced.
        if node.target is operator.getitem:
            source = node.args[0]
            if source in self.results:
                self.storage[node] = self.results[source][node.args[1]]
                return
        value = node.meta.get("val")
        leaves = tensors_of(value)
        for leaf in leaves:
            self._check_plain(node, leaf)
        if not leaves:
            raise UnsupportedError(f"{node} ({node.target}) returns {type(value).__name__} instead of tensors; only tensors of static shape are planned")
        if self.compiled and node.target is _COPY and node.args[0] in self.primal_set and not node.users:
            self.writes.append(node)
            return
        self._check_operator(node)
        several = isinstance(value, (tuple, list))
        masked = _masked_results(node)
        makes, results = [], []
        for index, leaf in enumerate(value if several else [value]):
            if not isinstance(leaf, torch.Tensor) or index in masked:
                results.append(None)
                continue
            storage = self._known_storage(leaf)
            if storage is None:
                storage = self._new_storage(node, leaf, index if several else None)
                if node.target is torch.ops.aten.mkldnn_rnn_layer.default and index == 3:
                    storage.bytes = workspace_bytes(node)
                makes.append(storage)
            elif storage.node is node and node.target is torch.ops.aten.mkldnn_rnn_layer_backward.default:
                # The traced op returns the gradient of both biases as one tensor; the kernel returns two.
                storage = Storage(storage.bytes, node, index)
                makes.append(storage)
            elif storage.node is node:
                raise UnsupportedError(f"two results of {node} ({node.target}) share bytes, which its schema does not say")
            results.append(storage)
        if several:
            self.results[node] = results
        else:
            self.storage[node] = results[0]
        if not makes:
            return
        if any(storage is not None and storage not in makes for storage in results):
            raise UnsupportedError(f"{node} ({node.target}) returns both new bytes and bytes of its inputs; its aliasing is not known")
        op = Op(node, makes, backward=self.position[node] > self.boundary)
        op.random = _SEEDED in getattr(node.target, "tags", ())
        self._flags(op)
        self.ops.append(op)
        self.op_of[node] = op

    @staticmethod
    def _check_plain(node: fx.Node, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            raise UnsupportedError(f"{node} is a tensor of layout {tensor.layout}; only strided tensors are planned")
        if any(not isinstance(size, int) for size in tensor.shape):
            raise UnsupportedError(f"{node} has a shape that is not known when the step is planned: {tuple(tensor.shape)}")

    @staticmethod
    def _check_operator(node: fx.Node) -> None:
        target = node.target
        if target is operator.getitem or target in FUNCTIONS:
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise UnsupportedError(f"{node} is {target}, which is no operator with a schema")
        if target._schema.is_mutable or overload_name(target) in _HIDDEN_WRITES:
            raise UnsupportedError(f"{node} ({target}) writes to its arguments; running it again would change the results")

    def _flags(self, op: Op) -> None:
        name = overload_name(op.node.target)
        op.once = op.random and (op.backward or self.compiled)
        if str(op.node.target).startswith(("_c10d_functional", "c10d")):
            op.once = True
        if name not in _BATCH_NORM and any(source in self.mutated for source in self._sources(op.node)):
            # The bytes are those of before the step only until the forward pass has returned.
            op.once = True
            if op.backward:
                raise UnsupportedError(f"{op.node} ({op.node.target}) reads in the backward pass a buffer that the forward pass replaces")

    def _sources(self, node: fx.Node):
        """Placeholders whose bytes the node reads, also through views."""
        for source in node.all_input_nodes:
            storage = self.storage.get(source)
            if storage is not None and storage.node.op == "placeholder":
                yield storage.node

    def storages_of(self, node: fx.Node) -> list[Storage]:
        """The storages that a node's value lies in."""
        if node in self.storage:
            return [self.storage[node]]
        return [storage for storage in self.results.get(node, ()) if storage is not None]

    def _hold_results(self) -> None:
        for index, node in enumerate(self.forward_results):
            # A new value of a buffer is copied into the buffer and freed.
            if isinstance(node, fx.Node) and index not in self.replacing:
                for storage in self.storages_of(node):
                    storage.held = storage.node.op == "call_function"

    def _number(self) -> None:
        """Numbers the storages that the plan decides about."""
        self.scalar_tangent_bytes = 0
        self.tensors: list[Storage] = []
        for op in self.ops:
            for storage in op.makes:
                if storage.bytes:
                    storage.tensor = len(self.tensors)
                    self.tensors.append(storage)
        for node in self.tangents:
            storage = self.storage.get(node)
            if node.meta["val"].numel() == 1:
                # Whoever starts the backward pass holds the gradient of the loss until it ends.
                self.scalar_tangent_bytes += storage.bytes
            elif storage is not None and storage.bytes and storage.tensor is None:
                storage.tensor = len(self.tensors)
                self.tensors.append(storage)
        for op in self.ops:
            for source in op.node.all_input_nodes:
                for storage in self.storages_of(source):
                    if storage not in op.reads:
                        op.reads.append(storage)

    def reuses(self, op: Op) -> dict[Storage, fx.Node]:
        """Tensors of the step whose bytes the op's result may take where nothing else needs them, each with the argument that shows it."""
        if self.compiled or len(op.makes) != 1 or op.makes[0].tensor is None or (op.backward and self.layouts_vary):
            return {}
        found = {self.storage[argument]: argument for argument in reusable(op.node) if argument in self.storage}
        return {
            storage: argument
            for storage, argument in found.items()
            if storage.tensor is not None and storage.node.op == "call_function" and not storage.held and storage.bytes == op.makes[0].bytes
        }

    @property
    def layouts_vary(self) -> bool:
        """Whether the gradients of results may come in another layout than they were traced in: a kernel that writes into its argument would then
        not return the layout that it has by itself."""
        return any(node.meta["val"].dim() > 2 for node in self.tangents)

    def received(self, tangents) -> None:
        """Notes gradients of results whose strides are not those of the traced step."""
        for node, tangent in zip(self.tangents, tangents, strict=True):
            stated = node.meta["val"].stride()
            if isinstance(tangent, torch.Tensor) and tangent.stride() != stated:
                self.strides[node] = (tuple(tangent.shape), tangent.stride(), stated)

    def named(self, node: fx.Node) -> str:
        """The name of an op in plans: its own, after that of the module that calls it, as ``model.named_modules()`` has it."""
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        known = [self.modules[key] for key in stack if key in self.modules]
        within = known[-1] if known else (node.meta.get("custom") or {}).get(MODULE, "")
        return f"{within}/{node.name}" if within else node.name

    def correct(self) -> int:
        """Adopts the sizes that the running step has shown; the number of storages that changed."""
        changed = len(self.corrections)
        for storage, count in self.corrections.items():
            storage.bytes = count
        self.corrections.clear()
        return changed

    def explain(self, error: BaseException) -> BaseException:
        """The reason why the running step failed: a view that was traced with other strides than a kernel returned, or the error itself."""
        if "view size is not compatible" not in str(error) or not self.strides:
            return error
        node, (shape, strides, stated) = next(reversed(self.strides.items()))
        came = f"{node} ({node.target}) returned" if node.op == "call_function" else "the gradient of a result came with"
        return UnsupportedError(
            f"{came} shape {shape} with strides {strides}, where PyTorch states {stated}, and a view that was traced with these is impossible{_called(node)}"
        )

    # --- columns --------------------------------------------------------------------------------------------------------------------

    def persistent_bytes(self) -> dict[int, int]:
        """Storages of placeholders, by position of the first placeholder that shows them."""
        return {
            number: self.storage[node].bytes
            for number, node in enumerate(self.primals)
            if node in self.storage and self.storage[node].node is node
        }

    def returned_gradients(self) -> list[fx.Node]:
        """The gradients that the backward pass returns in memory."""
        gone = self.updates.keys() | self.stored.keys()
        return [node for index, node in enumerate(self.gradients) if isinstance(node, fx.Node) and index not in gone]

    def copied_gradient_bytes(self) -> int:
        """Bytes of gradients that several parameters share, for each of which autograd makes a copy."""
        returned = self.returned_gradients()
        return sum(self.storages_of(node)[0].bytes for node in returned if returned.count(node) > 1)

    def gradient_bytes(self) -> int:
        """Bytes of the gradients that the backward pass returns."""
        found = {s for node in self.gradients if isinstance(node, fx.Node) for s in self.storages_of(node)}
        return sum(storage.bytes for storage in found)

    def constant_bytes(self) -> int:
        """Bytes of constants in the graph."""
        return sum(storage.bytes for node, storage in self.storage.items() if node.op == "get_attr" and storage.node is node)

    def _updates_after(self) -> dict[int, list[tuple[object, Storage]]]:
        """The updates, by the position of the op after which the gradient is complete and the parameter is read no more; and where
        gradients are stored, which need only be complete."""
        last: dict[Storage, int] = {}
        for position, op in enumerate(self.ops):
            for storage in [*op.reads, *op.makes]:
                last[storage] = position
        found = {}
        for index, temporary in self.updates.items():
            gradient = self.storages_of(self.gradients[index])[0]
            parameter = self.storage[self.primals[index]]
            found.setdefault(max(last.get(gradient, 0), last.get(parameter, 0)), []).append((Update(index, temporary), gradient))
        for index, temporary in self.stored.items():
            gradient = self.storages_of(self.gradients[index])[0]
            found.setdefault(last.get(gradient, 0), []).append((Store(index, temporary), gradient))
        return found

    def _copied(self, written: int, read: int) -> int:
        """Nanoseconds for bytes written to the host tier and read from it."""
        return math.ceil(1e9 * (written / self.rates[0] + read / self.rates[1]))

    def iteration(self, costs) -> _native.Iteration:
        """The iteration as the planner takes it. ``costs`` gives a duration in nanoseconds for a node.

        After the ops of the forward pass stands ``loss``, which reads the results and makes the tangents, and at the end ``end``, which
        reads the gradients.
        """
        reads, outputs, nanos, workspaces, flags, names, kinds, mutates, reuses = ([] for _ in range(9))
        # Parameters that are updated in the backward pass: no op that reads one may be recomputed afterwards. A token of one byte stands for
        # each, which the update overwrites.
        updated = {self.storage[self.primals[index]]: len(self.tensors) + at for at, index in enumerate(self.updates)}
        first = len(self.tensors) + len(updated)
        placed = {self.storage[self.primals[index]]: first + at for at, index in enumerate(sorted(self.filed))}
        self.placed = {number: storage for storage, number in placed.items()}
        held = sum(storage.bytes for storage in self.tensors if storage.held) + self.scalar_tangent_bytes
        # A kernel of an accelerator may take a workspace that no trace shows, from any memory that is free when it is issued. One byte
        # stands for it, so that the checker orders a copy into freed memory behind all kernels issued before.
        hidden = int(self.on_accelerator)

        def planned(storages, backward):
            numbers = [s.tensor for s in storages if s.tensor is not None and not (backward and s.held)]
            numbers += [updated[s] for s in storages if s in updated] + [placed[s] for s in storages if s in placed]
            return list(dict.fromkeys(numbers))

        def add(name, kind, read, made, duration, workspace, flag, changed=(), reused=()):
            reads.append(read)
            outputs.append(made)
            nanos.append(duration)
            workspaces.append(max(workspace, hidden))
            flags.append(flag)
            names.append(name)
            kinds.append(kind)
            mutates.append(list(changed))
            reuses.append(list(reused))

        self.op_numbers: list[Op | Update | Store | str] = []
        # What programs that are written from this iteration's schedules may reuse.
        self.reused: dict[Op, dict[Storage, fx.Node]] = {}
        updates = self._updates_after()

        def update(position):
            for step, gradient in updates.pop(position, ()):
                node = self.gradients[step.index]
                parameter = self.storage[self.primals[step.index]]
                duration, flag = costs(node), ONCE | BACKWARD
                if isinstance(step, Update):
                    # The parameter itself need not be resident: its update brings what it needs.
                    read, changed = [*planned([gradient], True), updated[parameter]], [updated[parameter]]
                    if parameter in placed:
                        duration += self._copied(self.update_traffic * parameter.bytes, self.update_traffic * parameter.bytes)
                else:
                    read, changed = planned([gradient], True), ()
                    duration += self._copied(gradient.bytes, 0)
                kind = type(step).__name__.lower()
                add(f"{kind} {step.index}", kind, read, [], duration, held + step.temporary, flag, changed)
                self.op_numbers.append(step)

        def loss():
            last = [*self.forward_results, *(node.args[1] for node in self.writes)]
            results = [s for node in last if isinstance(node, fx.Node) for s in self.storages_of(node)]
            tangents = [self.storage[node] for node in self.tangents if node in self.storage]
            add("loss", "loss", planned(results, False), planned(tangents, True), 0, 0, ONCE)
            self.op_numbers.append("loss")

        returned = False
        for position, op in enumerate(self.ops):
            if op.backward and not returned:
                loss()
                returned = True
            flag = (ONCE if op.once else 0) | (BACKWARD if op.backward else 0)
            self.reused[op] = self.reuses(op)
            reused = [(storage.tensor, op.makes[0].tensor) for storage in self.reused[op]]
            add(
                self.named(op.node),
                overload_name(op.node.target),
                planned(op.reads, op.backward),
                planned(op.makes, False),
                costs(op.node),
                (held if op.backward else 0) + op.workspace,
                flag,
                reused=reused,
            )
            self.op_numbers.append(op)
            if returned:
                update(position)
        if not returned:
            loss()
        for position in sorted(updates):
            update(position)
        gradients = [s for node in self.returned_gradients() for s in self.storages_of(node)]
        add("end", "end", planned(gradients, True), [], 0, held + self.copied_gradient_bytes(), ONCE | BACKWARD)
        self.op_numbers.append("end")
        sizes = [storage.bytes for storage in self.tensors] + [1] * len(updated) + [storage.bytes for storage in placed]
        persistent = [(number, f"update of {storage.node.name}") for storage, number in updated.items()]
        persistent += [(number, storage.node.name) for storage, number in placed.items()]
        self.persistent_numbers = sorted(number for number, _ in persistent)
        return _native.Iteration(self.name, sizes, reads, outputs, nanos, workspaces, flags, names, kinds, persistent, mutates, reuses=reuses)
