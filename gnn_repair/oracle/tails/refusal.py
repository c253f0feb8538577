"""Questions that are linear programs only where a model ends affinely."""

from __future__ import annotations

from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.tailed import TailedExposure


def refuse_tail(exposure: Any, question: str) -> None:
    """Raise InputError where an exposure has a nonlinear tail."""
    if isinstance(exposure, TailedExposure):
        titles = list(dict.fromkeys(operation.title for operation in exposure.tail.operations))
        raise InputError(
            f"{question} needs a model that ends affinely, and this one ends in "
            f"{', '.join(titles)}; ask solve_oracle, which answers for it"
        )
