"""What a record says of links: where their ends are looked up, and what else reads embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.record.analysis import Analysis, FinalSite, gathered
from gnn_repair.exposure.record.recorder import GATHERS, LINKS, RecordedStep, Ref


@dataclass(frozen=True, eq=False)
class Lookup:
    """An operation that looks up rows with the links themselves."""

    step: int
    table: int
    axis: int
    """The result's axis that counts rows; with both ends in one the first of two."""
    ends: tuple[int, ...]
    """Which ends its rows are of, 0: source, 1: target; of both in the order that they stand in."""
    links: Tensor
    """[n] the number of the link behind every row of one end."""
    along: int | None = None
    """With both ends in one: the result's axis that tells them apart; None: one after the other."""

    def part(self, out: Tensor, place: int) -> Tensor:
        """The rows of one end."""
        if len(self.ends) == 1:
            return out
        return (
            out.chunk(2, self.axis)[place] if self.along is None else out.select(self.along, place)
        )

    def rebuilt(self, out: Tensor, end: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The result with other rows for one end."""
        if len(self.ends) == 1:
            return change(out)
        several = [self.part(out, place).clone() for place in (0, 1)]
        place = self.ends.index(end)
        several[place] = change(several[place])
        if self.along is None:
            return torch.stack(several, self.axis).view(out.shape)
        return torch.stack(several, self.along)


def lookups_of(analysis: Analysis, count: int) -> dict[int, Lookup]:
    """By operation: the lookups with numbers of the L links."""
    found = {}
    for place, step in enumerate(analysis.record.steps):
        lookup = _lookup(analysis, place, step, count) if step.name in GATHERS else None
        if lookup is not None:
            found[place] = lookup
    return found


def _lookup(analysis: Analysis, place: int, step: RecordedStep, count: int) -> Lookup | None:
    known = gathered(analysis, step)
    if known is None or not analysis.value(known[0]).floating:
        return None
    table, axis, index = known
    rows = analysis.value(index).rows
    if len(rows) != 1 or not rows[0].ids.numel() or bool((rows[0].ids < LINKS).any()):
        return None
    ids = rows[0].ids - LINKS
    end, link = ids // count, ids % count
    if bool((end == end.reshape(-1)[0]).all()):
        alone = ids.dim() == 1 and link.unique().numel() == link.numel()
        return Lookup(place, table, axis, (int(end[0]),), link) if alone else None
    everyone = torch.arange(count, device=ids.device)
    split = ids.view(2, count) if ids.shape == (2 * count,) else ids
    for along in range(2) if split.dim() == 2 else ():
        parts = split.movedim(along, 0)
        if parts.shape == (2, count) and bool((parts % count == everyone).all()):
            ends = (int(parts[0, 0]) // count, int(parts[1, 0]) // count)
            if bool((parts // count == torch.tensor(ends, device=ids.device)[:, None]).all()):
                where = None if ids.dim() == 1 else axis + along
                return Lookup(place, table, axis, ends, everyone, where)
    return None


@dataclass(frozen=True, eq=False)
class Decoding:
    """From the sums of an encoder to the logits of links with one end reweighted."""

    varied: tuple[Lookup, ...]
    """The lookups of the varied end, alone or with the other one."""
    still: tuple[Lookup, ...]
    """The lookups of the other end alone, in tables that the sums reach."""
    other: frozenset[int]
    """All lookups of the other end alone: it stays as it is."""
    elsewhere: dict[int, frozenset[int]]
    """By operation: embeddings that it reads otherwise than by the ends of links."""
    linked: frozenset[int]
    """Operations on rows of links."""
    across: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    """By operation that mixes the rows of different links, as a run shows: what it gives."""

    @property
    def second_ways(self) -> set[int]:
        """What is held: all that reads embeddings or links otherwise than end by end."""
        return {*self.elsewhere, *self.across}


def decoding_of(
    analysis: Analysis, sites: Sequence[FinalSite], lookups: Mapping[int, Lookup], end: int
) -> Decoding:
    """Follow the sums node by node to the lookups, and from there link by link to the logits."""
    by_node = {site.value for site in sites if not site.readers}
    read_by = {place: site.value for site in sites for place in site.readers}
    hops = set().union(*(site.hops | {site.step} for site in sites))
    linked, of_links = set[int](), set[int]()
    elsewhere: dict[int, frozenset[int]] = {}
    varied, still = list[Lookup](), list[Lookup]()
    for place, step in enumerate(analysis.record.steps):
        reads, made = set(step.reads), set(step.outs)
        tables = reads & by_node | ({read_by[place]} if place in read_by else set())
        if place in hops or not (tables or reads & linked):
            continue
        lookup = lookups.get(place)
        if lookup is not None and tables and end in lookup.ends:
            varied.append(lookup)
            linked |= made
        elif lookup is not None and tables:
            still.append(lookup)
        elif not reads & linked and not step.mixes and _is_by_node(analysis, step):
            by_node |= made
        elif place in analysis.needed:
            if tables:
                elsewhere[place] = frozenset(tables)
            if reads & linked:
                linked |= made
                of_links.add(place)
    other = frozenset(place for place, one in lookups.items() if end not in one.ends)
    return Decoding(tuple(varied), tuple(still), other, elsewhere, frozenset(of_links))


def _is_by_node(analysis: Analysis, step: RecordedStep) -> bool:
    """Whether every row that an operation makes is of one node."""
    return all(len(analysis.value(out).rows) == 1 for out in step.outs)


def with_others(shown: Any, given: Any, others: Mapping[int, Tensor]) -> Any:
    """An operation's arguments with other tensors in the place of some values.

    Args:
        shown: the recorded arguments.
        given: those of this run.
        others: what to put for values, by number.
    """
    if isinstance(shown, Ref):
        return others.get(shown.number, given)
    if isinstance(shown, list | tuple):
        return [with_others(s, g, others) for s, g in zip(shown, given, strict=True)]
    if isinstance(shown, dict):
        return {key: with_others(value, given[key], others) for key, value in shown.items()}
    return given
