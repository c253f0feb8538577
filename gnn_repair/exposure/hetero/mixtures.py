"""The groups of a propagate in a graph of several node types: one a relation and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gnn_repair.exposure.hetero.placing import unique_names
from gnn_repair.exposure.mixtures import (
    Context,
    Mixture,
    Split,
    Terms,
    aggregator_factor,
    mean_message,
    mixtures_of,
)
from gnn_repair.exposure.sites import Call, Part
from gnn_repair.exposure.value import Group


def mixtures_of_parts(call: Call, split: Split) -> list[Mixture]:
    """The groups of one propagate: one per relation, block (head), kind and sign."""
    assert call.placement is not None
    return [mixture for part in call.placement.parts for mixture in _mixtures_of(call, split, part)]


def _mixtures_of(call: Call, split: Split, part: Part) -> list[Mixture]:
    assert call.placement is not None
    sources, recipients, _ = call.entries
    factor, factor_text = aggregator_factor(call, recipients)
    coefficients = split.coefficients.reshape(sources.numel(), -1)
    coefficients = coefficients if factor is None else coefficients * factor.unsqueeze(1)
    chosen = slice(None) if part.entries is None else part.entries
    of_senders = part.states or slice(0, None)
    rows = call.placement.rows or slice(0, None)
    states = split.states[chosen if split.by_entry else of_senders]
    context = _context(call, split, part, states)
    kinds = [None] if split.kinds is None else torch.unique(split.kinds[chosen]).tolist()
    found: list[Mixture] = []
    for block in range(states.shape[1]):
        for kind in kinds:
            alpha = coefficients[:, block if coefficients.shape[1] > 1 else 0]
            alpha = alpha if kind is None else alpha * (split.kinds == kind)
            terms = Terms(
                recipients[chosen] - rows.start,
                sources[chosen] - of_senders.start,
                alpha[chosen],
                states[:, block],
                context,
                split.by_entry,
            )
            name = part.name if len(kinds) == 1 else f"{part.name} relation {kind}"
            name = f"{name} head {block}" if states.shape[1] > 1 else name
            rule = f"{call.kind}: {split.rule}"
            group = Group(name, rule, split.coefficients_from + factor_text)
            made = mixtures_of(call.site, block, group, terms)
            found += [_numbered(mixture, part) for mixture in made]
    return found


def _numbered(mixture: Mixture, part: Part) -> Mixture:
    """With senders numbered through all types, and entries through the whole propagate."""
    entries = mixture.entries
    if part.entries is not None:
        entries = part.entries if entries is None else part.entries[entries]
    behind = mixture.state_sources
    if behind is None:
        count, device = mixture.states.shape[0], mixture.states.device
        behind = torch.arange(count, dtype=torch.int32, device=device)
    sources = mixture.sources + part.shift
    return replace(mixture, entries=entries, sources=sources, state_sources=behind + part.shift)


# What repairs see --------------------------------------------------------------------------------


def _context(call: Call, split: Split, part: Part, states: Tensor) -> Context:
    """Senders and recipients as the convolution reads them, each in a space of its own."""
    assert call.placement is not None
    source, recipient = _inputs(call, part)
    rows = call.placement.rows or slice(0, None)
    count = call.blocks[rows].shape[0]
    messages = states.flatten(1)
    if not split.by_entry and _is_matrix(source, messages.shape[0]):
        messages = source
    if not _is_matrix(recipient, count):
        recipient = mean_message(call, split)[rows].flatten(1)
    return Context(messages, recipient)


def _inputs(call: Call, part: Part) -> tuple[Any, Any]:
    given = call.given
    if isinstance(given, Mapping):
        assert call.placement is not None
        return given.get(part.source_type), given.get(call.placement.recipient_type)
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    if part.states is not None and isinstance(given, Tensor) and given.dim() == 2:
        assert call.placement is not None and call.placement.rows is not None
        return given[part.states], given[call.placement.rows]
    return given, given


def _is_matrix(value: Any, rows: int) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.dim() == 2
        and value.shape[0] == rows
    )


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


def with_unique_names(mixtures: Sequence[Mixture]) -> list[Mixture]:
    """Groups that share a relation's name say which convolution they are of."""
    modules = [_outer(mixture.site.name) for mixture in mixtures]
    names = unique_names([mixture.group.name for mixture in mixtures], modules)
    return [
        replace(mixture, group=replace(mixture.group, name=name))
        for mixture, name in zip(mixtures, names, strict=True)
    ]


def _outer(name: str) -> str:
    """A convolution's name without the relation's at its end: ``conv2`` or ``convs.1``."""
    parts = [part for part in name.split(".") if "__" not in part]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "convs" else parts)
