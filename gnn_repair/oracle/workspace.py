"""The memory one thread works in: seven arrays, because passing many to a kernel costs time."""

from typing import Any, NamedTuple

import numpy as np

from gnn_repair.oracle.vectors.lanes import WIDTH, aligned

SMALL = 128
"""Up to so many terms the simplex method sees every column: so many numbers of eight classes are
what a first-level cache holds a quarter of."""
CANDIDATES = 48
"""Columns that a pass over a large LP may add, about: a few times the size of most bases, so that
one or two passes suffice, and few enough to price at once."""
STRIP = 512
"""Terms scored at a time, so that scores stay in the first-level cache."""
COPIED = 60_000
"""Numbers of a large LP's terms that are kept at hand: half a megabyte, within a second-level
cache."""
STRIDE = 4 * WIDTH
"""Columns priced at a time: four vectors hide the time that one multiply-add takes to finish."""

GAMMA = -1
SLACK = -2
"""Numbers of variables that are no columns: γ, and SLACK − r for the slack of class r."""
HUGE = 1e300
"""Stands for a value that never blocks a step: γ may take any, and the target is no rival."""

OFFSET, VALUES, STEP, DUAL, MASS, TOPS, LOOSE, INVERSE = range(8)
"""Rows of ``state``."""
HEAD, TIGHT, LOWS, BOUNDS, PRESENT, CHOSEN, AHEAD = range(7)
"""Rows of ``places``."""
GROUP, TERM = range(2)
"""Rows of ``labels``."""


class Room(NamedTuple):
    """Well under a megabyte, whatever the exposure's size; n = C + G positions, padded by zeros."""

    entries: Any
    """[C, capacity + STRIDE]: D_{a,r} of the columns the simplex method works on, scaled."""
    labels: Any
    """[2, capacity] int64: of each column, the GROUP and the exposure's TERM."""
    state: Any
    """[INVERSE + n, n]: where the method stands.

    OFFSET [C]: d_r ≥ 0, less the smallest, scaled; HUGE for the target.
    VALUES [n]: the basic solution, HUGE for γ and the target's slack.
    STEP [n]: how the basic variables fall as the entering one rises; also scratch.
    DUAL [slot]: u_g and w_r.
    MASS [G]: m_g of each group that is present.
    TOPS [G]: max_a w·D_a of each; also scratch.
    LOOSE [C]: 1 where the slack of class r is basic, else 0.
    INVERSE + slot [n]: the stored columns of the basis inverse, by position.
    """
    places: Any
    """[7, n] int64.

    HEAD [n]: the variable at each position: a column j ≥ 0, GAMMA, or SLACK − r at r.
    TIGHT [slot ≥ B]: the rival of each slot.
    LOWS [G + 1]: where the terms of each group that is present begin, and the end.
    BOUNDS [G + 1]: the first columns, by group.
    PRESENT [G]: the exposure's number of each group that is present.
    CHOSEN [n]: scratch.
    AHEAD [2]: the terms the next LP will read, where fetching them early pays.
    """
    copies: Any
    """[strips · C, STRIP + STRIDE]: ℓ of a large LP's terms, strip by strip. The last strip is
    for those that do not fit."""
    buffer: Any
    """Scores."""
    full: Any
    """[n, 2n]: to invert the basis afresh."""


def new_room(classes: int, groups: int, widest: int) -> Room:
    """Memory for LPs of up to ``groups`` groups and ``widest`` terms."""
    size = classes + groups
    width = (size // WIDTH + 2) * WIDTH
    # Rows that begin 17 cache lines apart (modulo 32) meet in different cache sets.
    lines = (6 * CANDIDATES + 8 * size + STRIDE) // WIDTH + 32
    capacity = (lines - (lines - 17) % 32) * WIDTH - STRIDE
    scores = max(capacity, STRIP, 2 * widest // CANDIDATES + 32)
    length = max(STRIP, (widest // CANDIDATES + 16) // 16 * 16) + STRIDE
    strips = min(widest // (STRIP // 2) + groups, COPIED // (classes * length)) + 1
    return Room(
        aligned(classes, capacity + STRIDE),
        np.zeros((2, capacity), np.int64),
        aligned(INVERSE + size, width),
        np.zeros((AHEAD + 1, width), np.int64),
        aligned((strips if widest > SMALL else 1) * classes, length),
        aligned(scores + STRIDE + WIDTH),
        aligned(size, 2 * size // WIDTH * WIDTH + WIDTH),
    )


_RESTING: dict[tuple[int, int, int], list[Room]] = {}


def take_room(classes: int, groups: int, widest: int) -> Room:
    """A room that rests since an earlier call, or a new one.

    Memory that the system has just handed out is slow at first: it is a third of a call for one LP.
    """
    try:
        return _RESTING[classes, groups, widest].pop()
    except (KeyError, IndexError):
        return new_room(classes, groups, widest)


def rest(rooms: list[Room], classes: int, groups: int, widest: int) -> None:
    """Keep rooms of this size for the next call, and none of another."""
    _RESTING.clear()
    _RESTING[classes, groups, widest] = rooms
