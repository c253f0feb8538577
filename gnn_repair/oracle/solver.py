"""From an exposure to its solution: classes, labels and values, with or without a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import as_table
from gnn_repair.exposure.value import Exposure
from gnn_repair.kernel_cache import cached_njit
from gnn_repair.oracle.fallback import solve_with_highs, solve_with_second_attempts
from gnn_repair.oracle.heads.solve import budget_of, solve_head
from gnn_repair.oracle.lps import check_threads, map_lps
from gnn_repair.oracle.problems import (
    FIXED,
    OPTIMAL,
    Problems,
    Tables,
    binarise,
    check_number,
    describe_exposure,
    pose_label_problems,
    pose_problems,
    require_exposure,
)
from gnn_repair.oracle.solution import OutputPart, Solution, build_solution

METHODS = {"simplex": solve_with_second_attempts, "highs": solve_with_highs}
SolverName = Literal["simplex", "highs"]
Target = Tensor | Literal["all"]
CHUNK = 1 << 14
"""Labels a thread takes at a time: a millisecond of work."""


def solve(
    exposure: Exposure | LinkExposure,
    y: Any,
    nodes: Any = None,
    *,
    labels: Any = None,
    threshold: float = 0.0,
    method: SolverName = "simplex",
    threads: int | None = None,
    effort: str | float = "normal",
) -> Solution:
    """Bring outputs to their wanted sides by reweighting the messages, as far as that goes.

    Of classes the worst rival's margin is maximised,

        γ_v(c) = max { min_{r≠c} z_c(λ) − z_r(λ) :  λ ≥ 0,  Σ_{a∈g} λ_a = m_g for every group g },

    of labels and values ± (z_k(λ) − θ), which is the same problem for the classes (0, z_k − θ).
    Every question has a λ of its own.

    Args:
        exposure: the frozen model's final aggregation, or that of links.
        y: of classes [N] the class c of each node of the graph (−1: unknown, skipped and counted),
            or ``"all"`` for every class of every node; of labels, values and links [N, K] truths
            (bool, or 0 and 1; −1 or NaN: unknown), or ``"flip"`` for the other side of what the
            model says, which needs no truth.
        nodes: a mask [N] or [N, S] (member s solves column s), node (or link) numbers, or None for
            all.
        labels: of labels and values, the numbers of the outputs asked about; all unless given.
        threshold: θ, of labels and values: an output above it is there.
        method: ``simplex`` is ours; ``highs`` (highspy) is a slower reference for classes without
            a head.
        threads: worker threads; all cores unless given. Results do not depend on it.
        effort: ``fast``, ``normal``, ``full``, or processor seconds for each question that is
            split into cases; only behind a head are there such.

    Returns:
        One answer per question: can, cannot or, where a solve fails or a head leaves a gap,
        undecided, which is never an exception.
    """
    check_threads(threads)
    budget_of(effort)
    if isinstance(exposure, LinkExposure):
        asked = _pose_link_problems(exposure, y, nodes, threshold)
        solution = solve_labels(exposure.mixture, asked, threshold, threads, effort)
        return name_links(exposure, solution)
    require_exposure(exposure)
    if exposure.outputs != "classes":
        threshold = check_number(threshold, "threshold")
        asked = pose_label_problems(exposure, y, nodes, labels, threshold)
        return solve_labels(exposure, asked, threshold, threads, effort)
    if labels is not None or threshold != 0:
        raise InputError("labels and threshold are for outputs that stand for themselves")
    if exposure.head is not None:
        return solve_head(exposure, y, nodes, method=method, effort=effort)
    asked, tables = pose_problems(exposure, y, nodes), Tables.from_exposure(exposure)
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f'method must be "simplex" or "highs", not {method!r}')
    solved = METHODS[method](tables, asked, threads)
    return replace(solved, skipped=asked.skipped, method=method, **describe_exposure(exposure))


def solve_oracle(exposure: Any, target: Any, nodes: Any = None, **options: Any) -> Solution:
    """What :func:`solve` was called in version 0.2."""
    return solve(exposure, target, nodes, **options)


# Labels and values --------------------------------------------------------------------------------


def solve_labels(
    exposure: Exposure,
    asked: Problems,
    threshold: float,
    threads: int | None = None,
    effort: str | float = "normal",
) -> Solution:
    """The answers to questions about outputs that stand for themselves."""
    if exposure.head is not None:
        outputs = np.unique(asked.target).tolist()
        parts = [solve_part(exposure, asked, output, threshold, effort) for output in outputs]
        return join_parts(exposure, parts, asked, threshold)
    tables = Tables.from_exposure(exposure)
    assert asked.wanted is not None
    signs = np.where(asked.wanted, 1.0, -1.0)
    best, where = np.empty(len(asked)), np.empty((len(asked), tables.num_groups), np.int64)

    def work(place: int, _: None) -> None:
        part = slice(CHUNK * place, CHUNK * (place + 1))
        _best_terms(
            asked.member[part], asked.position[part], asked.target[part], signs[part],
            tables.segments, tables.rows, tables.contributions, tables.mass,
            best[part], where[part],
        )  # fmt: skip

    map_lps(-(-len(asked) // CHUNK), work, lambda: None, threads)
    node = tables.nodes[asked.position]
    margin = signs * (tables.fixed_logits[asked.member, node, asked.target] - threshold) + best
    owner, group = np.nonzero(where >= 0)
    terms = where[owner, group]
    member = np.minimum(asked.member, len(tables.mass) - 1)[owner]
    counts = np.bincount(owner, minlength=len(asked))
    return build_solution(
        tables,
        asked,
        counts,
        terms,
        coefficients=tables.mass[member, asked.position[owner], group],
        margin=margin,
        bound=margin.copy(),
        status=np.where(counts > 0, OPTIMAL, FIXED).astype(np.int8),
        outputs=exposure.outputs,
        threshold=threshold,
        method="closed form",
        **describe_exposure(exposure),
    )


@cached_njit(nogil=True)
def _best_terms(  # type: ignore[no-untyped-def]
    members, positions, targets, signs, segments, rows, tables, masses, best, where
):
    """Of every question and group the message that speaks loudest for the wanted side.

    Σ_g Σ_a λ_a ℓ_a over λ ≥ 0, Σ_{a∈g} λ_a = m_g is a linear function on a product of simplices,
    and each simplex's part is largest at a corner: all of m_g on a message with the largest ℓ.
    best [L]: Σ_g m_g max_a ± ℓ_a; where [L, G]: the first term that gives it (−1: no term).
    """
    groups = masses.shape[2]
    for i in range(len(members)):
        table, k, sign = tables[members[i]], targets[i], signs[i]
        mass = masses[min(members[i], masses.shape[0] - 1), positions[i]]
        best[i] = 0.0
        for g in range(groups):
            slot = positions[i] * groups + g
            top, place = -np.inf, -1
            for t in range(segments[slot], segments[slot + 1]):
                value = sign * table[rows[t], k]
                if value > top:
                    top, place = value, t
            where[i, g] = place
            if place >= 0:
                best[i] += mass[g] * top


def solve_part(
    exposure: Exposure,
    asked: Problems,
    output: int,
    threshold: float | Tensor,
    effort: str | float,
) -> OutputPart:
    """The answers about one output behind a head, as a question about two classes."""
    own = asked.taken(asked.target == output)
    nodes = exposure.recipients.cpu()[torch.from_numpy(own.position)]
    target = torch.full((exposure.num_nodes,), -1)
    target[nodes] = torch.as_tensor(own.wanted).long()
    two = binarise(exposure, output, threshold)
    return OutputPart(output, threshold, solve_head(two, target, nodes, effort=effort))


def join_parts(
    exposure: Exposure, parts: list[OutputPart], asked: Problems, threshold: float
) -> Solution:
    """The parts' answers as one solution, in the order in which they were asked."""
    return replace(
        restore_order(asked, [part.solution for part in parts]),
        target=asked.target,
        wanted=asked.wanted,
        outputs=exposure.outputs,
        # Of the outputs themselves; the parts' are differences to a threshold, small on purpose.
        scope=exposure.scope,
        threshold=threshold,
        skipped=asked.skipped,
        parts=tuple(parts),
    )


def restore_order(asked: Problems, answers: Sequence[Solution]) -> Solution:
    """The answers about one output after another, in the order in which they were asked."""
    order = np.argsort(asked.target, kind="stable")
    return Solution.concatenate(answers).taken(np.argsort(order))


# Links --------------------------------------------------------------------------------------------


def _pose_link_problems(exposure: LinkExposure, y: Any, links: Any, threshold: float) -> Problems:
    """The questions about links; y [L] says which are there."""
    threshold = check_number(threshold, "threshold")
    if not isinstance(y, str | bool):
        given = as_table(y, (exposure.num_links, 1))
        whole = torch.full((exposure.mixture.num_nodes, 1), torch.nan, dtype=torch.float64)
        whole[exposure.offset :] = given.cpu()
        y = whole
    return pose_label_problems(exposure.mixture, y, exposure.numbers(links), None, threshold)


def name_links(exposure: LinkExposure, solution: Solution) -> Solution:
    """The solution with links' own numbers and ends."""
    number = solution.node - exposure.offset
    ends = exposure.links.t().cpu().numpy()[number]
    return replace(solution, node=number, links=np.ascontiguousarray(ends), outputs="links")
