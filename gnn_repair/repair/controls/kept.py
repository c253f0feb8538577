"""A prediction that holds for one graph only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.base import Repair
from gnn_repair.repair.fitted import FittedRepair, about, untrained
from gnn_repair.repair.folds import Task, by_node
from gnn_repair.repair.kept_tables import check_graph, check_table, kept_rows, signature


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KeptPrediction(FittedRepair):
    """A prediction for one graph, kept as it was made."""

    @torch.no_grad()
    def logits(self, exposure: Exposed) -> Tensor:
        """Log-probabilities at the recipients, [S, n, C] float64; on its own graph only."""
        self._matching(exposure)
        check_graph(self.constants["signature"], exposure, self.repair.title)
        return kept_rows(self.constants["log_probs"], exposure, self.repair.title)

    @property
    def single(self) -> Tensor | None:
        """[S, models, N]: the class each single model says, where several were averaged."""
        return self.constants.get("single")


def keep(repair: Repair[Any], task: Task, log_probs: Tensor, **more: Tensor) -> KeptPrediction:
    """What was predicted for the recipients; statistics and further constants by name."""
    statistics = untrained(task.exposure)
    statistics |= {name: more.pop(name) for name in statistics if name in more}
    constants = {
        "log_probs": by_node(task, log_probs),
        "signature": signature(task.exposure),
        **more,
    }
    fitted: KeptPrediction = repair.fitted(
        **about(task.exposure), **statistics, parameters={}, constants=constants
    )
    return fitted


def check_kept(fitted: KeptPrediction) -> None:
    """Raise where a prediction read from a file is not one."""
    (nodes,) = check_table(fitted, "signature", torch.float32, None)
    check_table(fitted, "log_probs", torch.float32, nodes, fitted.num_classes)
    if unknown := sorted(fitted.constants.keys() - {"signature", "log_probs", "single"}):
        raise InputError(f"a kept prediction has no constant {unknown[0][:80]!r}")
    if fitted.single is not None:
        check_table(fitted, "single", torch.int64, None, nodes)
        if not bool(((fitted.single >= 0) & (fitted.single < fitted.num_classes)).all()):
            raise InputError(f"single must lie in 0..{fitted.num_classes - 1}")
