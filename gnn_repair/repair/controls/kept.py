"""A prediction that holds for one graph only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import FittedRepair, Repair
from gnn_repair.repair.cross_fitting import check_graph, signature
from gnn_repair.repair.fold_task import Task, by_node


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptPrediction(FittedRepair):
    """A prediction for one graph, kept as it was made."""

    @torch.no_grad()
    def logits(self, exposure: Exposure) -> Tensor:
        """Log-probabilities at the recipients, [S, n, C] float64; on its own graph only."""
        self._matching(exposure)
        check_graph(self.constants["signature"], exposure, self.repair.title)
        kept = self.constants["log_probs"].to(exposure.recipients.device)
        return kept[:, exposure.recipients].double()

    @property
    def single(self) -> Tensor | None:
        """[S, models, N]: the class each single model says, where several were averaged."""
        return self.constants.get("single")


def keep(repair: Repair[Any], task: Task, log_probs: Tensor, **more: Tensor) -> KeptPrediction:
    zeros = torch.zeros(task.exposure.num_members, dtype=torch.long, device=task.val.device)
    values: dict[str, Any] = {"best_epoch": zeros, "epochs_run": zeros, "diverged": zeros.bool()}
    values |= {name: more.pop(name) for name in tuple(values) if name in more}
    constants = {
        "log_probs": by_node(task, log_probs),
        "signature": signature(task.exposure),
        **more,
    }
    fitted: KeptPrediction = repair.fitted(
        width=task.inputs.width,
        num_classes=task.inputs.num_classes,
        parameters={},
        constants=constants,
        **values,
    )
    return fitted
