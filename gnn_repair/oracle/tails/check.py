"""Verify verdicts about tails: every λ, every bound, no solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.lowering import Lowered, lower
from gnn_repair.oracle.tails.proofs import Proofs
from gnn_repair.oracle.tails.recomputation import Recomputation
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


def verify(solution: TailSolution, exposure: TailedExposure) -> TailVerification:
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


def _check_match(solution: TailSolution, exposure: TailedExposure) -> None:
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

    def __init__(self, solution: TailSolution, exposure: TailedExposure) -> None:
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
        solution, lowered = self.solution, lower(self.exposure.tail)
        excess, unproved, wrong = 0.0, 0, 0.0
        for i in range(len(solution)):
            if not np.isfinite(solution.bound[i]):
                unproved += int(solution.verdict[i] == "cannot")
                continue
            cases = cases_of(solution.proofs, i)
            for case in cases:
                own = float(case.weights[solution.target[i]])
                total = abs(float(case.weights.sum()) - 1)
                signs = [float((-case.weights).max()), *(-beta for *_, beta in case.splits)]
                wrong = _worst(wrong, *signs, total, abs(own))
            found = self._bound(lowered, i, cases)
            excess = _worst(excess, (found - float(solution.bound[i])) / self.scale)
            claimed = solution.verdict[i] == "cannot"
            unproved += int(claimed and not (found <= WINS and solution.bound[i] <= WINS))
        return max(excess, 0.0), unproved, wrong

    def _bound(self, lowered: Lowered, i: int, cases: list[CoveredCase]) -> float:
        """What the cases of question i prove; infinite unless they cover everything."""
        if lowered.reason or not cases or not covers(cases):
            return np.inf  # of a tail that nothing is known of, or of part of λ only
        node, target = self._node(int(self.solution.recipient[i])), int(self.solution.target[i])
        found, classes = -np.inf, self.exposure.frozen_logits.shape[2]
        for case in cases:
            part = part_of(node, case.halvings)
            if part is None:
                return np.inf
            work = Recomputation(lowered, part, case)
            raw = work.bound(target)
            if lowered.scale is not None:
                low, high = (float(end[0]) for end in work.roots[lowered.scale - 1])
                raw = raw / low if raw > 0 else raw / high
            if lowered.squashed:
                raw = np.tanh(raw / 2) if raw > 0 else np.expm1(raw) / classes
            found = _worst(found, raw)
        return found

    def _node(self, position: int) -> Node:
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
        tail, lowered = self.exposure.tail, lower(self.exposure.tail)
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
            size = float(wanted.abs().max().clamp(min=1.0))
            off = _worst(off, float((logits - wanted).abs().max()) / size)
        return off


def _worst(*errors: float) -> float:
    """The largest, infinite where one is NaN, which Python's own ``max`` may leave out."""
    return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf, neginf=-np.inf).max())


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
    """Whether every λ falls into one of the cases, whatever signs its units have."""
    return _covers(
        [({(op, unit): s for op, unit, s, _ in case.splits}, case.halvings) for case in cases]
    )


def _covers(assumed: list[Assumed]) -> bool:
    if any(not signs and not halvings for signs, halvings in assumed):
        return True
    return _by_edge(assumed) or _by_unit(assumed)


def _by_edge(assumed: list[Assumed]) -> bool:
    """Whether all begin by halving the same edge, and both halves are covered."""
    first = {halvings[0][:2] if halvings else None for _, halvings in assumed}
    if len(first) != 1 or None in first:
        return False
    sides = [
        [(signs, rest[1:]) for signs, rest in assumed if rest[0][2] == side] for side in (-1, 1)
    ]
    return all(half and _covers(half) for half in sides)


def _by_unit(assumed: list[Assumed]) -> bool:
    """Whether all assume a sign of the same unit, and both signs are covered."""
    shared = set.intersection(*(set(signs) for signs, _ in assumed)) if assumed else set()
    for unit in shared:
        halves = [
            [
                ({u: s for u, s in signs.items() if u != unit}, rest)
                for signs, rest in assumed
                if signs[unit] == sign
            ]
            for sign in (-1, 1)
        ]
        if all(half and _covers(half) for half in halves):
            return True
    return False
