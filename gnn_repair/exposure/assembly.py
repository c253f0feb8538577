"""Mixtures and tails put together as one exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from gnn_repair.exposure.mixtures import Context, Mixture
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.probes import Tail
from gnn_repair.exposure.sites import Site
from gnn_repair.exposure.terms import mixture_of
from gnn_repair.exposure.value import Exposure
from gnn_repair.kernels import Pattern

CHUNK = 1 << 18
"""Terms whose contributions are formed at once where W differs by node: 40 MB for twenty classes,
where all terms of a large graph would fill the memory."""


@dataclass(frozen=True, eq=False)
class GroupTable:
    """One group's rows of contributions."""

    contributions: Tensor
    """[R, C] float64."""
    message_rows: Tensor
    """[R]."""
    sources: Tensor
    """[R]."""
    rows: Tensor
    """[T] the row of each of the group's terms."""


def table_of(mixture: Mixture, tail: Tail) -> GroupTable:
    """ℓ = ± W h, one row per state; one per term where W differs by recipient."""
    device, states = mixture.rows.device, mixture.states
    if tail.by_node:
        contributions = _by_term(mixture, tail.weight[:, :, mixture.block])
        rows = torch.arange(mixture.rows.numel(), dtype=torch.int32, device=device)
        return GroupTable(contributions * mixture.sign, mixture.rows, mixture.sources, rows)
    contributions = states.double() @ tail.weight[:, mixture.block].t() * mixture.sign
    numbers = torch.arange(states.shape[0], dtype=torch.int32, device=device)
    sources = numbers if mixture.state_sources is None else mixture.state_sources
    return GroupTable(contributions, numbers, sources, mixture.rows)


def _by_term(mixture: Mixture, weight: Tensor) -> Tensor:
    """W_v h_a for every term, [T, C]; weight [N, C, D]."""
    parts = []
    recipients = mixture.pattern.recipients
    for rows, nodes in zip(
        torch.split(mixture.rows, CHUNK), torch.split(recipients, CHUNK), strict=True
    ):
        states = mixture.states[rows].double()
        parts.append(torch.stack([(w[nodes] * states).sum(1) for w in weight.unbind(1)], 1))
    return torch.cat(parts)


@dataclass(frozen=True)
class Words:
    """What an exposure says of its model beside the mixture."""

    origin: str
    fixed: str
    root: bool
    embedding: Tensor | None
    called: str
    fingerprint: tuple[str, ...] = ()
    names: NodeNames = ONE_KIND
    graph_starts: Tensor | None = None
    """Where recipients are graphs: see ``Exposure.graph_starts``."""


def assemble(
    mixtures: Sequence[Mixture], tails: Mapping[Site, Tail], logits: Tensor, words: Words
) -> tuple[Exposure, Tensor | None]:
    """The exposure, and the place in it of each term of the mixtures one after the other.

    The place is None where terms kept their order (one group).
    """
    tables = [table_of(mixture, tails[mixture.site]) for mixture in mixtures]
    messages, state, starts = _contexts([mixture.context for mixture in mixtures])
    segments, order = _layout(mixtures)
    rows, alpha = _terms(mixtures, tables, order)
    coefficients = alpha.unsqueeze(0)
    contributions = torch.cat([table.contributions for table in tables]).unsqueeze(0)
    pattern = Pattern(segments[:: len(mixtures)], rows, contributions.shape[1])
    frozen = logits.double().unsqueeze(0)
    exposure = Exposure(
        groups=tuple(mixture.group for mixture in mixtures),
        recipients=torch.arange(logits.shape[0], device=logits.device),
        segments=segments,
        rows=rows,
        coefficients=coefficients,
        contributions=contributions,
        fixed_logits=frozen - mixture_of(pattern, coefficients, contributions),
        frozen_logits=frozen,
        state=_settled(state).unsqueeze(0),
        messages=_settled(messages).unsqueeze(0),
        message_rows=torch.cat([t.message_rows + s for t, s in zip(tables, starts, strict=True)]),
        sources=torch.cat([table.sources for table in tables]),
        root=words.root,
        origin=words.origin,
        fixed=words.fixed,
        embedding=None if words.embedding is None else words.embedding.unsqueeze(0),
        called=words.called,
        fingerprint=words.fingerprint,
        graph_starts=words.graph_starts,
        names=words.names,
    )
    return exposure, order


def _terms(
    mixtures: Sequence[Mixture], tables: Sequence[GroupTable], order: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Table rows and coefficients of all terms, in the exposure's order."""
    offsets = [0, *accumulate(table.contributions.shape[0] for table in tables)]
    rows = _joined([t.rows + o if o else t.rows for t, o in zip(tables, offsets, strict=False)])
    coefficients = _joined([mixture.coefficients for mixture in mixtures])
    return (rows, coefficients) if order is None else (rows[order], coefficients[order])


def _settled(table: Tensor) -> Tensor:
    """A table of values; of a trained one (a row that the model holds for every node) a copy,
    since it would go on learning."""
    holder = table._base if table._is_view() else table
    return table.detach().clone() if isinstance(holder, nn.Parameter) else table


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenated; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _layout(mixtures: Sequence[Mixture]) -> tuple[Tensor, Tensor | None]:
    """Segments [N·G + 1] and the order that brings concatenated terms into them."""
    lengths = torch.stack([mixture.indptr.diff() for mixture in mixtures], dim=1).view(-1)
    segments = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    if len(mixtures) == 1:
        return segments, None
    count = len(mixtures)
    keys = [m.pattern.recipients.long() * count + g for g, m in enumerate(mixtures)]
    return segments, torch.argsort(torch.cat(keys), stable=True)


def _contexts(contexts: Sequence[Context]) -> tuple[Tensor, Tensor, list[int]]:
    """All messages and states, and where each group's messages start.

    Groups that read different inputs get columns of their own, zero in the others' messages.
    """
    distinct = {id(context.messages): context for context in contexts}
    if contexts[0].shared:
        tables = [context.messages for context in distinct.values()]
        begins = dict(zip(distinct, accumulate((len(t) for t in tables), initial=0), strict=False))
        return _joined(tables), contexts[0].state, [begins[id(c.messages)] for c in contexts]
    widths = [context.state.shape[1] for context in distinct.values()]
    state = _joined([context.state for context in distinct.values()], dim=1)
    parts: list[Tensor] = []
    starts: dict[int, int] = {}
    left = 0
    for key, context in distinct.items():
        right = sum(widths) - left - context.messages.shape[1]
        starts[key] = sum(part.shape[0] for part in parts)
        alone = left == right == 0
        padded = context.messages if alone else pad(context.messages, (left, right))
        parts.append(padded)
        left += context.messages.shape[1]
    return _joined(parts), state, [starts[id(context.messages)] for context in contexts]
