"""Sums, means, maxima and norms over parts of a node's vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten.activations import extreme as pairwise
from gnn_repair.exposure.tails.aten.activations import largest
from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Norm, Unfollowed
from gnn_repair.exposure.tails.layout import Frame, Lost, Traced
from gnn_repair.exposure.tails.operations import Add, Affine, Softmax

MIXED = "mixes the values of different nodes"


def parts_of(
    builder: Builder, source: Traced, dims: Sequence[int] | None
) -> tuple[int, Frame, int]:
    """The value with the reduced axes last in every part, the kept frame and a part's size."""
    count = len(source.shape)
    reduced = sorted(d % count for d in dims) if dims else list(range(count))
    kept = [axis for axis in range(count) if axis not in reduced]
    size = int(torch.tensor([source.shape[axis] for axis in reduced]).prod())
    shape = [source.shape[axis] for axis in kept]
    turned = source.viewed(lambda t: t.permute(*kept, *reduced).reshape(*shape, size))
    value, frame = builder.flat(turned)
    if frame.axis == len(frame.shape) - 1 or frame.shape[-1] != size:
        raise Unfollowed(MIXED)
    return value, Frame(frame.shape[:-1], frame.axis, tuple(shape), frame.places), size


def _placed(made: Traced, out: Tensor) -> Traced:
    """With the reduced axes put back as ones where the operation keeps them."""
    return made.viewed(lambda t: t.reshape(out.shape))


def _totals(builder: Builder, value: int, frame: Frame, size: int, factor: float) -> int:
    """factor · Σ over every part."""
    row = torch.full((1, size), factor, dtype=torch.float64, device=builder.device)
    return _by_part(builder, value, frame, row)


def _by_part(builder: Builder, value: int, frame: Frame, matrix: Tensor) -> int:
    """A matrix on every part."""
    eye = torch.eye(frame.width, dtype=torch.float64, device=builder.device)
    weight = torch.kron(eye, matrix)
    return builder.emit(Affine((value,), weight, weight.new_zeros(len(weight))), len(weight))


def _sum(builder: Builder, out: Tensor, source: Traced, dims: Any, factor: float | None) -> Result:
    value, frame, size = parts_of(builder, source, dims)
    made = _totals(builder, value, frame, size, 1 / size if factor is None else factor)
    return _placed(builder.shown(made, frame), out)


def cumulated(builder: Builder, out: Tensor, source: Traced, dim: int, **_: Any) -> Result:
    """Sums of everything up to each place of an axis that is not the nodes'."""
    value, frame, size = parts_of(builder, source, [dim])
    lower = torch.ones(size, size, dtype=torch.float64, device=builder.device).tril()
    shape = (*frame.shape, size)
    made = builder.shown(_by_part(builder, value, frame, lower), Frame(shape, frame.axis, shape))
    return made.viewed(lambda t: t.movedim(-1, dim))


def log_sum_exp(
    builder: Builder, out: Tensor, source: Traced, dims: Any, *_: Any, **__: Any
) -> Result:
    """log Σ exp x = x₁ − log softmax₁."""
    value, frame, size = parts_of(builder, source, [dims] if isinstance(dims, int) else dims)
    normal = builder.emit(Softmax((value,), size, True), builder.widths[value])
    starts = torch.arange(frame.width, device=builder.device) * size
    parts = builder.select(value, starts), builder.select(normal, starts)
    made = builder.emit(Add(parts, (1.0, -1.0)), frame.width)
    return _placed(builder.shown(made, frame), out)


def summed(
    builder: Builder, out: Tensor, source: Traced, dims: Any = None, *_: Any, **__: Any
) -> Result:
    """Σ over axes that are not the nodes'."""
    return _sum(builder, out, source, dims, 1.0)


def mean(
    builder: Builder, out: Tensor, source: Traced, dims: Any = None, *_: Any, **__: Any
) -> Result:
    """The mean over axes that are not the nodes'."""
    return _sum(builder, out, source, dims, None)


def extreme(sign: float) -> Translation:
    """amax (sign 1) and amin (sign −1); also the values of max and min over one axis."""

    def translate(
        builder: Builder, out: Any, source: Traced, dims: Any = None, *_: Any, **__: Any
    ) -> Result:
        first = out if isinstance(out, Tensor) else out[0]
        if isinstance(dims, Traced | Tensor):  # of two tensors, not over an axis
            return pairwise(sign)(builder, out, source, dims)
        dims = [dims] if isinstance(dims, int) else dims
        value, frame, size = parts_of(builder, source, dims)
        starts = torch.arange(frame.width, device=builder.device) * size
        chosen = [builder.select(value, starts + place) for place in range(size)]
        made = _placed(builder.shown(largest(builder, chosen, sign), frame), first)
        return made if isinstance(out, Tensor) else (made, Lost("it reads where a maximum stands"))

    return translate


def vector_norm(
    builder: Builder,
    out: Tensor,
    source: Traced,
    order: float | None = 2,
    dims: Any = None,
    *_: Any,
    **__: Any,
) -> Result:
    """The Euclidean norm of parts; what divides by it becomes a normalisation."""
    if order not in (2, None):
        raise Unfollowed
    value, frame, size = parts_of(builder, source, dims)
    total = _totals(builder, builder.applied("square", value), frame, size, 1.0)
    made = builder.applied("sqrt", total)
    builder.norms[made] = Norm(value, size, 0.0)
    return _placed(builder.shown(made, frame), out)


TRANSLATIONS: dict[str, Translation] = {
    "sum": summed,
    "mean": mean,
    "cumsum": cumulated,
    "logsumexp": log_sum_exp,
    "amax": extreme(1.0),
    "amin": extreme(-1.0),
    "max": extreme(1.0),
    "min": extreme(-1.0),
    "linalg_vector_norm": vector_norm,
    "norm": vector_norm,
}
