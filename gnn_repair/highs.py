"""The one place that speaks to highspy: how a solver is set up and how a linear program is passed.

highspy loads slowly, so it is imported when first used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TIGHT = 1e-10
"""The smallest feasibility tolerance highspy takes."""
LEFT_OUT = 1e-12
"""Entries below are left out by highspy. LPs are scaled to numbers about one, and this is the
smallest that it takes."""


def new_highs(tolerance: float = TIGHT) -> Any:
    """A quiet highspy object: dual simplex, no presolve, one thread."""
    import highspy

    highs = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("solver", "simplex"),
        ("simplex_strategy", 1),
        ("presolve", "off"),
        ("threads", 1),
        ("primal_feasibility_tolerance", tolerance),
        ("dual_feasibility_tolerance", tolerance),
        ("small_matrix_value", LEFT_OUT),
    ):
        highs.setOptionValue(option, value)
    return highs


def pass_lp(
    highs: Any,
    cost: Floats,
    lower: Floats,
    upper: Floats,
    row_lower: Floats,
    row_upper: Floats,
    matrix: Floats,
    whole: NDArray[np.int32] | None = None,
) -> None:
    """Give ``highs`` the LP min cost·x, row_lower ≤ A x ≤ row_upper, lower ≤ x ≤ upper at once.

    ``matrix`` is A [rows, columns]; ``whole`` is 1 for the columns that must be whole numbers.
    """
    import highspy

    column, row = np.nonzero(matrix.T)
    start = np.searchsorted(column, np.arange(len(cost) + 1))
    highs.passModel(
        len(cost),
        len(row_lower),
        len(column),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        cost,
        lower,
        upper,
        row_lower,
        row_upper,
        start.astype(np.int32),
        row.astype(np.int32),
        matrix[row, column],
        np.zeros(len(cost), np.int32) if whole is None else whole,
    )


def status_of(highs: Any) -> str:
    """How the last run ended; ``Optimal`` is the good end."""
    return str(highs.modelStatusToString(highs.getModelStatus()))
