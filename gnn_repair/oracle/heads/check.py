"""What proofs prove: bounds recomputed from an exposure, without a solver and without a choice.

Shared with the code that finds proofs are the operations and the form of the proofs. Everything is
rounded outwards: whatever numbers a proof holds, what is recomputed from them is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    Lowered,
    Root,
    Slopes,
    lower,
)
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.proof import Halving, ProofCase, ProofForm, Proofs
from gnn_repair.oracle.problems import Floats, Integers

Array = NDArray[Any]
Line = tuple[Slopes, Slopes, Tensor, Tensor]
"""Slopes [Q, k] above and below, one tensor per input, and what is added to each, [Q, k]."""
HUGE = 1e100
"""Numbers from here on are not gone on with: their products would overflow."""
TOGETHER = 1 << 21
"""Numbers of coefficients that parts of nodes bounded side by side may have (16 MB)."""


def proved_bounds(
    proofs: Proofs, exposure: Exposure, recipient: Integers, target: Integers, asked: Array
) -> Floats:
    """[L]: what proofs prove of the margins of ``target`` at ``recipient``; infinite where the
    cases leave out a λ, or nothing is asked."""
    assert exposure.head is not None
    lowered, found = lower(exposure.head), np.full(len(recipient), np.inf)
    if lowered.reason:
        return found
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
        found[i] = -np.inf
        for case in cases:
            signs = tuple(sorted(split[:3] for split in case.splits))
            key = (position, signs, case.halvings, case.inner.tobytes())
            part = parts.get(key) or nodes[position].halved(case.halvings)
            if part is None:  # an edge that is none
                found[i] = np.inf
                continue
            parts[key] = replace(part, signs=signs, inner=case.inner)
            todo.setdefault(key, []).append((i, case))
    keys, width = list(todo), max(form.widths)
    for first in range(0, len(keys), step := max(1, TOGETHER // (2 * width * width))):
        chosen = keys[first : first + step]
        entries = [(b, i, case) for b, key in enumerate(chosen) for i, case in todo[key]]
        with np.errstate(all="ignore"):  # what overflows proves nothing, and is found to
            work = Recomputation(lowered.graph, form, [parts[key] for key in chosen])
            at, numbers = (np.array([entry[k] for entry in entries]) for k in (0, 1))
            raw = work.bounds(at, [case for *_, case in entries], target[numbers])
            bound = _of_the_model(raw, lowered, work.ranges, at, exposure.frozen_logits.shape[2])
        np.maximum.at(found, numbers, bound)
    return found


def _of_the_model(
    raw: Floats, lowered: Lowered, ranges: list[Interval], at: Integers, classes: int
) -> Floats:
    """Bounds of the lowered head's margins as bounds of the head's own, rounded up."""
    if lowered.scale is not None:  # σ times the margin
        length = ranges[lowered.scale]
        low, high = (end.numpy()[at, 0].clip(min=0.0) for end in (length.low, length.high))
        raw = np.where(raw > 0, raw / low, raw / high)
    if lowered.squashed:
        # p_c − p_r ≤ tanh(m / 2) for a win by m in logits; a loss is against a p_r ≥ 1 / C.
        lost = np.expm1(np.minimum(raw, 0.0)) / classes
        raw = np.where(raw > 0, np.tanh(raw / 2), lost)
    return np.asarray(np.where(np.isnan(raw), np.inf, raw + 1e-15 * np.abs(raw)))


def _node(aggregate: Exposure, mass: list[float], position: int) -> Part:
    """All λ of one recipient."""
    first, groups = position * len(mass), []
    ends = aggregate.segments[first : first + len(mass) + 1].tolist()
    for m, low, high in zip(mass, ends[:-1], ends[1:], strict=True):
        if low < high:
            groups.append((m, aggregate.contributions[0, aggregate.rows[low:high].long()].numpy()))
    number = int(aggregate.recipients[position])
    return Part(number, aggregate.fixed_logits[0, number].numpy(), tuple(groups))


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
        sides = [
            [
                ({u: own for u, own in signs.items() if u != unit}, rest)
                for signs, rest in assumed
                if signs[unit] == s
            ]
            for s in (-1, 1)
        ]
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

    def __init__(self, graph: HeadGraph, form: ProofForm, parts: Sequence[Part]) -> None:
        self.operations, self.widths, self.form = graph.operations, form.widths, form
        self.parts, self.nodes = parts, torch.tensor([part.number for part in parts])
        self.fixed = torch.from_numpy(np.stack([part.fixed for part in parts]))
        groups = [(b, m, own) for b, part in enumerate(parts) for m, own in part.groups]
        self.owner = np.array([b for b, *_ in groups], np.int64)
        """[S]: the part that each group belongs to; groups of a part stand together."""
        self.ends = np.append(0, np.cumsum([len(own) for *_, own in groups], dtype=np.int64))
        self.first = np.searchsorted(self.owner, np.arange(len(parts) + 1))
        points = np.concatenate([np.empty((0, graph.width)), *(m * own for _, m, own in groups)])
        most = max((len(part.groups) for part in parts), default=0)
        self.rounding = ROUNDING * (max(self.widths) + graph.width + most + 16)
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
        if len(self.owner):
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
            (high, low), known = top.chunk(2, dim=1), self.ranges[i]
            self.ranges[i] = Interval(torch.fmax(known.low, -low), torch.fmin(known.high, high))
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
            if operation.inputs[0] in self.straight and len(self.owner):
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
        alone = torch.from_numpy(self.first[1:] == self.first[:-1]).unsqueeze(1)
        self.sizes[k + 1] = torch.maximum(self.sizes[k + 1], top)
        self.tops[k] = torch.where(alone, self.tops[k], torch.minimum(self.tops[k], top))

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
        pushes: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor], Tensor]:
        """rows [Q or 1, R, k] · value ≤ functions [Q, R, D] · a + constant [Q, R] + heights of
        Roots, for the parts ``at``; and Σ |rows| M on the way, which rounding is relative to."""
        held, heights = {value: rows}, dict[int, Tensor]()
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
                if pushes is not None and k in pushes:
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
            groups = range(self.first[b], self.first[b + 1])
            for g in groups:
                part = slice(self.ends[g], self.ends[g + 1])
                score = rows[q] @ points[part].T
                for k, up in ups.items():
                    score = score + up[q] @ self.heights[k][part].T
                out[q] += score.max(1)
            if not groups:
                for k, up in ups.items():
                    out[q] += up[q] @ self.tops[k][b].numpy()
        return torch.from_numpy(out)

    def bounds(self, at: Array, cases: Sequence[ProofCase], target: Array) -> Floats:
        """[Q]: what the certificates of cases prove about targets' margins in the parts ``at``."""
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
        outputs, given = len(self.operations), torch.from_numpy(rows).unsqueeze(1)
        found = self._largest(*self._walk(outputs, given, lines, at, pushes), at)[:, 0] / total
        return torch.where(self.lost[at] | found.isnan(), torch.inf, found).numpy()


def _dot(rows: Tensor, constants: Tensor) -> Tensor:
    """rows [Q or 1, R, k] · constants [Q or 1, k], [Q, R]."""
    return (rows @ constants.unsqueeze(2)).squeeze(2)
