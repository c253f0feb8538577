"""What must hold of a head, checked when its exposure is built."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.operations import (
    ACTIVATIONS,
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    LayerNorm,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    Scale,
    Select,
    Softmax,
    TailGraph,
)

INPUTS: dict[type[Operation], int] = {
    Constant: 0,
    Multiply: 2,
    **dict.fromkeys((Affine, Scale, Select, Activation, LayerNorm, Normalize, Softmax), 1),
}
"""How many values an operation reads; one of PyTorch's own may read any number."""
SEVERAL = (Add, Concatenate, Maximum)
"""Operations that read at least one."""
FAULTS = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What PyTorch raises when operations and their constants do not fit together."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def check_head(head: TailGraph, num_nodes: int, device: torch.device) -> int:
    """Check every operation on what those before it make of one node; how wide the last is.

    Raises :class:`InputError` naming the first operation that does not fit.
    """
    values = [torch.zeros(1, head.width, dtype=torch.float64, device=device)]
    node = torch.zeros(1, dtype=torch.long, device=device)
    for place, operation in enumerate(head.operations):
        title = f"operation {place} ({operation.title}) of the head"
        known = all(0 <= i <= place for i in operation.inputs)
        _require(known, f"{title} reads values {list(operation.inputs)} that come later")
        for name, constant in operation.constants():
            _check_constant(name, f"{name} of {title}", constant, num_nodes)
        read = [values[i] for i in operation.inputs]
        try:
            fitting = _fits(operation, [value.shape[1] for value in read])
            made = operation.evaluate(read, node) if fitting else None
        except FAULTS as error:
            first = str(error).partition("\n")[0]
            raise InputError(f"{title} does not fit what it reads: {first}") from error
        usable = made is not None and made.shape[:1] == (1,) and made.dim() == 2
        _require(usable, f"{title} does not fit what it reads")
        values.append(made)  # type: ignore[arg-type]
    return values[-1].shape[1]


def _check_constant(name: str, title: str, constant: Tensor, num_nodes: int) -> None:
    if not constant.is_floating_point():
        return
    _require(constant.dtype == torch.float64, f"{title} is {constant.dtype}, not float64")
    _require(bool(torch.isfinite(constant).all()), f"{title} holds NaN or infinite values")
    rows = constant.shape[0] if constant.dim() == 2 and name != "weight" else num_nodes
    _require(rows == num_nodes, f"{title} has {rows} rows for {num_nodes} nodes")


def _fits(operation: Operation, widths: list[int]) -> bool:
    """Whether an operation reads as much, and holds constants as wide, as it must."""
    if isinstance(operation, SEVERAL):
        right = len(widths) >= 1
    else:
        right = len(widths) == INPUTS.get(type(operation), len(widths))
    if not right or not widths:
        return right
    same = set(widths) == {widths[0]} or not isinstance(operation, Add | Maximum | Multiply)
    if isinstance(operation, Add):
        same = same and len(operation.factors) == len(widths)
    return same and _wide(operation, widths[0])


def _wide(operation: Operation, width: int) -> bool:
    """Whether constants are as wide as what is read, where PyTorch would broadcast them."""
    if isinstance(operation, Affine):
        rows = operation.weight.shape[0]
        return operation.weight.shape == (rows, width) and operation.bias.shape[-1] == rows
    if isinstance(operation, Scale):
        return operation.factor.shape[-1] == operation.shift.shape[-1] == width
    if isinstance(operation, Select):
        return bool(((operation.index >= 0) & (operation.index < width)).all())
    if isinstance(operation, Activation):
        known = operation.name in ACTIVATIONS
        _require(known, f"an activation of the head is none of {', '.join(ACTIVATIONS)}")
        return tuple(operation.parameter.shape) in ((), (width,))
    if isinstance(operation, LayerNorm | Normalize | Softmax):
        parts = operation.size >= 1 and width % operation.size == 0
        constants = [tensor.shape == (width,) for _, tensor in operation.constants()]
        return parts and getattr(operation, "eps", 0.0) >= 0 and all(constants)
    return True
