"""Terms that no optimum needs, because another term of their group is nowhere worse.

With w ≥ 0 a dominated column never scores above the one that dominates it, so a certificate of the
LP without it is a certificate of the LP.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.tables import Floats, Instance

PAIRWISE = 160
"""Groups up to this size compare every pair of terms (K²·R bits); larger ones a few rivals."""
CHAMPIONS = 64
"""Terms of a larger group that the others are compared with: those with the best worst margin. All
pairs of thousands would take longer than the LP; few terms dominate most."""


def undominated(problem: Instance) -> NDArray[np.bool_]:
    """[K]: the terms to keep; of equal ones the first."""
    keep = np.ones(len(problem.terms), bool)
    for g in range(len(problem.mass)):
        places = np.flatnonzero(problem.group == g)
        gaps = problem.gaps[places]
        compare = _every_pair if len(places) <= PAIRWISE else _with_champions
        keep[places] = compare(gaps)
    return keep


def _every_pair(gaps: Floats) -> NDArray[np.bool_]:
    below = (gaps[:, None] <= gaps[None]).all(2)
    earlier = np.tri(len(gaps), k=-1, dtype=bool)
    return np.asarray(~(below & (~below.T | earlier)).any(1))


def _with_champions(gaps: Floats) -> NDArray[np.bool_]:
    keep, champions = np.ones(len(gaps), bool), 0
    for best in np.argsort(-gaps.min(1), kind="stable"):
        if keep[best]:
            keep &= ~(gaps <= gaps[best]).all(1)
            keep[best] = True
            champions += 1
        if champions == CHAMPIONS:
            break
    return keep
