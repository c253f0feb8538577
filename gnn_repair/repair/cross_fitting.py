"""Cross-fitting: a repair learns where the frozen model's mistakes are honest.

A frozen model is right about nearly all nodes it was trained on, so a repair that learns from
these sees few mistakes. Validation nodes show honest ones. They are cut into folds; copy k of the
repair learns from the training nodes and all folds but k, keeps the epoch that is best on fold k,
and the copies' log-probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.files import check_fields
from gnn_repair.files.headers import dataclass_hints
from gnn_repair.repair.base import Repair, TrainedRepair
from gnn_repair.repair.fitted import FittedRepair, about
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    Outcome,
    ReadsGraph,
    Task,
    by_node,
    fit_stack,
    held_out,
    summary,
)
from gnn_repair.repair.folds import Roles, paper_roles
from gnn_repair.repair.translation import SetTranslation
from gnn_repair.training import ProgressCallback


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
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

    @property
    def num_parameters(self) -> int:
        """Trained numbers of one member, all copies together."""
        return int(self.constants["count"][0])

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
            fingerprint=self.fingerprint,
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
class CrossFitted(ReadsGraph[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes; all copies are trained as one stack."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    repeats: int = 1
    """Times the validation nodes are dealt anew; each time adds ``folds`` copies."""
    fold_share: float = FOLD_SHARE
    seed: int = 0
    title: ClassVar[str] = "Set translation, cross-fitted"

    def __post_init__(self) -> None:
        if not isinstance(self.repair, Repair) or isinstance(self.repair, ReadsGraph):
            raise InputError(
                f"CrossFitted takes a repair such as SetTranslation(), not {self.repair!r:.60}"
            )
        _ = self.folding

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """Set translation as the protocol asks for it, in folds."""
        repair = SetTranslation.from_protocol(settings, exposure)
        return cls(repair, seed=settings.seed)

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    @property
    def most_epochs(self) -> int:
        """Those of the repair."""
        return self.repair.most_epochs

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the repair with its name."""
        own = {"name": type(self.repair).__name__, "settings": self.repair.settings()}
        return {**asdict(self.folding), "repair": own}

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """The folds, and the repair by name and settings."""
        return {**dataclass_hints(Folding), "repair": dict}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`settings`."""
        # Imported here since the registry knows this class too.
        from gnn_repair.repair.registry import class_of

        values = dict(settings)
        own = check_fields(values.pop("repair"), {"name": str, "settings": dict}, "repair")
        kind = class_of(own["name"])
        check_fields(own["settings"], kind.setting_hints(), "settings")
        return cls(repair=kind.from_settings(own["settings"]), **values)

    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> FittedCrossFit:
        """Fit a copy a fold."""
        if not isinstance(self.repair, TrainedRepair):
            return self._learn_each(task)
        evidence = task.evidence() if getattr(self.repair, "needs_evidence", False) else None
        roles = self.folding.roles(task)
        if not getattr(self.repair, "crossed", True):
            roles = paper_roles(task.train, task.val)
        outcome = fit_stack(self.repair, task, roles, evidence, batch_size, on_progress)
        return self._made(task, outcome, roles.copies, evidence is not None)

    def _made(
        self, task: Task, outcome: Outcome, copies: int, transductive: bool
    ) -> FittedCrossFit:
        stack = outcome.stack
        by_copy = {
            name: value.unflatten(0, (-1, copies)) for name, value in stack.parameters.items()
        }
        trained = {name: by_copy[name] for name in stack.trained}
        constants = {f"own/{name}": by_copy[name] for name in by_copy if name not in stack.trained}
        constants |= {
            "out_of_fold": by_node(task, outcome.out_of_fold),
            "best_epochs": stack.best_epoch.view(-1, copies),
            "count": _count(trained, stack.best_epoch[::copies]),
        }
        if transductive:
            constants |= {
                "log_probs": by_node(task, outcome.log_probs),
                "signature": signature(task.exposure),
            }
        return self.fitted(
            **about(task.exposure),
            **summary(stack, copies),
            parameters={} if transductive else trained,
            constants=constants,
        )

    def _learn_each(self, task: Task) -> FittedCrossFit:
        """Fold by fold, for repairs that the training loop does not find."""
        roles = self.folding.roles(task)
        copies = [self._learn_one(task, roles, k) for k in range(roles.copies)]
        told = torch.stack([copy.logits(task.exposure).log_softmax(2) for copy in copies], 1)
        parameters, constants = (
            {
                name: torch.stack([getattr(copy, part)[name] for copy in copies], 1)
                for name in getattr(copies[0], part)
            }
            for part in ("parameters", "constants")
        )
        first = copies[0]
        return self.fitted(
            **about(task.exposure),
            parameters=parameters,
            constants={
                **{f"own/{name}": value for name, value in constants.items()},
                "out_of_fold": by_node(task, held_out(told.flatten(0, 1), roles)),
                "best_epochs": torch.stack([copy.best_epoch for copy in copies], 1),
                "count": _count(parameters, first.best_epoch),
            },
            best_epoch=first.best_epoch,
            epochs_run=first.epochs_run,
            diverged=first.diverged,
        )

    def _learn_one(self, task: Task, roles: Roles, copy: int) -> FittedRepair:
        judged = roles.judged[copy :: roles.copies]
        learned = (task.train | task.val) & ~judged
        masks = [by_node(task, chosen).t() for chosen in (learned, judged)]
        fitted: FittedRepair = self.repair.fit(
            task.exposure, task.y, *masks, device=task.inputs.device
        )
        return fitted

    def shapes(self, fitted: FittedCrossFit) -> dict[str, tuple[int, ...]]:
        """Those of one copy, once a copy."""
        if fitted.transductive:
            return {}
        copy = fitted.copy(0)
        if not isinstance(self.repair, TrainedRepair):
            return {name: tuple(value.shape[1:]) for name, value in fitted.parameters.items()}
        return {name: (fitted.copies, *shape) for name, shape in self.repair.shapes(copy).items()}

    def check_constants(self, fitted: FittedCrossFit) -> None:
        """What was said out of fold [S, N, C], epochs [S, K], and the repair's own."""
        held = fitted.constants
        kept = {"log_probs", "signature"} if fitted.transductive else set()
        named = {"out_of_fold", "best_epochs", "count", *kept}
        other = [name for name in held if name not in named and not name.startswith("own/")]
        if other or not named <= held.keys():
            raise InputError(f"a cross-fitted repair holds {', '.join(sorted(named))}, and its own")
        nodes = held["out_of_fold"].shape[1:]
        table = len(nodes) == 2 and nodes[1] == fitted.num_classes
        same = all(held[name].shape[1:] == nodes[: held[name].dim() - 1] for name in kept)
        if not table or not same or held["best_epochs"].dim() != 2:
            raise InputError("what was said out of fold must be [members, nodes, classes]")
        if not fitted.transductive:
            self.repair.check_constants(fitted.copy(0))

    def fitted(self, **values: Any) -> FittedCrossFit:
        """The fitted value with these fields."""
        return FittedCrossFit(repair=self, **values)


def _count(parameters: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """[S]: trained numbers of a member."""
    total = sum(value[0].numel() for value in parameters.values())
    return torch.full_like(like, total, dtype=torch.long)
