"""From the final sums of a record to an exposure: channels with their terms, then one value."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import pad
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.calling import TypedGraph
from gnn_repair.exposure.heads.building import Frame, Places
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, Parts, move_along
from gnn_repair.exposure.value import LAST_HOP, Exposure, Group, derived_exposure
from gnn_repair.kernels import Pattern, mix


@dataclass(frozen=True, eq=False)
class Context:
    """What repairs see of a message and of its recipient."""

    messages: Tensor
    """[M, d]."""
    state: Tensor
    """[N, d]."""
    typed: bool = False
    """Whether inputs are known by node type, so that one matrix always has the same columns."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """One group: Σ ± α h[row] at every recipient, its terms sorted by recipient."""

    group: Group
    indptr: Tensor
    """[N + 1] int64."""
    rows: Tensor
    """[T] int32: the state behind each term."""
    coefficients: Tensor
    """[T] positive."""
    sign: int
    states: Tensor
    """[M, D]: h."""
    senders: Tensor
    """[M] int32: the node behind each state."""
    weight: Tensor
    """[C, D] float64: W, the affine map from h to what the exposure's channels are."""
    context: Context

    @cached_property
    def pattern(self) -> Pattern:
        """Recipients × states."""
        return Pattern(self.indptr, self.rows, self.states.shape[0])

    @property
    def contributions(self) -> Tensor:
        """ℓ = ± W h, [M, C] float64."""
        return self.states.double() @ self.weight.t() * self.sign

    def total(self, contributions: Tensor) -> Tensor:
        """Σ α ℓ of every recipient, [N, C] float64; h or ℓ are added up, whichever is narrower."""
        alpha = self.coefficients.double()
        if self.states.shape[1] >= len(self.weight):
            return mix(self.pattern, alpha, contributions)
        return mix(self.pattern, alpha * self.sign, self.states.double()) @ self.weight.t()

    def value(self, coefficients: Tensor) -> Tensor:
        """Σ ± λ h for coefficients λ [T] ≥ 0, [N, D]."""
        return mix(self.pattern, coefficients.to(self.states.dtype) * self.sign, self.states)


def assemble(mixtures: Sequence[Mixture], logits: Tensor, **about: Any) -> Exposure:
    """The exposure whose groups are these mixtures.

    ``logits``: what β and the mixture add up to, [N, C]; ``about``: the exposure's other fields.
    """
    messages, state, starts = _contexts([mixture.context for mixture in mixtures])
    segments, rows, alpha = _terms(mixtures)
    tables = [mixture.contributions for mixture in mixtures]
    mixed = sum(mixture.total(table) for mixture, table in zip(mixtures, tables, strict=True))
    contributions = _joined(tables).unsqueeze(0)
    del tables
    frozen = logits.double().unsqueeze(0)
    numbers = [
        torch.arange(len(m.states), dtype=torch.int32, device=rows.device) + start
        for m, start in zip(mixtures, starts, strict=True)
    ]
    return derived_exposure(
        groups=tuple(mixture.group for mixture in mixtures),
        recipients=torch.arange(logits.shape[0], device=logits.device),
        segments=segments,
        rows=rows,
        coefficients=alpha.unsqueeze(0),
        contributions=contributions,
        fixed_logits=frozen - mixed,
        frozen_logits=frozen,
        state=_settled(state).unsqueeze(0),
        messages=_settled(messages).unsqueeze(0),
        message_rows=torch.cat(numbers),
        sources=torch.cat([mixture.senders for mixture in mixtures]),
        **about,
    )


def _terms(mixtures: Sequence[Mixture]) -> tuple[Tensor, Tensor, Tensor]:
    """Segments [N·G + 1], and the table rows and coefficients of all terms."""
    lengths = torch.stack([mixture.indptr.diff() for mixture in mixtures], dim=1).view(-1)
    segments = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    if len(mixtures) == 1:
        return segments, mixtures[0].rows, mixtures[0].coefficients
    terms = int(segments[-1])
    rows, alpha = mixtures[0].rows.new_empty(terms), mixtures[0].coefficients.new_empty(terms)
    first = 0
    for g, mixture in enumerate(mixtures):
        places = places_of_group(segments, g, len(mixtures))
        rows[places] = mixture.rows + first
        alpha[places] = mixture.coefficients
        first += len(mixture.states)
    return segments, rows, alpha


def places_of_group(segments: Tensor, group: int, groups: int) -> Any:
    """Where the terms of one group lie among all, in order of recipients."""
    if groups == 1:
        return slice(None)
    lengths = segments.diff()[group::groups]
    before = lengths.cumsum(0) - lengths
    places = torch.repeat_interleave(segments[group:-1:groups] - before, lengths)
    return places.add_(torch.arange(len(places), device=places.device))


def _settled(table: Tensor) -> Tensor:
    """A table of values; of a trained one (a row that the model holds for every node) a copy,
    since it would go on learning."""
    holder = table._base if table._is_view() else table
    return table.detach().clone() if isinstance(holder, nn.Parameter) else table


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenated; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _contexts(contexts: Sequence[Context]) -> tuple[Tensor, Tensor, list[int]]:
    """All messages [M, K] and states [N, K], and where each group's messages start.

    Different inputs get columns of their own, zero elsewhere. A message fills the columns of its
    sender's input, a recipient those of its own: the same two, unless inputs are known by type.
    """
    messages = {_key(context.messages): context.messages for context in contexts}
    states = {_key(c.state if c.typed else c.messages): c.state for c in contexts}
    inputs = states | messages if contexts[0].typed else states
    widths = [matrix.shape[1] for matrix in inputs.values()]
    columns = dict(zip(inputs, accumulate(widths, initial=0), strict=False))
    state, *more = [_placed(matrix, columns[key], sum(widths)) for key, matrix in states.items()]
    for matrix in more:
        state = state + matrix
    tables = [_placed(matrix, columns[key], sum(widths)) for key, matrix in messages.items()]
    starts = dict(zip(messages, accumulate(map(len, tables), initial=0), strict=False))
    return _joined(tables), state, [starts[_key(context.messages)] for context in contexts]


def _key(matrix: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """The same for views of the same numbers, whichever object they are."""
    return matrix.data_ptr(), matrix.shape, matrix.stride()


def _placed(matrix: Tensor, start: int, width: int) -> Tensor:
    """A matrix in some columns of a wider one that is zero elsewhere."""
    after = width - start - matrix.shape[1]
    return matrix if start == after == 0 else pad(matrix, (start, after))


@dataclass(frozen=True, eq=False)
class SiteChannels:
    """Channels of one site, as columns of a block's states."""

    site: FinalSite
    channels: Tensor
    """[d] places among the site's channels."""
    first: int = 0
    """The first of the columns."""
    rest: Tensor | None = None
    """[n, d] what entries of no node add, as those of a dense batch's empty rows do."""

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + self.channels.numel())

    def at(self, rows: Any) -> tuple[Any, Any]:
        """The index of these channels in some rows [k] (or a slice of them) of the site's."""
        first, width = int(self.channels[0]), self.channels.numel()
        if int(self.channels[-1]) == first + width - 1:
            return rows, slice(first, first + width)
        return rows.unsqueeze(1) if isinstance(rows, Tensor) else rows, self.channels


@dataclass(frozen=True, eq=False)
class Block:
    """Channels that share their coefficients: of one site, or of several sums of one convolution
    over the same entries with the same numbers (the two moments of a variance)."""

    pieces: tuple[SiteChannels, ...]
    """Where the D channels lie."""
    recipients: Tensor
    """[T]."""
    sources: Tensor
    """[T] numbered through all types; −1: not known."""
    coefficients: Tensor
    """[T], signs allowed, structural factors of recipients included."""
    states: Tensor
    """[M, D]."""
    rows: Tensor
    """[T] the state behind each entry."""
    by_entry: bool
    kind: int | None = None
    """The relation, where one sum goes over several."""

    @property
    def site(self) -> FinalSite:
        """Where its first channels lie."""
        return self.pieces[0].site


def frame_of_site(shape: tuple[int, ...], site: FinalSite, recipients: int) -> Frame:
    """How a site's tensor shows recipients and channels."""
    if site.axis is None:
        return Frame((1, *shape), 0, shape)
    places = None if site.rows is None else Places(site.rows, recipients)
    return Frame(shape, site.axis, shape, places)


def site_values(site: FinalSite) -> set[int]:
    """The values that a site's terms are made of."""
    values = {after.value for after in site.after} | ({site.powers.base} if site.powers else set())
    for member in site.members:
        values |= {member.value} | site_values(member)
    if site.members:
        return values
    if site.parts is None:
        return values.union(site.reduction.operands)
    parts = site.parts
    rows = parts.whole if parts.table is None else parts.table
    read = (*(factor.value for factor in parts.factors), parts.kinds, parts.index, rows)
    return values | {number for number in read if number is not None}


def blocks_of(analysis: Analysis, site: FinalSite, kept: Mapping[int, Tensor]) -> list[Block]:
    """The terms of one site, a block for every set of channels with coefficients of their own."""
    if site.members:
        return _blocks_of_loop(analysis, site, kept)
    if site.stack > 1:
        several = blocks_of(analysis, replace(site, rows=None, stack=1), kept)
        width = prod(analysis.value(site.value).shape) // site.reduction.size
        return [one for block in several for one in _unstacked(block, site, width)]
    if site.powers is not None:
        return _blocks_of_filter(site, blocks_of(analysis, replace(site, powers=None), kept), kept)
    parts, reduction = site.parts, site.reduction
    if parts is None:
        return _product_blocks(site, kept)
    assert reduction.recipients is not None
    axes, recipients = reduction.axes, reduction.recipients.reshape(-1)
    entries = recipients.numel()
    shape = analysis.value(reduction.message).shape
    sample = [_first_entry(factor.place, axes) for factor in parts.factors]
    width = prod(size for a, size in enumerate(shape) if a not in axes)
    last = width if shape[-1:] == () or len(shape) - 1 in axes else shape[-1]
    sample += [a.place[0] for a in site.after if a.place.dim() > 1]
    stacks = torch.arange(width) // last  # heads and stacks, unless heads are the last axis
    inner = width > 0 and any(
        bool((s.view(-1, last) != s.view(-1, last)[:, :1]).any()) for s in sample
    )
    keys = torch.stack([torch.zeros_like(stacks) if inner else stacks, *sample])
    channels_of: dict[tuple[int, ...], list[int]] = {}
    for channel, key in enumerate(keys.t().tolist()):
        channels_of.setdefault(tuple(key), []).append(channel)
    states, rows, by_entry = _states(parts, kept, axes, entries)
    if not states.is_floating_point():  # as comparisons that are counted
        states = states.to(analysis.value(reduction.message).dtype)
    sources = reduction.sources
    sources = torch.full((entries,), -1) if sources is None else sources.reshape(-1)
    after = _after(site, kept, recipients)
    kinds = reduction.relations
    if kinds is None and parts.kinds is not None:  # each relation has a matrix of its own
        kinds = kept[parts.kinds].reshape(-1)
    blocks = []
    for group in channels_of.values():
        channels, first = torch.tensor(group), group[0]
        alpha = _coefficients(parts, kept, axes, first, states.dtype, entries)
        alpha = _scaled(alpha, after, recipients, first)
        own = states if len(channels) == width else states[:, channels]
        if any(kept[factor.value].dtype == torch.bool for factor in parts.factors):
            read = torch.zeros(len(own), dtype=torch.bool).index_fill(0, rows[alpha != 0], True)
            own = own.where(read.unsqueeze(1), 0.0)  # what is masked may be infinite
        block = Block(
            (SiteChannels(site, channels),), recipients, sources, alpha, own, rows, by_entry
        )  # fmt: skip
        for kind in [None] if kinds is None else torch.unique(kinds).tolist():
            chosen = None if kind is None else kinds == kind
            known = reduction.sources is not None
            blocks.append(_of_recipients(replace(block, kind=kind), site, known, chosen))
    return [block for block in blocks if len(block.recipients)] or blocks[:1]


def _blocks_of_filter(
    site: FinalSite, hops: Sequence[Block], kept: Mapping[int, Tensor]
) -> list[Block]:
    """The terms of Σ γ_k Â^k, given those of one hop: a block for each of its blocks (heads)."""
    assert site.powers is not None
    states, blocks = kept[site.powers.base].flatten(1), list[Block]()
    for hop in hops:
        channels = hop.pieces[0].channels if len(hops) > 1 else torch.arange(states.shape[1])
        piece = SiteChannels(site, channels)
        if blocks and torch.equal(hop.coefficients, hops[0].coefficients):
            blocks.append(replace(blocks[0], pieces=(piece,), states=states[:, channels]))
            continue
        recipients, rows, alpha = polynomial(
            hop.recipients, hop.rows, hop.coefficients / site.powers.scale, site.reduction.size,
            site.powers.coefficients,
        )  # fmt: skip
        block_states = states[:, channels] if len(hops) > 1 else states
        blocks.append(Block((piece,), recipients, rows, alpha, block_states, rows, False))
    return blocks


def _of_recipients(
    block: Block, site: FinalSite, known: bool, chosen: Tensor | None = None
) -> Block:
    """The block without entries to other types of node, or from the empty rows of a dense batch.

    ``known``: whether senders are; ``chosen``: [T] the entries that are the block's.
    """
    if site.rows is not None:
        block = replace(block, recipients=site.rows[block.recipients])
    is_kept = block.recipients >= 0 if chosen is None else chosen & (block.recipients >= 0)
    absent = (is_kept & (block.sources < 0) & known).nonzero().view(-1)
    if len(absent):
        size = site.reduction.size if site.rows is None else int(site.rows.max()) + 1
        rest = block.states.new_zeros(size, block.states.shape[1])
        added = block.coefficients[absent].unsqueeze(1) * block.states[block.rows[absent]]
        rest.index_add_(0, block.recipients[absent], added)
        block = replace(block, pieces=(replace(block.pieces[0], rest=rest),))
        is_kept[absent] = False
    kept = is_kept.nonzero().view(-1)
    if len(kept) == len(block.sources):
        return block
    parts = {n: getattr(block, n)[kept] for n in ("recipients", "sources", "coefficients", "rows")}
    return replace(block, **parts)


def _unstacked(block: Block, site: FinalSite, width: int) -> Iterator[Block]:
    """The block of a sum into several rows per recipient, a block for each of these rows."""
    count, piece = site.stack, block.pieces[0]
    size = site.reduction.size // count
    above = (block.recipients // size, block.recipients % size)
    number, recipients = above if site.axis else (
        block.recipients % count, block.recipients // count
    )  # fmt: skip
    if site.reduction.batched and site.sender == "cluster":  # numbered as they are weighed
        each = len(block.states) // site.reduction.size
        block = replace(block, sources=recipients * each + block.rows % each)
    for k in range(count):
        rest = piece.rest
        if rest is not None:
            rest = rest[k * size : (k + 1) * size] if site.axis else rest[k::count]
        row_piece = replace(piece, site=site, channels=piece.channels + k * width, rest=rest)
        row_block = replace(block, pieces=(row_piece,), recipients=recipients)
        yield _of_recipients(row_block, site, False, number == k)


def _after(site: FinalSite, kept: Mapping[int, Tensor], recipients: Tensor) -> Tensor | None:
    """What recipients' sums are multiplied by, [n, 1], or [n, d] where channels differ.

    ``recipients``: [T] of all entries.
    """
    reduction, dtype = site.reduction, kept[site.value].dtype
    total = torch.full((reduction.size, 1), reduction.factor, dtype=dtype)
    if reduction.mean:
        total = total / reduction.counts(recipients).unsqueeze(1)
    for after in site.after:
        place = after.place if after.place.dim() > 1 else after.place.unsqueeze(1)
        factor = kept[after.value].reshape(-1)[place].to(dtype)
        total = total / factor if after.inverse else total * factor
    plain = not site.after and not reduction.mean and reduction.factor == 1
    return None if plain else total


def _scaled(alpha: Tensor, after: Tensor | None, recipients: Tensor, channel: int) -> Tensor:
    """Coefficients times what multiplies one channel of their recipients' sums."""
    if after is None:
        return alpha
    return alpha * after[recipients, channel if after.shape[1] > 1 else 0]


def _to_entries(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """[entries…, channels…]: entry axes first, without copying."""
    rest = [a for a in range(tensor.dim()) if a not in axes]
    return tensor.permute(*axes, *rest)


def _first_entry(places: Tensor, axes: Sequence[int]) -> Tensor:
    return _to_entries(places, axes)[(0,) * len(axes)].reshape(-1)


def _states(
    parts: Parts, kept: Mapping[int, Tensor], axes: Sequence[int], entries: int
) -> tuple[Tensor, Tensor, bool]:
    """[M, R] in the message's channels, the row of every entry, and whether each has its own."""
    if parts.table is None:
        message = _to_entries(move_along(parts.pushes, kept[parts.whole]), axes)
        message = message.reshape(entries, prod(message.shape[len(axes) :]))
        return message, torch.arange(entries), True
    table = kept[parts.table].movedim(parts.axis, 0).flatten(1)
    assert parts.channels is not None and parts.index is not None
    table = table if table.dim() > 1 else table.unsqueeze(1)
    return table[:, _first_entry(parts.channels, axes)], kept[parts.index].reshape(-1), False


def _coefficients(
    parts: Parts, kept: Mapping[int, Tensor], axes: Sequence[int], channel: int,
    dtype: torch.dtype, entries: int,
) -> Tensor:  # fmt: skip
    total = torch.full((entries,), parts.scale, dtype=dtype)
    # Masks come last: they may be there for what is infinite.
    for factor in sorted(parts.factors, key=lambda f: kept[f.value].dtype == torch.bool):
        places = _to_entries(factor.place, axes)
        rest = places.shape[len(axes) :]
        where = torch.unravel_index(torch.tensor(channel), rest) if rest else ()
        index: Any = (..., *[int(w) for w in where])
        numbers = places[index].reshape(-1)
        values = kept[factor.value].reshape(-1)[numbers]
        if values.dtype == torch.bool:
            total = torch.where(values ^ factor.negated, total, 0.0)
            continue
        total = total / values if factor.inverse else total * values
    return total


def _product_blocks(site: FinalSite, kept: Mapping[int, Tensor]) -> list[Block]:
    reduction = site.reduction
    assert reduction.matrix is not None
    matrix, table = kept[reduction.matrix], kept[reduction.message]
    table = table if table.dim() > 1 else table.unsqueeze(1)
    if reduction.across is not None:
        across = kept[reduction.across]
        across, table = (across.mT, table.mT) if reduction.turned else (across, table)
        across = across if reduction.between is None else across * kept[reduction.between]
        matrix = matrix @ across
    elif reduction.turned:
        matrix, table = matrix.mT, table.mT
    width = table.shape[-1]
    channels = torch.arange(prod(table.shape[:-2]) * width)
    channels = channels if site.layout is None else torch.argsort(site.layout)

    def block(entries: Entries, table: Tensor, channels: Tensor, ids: Tensor | None) -> Block:
        recipients, rows, values = entries
        sources = rows if ids is None else ids[..., 0].reshape(-1)[rows]
        after = _after(site, kept, recipients)
        alpha = _scaled(values.to(table.dtype), after, recipients, int(channels[0]))
        piece, batched = SiteChannels(site, channels), reduction.batched
        weighed = Block((piece,), recipients, sources, alpha, table, rows, batched)
        return _of_recipients(weighed, site, batched)

    ids, linear = reduction.sources, reduction.is_attention
    if reduction.batched:  # [B, K, n] · [B, n, d]: row k of matrix b weighs the rows of table b
        recipients = torch.arange(len(matrix)).repeat_interleave(matrix.shape[2])
        rows, states = torch.arange(len(recipients)), table.flatten(0, 1)
        return [
            block((recipients, rows, row.reshape(-1)), states, torch.arange(width) + k * width, ids)
            for k, row in enumerate(matrix.unbind(1))
        ]
    if matrix.dim() == 2:
        return [block(_entries(matrix, linear), table, channels, ids)]
    shared = all(after.place.dim() == 1 for after in site.after)
    if shared and bool((matrix == matrix[:1]).all()):  # one matrix, several tables
        joined = table.movedim(0, 1).flatten(1)
        return [
            block(_entries(matrix[0], linear), joined, channels, None if ids is None else ids[0])
        ]
    return [
        block(_entries(matrix[b], linear), table[b], weighed, None if ids is None else ids[b])
        for b, weighed in enumerate(channels.split(width))
    ]


Entries = tuple[Tensor, Tensor, Tensor]
"""[T] recipients, rows of the table and numbers."""


def _entries(matrix: Tensor, all_of_them: bool) -> Entries:
    """The entries of a matrix that are not zero, or all of them."""
    if matrix.layout == torch.strided:
        places = (torch.ones_like(matrix) if all_of_them else matrix).nonzero()
        return places[:, 0], places[:, 1], matrix[places[:, 0], places[:, 1]]
    whole = matrix.to_sparse_coo() if matrix.layout != torch.sparse_coo else matrix
    return (*whole._indices(), whole._values())


def _blocks_of_loop(analysis: Analysis, site: FinalSite, kept: Mapping[int, Tensor]) -> list[Block]:
    """The sums of single recipients, or of some that follow each other, as one block."""
    several, width, first = dict[int, Block](), 0, 0
    for one in site.members:
        if one.reduction.recipients is None or one.reduction.recipients.numel():
            blocks = blocks_of(analysis, one, kept)
            several[first], width = blocks[0], max(width, len(blocks))
        first += one.reduction.size
    if width != 1:
        raise ExposureRefused(
            "a loop over recipients weighs channels differently; write it as one sum over messages"
        )
    parts = list(several.values())
    starts = [0, *accumulate(len(part.states) for part in parts)]
    return [
        Block(
            (SiteChannels(site, torch.arange(parts[0].states.shape[1])),),
            torch.cat([p.recipients + first for first, p in several.items()]),
            torch.cat([p.sources for p in parts]),
            torch.cat([p.coefficients for p in parts]),
            torch.cat([p.states for p in parts]),
            torch.cat([p.rows + s for p, s in zip(parts, starts, strict=False)]),
            True,
        )
    ]


def keep_sender_type(block: Block, graph: TypedGraph) -> Block:
    """The block with the states of its senders' type alone, where those of several lie together."""
    site, shift = block.site, block.sources - block.rows
    is_shifted = len(shift) > 0 and bool((shift == shift[0]).all())
    if (
        block.by_entry
        or site.reduction.matrix is not None
        or site.powers is not None
        or not is_shifted
    ):
        return block
    kind = graph.kind_of(int(block.sources[0]))
    first = graph.first(kind) - int(shift[0])
    last = first + graph.counts[kind]
    if not 0 <= first < last <= len(block.states) or int(block.rows.max()) >= last:
        return block
    return replace(block, states=block.states[first:last], rows=block.rows - first)


def join_blocks(left: Block, right: Block) -> Block:
    """Two blocks over the same entries with the same coefficients as one."""
    width = left.states.shape[1]
    moved = tuple(replace(piece, first=piece.first + width) for piece in right.pieces)
    return replace(
        left, pieces=(*left.pieces, *moved), states=torch.cat([left.states, right.states], dim=1)
    )


# Groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SortedEntries:
    """A block's entries by recipient: what blocks of several heads share."""

    order: Tensor | None
    """[T]; None: they are sorted."""
    rows: Tensor
    """[T] int32: the state behind each."""
    indptr: Tensor
    """[N + 1]."""

    @classmethod
    def of(cls, block: Block, recipients: int) -> SortedEntries:
        """The entries of a block."""
        owners, order, rows = block.recipients, None, block.rows.int()
        if not bool((owners[1:] >= owners[:-1]).all()):
            order = torch.argsort(owners, stable=True)
            rows = rows[order]
        return cls(order, rows, _starts(owners, recipients))


def _starts(recipients: Tensor, count: int) -> Tensor:
    """[N + 1] where each recipient's entries start, once they are sorted."""
    counts = torch.bincount(recipients, minlength=count)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def mixtures_of(
    block: Block, group: Group, weight: Tensor, context: Context, nodes: int, entries: SortedEntries
) -> list[Mixture]:
    """One group for each sign of the coefficients; entries with coefficient 0 are no terms, except
    in linear attention of one sign, where a recipient hears anybody.
    """
    alpha, order = block.coefficients.to(block.states.dtype), entries.order
    alpha = alpha if order is None else alpha[order]
    lowest = float(alpha.min()) if len(alpha) else 0.0
    signed, linear = lowest < 0, block.site.reduction.is_attention
    mixtures = []
    for sign in (1, -1) if signed else (1,):
        coefficients, rows, indptr = alpha, entries.rows, entries.indptr
        if signed or lowest == 0:
            is_term = alpha * sign > 0
            if linear and not signed:  # all entries of those that hear anybody
                owner = block.recipients if order is None else block.recipients[order]
                is_term = torch.zeros(len(context.state), dtype=torch.bool).index_fill(
                    0, owner[is_term], True
                )[owner]
            kept = is_term.nonzero().view(-1)
            coefficients, rows = alpha[kept], rows[kept]
            term_owners = block.recipients[kept if order is None else order[kept]]
            indptr = _starts(term_owners, len(context.state))
        if signed and not coefficients.numel():
            continue
        behind = _sender_of_states(block, nodes)
        mixtures.append(
            Mixture(
                group=_signed_group(group, sign) if signed else group,
                indptr=indptr,
                rows=rows,
                coefficients=coefficients if sign > 0 else -coefficients,
                sign=sign,
                states=block.states.contiguous(),
                senders=behind,
                weight=weight,
                context=context,
            )
        )
    return mixtures


def _signed_group(group: Group, sign: int) -> Group:
    mark = "+" if sign > 0 else "−"
    rule = f"{group.rule}; |α| of the {mark} entries, sign in ℓ"
    return replace(group, name=f"{group.name} {mark}", rule=rule)


def _sender_of_states(block: Block, nodes: int) -> Tensor:
    """[M] who sends each of the states; of one that nobody hears it does not matter."""
    shift = block.sources - block.rows
    behind = block.rows.new_zeros(len(block.states))
    if not block.by_entry and len(shift) and bool((shift == shift[0]).all()):
        numbered = torch.arange(len(behind), device=behind.device) + shift[0]
        behind = torch.where((numbered >= 0) & (numbered < nodes), numbered, 0)
    behind[block.rows] = block.sources
    return behind.int()


def context_of(block: Block, recipients: int, inputs: Any, pooled: bool, graph: Any) -> Context:
    """What repairs see: the convolution's own input where it is a matrix, else what is sent."""
    states, typed = block.states, graph is not None
    if not (block.by_entry or pooled):
        pair = inputs if isinstance(inputs, tuple | list) and len(inputs) == 2 else (inputs, inputs)
        if isinstance(inputs, Mapping) and graph is not None:
            sender = graph.kind_of(int(block.sources.min()) if len(block.sources) else 0)
            pair = (inputs.get(sender), inputs.get(graph.node_type))
        fit = _is_matrix(pair[0], len(states)) and _is_matrix(pair[1], recipients)
        if fit and (graph is not None or pair[0].shape == pair[1].shape):
            return Context(pair[0], pair[1], typed)
        if graph is None and len(states) == recipients:
            return Context(states, states, typed)
    weights = (
        torch.ones_like(block.coefficients) if pooled else block.coefficients.abs()
    ).unsqueeze(1)
    total = states.new_zeros(recipients, states.shape[1])
    total.index_add_(0, block.recipients, weights * states[block.rows])
    mass = weights.new_zeros(recipients, 1).index_add_(0, block.recipients, weights)
    return Context(states, total / mass.clamp(min=torch.finfo(mass.dtype).tiny), typed)


def _is_matrix(value: Any, rows: int) -> bool:
    strided = isinstance(value, Tensor) and value.layout == torch.strided
    return strided and value.is_floating_point() and value.dim() == 2 and len(value) == rows


KINDS = ("node", "cluster", "edge", "row")
"""What sends to graphs, or to nodes where hyperedges do."""


def number_senders(
    blocks: Sequence[Block], nodes: int, recipient: str
) -> tuple[list[Block], NodeNames]:
    """The blocks with senders numbered one kind after another, and the kinds' names."""
    counts, numbers = dict.fromkeys(KINDS, 0) | {"node": nodes}, list[Tensor]()
    kinds = [block.site.sender for block in blocks]
    for block, kind in zip(blocks, kinds, strict=True):
        sources = torch.arange(len(block.sources)) if kind == "row" else block.sources
        numbers.append(sources)
        if kind != "node" and len(sources):
            counts[kind] = max(counts[kind], int(sources.max()) + 1)
    starts = dict(zip(KINDS, accumulate(counts.values(), initial=0), strict=False))
    renumbered = [
        replace(block, sources=sources + starts[kind])
        for block, sources, kind in zip(blocks, numbers, kinds, strict=True)
    ]
    senders = tuple((kind, count) for kind, count in counts.items() if count or kind == "node")
    return renumbered, NodeNames(recipient, senders)


def graph_starts(blocks: Sequence[Block], nodes: int, graphs: int, batch: Any) -> Tensor:
    """[B + 1]: where the nodes of each graph start, as data or all pools of nodes say."""
    is_vector = isinstance(batch, Tensor) and batch.shape == (nodes,) and batch.dtype == torch.long
    owners = [batch] if is_vector and bool(((batch >= 0) & (batch < graphs)).all()) else []
    owners += [torch.zeros(nodes, dtype=torch.long)] if graphs == 1 else []
    for block in blocks:
        if block.site.sender != "node":
            continue
        used = block.coefficients != 0
        sources, recipients = block.sources[used], block.recipients[used]
        owner = recipients.new_full((nodes,), -1)
        owner[sources] = recipients
        again = owner.clone()
        again[sources.flip(0)] = recipients.flip(0)
        if not torch.equal(owner, again):
            raise ExposureRefused("the model pools a node into several graphs")
        owners.append(owner)
    if not owners:
        raise ExposureRefused(
            "to which graph nodes belong is not known, since the model pools clusters or edges and "
            "data has no batch vector; pass a torch_geometric.data.Batch"
        )
    graph = torch.stack(owners).amax(0)
    # A node that nobody pools lies where its predecessor does.
    first = torch.cummax(graph, 0).values.clamp(min=0)
    if bool(((graph >= 0) & (first != graph)).any()):
        raise ExposureRefused(
            "the nodes of a graph do not lie together (the batch vector is not sorted); make the "
            "batch with torch_geometric.data.Batch.from_data_list"
        )
    counts = torch.bincount(first, minlength=graphs)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


# Names ------------------------------------------------------------------------------------------


SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
WEIGHED = {
    "sum": "1 per {noun}",
    "mean": "1 / its number of {noun}s",
    "attention": "attention",
    "weighted": "a weight that the model computes",
    "scaled": "the graph's number per {noun} (weights, degrees)",
}
"""By how sums are weighed: what α is."""


def holder_of(modules: Mapping[str, nn.Module], name: str) -> tuple[str, nn.Module | None]:
    """The convolution, the aggregation, or else the module in which an operation happens."""
    parts = name.split(".") if name else []
    outer = [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
    for kind in (MessagePassing, Aggregation):
        for prefix in outer:
            if isinstance(modules.get(prefix), kind):
                return prefix, modules[prefix]
    return name, modules.get(name)


@dataclass(frozen=True, eq=False)
class Naming:
    """What blocks are called, and the words for how they weigh their messages."""

    analysis: Analysis
    modules: Mapping[str, nn.Module]
    blocks: Sequence[Block]
    graph: TypedGraph | None
    pooled: bool
    """Whether recipients are graphs whose rows are pooled."""

    def groups(self) -> Iterator[Group]:
        """A group for every block, with a name of its own and a rule."""
        named = [self._named(block) for block in self.blocks]
        keys = [(group.name, holder) for group, holder, _ in named]
        holders = Counter(name for name, _ in set(keys))
        used = Counter[tuple[str, str]]()
        for key, (group, holder, module) in zip(keys, named, strict=True):
            name = group.name
            alike = [b for b, other in zip(self.blocks, keys, strict=True) if other == key]
            if holders[name] > 1 and holder:
                name = f"{name} ({holder if self.graph is None else _outer(holder)})"
            sums = len({id(block.site) for block in alike})
            if sums < len(alike):
                linear = alike[0].site.reduction.across is not None
                by_head = linear or self.graph is not None or hasattr(module, "heads")
                kind = "head" if by_head else "stack"
                name = f"{name} {kind} {used[key]}"
            elif len(alike) > 1:
                relations = hasattr(module, "num_relations")
                name = f"{name} relation {used[key]}" if relations else f"{name} {used[key] + 1}"
            used[key] += 1
            yield replace(group, name=name)

    def _named(self, block: Block) -> tuple[Group, str, nn.Module | None]:
        """The group of a block before names are told apart, its module's name, and the module."""
        site, graph = block.site, self.graph
        name, module = holder_of(self.modules, self.analysis.record.steps[site.step].module)
        convolution = isinstance(module, MessagePassing | Aggregation)
        kind = type(module).__name__ if convolution else self._kind(site)
        how, rule, origin = self._rule(block)
        if self.pooled:
            kind = f"{how} pool"
        base = name or kind
        if graph is not None:
            base = self._relation(block, graph) or base
        if site.powers is not None:
            base = f"{name} {power_label(site.powers.coefficients)}".strip()
        elif block.kind is not None and graph is None:
            base = f"{base} relation {block.kind}"
        if site.is_last_hop:
            base, rule = f"{base} last hop", f"{rule}; {LAST_HOP}"
        return Group(base, f"{kind}: {rule}", origin), name, module

    def _kind(self, site: FinalSite) -> str:
        if site.reduction.matrix is not None:
            if self.analysis.is_spectral(site.reduction):
                return "spectral filter"
            return "linear attention" if site.reduction.is_attention else "matrix product"
        return "mean" if site.reduction.mean else "sum"

    def _weighing(self, block: Block) -> str:
        """How a sum weighs its messages, as the coefficients show; no answer depends on it."""
        for how in ("mean", "sum") if block.site.is_divided else ("sum", "mean"):
            if _are_ones(block, by_count=how == "mean"):
                return how
        site = block.site.single
        factors = () if site.parts is None else site.parts.factors
        numbers = [site.reduction.matrix, *(factor.value for factor in factors)]
        if not any(n is not None and self.analysis.value(n).live for n in numbers):
            return "scaled"
        mass = block.coefficients.new_zeros(block.site.reduction.size, dtype=torch.float64)
        for one in self.blocks:  # relations may share a softmax
            first = one.pieces[0]
            if first.site is block.site and first.channels[:1] == block.pieces[0].channels[:1]:
                mass.index_add_(0, one.recipients, one.coefficients.double())
        whole = bool(((mass[mass != 0] - 1).abs() < 1e-4).all())
        return "attention" if whole else "weighted"

    def _rule(self, block: Block) -> tuple[str, str, str]:
        """How messages are weighed, what α and h are, and where α comes from."""
        analysis, site, parts = self.analysis, block.site.single, block.site.single.parts
        if site.powers is not None:
            label = power_label(site.powers.coefficients)
            return "scaled", f"α = entries of {label}, h = its input", "sparse product of Â"
        how, noun = self._weighing(block), block.site.sender if self.pooled else "message"
        words = WEIGHED[how].format(noun=noun)
        after = " / count" if block.site.is_divided else ""
        if analysis.is_spectral(site.reduction):
            return how, "α = the entry of U f(Λ) Uᵀ, h = the sender's row", "the model"
        if site.reduction.is_attention:
            return how, f"α = {words}, q · k of both ends, h = the sender's row", "the model"
        if site.reduction.matrix is not None or parts is None:
            assert site.reduction.matrix is not None
            live = analysis.value(site.reduction.matrix).live
            origin = "the model" if live else "the matrix itself"
            words = words if live or self.pooled else "the matrix's entry"
            return how, f"α = {words}, h = the row that is multiplied", origin + after
        state = "the whole message" if parts.table is None else "the sender's row"
        state = f"the {noun}'s row".replace("row's ", "") if self.pooled else state
        values = [analysis.value(analysis.root(f.value)) for f in parts.factors]
        names = [value.name or ("the model" if value.live else "the graph") for value in values]
        origin = " × ".join(dict.fromkeys(names)) or "the sum itself"
        return how, f"α = {words}, h = {state}", origin + after

    def _relation(self, block: Block, graph: TypedGraph) -> str:
        """The relation whose edges a sum goes over, if the record shows one."""
        reduction = block.site.reduction
        if block.kind is not None and reduction.relations is not None:
            itself = f"{graph.node_type} to itself"
            return " ".join(list(graph.edges)[block.kind]) if block.kind >= 0 else itself
        matrix = [] if reduction.matrix is None else [reduction.matrix]
        leaves = set(map(id, self.analysis.leaves(matrix)))
        relations = [relation for relation, edges in graph.edges.items() if id(edges) in leaves]
        if len(relations) == 1:
            return " ".join(relations[0])
        sources = block.sources[block.sources >= 0]
        kinds = {graph.kind_of(int(end)) for end in sources.aminmax()} if len(sources) else set()
        return f"{kinds.pop()} to {graph.node_type}" if len(kinds) == 1 else ""


def _outer(name: str) -> str:
    """A convolution's name without the relation's at its end: ``conv2`` or ``convs.1``."""
    parts = [part for part in name.split(".") if "__" not in part]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "convs" else parts)


def _are_ones(block: Block, by_count: bool) -> bool:
    """Whether coefficients are 1, or 1 / the recipient's number of entries."""
    alpha = block.coefficients
    if by_count and len(alpha):
        alpha = alpha * torch.bincount(block.recipients)[block.recipients]
    return not len(alpha) or all(abs(float(end) - 1) < 1e-4 for end in torch.aminmax(alpha))


def power_label(powers: Sequence[float]) -> str:
    """Such as ``Â²``."""
    used = [k for k, c in enumerate(powers) if c]
    if len(used) == 1 and powers[used[0]] == 1.0:
        return {0: "I", 1: "Â"}.get(used[0], "Â" + str(used[0]).translate(SUPERSCRIPT))
    return f"Σ γₖ Âᵏ, K = {len(powers) - 1}"


# Powers of an operator ---------------------------------------------------------------------------


NOISE = 1e-15
"""Entries this small beside the largest are rounding left over by cancelling paths."""


def polynomial(
    recipients: Tensor, rows: Tensor, coefficients: Tensor, size: int, powers: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Recipients, sources and entries of Σ γ_k Â^k."""
    entries = (recipients.cpu().numpy(), rows.cpu().numpy())
    hop = sparse.coo_matrix(
        (coefficients.double().cpu().numpy(), entries), shape=(size, size)
    ).tocsr()

    def applied(start: Any) -> Any:
        power, total = start, powers[0] * start
        for coefficient in powers[1:]:
            power = power @ hop
            if coefficient:
                total = total + coefficient * power
        return total.tocsr()

    if len(powers) > 2:
        refuse_too_large(estimated_terms(applied, size), size)
    total = applied(sparse.identity(size, format="csr"))
    total.sum_duplicates()
    values = total.data.copy()
    values[np.abs(values) <= NOISE * np.abs(values).max(initial=0)] = 0
    kept = values != 0
    counted = np.repeat(np.arange(size), np.diff(total.indptr))
    return (
        torch.from_numpy(counted[kept]).to(coefficients.device),
        torch.from_numpy(total.indices.astype(np.int64)[kept]).to(coefficients.device),
        torch.from_numpy(values[kept]).to(coefficients),
    )


LARGEST = 1 << 30
"""Terms beyond which to refuse in any case: places of terms are 32-bit numbers."""
BYTES_PER_TERM = 80
"""Peak memory while exposing a product of hops, measured: 44 to 65 bytes, rounded up."""
SHARE = 0.8
"""Of the memory that is available; the rest is for the model and for what follows."""
NOTEWORTHY = 1 << 25
"""Terms from which on the size is told before the work begins: it will take a while."""
SAMPLED_ENTRIES = 1 << 24
"""Numbers that a sample of rows may form: about 200 MB, a second's work."""
FEWEST, MOST = 8, 256
"""Rows in a sample."""


def estimated_terms(applied: Callable[[Any], Any], nodes: int) -> int:
    """How many nonzeros a filter P(Â) has, from some of its rows.

    Args:
        applied: from a matrix S [m, N] the product S P(Â).
        nodes: N.
    """
    count = min(nodes, max(FEWEST, min(MOST, SAMPLED_ENTRIES // max(nodes, 1))))
    rows = np.random.default_rng(0).choice(nodes, size=count, replace=False)
    sample = sparse.identity(nodes, format="csr")[np.sort(rows)]
    return round(applied(sample).nnz * nodes / count)


def refuse_too_large(terms: int, nodes: int) -> None:
    """Raise where the terms do not fit the machine; say it where they are many."""
    needed, free = terms * BYTES_PER_TERM, available_memory()
    size = (
        f"the paths of several hops between {nodes:,} nodes make about {terms:,} terms "
        f"({needed / 2**30:.1f} GiB while exposing"
    )
    last = "use hops='last' to expose the last hop alone"
    if free is not None and needed > SHARE * free:
        raise ExposureRefused(f"{size}, of {free / 2**30:.1f} GiB available); {last}")
    if terms > LARGEST:
        raise ExposureRefused(f"{size}), more than {LARGEST:,}; {last}")
    if terms > NOTEWORTHY:
        warnings.warn(f"{size}); {last}", stacklevel=2)


def available_memory() -> int | None:
    """Bytes that a process may still take; None where the system does not tell."""
    limits = list[int]()
    for read in (_meminfo, _control_group):
        with suppress(OSError, StopIteration, ValueError, AttributeError):
            limits.append(read())
    return min(limits, default=None)


def _meminfo() -> int:
    file = Path("/proc/meminfo")
    if not file.exists():
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = file.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)


def _control_group() -> int:
    """What a container's limit leaves."""
    names = ("max", "current")
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii") for name in names)
    return int(limit) - int(used)
