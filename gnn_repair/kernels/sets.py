"""The two operations of a set-conditioned repair, with gradients, the same on every device.

A repair's first affine layer acts on a pair (recipient v, message a), and splits into a table by
recipient, a table by message and two frozen numbers per term (see :class:`Layer`), so

    hidden_{v,a} = drop(relu(recipient_v + source_a + cos_{v,a} · cosine + dist_{v,a} · distance))

is formed on the fly and never stored. :func:`pool` sums it over a recipient's terms, :func:`tilt`
scores each term with it and mixes contributions by the tilted coefficients. Both work on targets
[S, L]: each of S members has its own L recipients, each with its complete set of terms. What is
dropped follows from a hash, so it need not be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_repair.kernels.aggregate import check_sizes, kernel_module

BOUND = 4.0
"""Scores and shifts are BOUND · tanh(·)."""
LOW = 0xFFFFFFFF
"""32 bits."""
CHUNK = 1 << 26
"""Elements of one gathered block when states are compared plainly: 256 MB in float32."""


@dataclass(frozen=True, eq=False)
class TermSets:
    """The terms of n recipients in G groups, and what is frozen about them."""

    segments: Tensor
    """[n·G + 1] int64: where the terms of recipient i and group g begin is ``segments[i·G+g]``."""
    groups: int
    """G."""
    columns: Tensor
    """[T] int32: the row of ``Layer.source`` a term reads."""
    rows: Tensor
    """[T] int32: the row of the contributions a term reads."""
    coefficients: Tensor
    """[S or 1, T]: α, which also weights the pooled set."""
    cosine: Tensor
    """[S or 1, T]: cos(h_v, h_a)."""
    distance: Tensor
    """[S or 1, T]: ‖h_a − h_v‖."""

    @cached_property
    def longest(self) -> int:
        """Terms of the largest set."""
        ends = self.segments[:: self.groups]
        return int(ends.diff().max()) if ends.numel() > 1 else 0


class Layer(NamedTuple):
    """The first affine layer on pairs, split into its parts (H channels)."""

    recipient: Tensor
    """[S, L, H]: by target."""
    source: Tensor
    """[S, P, H]: by message."""
    cosine: Tensor
    """[S, H]."""
    distance: Tensor
    """[S, H]."""


class Scorer(NamedTuple):
    """The last layer of a term's score, 4 tanh(hidden · output + bias)."""

    output: Tensor
    """[S, H]."""
    bias: Tensor
    """[S]."""


class ReadRows(NamedTuple):
    """The rows of ``Layer.source`` that each member's targets read."""

    numbers: Tensor
    """[S, P]: those that are read first, each once, in any order; the rest means nothing."""
    counts: Tensor
    """[S]: how many are read."""


class Dropout(NamedTuple):
    """Which hidden channels are dropped: a hash of (seed, term, channel) decides."""

    share: float
    seed: Tensor
    """int64 scalar on the device: a captured CUDA graph reads its present value."""

    @property
    def threshold(self) -> int:
        """A channel is dropped when its 32-bit hash is below this."""
        return round(self.share * 2**32)

    @property
    def scale(self) -> float:
        """What kept channels are multiplied by."""
        return 1.0 / (1.0 - self.share)


def no_dropout(like: Tensor) -> Dropout:
    """Nothing is dropped."""
    return Dropout(0.0, torch.zeros((), dtype=torch.long, device=like.device))


def pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout | None = None) -> Tensor:
    """Σ_a α_{v,a} hidden_{v,a} over each target's terms, [S, L, H].

    Targets [S, L] int64 are positions among the recipients; gradients flow to the layer's tables.
    """
    _check_layer(sets, targets, layer)
    dropout = dropout or no_dropout(targets)
    if _plain(layer.source, sets.coefficients, sets.cosine, sets.distance):
        return plain_pool(sets, targets, layer, dropout)
    return _Pool.apply(sets, targets, dropout, *layer)  # type: ignore[no-untyped-call]


def tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    """Σ_a α e^s [ℓ_a, 1] over each target's groups, s = 4 tanh(hidden · output + bias).

    Of targets as in :func:`pool` and contributions ℓ [S, R, C], which get no gradient. Gives
    [S, L, G, C + 1]: the mixture, then the total α e^s; zero where a group is absent.
    """
    _check_layer(sets, targets, layer)
    check_sizes("output", scorer.output, *layer.cosine.shape)
    check_sizes("bias", scorer.bias, targets.shape[0])
    check_sizes("contributions", contributions, targets.shape[0], None, None)
    dropout = dropout or no_dropout(targets)
    if _plain(layer.source):
        return plain_tilt(sets, targets, layer, scorer, contributions, dropout)
    return _Tilt.apply(  # type: ignore[no-untyped-call]
        sets, targets, contributions, dropout, *scorer, *layer
    )


def rows_read(sets: TermSets, targets: Tensor, rows: int) -> ReadRows:
    """Which of ``rows`` rows the terms of targets [S, L] read."""
    check_sizes("targets", targets, None, None)
    kernels = kernel_module("sets", sets.coefficients)
    if targets.device.type == "cuda" and kernels is not None:
        return kernels.rows_read(sets, targets, rows)
    at = unroll(sets, targets)
    read = torch.zeros(targets.shape[0], rows, dtype=torch.bool, device=targets.device)
    read[at.member, sets.columns[at.term].long()] = True
    return ReadRows(read.byte().argsort(dim=1, descending=True, stable=True), read.sum(1))


def compare(
    segments: Tensor, columns: Tensor, recipients: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """h_v · h_a and ‖h_a − h_v‖² of every term, each [S, T].

    ``segments`` [n + 1] are the terms of each recipient, ``columns`` [T] int32 the source row of
    each term, h_v [S, n, d] the recipients' states and h_a [S, P, d] the sources'.
    """
    check_sizes("recipients", recipients, None, segments.numel() - 1, None)
    check_sizes("sources", sources, recipients.shape[0], None, recipients.shape[2])
    if _plain(recipients, recipients, sources):
        return plain_compare(segments, columns, recipients, sources)
    return kernel_module("sets", recipients).compare(segments, columns, recipients, sources)


def _check_layer(sets: TermSets, targets: Tensor, layer: Layer) -> None:
    check_sizes("targets", targets, None, None)
    members, count = targets.shape
    channels = layer.recipient.shape[-1]
    check_sizes("layer.recipient", layer.recipient, members, count, channels)
    check_sizes("layer.source", layer.source, members, None, channels)
    check_sizes("layer.cosine", layer.cosine, members, channels)
    check_sizes("layer.distance", layer.distance, members, channels)
    check_sizes("sets.rows", sets.rows, sets.columns.numel())
    for name in ("coefficients", "cosine", "distance"):
        check_sizes(f"sets.{name}", getattr(sets, name), None, sets.columns.numel())


# Dropout by a hash -------------------------------------------------------------------------------
#
# Members share their masks. Each is trained as if alone with the run's seed, so what it draws must
# depend neither on its place in the stack nor on who else is there.


def mixed_hash(value: Tensor) -> Tensor:
    """A 32-bit mixing function on int64 tensors that hold 32-bit values."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & LOW
    value = value ^ (value >> 15)
    value = (value * 0xD35A2D97) & LOW
    return value ^ (value >> 15)


def row_hash(seed: Tensor, row: Tensor) -> Tensor:
    """A 32-bit number for every row, int64 like ``row``; another seed, other numbers."""
    return mixed_hash(mixed_hash(seed & LOW) ^ ((row * 0x9E3779B1) & LOW))


def keep_mask(seed: Tensor, share: float, row: Tensor, channels: int) -> Tensor:
    """Which channels of which rows survive when ``share`` is dropped, bool [rows, channels]."""
    channel = torch.arange(channels, device=row.device)
    value = mixed_hash((row_hash(seed, row).unsqueeze(1) + channel * 0x9E3779B9) & LOW)
    return value >= round(share * 2**32)


def drop_rows(values: Tensor, share: float, seed: Tensor) -> Tensor:
    """Dropout of member-major values [S, L, H]; a hash of (seed, row, channel) decides.

    Row l has the same mask whatever L is, so padding does not change what a member draws.
    """
    if kernel_module("sets", values) is None:
        return drop_rows_plainly(values, share, seed)
    return _DropRows.apply(values, share, seed)  # type: ignore[no-untyped-call]


def drop_rows_plainly(values: Tensor, share: float, seed: Tensor) -> Tensor:
    """The same in PyTorch's own operations: the reference."""
    rows = torch.arange(values.shape[1], device=values.device)
    mask = keep_mask(seed, share, rows, values.shape[2]).to(values.dtype)
    return values * (mask / (1 - share))


# The plain forms, a row per (member, target, term): memory grows with terms × channels -----------


def _plain(values: Tensor, *frozen: Tensor) -> bool:
    """Whether the plain forms do the work: kernels give no gradients of what is frozen while a
    repair learns."""
    varies = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in frozen)
    return varies or kernel_module("sets", values) is None


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
    mask = keep_mask(dropout.seed, dropout.share, at.term, active.shape[1])
    return active * mask * dropout.scale


def _of_term(values: Tensor, at: Unrolled) -> Tensor:
    return values[0, at.term] if values.shape[0] == 1 else values[at.member, at.term]


def plain_pool(sets: TermSets, targets: Tensor, layer: Layer, dropout: Dropout) -> Tensor:
    """Σ α · hidden with autograd's own gradients, [S, L, H]."""
    at = unroll(sets, targets)
    weighted = _of_term(sets.coefficients, at).unsqueeze(1) * hidden(
        sets, targets, layer, dropout, at
    )
    out = layer.recipient.new_zeros(targets.numel(), layer.recipient.shape[2])
    return out.index_add(0, at.segment // sets.groups, weighted).view_as(layer.recipient)


def plain_tilt(
    sets: TermSets,
    targets: Tensor,
    layer: Layer,
    scorer: Scorer,
    contributions: Tensor,
    dropout: Dropout,
) -> Tensor:
    """Σ α e^s [ℓ, 1] with autograd's own gradients, [S, L, G, C + 1]."""
    at = unroll(sets, targets)
    score = hidden(sets, targets, layer, dropout, at) * scorer.output.index_select(0, at.member)
    raw = score.sum(1) + scorer.bias.index_select(0, at.member)
    tilted = _of_term(sets.coefficients, at) * (BOUND * raw.tanh()).exp()
    message = contributions[at.member, sets.rows[at.term].long()]
    message = torch.cat([message, torch.ones_like(message[:, :1])], dim=1)
    out = raw.new_zeros(targets.numel() * sets.groups, message.shape[1])
    out = out.index_add(0, at.segment, tilted.unsqueeze(1) * message)
    return out.view(*targets.shape, sets.groups, -1)


def plain_compare(
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


# The compiled forms with their gradients ----------------------------------------------------------


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sets: TermSets, targets: Tensor, dropout: Dropout, *tables: Tensor
    ) -> Tensor:
        layer = Layer(*(table.contiguous() for table in tables))
        ctx.sets, ctx.dropout = sets, dropout
        ctx.save_for_backward(targets, *layer)
        return kernel_module("sets", layer.source).pool(sets, targets, layer, dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        targets, *tables = ctx.saved_tensors
        gradients = kernel_module("sets", gradient).pool_gradient(
            ctx.sets, targets, Layer(*tables), ctx.dropout, gradient.contiguous()
        )
        return None, None, None, *gradients


class _Tilt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sets: TermSets,
        targets: Tensor,
        contributions: Tensor,
        dropout: Dropout,
        *trained: Tensor,
    ) -> Tensor:
        output, bias, *tables = (value.contiguous() for value in trained)
        layer, scorer = Layer(*tables), Scorer(output, bias)
        ctx.sets, ctx.dropout = sets, dropout
        kernels = kernel_module("sets", output)
        out, raw = kernels.tilt(sets, targets, layer, scorer, contributions, dropout)
        ctx.save_for_backward(targets, contributions, raw, *scorer, *layer)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        targets, contributions, raw, output, bias, *tables = ctx.saved_tensors
        gradients = kernel_module("sets", gradient).tilt_gradient(
            ctx.sets, targets, Layer(*tables), Scorer(output, bias), contributions, ctx.dropout,
            raw, gradient.contiguous(),
        )  # fmt: skip
        return None, None, None, None, *gradients


class _DropRows(torch.autograd.Function):
    """The mask is drawn again for the gradient, never stored."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float, seed: Tensor) -> Tensor:
        ctx.share = share
        ctx.save_for_backward(seed)
        return kernel_module("sets", values).drop_rows(values.detach().contiguous(), seed, share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        kernels, values = kernel_module("sets", upstream), upstream.contiguous()
        return kernels.drop_rows(values, *ctx.saved_tensors, ctx.share), None, None
