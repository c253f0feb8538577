"""The evidence ladder: cross-fitted rungs, each reading one kind of evidence more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from gnn_repair.budget import LADDER, Budget, check_real
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.fitted import about
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    FoldOutcome,
    Task,
    by_node,
    fit_stack,
    summary,
)
from gnn_repair.repair.folds import paper_roles
from gnn_repair.repair.graph_repair import GraphRepair
from gnn_repair.repair.kept_tables import signature
from gnn_repair.repair.ladder.catalogue import FAST, RUNGS
from gnn_repair.repair.ladder.checks import check_ladder
from gnn_repair.repair.ladder.combination import RULES
from gnn_repair.repair.ladder.decision import decide
from gnn_repair.repair.ladder.fitted import FittedLadder
from gnn_repair.repair.ladder.rungs import Rung
from gnn_repair.training import Progress, ProgressCallback


@dataclass(frozen=True)
class EvidenceLadder(GraphRepair[FittedLadder]):
    """Frozen, then set translation in folds, then with labels, features, reweighting."""

    rungs: tuple[str, ...] = FAST
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
    budget: Budget = LADDER

    def __post_init__(self) -> None:
        if isinstance(self.rungs, str) or not isinstance(self.rungs, Iterable):
            raise InputError(f"rungs is {self.rungs!r:.80}; give names of {', '.join(RUNGS)}")
        object.__setattr__(self, "rungs", tuple(self.rungs))
        unknown = [name for name in self.rungs if name not in list(RUNGS)]
        if unknown or not self.rungs:
            named = f"{unknown[0]!r:.80}" if unknown else "no rung"
            raise InputError(f"the ladder has {named}; choose from {', '.join(RUNGS)}")
        if len(set(self.rungs)) < len(self.rungs):
            raise InputError(f"the ladder has a rung twice: {', '.join(self.rungs)}")
        if self.combine not in list(RULES):
            raise InputError(f"combine is {self.combine!r:.80}; choose from {', '.join(RULES)}")
        check_real("EvidenceLadder", "clearly", self.clearly, 0)
        _ = self.folding
        self.rung(self.rungs[0])  # which refuses what no rung can be built from

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    def rung(self, name: str) -> Rung:
        """A rung with the ladder's settings."""
        return RUNGS[name](self.budget, dropout=self.dropout, seed=self.seed, hidden=self.hidden)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """With the protocol's width, dropout, seed and budget."""
        return cls(
            hidden=settings.hidden,
            dropout=settings.dropout,
            seed=settings.seed,
            budget=settings.evidence_ladder,
        )

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the rungs stand as a list."""
        return {**super().setting_hints(), "rungs": list}

    @property
    def most_epochs(self) -> int:
        """As the budget says."""
        return self.budget.epochs

    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> FittedLadder:
        """Fit every rung in folds, then weigh them by what they said out of fold."""
        return self._decided(task, self._climb(task, batch_size, on_progress))

    def _climb(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> dict[str, FoldOutcome]:
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

    def _decided(self, task: Task, outcomes: dict[str, FoldOutcome]) -> FittedLadder:
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
            "count": torch.full_like(folds[:, 0], _trained_numbers(outcomes, len(folds))),
            **{name: value.to(folds.device) for name, value in decision._asdict().items()},
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

    def _statistics(self, outcomes: dict[str, FoldOutcome], chosen: Tensor) -> dict[str, Tensor]:
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

    def fitted(self, **values: Any) -> FittedLadder:
        """The fitted value with these fields."""
        return FittedLadder(repair=self, **values)

    # Files ------------------------------------------------------------------------------------

    def check_constants(self, fitted: FittedLadder) -> None:
        """Raise where what was read could not have been decided."""
        check_ladder(fitted)

    def claims(self, fitted: FittedLadder) -> int:
        """Of the rungs that hold on any graph; the others' networks are not kept."""
        wide = max(self.hidden, fitted.num_classes, fitted.width)
        return wide if self._inductive(fitted) else 0

    def shapes(self, fitted: FittedLadder) -> dict[str, tuple[int, ...]]:
        """Of the rungs that hold on any graph, once a copy."""
        return {
            f"{name}/{key}": (self.copies(name), *shape)
            for name in self._inductive(fitted)
            for key, shape in self.rung(name).shapes(fitted).items()  # type: ignore[arg-type]
        }

    def copies(self, name: str) -> int:
        """How many models a rung is the mean of."""
        return self.folds * self.repeats if RUNGS[name].crossed else 1

    def _inductive(self, fitted: FittedLadder) -> list[str]:
        return [name for name in fitted.candidates[1:] if not self.rung(name).needs_evidence]


def _trained_numbers(outcomes: dict[str, FoldOutcome], members: int) -> int:
    """Of one member, over all rungs and copies."""
    each = (
        outcome.stack.parameters[name].numel()
        for outcome in outcomes.values()
        for name in outcome.stack.trained
    )
    return sum(each) // members


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
