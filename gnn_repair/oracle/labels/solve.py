"""Can some reweighting bring an output to its wanted side? In closed form, a million a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure.outputs import require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.labels.extremes import best_terms
from gnn_repair.oracle.labels.questions import Asked, ask
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.tables import (
    Integers,
    Tables,
    as_whole,
    check_number,
    require_exposure,
)
from gnn_repair.oracle.threads import over_lps

CHUNK = 1 << 18
"""Numbers (recipients × groups × outputs) a thread works on at a time: two megabytes, which stay
in its cache, and a millisecond of work."""


def solve_labels(
    exposure: Exposure | Any,
    y: Any,
    nodes: torch.Tensor | None = None,
    *,
    labels: Any = None,
    threshold: float = 0.0,
    threads: int | None = None,
    effort: str | float = "normal",
) -> LabelSolution:
    """Bring every label to its true side by reweighting the messages, as far as that goes.

        γ_v(k) = max { ± (z_k(λ) − θ) :  λ ≥ 0,  Σ_{a∈g} λ_a = m_g for every group g }

    The label of each pair is asked about on its own: each has a λ of its own.

    Args:
        exposure: of a model with several labels a node (``outputs="labels"``), or of links.
        y: [N, K] truths (bool, or 0 and 1; −1 or NaN: unknown, skipped and counted), or ``"flip"``
            for the other side of what the model says, which needs no truth.
        nodes: a mask [N] or [N, S] (member s solves column s), node numbers, or None for all.
        labels: numbers of the labels asked about; all unless given.
        threshold: θ; an output above it is there.
        threads: worker threads; all cores unless given. Results do not depend on it.
        effort: for models with a tail only, as for :func:`solve_oracle`.
    """
    if not isinstance(exposure, Exposure):
        from gnn_repair.oracle.labels.links import solve_links

        return solve_links(exposure, y, nodes, threshold=threshold, threads=threads, effort=effort)
    require_outputs(exposure, "labels", "values")
    threshold = check_number(threshold, "threshold")
    asked = ask(exposure, y, nodes, labels, threshold)
    return solve_asked(exposure, asked, threshold, threads, effort)


def solve_asked(
    exposure: Exposure,
    asked: Asked,
    threshold: float,
    threads: int | None = None,
    effort: str | float = "normal",
) -> LabelSolution:
    """The answers to these questions, whatever the exposure is."""
    if threads is not None and as_whole(threads, "threads") < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if exposure.head is not None:
        from gnn_repair.oracle.labels.tails import solve_tail_labels

        return solve_tail_labels(exposure, asked, threshold, effort)
    require_exposure(exposure)
    tables = Tables.of(exposure)
    margin, where = _extremes(tables, asked, threshold, threads)
    return _packed(exposure, tables, asked, margin, where, threshold)


def _extremes(
    tables: Tables, asked: Asked, threshold: float, threads: int | None
) -> tuple[Any, Any]:
    """The largest margins [P, K'] and the terms that give them [P, K', G] (−1: none)."""
    pairs, width = asked.wanted.shape
    groups = tables.num_groups
    margin, where = np.empty((pairs, width)), np.empty((pairs, width, groups), np.int64)
    whole = len(asked.outputs) == tables.num_classes
    columns = {
        int(s): tables.contributions[s]
        if whole
        else np.ascontiguousarray(tables.contributions[s][:, asked.outputs])
        for s in np.unique(asked.member)
    }
    pieces = [piece for s in columns for piece in _pieces(asked.member, s, width * groups)]

    def work(number: int, _: None) -> None:
        s, part = pieces[number]
        position = asked.position[part]
        signs = np.where(asked.wanted[part], 1.0, -1.0)
        best = np.empty((len(part), groups, width))
        place = np.empty((len(part), groups, width), np.int64)
        best_terms(tables.segments, groups, position, tables.rows, columns[s], signs, best, place)
        mass = tables.mass[min(s, len(tables.mass) - 1), position]
        fixed = tables.fixed_logits[s, tables.nodes[position]][:, asked.outputs]
        margin[part] = signs * (fixed - threshold) + np.einsum("pg,pgk->pk", mass, best)
        where[part] = place.transpose(0, 2, 1)

    over_lps(len(pieces), work, lambda: None, threads)
    return margin, where


def _pieces(member: Integers, wanted: int, size: int) -> list[tuple[int, Integers]]:
    """A member's questions in parts of about CHUNK numbers."""
    own = np.flatnonzero(member == wanted)
    step = max(1, CHUNK // max(1, size))
    return [(wanted, own[first : first + step]) for first in range(0, len(own), step)]


def _packed(
    exposure: Exposure, tables: Tables, asked: Asked, margin: Any, where: Any, threshold: float
) -> LabelSolution:
    """The answers to what is known, with their supports one after another."""
    pair, column = np.nonzero(asked.known)
    position, member = asked.position[pair], asked.member[pair]
    chosen = where[pair, column]
    present = chosen >= 0
    counts = present.sum(1)
    owner, group = np.nonzero(present)
    terms = chosen[owner, group]
    masses = tables.mass[np.minimum(member, len(tables.mass) - 1), position]
    value = margin[pair, column]
    return LabelSolution(
        member=member,
        recipient=position,
        node=tables.nodes[position],
        target=asked.outputs[column],
        wanted=asked.wanted[pair, column],
        margin=value,
        bound=value.copy(),
        indptr=np.append(0, np.cumsum(counts)),
        terms=terms,
        coefficients=masses[owner, group],
        sources=tables.sources[tables.rows[terms]].astype(np.int64),
        groups=group.astype(np.int64),
        threshold=threshold,
        skipped=asked.skipped,
        noun="value" if exposure.outputs == "values" else "label",
        scope=exposure.scope,
        names=exposure.term_names,
        n_id=None if exposure.n_id is None else exposure.n_id.cpu().numpy(),
    )
