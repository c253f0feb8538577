"""What the exact-mass constraint costs a model with a tail: verdicts when masses may give way."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.metrics import Rate
from gnn_repair.oracle.relaxed import merged_groups, old_terms, relax_mixture
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.sentence import CAN, CANNOT
from gnn_repair.oracle.tails.solve import solve_tails


@dataclass(frozen=True, eq=False)
class TailRelaxedMargins:
    """Verdicts, and the margins between which γ lies, as functions of the slack ρ."""

    slack: tuple[float, ...]
    """The ρ tried."""
    between_groups: bool
    """Whether mass could move between groups."""
    member: Integers
    """[L]: always 0."""
    node: Integers
    """[L]."""
    target: Integers
    """[L]."""
    margin: Floats
    """[len(slack), L]: the largest margin found."""
    bound: Floats
    """[len(slack), L]: what it cannot exceed."""
    verdict: NDArray[np.str_]
    """[len(slack), L]."""

    @property
    def reach(self) -> tuple[Rate, ...]:
        """How many classes can win, from proved to not excluded, for each ρ."""
        count = self.verdict.shape[1]
        return tuple(
            Rate(int((row == CAN).sum()), count, int(((row != CAN) & (row != CANNOT)).sum()))
            for row in self.verdict
        )

    def __str__(self) -> str:
        kind = ", mass may move between groups" if self.between_groups else ""
        lines = [f"relaxed masses of {len(self.node):,} questions{kind}:"]
        for rho, rate in zip(self.slack, self.reach, strict=True):
            lines.append(f"  ρ = {rho:g}: reach {rate}")
        return "\n".join(lines)

    __repr__ = __str__


def relaxed_on_tail(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None,
    slack: tuple[float, ...],
    between_groups: bool,
) -> TailRelaxedMargins:
    """Each ρ's verdicts; a λ that wins at a smaller ρ is admissible at a larger one."""
    solutions = [
        solve_tails(relax_tail(exposure, rho, between_groups), target, nodes) for rho in slack
    ]
    first = solutions[0]
    margin = np.stack([one.margin for one in solutions])
    bound = np.stack([one.bound for one in solutions])
    verdict = np.stack([one.verdict for one in solutions])
    _carry(np.array(slack), margin, bound, verdict)
    return TailRelaxedMargins(
        slack, between_groups, first.member, first.node, first.target, margin, bound, verdict
    )


def _carry(slack: Floats, margin: Floats, bound: Floats, verdict: NDArray[np.str_]) -> None:
    """The set of admissible λ grows with ρ: what wins within a part of it wins in the whole, and
    what the whole excludes no part allows."""
    order = np.argsort(slack, kind="stable")
    for less, more in itertools.pairwise(order):
        better = margin[less] > margin[more]
        margin[more] = np.where(better, margin[less], margin[more])
        verdict[more] = np.where((verdict[less] == CAN), CAN, verdict[more])
    for less, more in list(itertools.pairwise(order))[::-1]:
        bound[less] = np.minimum(bound[less], bound[more])
        verdict[less] = np.where(verdict[more] == CANNOT, CANNOT, verdict[less])


def relax_tail(exposure: Exposure, slack: float, between_groups: bool = False) -> Exposure:
    """The exposure with a tail whose exact-mass problem is the relaxed one of ``exposure``."""
    mixture = merged_groups(exposure.aggregate) if between_groups else exposure.aggregate
    relaxed = relax_mixture(mixture, slack)
    behind, terms = old_terms(mixture, slack), exposure.num_terms
    replay = exposure.replay

    def replay_relaxed(coefficients: Tensor) -> Tensor:
        assert replay is not None
        sent = behind >= 0
        whole = torch.zeros(terms, dtype=torch.float64)
        whole.index_add_(0, behind[sent].cpu(), coefficients.double().cpu()[sent])
        return replay(whole.to(coefficients.device))

    assert exposure.head is not None
    return relaxed.with_head(
        exposure.head,
        exposure.frozen_logits,
        exposure.residual,
        replay_relaxed if replay else None,
    )
