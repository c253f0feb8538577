"""The evidence ladder: cross-fitted rungs, each reading one kind of evidence more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.budget import TRANSLATION, Budget
from gnn_repair.devices import out_of_memory_hint
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import Repair
from gnn_repair.repair.cross_fitting import signature
from gnn_repair.repair.fold_task import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    Outcome,
    Task,
    by_node,
    fit_stack,
    prepare,
    summary,
)
from gnn_repair.repair.folds import paper_roles
from gnn_repair.repair.ladder.combination import RULES
from gnn_repair.repair.ladder.decision import decide
from gnn_repair.repair.ladder.fitted import FittedLadder
from gnn_repair.repair.ladder.rungs import RUNGS, Rung
from gnn_repair.training import Progress, ProgressCallback


@dataclass(frozen=True)
class EvidenceLadder(Repair[FittedLadder]):
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
    from_paper: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rungs", tuple(self.rungs))
        unknown = [name for name in self.rungs if name not in RUNGS]
        if unknown or not self.rungs:
            named = repr(unknown[0]) if unknown else "no rung"
            raise InputError(f"the ladder has {named}; choose from {', '.join(RUNGS)}")
        if self.combine not in RULES:
            raise InputError(f"combine is {self.combine!r}; choose from {', '.join(RULES)}")
        if not isinstance(self.clearly, int | float) or not self.clearly >= 0:
            raise InputError(f"clearly is {self.clearly!r}; give standard errors, 0 or more")
        _ = self.folding

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    def rung(self, name: str) -> Rung:
        """A rung with the ladder's settings."""
        return RUNGS[name](self.budget, dropout=self.dropout, seed=self.seed, hidden=self.hidden)

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
    ) -> FittedLadder:
        """Fit every rung in folds, then weigh them by what they said out of fold.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read.
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it; at least ``folds`` nodes.
            data: the graph with ``edge_index`` and ``x``. Without it, neighbours are the
                exposure's own sources, and rungs that read raw features are left out.
            batch_size: targets an update sees; all unless given.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs of every rung.
        """
        with out_of_memory_hint(f"climbing the ladder for {exposure.num_members} members"):
            task = prepare(exposure, y, train_mask, val_mask, data, device)
            outcomes = self._climb(task, batch_size, on_progress)
        return self._decided(task, outcomes)

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
        }
        parameters: dict[str, Tensor] = {}
        for name, outcome in outcomes.items():
            if not self.rung(name).needs_evidence:
                copies = outcome.stack.best_epoch.numel() // len(folds)
                for key, value in outcome.stack.parameters.items():
                    parameters[f"{name}/{key}"] = value.unflatten(0, (-1, copies))
        return self.fitted(
            width=task.inputs.width,
            num_classes=task.inputs.num_classes,
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

    def fitted(self, **values: Any) -> FittedLadder:
        """The fitted value with these fields."""
        return FittedLadder(repair=self, **values)


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
