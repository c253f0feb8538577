"""Cross-fitting: a repair learns where the frozen model's mistakes are honest.

A frozen model is right about nearly all nodes it was trained on, so a repair that learns from
these sees few mistakes. Validation nodes show honest ones. They are cut into folds; copy k of the
repair learns from the training nodes and all folds but k, keeps the epoch that is best on fold k,
and the copies' log-probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gnn_repair.backbones.frozen import below
from gnn_repair.budget import check_whole
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import Method
from gnn_repair.repair.adapters import SetTranslation
from gnn_repair.repair.base import FittedRepair, Repair, TrainedRepair, about
from gnn_repair.repair.folds import (
    FOLDS,
    Roles,
    check_table,
    fold_roles,
    held_out,
    middle_copy,
)
from gnn_repair.repair.targets import Task, as_targets


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedCrossFit(FittedRepair["CrossFitted"]):
    """The mean of K fitted copies' log-probabilities."""

    @property
    def copies(self) -> int:
        """K."""
        return self.constants["best_epochs"].shape[1]

    @property
    def unchanged(self) -> Tensor:
        """[S] bool: every copy kept the frozen prediction."""
        return self.repair.repair.starts_frozen & (self.constants["best_epochs"] == 0).all(1)

    def copy(self, index: int) -> FittedRepair[Any]:
        """One of the K copies, as the repair itself would be fitted."""
        own = {
            name.removeprefix("own/"): value[:, index]
            for name, value in self.constants.items()
            if name.startswith("own/")
        }
        fitted: FittedRepair[Any] = self.repair.repair.fitted(
            width=self.width,
            num_classes=self.num_classes,
            fingerprint=self.fingerprint,
            outputs=self.outputs,
            node_type=self.node_type,
            parameters={name: value[:, index] for name, value in self.parameters.items()},
            constants=own,
            best_epoch=self.constants["best_epochs"][:, index],
            epochs_run=self.epochs_run,
            diverged=self.diverged,
        )
        return fitted

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Mean log-probabilities at the recipients, [S, n, C] float64."""
        self._matching(exposure)
        told = [self.copy(k).member_logits(exposure).log_softmax(2) for k in range(self.copies)]
        return torch.stack(told).mean(0).log_softmax(2)

    def out_of_fold(self) -> Tensor:
        """What copies that did not learn from a validation node say of it, [S, N, C]."""
        return self.constants["out_of_fold"].double()


@dataclass(frozen=True)
class CrossFitted(Repair[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    seed: int = 0
    title: ClassVar[str] = "Cross-fitted"
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedCrossFit
    former_settings: ClassVar[tuple[str, ...]] = ("repeats", "fold_share")

    def __post_init__(self) -> None:
        unfit = not isinstance(self.repair, Repair) or isinstance(self.repair, CrossFitted)
        if unfit or self.repair.reads_graph:
            raise InputError(
                f"CrossFitted takes a repair such as SetTranslation(), not {self.repair!r:.60}"
            )
        check_whole("CrossFitted", "folds", self.folds, 2)
        check_whole("CrossFitted", "seed", self.seed, 0)

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the repair with its name."""
        inner = {"name": type(self.repair).__name__, "settings": self.repair.settings()}
        return {"folds": self.folds, "seed": self.seed, "repair": inner}

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the repair stands as a name and settings."""
        return {**super().setting_hints(), "repair": dict}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CrossFitted:
        """The inverse of :meth:`settings`, once the repair inside has been built."""
        return cls(**settings)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """Set translation as the protocol asks for it, in folds."""
        inner = SetTranslation.from_protocol(settings, exposure)
        return cls(inner, seed=settings.seed)

    @property
    def most_epochs(self) -> int:
        """Those of the repair."""
        return self.repair.most_epochs

    def learn(self, task: Task) -> FittedCrossFit:
        """Fit a copy per fold."""
        roles = fold_roles(task, self.folds, self.seed)
        learned = self._copies(task, roles)
        fitted = self.fitted(
            **about(task.exposure),
            parameters=below(learned, "parameters/"),
            constants={
                "best_epochs": learned["best_epoch"],
                **{f"own/{name}": value for name, value in below(learned, "constants/").items()},
            },
            **middle_copy(learned, self.folds),
        )
        told = [fitted.copy(k).member_logits(task.exposure) for k in range(self.folds)]
        said = task.by_node(held_out(torch.stack(told, 1).flatten(0, 1), roles))
        return replace(fitted, constants={**fitted.constants, "out_of_fold": said})

    def _copies(self, task: Task, roles: Roles) -> dict[str, Tensor]:
        """What the copies learned, by the names of a file, [S, K, …]."""

        def of(copies: slice, count: int) -> dict[str, Tensor]:
            weights, judged = roles.weights[copies], roles.judged[copies]
            train = as_targets(weights > 0, task.labels)._replace(shares=weights)
            val = as_targets(judged, task.labels)
            part = replace(task, train_targets=train, val_targets=val, copies=count)
            return self.repair.learn(part).tensors()

        if isinstance(self.repair, TrainedRepair):
            # As one stack: small cases cost their steps, however many copies take them together.
            stack = of(slice(None), roles.copies)
            return {name: value.unflatten(0, (-1, roles.copies)) for name, value in stack.items()}
        each = [of(slice(k, None, roles.copies), 1) for k in range(roles.copies)]
        return {name: torch.stack([copy[name] for copy in each], 1) for name in each[0]}

    # Files ------------------------------------------------------------------------------------

    def shapes(self, fitted: FittedCrossFit) -> dict[str, tuple[int, ...]]:
        """The repair's own, once a copy."""
        own = self.repair.shapes(fitted.copy(0))
        return {name: (fitted.copies, *shape) for name, shape in own.items()}

    def check_constants(self, fitted: FittedCrossFit) -> None:
        """Epochs [S, K], held-out predictions [S, N, C], and what the repair itself keeps."""
        check_table(fitted, "best_epochs", torch.int64, None)
        epochs = fitted.constants["best_epochs"]
        if fitted.copies < 1 or not bool(((epochs >= 0) & (epochs <= self.most_epochs)).all()):
            raise InputError(f"best_epochs must lie in 0..{self.most_epochs}, one for every copy")
        check_table(fitted, "out_of_fold", torch.float32, None, fitted.num_classes)
        kept = ("best_epochs", "out_of_fold")
        others = {name: value for name, value in fitted.constants.items() if name not in kept}
        for name in others:
            if not name.startswith("own/"):
                raise InputError(f"{self.title} has no constant {name[:80]!r}")
        for name, value in {**others, **fitted.parameters}.items():
            if value.shape[1:2] != (fitted.copies,):
                raise InputError(f"{name[:80]} is not there for each of {fitted.copies} copies")
        for k in range(fitted.copies):
            self.repair.check_constants(fitted.copy(k))


def build_repair(method: Method, settings: Any, exposure: Exposure) -> Repair[Any]:
    """The unfitted repair that a study's ``RepairProtocol`` asks for on this exposure."""
    repair: Repair[Any] = method.repair_class.from_protocol(settings, exposure)
    return CrossFitted(repair, seed=settings.seed) if method.folded else repair
