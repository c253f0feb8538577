"""What must hold of a tailed exposure, checked when it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.checks import RECONSTRUCTION
from gnn_repair.exposure.tails.operations import ACTIVATIONS, Activation, TailGraph

if TYPE_CHECKING:
    from gnn_repair.exposure.tails.tailed import TailedExposure


def check_tailed(exposure: TailedExposure) -> None:
    """Raise :class:`InputError` naming the first piece that is not what it must be."""
    aggregate, tail = exposure.aggregate, exposure.tail
    _require(aggregate.num_members == 1, "a tailed exposure has one member")
    _require(
        tail.width == aggregate.num_classes,
        f"the tail reads {tail.width} channels but the aggregate has {aggregate.num_classes}",
    )
    shape = tuple(exposure.frozen_logits.shape)
    sized = len(shape) == 3 and shape[:2] == (1, aggregate.num_nodes) and shape[2] >= 2
    _require(sized, f"frozen_logits has shape {list(shape)} instead of [1, N, C]")
    frozen = exposure.frozen_logits
    sound = frozen.dtype == torch.float64 and bool(torch.isfinite(frozen).all())
    _require(sound, "frozen_logits must be finite float64 numbers")
    _check_operations(tail, aggregate.num_nodes)
    gap = reconstruction(exposure)
    limit = max(RECONSTRUCTION, exposure.residual or 0.0)
    _require(
        gap <= limit,
        f"the tail of the frozen aggregate differs from the frozen logits by {gap:.2g} (relative)",
    )


def reconstruction(exposure: TailedExposure) -> float:
    """max |T(a(α)) − z⁰| / max(1, |z⁰|) over recipients and classes."""
    frozen = exposure.frozen_logits[:, exposure.recipients]
    if frozen.numel() == 0:
        return 0.0
    try:
        found = exposure.logits()
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"the tail's operations do not fit together: {error}") from error
    _require(found.shape == frozen.shape, f"the tail gives {found.shape[2]} classes, not C")
    gap = (found - frozen).abs() / frozen.abs().amax(2, keepdim=True).clamp(min=1)
    return float(gap.max())


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _check_operations(tail: TailGraph, num_nodes: int) -> None:
    for place, operation in enumerate(tail.operations):
        title = f"operation {place} ({operation.title}) of the tail"
        known = all(0 <= i <= place for i in operation.inputs)
        _require(known, f"{title} reads values {list(operation.inputs)} that come later")
        if isinstance(operation, Activation):
            known = operation.name in ACTIVATIONS
            _require(known, f"{title} is none of {', '.join(ACTIVATIONS)}")
        for name, constant in operation.constants():
            _check_constant(name, f"{name} of {title}", constant, num_nodes)


def _check_constant(name: str, title: str, constant: Tensor, num_nodes: int) -> None:
    if not constant.is_floating_point():
        return
    _require(constant.dtype == torch.float64, f"{title} is {constant.dtype}, not float64")
    _require(bool(torch.isfinite(constant).all()), f"{title} holds NaN or infinite values")
    rows = constant.shape[0] if constant.dim() == 2 and name != "weight" else num_nodes
    _require(rows == num_nodes, f"{title} has {rows} rows for {num_nodes} nodes")
