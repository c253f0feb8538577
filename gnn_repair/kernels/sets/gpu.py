"""GPU implementations of the set operations: launches of the Triton kernels.

float32 only; other types go the plain way. Shapes depend on the targets' number alone, never on
their degrees, so every launch can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from gnn_repair.kernels.sets import BOUND, Dropout, Layer, ReadRows, TermSets
from gnn_repair.kernels.sets import plain as plain
from gnn_repair.kernels.sets import triton_kernels as kernels

TILE = 2048
"""Hidden channels one program holds at a time."""
SHORT = 8
"""Mean set size up to which blocks are a quarter as deep."""
BUSY = 8192
"""Programs that keep a GPU busy: fewer targets than this share their terms among programs."""
THREADS = 128
"""Terms whose rows one program looks at: one a thread, as what atomic operations return asks."""
MOST_PARTS = 32
"""Pieces of one target's terms: each adds a row to be summed afterwards."""


def _blocks(sets: TermSets, layer: Layer) -> dict[str, Any]:
    """Block sizes; few different ones, since each is a compilation."""
    channels = triton.next_power_of_2(layer.cosine.shape[1])
    recipients = max(1, sets.segments.numel() // sets.groups)
    deep = max(4, TILE // channels)
    short = sets.columns.numel() <= SHORT * recipients
    return {"BLOCK_T": max(2, deep // 4) if short else deep, "BLOCK_H": channels}


def _parts(sets: TermSets, rows: int, deep: int) -> int:
    """Into how many pieces a target's terms are cut; the largest set decides, as it ends last."""
    most = min(BUSY // max(1, rows), MOST_PARTS, sets.longest // (2 * deep))
    return int(triton.next_power_of_2(max(1, most)))


def rows_read(sets: TermSets, targets: Tensor, rows: int) -> ReadRows:
    """See :func:`gnn_repair.kernels.sets.rows_read`; how many they are stays on the device."""
    members, count = targets.shape
    seen = targets.new_zeros(members, rows, dtype=torch.int32)
    numbers, counts = torch.empty_like(seen), seen.new_zeros(members)
    if targets.numel():
        kernels.rows_read[targets.numel(),](
            sets.segments, sets.columns, targets, seen, numbers, counts, rows, count, sets.groups,
            BLOCK_T=THREADS, num_warps=THREADS // 32,
        )  # fmt: skip
    return ReadRows(numbers, counts)


def _inputs(sets: TermSets) -> tuple[Tensor, ...]:
    return sets.coefficients, sets.cosine, sets.distance


def _sizes(sets: TermSets, layer: Layer) -> tuple[int, ...]:
    """Member strides of the terms' numbers, then T, P, L, H and G."""
    terms = sets.columns.numel()
    strides = [terms if values.shape[0] > 1 else 0 for values in _inputs(sets)]
    _, targets, channels = layer.recipient.shape
    return (*strides, terms, layer.source.shape[1], targets, channels, sets.groups)


def _float32(layer: Layer) -> bool:
    return layer.source.dtype == torch.float32


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """See :func:`gnn_repair.kernels.sets.pool`."""
    if not _float32(layer):
        return plain.pool(sets, targets, layer, dropout)
    rows = targets.numel()
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    out = layer.recipient.new_empty(parts, *layer.recipient.shape)
    if rows:
        kernels.pool[rows, parts](
            sets.segments, sets.columns, targets, *_inputs(sets), *layer, dropout.seed, out,
            *_sizes(sets, layer), dropout.threshold, dropout.scale, DROP=dropout.threshold > 0,
            **blocks,
        )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)


def pool_gradient(
    sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Gradients for the four tables."""
    if not _float32(layer):
        return plain.pool_gradient(sets, targets, layer, dropout, gradient)
    rows = targets.numel()
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    by_row = layer.recipient.new_empty(3, parts, *layer.recipient.shape)
    by_source = torch.zeros_like(layer.source)
    if rows:
        kernels.pool_gradient[rows, parts](
            sets.segments, sets.columns, targets, *_inputs(sets), *layer, dropout.seed, gradient,
            by_row[0], by_source, by_row[1], by_row[2], *_sizes(sets, layer), dropout.threshold,
            dropout.scale, DROP=dropout.threshold > 0, **blocks,
        )  # fmt: skip
    by_target = by_row.sum(1)
    by_cosine, by_distance = by_target[1:].sum(2)
    return by_target[0], by_source, by_cosine, by_distance


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """See :func:`gnn_repair.kernels.sets.tilt`; nothing is kept for the gradient."""
    if not _float32(layer):
        return plain.tilt(sets, targets, layer, output, bias, contributions, dropout)
    rows, classes = targets.numel(), contributions.shape[2]
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    out = contributions.new_empty(parts, *targets.shape, sets.groups, classes + 1)
    if rows:
        kernels.tilt[rows, parts](
            sets.segments, sets.columns, sets.rows, targets, *_inputs(sets), *layer, dropout.seed,
            output, bias, contributions, out, *_sizes(sets, layer), contributions.shape[1],
            classes, dropout.threshold, dropout.scale, BOUND, DROP=dropout.threshold > 0,
            BLOCK_C=triton.next_power_of_2(classes + 1), **blocks,
        )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0), out.new_empty(0)


def tilt_gradient(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
    kept: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients for output, bias and the four tables."""
    if not _float32(layer):
        return plain.tilt_gradient(
            sets, targets, layer, output, bias, contributions, dropout, kept, gradient
        )
    rows, classes = targets.numel(), contributions.shape[2]
    blocks = _blocks(sets, layer)
    parts = _parts(sets, rows, blocks["BLOCK_T"])
    by_row = layer.recipient.new_empty(4, parts, *layer.recipient.shape)
    by_bias = layer.recipient.new_empty(parts, *targets.shape)
    by_source = torch.zeros_like(layer.source)
    if rows:
        kernels.tilt_gradient[rows, parts](
            sets.segments, sets.columns, sets.rows, targets, *_inputs(sets), *layer, dropout.seed,
            output, bias, contributions, gradient, by_row[3], by_bias, by_row[0], by_source,
            by_row[1], by_row[2], *_sizes(sets, layer), contributions.shape[1], classes,
            dropout.threshold, dropout.scale, BOUND, DROP=dropout.threshold > 0,
            BLOCK_C=triton.next_power_of_2(classes + 1), **blocks,
        )  # fmt: skip
    by_target = by_row.sum(1)
    by_cosine, by_distance, by_output = by_target[1:].sum(2)
    return by_output, by_bias.sum((0, 2)), by_target[0], by_source, by_cosine, by_distance


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term."""
    if recipients.dtype != torch.float32:
        return plain.compare(segments, columns, recipients, sources)
    members, nodes, width = recipients.shape
    terms = columns.numel()
    products = recipients.new_empty(members, terms)
    squares = torch.empty_like(products)
    owners = torch.repeat_interleave(segments.diff())
    if terms:
        kernels.compare[triton.cdiv(terms, 16), members](
            owners, columns, recipients, sources, products, squares, terms, nodes,
            sources.shape[1], width, BLOCK_T=16, BLOCK_D=128,
        )  # fmt: skip
    return products, squares
