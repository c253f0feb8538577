"""Which arrays a solution is made of, and how some of its LPs are picked out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.thresholds import ACTIVE

ASKED = ("member", "recipient", "node", "target")
"""[L]: what was asked."""
ANSWERED = ("margin", "bound", "status")
"""[L]: what was answered."""
PER_LP = (*ASKED, *ANSWERED, "rival_weights")
"""Arrays with a row an LP."""
PER_TERM = ("terms", "coefficients", "sources", "groups")
"""Arrays with an entry for every term of a support, one support after another."""


def support_entries(indptr: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """The entries of the chosen LPs' supports in their new order, with the new ``indptr``."""
    counts = np.diff(indptr)[chosen]
    ends = np.append(0, np.cumsum(counts))
    entries = np.repeat(indptr[chosen] - ends[:-1], counts) + np.arange(ends[-1])
    return ends, entries


def active_terms(coefficients: Floats, indptr: Integers, threshold: float) -> Integers:
    """[L]: how many terms of each support carry more than ``threshold``."""
    active = np.concatenate([[0], np.cumsum(coefficients > threshold)])
    return active[indptr[1:]] - active[indptr[:-1]]


def in_use(solution: Any, mass: Any) -> NDArray[np.bool_]:
    """[nnz]: whether λ is active beside its group's mass, ``mass`` being the exposure's."""
    owner = np.repeat(np.arange(len(solution)), np.diff(solution.indptr))
    member = np.minimum(solution.member, len(mass) - 1)[owner]
    theirs = np.asarray(mass)[member, solution.recipient[owner], solution.groups]
    return np.asarray(solution.coefficients > ACTIVE * theirs)


def numbered(nodes: Any, n_id: Integers | None) -> Any:
    """What the graph calls the nodes of a sampled subgraph; −1, nobody, stays."""
    return nodes if n_id is None else np.where(nodes < 0, nodes, n_id[nodes])
