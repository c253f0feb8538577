"""Proofs of bounds behind nonlinear heads: their form, what they prove, and how a solution is
verified by them.

The cases of a bound cover all λ: with none of them assuming anything there is one. In a case every
curved operation is replaced by lines of the given slopes, the rivals are mixed by w, and β ≥ 0
times the input of a unit, with the sign assumed, is added; the largest value of the linear function
of λ that results is the case's bound, and the largest case's is the bound. A case may also be a
part of the polytope: an edge between two corners, the terms at first, is halved, and its middle
takes the place of the one corner or of the other.

Bounds are recomputed from an exposure, without a solver and without a choice. Shared with the code
that finds proofs are the operations and the form of the proofs. Everything is rounded outwards:
whatever numbers a proof holds, what is recomputed from them is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import (
    ROUNDING,
    Curved,
    HeadGraph,
    Interval,
    Linear,
    LoweredHead,
    Root,
    Slopes,
    lower,
    needed_values,
)
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.problems import Floats, Integers, list_entries

if TYPE_CHECKING:
    from gnn_repair.oracle.solution import Solution


PREFIX = "proof_"
Split = tuple[int, int, int, float]
"""A curved operation counted from 0, a unit, the sign that its input is taken to have, and β."""
Halving = tuple[int, int, int]
"""Corners i and j of one group, by the node's terms, and a side: −1 keeps i, 1 keeps j."""


@dataclass(frozen=True, eq=False)
class ProofCase:
    """One case of a proof."""

    weights: Floats
    """[C]: w ≥ 0, sums to one, zero at the target."""
    slopes: Floats
    """[U]: of the curved operations of the lowered head in order, input by input."""
    inner: Floats = field(default_factory=lambda: np.empty(0))
    """[V]: slopes with which intervals are found, of the operations that :func:`inner_of` names:
    input by input above, then below; of a Root below only."""
    splits: tuple[Split, ...] = ()
    halvings: tuple[Halving, ...] = ()
    """In order."""


def inner_of(graph: HeadGraph) -> list[int]:
    """The curved operations whose lines are needed to find intervals: those that a later one
    depends on, and lengths."""
    inputs = {i for k in graph.curved for i in graph.operations[k].inputs}
    read = needed_values(graph.operations, inputs)
    return [k for k in graph.curved if k + 1 in read or isinstance(graph.operations[k], Root)]


class ProofForm:
    """What the proofs of a lowered head hold, and in which order."""

    def __init__(self, graph: HeadGraph) -> None:
        self.operations, self.widths = graph.operations, graph.widths()
        self.curved = graph.curved
        self.reads = {k: [self.widths[i] for i in self.operations[k].inputs] for k in self.curved}
        """By number of a curved operation: the widths of its inputs."""
        self.inner = {
            k: self.reads[k] * (1 if isinstance(self.operations[k], Root) else 2)
            for k in inner_of(graph)
        }
        """By number of an inner operation: the widths of its inner slopes."""

    def slopes(self, flat: Tensor) -> dict[int, Slopes]:
        """Slopes [Q, U] by number of the curved operation."""
        return _parted(flat, self.reads)

    def inner_slopes(self, flat: Tensor) -> dict[int, tuple[Slopes, Slopes]]:
        """Inner slopes [B, V] above and below, by number of the operation."""
        counts = {k: len(self.reads[k]) for k in self.inner}
        parts = _parted(flat, self.inner)
        return {k: (own[: counts[k]], own[-counts[k] :]) for k, own in parts.items()}

    def is_of(self, proofs: Proofs) -> bool:
        """Whether proofs hold as many slopes as they must."""
        slopes, inner = (sum(map(sum, form.values())) for form in (self.reads, self.inner))
        return proofs.slopes.shape[1] == slopes and proofs.inner.shape[1] == inner

    def allows(self, case: ProofCase) -> bool:
        """Whether the signs that a case assumes are those of units, one each."""
        units = [self.reads[k][0] for k in self.curved]
        inside = all(
            place < len(units) and 0 <= unit < units[place] and sign in (-1, 1)
            for place, unit, sign, _ in case.splits
        )
        return inside and len({split[:2] for split in case.splits}) == len(case.splits)


def _parted(flat: Tensor, widths: dict[int, list[int]]) -> dict[int, Slopes]:
    """Columns side by side as parts of these widths."""
    parts = iter(flat.split([width for own in widths.values() for width in own], dim=1))
    return {k: tuple(next(parts) for _ in own) for k, own in widths.items()}


@dataclass(frozen=True, eq=False)
class Proofs:
    """F cases of L bounds."""

    indptr: Integers
    """[L + 1]: which cases prove bound i."""
    weights: Floats
    """[F, C]."""
    slopes: Floats
    """[F, U]."""
    splits: Integers
    """[F + 1]: which assumptions a case makes, of the four arrays below."""
    operation: Integers
    """[nnz]: the curved operation, counted from 0; −1 − i where the edge of the node's corners i
    and j is halved, in the order of the halvings."""
    unit: Integers
    """[nnz]: its channel; j."""
    sign: NDArray[np.int8]
    """[nnz]: −1 or 1, the sign its input is taken to have; −1 keeps corner i, 1 keeps j."""
    multiplier: Floats
    """[nnz]: β; 0 for halvings."""
    inner: Floats
    """[P, V]: the inner slopes of P parts of nodes."""
    part: Integers
    """[F]: which of them a case has."""

    @property
    def count(self) -> int:
        """F."""
        return len(self.weights)

    @classmethod
    def of(cls, cases: Sequence[Sequence[ProofCase]], shape: tuple[int, int]) -> Proofs:
        """Pack the cases of each of L bounds; ``shape`` is C and U."""
        flat = [case for own in cases for case in own]
        rows, part, entries = dict[bytes, int](), list[int](), list[list[Split]]()
        for case in flat:
            part.append(rows.setdefault(case.inner.tobytes(), len(rows)))
            halvings = ((-1 - i, j, side, 0.0) for i, j, side in case.halvings)
            entries.append([*case.splits, *halvings])
        inner = np.stack([np.frombuffer(row) for row in rows]) if rows else np.empty((0, 0))
        indptr, splits = (
            np.append(0, np.cumsum([len(own) for own in owners], dtype=np.int64))
            for owners in (cases, entries)
        )
        columns = [*zip(*(entry for own in entries for entry in own), strict=True)] or [()] * 4
        types: tuple[Any, ...] = (np.int64, np.int64, np.int8, np.float64)
        operation, unit, sign, beta = map(np.array, columns, types)
        return cls(
            indptr,
            np.array([case.weights for case in flat]).reshape(-1, shape[0]),
            np.array([case.slopes for case in flat]).reshape(len(flat), shape[1]),
            splits,
            operation,
            unit,
            sign,
            beta,
            inner,
            np.array(part, np.int64),
        )

    def cases(self, i: int) -> list[ProofCase]:
        """The cases that prove bound i."""
        cases = []
        for f in range(int(self.indptr[i]), int(self.indptr[i + 1])):
            part = slice(int(self.splits[f]), int(self.splits[f + 1]))
            columns = (self.operation, self.unit, self.sign, self.multiplier)
            rows = list(zip(*(column[part].tolist() for column in columns), strict=True))
            splits = tuple(row for row in rows if row[0] >= 0)
            halvings = tuple((-1 - first, j, side) for first, j, side, _ in rows if first < 0)
            inner = self.inner[self.part[f]]
            cases.append(ProofCase(self.weights[f], self.slopes[f], inner, splits, halvings))
        return cases

    def take(self, chosen: Integers) -> Proofs:
        """The proofs of some of the bounds, in that order."""
        cases = list_entries(self.indptr, chosen)
        entries = list_entries(self.splits, cases)
        arrays = {name: getattr(self, name)[cases] for name in ("weights", "slopes", "part")}
        for name in ("operation", "unit", "sign", "multiplier"):
            arrays[name] = getattr(self, name)[entries]
        for name, owners in (("indptr", chosen), ("splits", cases)):
            arrays[name] = np.append(0, np.cumsum(np.diff(getattr(self, name))[owners]))
        return replace(self, **arrays)

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, to be written."""
        return {PREFIX + item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Proofs:
        """What :meth:`arrays` gave; version 0.2 wrote no inner slopes."""
        count = len(arrays[PREFIX + "weights"])
        old = {PREFIX + "inner": np.empty((1, 0)), PREFIX + "part": np.zeros(count, np.int64)}
        return cls(**{item.name: (old | arrays)[PREFIX + item.name] for item in fields(cls)})

    def fits(self, count: int) -> bool:
        """Whether these can be the proofs of ``count`` bounds."""
        cases, entries = self.count, len(self.unit)
        ends = self.indptr.shape == (count + 1,) and self.splits.shape == (cases + 1,)
        ends = ends and int(self.indptr[-1]) == cases and int(self.splits[-1]) == entries
        rising = bool((np.diff(self.indptr) >= 0).all()) and bool((np.diff(self.splits) >= 0).all())
        sizes = {len(self.operation), len(self.sign), len(self.multiplier), entries}
        inside = bool(((self.part >= 0) & (self.part < len(self.inner))).all())
        whole = len(self.slopes) == cases == len(self.part) and len(sizes) == 1
        return ends and rising and whole and inside and self.inner.ndim == 2


Array = NDArray[Any]
NONE: Mapping[int, Tensor] = {}
Line = tuple[Slopes, Slopes, Tensor, Tensor]
"""Slopes [Q, k] above and below, one tensor per input, and what is added to each, [Q, k]."""
HUGE = 1e100
"""Numbers from here on are not gone on with: their products would overflow."""
QUOTIENTS = 3
"""Values of a quotient that are tried: the first halves what dividing by the smallest length leaves
open, and the third hardly moves it."""
TOGETHER = 1 << 21
"""Numbers of coefficients that parts of nodes bounded side by side may have (16 MB)."""


def proved_bounds(
    proofs: Proofs, exposure: Exposure, recipient: Integers, target: Integers, asked: Array
) -> Floats:
    """[L]: what proofs prove of the margins of ``target`` at ``recipient``; infinite where the
    cases leave out a λ, or nothing is asked."""
    assert exposure.head is not None
    lowered, bounds = lower(exposure.head), np.full(len(recipient), np.inf)
    if lowered.reason:
        return bounds
    form = ProofForm(lowered.graph)
    if len(proofs.weights) and not form.is_of(proofs):
        raise InputError(
            "proofs of version 0.2 lack the lines that this head needs; solve the questions again"
        )
    masses = (aggregate := exposure.aggregate).mass[0].tolist()
    nodes, parts = dict[int, Part](), dict[Any, Part]()
    todo = dict[Any, list[tuple[int, ProofCase]]]()
    for i in np.flatnonzero(asked).tolist():
        cases, position = proofs.cases(i), int(recipient[i])
        if not cases or not covers(cases) or not all(map(form.allows, cases)):
            continue
        if position not in nodes:
            nodes[position] = _node(aggregate, masses[position], position)
        bounds[i] = -np.inf
        for case in cases:
            signs = tuple(sorted(split[:3] for split in case.splits))
            key = (position, signs, case.halvings, case.inner.tobytes())
            part = parts.get(key) or nodes[position].halved(case.halvings)
            if part is None:  # an edge that is none
                bounds[i] = np.inf
                continue
            parts[key] = replace(part, signs=signs, inner=case.inner)
            todo.setdefault(key, []).append((i, case))
    keys, width = list(todo), max(form.widths)
    for first in range(0, len(keys), step := max(1, TOGETHER // (2 * width * width))):
        chosen = keys[first : first + step]
        entries = [(b, i, case) for b, key in enumerate(chosen) for i, case in todo[key]]
        with np.errstate(all="ignore"):  # what overflows proves nothing, and is found to
            work = Recomputation(form, [parts[key] for key in chosen])
            at, numbers = (np.array([entry[k] for entry in entries]) for k in (0, 1))
            raw = work.bounds(at, [case for *_, case in entries], target[numbers], lowered.scale)
            bound = _of_the_model(raw, lowered, exposure.frozen_logits.shape[2])
            np.maximum.at(bounds, numbers, bound)
    return bounds


def _of_the_model(raw: Floats, lowered: LoweredHead, classes: int) -> Floats:
    """Bounds of the lowered head's margins as bounds of the head's own, rounded up."""
    if lowered.squashed:
        # p_c − p_r ≤ tanh(m / 2) for a win by m in logits; a loss is against a p_r ≥ 1 / C.
        lost = np.expm1(np.minimum(raw, 0.0)) / classes
        raw = np.where(raw > 0, np.tanh(raw / 2), lost)
    return np.asarray(np.where(np.isnan(raw), np.inf, raw + 1e-15 * np.abs(raw)))


def _node(aggregate: Exposure, mass: list[float], position: int) -> Part:
    """All λ of one recipient; without messages it has one corner, of no mass."""
    ends = aggregate.segments[position * len(mass) :][: len(mass) + 1].tolist()
    groups = tuple(
        (m, aggregate.contributions[0, aggregate.rows[low:high].long()].numpy())
        for m, (low, high) in zip(mass, pairwise(ends), strict=True)
        if low < high
    )
    number = int(aggregate.recipients[position])
    fixed = aggregate.fixed_logits[0, number].numpy()
    return Part(number, fixed, groups or ((0.0, np.zeros((1, len(fixed)))),))


Assumed = tuple[dict[tuple[int, int], int], tuple[Halving, ...]]
"""Signs by unit, and halvings in order."""


def covers(cases: Sequence[ProofCase]) -> bool:
    """Whether every λ falls into one of the cases, whatever signs its units have."""
    return _covered(
        [({(op, unit): s for op, unit, s, _ in case.splits}, case.halvings) for case in cases]
    )


def _covered(assumed: Sequence[Assumed]) -> bool:
    """What all cases decide, an edge that they all halve first or the sign of a unit, may be
    decided first: each half must be covered by its own."""
    if any(not signs and not rest for signs, rest in assumed):
        return True
    edges = {rest[0][:2] if rest else None for _, rest in assumed}
    if len(edges) == 1 and None not in edges:
        sides = [[(signs, rest[1:]) for signs, rest in assumed if rest[0][2] == s] for s in (-1, 1)]
        return all(map(_covered, sides))
    for unit in set.intersection(*(set(signs) for signs, _ in assumed)) if assumed else ():
        sides = [[], []]
        for signs, rest in assumed:
            others = {u: own for u, own in signs.items() if u != unit}
            sides[signs[unit] > 0].append((others, rest))
        return all(map(_covered, sides))
    return False


@dataclass(frozen=True, eq=False)
class Part:
    """A part of one node's λ: o [D], of every group the mass and the corners [K, D], the signs
    that units are taken to have, and the slopes with which intervals are found."""

    number: int
    fixed: Array
    groups: tuple[tuple[float, Array], ...]
    signs: tuple[tuple[int, int, int], ...] = ()
    inner: Array = field(default_factory=lambda: np.empty(0))

    def halved(self, halvings: Sequence[Halving]) -> Part | None:
        """What halvings leave of it; None where an edge is none."""
        ends = np.cumsum([0, *(len(corners) for _, corners in self.groups)])
        corners = [own.copy() for _, own in self.groups]
        for i, j, side in halvings:
            at = [g for g in range(len(corners)) if ends[g] <= min(i, j) <= max(i, j) < ends[g + 1]]
            if not at or i == j or side not in (-1, 1):
                return None
            group, first = corners[at[0]], ends[at[0]]
            group[(i if side > 0 else j) - first] = group[[i - first, j - first]].mean(0)
        masses = [mass for mass, _ in self.groups]
        return replace(self, groups=tuple(zip(masses, corners, strict=True)))


class Recomputation:
    """All intervals of B parts, and what certificates prove there.

    A sum of n numbers is off by at most n · ROUNDING of the magnitudes summed; ``sizes`` M are what
    the sums behind each value come to.
    """

    def __init__(self, form: ProofForm, parts: Sequence[Part]) -> None:
        self.operations, self.widths, self.form = form.operations, form.widths, form
        self.parts, self.nodes = parts, torch.tensor([part.number for part in parts])
        self.fixed = torch.from_numpy(np.stack([part.fixed for part in parts]))
        groups = [(b, m, corners) for b, part in enumerate(parts) for m, corners in part.groups]
        self.owner = np.array([b for b, *_ in groups], np.int64)
        """[S]: the part that each group belongs to; groups of a part stand together."""
        self.ends = np.append(0, np.cumsum([len(corners) for *_, corners in groups]))
        self.first = np.searchsorted(self.owner, np.arange(len(parts) + 1))
        points = np.concatenate([m * corners for _, m, corners in groups])
        most = max(len(part.groups) for part in parts)
        self.rounding = ROUNDING * (max(self.widths) + self.widths[0] + most + 16)
        self.sizes = [self.fixed.abs() + self._over_groups(np.maximum, np.abs(points))]
        self.straight = {0: (self.fixed, torch.from_numpy(points))}
        """Values that no curved operation stands before: at o, and what mass times corner adds."""
        self.lost = torch.zeros(len(parts), dtype=torch.bool)
        """[B]: an operation has no value somewhere in its box, so that nothing is proved."""
        self.boxes: dict[int, list[Interval]] = {}
        self.tops: dict[int, Tensor] = {}
        """By a Root's number: its largest value, [B, parts]."""
        self.heights: dict[int, Array] = {}
        """By a Root's number: what stands above it at each corner, [T, parts]."""
        self.lines: dict[int, Line] = {}
        """By operation: the lines with which intervals are found."""
        self.ranges, self.tight = [self._between_corners(0)], {0}
        inner = form.inner_slopes(torch.from_numpy(np.stack([part.inner for part in parts])))
        for k, operation in enumerate(self.operations):
            if isinstance(operation, Linear):
                self._linear(k, operation)
            else:
                assert isinstance(operation, Curved)
                self._curved(k, operation, inner.get(k))

    def _over_groups(self, function: Any, values: Array) -> Tensor:
        """[B, k]: the smallest or largest over every group, added up over the groups of a part."""
        total = np.zeros((len(self.parts), values.shape[1]))
        np.add.at(total, self.owner, function.reduceat(values, self.ends[:-1], axis=0))
        return torch.from_numpy(total)

    def _between_corners(self, value: int) -> Interval:
        """A value that is linear in the messages lies between its values at the vertices."""
        (at, moved), slack = self.straight[value], self.rounding * self.sizes[value]
        low, high = (self._over_groups(f, moved.numpy()) for f in (np.minimum, np.maximum))
        return Interval(at + low - slack, at + high + slack)

    def _linear(self, k: int, operation: Linear) -> None:
        inputs = operation.inputs
        self.sizes.append(operation.size([self.sizes[i] for i in inputs], self.nodes))
        if any(i not in self.straight for i in inputs):
            self.ranges.append(operation.interval([self.ranges[i] for i in inputs], self.nodes))
            return
        at, moved = ([self.straight[i][side] for i in inputs] for side in (0, 1))
        whose = self.nodes[np.repeat(self.owner, np.diff(self.ends))]
        self.straight[k + 1] = operation.evaluate(at, self.nodes), operation.linear(moved, whose)
        self.ranges.append(self._between_corners(k + 1))
        self.tight.add(k + 1)

    def _curved(self, k: int, operation: Curved, inner: tuple[Slopes, Slopes] | None) -> None:
        for i in set(operation.inputs) - self.tight:
            eye = torch.eye(self.widths[i], dtype=torch.float64)
            top = self._largest(*self._walk(i, torch.cat([eye, -eye])[None], self.lines))
            (high, low), before = top.chunk(2, dim=1), self.ranges[i]
            self.ranges[i] = Interval(torch.fmax(before.low, -low), torch.fmin(before.high, high))
            self.tight.add(i)
        box = [self.ranges[i] for i in operation.inputs]
        box[0] = self._assumed(k, box[0])
        fine = torch.stack([x.largest < HUGE for x in box]).all(0) & operation.defined(box)
        self.lost = self.lost | ~fine.all(1)
        at = self.lost.unsqueeze(1)  # 1 stands where nothing is known
        box = [Interval(torch.where(at, 1.0, x.low), torch.where(at, 1.0, x.high)) for x in box]
        self.boxes[k] = box
        whole = operation.interval(box)
        self.sizes.append(whole.largest)
        if isinstance(operation, Root):
            self.tops[k] = whole.high
            if operation.inputs[0] in self.straight:
                self._raise_heights(k, operation)
        if inner is not None:
            self.lines[k] = self._line(k, inner)
        if isinstance(operation, Root):  # its tangent says how small it can be
            eye = -torch.eye(whole.low.shape[1], dtype=torch.float64)[None]
            below = -self._largest(*self._walk(k + 1, eye, self.lines))
            whole = Interval(torch.fmax(whole.low, below), self.tops[k])
        self.ranges.append(whole)

    def _assumed(self, k: int, box: Interval) -> Interval:
        """The side of zero on which units are taken to be."""
        signs = torch.zeros_like(box.low)
        for b, part in enumerate(self.parts):
            for place, unit, sign in part.signs:
                if self.form.curved[place] == k:
                    signs.numpy()[b, unit] = sign
        ends = [torch.where(signs > 0, end.clamp(min=0.0), end) for end in (box.low, box.high)]
        return Interval(*(torch.where(signs < 0, end.clamp(max=0.0), end) for end in ends))

    def _raise_heights(self, k: int, root: Root) -> None:
        """σ is convex: below its values at the vertices of one group, and a sum's length is at most
        the sum of lengths, the other groups about their centres."""
        at, moved = (part.numpy() for part in self.straight[root.inputs[0]])
        counts, starts = np.diff(self.ends), self.ends[:-1]
        centre = np.add.reduceat(moved, starts, axis=0) / counts[:, None]
        total = np.zeros_like(at)
        np.add.at(total, self.owner, centre)
        group, main = np.repeat(np.arange(len(counts)), counts), np.zeros(len(counts), bool)
        same = np.minimum.reduceat(moved, starts) == np.maximum.reduceat(moved, starts)
        order = np.lexsort((np.asarray(same).all(1), self.owner))  # what can move comes first
        main[order[np.flatnonzero(np.diff(self.owner, prepend=-1))]] = True
        around = (at + total)[self.owner] - centre
        x = torch.from_numpy(moved + np.where(main[:, None], around, -centre)[group])
        plain, nodes = Root((), root.size, 0.0, 0.0), torch.zeros(len(x), dtype=torch.int64)
        whole, rest = (kind.evaluate([x], nodes) for kind in (root, plain))
        sizes = self.sizes[root.inputs[0]].unflatten(1, (-1, root.size)).norm(dim=2)
        slack = self.rounding * (sizes + self.tops[k])
        height = torch.where(torch.from_numpy(main[group]).unsqueeze(1), whole, rest)
        self.heights[k] = (height + slack[torch.from_numpy(self.owner[group])]).numpy()
        top = self._over_groups(np.maximum, self.heights[k])
        self.sizes[k + 1] = torch.maximum(self.sizes[k + 1], top)
        self.tops[k] = torch.minimum(self.tops[k], top)

    def _line(self, k: int, slopes: tuple[Slopes, Slopes], at: Any = slice(None)) -> Line:
        """Lines of these slopes above and below an operation in the parts ``at``."""
        operation, (above, below) = self.operations[k], slopes
        assert isinstance(operation, Curved)
        box = [Interval(x.low[at], x.high[at]) for x in self.boxes[k]]
        if isinstance(operation, Root):
            below = (operation.within(below[0]),)
            return below, below, self.tops[k][at], operation.gaps(below, box)[0]
        lower_, higher = operation.gaps(below, box)
        return above, below, higher if above is below else operation.gaps(above, box)[1], lower_

    def _walk(
        self,
        value: int,
        rows: Tensor,
        lines: dict[int, Line],
        at: Any = slice(None),
        pushes: Mapping[int, Tensor] = NONE,
        more: Mapping[int, Tensor] = NONE,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor], Tensor]:
        """rows [Q or 1, R, k] · value, and ``more`` of earlier values, ≤ functions [Q, R, D] · a +
        constant [Q, R] + heights of Roots, for the parts ``at``; and Σ |rows| M on the way, which
        rounding is relative to."""
        held, heights = {value: rows, **more}, dict[int, Tensor]()
        constant, weighed = rows.new_zeros(1, rows.shape[1]), rows.new_zeros(1, rows.shape[1])
        for k in range(value - 1, -1, -1):
            outer, operation = held.pop(k + 1, None), self.operations[k]
            if outer is None:
                continue
            weighed = weighed + _dot(outer.abs(), self.sizes[k + 1][at])
            if isinstance(operation, Linear):
                offset = operation.offset(self.nodes[at])
                constant = constant if offset is None else constant + _dot(outer, offset)
                widths = [self.widths[i] for i in operation.inputs]
                carried = operation.pull(outer, self.nodes[at], widths)
            else:
                assert isinstance(operation, Curved)
                above, below, higher, lower_ = lines[k]
                up, down = outer.clamp(min=0.0), outer.clamp(max=0.0)
                constant = constant + _dot(down, lower_)
                if k in self.heights:
                    heights[k] = up
                else:
                    constant = constant + _dot(up, higher)
                carried = operation.carried(up, down, above, below)
                if k in pushes:
                    carried[0] = carried[0] + pushes[k]
                    weighed = weighed + _dot(pushes[k].abs(), self.sizes[operation.inputs[0]][at])
                for i, part in zip(operation.inputs, carried, strict=True):
                    weighed = weighed + _dot(part.abs(), self.sizes[i][at])
            for i, part in zip(operation.inputs, carried, strict=True):
                held[i] = held[i] + part if i in held else part
        functions = held.get(0, rows.new_zeros(1, rows.shape[1], self.widths[0]))
        weighed = weighed + _dot(functions.abs(), self.sizes[0][at]) + constant.abs()
        return functions, constant, heights, weighed

    def _largest(
        self, functions: Tensor, constant: Tensor, heights: dict[int, Tensor], weighed: Tensor,
        at: Array | None = None,
    ) -> Tensor:  # fmt: skip
        """The largest value over all admissible aggregates of the parts ``at``, [Q, R]."""
        at = np.arange(len(self.parts)) if at is None else at
        total = constant + _dot(functions, self.fixed[at]) + self.rounding * weighed
        out = total.expand(len(at), -1).clone().numpy()
        rows = functions.expand(len(at), -1, -1).numpy()
        ups = {k: up.expand(len(at), -1, -1).numpy() for k, up in heights.items()}
        points = self.straight[0][1].numpy()
        for q, b in enumerate(at):
            for g in range(self.first[b], self.first[b + 1]):
                part = slice(self.ends[g], self.ends[g + 1])
                score = rows[q] @ points[part].T
                for k, up in ups.items():
                    score = score + up[q] @ self.heights[k][part].T
                out[q] += score.max(1)
        return torch.from_numpy(out)

    def bounds(
        self, at: Array, cases: Sequence[ProofCase], target: Array, scale: int | None
    ) -> Floats:
        """[Q]: what the certificates of cases prove about targets' margins in the parts ``at``, of
        outputs that are σ times the logits where the value ``scale`` is σ."""
        weights = np.clip(np.stack([case.weights for case in cases]), 0.0, None)
        weights[np.arange(len(at)), target] = 0.0
        rows, total = -weights, torch.from_numpy(weights.sum(1))
        rows[np.arange(len(at)), target] = total.numpy()
        slopes = self.form.slopes(torch.from_numpy(np.stack([case.slopes for case in cases])))
        lines = {k: self._line(k, (own, own), at) for k, own in slopes.items()}
        split = {self.form.curved[place] for case in cases for place, *_ in case.splits}
        added = {k: np.zeros((len(at), 1, self.form.reads[k][0])) for k in split}
        for q, case in enumerate(cases):
            for place, unit, sign, beta in case.splits:
                added[self.form.curved[place]][q, 0, unit] = sign * max(beta, 0.0)
        pushes = {k: torch.from_numpy(push) for k, push in added.items()}
        outputs, margins = len(self.operations), torch.from_numpy(rows).unsqueeze(1)

        def largest(more: Mapping[int, Tensor] = NONE) -> Tensor:
            walked = self._walk(outputs, margins, lines, at, pushes, more)
            found = self._largest(*walked, at)[:, 0] / total
            return torch.where(self.lost[at] | found.isnan(), torch.inf, found)

        raw = largest()
        if scale is None:
            return raw.numpy()
        length = self.ranges[scale].take(torch.from_numpy(at))
        return _divided(
            raw, length, lambda t: largest({scale: (-t * total)[:, None, None]})
        ).numpy()


def _divided(raw: Tensor, length: Interval, largest: Callable[[Tensor], Tensor]) -> Tensor:
    """[Q]: bounds of margins m, given those of σ m, the interval of σ, and bounds of σ (m − t)."""
    low, high = (end[:, 0].clamp(min=0.0) for end in (length.low, length.high))
    trial = raw / low
    bound = torch.where(raw > 0, trial, raw / high)
    ends, values = [torch.zeros_like(raw)] * 2, [raw, raw]
    for _ in range(QUOTIENTS):
        value = largest(trial)
        bound = torch.where(value <= 0, torch.minimum(bound, trial), bound)
        for side, own in enumerate(((value > 0) & value.isfinite(), value <= 0)):
            ends[side] = torch.where(own, trial, ends[side])
            values[side] = torch.where(own, value, values[side])
        # The largest σ (m − t) is convex in t: between a t where it is at most ``over`` > 0 and
        # one where it is at most ``under`` ≤ 0 it is at most the line, and m ≤ t where that is 0.
        (first, last), (over, under) = ends, values
        middle = (last * over - first * under) / (over - under)
        middle = middle + 4 * ROUNDING * middle.abs()
        applies = (over > 0) & (under <= 0) & middle.isfinite()
        trial = bound = torch.where(applies, torch.minimum(bound, middle), bound)
    return bound


def _dot(rows: Tensor, constants: Tensor) -> Tensor:
    """rows [Q or 1, R, k] · constants [Q or 1, k], [Q, R]."""
    return (rows @ constants.unsqueeze(2)).squeeze(2)


WINS = 1e-7
"""What a margin must exceed to be a win, and a bound must not."""
EXACT = 1e-9
"""Accepted error of masses and signs, relative to the mass; and of bounds, relative to the largest
logit: what is stated was computed with another rounding."""
PRECISION = 1e-3
"""How far the model, run in its own precision, may be from its head, relative to the largest logit:
far above float32, far below a wrong head."""


@dataclass(frozen=True)
class HeadVerification:
    """The largest violations found (0 is perfect) and how many verdicts do not hold."""

    questions: int
    undecided: int
    mass: float
    """|Σ_{a∈g} λ_a − m_g| / m_g."""
    negative: float
    """−min(λ, w, β, 0), |Σ w − 1|, and λ on terms of another node."""
    margin: float
    """|margin − head at λ|, relative to the largest logit."""
    unconfirmed: int
    """*can* whose λ does not win when it is run again."""
    unproved: int
    """*cannot* whose cases do not prove it, or do not cover everything."""
    excess: float
    """How far a recomputed bound lies above the one stated, relative to the largest logit."""
    rewritten: float
    """How far the rewritten head is from the head, relative to the largest logit."""
    replayed: bool
    """Whether every λ was run through the model itself."""

    @property
    def ok(self) -> bool:
        """Whether every verdict holds."""
        worst = _worst(self.mass, self.negative, self.excess, self.rewritten)
        sound = worst <= EXACT and self.margin <= PRECISION
        return bool(sound) and not self.unconfirmed and not self.unproved

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "all hold" if self.ok else "NOT all hold"
        where = "run through the model" if self.replayed else "run through the head"
        return (
            f"{self.questions:,} verdicts, {verdict} ({self.undecided:,} undecided): λ {where}; "
            f"mass {self.mass:.1e}, sign {self.negative:.1e}, margin {self.margin:.1e}, "
            f"bound {self.excess:.1e}, rewriting {self.rewritten:.1e}; "
            f"{self.unconfirmed:,} unconfirmed, {self.unproved:,} unproved"
        )

    __repr__ = __str__


def verify(solution: Solution, exposure: Exposure) -> HeadVerification:
    """Check every λ and every bound of a solution against its exposure."""
    exposure = exposure.to("cpu")
    inside = len(solution) == 0 or (
        int(solution.recipient.max()) < exposure.num_recipients
        and solution.proofs.weights.shape[1] == exposure.frozen_logits.shape[2]
        and int(solution.terms.max(initial=-1)) < exposure.num_terms
    )
    if not inside:
        raise InputError("the solution does not belong to this exposure; check it with its own")
    mass, negative = _admissible(solution, exposure)
    margin, unconfirmed = _wins(solution, exposure)
    stated, scale = np.isfinite(solution.bound), max(1.0, float(exposure.frozen_logits.abs().max()))
    recomputed = proved_bounds(
        solution.proofs, exposure, solution.recipient, solution.target, stated
    )
    proved = stated & (recomputed <= WINS) & (solution.bound <= WINS)
    return HeadVerification(
        questions=len(solution),
        undecided=int((solution.verdict == "undecided").sum()),
        mass=mass,
        negative=_worst(negative, _wrong_signs(solution)),
        margin=margin / scale,
        unconfirmed=unconfirmed,
        unproved=int(((solution.verdict == "cannot") & ~proved).sum()),
        excess=float((recomputed[stated] - solution.bound[stated]).max(initial=0.0)) / scale,
        rewritten=_rewritten(exposure, solution.recipient),
        replayed=exposure.replay is not None,
    )


def _worst(*errors: float) -> float:
    """The largest, infinite where one is NaN, which Python's own ``max`` may leave out."""
    return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf, neginf=-np.inf).max())


# Every λ ------------------------------------------------------------------------------------------


def _admissible(solution: Solution, exposure: Exposure) -> tuple[float, float]:
    """Violations of masses and of signs of λ."""
    groups, segments = exposure.num_groups, exposure.segments.numpy()
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    segment = solution.recipient[owner] * groups + solution.groups
    inside = (segments[segment] <= solution.terms) & (solution.terms < segments[segment + 1])
    totals = np.zeros((len(solution), groups))
    np.add.at(totals, (owner, solution.groups), solution.coefficients)
    mass = exposure.mass[0].numpy()[solution.recipient]
    off = np.abs(totals - mass) / np.where(mass > 0, mass, 1.0)
    negative = _worst(float((-solution.coefficients).max(initial=0.0)))
    return float(off.max(initial=0.0)), max(negative, float(not inside.all()))


def _wins(solution: Solution, exposure: Exposure) -> tuple[float, int]:
    """How far margins are from the head's at λ, and how many *can* do not win when run again."""
    off, unconfirmed, left = 0.0, 0, np.arange(len(solution))
    while len(left):  # one run for the first question of every node, and so on
        _, first = np.unique(solution.recipient[left], return_index=True)
        chosen = left[first]
        coefficients = solution.taken(chosen).dense(exposure)
        margins = _margins(solution, exposure.logits(coefficients)[0], chosen)
        off = _worst(off, float(np.abs(margins - solution.margin[chosen]).max()))
        if exposure.replay is not None:
            with torch.no_grad():
                replayed = exposure.replay(coefficients[0]).double().cpu()
            margins = _margins(solution, replayed[exposure.recipients], chosen)
        unconfirmed += int(((solution.verdict[chosen] == "can") & ~(margins > WINS)).sum())
        left = np.delete(left, first)
    return off, unconfirmed


def _margins(solution: Solution, logits: Tensor, chosen: Integers) -> Floats:
    rows = logits.numpy()[solution.recipient[chosen]]
    at = np.arange(len(rows)), solution.target[chosen]
    asked, rows[at] = rows[at], -np.inf
    return np.asarray(asked - rows.max(1))


# Every bound --------------------------------------------------------------------------------------


def _wrong_signs(solution: Solution) -> float:
    """−min(w, β, 0), |Σ w − 1| and w at the target, of all cases of stated bounds."""
    proofs, stated = solution.proofs, np.isfinite(solution.bound)
    question = np.repeat(np.arange(len(solution)), np.diff(proofs.indptr))
    cases = np.flatnonzero(stated[question])
    weights = proofs.weights[cases]
    if not len(cases):
        return 0.0
    on_target = weights[np.arange(len(cases)), solution.target[question[cases]]]
    betas = proofs.multiplier[np.repeat(stated[question], np.diff(proofs.splits))]
    total, least = np.abs(weights.sum(1) - 1).max(), float((-betas).max(initial=0.0))
    return _worst(float((-weights).max()), float(total), float(np.abs(on_target).max()), least)


def _rewritten(exposure: Exposure, recipient: Integers) -> float:
    """The lowered head against the head, at the frozen aggregate and away from it."""
    assert exposure.head is not None
    head, lowered, off = exposure.head, lower(exposure.head), 0.0
    if lowered.reason or not len(recipient):
        return 0.0
    nodes = exposure.recipients[torch.from_numpy(np.unique(recipient)[:64])]
    frozen = exposure.aggregate.frozen_logits[0, nodes]
    noise = torch.linspace(-1, 1, frozen.numel(), dtype=torch.float64).view_as(frozen)
    for x in (frozen, frozen + noise.roll(1, 1) * frozen.abs().amax(), -frozen):
        values, wanted = lowered.graph.values(x, nodes), head(x, nodes)
        logits = values[-1] if lowered.scale is None else values[-1] / values[lowered.scale]
        if lowered.squashed:
            logits = logits.softmax(1)
        else:  # a log_softmax that was left out shifts all classes alike
            logits, wanted = logits - logits.mean(1, True), wanted - wanted.mean(1, True)
        finite = wanted.isfinite().all(1)  # away from the frozen aggregate a root may have none
        if bool(finite.any()):
            size = float(wanted[finite].abs().max().clamp(min=1.0))
            off = _worst(off, float((logits - wanted)[finite].abs().max()) / size)
    return off
