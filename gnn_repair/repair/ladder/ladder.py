"""The evidence ladder: cross-fitted rungs, each reading another kind of evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gnn_repair.budget import LADDER, Budget, check_real, check_whole
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.baselines import TINY, sources_to_recipients
from gnn_repair.repair.correct_and_smooth import Propagation, normalised_adjacency
from gnn_repair.repair.evidence.summary import summary_width
from gnn_repair.repair.fitted import about
from gnn_repair.repair.folds import (
    FOLD_SHARE,
    FOLDS,
    GraphRepair,
    Roles,
    Task,
    by_node,
    cross_roles,
    deal_folds,
)
from gnn_repair.repair.kept_tables import signature
from gnn_repair.repair.ladder.decision import (
    clearly,
    decide,
    likelihoods,
    mixed,
    weigh,
    weights_without,
)
from gnn_repair.repair.ladder.fitted import FittedLadder, check_ladder, reads_features
from gnn_repair.repair.ladder.network import Climbed, Sources, climb
from gnn_repair.repair.rungs import RUNGS
from gnn_repair.training import ProgressCallback

TWINS = 2
"""Copies per fold: what is said of a node out of fold is their mean, as deployed it is the mean of
all, and a single copy would do worse than either."""
STRENGTH, LAYERS = 0.5, 10
"""Of smoothing: half from neighbours, ten times, after which a thousandth is left to come."""


@dataclass(frozen=True)
class EvidenceLadder(GraphRepair[FittedLadder]):
    """Frozen, then candidates that read more or other evidence, weighed out of fold."""

    rungs: tuple[str, ...] = tuple(RUNGS)
    """Which, of ``RUNGS``; Frozen always stands beside them."""
    folds: int = FOLDS
    hidden: int = 32
    dropout: float = 0.2
    seed: int = 0
    budget: Budget = LADDER

    def __post_init__(self) -> None:
        if isinstance(self.rungs, str) or not isinstance(self.rungs, Iterable):
            raise InputError(f"rungs is {self.rungs!r:.80}; give names of {', '.join(RUNGS)}")
        object.__setattr__(self, "rungs", tuple(self.rungs))
        unknown = [name for name in self.rungs if name not in list(RUNGS)]
        if unknown or not any(RUNGS[name].reads for name in self.rungs):
            named = f"{unknown[0]!r:.80}" if unknown else "no rung that reads anything"
            raise InputError(f"the ladder has {named}; choose from {', '.join(RUNGS)}")
        if len(set(self.rungs)) < len(self.rungs):
            raise InputError(f"the ladder has a rung twice: {', '.join(self.rungs)}")
        # In the table's order: what combines others stands behind them.
        ordered = tuple(name for name in RUNGS if name in self.rungs)
        object.__setattr__(self, "rungs", ordered)
        if not isinstance(self.budget, Budget):
            raise InputError(f"EvidenceLadder: budget is {self.budget!r}; give a Budget")
        check_whole("EvidenceLadder", "hidden", self.hidden, 1)
        check_real("EvidenceLadder", "dropout", self.dropout, 0, 1)
        check_whole("EvidenceLadder", "folds", self.folds, 2)
        check_whole("EvidenceLadder", "seed", self.seed, 0)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """With the protocol's dropout, seed and budget."""
        budget = settings.evidence_ladder
        return cls(dropout=settings.dropout, seed=settings.seed, budget=budget)

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
        """Fit every rung in folds, then weigh them by what they said out of fold.

        Heads are small and learn from all their targets at once, whatever the batch size.
        """
        evidence = task.evidence()
        sources = Sources.of(task, evidence)
        names = [
            name
            for name in self.rungs
            if RUNGS[name].reads and (evidence.features is not None or not reads_features(name))
        ]
        if not names:
            raise InputError("these rungs read raw features; pass data=… with x to fit")
        folds = deal_folds(task.val, task.labels, self.folds, self.seed, even=False)
        roles = cross_roles(task.train, folds, self.folds, FOLD_SHARE, times=TWINS)
        climbed = self._climb(names, task, sources, roles, on_progress)
        frozen = task.exposure.frozen_logits[:, task.exposure.recipients].log_softmax(2)
        by_fold = climbed.log_probs.unflatten(2, (TWINS, self.folds)).mean(2).log_softmax(4)
        told = torch.cat([frozen.unsqueeze(1), _held_out(by_fold, folds)], 1)
        said = climbed.log_probs.mean(2).transpose(0, 1).log_softmax(3).double()
        said, refitted = self._refit(task, sources, climbed, folds, told, said)
        if "smoothed" in self.rungs:
            held, smooth = _smoothed(task, by_fold, folds, told, said, self.folds)
            told, said = (
                torch.cat([first, last.unsqueeze(1)], 1)
                for first, last in ((told, held), (said, smooth))
            )
        # A few hundred tiny problems: the CPU solves them sooner than a GPU starts them.
        decision = decide(told.cpu(), task.labels.cpu(), folds.cpu(), self.folds)
        constants = {
            "log_probs": _nodes_last(task, said),
            "out_of_fold": _nodes_last(task, told),
            "folds": by_node(task, folds + 1) - 1,
            "labels": by_node(task, torch.where(task.val, task.labels + 1, 0)) - 1,
            "signature": signature(task.exposure),
            "count": torch.full_like(folds[:, 0], climbed.count),
            "refitted": refitted,
            **{name: value.to(folds.device) for name, value in decision._asdict().items()},
        }
        return self.fitted(
            **about(task.exposure),
            parameters={
                f"{rung}/{name}": value
                for rung, own in climbed.parameters.items()
                for name, value in {**own, **sources.statistics}.items()
            },
            constants=constants,
            **_epochs(climbed, constants["weights"]),
        )

    def _climb(
        self,
        names: list[str],
        task: Task,
        sources: Sources,
        roles: Roles,
        on_progress: ProgressCallback | None = None,
        epochs: Tensor | None = None,
    ) -> Climbed:
        budget = self.budget
        if epochs is not None:
            budget = replace(budget, epochs=max(1, int(epochs.max())), patience=None)
        return climb(
            names,
            sources,
            roles,
            task.labels,
            folds=self.folds,
            hidden=self.hidden,
            dropout=self.dropout,
            seed=self.seed,
            budget=budget,
            epochs=epochs,
            on_progress=on_progress,
        )

    def _refit(
        self,
        task: Task,
        sources: Sources,
        climbed: Climbed,
        folds: Tensor,
        told: Tensor,
        said: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Each member's best rung fitted on all labels, where more labels are seen to help.

        They are where copies that learn from one fold less make the labels less likely, by
        ``CLEARLY`` standard errors. What the copies on all labels say stands in for the rung's
        own prediction. All keep the epochs that the folds chose.
        """
        best = [
            int(weigh(told[s, 1:][:, own >= 0], task.labels[own >= 0]).argmax())
            for s, own in enumerate(folds)
        ]
        rungs = sorted(set(best))
        fewer, full = (
            cross_roles(task.train, folds, self.folds, FOLD_SHARE, leave) for leave in (2, 0)
        )
        roles = _side_by_side(fewer, full)
        epochs = climbed.best_epoch[rungs][:, :, : self.folds]
        usual = epochs.median(2, keepdim=True).values.expand_as(epochs)
        again = self._climb(
            [climbed.rungs[r] for r in rungs],
            task,
            sources,
            roles,
            epochs=torch.cat([epochs, usual], 2),
        )
        # One copy per fold beside one that starts alike: averages of several would do better.
        first, held = (
            _held_out(every[:, :, : self.folds], folds)
            for every in (climbed.log_probs[rungs], again.log_probs)
        )
        everywhere = again.log_probs[:, :, self.folds :].mean(2).log_softmax(3).double()
        said, helps = said.clone(), []
        for s, own in enumerate(folds):
            judged, place = own >= 0, rungs.index(best[s])
            both = torch.stack([first[s, place], held[s, place]])[:, judged]
            likely = likelihoods(both, task.labels[judged], own[judged], self.folds)
            helps.append(clearly(likely[0] - likely[1]))
            if helps[-1]:
                said[s, best[s]] = everywhere[place, s]
        return said, torch.tensor(helps, device=said.device).long()

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
        return wide if self.shapes(fitted) else 0

    def shapes(self, fitted: FittedLadder) -> dict[str, tuple[int, ...]]:
        """Of the rungs that hold on any graph, once a copy."""
        wide = summary_width(fitted.width, fitted.num_classes)
        classes, hidden = fitted.num_classes, self.hidden
        own: dict[str, tuple[int, ...]] = {
            "messages": (wide, hidden), "bias": (1, hidden),
            "last": (hidden, classes), "last bias": (1, classes),
        }  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = {}
        for rung in fitted.candidates[1:]:
            if RUNGS[rung].inductive:
                shapes |= {
                    f"{rung}/{name}": (TWINS * self.folds, *shape) for name, shape in own.items()
                }
                shapes |= {f"{rung}/{name}": (wide,) for name in ("mean", "scale")}
        return shapes


def _held_out(every: Tensor, folds: Tensor) -> Tensor:
    """What the copy that did not learn from a node says of it, [S, R, n, C] float64.

    Of [R, S, K, n, C]; at recipients that are in no fold it is the first copy's word.
    """
    rungs, members, _, nodes, classes = every.shape
    index = folds.clamp(min=0).view(1, members, 1, nodes, 1)
    index = index.expand(rungs, -1, -1, -1, classes)
    return every.gather(2, index).squeeze(2).transpose(0, 1).double()


def _side_by_side(first: Roles, second: Roles) -> Roles:
    """The copies of both for every member."""
    copies = first.copies + second.copies
    weights, judged = (
        torch.cat(
            [getattr(r, name).unflatten(0, (-1, r.copies)) for r in (first, second)], 1
        ).flatten(0, 1)
        for name in ("weights", "judged")
    )
    return Roles(weights, judged, copies)


def _smoothed(
    task: Task, every: Tensor, folds: Tensor, told: Tensor, said: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The candidates' weighed mean, smoothed along links with the known labels, [S, n, C] twice.

    Out of fold: for fold k the k-th copies speak, weighed without the fold's labels, and these
    are not among those that are spread. And with all labels.
    """
    data, exposure = task.data, task.exposure
    entries = sources_to_recipients(exposure) if data is None else data.edge_index
    entries = entries.to(folds.device).long()
    operator = normalised_adjacency(entries[:, entries[0] != entries[1]], exposure.num_nodes)
    known = by_node(task, task.train | task.val)
    dealt = by_node(task, folds + 1) - 1
    strength = torch.full((count + 1,), STRENGTH, dtype=torch.float64, device=folds.device)
    out = []
    for s, own in enumerate(folds):
        judged = own >= 0
        seen, labels = told[s, 1:][:, judged], task.labels[judged]
        without = weights_without(seen, labels, own[judged], count)
        bases = [mixed(every[:, s, k].double(), without[k]) for k in range(count)]
        bases.append(mixed(said[s], weigh(seen, labels)))
        soft = torch.full(
            (exposure.num_nodes, count + 1, exposure.num_classes),
            1 / exposure.num_classes,
            dtype=torch.float64,
            device=folds.device,
        )
        soft[exposure.recipients] = torch.stack(bases, 1).exp()
        jobs = torch.arange(count + 1, device=folds.device)
        shown = known[s].unsqueeze(1) & (dealt[s].unsqueeze(1) != jobs)
        given = torch.where(shown, task.y.unsqueeze(1), -1)
        scores = Propagation(operator, LAYERS, soft, given).smoothed(soft, strength)
        scores = scores[exposure.recipients].clamp(min=TINY).log().log_softmax(2)
        index = own.clamp(min=0).view(-1, 1, 1).expand(-1, 1, scores.shape[2])
        out.append((scores.gather(1, index).squeeze(1), scores[:, count]))
    return tuple(torch.stack(part) for part in zip(*out, strict=True))  # type: ignore[return-value]


def _epochs(climbed: Climbed, weights: Tensor) -> dict[str, Tensor]:
    """Epochs of each member's rung of most weight; none where that is Frozen."""
    most = weights[:, : 1 + len(climbed.rungs)].argmax(1)
    member = torch.arange(len(most), device=most.device)
    found = {}
    for name in ("best_epoch", "epochs_run"):
        each = getattr(climbed, name).median(2).values
        found[name] = torch.cat([torch.zeros_like(each[:1]), each])[most, member]
    return {**found, "diverged": climbed.diverged.any(2).any(0)}


def _nodes_last(task: Task, values: Tensor) -> Tensor:
    """[S, R, n, C] by recipient as [S, R, N, C] by node."""
    return by_node(task, values.transpose(1, 2)).transpose(1, 2).contiguous()
