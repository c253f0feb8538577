"""What the exact-mass constraint costs: γ when masses may give way.

A group whose mass may lie in m(1−ρ) … m(1+ρ) is two groups of exact mass: its terms with mass
m(1−ρ), and its terms plus a null term (ℓ = 0) with mass 2ρm. Letting mass move between groups
is one group with all terms. So a relaxed problem is an exact-mass problem on another exposure,
and our own solver and its certificates serve unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import require_outputs
from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.oracle.problems import (
    CAN,
    CANNOT,
    UNDECIDED,
    Floats,
    Integers,
    check_number,
    remap_replay,
    require_exposure,
)
from gnn_repair.oracle.rates import Rate, mean_over_members
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import about

SLACKS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
"""From exact masses to masses that may vanish or double; denser where reach changes fastest."""


@dataclass(frozen=True, eq=False)
class RelaxedMargins:
    """γ as a function of the slack ρ."""

    slack: tuple[float, ...]
    """The ρ tried."""
    between_groups: bool
    """Whether mass could move between groups."""
    member: Integers
    """[L]."""
    node: Integers
    """[L]."""
    target: Integers
    """[L]."""
    margin: Floats
    """[len(slack), L]: γ_ρ, behind a head the largest margin found; NaN where an LP was not
    solved."""
    bound: Floats
    """[len(slack), L]: its certified upper bound."""
    verdict: NDArray[np.str_]
    """[len(slack), L]: whether the class can win."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""

    @property
    def reach(self) -> Floats:
        """[len(slack)]: the share of decided LPs whose class can win, the mean over members."""
        members = [self.member == s for s in np.unique(self.member)]

        def share(row: NDArray[np.str_]) -> float:
            return Rate(int((row == CAN).sum()), int((row != UNDECIDED).sum())).value

        return np.array(
            [mean_over_members(share(row[own]) for own in members) for row in self.verdict]
        )

    @property
    def rates(self) -> tuple[Rate, ...]:
        """How many classes can win, from proved to not excluded, for each ρ."""
        counts = [(row == CAN, row == UNDECIDED) for row in self.verdict]
        return tuple(Rate(int(c.sum()), len(c), int(u.sum())) for c, u in counts)

    def __str__(self) -> str:
        kind = ", mass may move between groups" if self.between_groups else ""
        lines = [f"relaxed masses of {len(self.node):,} LPs{kind}{about(self.scope)}:"]
        for k, rho in enumerate(self.slack):
            known = self.verdict[k] != UNDECIDED
            margin, missing = self.margin[k][known], int((~known).sum())
            # Behind a head a bound may be far above the margin that was found.
            tight = self.bound[k][known] - margin <= 1e-6 * (1 + np.abs(margin))
            mean = float(margin.mean()) if len(margin) else float("nan")
            words = f"mean γ {mean:.4g}, " if tight.all() else ""
            lost = f", {missing:,} undecided and left out" if missing else ""
            lines.append(f"  ρ = {rho:g}: {words}reach {100 * self.reach[k]:.1f} %{lost}")
        return "\n".join(lines)

    __repr__ = __str__


def relaxed_margins(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None = None,
    *,
    slack: Sequence[float] = SLACKS,
    between_groups: bool = False,
    threads: int | None = None,
) -> RelaxedMargins:
    """γ_v(c) when each group's mass may lie in m_g(1−ρ) … m_g(1+ρ), for each ρ in ``slack``.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: a class per node, or ``"all"``.
        nodes: which nodes.
        slack: values of ρ between 0 (the exact oracle) and 1 (mass may vanish or double).
        between_groups: constrain only the total mass of a node, so that groups may trade.
        threads: worker threads.

    Returns:
        Margins, or behind a head the largest found, with verdicts.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    try:
        rhos = tuple(check_number(rho, "slack") for rho in slack)
    except TypeError as error:
        raise InputError(
            f"slack must be a list of numbers between 0 and 1, not {slack!r}"
        ) from error
    if not rhos:
        raise InputError("slack is an empty list; give numbers between 0 and 1")
    solutions = [
        solve(relax(exposure, rho, between_groups), target, nodes, threads=threads) for rho in rhos
    ]
    first, headed = solutions[0], exposure.head is not None
    margin = np.stack([np.where(one.decided | headed, one.margin, np.nan) for one in solutions])
    bound = np.stack([one.bound for one in solutions])
    verdict = np.stack([one.verdict for one in solutions])
    if headed:
        _carry(np.array(rhos), margin, bound, verdict)
    asked = first.member, first.node, first.target
    return RelaxedMargins(rhos, between_groups, *asked, margin, bound, verdict, exposure.scope)


def _carry(slack: Floats, margin: Floats, bound: Floats, verdict: NDArray[np.str_]) -> None:
    """The set of admissible λ grows with ρ: what wins within a part of it wins in the whole, and
    what the whole excludes no part allows."""
    up = np.argsort(slack, kind="stable")
    down = up[::-1]
    margin[up], bound[down] = np.fmax.accumulate(margin[up]), np.fmin.accumulate(bound[down])
    for order, word in ((up, CAN), (down, CANNOT)):
        carried = np.logical_or.accumulate(verdict[order] == word)
        verdict[order] = np.where(carried, word, verdict[order])


def relax(exposure: Exposure, slack: float, between_groups: bool = False) -> Exposure:
    """The exposure whose exact-mass problem is the relaxed problem of ``exposure``.

    It has the same frozen logits. Its null terms point at the last table row: a zero contribution,
    a zero message of its own, sent by nobody (source −1). Repairs and reports, which are about
    messages that somebody sent, refuse it.
    """
    require_exposure(exposure)
    slack = check_number(slack, "slack")
    if not 0 <= slack <= 1:
        raise InputError(f"slack must lie between 0 and 1, not {slack}")
    mixture = exposure.aggregate
    if between_groups:  # one group with all terms
        mixture = replace(
            mixture,
            groups=(Group("all groups", "merged", "merged"),),
            segments=mixture.segments[:: mixture.num_groups].contiguous(),
        )
    behind = torch.arange(mixture.num_terms)
    if slack > 0:
        mixture, behind = _with_slack(mixture, slack)
    if exposure.head is None:
        return mixture
    replay = remap_replay(exposure, behind)
    return mixture.with_head(exposure.head, exposure.frozen_logits, exposure.residual, replay)


def _with_slack(exposure: Exposure, slack: float) -> tuple[Exposure, Tensor]:
    """The relaxed exposure, and the term of ``exposure`` behind each of its terms, −1 for a null
    term (the last of a loose group)."""
    names = ("firm", "loose") if slack < 1 else ("loose",)
    lengths, parts = exposure.segments.diff(), len(names)
    counts = torch.stack([lengths, lengths + (lengths > 0).long()][-parts:], dim=1).reshape(-1)
    segments = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    new = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    place = torch.arange(len(new), device=counts.device) - segments[new]
    old = new // parts
    behind = torch.where(place < lengths[old], exposure.segments[old] + place, -1)
    null, firm = behind < 0, new % parts < parts - 1
    # (1−ρ)α on firm terms, ρα on loose ones and ρm on null terms, so that logits stay.
    alpha = exposure.coefficients.double()[:, behind.clamp(min=0)]
    share = torch.where(null, exposure.mass.flatten(1)[:, old], alpha)
    rows = pad(exposure.rows, (0, 1), value=exposure.contributions.shape[1])
    relaxed = replace(
        exposure,
        groups=tuple(
            Group(f"{group.name} ({part})", group.rule, group.coefficients_from)
            for group in exposure.groups
            for part in names
        ),
        segments=segments,
        rows=rows[behind],
        coefficients=torch.where(firm, share * (1 - slack), share * slack),
        contributions=pad(exposure.contributions, (0, 0, 0, 1)),
        messages=pad(exposure.messages, (0, 0, 0, 1)),
        message_rows=pad(exposure.message_rows, (0, 1), value=exposure.messages.shape[1]),
        sources=pad(exposure.sources, (0, 1), value=-1),
        residual=None,
    )
    return relaxed, behind
