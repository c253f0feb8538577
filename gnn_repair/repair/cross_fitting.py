"""Cross-fitting: a repair learns where the frozen model's mistakes are honest.

A frozen model is right about nearly all nodes it was trained on, so a repair that learns from
these sees few mistakes. Validation nodes show honest ones. They are cut into folds; copy k of the
repair learns from the training nodes and all folds but k, keeps the epoch that is best on fold k,
and the copies' log-probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.devices import out_of_memory_hint
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import FittedRepair, Repair, TrainedRepair
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    Outcome,
    Task,
    by_node,
    fit_stack,
    held_out,
    prepare,
    summary,
)
from gnn_repair.repair.folds import paper_roles
from gnn_repair.repair.translation import SetTranslation
from gnn_repair.training import ProgressCallback


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedCrossFit(FittedRepair):
    """The mean of K fitted copies' log-probabilities."""

    @property
    def copies(self) -> int:
        """K."""
        return self.constants["best_epochs"].shape[1]

    @property
    def transductive(self) -> bool:
        """Whether it holds for the graph it was fitted on only."""
        return "log_probs" in self.constants

    def copy(self, index: int) -> FittedRepair:
        """One of the K copies, as the repair itself would be fitted."""
        if self.transductive:
            raise InputError("a repair that reads neighbours' labels has no copy for other graphs")
        method: CrossFitted = self.repair  # type: ignore[assignment]
        own = {
            name.removeprefix("own/"): value[:, index]
            for name, value in self.constants.items()
            if name.startswith("own/")
        }
        epochs = self.constants["best_epochs"][:, index]
        return method.repair.fitted(
            width=self.width,
            num_classes=self.num_classes,
            parameters={name: value[:, index] for name, value in self.parameters.items()},
            constants=own,
            best_epoch=epochs,
            epochs_run=self.epochs_run,
            diverged=self.diverged,
        )

    @torch.no_grad()
    def logits(self, exposure: Exposure) -> Tensor:
        """Mean log-probabilities at the recipients, [S, n, C] float64."""
        self._matching(exposure)
        if self.transductive:
            check_graph(self.constants["signature"], exposure, self.repair.title)
            kept = self.constants["log_probs"].to(exposure.recipients.device).double()
            return kept[:, exposure.recipients]
        told = [self.copy(k).logits(exposure).log_softmax(2) for k in range(self.copies)]
        return torch.stack(told).mean(0).log_softmax(2)

    def out_of_fold(self) -> Tensor:
        """What copies that did not learn from a validation node say of it, [S, N, C]."""
        return self.constants["out_of_fold"].double()


def signature(exposure: Exposure) -> Tensor:
    """One number a node and member that another graph or model would not share, [S, N]."""
    weights = torch.linspace(1, 2, exposure.num_classes, dtype=torch.float64)
    return (exposure.frozen_logits @ weights.to(exposure.frozen_logits.device)).float()


def same_graph(expected: Tensor, exposure: Exposure) -> bool:
    """Whether the exposure is of the graph and model that gave this signature."""
    found = signature(exposure).to(expected.device)
    # Frozen logits of one model repeat to rounding, also on another device.
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


def check_graph(expected: Tensor, exposure: Exposure, title: str) -> None:
    """Refuse another graph than the one whose labels were read."""
    if not same_graph(expected, exposure):
        raise InputError(
            f"{title} reads known labels of the graph it was fitted on and this is another one; "
            "fit it again here, or use a repair that reads no labels"
        )


@dataclass(frozen=True)
class CrossFitted(Repair[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes; all copies are trained as one stack."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    repeats: int = 1
    fold_share: float = FOLD_SHARE
    seed: int = 0
    title: ClassVar[str] = "Cross-fitted"
    from_paper: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.repair, Repair) or isinstance(self.repair, CrossFitted):
            raise InputError(
                f"CrossFitted takes a repair such as SetTranslation(), not {self.repair!r:.60}"
            )
        _ = self.folding

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the repair with its name."""
        own = {"name": type(self.repair).__name__, "settings": self.repair.settings()}
        return {**asdict(self.folding), "repair": own}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CrossFitted:
        """The inverse of :meth:`settings`."""
        # Imported here since the registry knows this class too.
        from gnn_repair.repair.registry import by_name

        values = dict(settings)
        own = values.pop("repair")
        return cls(repair=by_name(own["name"]).from_settings(own["settings"]), **values)

    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> FittedCrossFit:
        """Fit a copy a fold; see :class:`TrainedRepair` for the arguments.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read.
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it; at least ``folds`` nodes.
            data: the graph, for repairs that read labels or raw features.
            batch_size: targets an update sees; all unless given.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
        """
        title = f"cross-fitting {self.repair.title} for {exposure.num_members} members"
        with out_of_memory_hint(title):
            task = prepare(exposure, y, train_mask, val_mask, data, device)
            if not isinstance(self.repair, TrainedRepair):
                return self._fit_each(task)
            evidence = task.evidence() if _reads_evidence(self.repair) else None
            roles = self.folding.roles(task)
            if not getattr(self.repair, "crossed", True):
                roles = paper_roles(task.train, task.val)
            outcome = fit_stack(self.repair, task, roles, evidence, batch_size, on_progress)
        return self._fitted(task, outcome, roles.copies, evidence is not None)

    def _fitted(
        self, task: Task, outcome: Outcome, copies: int, transductive: bool
    ) -> FittedCrossFit:
        stack = outcome.stack
        by_copy = {
            name: value.unflatten(0, (-1, copies)) for name, value in stack.parameters.items()
        }
        trained = {name: by_copy[name] for name in stack.trained}
        own = {f"own/{name}": by_copy[name] for name in by_copy if name not in stack.trained}
        told = {"out_of_fold": by_node(task, outcome.out_of_fold)}
        if transductive:
            told |= {
                "log_probs": by_node(task, outcome.log_probs),
                "signature": signature(task.exposure),
            }
        return self.fitted(
            width=task.inputs.width,
            num_classes=task.inputs.num_classes,
            parameters=trained,
            constants={**own, **told, "best_epochs": stack.best_epoch.view(-1, copies)},
            **summary(stack, copies),
        )

    def _fit_each(self, task: Task) -> FittedCrossFit:
        """Fold by fold, for repairs that the training loop does not find."""
        roles = self.folding.roles(task)
        fitted, told = [], []
        for k in range(roles.copies):
            judged = roles.judged[k :: roles.copies]
            masks = [_by_mask(task, who) for who in ((task.train | task.val) & ~judged, judged)]
            copy = self.repair.fit(task.exposure, task.y, *masks, device=task.inputs.device)
            fitted.append(copy)
            told.append(copy.logits(task.exposure).log_softmax(2))
        stacked_up = torch.stack(told, 1).flatten(0, 1)
        constants = {
            f"own/{name}": torch.stack([copy.constants[name] for copy in fitted], 1)
            for name in fitted[0].constants
        }
        return self.fitted(
            width=task.inputs.width,
            num_classes=task.inputs.num_classes,
            parameters={
                name: torch.stack([copy.parameters[name] for copy in fitted], 1)
                for name in fitted[0].parameters
            },
            constants={
                **constants,
                "out_of_fold": by_node(task, held_out(stacked_up, roles)),
                "best_epochs": torch.stack([copy.best_epoch for copy in fitted], 1),
            },
            best_epoch=fitted[0].best_epoch,
            epochs_run=fitted[0].epochs_run,
            diverged=fitted[0].diverged,
        )

    def fitted(self, **values: Any) -> FittedCrossFit:
        """The fitted value with these fields."""
        return FittedCrossFit(repair=self, **values)


def _reads_evidence(repair: Repair[Any]) -> bool:
    return bool(getattr(repair, "needs_evidence", False))


def _by_mask(task: Task, chosen: Tensor) -> Tensor:
    return by_node(task, chosen).t()
