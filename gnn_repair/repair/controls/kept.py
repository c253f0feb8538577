"""A prediction that holds for one graph only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import Repair
from gnn_repair.repair.cross_fitting import check_graph, signature
from gnn_repair.repair.fitted import FittedRepair, about, untrained
from gnn_repair.repair.fold_task import Task, by_node


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
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
    """The fitted value of log-probabilities [S, n, C]; ``more``: statistics and constants."""
    statistics = untrained(task.exposure)
    statistics |= {name: more.pop(name) for name in tuple(statistics) if name in more}
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
    """Log-probabilities [S, N, C], a signature [S, N], and single models [S, K, N] or none."""
    held = fitted.constants
    if not {"log_probs", "signature"} <= held.keys() <= {"log_probs", "signature", "single"}:
        raise InputError("a kept prediction holds log_probs and a signature")
    nodes = held["signature"].shape[1:]
    if len(nodes) != 1 or held["log_probs"].shape[1:] != (*nodes, fitted.num_classes):
        raise InputError("log_probs must be [members, nodes, classes]")
    if "single" in held and held["single"].shape[2:] != nodes:
        raise InputError("single models must speak of every node")
