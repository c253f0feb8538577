"""The evidence ladder: cross-fitted rungs, each reading one kind of evidence more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gnn_repair.budget import TRANSLATION, Budget, check_real, check_whole
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.cross_fitting import signature
from gnn_repair.repair.fitted import about
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    Outcome,
    ReadsGraph,
    Task,
    by_node,
    fit_stack,
    summary,
)
from gnn_repair.repair.folds import paper_roles
from gnn_repair.repair.ladder.combination import RULES
from gnn_repair.repair.ladder.decision import decide
from gnn_repair.repair.ladder.fitted import FittedLadder
from gnn_repair.repair.ladder.rungs import RUNGS, Rung
from gnn_repair.training import Progress, ProgressCallback


@dataclass(frozen=True)
class EvidenceLadder(ReadsGraph[FittedLadder]):
    """Frozen, then set translation in folds, then with labels, features, reweighting."""

    rungs: tuple[str, ...] = tuple(RUNGS)
    """Which, of ``RUNGS``; Frozen always stands below them."""
    combine: str = "weighted"
    """How rungs become one prediction: a name of ``RULES``."""
    clearly: float = 1.0
    """Standard errors by which the combination must beat Frozen out of fold, else Frozen stays."""
    folds: int = FOLDS
    repeats: int = 1
    fold_share: float = FOLD_SHARE
    hidden: int = 128
    dropout: float = 0.2
    seed: int = 0
    budget: Budget = TRANSLATION
    title: ClassVar[str] = "Evidence ladder"

    def __post_init__(self) -> None:
        names = self.rungs if isinstance(self.rungs, tuple | list) else (self.rungs,)
        object.__setattr__(self, "rungs", tuple(names))
        unknown = [name for name in self.rungs if name not in RUNGS]
        if unknown or not self.rungs:
            named = repr(unknown[0]) if unknown else "no rung"
            raise InputError(f"the ladder has {named:.60}; choose from {', '.join(RUNGS)}")
        if self.combine not in RULES:
            raise InputError(f"combine is {self.combine!r:.60}; choose from {', '.join(RULES)}")
        check_real("EvidenceLadder", "clearly", self.clearly, 0)
        check_whole("EvidenceLadder", "hidden", self.hidden, 1)
        _ = self.folding, self.rung(self.rungs[0])

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    def rung(self, name: str) -> Rung:
        """A rung with the ladder's settings."""
        return RUNGS[name](self.budget, dropout=self.dropout, seed=self.seed, hidden=self.hidden)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """With set translation's budget, and the settings that all repairs share."""
        return cls(
            budget=settings.set_translation,
            dropout=settings.dropout,
            seed=settings.seed,
            hidden=settings.hidden,
        )

    @property
    def most_epochs(self) -> int:
        """As the budget says."""
        return self.budget.epochs

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {**super().settings(), "rungs": list(self.rungs)}

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """The types that the settings have in a file."""
        return {**super().setting_hints(), "rungs": list}

    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> FittedLadder:
        """Fit every rung in folds, then weigh them by what they said out of fold."""
        return self._decided(task, self._climb(task, batch_size, on_progress))

    def _climb(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> dict[str, Outcome]:
        """What fitting each rung gave."""
        crossed, plain = self.folding.roles(task), paper_roles(task.train, task.val)
        evidence = task.evidence()
        outcomes = {}
        for number, name in enumerate(self.rungs):
            rung = self.rung(name)
            if rung.reads_features and evidence.features is None:
                continue
            roles = crossed if rung.crossed else plain
            told = _counted(on_progress, number, len(self.rungs))
            used = evidence if rung.needs_evidence else None
            outcomes[name] = fit_stack(rung, task, roles, used, batch_size, told)
        return outcomes

    def _decided(self, task: Task, outcomes: dict[str, Outcome]) -> FittedLadder:
        folds = self.folding.deal(task)[0]
        held = torch.stack([outcome.out_of_fold for outcome in outcomes.values()], 1)
        frozen = task.exposure.frozen_logits[:, task.exposure.recipients].log_softmax(2)
        told = torch.cat([frozen.unsqueeze(1), held], 1)
        # A few hundred tiny problems: the CPU solves them sooner than a GPU starts them.
        decision = decide(told.cpu(), task.labels.cpu(), folds.cpu(), self.combine, self.clearly)
        every = torch.stack([outcome.log_probs for outcome in outcomes.values()], 1)
        constants = {
            "log_probs": _nodes_last(task, every),
            "out_of_fold": _nodes_last(task, told),
            "folds": by_node(task, folds + 1) - 1,
            "labels": by_node(task, torch.where(task.val, task.labels + 1, 0)) - 1,
            "signature": signature(task.exposure),
            **{name: value.to(folds.device) for name, value in decision._asdict().items()},
            "count": torch.full_like(folds[:, 0], _size(outcomes, len(folds))),
        }
        parameters: dict[str, Tensor] = {}
        for name, outcome in outcomes.items():
            if not self.rung(name).needs_evidence:
                copies = outcome.stack.best_epoch.numel() // len(folds)
                for key, value in outcome.stack.parameters.items():
                    parameters[f"{name}/{key}"] = value.unflatten(0, (-1, copies))
        return self.fitted(
            **about(task.exposure),
            parameters=parameters,
            constants=constants,
            **self._statistics(outcomes, constants["chosen"]),
        )

    def _statistics(self, outcomes: dict[str, Outcome], chosen: Tensor) -> dict[str, Tensor]:
        """Epochs of each member's chosen rung; none for Frozen."""
        members = chosen.numel()
        each = [
            summary(outcome.stack, outcome.stack.best_epoch.numel() // members)
            for outcome in outcomes.values()
        ]
        found = {}
        for name in ("best_epoch", "epochs_run"):
            table = torch.stack([torch.zeros_like(each[0][name]), *(e[name] for e in each)])
            found[name] = table.gather(0, chosen.unsqueeze(0)).squeeze(0)
        found["diverged"] = torch.stack([e["diverged"] for e in each]).any(0)
        return found

    def shapes(self, fitted: FittedLadder) -> dict[str, tuple[int, ...]]:
        """Parameters of the rungs that serve other graphs too, once a copy."""
        found = {}
        for name in fitted.candidates[1:]:
            rung = self.rung(name)
            if not rung.needs_evidence:
                copies = self.folds * self.repeats if rung.crossed else 1
                # Their parameters are set translation's own.
                for key, shape in rung.shapes(fitted).items():  # type: ignore[arg-type]
                    found[f"{name}/{key}"] = (copies, *shape)
        return found

    def check_constants(self, fitted: FittedLadder) -> None:
        """The fitted value checks its own when it is made."""

    def fitted(self, **values: Any) -> FittedLadder:
        """The fitted value with these fields."""
        return FittedLadder(repair=self, **values)


def _size(outcomes: dict[str, Outcome], members: int) -> int:
    """Trained numbers of a member, all rungs and copies together."""
    return sum(
        outcome.stack.parameters[name].numel() // members
        for outcome in outcomes.values()
        for name in outcome.stack.trained
    )


def _counted(
    on_progress: ProgressCallback | None, number: int, count: int
) -> ProgressCallback | None:
    """Progress of one rung as progress of the whole ladder."""
    if on_progress is None:
        return None

    def told(progress: Progress) -> None:
        done = number * progress.epochs + progress.epoch
        on_progress(Progress(done, count * progress.epochs, progress.active, progress.best))

    return told


def _nodes_last(task: Task, values: Tensor) -> Tensor:
    """[S, R, n, C] by recipient as [S, R, N, C] by node."""
    return by_node(task, values.transpose(1, 2)).transpose(1, 2).contiguous()
