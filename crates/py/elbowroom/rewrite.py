"""A change of the joint graph that makes its largest op smaller, with the same kernels on the same numbers.

The gradient of a cross entropy is computed row by row. PyTorch makes a matrix of gradients of the probabilities' logarithms, in which each row has
one number that is not zero, and then the gradient of the logits: with the logarithms, three matrices of one size, which for a language model are
larger than all else. Here some rows at a time go through both kernels, and the first matrix never exists as a whole.
"""

from __future__ import annotations

import math

import torch
from torch import fx
from torch.utils._pytree import tree_map

aten = torch.ops.aten

#: Rows are grouped so that a group has at least this many bytes, in which a kernel takes much longer than its launch, and into this many groups at most.
_GROUP_BYTES, _GROUPS = 4 << 20, 16


def rewrite(module: fx.GraphModule) -> None:
    """Changes a joint graph in place."""
    for node in list(module.graph.nodes):
        if node.target is aten._log_softmax_backward_data.default:
            _group_rows(module.graph, node)


def values(node: fx.Node):
    """What a node calls, with the fake tensors of the trace, and what it returns: the arguments of :func:`.joint.duration`."""
    args, kwargs = tree_map(lambda leaf: leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf, (node.args, node.kwargs))
    return node.target, args, kwargs, node.meta.get("val")


def _group_rows(graph: fx.Graph, node: fx.Node) -> None:
    inner, output, dim, dtype = node.args
    if not isinstance(inner, fx.Node) or inner.target is not aten.nll_loss_backward.default or len(inner.users) != 1:
        return
    logarithms, target = output.meta["val"], inner.args[2].meta["val"]
    if logarithms.dim() != 2 or dim not in (1, -1) or dtype != logarithms.dtype or target.dim() != 1 or not logarithms.is_contiguous():
        return
    groups = min(_GROUPS, logarithms.numel() * logarithms.element_size() // _GROUP_BYTES, logarithms.shape[0])
    if groups < 2:
        return
    rows = math.ceil(logarithms.shape[0] / groups)
    with graph.inserting_before(node):
        made = graph.call_function(cross_entropy_backward, (*inner.args, output, rows))
    stands_for = [values(inner), values(node)]
    made.meta = {**node.meta, "stands_for": stands_for, "workspace": rows * logarithms.shape[1] * logarithms.element_size()}
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    graph.erase_node(inner)


def cross_entropy_backward(gradient, logarithms, target, weight, reduction, ignored, total, output, rows):
    """The gradient of the logits: ``nll_loss_backward`` and ``_log_softmax_backward_data``, ``rows`` at a time."""
    result = torch.empty_like(output)
    for first in range(0, output.shape[0], rows):
        part = slice(first, first + rows)
        one = gradient[part] if gradient.dim() else gradient
        loss = aten.nll_loss_backward.default(one, logarithms[part], target[part], weight, reduction, ignored, total)
        aten._log_softmax_backward_data.out(loss, output[part], 1, output.dtype, out=result[part])
        del loss
    return result


#: Functions that stand for operators in a rewritten graph.
FUNCTIONS = {cross_entropy_backward}
