"""What the exact-mass constraint costs: γ when masses may give way.

A group whose mass may lie in m(1−ρ) … m(1+ρ) is two groups of exact mass: its terms with mass
m(1−ρ), and its terms plus a null term (ℓ = 0) with mass 2ρm. Letting mass move between groups
is one group with all terms. So a relaxed problem is an exact-mass problem on another exposure,
and our own solver and its certificates serve unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.oracle.problems import (
    CAN,
    CANNOT,
    UNDECIDED,
    Floats,
    Integers,
    check_number,
    require_exposure,
)
from gnn_repair.oracle.rates import Rate, mean_over_members
from gnn_repair.oracle.solver import solve

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
        lines = [f"relaxed masses of {len(self.node):,} LPs{kind}:"]
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


def margins_by_slack(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None,
    slack: tuple[float, ...],
    between_groups: bool,
    threads: int | None,
) -> RelaxedMargins:
    """γ for each slack, or verdicts about it behind a head."""
    solutions = [
        solve(relax(exposure, rho, between_groups), target, nodes, threads=threads) for rho in slack
    ]
    first, headed = solutions[0], exposure.head is not None
    margin = np.stack([np.where(one.decided | headed, one.margin, np.nan) for one in solutions])
    bound = np.stack([one.bound for one in solutions])
    verdict = np.stack([one.verdict for one in solutions])
    if headed:
        _carry(np.array(slack), margin, bound, verdict)
    return RelaxedMargins(
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


def slacks(slack: Sequence[float]) -> tuple[float, ...]:
    try:
        slacks = tuple(check_number(rho, "slack") for rho in slack)
    except TypeError as error:
        raise InputError(
            f"slack must be a list of numbers between 0 and 1, not {slack!r}"
        ) from error
    if not slacks:
        raise InputError("slack is an empty list; give numbers between 0 and 1")
    return slacks


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
    relaxed = _with_slack(mixture, slack) if slack > 0 else mixture
    if exposure.head is None:
        return relaxed
    behind, terms, replay = _old_terms(mixture, slack), exposure.num_terms, exposure.replay

    def replay_relaxed(coefficients: Tensor) -> Tensor:
        assert replay is not None
        sent = behind >= 0
        whole = torch.zeros(terms, dtype=torch.float64)
        whole.index_add_(0, behind[sent].cpu(), coefficients.double().cpu()[sent])
        return replay(whole.to(coefficients.device))

    run = replay_relaxed if replay else None
    return relaxed.with_head(exposure.head, exposure.frozen_logits, exposure.residual, run)


def _with_slack(exposure: Exposure, slack: float) -> Exposure:
    firm, total = slack < 1, exposure.num_terms
    lengths = exposure.segments.diff()
    present = (lengths > 0).long()
    loose = lengths + present
    new = torch.stack([lengths, loose], dim=1) if firm else loose.unsqueeze(1)
    segments = torch.cat([new.new_zeros(1), new.reshape(-1).cumsum(0)])
    origin = _origins(exposure.segments, lengths, loose, firm)
    null = origin < 0
    rows = torch.cat([exposure.rows, exposure.rows.new_tensor([exposure.contributions.shape[1]])])
    share = _shares(exposure, segments, origin, slack, firm)
    names = [
        Group(f"{group.name} ({part})", group.rule, group.coefficients_from)
        for group in exposure.groups
        for part in (("firm", "loose") if firm else ("loose",))
    ]
    table, messages = exposure.contributions, exposure.messages
    last_message = exposure.message_rows.new_full((1,), messages.shape[1])
    return replace(
        exposure,
        groups=tuple(names),
        segments=segments,
        rows=rows[torch.where(null, total, origin)],
        coefficients=share,
        contributions=torch.cat([table, table.new_zeros(table.shape[0], 1, table.shape[2])], dim=1),
        messages=torch.cat([messages, messages.new_zeros(len(messages), 1, messages.shape[2])], 1),
        message_rows=torch.cat([exposure.message_rows, last_message]),
        sources=torch.cat([exposure.sources, exposure.sources.new_full((1,), -1)]),
        residual=None,
    )


def _old_terms(exposure: Exposure, slack: float) -> Tensor:
    """[T']: the term of ``exposure`` behind each term of the relaxed one, −1 for a null term."""
    if slack == 0:
        return torch.arange(exposure.num_terms)
    lengths = exposure.segments.diff()
    return _origins(exposure.segments, lengths, lengths + (lengths > 0).long(), slack < 1)


def _origins(segments: Tensor, lengths: Tensor, loose: Tensor, firm: bool) -> Tensor:
    """[T']: the old term behind each new one, −1 for a null term (the last of a loose group)."""
    parts = [lengths, loose] if firm else [loose]
    counts = torch.stack(parts, dim=1).reshape(-1)
    begin = segments[:-1].repeat_interleave(len(parts))
    ends = counts.cumsum(0)
    place = torch.arange(int(ends[-1])) - (ends - counts).repeat_interleave(counts)
    old = lengths.repeat_interleave(len(parts)).repeat_interleave(counts)
    return torch.where(place < old, begin.repeat_interleave(counts) + place, -1)


def _shares(
    exposure: Exposure, segments: Tensor, origin: Tensor, slack: float, firm: bool
) -> Tensor:
    """(1−ρ)α on firm terms, ρα on loose ones and ρm on null terms, so that logits stay."""
    parts = 2 if firm else 1
    counts = segments.diff()
    kind = torch.arange(len(counts)) % parts if firm else torch.ones(len(counts), dtype=torch.long)
    factor = torch.where(kind == 0, 1 - slack, slack).double().repeat_interleave(counts)
    mass = exposure.mass.reshape(exposure.mass.shape[0], -1)
    mass = mass.repeat_interleave(parts, dim=1).repeat_interleave(counts, dim=1)
    alpha = exposure.coefficients.double()[:, origin.clamp(min=0)]
    return torch.where(origin < 0, mass, alpha) * factor
