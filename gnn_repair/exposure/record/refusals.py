"""Why no sum over messages was found, in words."""

from __future__ import annotations

from typing import Any

from torch import nn

from gnn_repair.exposure.record.analysis import Analysis
from gnn_repair.exposure.record.words import titled


def why_nothing(analysis: Analysis, model: nn.Module, subject: Any, size: int) -> str:
    """What stands in the way of a mixture."""
    modules = dict(model.named_modules())
    name = type(model).__name__
    steps = analysis.record.steps
    beside = analysis.beside([])
    noun = "node" if subject.graph is not None or size == subject.nodes else "graph"
    if not beside:
        return (
            f"no aggregation happens in {name}'s forward: no operation of it lets one {noun}'s "
            "numbers into another's; where features were propagated beforehand, or a cache holds "
            "them, pass a forward= that propagates"
        )
    last = steps[beside[-1]]
    where = titled(modules, last.module).text
    return (
        f"{where} mixes {noun}s by {last.name}, which is no weighted sum of messages for every "
        f"{noun}; only sums, means and attention can be reweighted"
    )
