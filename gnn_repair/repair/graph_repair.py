"""Repairs that may read the graph beside the exposure."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch_geometric.data import Data

from gnn_repair.exposure import Exposed
from gnn_repair.repair.base import F, Repair
from gnn_repair.repair.fold_task import Task, task_of
from gnn_repair.repair.targets import Targets
from gnn_repair.training import ProgressCallback


@dataclass(frozen=True)
class GraphRepair(Repair[F]):
    """A repair that reads labels over the graph, or the graph itself where it is given."""

    def learn_with(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        data: Data | None,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """With the graph. Without it, neighbours are the exposure's own sources and there are no
        raw features to read; validation nodes must be at least as many as there are folds."""
        return self.learn_task(task_of(exposure, train, val, data), batch_size, on_progress)

    def learn(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Without the graph."""
        return self.learn_task(task_of(exposure, train, val), batch_size, on_progress)

    @abstractmethod
    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> F:
        """Learn from what is known to be sound, where the exposure is."""
