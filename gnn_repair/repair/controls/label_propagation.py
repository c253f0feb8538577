"""Known labels spread over the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from gnn_repair.budget import check_whole
from gnn_repair.exposure import Exposed
from gnn_repair.repair.baselines import TINY, sources_to_recipients
from gnn_repair.repair.controls.kept import KeptPrediction, check_kept, keep
from gnn_repair.repair.correct_and_smooth import normalised_adjacency
from gnn_repair.repair.folds import GraphRepair, Task, by_node
from gnn_repair.training import ProgressCallback

ALPHAS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Strengths that validation accuracy chooses from."""


@dataclass(frozen=True)
class LabelPropagation(GraphRepair[KeptPrediction]):
    """Known labels spread over the graph: no features, no model."""

    layers: int = 50
    """Propagation steps."""

    def __post_init__(self) -> None:
        check_whole("LabelPropagation", "layers", self.layers, 1)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """With the protocol's number of steps."""
        return cls(layers=settings.smoothing_layers)

    @torch.no_grad()
    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> KeptPrediction:
        """Choose the strength with training labels on validation nodes, then spread both."""
        data = task.data
        entries = sources_to_recipients(task.exposure) if data is None else data.edge_index
        entries = entries.to(task.inputs.device).long()
        entries = entries[:, entries[0] != entries[1]]
        operator = normalised_adjacency(entries, task.exposure.num_nodes)
        train, val = by_node(task, task.train), by_node(task, task.val)
        chosen = self._strengths(operator, task, train, val)
        told = self._spread(operator, self._shown(task, train | val), chosen)
        return keep(self, task, told[:, task.exposure.recipients].clamp(min=TINY).log())

    def _shown(self, task: Task, known: Tensor) -> Tensor:
        """Known labels as rows of 0 and 1, [N, S, C]."""
        classes = torch.arange(task.exposure.num_classes, device=known.device)
        return ((task.y.view(-1, 1, 1) == classes) & known.t().unsqueeze(2)).double()

    def _strengths(self, operator: Tensor, task: Task, train: Tensor, val: Tensor) -> Tensor:
        """Each member's best α on validation nodes, the first of the best; [S]."""
        shown, members = self._shown(task, train), task.exposure.num_members
        hits = []
        for alpha in ALPHAS:
            same = torch.full((members,), alpha, dtype=torch.float64, device=val.device)
            said = self._spread(operator, shown, same).argmax(2)
            hits.append(((said == task.y) & val).sum(1))
        return torch.tensor(ALPHAS, dtype=torch.float64, device=val.device)[
            torch.stack(hits).argmax(0)
        ]

    def _spread(self, operator: Tensor, shown: Tensor, alpha: Tensor) -> Tensor:
        """``layers`` times x ← α Âx + (1 − α) shown, as shares; [S, N, C]."""
        gain = alpha.view(1, -1, 1)
        out = shown
        for _ in range(self.layers):
            out = gain * (operator @ out.flatten(1)).view_as(shown) + (1 - gain) * shown
        total = out.sum(2, keepdim=True)
        even = torch.full_like(out, 1 / out.shape[2])
        return torch.where(total > 0, out / total.clamp(min=TINY), even).transpose(0, 1)

    def fitted(self, **values: Any) -> KeptPrediction:
        """The fitted value with these fields."""
        return KeptPrediction(repair=self, **values)

    def check_constants(self, fitted: KeptPrediction) -> None:
        """Raise where what was read is no prediction."""
        check_kept(fitted)
