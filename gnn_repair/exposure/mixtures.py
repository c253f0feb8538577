"""One site's value as nonnegative mixtures: value[v] = Σ_t ± α_t h[row_t]."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.sites import Call, Site
from gnn_repair.exposure.value import Group
from gnn_repair.kernels import Pattern, mix


class NoSumError(ExposureRefused):
    """An aggregator that gives no weighted sum of messages."""


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
class Split:
    """What a rule says of one propagate: message of entry t, block b = coefficient · state.

    T entries in the convolution's own order, B blocks (heads), M = N states (or T, one per entry).
    """

    coefficients: Tensor
    """[T] or [T, B]; signs allowed; without the aggregator's own factor."""
    states: Tensor
    """[M, B, D]."""
    rule: str
    """Such as ``α = edge weight, h = projected input``."""
    coefficients_from: str
    by_entry: bool = False
    """Whether ``states`` has a row per entry instead of one per source node."""
    own_states: Tensor | None = None
    """[N, B, D]: what a node would send to itself, where states go by entry."""
    kinds: Tensor | None = None
    """[T] a further division of the entries into groups, such as relations."""
    argument: str = ""
    """The argument of propagate that the states are, where messages are coefficient × it."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """One group of terms, sorted by recipient."""

    site: Site
    block: int
    group: Group
    indptr: Tensor
    """[N + 1] int64."""
    rows: Tensor
    """[T] int32: the state behind each term."""
    sources: Tensor
    """[T] int32."""
    coefficients: Tensor
    """[T] positive."""
    sign: int
    states: Tensor
    """[M, D]: h."""
    state_sources: Tensor | None
    """[M] int32 node behind each state; None: state i is node i's."""
    context: Context
    entries: Tensor | None = None
    """[T] the entry of the propagate behind each term; None: in order."""
    by_value: bool = False
    """Whether terms are no entries of the site's propagate, so that its value is replaced."""
    held: Tensor | None = None
    """[N, B, D] what the site holds beside all of its groups, and no coefficient moves; with one of
    them, else None."""
    block_of: Any = None
    silenced: tuple[Site, ...] = ()
    """Sites whose part this group has taken over: nothing passes there while it is replaced."""

    @property
    def pattern(self) -> Pattern:
        """Recipients × states."""
        return Pattern(self.indptr, self.rows, self.states.shape[0])

    @property
    def reach(self) -> float:
        """A bound on what admissible coefficients can make of the site: largest mass × state."""
        sums = self.coefficients.cumsum(0, dtype=torch.float64)
        sums = torch.cat([sums.new_zeros(1), sums])
        mass = sums[self.indptr[1:]] - sums[self.indptr[:-1]]
        return float(mass.max()) * float(self.states.abs().max())

    def value(self, coefficients: Tensor) -> Tensor:
        """Σ ± λ h for coefficients λ [T] ≥ 0: this group's part of the site's block, [N, D]."""
        return mix(self.pattern, coefficients.to(self.states.dtype) * self.sign, self.states)


@dataclass(frozen=True, eq=False)
class Terms:
    """Candidate terms of one group in any order, signs still in the coefficients."""

    recipients: Tensor
    """[T]."""
    sources: Tensor
    """[T]."""
    coefficients: Tensor
    """[T]."""
    states: Tensor
    """[M, D]."""
    context: Context
    by_entry: bool = False
    """Whether state t belongs to entry t instead of to node t."""


def mixtures_of(site: Site, block: int, group: Group, terms: Terms) -> list[Mixture]:
    """One mixture per sign of the coefficients; entries with coefficient 0 are no terms."""
    found = []
    coefficients = terms.coefficients.to(terms.states.dtype)
    signed = bool((coefficients < 0).any())
    for sign in (1, -1) if signed else (1,):
        kept = coefficients * sign > 0
        entries = None if bool(kept.all()) else kept.nonzero().view(-1)
        if entries is None or entries.numel():
            named = _signed_group(group, sign) if signed else group
            found.append(_of_one_sign(site, block, named, terms, entries, sign))
    if not found:  # all of them are 0: the group is there, and nobody has terms in it
        none = torch.empty(0, dtype=torch.long, device=coefficients.device)
        found.append(_of_one_sign(site, block, group, terms, none, 1))
    return found


def _of_one_sign(
    site: Site, block: int, group: Group, terms: Terms, entries: Tensor | None, sign: int
) -> Mixture:
    order, indptr = _by_recipient(terms.recipients, entries, terms.context.state.shape[0])
    sources = _pick(terms.sources, order).int()
    coefficients = _pick(terms.coefficients, order).to(terms.states.dtype)
    return Mixture(
        site=site,
        block=block,
        group=group,
        indptr=indptr,
        rows=_numbers(order, sources) if terms.by_entry else sources,
        sources=sources,
        coefficients=coefficients if sign > 0 else -coefficients,
        sign=sign,
        states=terms.states.contiguous(),
        state_sources=terms.sources.int() if terms.by_entry else None,
        context=terms.context,
        entries=order,
    )


def _pick(values: Tensor, order: Tensor | None) -> Tensor:
    return values if order is None else values[order]


def _numbers(order: Tensor | None, like: Tensor) -> Tensor:
    if order is not None:
        return order.int()
    return torch.arange(like.numel(), dtype=torch.int32, device=like.device)


def _signed_group(group: Group, sign: int) -> Group:
    mark = "+" if sign > 0 else "−"
    return replace(
        group,
        name=f"{group.name} {mark}",
        rule=f"{group.rule}; |α| of the {mark} entries, sign in ℓ",
    )


def _by_recipient(
    recipients: Tensor, entries: Tensor | None, num_nodes: int
) -> tuple[Tensor | None, Tensor]:
    """Order of the kept entries by recipient (None: already in order) and where rows start."""
    kept = _pick(recipients, entries)
    counts = torch.bincount(kept, minlength=num_nodes)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    if bool((kept.diff() >= 0).all()):
        return entries, indptr
    order = torch.argsort(kept, stable=True)
    return (order if entries is None else entries[order]), indptr


def digest_of_terms(mixtures: Sequence[Mixture]) -> bytes:
    """What tells the terms of one graph, with their coefficients, from those of another."""
    digest = hashlib.blake2b(digest_size=16)
    for mixture in mixtures:
        digest.update(f"{mixture.site} {mixture.block} {mixture.sign}".encode())
        for values in (mixture.indptr, mixture.sources, mixture.coefficients):
            digest.update(values.detach().cpu().contiguous().numpy().data)
    return digest.digest()


def is_sum_or_mean(module: Any) -> bool:
    """Whether an aggregator gives a weighted sum of messages."""
    return module is None or isinstance(module, SumAggregation | MeanAggregation)


def aggregator_factor(call: Call, recipients: Tensor) -> tuple[Tensor | None, str]:
    """What the aggregator multiplies each message by: None for a sum, 1/deg for a mean."""
    module: Any = call.conv.aggr_module
    if module is None or isinstance(module, SumAggregation):
        return None, ""
    if isinstance(module, MeanAggregation):
        counts = torch.bincount(recipients, minlength=call.num_nodes)
        return 1 / counts.clamp(min=1).to(call.value.dtype)[recipients], " / degree"
    raise NoSumError(f"{call.title} aggregates by {_why_no_sum(call.conv)}")


def _why_no_sum(conv: Any) -> str:
    """What an aggregator is and why its result is no weighted sum of messages, in words."""
    parts = parts_of_aggregator(conv.aggr_module)
    only = "only sum and mean aggregators can be exposed"
    if len(parts) < 2:
        return f"{conv.aggr}, which is not a weighted sum of messages; {only}"
    listed = ", ".join(name for name, _ in parts)
    others = [name for name, module in parts if not is_sum_or_mean(module)]
    if others:
        verb = "are no weighted sums" if len(others) > 1 else "is no weighted sum"
        return f"{listed} side by side, and {' and '.join(others)} {verb} of messages; {only}"
    return (
        f"{listed} side by side, which gives a message several weights at once; write it as one "
        "convolution for each aggregator, their outputs concatenated"
    )


def parts_of_aggregator(module: Any) -> list[tuple[str, Any]]:
    """Name and module of every aggregator inside one, such as those of a MultiAggregation."""
    inner = getattr(module, "aggrs", None)
    if inner is None and isinstance(getattr(module, "aggr", None), nn.Module):
        return parts_of_aggregator(module.aggr)
    if inner is None:
        name = type(module).__name__.removesuffix("Aggregation").lower()
        return [(name, module)]
    return [part for one in inner for part in parts_of_aggregator(one)]


def mixtures_of_split(call: Call, split: Split, names: Sequence[str]) -> list[Mixture]:
    """The groups of one propagate: one per block (head), kind (relation) and sign."""
    sources, recipients, _ = call.entries
    factor, factor_text = aggregator_factor(call, recipients)
    _check_senders(call, split)
    context = context_of(call, split)
    kinds = [None] if split.kinds is None else torch.unique(split.kinds).tolist()
    found: list[Mixture] = []
    if split.states.shape[1] != len(names):
        raise NoSumError(f"{call.title} gives {len(names)} aggregates of one message")
    for block, name in enumerate(names):
        coefficients = (
            split.coefficients if split.coefficients.dim() == 1 else (split.coefficients[:, block])
        )
        coefficients = coefficients if factor is None else coefficients * factor
        for kind in kinds:
            of_kind = coefficients if kind is None else coefficients * (split.kinds == kind)
            rule = f"{call.kind}: {split.rule}"
            group = Group(
                name if kind is None else f"{name} relation {kind}",
                rule,
                split.coefficients_from + factor_text,
            )
            states = split.states[:, block]
            terms = Terms(recipients, sources, of_kind, states, context, split.by_entry)
            found += mixtures_of(call.site, block, group, terms)
    return found


def _check_senders(call: Call, split: Split) -> None:
    pairs = [value for value in call.arguments.values() if isinstance(value, tuple | list)]
    counts = [pair[0].shape[0] for pair in pairs if isinstance(pair[0], Tensor)]
    counts += [] if split.by_entry else [split.states.shape[0]]
    for count in counts:
        if count != call.num_nodes:
            raise ExposureRefused(
                f"{call.title} receives from {count} nodes but the logits are about "
                f"{call.num_nodes}; pass a graph of several node types as HeteroData, with "
                "node_type= for the one that is classified"
            )


def context_of(call: Call, split: Split) -> Context:
    """What repairs see of a propagate's messages."""
    if not split.by_entry:
        return _node_context(call, split.states.flatten(1))
    own = split.own_states
    if own is None:
        own = mean_message(call, split)
    return Context(split.states.flatten(1), own.flatten(1))


def _node_context(call: Call, states: Tensor) -> Context:
    """The convolution's own input where it is a float matrix, else what it propagates."""
    pair = call.given if isinstance(call.given, tuple | list) else (call.given, call.given)
    usable = all(
        isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2
        and x.shape[0] == call.num_nodes
        for x in pair
    ) and pair[0].shape == pair[-1].shape  # fmt: skip
    return Context(pair[0], pair[-1]) if usable else Context(states, states)


def mean_message(call: Call, split: Split) -> Tensor:
    """A node's average incoming message, Σ |α| h / Σ |α|, [N, B, D]."""
    sources, recipients, _ = call.entries
    size = call.num_nodes
    weights = split.coefficients.abs().reshape(recipients.numel(), -1, 1)
    states = split.states if split.by_entry else split.states[sources]
    total = split.states.new_zeros(size, *split.states.shape[1:])
    total.index_add_(0, recipients, weights * states)
    mass = weights.new_zeros(size, *weights.shape[1:]).index_add_(0, recipients, weights)
    return total / mass.clamp(min=torch.finfo(mass.dtype).tiny)
