"""The backbone itself, trained anew on the labels that repairs see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen, train_backbone
from gnn_repair.devices import out_of_memory_hint
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.base import Repair
from gnn_repair.repair.controls.kept import KeptPrediction, check_kept, keep
from gnn_repair.repair.folds import FOLDS, Folding, Task, averaged, by_node, prepare
from gnn_repair.repair.progress import Listener
from gnn_repair.repair.targets import Targets
from gnn_repair.training import ProgressCallback

MANY = 2**31
"""No budget has more epochs."""


@dataclass(frozen=True)
class RetrainedBackbone(Repair[KeptPrediction]):
    """The backbone itself, trained anew on training nodes and four fifths of validation.

    One model a fold, each kept at its best epoch on that fold; log-probabilities are averaged.
    """

    folds: int = FOLDS
    seed: int = 0

    def __post_init__(self) -> None:
        _ = Folding(self.folds, seed=self.seed)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """With the protocol's seed."""
        return cls(seed=settings.seed)

    @property
    def most_epochs(self) -> int:
        """As many as the backbone's own budget allows, which it does not know."""
        return MANY

    def fit(
        self,
        exposure: Exposed,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        frozen: Frozen | None = None,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
        progress: bool = False,
    ) -> KeptPrediction:
        """Train ``frozen``'s architecture within its budget, on its own graph; batches do not
        matter."""
        if not isinstance(frozen, Frozen):
            raise InputError("a retrained backbone needs frozen=…, the model that is trained anew")
        listener = Listener(self.title, on_progress, progress)
        task = prepare(exposure, y, train_mask, val_mask, None, device)
        if frozen.data.num_nodes != task.exposure.num_nodes:
            raise InputError(
                f"frozen has {frozen.data.num_nodes} nodes but the exposure has "
                f"{task.exposure.num_nodes}; pass the model that was exposed"
            )
        hint = f"training {self.folds * exposure.num_members} backbones anew"
        with out_of_memory_hint(hint), listener:
            return listener.told(self._train(task, frozen, listener.callback))

    def learn(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> KeptPrediction:
        """It needs more than targets."""
        raise InputError("a retrained backbone needs frozen=…, the model that is trained anew")

    def _train(
        self, task: Task, frozen: Frozen, on_progress: ProgressCallback | None
    ) -> KeptPrediction:
        roles = Folding(self.folds, seed=self.seed).roles(task)
        masks = [by_node(task, who).t().cpu() for who in (roles.weights > 0, roles.judged)]
        again = _relabelled(frozen.data, task.y, task.exposure.num_classes, masks)
        trained = train_backbone(
            frozen.backbone,
            again,
            device=task.inputs.device,
            budget=frozen.budget,
            seed=frozen.seed,
            on_progress=on_progress,
        )
        each = trained.logits[:, task.exposure.recipients]
        epochs = (
            trained.best_epoch.view(-1, roles.copies),
            trained.epochs_run.view(-1, roles.copies),
        )
        said = trained.logits.argmax(2).unflatten(0, (-1, roles.copies))
        return keep(
            self,
            task,
            averaged(each, roles.copies),
            single=said,
            best_epoch=epochs[0].median(1).values,
            epochs_run=epochs[1].median(1).values,
            diverged=trained.diverged.view(-1, roles.copies).any(1),
        )

    def fitted(self, **values: Any) -> KeptPrediction:
        """The fitted value with these fields."""
        return KeptPrediction(repair=self, **values)

    def check_constants(self, fitted: KeptPrediction) -> None:
        """Raise where what was read is no prediction."""
        check_kept(fitted)


def _relabelled(data: Data, y: Tensor, classes: int, masks: list[Tensor]) -> Data:
    """The graph with other masks, and labels only where one of them holds."""
    again = data.clone()
    seen = (masks[0] | masks[1]).any(1)
    # What no copy may see is class 0; the number of classes stays that of the model.
    again.y = torch.where(seen, y.cpu(), torch.zeros_like(y.cpu()))
    again.classes = classes
    again.train_mask, again.val_mask = masks
    again.test_mask = None
    return again
