"""Questions beyond the largest margin: the smallest change, terms that are needed, masses that
give way. Each is answered exactly without a head, and by verdicts behind one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.nearest import nearest_behind_head
from gnn_repair.oracle.problems import check_number, require_exposure
from gnn_repair.oracle.questions.nearest import Nearest, nearest
from gnn_repair.oracle.questions.relaxed import (
    SLACKS,
    RelaxedMargins,
    margins_by_slack,
    slacks,
)
from gnn_repair.oracle.questions.stable import StableEvidence, near_optimal, needed_terms
from gnn_repair.published import REACHABLE


def nearest_reweighting(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor | None = None,
    *,
    margin: float = REACHABLE,
    threads: int | None = None,
) -> tuple[Nearest, ...]:
    """The admissible λ closest to α in moved mass that makes the target win by ``margin``.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes.
        margin: the worst-rival margin to reach; a win to :func:`solve` unless given.
        threads: worker threads, each with its own highspy.

    Returns:
        One answer per node. With a head, a λ that was run through the model and the mass that it
        moves, with what is proved to move at least.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    margin = check_number(margin, "margin")
    if exposure.head is not None:
        return nearest_behind_head(exposure, target, nodes, margin)
    return nearest(exposure, target, nodes, margin, threads)


def stable_evidence(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor,
    *,
    epsilon: float = 1e-3,
    threads: int | None = None,
) -> tuple[StableEvidence, ...]:
    """The smallest and largest λ_a of every term over reweightings within ``epsilon`` of γ.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes; this solves up to two LPs per term, so choose a few.
        epsilon: how far below γ, in logits; γ of a model with a head is known up to its verdict
            only, so there the question is whether the class still wins without the term.
        threads: worker threads, each with its own highspy.

    Returns:
        One answer per node. With a head, a verdict about every term.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    epsilon = check_number(epsilon, "epsilon")
    if not epsilon > 0:
        raise InputError(f"epsilon must be positive, not {epsilon}")
    if exposure.head is not None:
        return needed_terms(exposure, target, nodes)
    return near_optimal(exposure, target, nodes, epsilon, threads)


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
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    return margins_by_slack(exposure, target, nodes, slacks(slack), between_groups, threads)
