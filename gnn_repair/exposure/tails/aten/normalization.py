"""Batch, layer and group normalisation, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten.reductions import MIXED
from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Operand, Unfollowed
from gnn_repair.exposure.tails.layout import Lost, Traced, constant_in
from gnn_repair.exposure.tails.operations import LayerNorm, Softmax

STATISTICS = Lost("it reads a normalisation's statistics")


def _results(made: Traced, out: Any) -> Result:
    """The normalised tensor, and statistics that hardly anything reads."""
    return made if isinstance(out, Tensor) else (made, *[STATISTICS] * (len(out) - 1))


def batch_norm(builder: Builder, out: Any, source: Operand, *args: Any) -> Result:
    """By running statistics: s ⊙ x + b."""
    weight, bias, mean, variance, *rest = args
    training = rest[0] if isinstance(rest[0], bool) else False
    eps = next(value for value in reversed(rest) if isinstance(value, float))
    if training or mean is None or not isinstance(source, Traced):
        raise Unfollowed(MIXED)
    shape = [1, -1, *[1] * (len(source.shape) - 2)]
    scale = 1 / (variance.double() + eps).sqrt()
    factor = scale if weight is None else scale * weight.double()
    shift = -mean.double() * factor
    shift = shift if bias is None else shift + bias.double()
    number, frame = builder.flat(source)
    constants = [constant_in(constant.view(shape), frame) for constant in (factor, shift)]
    return _results(builder.shown(builder.scaled(number, *constants), frame), out)


def _affine_part(builder: Builder, constant: Tensor | None, width: int, empty: float) -> Tensor:
    if constant is None:
        return torch.full((width,), empty, dtype=torch.float64, device=builder.device)
    flat = constant.detach().double().reshape(-1)
    return flat.repeat(width // flat.numel())


def layer_norm(
    builder: Builder,
    out: Any,
    source: Operand,
    shape: Sequence[int],
    weight: Any,
    bias: Any,
    eps: float,
) -> Result:
    """Over the last axes."""
    if not isinstance(source, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        raise Unfollowed
    number, frame = builder.flat(source)
    if frame.axis >= len(frame.shape) - len(shape):
        raise Unfollowed(MIXED)
    weight = _affine_part(builder, weight, frame.width, 1.0)
    bias = _affine_part(builder, bias, frame.width, 0.0)
    operation = LayerNorm((number,), prod(shape), weight, bias, float(eps))
    return _results(builder.shown(builder.emit(operation, frame.width), frame), out)


def group_norm(
    builder: Builder,
    out: Any,
    source: Operand,
    weight: Any,
    bias: Any,
    count: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> Result:
    """Over groups of channels, each node for itself."""
    if not isinstance(source, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        raise Unfollowed
    number, frame = builder.flat(source)
    if frame.axis != 0 or frame.shape != frame.outer:
        raise Unfollowed(MIXED)
    parts = [
        _affine_part(builder, constant, channels, empty).repeat_interleave(places)
        for constant, empty in ((weight, 1.0), (bias, 0.0))
    ]
    operation = LayerNorm((number,), channels // groups * places, parts[0], parts[1], float(eps))
    return _results(builder.shown(builder.emit(operation, frame.width), frame), out)


def softmax(log: bool) -> Translation:
    """Softmax or its logarithm over one axis that is not the nodes'."""

    def translate(builder: Builder, out: Tensor, source: Traced, dim: int, *_: Any) -> Result:
        number, frame = builder.flat(source.viewed(lambda t: t.movedim(dim, -1)))
        if frame.axis == len(frame.shape) - 1:
            raise Unfollowed(MIXED)
        value = builder.emit(Softmax((number,), frame.shape[-1], log), frame.width)
        return builder.shown(value, frame).viewed(lambda t: t.movedim(-1, dim))

    return translate


BATCH_NORMS = (
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm"
)

TRANSLATIONS: dict[str, Translation] = {
    **dict.fromkeys(BATCH_NORMS.split(), batch_norm),
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "_softmax": softmax(log=False),
    "_log_softmax": softmax(log=True),
}
