"""From an exposure with a tail to its verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.tables import Floats, Integers, problems
from gnn_repair.oracle.tails.base import Base, base_of
from gnn_repair.oracle.tails.check import PRECISION, proved_bounds
from gnn_repair.oracle.tails.effort import Effort, EffortLimit, budget_of
from gnn_repair.oracle.tails.lines import NONLINEAR
from gnn_repair.oracle.tails.proofs import Proofs
from gnn_repair.oracle.tails.replaying import on_cpu, replay_margins
from gnn_repair.oracle.tails.sentence import CAN, CANNOT, UNDECIDED
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.oracle.tails.stages import (
    ASCENT,
    LONGER,
    Questions,
    frozen_of,
    relax_all,
    search_all,
    split_all,
    unsplittable,
)
from gnn_repair.thresholds import REACHABLE

DROPPED = 1e-12
"""λ below this share of its node's mass is left out of a support: rounding of sums of steps."""


def solve_tails(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None = None,
    *,
    method: str = "simplex",
    effort: Effort = "normal",
) -> TailSolution:
    """Whether reweighting can make a class win, for a model whose mixture is followed by a tail.

    Args:
        exposure: of one model.
        target: [N] a class per node (−1: skipped and counted), or ``"all"``.
        nodes: a mask [N], node numbers, or None for all.
        method: ``simplex``; general solvers know nothing of tails.
        effort: ``fast`` (no cases), ``normal``, ``full``, or processor seconds per question.
    """
    if method != "simplex":
        raise InputError(f'a model with a tail is solved by method "simplex", not "{method}"')
    budget = budget_of(effort)
    exposure = on_cpu(exposure)
    asked = problems(exposure, target, nodes)
    base = base_of(exposure, asked.position)
    questions = Questions(base, asked.position, asked.target)
    margin, shares = _decide(exposure, questions, budget)
    indptr, terms, coefficients = _supports(base, asked.position, shares)
    owner = np.repeat(asked.position, np.diff(indptr))
    solution = TailSolution(
        member=asked.member,
        recipient=asked.position,
        node=base.nodes[asked.position],
        target=asked.target,
        margin=margin,
        bound=questions.bound,
        verdict=np.full(len(margin), UNDECIDED),
        indptr=indptr,
        terms=terms,
        coefficients=coefficients,
        sources=base.sources[base.rows[terms]].astype(np.int64),
        groups=(terms[:, None] >= base.ends[owner, 1:-1]).sum(1),
        status=questions.stage,
        proofs=_proofs(base, questions),
        replayed=exposure.replay is not None,
        skipped=asked.skipped,
        scope=exposure.scope,
        n_id=None if exposure.n_id is None else exposure.n_id.cpu().numpy(),
        names=exposure.term_names,
    )
    # A bound is stated as far as its proof shows it when it is recomputed by other code.
    bound = np.maximum(questions.bound, proved_bounds(solution, exposure))
    verdict, reasons = _verdicts(exposure, questions, bound, margin, shares, budget)
    return replace(solution, bound=bound, verdict=verdict, reasons=reasons)


def _decide(
    exposure: Exposure, questions: Questions, budget: EffortLimit
) -> tuple[Floats, list[Floats]]:
    """Run the stages; the model's margin at the best confirmed λ of each question, and that λ."""
    frozen = frozen_of(exposure.aggregate.coefficients)
    relax_all(questions, frozen)
    search_all(questions, np.flatnonzero(questions.open()), frozen, ASCENT)
    confirmed = _Confirmed(exposure, questions)
    confirmed.ask(np.arange(len(questions)))
    unsure = np.flatnonzero((questions.margin > questions.win) & (confirmed.margin <= REACHABLE))
    if len(unsure):
        search_all(questions, unsure, frozen, LONGER)
        confirmed.ask(unsure)
    left = (questions.raw > questions.threshold) & (confirmed.margin <= REACHABLE)
    if not questions.base.lowered.reason and left.any():
        chosen = np.flatnonzero(left)
        split_all(questions, chosen, budget)
        confirmed.ask(chosen)
    return confirmed.margin, confirmed.shares


class _Confirmed:
    """The best λ of each question as the model itself sees it."""

    def __init__(self, exposure: Exposure, questions: Questions) -> None:
        self.exposure, self.questions = exposure, questions
        self.margin = np.full(len(questions), -np.inf)
        self.shares: list[Floats] = [np.empty(0)] * len(questions)

    def ask(self, chosen: Integers) -> None:
        """Run the model with the questions' present λ and keep what is better."""
        questions = self.questions
        shares = [questions.shares[i] for i in chosen]
        found = replay_margins(
            self.exposure, questions.position[chosen], questions.target[chosen], shares
        )
        for k, i in enumerate(chosen):
            if not self.margin[i] >= found[k]:
                self.margin[i], self.shares[i] = found[k], shares[k]


def _verdicts(
    exposure: Exposure,
    questions: Questions,
    bound: Floats,
    margin: Floats,
    shares: list[Floats],
    budget: EffortLimit,
) -> tuple[NDArray[np.str_], dict[int, str]]:
    """can, cannot or undecided, and why for the last."""
    wins, excluded = margin > REACHABLE, bound <= REACHABLE
    verdict = np.where(wins & ~excluded, CAN, np.where(excluded & ~wins, CANNOT, UNDECIDED))
    reasons = {
        int(i): _reason(questions, int(i), budget) for i in np.flatnonzero(~(wins | excluded))
    }
    both = np.flatnonzero(wins & excluded)
    own = replace(exposure, replay=None)
    lambdas = [shares[i] for i in both]
    inside = replay_margins(own, questions.position[both], questions.target[both], lambdas)
    size = PRECISION * max(1.0, float(exposure.frozen_logits.abs().max()))
    for i, tail in zip(both, inside, strict=True):
        why = "the difference is rounding"
        if margin[i] - tail > size:
            why = f"it has {tail:.2g} there, so the exposure is not of this model; expose it again"
        reasons[int(i)] = (
            f"the model run in its own precision wins by {margin[i]:.2g}, which its tail excludes: "
            + why
        )
    return verdict, reasons


def _reason(questions: Questions, i: int, budget: EffortLimit) -> str:
    lowered = questions.base.lowered
    if questions.margin[i] > questions.win[i]:
        return (
            f"its tail wins by {questions.margin[i]:.2g} in float64, which the model run in its "
            "own precision does not confirm"
        )
    if lowered.reason:
        return f"{lowered.reason}, and no λ that wins was found"
    if questions.late[i]:
        return f"time limit of {budget.seconds:g} s per question; a larger effort goes on"
    if questions.raw[i] <= questions.threshold[i]:
        return "the bound that was found does not hold when its proof is recomputed"
    if unsplittable(questions, i):
        return f"the bounds of {_curved(questions.base)} leave a gap that no case closes"
    if budget.leaves == 1:
        return 'the relaxation leaves it open; effort="normal" splits it into cases'
    return f"{len(questions.cases[i]):,} cases leave it open; a larger effort may close them"


def _curved(base: Base) -> str:
    """The nonlinear operations that are no ReLU, in words."""
    titles = [op.title for op in base.graph.operations if isinstance(op, NONLINEAR)]
    return " and ".join(sorted({title for title in titles if title != "relu"})) or "relu"


def _supports(
    base: Base, position: Integers, shares: list[Floats]
) -> tuple[Integers, Integers, Floats]:
    """λ of all questions as indptr, terms and coefficients."""
    counts, terms, values = [], [], []
    for p, share in zip(position, shares, strict=True):
        kept = np.flatnonzero(share > DROPPED * share.sum())
        counts.append(len(kept))
        terms.append(base.ends[p, 0] + kept)
        values.append(share[kept])
    empty: Any = np.empty(0)
    return (
        np.append(0, np.cumsum(counts, dtype=np.int64)),
        np.concatenate([empty, *terms]).astype(np.int64),
        np.concatenate([empty, *values]),
    )


def _proofs(base: Base, questions: Questions) -> Proofs:
    numbers = [k for k, op in enumerate(base.graph.operations) if isinstance(op, NONLINEAR)]
    order = {number: place for place, number in enumerate(numbers)}
    width = max((len(case.slopes) for own in questions.cases for case in own), default=0)
    return Proofs.of(questions.cases, order, (base.num_classes, width))
