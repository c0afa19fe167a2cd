"""LSTMs, as the layers that PyTorch runs on the CPU.

PyTorch does not capture recurrent layers unless asked, and then replaces them by other ops, which round differently and lose the dropout
between layers. Here a captured LSTM becomes the same layer kernels that run without a plan, each an op that may be recomputed.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from .errors import UnsupportedError

_LSTM = 2  # The kernel's number of this kind of layer.
_OTHERS = {"gru", "rnn_tanh", "rnn_relu", "quantized_lstm", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}


def lstm(inputs, hidden, weights, biased, layers, dropout, training, bidirectional, batch_first):
    """``torch.lstm`` for the CPU, layer by layer; shapes as there."""
    tensors = [inputs, *hidden, *weights]
    plain = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    if not plain or not torch._C._get_mkldnn_enabled() or torch.is_autocast_enabled("cpu") or hidden[0].size(2) != hidden[1].size(2):
        raise UnsupportedError("an LSTM is planned on the CPU in float32 only, without projections and without autocast")
    if not biased:
        raise UnsupportedError("an LSTM without bias is not planned")
    directions = 2 if bidirectional else 1
    inputs = (inputs.transpose(0, 1) if batch_first else inputs).contiguous()
    hx, cx = (state.contiguous() for state in hidden)
    last_hidden, last_cell = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            made, hy, cy, _ = torch.ops.aten.mkldnn_rnn_layer(
                inputs,
                *weights[4 * at : 4 * at + 4],
                hx[at],
                cx[at],
                direction > 0,
                [],
                _LSTM,
                hx.size(2),
                layers,
                biased,
                bidirectional,
                batch_first,
                training,
            )
            outputs.append(made)
            last_hidden.append(hy)
            last_cell.append(cy)
        inputs = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and training and layer < layers - 1:
            inputs = torch.dropout(inputs, dropout, True)
    output = inputs.transpose(0, 1) if batch_first else inputs
    return output, torch.stack(last_hidden, 0), torch.stack(last_cell, 0)


def replace(module: fx.GraphModule) -> None:
    """Replaces the recurrent layers of a captured graph; refuses those whose kernels are not known."""
    for node in module.graph.nodes:
        if "associative_scan" in (node.stack_trace or ""):
            raise UnsupportedError(
                f"{node} belongs to an associative scan, which adds in another order than the loop that models run where they are not compiled; "
                "where the model has a setting for it (use_associative_scan=False), switch it off"
            )
        if node.op != "call_function" or not str(getattr(node.target, "__module__", "")).startswith(("torch", "None")):
            continue
        name = getattr(node.target, "__name__", "")
        if name == "lstm":
            if len(node.args) != 9 or not isinstance(node.args[3], bool):
                raise UnsupportedError(f"{node} is an LSTM of packed sequences, which is not planned")
            node.target = lstm
        elif name in _OTHERS:
            raise UnsupportedError(f"{node} is torch.{name}: PyTorch captures it as ops that round differently, so it is not planned")
    module.recompile()


def refuse(module: fx.GraphModule) -> None:
    """Refuses a captured graph with recurrent layers: what Inductor makes of them has no dropout between layers."""
    for node in module.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") in _OTHERS | {"lstm"}:
            raise UnsupportedError(f"{node} is a recurrent layer ({node.target.__name__}), which is planned in mode='exact' only, if at all")


def layer(*args):
    """One layer's kernel as autograd calls it: with gradients enabled it keeps the workspace that the backward pass reads."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer(*args)


def workspace_bytes(node: fx.Node) -> int:
    """Bytes that a layer keeps for its backward pass. PyTorch states them only when the layer runs, so it runs here once, on zeros."""
    shapes = [a.meta["val"].shape if isinstance(a, fx.Node) else None for a in node.args]
    with _disable_current_modes():
        args = [a if shape is None else torch.zeros(shape) for a, shape in zip(node.args, shapes)]
        return layer(*args)[3].untyped_storage().nbytes()
