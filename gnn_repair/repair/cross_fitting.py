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
from gnn_repair.exposure import Exposed
from gnn_repair.files import check_fields
from gnn_repair.repair.base import Repair, TrainedRepair
from gnn_repair.repair.fitted import FittedRepair, about
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    FoldOutcome,
    Task,
    by_node,
    fit_stack,
    held_out,
    summary,
)
from gnn_repair.repair.folds import paper_roles
from gnn_repair.repair.graph_repair import GraphRepair
from gnn_repair.repair.kept_tables import check_graph, check_table, kept_rows, signature
from gnn_repair.repair.translation import SetTranslation
from gnn_repair.training import ProgressCallback

INNER = {"name": str, "settings": dict}
"""The repair inside, in a file's settings."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedCrossFit(FittedRepair):
    """The mean of K fitted copies' log-probabilities."""

    @property
    def copies(self) -> int:
        """K."""
        return self.constants["best_epochs"].shape[1]

    @property
    def unchanged(self) -> Tensor:
        """[S] bool: every copy kept the frozen prediction."""
        inner: CrossFitted = self.repair  # type: ignore[assignment]
        return inner.repair.starts_frozen & (self.constants["best_epochs"] == 0).all(1)

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
        return method.repair.fitted(
            width=self.width,
            num_classes=self.num_classes,
            fingerprint=self.fingerprint,
            outputs=self.outputs,
            parameters={name: value[:, index] for name, value in self.parameters.items()},
            constants=own,
            best_epoch=self.constants["best_epochs"][:, index],
            epochs_run=self.epochs_run,
            diverged=self.diverged,
        )

    @torch.no_grad()
    def logits(self, exposure: Exposed) -> Tensor:
        """Mean log-probabilities at the recipients, [S, n, C] float64."""
        self._matching(exposure)
        if self.transductive:
            check_graph(self.constants["signature"], exposure, self.repair.title)
            return kept_rows(self.constants["log_probs"], exposure, self.repair.title)
        told = [self.copy(k).logits(exposure).log_softmax(2) for k in range(self.copies)]
        return torch.stack(told).mean(0).log_softmax(2)

    def out_of_fold(self) -> Tensor:
        """What copies that did not learn from a validation node say of it, [S, N, C]."""
        return self.constants["out_of_fold"].double()


@dataclass(frozen=True)
class CrossFitted(GraphRepair[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes; all copies are trained as one stack."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    repeats: int = 1
    fold_share: float = FOLD_SHARE
    seed: int = 0
    title: ClassVar[str] = "Cross-fitted"

    def __post_init__(self) -> None:
        if not isinstance(self.repair, Repair) or isinstance(self.repair, GraphRepair):
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
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the repair stands as a name and settings."""
        return {**super().setting_hints(), "repair": dict}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CrossFitted:
        """The inverse of :meth:`settings`."""
        # Imported here since the registry knows this class too.
        from gnn_repair.repair.registry import repair_of

        own = check_fields(settings["repair"], INNER, "repair")
        if own["name"] == cls.__name__:
            raise InputError("its repair is cross-fitted twice")
        inner = repair_of(own["name"], own["settings"])
        return cls(inner, **{key: settings[key] for key in settings.keys() - {"repair"}})

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """Set translation as the protocol asks for it, in folds."""
        inner = SetTranslation.from_protocol(settings, exposure)
        return cls(inner, seed=settings.seed)

    @property
    def most_epochs(self) -> int:
        """Those of the repair."""
        return self.repair.most_epochs

    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> FittedCrossFit:
        """Fit a copy a fold."""
        if not isinstance(self.repair, TrainedRepair):
            return self._fit_each(task)
        evidence = task.evidence() if _reads_evidence(self.repair) else None
        roles = self.folding.roles(task)
        if not getattr(self.repair, "crossed", True):
            roles = paper_roles(task.train, task.val)
        outcome = fit_stack(self.repair, task, roles, evidence, batch_size, on_progress)
        return self._fitted(task, outcome, roles.copies, evidence is not None)

    def _fitted(
        self, task: Task, outcome: FoldOutcome, copies: int, transductive: bool
    ) -> FittedCrossFit:
        stack = outcome.stack
        by_copy = {
            name: value.unflatten(0, (-1, copies)) for name, value in stack.parameters.items()
        }
        trained = {name: by_copy[name] for name in stack.trained}
        own = {f"own/{name}": by_copy[name] for name in by_copy if name not in stack.trained}
        told = {"out_of_fold": by_node(task, outcome.out_of_fold)}
        if transductive:
            # It answers from what it said here, so what a copy would read with is not kept.
            own = {}
            told |= {
                "log_probs": by_node(task, outcome.log_probs),
                "signature": signature(task.exposure),
            }
        return self.fitted(
            **about(task.exposure),
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
            **about(task.exposure),
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

    # Files ------------------------------------------------------------------------------------

    def claims(self, fitted: FittedCrossFit) -> int:
        """As the repair's copies do; what reads evidence has layers of other widths too."""
        if fitted.transductive:
            return max(getattr(self.repair, "hidden", None) or 1, fitted.num_classes)
        return self.repair.claims(fitted.copy(0))

    def shapes(self, fitted: FittedCrossFit) -> dict[str, tuple[int, ...]]:
        """The repair's own, once a copy."""
        if not fitted.transductive:
            own = self.repair.shapes(fitted.copy(0))
        else:
            own = {
                name: tuple(value.shape[2:])
                for name, value in fitted.parameters.items()
                if value.shape[1:2] == (fitted.copies,)
            }
        return {name: (fitted.copies, *shape) for name, shape in own.items()}

    def check_constants(self, fitted: FittedCrossFit) -> None:
        """Epochs [S, K], what was said out of fold [S, N, C], and what the repair itself keeps."""
        check_table(fitted, "best_epochs", torch.int64, None)
        epochs = fitted.constants["best_epochs"]
        if fitted.copies < 1 or not bool(((epochs >= 0) & (epochs <= self.most_epochs)).all()):
            raise InputError(f"best_epochs must lie in 0..{self.most_epochs}, one for every copy")
        nodes = check_table(fitted, "out_of_fold", torch.float32, None, fitted.num_classes)[0]
        kept = {"best_epochs", "out_of_fold"}
        if _reads_evidence(self.repair):
            check_table(fitted, "log_probs", torch.float32, nodes, fitted.num_classes)
            check_table(fitted, "signature", torch.float32, nodes)
            kept |= {"log_probs", "signature"}
        self._check_copies(fitted, kept)

    def _check_copies(self, fitted: FittedCrossFit, kept: set[str]) -> None:
        """Everything but ``kept`` is there for each copy, and each copy is sound."""
        others = {name: value for name, value in fitted.constants.items() if name not in kept}
        for name in others:
            if not name.startswith("own/") or fitted.transductive:
                raise InputError(f"{self.title} has no constant {name[:80]!r}")
        for name, value in {**others, **fitted.parameters}.items():
            if value.shape[1:2] != (fitted.copies,):
                raise InputError(f"{name[:80]} is not there for each of {fitted.copies} copies")
        if not fitted.transductive:
            for k in range(fitted.copies):
                self.repair.check_constants(fitted.copy(k))


def _reads_evidence(repair: Repair[Any]) -> bool:
    return bool(getattr(repair, "needs_evidence", False))


def _by_mask(task: Task, chosen: Tensor) -> Tensor:
    return by_node(task, chosen).t()
