"""ExecuTorch's memory planning by this packer.

``plan`` has the signature of the algorithms in ``executorch/exir/memory_planning.py`` (ExecuTorch 1.5)::

    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy
    from executorch.exir.passes import MemoryPlanningPass
    from elbowroom.executorch import plan

    suite = MemoryPlanningAlgorithmSuite([greedy, plan])  # takes whichever needs fewer bytes
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(memory_planning_algo=suite))

A custom pool pass chooses memories as before: tensors with a ``mem_id`` stay in that memory, all others go to memory 1.
"""

from __future__ import annotations

from . import pack


def _root(spec):
    """The spec that owns the bytes of a spec, and the first byte of the spec in them."""
    offset = 0
    while getattr(spec, "storage_base", None) is not None:
        offset += spec.storage_base_offset
        spec = spec.storage_base
    return spec, offset


def offsets(alignment, specs, reserved=(), padding=0, **budget):
    """The memory and the offset of every spec, and the size of every memory; memory 0 is that of constants and stays empty.

    ``reserved`` are bytes at the start of each memory, which submodules use; ``padding`` bytes follow each used memory. ``budget`` is that of
    :func:`elbowroom.pack.place`.
    """
    memories: dict[int, dict] = {}
    places = {}
    for spec in specs:
        spec.realign(alignment)
        root, first = _root(spec)
        root.realign(alignment)
        memory = 1 if root.mem_id is None else root.mem_id
        places[spec] = (memory, root, first)
        if first + spec.allocated_memory > root.allocated_memory:
            raise ValueError(f"a view of {spec.allocated_memory} bytes at byte {first} leaves its base of {root.allocated_memory} bytes")
        if first % alignment:
            raise ValueError(f"a view begins at byte {first} of its base, which is not a multiple of the alignment {alignment}")
        start, end = memories.setdefault(memory, {}).get(root, spec.lifetime)
        # Lifetimes are inclusive, and a base lives as long as its views.
        memories[memory][root] = (min(start, spec.lifetime[0]), max(end, spec.lifetime[1]))
    sizes = [0] * (max(memories, default=1) + 1)
    found = {}
    for memory, roots in memories.items():
        placement = pack.place(
            [root.allocated_memory for root in roots],
            [start for start, _ in roots.values()],
            [end + 1 for _, end in roots.values()],
            aligns=alignment,
            **budget,
        )
        before = reserved[memory] if memory < len(reserved) else 0
        before += -before % alignment
        sizes[memory] = before + placement.height + padding
        found[memory] = {root: before + offset for root, offset in zip(roots, placement.offsets)}
    return {spec: (memory, found[memory][root] + first) for spec, (memory, root, first) in places.items()}, sizes


def plan(alignment, specs, graph_module, graph_signature, extra_padding=0, *, seconds=1.0, evaluations=None):
    """A planning algorithm of ExecuTorch: the offset of every tensor spec, and the size of every memory."""
    from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

    reserved = getattr(graph_module, "input_mem_buffer_sizes", None) or []
    budget = {"seconds": seconds, "evaluations": evaluations}
    found, sizes = offsets(alignment, specs, reserved, extra_padding, **budget)
    # One shared object for all, as the algorithm `naive` has it: none of them shares more than bytes.
    results = {spec: SpecAllocResult(memory, 0, offset) for spec, (memory, offset) in found.items()}
    return MemoryAlgoResult(results, sizes)
