"""What a call of PyTorch says about the pool that it is: base, index, rows, weights, divisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Base, axis, index, rows and reduction of an indexed sum, given by place or by name."""
    rows = kwargs.get("src", kwargs.get("source"))
    words = [None, kwargs.get("dim"), kwargs.get("index"), rows, kwargs.get("reduce", "sum")]
    return (*args[:5], *words[len(args[:5]) :])


def axis_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The axis of a function of (table, axis)."""
    axis = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    return axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis


def weighs(weight: Any, out: Tensor) -> bool:
    """Whether something is a number a row, or a number a row and channel, of rows.

    Rows of a dense batch [B, n, D] are weighed by numbers [B, n, 1] only.
    """
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return False
    by_row = (*out.shape[:-1], 1)
    wanted = (by_row, tuple(out.shape)) if out.dim() == 2 else (by_row,)
    return out.shape[-1] > 1 and tuple(weight.shape) in wanted


def in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__itruediv__" or (name.endswith("_") and not name.endswith("__"))


def sums_to_one(weight: Tensor, graph: Tensor, graphs: int) -> bool:
    """Whether numbers by node and channel are a softmax: up to float32's rounding of one."""
    total = weight.new_zeros(graphs, weight.shape[1]).index_add_(0, graph, weight)
    kept = torch.bincount(graph, minlength=graphs) > 0
    return torch.allclose(total[kept], total.new_ones(()), rtol=1e-4, atol=0.0)


def graph_of(index: Any, rows: Tensor) -> Tensor | None:
    """The graph of every row: a list, or the same list in every channel."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64:
        return None
    index = index.as_subclass(Tensor)  # PyG's Index is one too
    if index.dim() == 1:
        return index if len(index) == len(rows) else None
    if index.shape != rows.shape or index.numel() == 0:
        return None
    flat = index.reshape(len(index), -1) if any(index.stride()[1:]) else None
    if flat is not None and not bool((flat == flat[:, :1]).all()):
        return None
    return index[(slice(None), *[0] * (index.dim() - 1))]


def by_graph(divisor: Any, sums: Tensor, nodes: int, graphs: int) -> Tensor | None:
    """A divisor as one number a graph, [B]; None where it is none, or the same for all."""
    if isinstance(divisor, int | float):
        # The number of nodes, where there is one graph; any other number is a scale.
        return sums.new_full((1,), nodes) if graphs == 1 and divisor == nodes else None
    if not isinstance(divisor, Tensor) or divisor.dim() == 0:
        return None
    try:
        wide = divisor.expand(sums.shape).reshape(graphs, -1)
    except RuntimeError:
        return None
    return wide[:, 0].clone() if bool((wide == wide[:, :1]).all()) else None
