"""CPU implementations of the set operations: numba kernels, threads over owned pieces."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.kernels.sets import BOUND, Dropout, Layer, TermSets
from gnn_repair.kernels.sets import numba_kernels as kernels
from gnn_repair.kernels.sets.plain import rows_read as rows_read

BAND = 64
"""Channels one call works on: wide enough to vectorise, narrow enough to occupy threads."""
PIECES = 16
"""Ranges of targets a member is cut into."""


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="gnn-repair-sets")


def _run(jobs: list[Callable[[], None]]) -> None:
    count = torch.get_num_threads()
    if count == 1 or len(jobs) == 1:
        for job in jobs:
            job()
    else:
        list(_threads(count).map(lambda job: job(), jobs))


def _bands(members: int, channels: int) -> list[tuple[int, int, int]]:
    return [
        (member, low, min(low + BAND, channels))
        for member in range(members)
        for low in range(0, channels, BAND)
    ]


def _ranges(members: int, count: int) -> list[tuple[int, int, int]]:
    step = max(1, -(-count // PIECES))
    return [
        (member, first, min(first + step, count))
        for member in range(members)
        for first in range(0, count, step)
    ]


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


def _of(values: Tensor, member: int) -> Any:
    return _array(values[0 if values.shape[0] == 1 else member])


class _Member:
    """The operands of one member's kernels, in the kernels' order."""

    def __init__(
        self, sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, member: int
    ) -> None:
        self.ends = (_array(sets.segments), sets.groups)
        self.columns, self.rows = _array(sets.columns), _array(sets.rows)
        self.targets = _array(targets[member])
        self.coefficients = _of(sets.coefficients, member)
        self.geometry = (_of(sets.cosine, member), _of(sets.distance, member))
        self.layer = tuple(_array(table[member]) for table in layer)
        key = kernels.stream_key(int(dropout.seed) & 0xFFFFFFFF)
        scale = torch.tensor(dropout.scale, dtype=layer.source.dtype).numpy()[()]
        self.dropout = (key, dropout.threshold, scale)


def _members(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> list[_Member]:
    return [_Member(sets, targets, layer, dropout, s) for s in range(targets.shape[0])]


def _starts(sets: TermSets, targets: Tensor) -> Tensor:
    """[S, L]: the first term of each target."""
    return sets.segments[targets * sets.groups]


def _offsets(sets: TermSets, targets: Tensor) -> tuple[Tensor, int]:
    """[S, L]: where each target's terms begin in a list of all members' terms, and its length."""
    lengths = sets.segments[(targets + 1) * sets.groups] - _starts(sets, targets)
    ends = lengths.view(-1).cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    return (ends - lengths.view(-1)).view_as(lengths), total


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """See :func:`gnn_repair.kernels.sets.pool`."""
    out = torch.empty_like(layer.recipient)
    starts = _starts(sets, targets)
    members = _members(sets, targets, layer, dropout)

    def job(s: int, low: int, high: int) -> None:
        m = members[s]
        kernels.pool(
            low, high, *m.ends, m.columns, m.targets, _array(starts[s]), m.coefficients,
            *m.geometry, *m.layer, *m.dropout, _array(out[s]),
        )  # fmt: skip

    _run([lambda b=band: job(*b) for band in _bands(len(members), out.shape[2])])  # type: ignore[misc]
    return out


def pool_gradient(
    sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Gradients for the four tables."""
    members = _members(sets, targets, layer, dropout)
    weights = [(_starts(sets, targets)[s], m.coefficients) for s, m in enumerate(members)]
    return _spread(members, layer, weights, gradient)[:4]


def _zeros(like: Tensor) -> Tensor:
    """Zeros that cost nothing where nobody adds to them: the system hands out empty pages."""
    shape = tuple(like.shape)
    return torch.from_numpy(np.zeros(shape, _array(like).dtype))


def _spread(
    members: list[_Member],
    layer: Layer,
    weights: list[tuple[Tensor, Any]],
    upstream: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of Σ_t weights · hidden · upstream for the tables, and Σ_t weights · hidden."""
    out = [_zeros(table) for table in (*layer, layer.cosine)]

    def job(s: int, low: int, high: int) -> None:
        m, (base, values) = members[s], weights[s]
        kernels.pool_gradient(
            low, high, *m.ends, m.columns, m.targets, _array(base), values, *m.geometry, *m.layer,
            *m.dropout, _array(upstream[s]), *(_array(table[s]) for table in out),
        )  # fmt: skip

    _run([lambda b=band: job(*b) for band in _bands(len(members), layer.cosine.shape[1])])  # type: ignore[misc]
    return tuple(out)


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """See :func:`gnn_repair.kernels.sets.tilt`; also the unbounded scores of the targets' terms."""
    offsets, total = _offsets(sets, targets)
    members = _members(sets, targets, layer, dropout)
    classes = contributions.shape[2]
    out = contributions.new_empty(*targets.shape, sets.groups, classes + 1)
    raw = contributions.new_empty(total)

    def job(s: int, first: int, last: int) -> None:
        m = members[s]
        kernels.score_tilt(
            first, last, *m.ends, m.columns, m.rows, m.targets, _array(offsets[s]),
            m.coefficients, *m.geometry, *m.layer, *m.dropout, _array(output[s]),
            _array(bias)[s], _array(contributions[s]), _like(BOUND, raw), _array(raw),
            _array(out[s]),
        )  # fmt: skip

    _run([lambda r=part: job(*r) for part in _ranges(*targets.shape)])  # type: ignore[misc]
    return out, raw


def tilt_gradient(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
    raw: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients for output, bias and the four tables."""
    offsets, _ = _offsets(sets, targets)
    members = _members(sets, targets, layer, dropout)
    by_score = torch.empty_like(raw)

    def job(s: int, first: int, last: int) -> None:
        m = members[s]
        kernels.tilt_weights(
            first, last, *m.ends, m.rows, m.targets, _array(offsets[s]), m.coefficients,
            _array(contributions[s]), _like(BOUND, raw), _array(raw), _array(gradient[s]),
            _array(by_score),
        )  # fmt: skip

    _run([lambda r=part: job(*r) for part in _ranges(*targets.shape)])  # type: ignore[misc]
    weights = [(offsets[s], _array(by_score)) for s in range(len(members))]
    *tables, by_output = _spread(members, layer, weights, output.unsqueeze(1))
    starts = [int(offsets[s, 0]) if offsets.shape[1] else 0 for s in range(len(members))]
    by_bias = torch.stack(
        [by_score[a:b].sum() for a, b in zip(starts, [*starts[1:], raw.numel()], strict=True)]
    )
    return by_output, by_bias, *tables


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term."""
    products = recipients.new_empty(recipients.shape[0], columns.numel())
    squares = torch.empty_like(products)

    def job(s: int, first: int, last: int) -> None:
        kernels.compare(
            first, last, _array(segments), _array(columns), _array(recipients[s]),
            _array(sources[s]), _array(products[s]), _array(squares[s]),
        )  # fmt: skip

    _run([lambda r=part: job(*r) for part in _ranges(*recipients.shape[:2])])  # type: ignore[misc]
    return products, squares


def _like(value: float, tensor: Tensor) -> Any:
    """``value`` in the tensor's precision."""
    return torch.tensor(value, dtype=tensor.dtype).numpy()[()]
