"""Verify verdicts behind nonlinear heads: every λ is run again, every bound is proved again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import lower
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.check import proved_bounds
from gnn_repair.oracle.problems import Floats, Integers

if TYPE_CHECKING:
    from gnn_repair.oracle.solution import Solution

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
    found = proved_bounds(solution.proofs, exposure, solution.recipient, solution.target, stated)
    proved = stated & (found <= WINS) & (solution.bound <= WINS)
    return HeadVerification(
        questions=len(solution),
        undecided=int((solution.verdict == "undecided").sum()),
        mass=mass,
        negative=_worst(negative, _wrong_signs(solution)),
        margin=margin / scale,
        unconfirmed=unconfirmed,
        unproved=int(((solution.verdict == "cannot") & ~proved).sum()),
        excess=float((found[stated] - solution.bound[stated]).max(initial=0.0)) / scale,
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
        found = _margins(solution, exposure.logits(coefficients)[0], chosen)
        off = _worst(off, float(np.abs(found - solution.margin[chosen]).max()))
        if exposure.replay is not None:
            with torch.no_grad():
                own = exposure.replay(coefficients[0]).double().cpu()
            found = _margins(solution, own[exposure.recipients], chosen)
        unconfirmed += int(((solution.verdict[chosen] == "can") & ~(found > WINS)).sum())
        left = np.delete(left, first)
    return off, unconfirmed


def _margins(solution: Solution, logits: Tensor, chosen: Integers) -> Floats:
    rows = logits[torch.from_numpy(solution.recipient[chosen])].numpy().copy()
    place = np.arange(len(rows)), solution.target[chosen]
    own = rows[place]
    rows[place] = -np.inf
    return np.asarray(own - rows.max(1))


# Every bound --------------------------------------------------------------------------------------


def _wrong_signs(solution: Solution) -> float:
    """−min(w, β, 0), |Σ w − 1| and w at the target, of all cases of stated bounds."""
    proofs, stated = solution.proofs, np.isfinite(solution.bound)
    question = np.repeat(np.arange(len(solution)), np.diff(proofs.indptr))
    cases = np.flatnonzero(stated[question])
    weights = proofs.weights[cases]
    if not len(cases):
        return 0.0
    own = weights[np.arange(len(cases)), solution.target[question[cases]]]
    betas = proofs.multiplier[np.repeat(stated[question], np.diff(proofs.splits))]
    total, least = np.abs(weights.sum(1) - 1).max(), float((-betas).max(initial=0.0))
    return _worst(float((-weights).max()), float(total), float(np.abs(own).max()), least)


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
        known = wanted.isfinite().all(1)  # away from the frozen aggregate a root may have none
        if bool(known.any()):
            size = float(wanted[known].abs().max().clamp(min=1.0))
            off = _worst(off, float((logits - wanted)[known].abs().max()) / size)
    return off
