"""The backbone itself, trained anew on the labels that repairs see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.controls.kept import KeptPrediction, check_kept, keep
from gnn_repair.repair.fold_task import FOLDS, Folding, ReadsGraph, Task, averaged, by_node
from gnn_repair.training import ProgressCallback

MANY = 2**31
"""More epochs than anything is trained for."""


@dataclass(frozen=True)
class RetrainedBackbone(ReadsGraph[KeptPrediction]):
    """The backbone itself, trained anew on training nodes and four fifths of validation.

    One model a fold, each kept at its best epoch on that fold; log-probabilities are averaged.
    """

    folds: int = FOLDS
    seed: int = 0
    title: ClassVar[str] = "Retrained backbone"

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """With the protocol's seed."""
        return cls(seed=settings.seed)

    @property
    def most_epochs(self) -> int:
        """Any number: the budget is the backbone's own."""
        return MANY

    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> KeptPrediction:
        """Train the backbone's architecture within its budget; batches do not matter."""
        frozen = task.frozen
        if frozen is None:
            raise InputError("a retrained backbone needs data=frozen, the model to train anew")
        roles = Folding(self.folds, seed=self.seed).roles(task)
        learned = (roles.weights > 0).unflatten(0, (-1, roles.copies))
        masks = [
            by_node(task, values.flatten(0, 1)).t().cpu()
            for values in (learned, roles.judged.unflatten(0, (-1, roles.copies)))
        ]
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

    def check_constants(self, fitted: KeptPrediction) -> None:
        """What a kept prediction holds."""
        check_kept(fitted)

    def fitted(self, **values: Any) -> KeptPrediction:
        """The fitted value with these fields."""
        return KeptPrediction(repair=self, **values)


def _relabelled(data: Data, y: Tensor, classes: int, masks: list[Tensor]) -> Data:
    """The graph with other masks and no label outside them; as many classes as the model has."""
    again = data.clone()
    again.y = y.cpu()
    again.classes = classes
    again.train_mask, again.val_mask = masks
    if "test_mask" in again:
        del again.test_mask
    return again
