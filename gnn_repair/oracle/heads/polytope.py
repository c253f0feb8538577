# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""A node's polytope of aggregates, with linear beginnings of the head folded in, and its parts.

Halving the edge between two corners of a group's simplex replaces one of them by the middle, so a
part has as many corners as the whole, and a base whose messages are the corners bounds it like any
node: all intervals shrink, whatever the head. With few terms this ends far sooner than signs of
units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.heads.head import without
from gnn_repair.exposure.heads.operations import (
    ROUNDING,
    Affine,
    HeadGraph,
    Linear,
    Lowered,
    Scale,
    Select,
    lower,
)
from gnn_repair.exposure.value import Exposure
from gnn_repair.kernel_cache import cached_njit
from gnn_repair.oracle.heads.proof import Halving
from gnn_repair.oracle.problems import Floats, Integers


@dataclass(frozen=True, eq=False)
class Base:
    """x_v(λ) = o_v + Σ λ h, and the lowered head that begins at x.

    Operations at the beginning that are linear and the same for all nodes are folded into the
    contributions, so that the first pre-activations are the mixture itself.
    """

    lowered: Lowered
    widths: list[int]
    """Of every value of the lowered head."""
    num_classes: int
    """C."""
    folded: tuple[Linear, ...]
    """What was folded, in order."""
    nodes: Integers
    """[n]: the graph node of each recipient."""
    ends: Integers
    """[n, G + 1]: where the terms of each recipient and group begin and end."""
    mass: Floats
    """[n, G]."""
    rows: NDArray[np.int32]
    """[T]."""
    sources: NDArray[np.int32]
    """[R]."""
    table: Floats
    """[R, D]: h."""
    fixed: Floats
    """[n, D]: o."""
    low: Floats
    """[n, D]: the smallest x, channel by channel."""
    high: Floats
    """[n, D]: the largest."""
    size: Floats
    """[n, D]: |o| + Σ_g m_g max |h|, which no sum that makes up x exceeds."""
    slack: Floats
    """[n, D]: what x may be off by."""

    @property
    def graph(self) -> HeadGraph:
        """The lowered head."""
        return self.lowered.graph

    @property
    def width(self) -> int:
        """D."""
        return self.table.shape[1]


def base_of(exposure: Exposure, position: Integers | None = None) -> Base:
    """The base of an exposure, with the extremes of the recipients at ``position`` (or all)."""
    aggregate = exposure.aggregate
    assert exposure.head is not None
    lowered, folded = _fold(lower(exposure.head))
    recipients = aggregate.recipients.cpu()
    groups, count = aggregate.num_groups, len(recipients)
    segments = aggregate.segments.cpu().numpy()
    ends = segments[np.arange(count)[:, None] * groups + np.arange(groups + 1)]
    mass, rows = aggregate.mass[0].cpu().numpy(), aggregate.rows.cpu().numpy()
    chosen = np.arange(count) if position is None else np.unique(position)
    at, used = torch.from_numpy(chosen), _used(ends[chosen], rows, aggregate.contributions.shape[1])
    table, gross, fixed, weight = _beginning(aggregate, folded, at, used)
    messages = _spread(table, used, aggregate.contributions.shape[1])
    sums = _spread(gross, used, len(messages)) if folded else messages
    offset, magnitude = (_spread(part, at, count) for part in (fixed, weight))
    low, high, size = (np.zeros((count, messages.shape[1])) for _ in range(3))
    low[chosen], high[chosen], size[chosen] = _extremes(
        ends[chosen], mass[chosen], rows, messages, sums
    )
    size += magnitude
    longest = max(messages.shape[1], aggregate.contributions.shape[2]) + aggregate.num_groups
    slack = ROUNDING * longest * size
    return Base(
        lowered=lowered,
        widths=lowered.graph.widths(),
        num_classes=exposure.frozen_logits.shape[2],
        folded=folded,
        nodes=recipients.numpy(),
        ends=ends,
        mass=mass,
        rows=rows,
        sources=aggregate.sources.cpu().numpy(),
        table=messages,
        fixed=offset,
        low=low + offset - slack,
        high=high + offset + slack,
        size=size,
        slack=slack,
    )


def _beginning(
    aggregate: Exposure, folded: Sequence[Linear], at: Tensor, used: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h of the rows ``used`` and o of the recipients ``at`` after what is folded, each with the
    largest sums behind it: h, its sums, o, its sums."""
    nodes = aggregate.recipients.cpu()[at]
    table = aggregate.contributions[0].cpu()[used].double()
    fixed = aggregate.fixed_logits[0].cpu()[nodes].double()
    gross, weight = table.abs(), fixed.abs()
    for operation in folded:
        weight = operation.size([weight], nodes)
        gross = operation.linear([gross], nodes, "abs")
        fixed = operation.evaluate([fixed], nodes)
        table = operation.linear([table], nodes)
    return table, gross, fixed, weight


def _used(ends: Integers, rows: NDArray[np.int32], count: int) -> Tensor:
    """The rows of contributions that the terms of these recipients name."""
    named = np.zeros(count, bool)
    for first, last in zip(ends[:, 0].tolist(), ends[:, -1].tolist(), strict=True):
        named[rows[first:last]] = True
    return torch.from_numpy(np.flatnonzero(named))


def _spread(part: Tensor, index: Tensor, count: int) -> Floats:
    """Rows at their places among ``count``; the others, which nobody asks for, are zero."""
    if len(index) == count:
        return np.ascontiguousarray(part.numpy())
    full = torch.zeros(count, part.shape[1], dtype=torch.float64)
    full[index] = part
    return full.numpy()


def _extremes(
    ends: Integers, mass: Floats, rows: NDArray[np.int32], table: Floats, gross: Floats
) -> tuple[Floats, Floats, Floats]:
    """Smallest and largest Σ λ h, and what the sums behind them come to at most."""
    shape = (len(ends), table.shape[1])
    low, high, size = np.empty(shape), np.empty(shape), np.empty(shape)
    extremes(ends, mass, rows, table, low, high, size)
    if gross is not table:  # what was summed may be far larger than the sums
        extremes(ends, mass, rows, gross, np.empty(shape), np.empty(shape), size)
    return low, high, size


def _fold(lowered: Lowered) -> tuple[Lowered, tuple[Linear, ...]]:
    """Take operations off the beginning while one alone reads the aggregate and is linear."""
    operations, folded, widths = (
        list(lowered.graph.operations),
        list[Linear](),
        [lowered.graph.width],
    )
    while operations and not lowered.reason and len(operations) > 1:
        readers = [k for k, op in enumerate(operations) if 0 in op.inputs]
        first = operations[readers[0]] if len(readers) == 1 else None
        shared = isinstance(first, Scale) and first.factor.dim() == 1
        if not (shared or isinstance(first, Affine | Select)):
            break
        assert isinstance(first, Linear)
        folded.append(first)
        widths.append(first.width(widths[-1:]))
        operations = without(operations, readers[0])
    graph = HeadGraph(widths[-1], tuple(operations))
    scale = lowered.scale if lowered.scale is None else lowered.scale - len(folded)
    return replace(lowered, graph=graph, scale=scale), tuple(folded)


FEW = 8
"""Terms up to which a polytope is halved at edges rather than by signs of units: a hundred times
fewer cases with 4 terms after two layers of units, as many as by signs with 10 after one."""
DEEPEST = 64
"""Halvings of one part at most: a pole at a corner, which no halving excludes, ends here."""


def free_terms(base: Base, position: int) -> int:
    """How many terms of a recipient can change its aggregate: a group of equal messages cannot."""
    ends = base.ends[position].tolist()
    groups = [base.table[base.rows[first:last]] for first, last in pairwise(ends)]
    return sum(len(group) for group in groups if len(group) and (group != group[0]).any())


def subdivided(base: Base, position: Integers, halvings: Sequence[tuple[Halving, ...]]) -> Base:
    """A base whose recipients are parts of those at ``position``, their corners its messages."""
    ends = base.ends[position]
    counts = ends[:, -1] - ends[:, 0]
    begins = np.append(0, np.cumsum(counts))
    terms = np.repeat(ends[:, 0] - begins[:-1], counts) + np.arange(begins[-1])
    table = base.table[base.rows[terms]]
    halve(begins, *_flat(halvings), table)
    local, mass = ends - ends[:, :1] + begins[:-1, None], base.mass[position]
    rows = np.arange(len(table), dtype=np.int32)
    fixed, size = base.fixed[position], base.size[position]
    low, high = np.empty_like(fixed), np.empty_like(fixed)
    extremes(local, mass, rows, table, low, high, np.empty_like(fixed))
    slack = base.slack[position]  # a corner is off by no more than what it is a mean of
    return replace(
        base, nodes=base.nodes[position], ends=local, mass=mass, rows=rows,
        sources=base.sources[base.rows[terms]], table=table, fixed=fixed,
        low=low + fixed - slack, high=high + fixed + slack, size=size,
        slack=slack,
    )  # fmt: skip


def _flat(halvings: Sequence[tuple[Halving, ...]]) -> tuple[Integers, Integers]:
    """Where each one's halvings end, and all of them one after another, [H, 3]."""
    counts = [len(own) for own in halvings]
    flat = [halving for own in halvings for halving in own]
    return np.append(0, np.cumsum(counts, dtype=np.int64)), np.array(flat, np.int64).reshape(-1, 3)


def original_shares(halvings: tuple[Halving, ...], shares: Floats) -> Floats:
    """λ [K] over the node's terms that λ over the corners of a part stands for."""
    corners = np.eye(len(shares))
    halve(np.array([0, len(shares)]), *_flat([halvings]), corners)
    return np.asarray(shares @ corners)


# Kernels over a node's terms ----------------------------------------------------------------------
#
# ``ends`` [B, G + 1] says where the terms of each node and group begin and end, ``mass`` [B, G]
# what each group weighs; ``rows`` [T] and ``table`` [R, D] are the exposure's rows and
# contributions. The terms of a batch of nodes have *places* one after another, node b's from
# ``begins[b]`` on; ``lifts`` [places, E] are further channels they have there. A linear function is
# largest at a vertex, one term per group: K·D comparisons or K·R·D multiply-adds for each node.

_REDUCE = {"reassoc", "contract", "nsz"}


@cached_njit(nogil=True)
def extremes(ends, mass, rows, table, low, high, size):
    """Smallest, largest and largest absolute Σ_g m_g h over the vertices, channel by channel."""
    width = table.shape[1]
    least, most = np.empty(width), np.empty(width)
    for b in range(len(ends)):
        low[b], high[b], size[b] = 0.0, 0.0, 0.0
        for g in range(mass.shape[1]):
            if ends[b, g] == ends[b, g + 1]:
                continue
            message = table[rows[ends[b, g]]]
            for d in range(width):
                least[d] = most[d] = message[d]
            for t in range(ends[b, g] + 1, ends[b, g + 1]):
                message = table[rows[t]]
                for d in range(width):
                    value = message[d]
                    least[d] = value if value < least[d] else least[d]
                    most[d] = value if value > most[d] else most[d]
            m = mass[b, g]
            for d in range(width):
                low[b, d] += m * least[d]
                high[b, d] += m * most[d]
                size[b, d] += m * max(abs(least[d]), abs(most[d]))


@cached_njit(nogil=True, fastmath=_REDUCE)
def scores(ends, begins, rows, table, lifts, functions, lifted, out):
    """out[k, r] = functions[b, r] · h + lifted[b, r] · lifts[k] for the term at place k of b."""
    width, extra = table.shape[1], lifts.shape[1]
    for b in range(len(ends)):
        for k in range(begins[b], begins[b + 1]):
            message = table[rows[ends[b, 0] + k - begins[b]]]
            for r in range(functions.shape[1]):
                function, total = functions[b, r], 0.0
                for d in range(width):
                    total += function[d] * message[d]
                for e in range(extra):
                    total += lifted[b, r, e] * lifts[k, e]
                out[k, r] = total


@cached_njit(nogil=True, fastmath=_REDUCE)
def maxima(ends, begins, mass, rows, table, lifts, functions, lifted, out):
    """out[b, r] = Σ_g m_g max_a of what :func:`scores` gives each term."""
    width, extra = table.shape[1], lifts.shape[1]
    for b in range(len(ends)):
        for r in range(functions.shape[1]):
            function, sums = functions[b, r], 0.0
            for g in range(mass.shape[1]):
                best = -np.inf
                for t in range(ends[b, g], ends[b, g + 1]):
                    message, total = table[rows[t]], 0.0
                    for d in range(width):
                        total += function[d] * message[d]
                    k = begins[b] + t - ends[b, 0]
                    for e in range(extra):
                        total += lifted[b, r, e] * lifts[k, e]
                    best = max(best, total)
                if ends[b, g] < ends[b, g + 1]:
                    sums += mass[b, g] * best
            out[b, r] = sums


@cached_njit(nogil=True)
def mixtures(indptr, terms, shares, rows, table, out):
    """out[i] += Σ λ h over the sparse λ of each i."""
    for i in range(len(out)):
        for k in range(indptr[i], indptr[i + 1]):
            message, share = table[rows[terms[k]]], shares[k]
            for d in range(table.shape[1]):
                out[i, d] += share * message[d]


@cached_njit(nogil=True)
def halve(begins, indptr, halvings, table):
    """Put the middle of corners i and j in place of one, in order; side −1 keeps i, 1 keeps j."""
    for b in range(len(begins) - 1):
        for k in range(indptr[b], indptr[b + 1]):
            i, j = begins[b] + halvings[k, 0], begins[b] + halvings[k, 1]
            gone = j if halvings[k, 2] < 0 else i
            for d in range(table.shape[1]):
                table[gone, d] = 0.5 * (table[i, d] + table[j, d])


@cached_njit(nogil=True, fastmath=_REDUCE)
def widest(ends, begins, points, out):
    """out[b] = the two corners of one group, from begins[b], with the largest Σ |p − q|."""
    for b in range(len(ends)):
        most = 0.0
        for g in range(ends.shape[1] - 1):
            for i in range(ends[b, g], ends[b, g + 1]):
                for j in range(i + 1, ends[b, g + 1]):
                    length = 0.0
                    for d in range(points.shape[1]):
                        length += abs(points[i, d] - points[j, d])
                    if length > most:
                        most = length
                        out[b, 0], out[b, 1] = i - begins[b], j - begins[b]
