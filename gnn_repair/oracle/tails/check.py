"""Verify verdicts about tails: every λ, every bound, no solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.operations import Operation
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.lowering import Lowered, lower
from gnn_repair.oracle.tails.proofs import Proofs
from gnn_repair.oracle.tails.recomputation import Recomputation, Signs
from gnn_repair.oracle.tails.recomputed_cases import CoveredCase, Node, part_of
from gnn_repair.oracle.tails.replaying import on_cpu
from gnn_repair.oracle.tails.solution import TailSolution

WINS = 1e-7
"""What a margin must exceed to be a win, and a bound must not."""
EXACT = 1e-9
"""Accepted error of masses and signs, relative to the mass; and of bounds, relative to the largest
logit: certificates allow for rounding themselves, so this covers only what is summed here."""
PRECISION = 1e-3
"""How far the model, run in its own precision, may be from its tail, relative to the largest logit:
far above float32, far below a wrong tail."""
TOGETHER = 1 << 21
"""Numbers of coefficients that parts of nodes bounded side by side may have (16 MB)."""


@dataclass(frozen=True)
class TailVerification:
    """The largest violations found (0 is perfect) and how many verdicts do not hold."""

    questions: int
    undecided: int
    mass: float
    """|Σ_{a∈g} λ_a − m_g| / m_g."""
    negative: float
    """−min(λ, w, β, 0), |Σ w − 1|, and λ on terms of another node."""
    margin: float
    """|margin − tail at λ|, relative to the largest logit."""
    unconfirmed: int
    """*can* whose λ does not win when it is run again."""
    unproved: int
    """*cannot* whose cases do not prove it, or do not cover everything."""
    excess: float
    """How far a recomputed bound lies above the one stated, relative to the largest logit."""
    rewritten: float
    """How far the rewritten tail is from the tail, relative to the largest logit."""
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
        where = "run through the model" if self.replayed else "run through the tail"
        return (
            f"{self.questions:,} verdicts, {verdict} ({self.undecided:,} undecided): λ {where}; "
            f"mass {self.mass:.1e}, sign {self.negative:.1e}, margin {self.margin:.1e}, "
            f"bound {self.excess:.1e}, rewriting {self.rewritten:.1e}; "
            f"{self.unconfirmed:,} unconfirmed, {self.unproved:,} unproved"
        )

    __repr__ = __str__


def verify(solution: TailSolution, exposure: Exposure) -> TailVerification:
    """Check every λ and every bound of a solution against its exposure."""
    exposure = on_cpu(exposure)
    _check_match(solution, exposure)
    judge = _Judge(solution, exposure)
    mass, negative = judge.admissible()
    margin, unconfirmed = judge.wins()
    excess, unproved, wrong = judge.bounds()
    return TailVerification(
        questions=len(solution),
        undecided=int((solution.verdict == "undecided").sum()),
        mass=mass,
        negative=_worst(negative, wrong),
        margin=margin,
        unconfirmed=unconfirmed,
        unproved=unproved,
        excess=excess,
        rewritten=judge.rewritten(),
        replayed=exposure.replay is not None,
    )


def proved_bounds(solution: TailSolution, exposure: Exposure) -> Floats:
    """[L]: what the proofs prove of each question when they are recomputed."""
    return _Judge(solution, exposure).recomputed()


def _check_match(solution: TailSolution, exposure: Exposure) -> None:
    aggregate = exposure.aggregate
    inside = len(solution) == 0 or (
        int(solution.recipient.max()) < aggregate.num_recipients
        and solution.proofs.weights.shape[1] == exposure.frozen_logits.shape[2]
        and int(solution.terms.max(initial=-1)) < aggregate.num_terms
    )
    if not inside:
        raise InputError("the solution does not belong to this exposure; check it with its own")


class _Judge:
    """One solution beside its exposure."""

    def __init__(self, solution: TailSolution, exposure: Exposure) -> None:
        self.solution, self.exposure = solution, exposure
        aggregate = exposure.aggregate
        self.groups = aggregate.num_groups
        self.segments = aggregate.segments.cpu().numpy()
        self.mass = aggregate.mass[0].cpu().numpy()
        self.scale = max(1.0, float(exposure.frozen_logits.abs().max()))

    def admissible(self) -> tuple[float, float]:
        """Violations of masses and of signs of λ."""
        solution, groups = self.solution, self.groups
        owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
        segment = solution.recipient[owner] * groups + solution.groups
        inside = (self.segments[segment] <= solution.terms) & (
            solution.terms < self.segments[segment + 1]
        )
        totals = np.zeros((len(solution), groups))
        np.add.at(totals, (owner, solution.groups), solution.coefficients)
        mass = self.mass[solution.recipient]
        off = np.abs(totals - mass) / np.where(mass > 0, mass, 1.0)
        negative = _worst(float((-solution.coefficients).max(initial=0.0)))
        return float(off.max(initial=0.0)), max(negative, float(not inside.all()))

    def wins(self) -> tuple[float, int]:
        """The tail at every λ, and how many *can* do not win when run again."""
        solution, off, unconfirmed = self.solution, 0.0, 0
        left = np.arange(len(solution))
        while len(left):  # one run for the first question of every node, and so on
            _, first = np.unique(solution.recipient[left], return_index=True)
            chosen = left[first]
            coefficients = self._coefficients(chosen)
            tail = self.exposure.logits(coefficients)[0].cpu()
            found = self._margins(tail, chosen)
            missed = float(np.abs(found - solution.margin[chosen]).max())
            off = _worst(off, missed / self.scale)
            if self.exposure.replay is not None:
                with torch.no_grad():
                    own = self.exposure.replay(coefficients[0]).double().cpu()
                found = self._margins(own[self.exposure.aggregate.recipients.cpu()], chosen)
            lost = (solution.verdict[chosen] == "can") & ~(found > WINS)
            unconfirmed += int(lost.sum())
            left = np.delete(left, first)
        return off, unconfirmed

    def _coefficients(self, chosen: Integers) -> Tensor:
        solution = self.solution
        full = self.exposure.aggregate.coefficients.double().cpu().clone()
        for i in chosen:
            v = int(solution.recipient[i])
            low, high = self.segments[v * self.groups], self.segments[(v + 1) * self.groups]
            full[0, int(low) : int(high)] = 0.0
            part = slice(solution.indptr[i], solution.indptr[i + 1])
            index = torch.from_numpy(solution.terms[part])
            full[0, index] = torch.from_numpy(solution.coefficients[part])
        return full

    def _margins(self, logits: Tensor, chosen: Integers) -> Floats:
        rows = logits[torch.from_numpy(self.solution.recipient[chosen])].numpy()
        target = self.solution.target[chosen]
        own = rows[np.arange(len(rows)), target].copy()
        rows = rows.copy()
        rows[np.arange(len(rows)), target] = -np.inf
        return own - rows.max(1)

    def bounds(self) -> tuple[float, int, float]:
        """How far bounds are exceeded, how many *cannot* are unproved, and wrong signs."""
        solution, wrong = self.solution, 0.0
        for i in np.flatnonzero(np.isfinite(solution.bound)):
            for case in cases_of(solution.proofs, int(i)):
                own = float(case.weights[solution.target[i]])
                total = abs(float(case.weights.sum()) - 1)
                signs = [float((-case.weights).max()), *(-beta for *_, beta in case.splits)]
                wrong = _worst(wrong, *signs, total, abs(own))
        found = self.recomputed()
        stated = np.isfinite(solution.bound)
        excess = (found[stated] - solution.bound[stated]).max(initial=0.0) / self.scale
        proved = stated & (found <= WINS) & (solution.bound <= WINS)
        return float(excess), int(((solution.verdict == "cannot") & ~proved).sum()), wrong

    def recomputed(self) -> Floats:
        """[L]: what the cases prove; infinite where they leave out a λ, or nothing is stated."""
        assert self.exposure.head is not None
        lowered, parts = lower(self.exposure.head), _Parts(self)
        found = np.full(len(self.solution), np.inf)
        for i in np.flatnonzero(np.isfinite(self.solution.bound)).tolist():
            cases = cases_of(self.solution.proofs, i)
            if not lowered.reason and cases and covers(cases) and parts.add(i, cases):
                found[i] = -np.inf
        width = max([lowered.graph.width, *(_widest(op) for op in lowered.graph.operations)])
        for i, bound in parts.bounds(lowered, max(1, TOGETHER // (2 * width * width))):
            found[i] = max(found[i], bound)
        return found

    def node(self, position: int) -> Node:
        """One recipient's mixture."""
        aggregate, groups = self.exposure.aggregate, []
        for g in range(self.groups):
            low, high = self.segments[position * self.groups + g : position * self.groups + g + 2]
            if high > low:
                rows = aggregate.rows[int(low) : int(high)].long()
                messages = aggregate.contributions[0, rows].cpu().numpy()
                groups.append((float(self.mass[position, g]), messages))
        number = int(aggregate.recipients[position])
        fixed = aggregate.fixed_logits[0, number].cpu().numpy()
        return Node(number, fixed, tuple(groups))

    def rewritten(self) -> float:
        """The rewritten tail against the tail, at the frozen aggregate and away from it."""
        tail = self.exposure.head
        assert tail is not None
        lowered = lower(tail)
        if lowered.reason or not len(self.solution):
            return 0.0
        aggregate = self.exposure.aggregate
        chosen = torch.from_numpy(np.unique(self.solution.recipient)[:64])
        nodes = aggregate.recipients[chosen]
        frozen = aggregate.frozen_logits[0, nodes]
        noise = torch.linspace(-1, 1, frozen.numel(), dtype=torch.float64).view_as(frozen)
        off = 0.0
        for x in (frozen, frozen + noise.roll(1, 1) * frozen.abs().amax(), -frozen):
            values = lowered.graph.values(x, nodes)
            logits = values[-1] if lowered.scale is None else values[-1] / values[lowered.scale]
            wanted = tail(x, nodes)
            if lowered.squashed:
                logits = logits.softmax(1)
            else:  # a log_softmax that was left out shifts all classes alike
                logits, wanted = logits - logits.mean(1, True), wanted - wanted.mean(1, True)
            known = wanted.isfinite().all(1)  # away from the frozen aggregate a root may have none
            if bool(known.any()):
                size = float(wanted[known].abs().max().clamp(min=1.0))
                off = _worst(off, float((logits - wanted)[known].abs().max()) / size)
        return off


def _worst(*errors: float) -> float:
    """The largest, infinite where one is NaN, which Python's own ``max`` may leave out."""
    return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf, neginf=-np.inf).max())


class _Parts:
    """Which parts of which nodes the cases are about: intervals are computed once a part."""

    def __init__(self, judge: _Judge) -> None:
        self.judge = judge
        self.nodes: dict[int, Node] = {}
        self.parts: dict[Any, tuple[Node, Signs]] = {}
        self.asked: dict[Any, list[tuple[int, CoveredCase]]] = {}

    def add(self, i: int, cases: list[CoveredCase]) -> bool:
        """Take in the cases of question i; False where one of them halves what is no edge."""
        position = int(self.judge.solution.recipient[i])
        if position not in self.nodes:
            self.nodes[position] = self.judge.node(position)
        for case in cases:
            signs = tuple(sorted(split[:3] for split in case.splits))
            key = (position, signs, case.halvings)
            if key not in self.parts:
                part = part_of(self.nodes[position], case.halvings)
                if part is None:
                    return False
                self.parts[key] = (part, signs)
            self.asked.setdefault(key, []).append((i, case))
        return True

    def bounds(self, lowered: Lowered, together: int) -> Iterator[tuple[int, float]]:
        """Questions and what one of their cases proves."""
        keys, classes = list(self.asked), self.judge.exposure.frozen_logits.shape[2]
        for first in range(0, len(keys), together):
            chosen = keys[first : first + together]
            nodes, signs = zip(*(self.parts[key] for key in chosen), strict=True)
            asked = [(b, *one) for b, key in enumerate(chosen) for one in self.asked[key]]
            at = np.array([b for b, *_ in asked])
            target = self.judge.solution.target[[i for _, i, _ in asked]]
            with np.errstate(all="ignore"):  # what overflows proves nothing, and is found to
                work = Recomputation(lowered, nodes, signs)
                raw = work.bounds(at, [case for *_, case in asked], target)
                if lowered.scale is not None:
                    low, high = (end[at, 0] for end in work.roots[lowered.scale - 1])
                    raw = np.where(raw > 0, raw / low, raw / high)
            if lowered.squashed:
                lost = np.expm1(np.minimum(raw, 0.0)) / classes
                raw = np.where(raw > 0, np.tanh(raw / 2), lost)
            yield from ((i, float(bound)) for (_, i, _), bound in zip(asked, raw, strict=True))


def _widest(operation: Operation) -> int:
    return max((tensor.shape[-1] for _, tensor in operation.constants() if tensor.dim()), default=1)


def cases_of(proofs: Proofs, i: int) -> list[CoveredCase]:
    """The cases that prove bound i."""
    cases = []
    for f in range(int(proofs.indptr[i]), int(proofs.indptr[i + 1])):
        part = slice(int(proofs.splits[f]), int(proofs.splits[f + 1]))
        entries = zip(
            proofs.operation[part].tolist(),
            proofs.unit[part].tolist(),
            proofs.sign[part].tolist(),
            proofs.multiplier[part].tolist(),
            strict=True,
        )
        rows = list(entries)
        splits = tuple(row for row in rows if row[0] >= 0)
        halvings = tuple((-1 - first, second, side) for first, second, side, _ in rows if first < 0)
        cases.append(CoveredCase(proofs.weights[f], proofs.slopes[f], splits, halvings))
    return cases


Assumed = tuple[dict[tuple[int, int], int], tuple[tuple[int, int, int], ...]]
"""Signs by unit, and halvings in order."""


def covers(cases: list[CoveredCase]) -> bool:
    """Whether every λ falls into one of the cases, whatever signs its units have.

    What all cases decide, an edge they all halve first or the sign of a unit, may be decided first:
    each half must be covered by its own.
    """
    todo: list[list[Assumed]] = [
        [({(op, unit): s for op, unit, s, _ in case.splits}, case.halvings) for case in cases]
    ]
    while todo:
        assumed = todo.pop()
        if any(not signs and not halvings for signs, halvings in assumed):
            continue
        halves = _by_edge(assumed) or _by_unit(assumed)
        if not halves or not all(halves):
            return False
        todo += halves
    return True


def _by_edge(assumed: list[Assumed]) -> list[list[Assumed]]:
    """The cases of both halves of an edge that all begin by halving; none where they do not."""
    first = {halvings[0][:2] if halvings else None for _, halvings in assumed}
    if len(first) != 1 or None in first:
        return []
    return [[(signs, rest[1:]) for signs, rest in assumed if rest[0][2] == s] for s in (-1, 1)]


def _by_unit(assumed: list[Assumed]) -> list[list[Assumed]]:
    """The cases of both signs of a unit that all assume one of; none where there is no such."""
    shared = set.intersection(*(set(signs) for signs, _ in assumed)) if assumed else set()
    for unit in shared:
        return [
            [
                ({u: s for u, s in signs.items() if u != unit}, rest)
                for signs, rest in assumed
                if signs[unit] == sign
            ]
            for sign in (-1, 1)
        ]
    return []
