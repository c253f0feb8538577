# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""A node's polytope of aggregates, the intervals of a head's values over it, and linear bounds.

Linear beginnings of the head are folded into the messages. Given coefficients C of a value,
C · value ≤ A · x + lifted · τ + constant for every admissible x: walking backwards, linear
operations are multiplied out, and a nonlinear one is replaced by its upper line where its
coefficient is positive and by its lower one where it is negative. The largest value of a linear
function over a node's admissible aggregates is a maximum over its terms, so intervals of
pre-activations that are linear in the messages are exact; deeper ones follow from linear bounds
carried backwards. All classes of a node share them.

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
    Curved,
    HeadGraph,
    Interval,
    Linear,
    LoweredHead,
    Root,
    Scale,
    Select,
    Slopes,
    lower,
    needed_values,
)
from gnn_repair.exposure.value import Exposure
from gnn_repair.kernel_cache import cached_njit
from gnn_repair.oracle.heads.proof import Halving
from gnn_repair.oracle.problems import Floats, Integers, list_entries


@dataclass(frozen=True, eq=False)
class Base:
    """x_v(λ) = o_v + Σ λ h, and the lowered head that begins at x.

    Operations at the beginning that are linear and the same for all nodes are folded into the
    contributions, so that the first pre-activations are the mixture itself.
    """

    lowered: LoweredHead
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
    """The base of an exposure, of the recipients at ``position`` (or all); others have zeros."""
    aggregate = exposure.aggregate
    assert exposure.head is not None
    lowered, folded = _fold(lower(exposure.head))
    groups, count = aggregate.num_groups, aggregate.num_recipients
    chosen = np.arange(count) if position is None else np.unique(position)
    ends = np.arange(count)[:, None] * groups + np.arange(groups + 1)
    ends, rows = aggregate.segments.cpu().numpy()[ends], aggregate.rows.cpu().numpy()
    chosen_ends = ends[chosen]
    mass, nodes = aggregate.mass[0].cpu().numpy(), aggregate.recipients.cpu()
    named = np.zeros(aggregate.contributions.shape[1], bool)
    for first, last in zip(chosen_ends[:, 0].tolist(), chosen_ends[:, -1].tolist(), strict=True):
        named[rows[first:last]] = True
    at, used = torch.from_numpy(chosen), torch.from_numpy(np.flatnonzero(named))
    # Messages and what is fixed, each beside the largest sums behind it.
    table = aggregate.contributions[0].cpu()[used].double()
    fixed = aggregate.fixed_logits[0].cpu()[nodes[at]].double()
    gross, weight = table.abs(), fixed.abs()
    for operation in folded:
        weight = operation.size([weight], nodes[at])
        gross = operation.linear([gross], nodes[at], "abs")
        fixed = operation.evaluate([fixed], nodes[at])
        table = operation.linear([table], nodes[at])
    messages, sums = (_spread(part, used, len(named)) for part in (table, gross))
    low, high, size = np.zeros((3, count, messages.shape[1]))
    low[chosen], high[chosen], size[chosen] = _extremes(chosen_ends, mass[chosen], rows, messages)
    if folded:  # what was summed may be far larger than the sums
        size[chosen] = _extremes(chosen_ends, mass[chosen], rows, sums)[2]
    offset, magnitude = (_spread(part, at, count) for part in (fixed, weight))
    size += magnitude
    slack = ROUNDING * (max(messages.shape[1], aggregate.contributions.shape[2]) + groups) * size
    return Base(
        lowered=lowered,
        widths=lowered.graph.widths(),
        num_classes=exposure.frozen_logits.shape[2],
        folded=folded,
        nodes=nodes.numpy(),
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


def _spread(part: Tensor, index: Tensor, count: int) -> Floats:
    """Rows at their places among ``count``; the others, which nobody asks for, are zero."""
    if len(index) == count:
        return np.ascontiguousarray(part.numpy())
    return torch.zeros(count, part.shape[1], dtype=part.dtype).index_copy(0, index, part).numpy()


def _extremes(
    ends: Integers, mass: Floats, rows: NDArray[np.int32], table: Floats
) -> tuple[Floats, Floats, Floats]:
    """The smallest, largest and largest absolute Σ λ h, channel by channel."""
    low, high, size = np.empty((3, len(ends), table.shape[1]))
    extremes(ends, mass, rows, table, low, high, size)
    return low, high, size


def _fold(lowered: LoweredHead) -> tuple[LoweredHead, tuple[Linear, ...]]:
    """Take operations off the beginning while one alone reads the aggregate and is linear."""
    operations, width, folded = list(lowered.graph.operations), lowered.graph.width, list[Linear]()
    while len(operations) > 1 and not lowered.reason:
        readers = [k for k, op in enumerate(operations) if 0 in op.inputs]
        first = operations[readers[0]] if len(readers) == 1 else None
        if not isinstance(first, Affine | Select | Scale) or "factor" in first.by_node():
            break
        folded.append(first)
        width, operations = first.width([width]), without(operations, readers[0])
    graph = HeadGraph(width, tuple(operations))
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


def subdivide(base: Base, position: Integers, halvings: Sequence[tuple[Halving, ...]]) -> Base:
    """A base whose recipients are parts of those at ``position``, their corners its messages."""
    ends = base.ends[position]
    counts = ends[:, -1] - ends[:, 0]
    begins = np.append(0, np.cumsum(counts))
    terms = np.repeat(ends[:, 0] - begins[:-1], counts) + np.arange(begins[-1])
    table = base.table[base.rows[terms]]
    halve(begins, *_flat(halvings), table)
    local, mass = ends - ends[:, :1] + begins[:-1, None], base.mass[position]
    rows, fixed = np.arange(len(table), dtype=np.int32), base.fixed[position]
    low, high, _ = _extremes(local, mass, rows, table)
    slack = base.slack[position]  # a corner is off by no more than what it is a mean of
    return replace(
        base, nodes=base.nodes[position], ends=local, mass=mass, rows=rows,
        sources=base.sources[base.rows[terms]], table=table, fixed=fixed, low=low + fixed - slack,
        high=high + fixed + slack, size=base.size[position], slack=slack,
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


@dataclass(frozen=True, eq=False)
class RelaxedOperation:
    """One curved operation over a batch: its box, its lines and their constants."""

    operation: Curved
    box: tuple[Interval, ...]
    above: Slopes
    below: Slopes
    higher: Tensor
    """[B, k]: what is added to the upper lines."""
    lower: Tensor
    """[B, k]: to the lower ones."""
    top: Interval | None = None
    """Of a Root: the interval of its value."""
    lift: int | None = None
    """The first of a Root's channels among the lifts; None where it has none."""

    @classmethod
    def of(
        cls, operation: Curved, box: tuple[Interval, ...], top: Interval | None = None,
        lift: int | None = None,
    ) -> RelaxedOperation:  # fmt: skip
        """The lines that are tight at the middle of a box."""
        none = box[0].low
        return cls(operation, box, (), (), none, none, top, lift).tight([x.middle for x in box])

    def tight(self, at: Sequence[Tensor]) -> RelaxedOperation:
        """The lines that are tight where the inputs are ``at``."""
        return self.with_slopes(*self.operation.lines(self.box, at))

    def with_slopes(self, above: Slopes, below: Slopes) -> RelaxedOperation:
        """The lines of these slopes."""
        lower, higher = self.operation.gaps(below, self.box)
        if self.top is not None:  # of a Root the largest value, or what the lifts say
            higher = self.top.high if self.lift is None else torch.zeros_like(self.top.high)
        elif above is not below:
            higher = self.operation.gaps(above, self.box)[1]
        return replace(self, above=above, below=below, higher=higher, lower=lower)

    def chosen(self, coefficients: Tensor) -> Slopes:
        """Per unit the slopes that an upper bound with these coefficients [B, k] uses."""
        if self.above is self.below:
            return self.below
        up = coefficients > 0
        return tuple(torch.where(up, a, b) for a, b in zip(self.above, self.below, strict=True))

    def take(self, index: Tensor) -> RelaxedOperation:
        """The rows of some of the B."""
        below = tuple(slope[index] for slope in self.below)
        same = self.above is self.below
        return replace(
            self,
            box=tuple(interval.take(index) for interval in self.box),
            above=below if same else tuple(slope[index] for slope in self.above),
            below=below,
            higher=self.higher[index],
            lower=self.lower[index],
            top=None if self.top is None else self.top.take(index),
        )


@dataclass(frozen=True, eq=False)
class LinearBound:
    """C · value ≤ functions · x + lifted · τ + constant."""

    functions: Tensor
    """[B, R, D]."""
    lifted: Tensor
    """[B, R, E]."""
    constant: Tensor
    """[B, R]."""
    slopes: dict[int, Slopes]
    """What each curved operation was replaced by, where R = 1: slopes [B, k] per input."""
    seen: dict[int, Tensor]
    """The coefficients [B or 1, R, k] each curved operation had."""
    weighed: Tensor
    """[B, R]: Σ |C| M over all values, M what the sums behind a value may come to: what rounding
    errors of the sums on the way back are relative to."""


HUGE = 1e100
"""Numbers from here on are not gone on with: their products would overflow."""
PORTION = 1 << 22
"""Numbers of coefficients formed at once when a whole layer is bounded (32 MB)."""


@dataclass(frozen=True, eq=False)
class Region:
    """B nodes (or LPs: rows may repeat a node) and the intervals of their heads' values."""

    base: Base
    position: Integers
    """[B]: recipients."""
    begins: Integers
    """[B + 1]: where the places of each one's terms begin."""
    lifts: Floats
    """[places, E]: what each term adds to the linear functions that stand above a Root."""
    lines: dict[int, RelaxedOperation]
    """By number of a nonlinear operation: its box and lines, tight at the middle."""
    sizes: tuple[Tensor, ...]
    """M of every value, [B, k]: what the sums behind it may come to, for rounding."""
    scale: Interval | None
    """Of σ, [B, 1], where the outputs are σ times the logits."""
    unbounded: Tensor
    """[B] bool: a function met a pole, or a number too large to go on with. No bound holds there;
    the intervals from there on stand in for what is not known."""

    @property
    def nodes(self) -> Tensor:
        """[B]: graph nodes."""
        return torch.from_numpy(self.base.nodes[self.position])

    @property
    def ends(self) -> Integers:
        """[B, G + 1]."""
        return self.base.ends[self.position]

    @property
    def mass(self) -> Floats:
        """[B, G]."""
        return self.base.mass[self.position]

    @property
    def fixed(self) -> Tensor:
        """[B, D]: o."""
        return torch.from_numpy(self.base.fixed[self.position])

    @property
    def local(self) -> Integers:
        """[B, G + 1]: where the places of each one's groups begin and end."""
        return self.ends - self.ends[:, :1] + self.begins[:-1, None]

    def __len__(self) -> int:
        return len(self.position)

    def places(self) -> tuple[Integers, Integers, Integers]:
        """Of every place: whose it is, the exposure's term there, and that term's group."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.begins))
        term = np.arange(len(owner)) - self.begins[owner] + self.ends[owner, 0]
        return owner, term, (term[:, None] >= self.ends[owner, 1:-1]).sum(1)

    def corners(self) -> tuple[Floats, Floats]:
        """Mass times message of every place, [places, D], and each group's mean, [B, G, D]."""
        owner, term, group = self.places()
        points = self.base.table[self.base.rows[term]] * self.mass[owner, group][:, None]
        centre = np.zeros((len(self), self.ends.shape[1] - 1, self.base.width))
        np.add.at(centre, (owner, group), points)
        return points, centre / np.maximum(np.diff(self.ends, axis=1), 1)[:, :, None]

    def take(self, index: Integers) -> Region:
        """Some of the rows, in any order, repeated or not."""
        at = torch.from_numpy(index)
        places = list_entries(self.begins, index)
        return replace(
            self,
            position=self.position[index],
            begins=np.append(0, np.cumsum(np.diff(self.begins)[index])),
            lifts=self.lifts[places] if self.lifts.shape[1] else np.empty((len(places), 0)),
            lines={k: part.take(at) for k, part in self.lines.items()},
            sizes=tuple(size[at] for size in self.sizes),
            scale=None if self.scale is None else self.scale.take(at),
            unbounded=self.unbounded[at],
        )

    def relax(self, at: Sequence[Tensor]) -> dict[int, RelaxedOperation]:
        """Lines of all nonlinear operations, tight at the values ``at``."""
        return {
            k: line.tight([at[i] for i in line.operation.inputs]) for k, line in self.lines.items()
        }

    def with_line(self, number: int, line: RelaxedOperation) -> Region:
        """The region with one more operation."""
        return replace(self, lines={**self.lines, number: line})

    def backward(
        self,
        value: int,
        coefficients: Tensor,
        parts: dict[int, RelaxedOperation],
        pushes: dict[int, Tensor] | None = None,
    ) -> LinearBound:
        """Bound coefficients [B or 1, R, k] · value above by linear functions.

        Args:
            value: number of the value.
            coefficients: C.
            parts: the curved operations' relaxations, by number.
            pushes: by operation number, [B, R, k]: multiples of its input that are added, which
                must be nonnegative for inputs known to have that sign.
        """
        operations, nodes, widths = self.base.graph.operations, self.nodes, self.base.widths
        held, rows = {value: coefficients}, coefficients.shape[1]
        constant, weighed = (coefficients.new_zeros(len(self), rows) for _ in range(2))
        lifted = coefficients.new_zeros(len(self), rows, self.lifts.shape[1])
        slopes, seen = dict[int, Slopes](), dict[int, Tensor]()
        for number in range(value - 1, -1, -1):
            outer, operation = held.pop(number + 1, None), operations[number]
            if outer is None and value == len(operations) and number in parts:
                # A norm whose σ no output reads; proofs have slopes of every curved operation.
                outer = coefficients.new_zeros(1, rows, widths[number + 1])
            if outer is None:
                continue
            weighed = weighed + _dot(outer.abs(), self.sizes[number + 1])
            if isinstance(operation, Linear):
                offset = operation.offset(nodes)
                constant = constant if offset is None else constant + _dot(outer, offset)
                carried = operation.pull(outer, nodes, [widths[i] for i in operation.inputs])
            else:
                part, seen[number] = parts[number], outer
                up, down = outer.clamp(min=0.0), outer.clamp(max=0.0)
                constant = constant + _dot(up, part.higher) + _dot(down, part.lower)
                if rows == 1:
                    slopes[number] = part.chosen(outer.expand(len(self), -1, -1)[:, 0])
                if part.lift is not None:
                    lifted[:, :, part.lift : part.lift + up.shape[2]] += up
                carried = part.operation.carried(up, down, part.above, part.below)
                reaching = list(zip(operation.inputs, carried, strict=True))
                if pushes is not None and number in pushes:
                    reaching.append((operation.inputs[0], pushes[number]))
                    carried[0] = carried[0] + pushes[number]
                for i, line in reaching:  # others may cancel it: it is weighed by itself
                    weighed = weighed + _dot(line.abs(), self.sizes[i])
            for i, more in zip(operation.inputs, carried, strict=True):
                held[i] = held[i] + more if i in held else more
        functions = held.get(0, coefficients.new_zeros(1, rows, self.base.width))
        weighed = weighed + _dot(functions.abs(), self.sizes[0]) + constant.abs()
        functions = functions.expand(len(self), -1, -1).contiguous()
        tops = [line.top.high for line in self.lines.values() if line.top and line.lift is not None]
        if tops and (empty := np.diff(self.begins) == 0).any():
            # Where there are no terms to lift, a Root's coefficient meets its one value.
            high = torch.cat(tops, dim=1)
            constant = constant + _dot(lifted, high) * torch.from_numpy(empty).unsqueeze(1)
        return LinearBound(functions, lifted, constant, slopes, seen, weighed)

    def largest(self, linear: LinearBound) -> Tensor:
        """[B, R]: the largest value of linear functions over the admissible aggregates, rounded
        up."""
        out = np.empty(linear.constant.shape)
        maxima(
            self.ends, self.begins, self.mass, self.base.rows, self.base.table, self.lifts,
            linear.functions.numpy(), linear.lifted.numpy(), out,
        )  # fmt: skip
        offset = _dot(linear.functions, self.fixed)
        # Every sum on the way has at most so many terms, each off by at most ROUNDING of its size.
        longest = max(size.shape[1] for size in self.sizes) + self.base.width + 16
        return (
            torch.from_numpy(out) + offset + linear.constant + ROUNDING * longest * linear.weighed
        )


def _dot(rows: Tensor, values: Tensor) -> Tensor:
    """rows [B or 1, R, k] · values [B or 1, k], [B, R]."""
    return (rows @ values.unsqueeze(2)).squeeze(2)


def bare_region(base: Base, position: Integers) -> Region:
    """The region without any interval: enough to search for witnesses."""
    counts = base.ends[position, -1] - base.ends[position, 0]
    begins = np.append(0, np.cumsum(counts))
    sizes = (torch.from_numpy(base.size[position]),)
    unbounded, lifts = torch.zeros(len(position), dtype=torch.bool), np.empty((int(begins[-1]), 0))
    return Region(base, position, begins, lifts, {}, sizes, None, unbounded)


def region_of(base: Base, position: Integers, signs: dict[int, Tensor] | None = None) -> Region:
    """The region of the recipients at ``position``: intervals of everything, value by value.

    Args:
        base: of the exposure.
        position: [B] recipients; one may stand several times.
        signs: by number of an elementwise operation, [B, k] of −1, 0, 1: the sign its input is
            taken to have, which halves its interval.
    """
    start = Interval(torch.from_numpy(base.low[position]), torch.from_numpy(base.high[position]))
    region = bare_region(base, position)
    intervals, exact = [start], [True]  # exact: nothing better is to be had by linear bounds
    for number, operation in enumerate(base.graph.operations):
        if isinstance(operation, Linear):
            inputs = [intervals[i] for i in operation.inputs]
            intervals.append(operation.interval(inputs, region.nodes))
            size = operation.size([region.sizes[i] for i in operation.inputs], region.nodes)
        else:
            assert isinstance(operation, Curved)
            for i in operation.inputs:
                if not exact[i]:
                    intervals[i], exact[i] = _tightened(region, i, intervals[i]), True
            inputs = [intervals[i] for i in operation.inputs]
            if signs is not None and number in signs:
                inputs[0] = clip_by_sign(inputs[0], signs[number])
            region = _with_box(region, number, operation, inputs)
            line = region.lines[number]
            intervals.append(line.top or operation.interval(line.box))
            size = intervals[-1].largest  # a line starts anew from its input
        region = replace(region, sizes=(*region.sizes, size))
        exact.append(all(exact[i] for i in operation.inputs) and operation.by_channel)
    scale = base.lowered.scale
    return region if scale is None else replace(region, scale=intervals[scale])


def _with_box(region: Region, number: int, operation: Curved, inputs: Sequence[Interval]) -> Region:
    """Add the box of an operation, 1 in rows where it has no bound over it, and its lines."""
    fine = torch.stack([x.largest < HUGE for x in inputs]).all(0) & operation.defined(inputs)
    lost = ~fine.all(1)
    if bool(lost.any()):
        at = lost.unsqueeze(1)
        inputs = [
            Interval(torch.where(at, 1.0, x.low), torch.where(at, 1.0, x.high)) for x in inputs
        ]
    region, box = replace(region, unbounded=region.unbounded | lost), tuple(inputs)
    if isinstance(operation, Root):
        return _with_root(region, number, operation, box)
    return region.with_line(number, RelaxedOperation.of(operation, box))


def clip_by_sign(box: Interval, signs: Tensor) -> Interval:
    """The part of an interval on the side of zero that ``signs`` (−1, 0, 1) names."""
    low = torch.where(signs > 0, box.low.clamp(min=0.0), box.low)
    high = torch.where(signs < 0, box.high.clamp(max=0.0), box.high)
    # An empty side proves anything; the interval is then the one point at its end.
    return Interval(torch.minimum(low, high), torch.maximum(low, high))


def _tightened(region: Region, value: int, known: Interval) -> Interval:
    """The interval of a value by linear bounds, within what is known already."""
    width = region.base.widths[value]
    eye = torch.eye(width, dtype=torch.float64)
    rows = torch.cat([eye, -eye]).unsqueeze(0)
    step = max(1, PORTION // (2 * width * max(region.base.width, width)))
    lows, highs = [], []
    for first in range(0, len(region), step):
        part = region.take(np.arange(first, min(first + step, len(region))))
        top = part.largest(part.backward(value, rows, part.lines))
        highs.append(top[:, :width])
        lows.append(-top[:, width:])
    low = torch.maximum(known.low, torch.cat(lows).nan_to_num(nan=-torch.inf))
    high = torch.minimum(known.high, torch.cat(highs).nan_to_num(nan=torch.inf))
    # Two sound bounds cross by rounding only, where the value is a single point.
    return Interval(torch.minimum(low, high), torch.maximum(low, high))


def _with_root(region: Region, number: int, operation: Root, box: tuple[Interval, ...]) -> Region:
    """Add a Root's interval, and its interpolation between vertices where its input is linear."""
    top = operation.interval(box)
    operations = region.base.graph.operations
    before = needed_values(operations, set(operation.inputs)) - {0}
    if any(isinstance(operations[value - 1], Curved) for value in before):
        return region.with_line(number, RelaxedOperation.of(operation, box, top))
    sizes = region.sizes[operation.inputs[0]].unflatten(1, (-1, operation.size)).norm(dim=2)
    slack = ROUNDING * (box[0].low.shape[1] + region.base.width + 16) * (sizes + top.high)
    lifts, high = _interpolation(region, operation, slack)
    top = Interval(top.low, torch.minimum(top.high, high))
    line = RelaxedOperation.of(operation, box, top, region.lifts.shape[1])
    region = replace(region, lifts=np.concatenate([region.lifts, lifts], axis=1))
    raised = _raised(region.with_line(number, line), number, top)
    return region.with_line(number, replace(line, top=raised))


def _raised(region: Region, number: int, top: Interval) -> Interval:
    """A Root's smallest value by its tangent at the frozen masses' centre."""
    eye = -torch.eye(top.low.shape[1], dtype=torch.float64).unsqueeze(0)
    whole = replace(region, sizes=(*region.sizes, top.high))
    below = -whole.largest(whole.backward(number + 1, eye, whole.lines))
    return Interval(torch.maximum(top.low, below), top.high)


def _interpolation(region: Region, operation: Root, slack: Tensor) -> tuple[Floats, Tensor]:
    """τ of each term, [places, parts], and the largest Σ λ τ.

    σ is convex. With one group it is at most its interpolation between the vertices; with several,
    the length of a sum is at most the sum of lengths, all but one group about their centres: that
    of equal messages then adds nothing. Each is rounded up by ``slack`` [B, parts].
    """
    base = region.base
    owner, term, group = region.places()
    main_group = _main_groups(base, region.ends, owner, term, group)
    first = main_group[owner] == group
    points, centre = region.corners()
    points[~first] -= centre[owner[~first], group[~first]]
    rest = centre.sum(1) - centre[np.arange(len(region)), main_group]
    points[first] += (base.fixed[region.position] + rest)[owner[first]]
    nodes, main = region.nodes[torch.from_numpy(owner)], torch.from_numpy(first).unsqueeze(1)
    graph = replace(base.graph, operations=base.graph.operations[: operation.inputs[0]])
    x, zero = (
        graph(at, nodes)
        for at in (torch.from_numpy(points), torch.zeros(points.shape, dtype=torch.float64))
    )
    plain = replace(operation, offset=0.0, floor=0.0)
    length = torch.where(main, operation.evaluate([x], nodes), plain.evaluate([x - zero], nodes))
    length = length + slack[torch.from_numpy(owner)]
    best = np.zeros((*centre.shape[:2], length.shape[1]))
    np.maximum.at(best, (owner, group), length.numpy())
    alone = operation.evaluate([graph(region.fixed, region.nodes)], region.nodes) + slack
    empty = np.diff(region.begins)[:, None] == 0
    high = np.where(empty, alone.numpy(), best.sum(1))
    return length.numpy() / region.mass[owner, group][:, None], torch.from_numpy(high)


def _main_groups(
    base: Base, ends: Integers, owner: Integers, term: Integers, group: Integers
) -> Integers:
    """[B]: the first group whose messages differ, or the first that is there."""
    first = ends[owner, group]
    differs = (base.table[base.rows[term]] != base.table[base.rows[first]]).any(1)
    rank = (ends[:, 1:] > ends[:, :-1]).astype(np.int64)
    np.maximum.at(rank, (owner, group), 1 + differs)
    return np.argmax(rank, axis=1)
