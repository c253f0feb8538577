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
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.oracle.problems import Floats, Integers, check_number
from gnn_repair.oracle.rates import count_reach, mean_over_members
from gnn_repair.oracle.solver import solve
from gnn_repair.published import REACHABLE

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
    """[len(slack), L]: γ_ρ; NaN where it was not decided whether the class can win."""
    bound: Floats
    """[len(slack), L]: its certified upper bound."""

    @property
    def reach(self) -> Floats:
        """[len(slack)]: the share of decided LPs whose class can win, the mean over members."""
        return np.array([self._reach(k) for k in range(len(self.slack))])

    def _reach(self, k: int) -> float:
        decided, reachable = ~np.isnan(self.margin[k]), self.margin[k] > REACHABLE
        none = np.zeros(len(decided), np.int64)
        members = [self.member == s for s in np.unique(self.member)]
        return mean_over_members(
            count_reach(reachable[own], reachable[own], none[own], decided[own]).true_class_reach
            for own in members
        )

    def __str__(self) -> str:
        kind = ", mass may move between groups" if self.between_groups else ""
        lines = [f"relaxed masses of {len(self.node):,} LPs{kind}:"]
        for k, rho in enumerate(self.slack):
            known = self.margin[k][~np.isnan(self.margin[k])]
            mean = float(known.mean()) if len(known) else float("nan")
            missing = len(self.node) - len(known)
            lost = f", {missing:,} undecided and left out" if missing else ""
            lines.append(
                f"  ρ = {rho:g}: mean γ {mean:.4g}, reach {100 * self.reach[k]:.1f} %{lost}"
            )
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
    """γ for each slack, of a model without a head."""
    solutions = [
        solve(relax_mixture(exposure, rho, between_groups), target, nodes, threads=threads)
        for rho in slack
    ]
    first = solutions[0]
    return RelaxedMargins(
        slack,
        between_groups,
        first.member,
        first.node,
        first.target,
        np.stack([np.where(one.decided, one.margin, np.nan) for one in solutions]),
        np.stack([one.bound for one in solutions]),
    )


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


def relax_mixture(exposure: Exposure, slack: float, between_groups: bool = False) -> Exposure:
    """:func:`relax` of a mixture, whatever follows it."""
    slack = check_number(slack, "slack")
    if not 0 <= slack <= 1:
        raise InputError(f"slack must lie between 0 and 1, not {slack}")
    if between_groups:
        exposure = merged_groups(exposure)
    return _with_slack(exposure, slack) if slack > 0 else exposure


def merged_groups(exposure: Exposure) -> Exposure:
    """The exposure in which mass may move between groups: one group with all terms."""
    return replace(
        exposure,
        groups=(Group("all groups", "merged", "merged"),),
        segments=exposure.segments[:: exposure.num_groups].contiguous(),
    )


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


def old_terms(exposure: Exposure, slack: float) -> Tensor:
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
