"""Repairs that may read the graph beside the exposure."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.budget import check_whole
from gnn_repair.devices import out_of_memory_hint
from gnn_repair.exposure import Exposed
from gnn_repair.repair.base import F, Repair
from gnn_repair.repair.fold_task import Task, prepare, task_of
from gnn_repair.repair.targets import Targets, check_exposure_given
from gnn_repair.training import ProgressCallback


@dataclass(frozen=True)
class GraphRepair(Repair[F]):
    """A repair that reads labels over the graph, or the graph itself where it is given."""

    def fit(
        self,
        exposure: Exposed,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> F:
        """Learn from the labels of training and validation nodes.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read.
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it; at least as many nodes as there are folds.
            data: the graph with ``edge_index`` and ``x``. Without it, neighbours are the
                exposure's own sources and there are no raw features to read.
            batch_size: targets an update sees; all unless given.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
        """
        check_exposure_given(exposure)
        if batch_size is not None:
            check_whole("fit", "batch_size", batch_size, 1)
        with out_of_memory_hint(f"fitting {self.title} for {exposure.num_members} members"):
            task = prepare(exposure, y, train_mask, val_mask, data, device)
            return self.learn_task(task, batch_size, on_progress)

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
