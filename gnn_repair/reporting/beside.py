"""A second run on the page, to compare nodes with: another split, another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.reporting.evidence import Evidence
from gnn_repair.reporting.payload import encode_array, run_payload

PARTS = ("the training nodes", "the validation nodes", "no part", "the test nodes")
"""Where a node can belong in a run; the page says so where that is not the last."""
SHARED = ("labels", "edge_sources", "edge_recipients")
"""Arrays that are the same for all runs of a graph; the page's own run holds them."""


@dataclass(frozen=True, eq=False)
class Beside:
    """Another run's evidence at the page's nodes."""

    evidence: Evidence
    parts: NDArray[np.int64] | None = None
    """[n]: what each of its nodes is for that run, as a place in PARTS; None: not known."""
    split: int | None = None


def beside_payload(
    others: Mapping[str, Beside | Evidence] | None, own: Evidence
) -> list[dict[str, Any]]:
    """What the page holds of the runs beside its own, by title."""
    if others is None:
        return []
    if not isinstance(others, Mapping):
        raise InputError(f"beside is {others!r:.60}; give a mapping from titles to evidence")
    return [_one(str(title), other, own) for title, other in others.items()]


def _one(title: str, other: Any, own: Evidence) -> dict[str, Any]:
    if isinstance(other, Evidence):
        other = Beside(other)
    if not isinstance(other, Beside):
        raise InputError(
            f"beside[{title!r}] is {other!r:.60}; give what gnn_repair.reporting.gather returns"
        )
    evidence = other.evidence
    if evidence.num_classes != own.num_classes or not np.array_equal(evidence.labels, own.labels):
        raise InputError(f"beside[{title!r}] has other labels; compare runs on the same graph")
    words, arrays = run_payload(evidence, split=other.split)
    if other.parts is not None:
        words["parts"] = list(PARTS)
        arrays["node_parts"] = encode_array(np.asarray(other.parts, np.int64))
    for name in ("classes", "names"):
        words.pop(name)
    for name in SHARED:
        arrays.pop(name, None)
    return {"title": title, "run": words, "arrays": arrays}
