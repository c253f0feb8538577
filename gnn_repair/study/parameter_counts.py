"""How many parameters the paper's adapters have, from its own formulas; plain arithmetic.

F(i, o) = iH + H + Ho + o with H = 128, d_x = 3d + 3C + 2. The state is 128 wide where a backbone
has two layers, and as wide as the raw features for SGC, MixHop and H2GCN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gnn_repair.published import published

HIDDEN = 128
"""The width of the paper's backbones and adapters."""
WIDE = ("sgc", "mixhop", "h2gcn")
"""Backbones whose state is the raw feature vector."""


class Counts(NamedTuple):
    """Of one case."""

    set_translation: int
    reweighting: int
    node_translation: int

    @property
    def mismatch(self) -> float:
        """Of node against set translation, in per cent of the latter."""
        gap = abs(self.node_translation - self.set_translation)
        return 100 * gap / self.set_translation


def published_cases() -> list[Counts]:
    """The paper's 64 cases."""
    backbones = published()["tables"]["frozen"]["cells"]
    graphs: Mapping[str, Mapping[str, Any]] = published()["datasets"]
    return [
        counts(graph["features"] if backbone in WIDE else HIDDEN, graph["classes"])
        for graph in graphs.values()
        for backbone in backbones
    ]


def counts(state: int, classes: int) -> Counts:
    """For a state d wide and C classes."""
    pair, context = 3 * state + 3 * classes + 2, state + classes + HIDDEN + 1
    encoder = _size(pair, HIDDEN)
    translation = encoder + _size(context, classes)
    step = state + 2 * classes + 1
    low = max(1, (translation - classes) // step)
    widths = [width * step + classes for width in (low, low + 1)]
    node = min(widths, key=lambda size: abs(size - translation))
    return Counts(translation, encoder + _size(pair + context, 1), node)


def _size(inputs: int, outputs: int) -> int:
    return inputs * HIDDEN + HIDDEN + HIDDEN * outputs + outputs
