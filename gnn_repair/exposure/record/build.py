"""From a record to an exposure: the final sums' terms, what follows them, and a certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.mixtures import Context, Mixture
from gnn_repair.exposure.record.analysis import Analysis, Parts, Site, parts_of, site_of
from gnn_repair.exposure.record.filters import polynomial
from gnn_repair.exposure.sites import Site as Place
from gnn_repair.exposure.tails.layout import Frame
from gnn_repair.exposure.value import Group


@dataclass(frozen=True, eq=False)
class Block:
    """Channels of a site that share their coefficients."""

    channels: Tensor
    """[D] places among the site's channels."""
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
    after: Tensor | None
    """[n] what recipients' sums are multiplied by afterwards; the coefficients include it."""


def frame_of_site(shape: tuple[int, ...], axis: int | None) -> Frame:
    """How a site's tensor shows recipients and channels."""
    if axis is None:
        return Frame((1, *shape), 0, shape)
    return Frame(shape, axis, shape)


def wanted_values(analysis: Analysis, site: Site, parts: Parts | None) -> set[int]:
    """The values that a site's terms are made of."""
    found = {after.value for after in site.after}
    found |= set() if site.base is None else {site.base}
    if parts is None:
        assert site.reduction.matrix is not None
        return found | {site.reduction.matrix, site.reduction.message}
    found |= {factor.value for factor in parts.factors}
    if parts.table is None:
        return found | {parts.whole}
    return found | {parts.table, parts.index}  # type: ignore[arg-type]


def blocks_of(
    site: Site, parts: Parts | None, shape: tuple[int, ...], kept: Mapping[int, Tensor]
) -> list[Block]:
    """The terms of one site, a block for every set of channels with coefficients of their own."""
    if site.powers is not None:
        (hop,) = blocks_of(replace(site, powers=None), parts, shape, kept)
        assert site.base is not None
        recipients, rows, alpha = polynomial(
            hop.recipients, hop.rows, hop.coefficients, site.reduction.size, site.powers
        )
        states = kept[site.base].flatten(1)
        channels = torch.arange(states.shape[1])
        return [Block(channels, recipients, rows, alpha, states, rows, False, None)]
    after = _after(site, kept)
    if parts is None:
        return _product_blocks(site, kept, after)
    reduction = site.reduction
    axes, recipients = reduction.axes, reduction.recipients
    assert recipients is not None
    recipients = recipients.reshape(-1)
    entries = recipients.numel()
    whole = parts.channels if parts.channels is not None else None
    sample = _first_entry([f.place for f in parts.factors], axes)
    width = prod(size for a, size in enumerate(shape) if a not in axes)
    last = width if shape[-1:] == () or len(shape) - 1 in axes else shape[-1]
    keys = torch.stack([torch.arange(width) // last, *sample])  # heads and stacks, then numbers
    _, block_of = keys.unique(dim=1, return_inverse=True)
    count = int(block_of.max()) + 1 if block_of.numel() else 0
    order = [int((block_of == b).nonzero()[0]) for b in range(count)]
    states, rows, by_entry = _states(parts, kept, axes, whole, entries)
    sources = reduction.sources
    if sources is None:
        sources = torch.full((entries,), -1)
    found = []
    for b in sorted(range(count), key=lambda b: order[b]):
        channels = (block_of == b).nonzero().view(-1)
        alpha = _coefficients(parts, kept, axes, order[b], entries)
        if reduction.mean:
            counts = torch.bincount(recipients, minlength=reduction.size).clamp(min=1)
            alpha = alpha / counts.to(alpha.dtype)[recipients]
        if after is not None:
            alpha = alpha * after.to(alpha.dtype)[recipients]
        found.append(
            Block(channels, recipients, sources.reshape(-1), alpha, states[:, channels], rows, by_entry, after)
        )
    return found


def _after(site: Site, kept: Mapping[int, Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for after in site.after:
        factor = kept[after.value].reshape(-1)[after.place]
        factor = 1 / factor if after.inverse else factor
        total = factor if total is None else total * factor
    return total


def _to_entries(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """[entries…, channels…]: entry axes first, without copying."""
    rest = [a for a in range(tensor.dim()) if a not in axes]
    return tensor.permute(*axes, *rest)


def _first_entry(places: Sequence[Tensor], axes: Sequence[int]) -> list[Tensor]:
    return [_to_entries(p, axes)[(0,) * len(axes)].reshape(-1) for p in places]


def _moved(parts: Parts, tensor: Tensor) -> Tensor:
    for push in parts.pushes:
        tensor = push(tensor)
    return tensor


def _states(
    parts: Parts, kept: Mapping[int, Tensor], axes: Sequence[int], channels: Tensor | None, entries: int
) -> tuple[Tensor, Tensor, bool]:
    """[M, R] in the message's channels, and the row of every entry."""
    if parts.table is None:
        message = _to_entries(_moved(parts, kept[parts.whole]), axes).reshape(entries, -1)
        return message, torch.arange(entries), True
    table = kept[parts.table].movedim(parts.axis, 0).flatten(1)
    assert channels is not None and isinstance(parts.index, int)
    table = table if table.dim() > 1 else table.unsqueeze(1)
    own = _to_entries(channels, axes)[(0,) * len(axes)].reshape(-1)
    index = kept[parts.index]
    return table[:, own], _entry_rows(parts, index, axes, entries), False


def _entry_rows(parts: Parts, index: Tensor, axes: Sequence[int], entries: int) -> Tensor:
    """The table's row behind every entry, in the order of the entries."""
    if index.dim() == 1 and len(axes) == 1:
        return index.reshape(-1)
    return index.reshape(-1)


def _coefficients(
    parts: Parts, kept: Mapping[int, Tensor], axes: Sequence[int], channel: int, entries: int
) -> Tensor:
    first = kept[parts.table if parts.table is not None else parts.whole]
    total = torch.full((entries,), parts.scale, dtype=first.dtype)
    for factor in parts.factors:
        shown = _to_entries(factor.place, axes)
        rest = shown.shape[len(axes) :]
        where = torch.unravel_index(torch.tensor(channel), rest) if rest else ()
        numbers = shown[(..., *[int(w) for w in where])].reshape(-1)
        values = kept[factor.value].reshape(-1)[numbers]
        total = total / values if factor.inverse else total * values
    return total


def _product_blocks(site: Site, kept: Mapping[int, Tensor], after: Tensor | None) -> list[Block]:
    reduction = site.reduction
    assert reduction.matrix is not None
    matrix, table = kept[reduction.matrix], kept[reduction.message]
    if reduction.turned:
        matrix, table = matrix.mT, table.mT
    if matrix.dim() == 2:
        return [_product_block(site, matrix, table, torch.arange(table.shape[1]), reduction.sources, after)]
    width = table.shape[2]
    return [
        _product_block(
            site, matrix[b], table[b], torch.arange(b * width, (b + 1) * width),
            None if reduction.sources is None else reduction.sources[b], after,
        )
        for b in range(matrix.shape[0])
    ]  # fmt: skip


def _product_block(
    site: Site, matrix: Tensor, table: Tensor, channels: Tensor, ids: Tensor | None, after: Tensor | None
) -> Block:
    if matrix.layout == torch.strided:
        places = matrix.nonzero()
        recipients, rows, values = places[:, 0], places[:, 1], matrix[places[:, 0], places[:, 1]]
    else:
        whole = matrix.to_sparse_coo() if matrix.layout != torch.sparse_coo else matrix
        (recipients, rows), values = whole._indices(), whole._values()
    nodes = rows if ids is None else ids.narrow(1, 0, 1).reshape(-1)[rows]
    alpha = values.to(table.dtype)
    alpha = alpha if after is None else alpha * after.to(alpha.dtype)[recipients]
    return Block(channels, recipients, nodes, alpha, table, rows, False, after)
