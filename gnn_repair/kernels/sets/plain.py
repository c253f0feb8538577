"""The set operations in plain PyTorch: the reference, on any device and in any precision.

Every (member, target, term) becomes one row of a tensor, so memory grows with terms × channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_repair.kernels.dropout import kept
from gnn_repair.kernels.sets import BOUND, Dropout, Layer, ReadRows, TermSets

CHUNK = 1 << 26
"""Elements of one gathered block when states are compared: 256 MB in float32."""


class Unrolled(NamedTuple):
    """One entry per (member, target, term), in that order."""

    member: Tensor
    segment: Tensor
    """(member · L + target) · G + group."""
    term: Tensor


def unroll(sets: TermSets, targets: Tensor) -> Unrolled:
    """The terms of every target of every member, [Z] each."""
    members, groups = targets.shape[0], sets.groups
    group = torch.arange(groups, device=targets.device)
    index = (targets.unsqueeze(-1) * groups + group).view(-1)
    lengths = sets.segments[index + 1] - sets.segments[index]
    segment = torch.repeat_interleave(lengths)
    first = lengths.cumsum(0) - lengths
    place = torch.arange(segment.numel(), device=targets.device) - first[segment]
    per_member = max(1, index.numel() // max(1, members))
    return Unrolled(segment // per_member, segment, sets.segments[index][segment] + place)


def rows_read(sets: TermSets, targets: Tensor, rows: int) -> ReadRows:
    """See :func:`gnn_repair.kernels.sets.rows_read`; numbers ascend."""
    at = unroll(sets, targets)
    read = torch.zeros(targets.shape[0], rows, dtype=torch.bool, device=targets.device)
    read[at.member, sets.columns[at.term].long()] = True
    return ReadRows(read.byte().argsort(dim=1, descending=True, stable=True), read.sum(1))


def hidden(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, at: Unrolled) -> Tensor:
    """drop(relu(first layer)) of every entry, [Z, H]."""
    # index_select rather than [...]: where many entries share a row, its gradient is added up
    # quickly on a GPU.
    recipient = layer.recipient.flatten(0, 1).index_select(0, at.segment // sets.groups)
    row = at.member * layer.source.shape[1] + sets.columns[at.term]
    source = layer.source.flatten(0, 1).index_select(0, row)
    cosine = _of_term(sets.cosine, at).unsqueeze(1) * layer.cosine.index_select(0, at.member)
    distance = _of_term(sets.distance, at).unsqueeze(1) * layer.distance.index_select(0, at.member)
    active = (recipient + source + cosine + distance).relu()
    if dropout.threshold == 0:
        return active
    mask = kept(dropout.seed, dropout.share, at.term, active.shape[1])
    return active * mask * dropout.scale


def _of_term(values: Tensor, at: Unrolled) -> Tensor:
    return values[0, at.term] if values.shape[0] == 1 else values[at.member, at.term]


def pool_reference(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """Σ α · hidden with autograd's own gradients, [S, L, H]."""
    at = unroll(sets, targets)
    weighted = _of_term(sets.coefficients, at).unsqueeze(1) * hidden(
        sets, targets, layer, dropout, at
    )
    out = layer.recipient.new_zeros(targets.numel(), layer.recipient.shape[2])
    return out.index_add(0, at.segment // sets.groups, weighted).view_as(layer.recipient)


def tilt_reference(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
) -> Tensor:
    """Σ α e^s [ℓ, 1] with autograd's own gradients, [S, L, G, C + 1]."""
    at = unroll(sets, targets)
    score = hidden(sets, targets, layer, dropout, at) * output.index_select(0, at.member)
    raw = score.sum(1) + bias.index_select(0, at.member)
    tilted = _of_term(sets.coefficients, at) * (BOUND * raw.tanh()).exp()
    message = contributions[at.member, sets.rows[at.term].long()]
    message = torch.cat([message, torch.ones_like(message[:, :1])], dim=1)
    out = raw.new_zeros(targets.numel() * sets.groups, message.shape[1])
    out = out.index_add(0, at.segment, tilted.unsqueeze(1) * message)
    return out.view(*targets.shape, sets.groups, -1)


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """See :func:`gnn_repair.kernels.sets.pool`."""
    return pool_reference(sets, targets, layer, dropout)


def pool_gradient(
    sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Gradients for the four tables."""
    with torch.enable_grad():
        leaves = Layer(*(table.detach().requires_grad_() for table in layer))
        out = pool_reference(sets, targets, leaves, dropout)
    return torch.autograd.grad(out, leaves, gradient)


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
    out = tilt_reference(sets, targets, layer, output, bias, contributions, dropout)
    return out, out.new_empty(0)


def tilt_gradient(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    output: Tensor,
    bias: Tensor,
    contributions: Tensor,
    dropout: Dropout,
    _kept: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients for output, bias and the four tables."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (output, bias, *layer)]
        out = tilt_reference(
            sets, targets, Layer(*leaves[2:]), leaves[0], leaves[1], contributions, dropout
        )
    return torch.autograd.grad(out, leaves, gradient)


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖², in blocks of terms."""
    members, _, width = recipients.shape
    owner = torch.repeat_interleave(segments.diff())
    products = recipients.new_empty(members, columns.numel())
    squares = torch.empty_like(products)
    step = max(1, CHUNK // max(1, members * width))
    for first in range(0, columns.numel(), step):
        part = slice(first, first + step)
        here, there = recipients[:, owner[part]], sources[:, columns[part].long()]
        products[:, part] = (here * there).sum(2)
        squares[:, part] = (there - here).square().sum(2)
    return products, squares
