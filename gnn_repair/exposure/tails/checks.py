"""What must hold of a tailed exposure, checked when it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.checks import RECONSTRUCTION
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

if TYPE_CHECKING:
    from gnn_repair.exposure.tails.tailed import TailedExposure

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


def check_tailed(exposure: TailedExposure) -> None:
    """Raise :class:`InputError` naming the first piece that is not what it must be."""
    aggregate, tail, frozen = exposure.aggregate, exposure.tail, exposure.frozen_logits
    _require(aggregate.num_members == 1, "a tailed exposure has one member")
    _require(
        tail.width == aggregate.num_classes,
        f"the tail reads {tail.width} channels but the aggregate has {aggregate.num_classes}",
    )
    shape = tuple(frozen.shape)
    least = 2 if aggregate.outputs == "classes" else 1
    sized = len(shape) == 3 and shape[:2] == (1, aggregate.num_nodes) and shape[2] >= least
    _require(sized, f"frozen_logits has shape {list(shape)} instead of [1, N, C]")
    sound = frozen.dtype == torch.float64 and bool(torch.isfinite(frozen).all())
    _require(sound, "frozen_logits must be finite float64 numbers")
    classes = _check_operations(tail, aggregate.num_nodes, frozen.device)
    _require(classes == shape[2], f"the tail gives {classes} classes instead of {shape[2]}")
    gap = reconstruction(exposure)
    _require(
        gap <= max(RECONSTRUCTION, exposure.residual or 0.0),
        f"the tail of the frozen aggregate differs from the frozen logits by {gap:.2g} (relative)",
    )


def reconstruction(exposure: TailedExposure) -> float:
    """max |T(a(α)) − z⁰| / max(1, |z⁰|) over recipients and classes."""
    frozen = exposure.frozen_logits[:, exposure.recipients]
    if frozen.numel() == 0:
        return 0.0
    gap = (exposure.logits() - frozen).abs() / frozen.abs().amax(2, keepdim=True).clamp(min=1)
    return float(gap.max())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _check_operations(tail: TailGraph, num_nodes: int, device: torch.device) -> int:
    """Check every operation on what those before it make of one node; how wide the last is."""
    values = [torch.zeros(1, tail.width, dtype=torch.float64, device=device)]
    node = torch.zeros(1, dtype=torch.long, device=device)
    for place, operation in enumerate(tail.operations):
        title = f"operation {place} ({operation.title}) of the tail"
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
        _require(known, f"an activation of the tail is none of {', '.join(ACTIVATIONS)}")
        return tuple(operation.parameter.shape) in ((), (width,))
    if isinstance(operation, LayerNorm | Normalize | Softmax):
        parts = operation.size >= 1 and width % operation.size == 0
        constants = [tensor.shape == (width,) for _, tensor in operation.constants()]
        return parts and getattr(operation, "eps", 0.0) >= 0 and all(constants)
    return True
