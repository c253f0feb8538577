"""Which nodes of a large report can be opened: a sample that keeps the file small.

Figures of the overview are over all nodes, whose answers take some bytes each. What the explorer
needs of a node (its terms, their contributions, its logits) takes thousands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnn_repair.reporting.evidence import Evidence, Integers
from gnn_repair.reporting.tail_evidence import TailEvidence

EXPLORED_BYTES = 10 * 2**20
"""Bytes of everything that is there for single nodes: 14 MB in base64, so that a page of 50,000
nodes of a graph of a million stays below 20 MB with answers, labels, edges and scripts."""
LARGEST = 8
"""A node whose terms take more than this part of all bytes is shown without them: one hub of a
large graph would leave no room for the others."""


def within_budget(evidence: Evidence, limit: int | None = None) -> NDArray[np.bool_]:
    """[n]: nodes whose terms are few enough to be shown."""
    terms = np.diff(evidence.starts) * _bytes_a_term(evidence)
    used: NDArray[np.bool_] = terms <= (limit or EXPLORED_BYTES) // LARGEST
    return used


def explored(evidence: Evidence, limit: int | None = None) -> Integers:
    """Places in the list, ascending, of the nodes that can be opened; all where they fit.

    Where they do not, any number of them is spread evenly over the list, which is sorted by right
    and wrong and by γ: places are taken in the order of their reversed bits.
    """
    n = len(evidence.nodes)
    order = np.argsort(_reversed_bits(n), kind="stable")
    kept = within_budget(evidence, limit)
    used = np.cumsum(_bytes(evidence, order, kept)[order])
    count = int(np.searchsorted(used, limit or EXPLORED_BYTES, side="right"))
    return np.sort(order[: max(1, count)])


def _reversed_bits(n: int) -> Integers:
    numbers, out = np.arange(n), np.zeros(n, np.int64)
    for _ in range(max(1, (n - 1).bit_length())):
        out = 2 * out + numbers % 2
        numbers = numbers // 2
    return out


def _bytes_a_term(evidence: Evidence) -> int:
    """Row, α, the λ of every repair that reweights; with a tail the logits of the term alone."""
    reweighted = sum(item.coefficients is not None for item in evidence.corrections)
    each = (2 if len(evidence.sources) < 2**16 else 4) + 4 * (1 + reweighted)
    return each + (4 * evidence.num_classes if evidence.tail is not None else 0)


def _bytes(evidence: Evidence, order: Integers, kept: NDArray[np.bool_]) -> Integers:
    """[n]: what each node adds to the file when they are added in this order."""
    n, classes = len(evidence.nodes), evidence.num_classes
    logits = 3 + len(evidence.corrections) + (evidence.tail is not None)
    lengths = np.diff(evidence.starts) * kept
    # A row of the table is written once, for the first node that points at it.
    turn = np.empty(n, np.int64)
    turn[order] = np.arange(n)
    owner = np.repeat(np.arange(n), np.diff(evidence.starts))
    first = np.full(len(evidence.sources), n)
    np.minimum.at(first, evidence.rows[kept[owner]], turn[owner][kept[owner]])
    rows = np.bincount(first, minlength=n + 1)[:n][turn]
    witness = np.bincount(owner[evidence.witness > 0], minlength=n) * kept
    total: Integers = (
        4 * classes * logits + lengths * _bytes_a_term(evidence) + rows * 4 * (classes + 1)
    ) + witness * 6
    return total


def cut(evidence: Evidence, places: Integers) -> Evidence:
    """The evidence about some of the nodes, and no more of its tables than they need."""
    groups = len(evidence.groups)
    lengths = np.diff(evidence.segments).reshape(-1, groups)[places].ravel()
    terms = _ranges(evidence.starts[places], np.diff(evidence.starts)[places])
    used, rows = np.unique(evidence.rows[terms], return_inverse=True)
    sources = evidence.sources[used]
    return replace(
        evidence,
        nodes=evidence.nodes[places],
        degree=evidence.degree[places],
        homophily=evidence.homophily[places],
        frozen_logits=evidence.frozen_logits[places],
        fixed_logits=evidence.fixed_logits[places],
        segments=np.append(0, np.cumsum(lengths)),
        rows=rows.astype(np.int64),
        coefficients=evidence.coefficients[terms],
        contributions=evidence.contributions[used],
        sources=sources,
        margin=evidence.margin[places],
        rival_weights=evidence.rival_weights[places],
        witness=evidence.witness[terms],
        corrections=tuple(
            replace(
                item,
                logits=item.logits[places],
                coefficients=None if item.coefficients is None else item.coefficients[terms],
            )
            for item in evidence.corrections
        ),
        edges=_edges_among(evidence, evidence.nodes[places], sources),
        tail=None if evidence.tail is None else _cut_tail(evidence.tail, places, terms),
    )


def _cut_tail(tail: TailEvidence, places: Integers, terms: Integers) -> TailEvidence:
    return replace(
        tail,
        verdict=tail.verdict[places],
        margin=tail.margin[places],
        bound=tail.bound[places],
        reasons=tuple(tail.reasons[i] for i in places),
        oracle_logits=tail.oracle_logits[places],
        alone_logits=tail.alone_logits[terms],
    )


def _edges_among(evidence: Evidence, nodes: Integers, sources: Integers) -> Integers | None:
    """Edges between nodes that a picture of a neighbourhood can show."""
    if evidence.edges is None:
        return None
    shown = np.zeros(len(evidence.labels), bool)
    shown[nodes] = True
    shown[sources] = True
    return evidence.edges[:, shown[evidence.edges].all(0)]


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """start, start + 1, … of every range, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
