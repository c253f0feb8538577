"""Groups of terms put together as one exposure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.terms import mixture_of
from gnn_repair.exposure.value import Exposure, Group, HeldPart
from gnn_repair.kernels import Pattern, mix


@dataclass(frozen=True, eq=False)
class Context:
    """What repairs see of a message and of its recipient."""

    messages: Tensor
    """[M, d]."""
    state: Tensor
    """[N, d]."""
    shared: bool = False
    """Whether state and columns are those of all groups already."""


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
    entries: Tensor
    """[T] the entry of the block behind each term."""

    @property
    def pattern(self) -> Pattern:
        """Recipients × states."""
        return Pattern(self.indptr, self.rows, self.states.shape[0])

    @property
    def contributions(self) -> Tensor:
        """ℓ = ± W h, [M, C] float64."""
        return self.states.double() @ self.weight.t() * self.sign

    def value(self, coefficients: Tensor) -> Tensor:
        """Σ ± λ h for coefficients λ [T] ≥ 0, [N, D]."""
        return mix(self.pattern, coefficients.to(self.states.dtype) * self.sign, self.states)


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
    held: tuple[HeldPart, ...] = ()


def assemble(
    mixtures: Sequence[Mixture], logits: Tensor, words: Words
) -> tuple[Exposure, Tensor | None]:
    """The exposure, and the place in it of each term of the mixtures one after the other.

    The place is None where terms kept their order (one group).
    """
    messages, state, starts = _contexts([mixture.context for mixture in mixtures])
    segments, order = _layout(mixtures)
    rows, alpha = _terms(mixtures, order)
    coefficients = alpha.unsqueeze(0)
    contributions = torch.cat([mixture.contributions for mixture in mixtures]).unsqueeze(0)
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
        message_rows=torch.cat(
            [
                torch.arange(len(m.states), dtype=torch.int32, device=rows.device) + start
                for m, start in zip(mixtures, starts, strict=True)
            ]
        ),
        sources=torch.cat([mixture.senders for mixture in mixtures]),
        root=words.root,
        origin=words.origin,
        fixed=words.fixed,
        embedding=None if words.embedding is None else words.embedding.unsqueeze(0),
        called=words.called,
        fingerprint=words.fingerprint,
        graph_starts=words.graph_starts,
        names=words.names,
        held=words.held,
    )
    return exposure, order


def _terms(mixtures: Sequence[Mixture], order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Table rows and coefficients of all terms, in the exposure's order."""
    offsets = [0, *accumulate(len(mixture.states) for mixture in mixtures)]
    rows = _joined([m.rows + o if o else m.rows for m, o in zip(mixtures, offsets, strict=False)])
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
    distinct = {_key(context.messages): context for context in contexts}
    if contexts[0].shared:
        tables = [context.messages for context in distinct.values()]
        begins = dict(zip(distinct, accumulate((len(t) for t in tables), initial=0), strict=False))
        return _joined(tables), contexts[0].state, [begins[_key(c.messages)] for c in contexts]
    widths = [context.state.shape[1] for context in distinct.values()]
    state = _joined([context.state for context in distinct.values()], dim=1)
    parts: list[Tensor] = []
    starts: dict[Any, int] = {}
    left = 0
    for key, context in distinct.items():
        right = sum(widths) - left - context.messages.shape[1]
        starts[key] = sum(part.shape[0] for part in parts)
        alone = left == right == 0
        padded = context.messages if alone else pad(context.messages, (left, right))
        parts.append(padded)
        left += context.messages.shape[1]
    return _joined(parts), state, [starts[_key(context.messages)] for context in contexts]


def with_shared_contexts(mixtures: Sequence[Mixture]) -> list[Mixture]:
    """All groups' contexts over the same columns: one block for every matrix that is read.

    A recipient stands in the columns of its own input, a message in those of its sender's; they
    are the same where both are of one type. Other columns are zero.
    """
    contexts = [mixture.context for mixture in mixtures]
    blocks = {_key(c.state): c.state for c in contexts} | {
        _key(c.messages): c.messages for c in contexts
    }
    starts: dict[Any, int] = {}
    width = 0
    for key, matrix in blocks.items():
        starts[key], width = width, width + matrix.shape[1]
    states = {_key(c.state): c.state for c in contexts}
    state = sum(_placed(matrix, starts[key], width) for key, matrix in states.items())
    assert isinstance(state, Tensor)
    messages = {
        key: _placed(matrix, starts[key], width)
        for key, matrix in {_key(c.messages): c.messages for c in contexts}.items()
    }
    shared = {key: Context(table, state, shared=True) for key, table in messages.items()}
    return [replace(m, context=shared[_key(m.context.messages)]) for m in mixtures]


def _key(matrix: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """The same for views of the same numbers, whichever object they are."""
    return matrix.data_ptr(), matrix.shape, matrix.stride()


def _placed(matrix: Tensor, start: int, width: int) -> Tensor:
    return pad(matrix, (start, width - start - matrix.shape[1]))
