"""A fitted ladder: what each rung said, how they are weighed, and what that means."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.fitted import FittedRepair
from gnn_repair.repair.kept_tables import kept_rows, same_graph
from gnn_repair.repair.ladder.catalogue import RUNGS
from gnn_repair.repair.ladder.combination import RULES
from gnn_repair.repair.ladder.findings import Findings, find

if TYPE_CHECKING:
    from gnn_repair.repair.ladder.ladder import EvidenceLadder


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedLadder(FittedRepair):
    """Rungs weighed by what they said out of fold.

    On the graph it was fitted on it holds each rung's predictions, since rungs that read labels
    hold for that graph only. On another graph the rungs that read none predict.
    """

    @property
    def ladder(self) -> EvidenceLadder:
        """The method."""
        method: EvidenceLadder = self.repair  # type: ignore[assignment]
        return method

    @property
    def candidates(self) -> tuple[str, ...]:
        """Frozen, then the rungs that were fitted."""
        count = self.constants["weights"].shape[1] - 1
        features = any(RUNGS[name].reads_features for name in self.ladder.rungs)
        names = self.ladder.rungs
        if features and count < len(names):
            names = tuple(name for name in names if not RUNGS[name].reads_features)
        return ("frozen", *names)

    @property
    def advice(self) -> str:
        """What to try where Frozen stays as it is; empty where it does not."""
        return "; ".join(self.findings().advice()) if bool(self.unchanged.any()) else ""

    @property
    def num_parameters(self) -> int:
        """Trained numbers of one member, all rungs and copies together."""
        return int(self.constants["count"][0])

    @property
    def unchanged(self) -> Tensor:
        """[S] bool: all the weight lies on Frozen."""
        return self.weights[:, 0] == 1

    @property
    def weights(self) -> Tensor:
        """[S, candidates], summing to 1."""
        return self.constants["weights"]

    @property
    def temperature(self) -> Tensor:
        """[S]: what the combined log-probabilities are divided by."""
        return self.constants["temperature"]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The best single candidate of every member; Frozen where none is clearly better."""
        return tuple(self.candidates[index] for index in self.constants["chosen"].tolist())

    @property
    def out_of_fold(self) -> dict[str, Tensor]:
        """Accuracy of each candidate on validation nodes that it did not learn from, [S] each."""
        right, judged = self.right_out_of_fold()
        shares = right.sum(2) / judged.sum(1, keepdim=True)
        return dict(zip(self.candidates, shares.t(), strict=True))

    @property
    def nested(self) -> dict[str, Tensor]:
        """Accuracy of each rule's combination, weights fitted without the node's fold, [S]."""
        return dict(zip(RULES, self.constants["nested_accuracy"].t(), strict=True))

    def right_out_of_fold(self) -> tuple[Tensor, Tensor]:
        """Who is right about which validation nodes [S, candidates, N], and which these are."""
        labels = self.constants["labels"]
        told = self.constants["out_of_fold"].argmax(3)
        return (told == labels.unsqueeze(1)) & (labels >= 0).unsqueeze(1), labels >= 0

    def findings(self) -> Findings:
        """Where the evidence was lost, by kind of evidence and by class."""
        told, labels = self.constants["out_of_fold"], self.constants["labels"]
        return find(self.candidates, told, labels, self.num_classes)

    @torch.no_grad()
    def logits(self, exposure: Exposed) -> Tensor:
        """Weighted mean log-probabilities at the ladder's temperature, [S, n, C] float64.

        On another graph than the one it was fitted on, labels are not known: the rungs that need
        none share the weight, with a warning that says so.
        """
        with self.gradients(exposure):
            self._matching(exposure)
            weights = self.weights.to(exposure.recipients.device)
            told = self._on_its_graph(exposure)
            if told is None:
                weights, told = self._elsewhere(exposure, weights)
            mixed = torch.einsum("sr,srnc->snc", weights, told)
            scale = self.temperature.to(mixed.device).view(-1, 1, 1)
            return (mixed.log_softmax(2) / scale).log_softmax(2)

    def rung_log_probs(self, exposure: Exposed) -> dict[str, Tensor]:
        """What each candidate says alone, [S, n, C]; on the graph it was fitted on."""
        told = self._on_its_graph(exposure)
        if told is None:
            raise InputError("rungs that read labels hold for the graph they were fitted on only")
        return dict(zip(self.candidates, told.unbind(1), strict=True))

    def _on_its_graph(self, exposure: Exposed) -> Tensor | None:
        """[S, candidates, n, C]; None where this is another graph."""
        if not same_graph(self.constants["signature"], exposure):
            return None
        place = exposure.recipients
        kept = kept_rows(self.constants["log_probs"], exposure, "the ladder")
        frozen = exposure.frozen_logits[:, place].log_softmax(2)
        return torch.cat([frozen.unsqueeze(1), kept], 1)

    def _elsewhere(self, exposure: Exposed, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and predictions of the rungs that read no labels and no raw features."""
        names = [n for n in self.candidates[1:] if not self.ladder.rung(n).needs_evidence]
        told = [exposure.frozen_logits[:, exposure.recipients].log_softmax(2)]
        told += [self._inductive(name, exposure) for name in names]
        kept = weights[:, [self.candidates.index(name) for name in ("frozen", *names)]]
        total = kept.sum(1, keepdim=True)
        # Where all weight lay on rungs that cannot speak here, those that can share it.
        shared = torch.where(total > 0, kept / total.clamp(min=1e-12), 1 / kept.shape[1])
        warnings.warn(
            "the ladder was fitted on another graph and no labels are known on this one; "
            f"only {', '.join(('frozen', *names))} can speak here",
            stacklevel=4,  # whoever called logits, past torch's own wrapper
        )
        return shared, torch.stack(told, 1)

    def _inductive(self, name: str, exposure: Exposed) -> Tensor:
        """Mean log-probabilities of a rung's copies on any graph."""
        own = {
            key.removeprefix(f"{name}/"): value
            for key, value in self.parameters.items()
            if key.startswith(f"{name}/")
        }
        copies = next(iter(own.values())).shape[1]
        told = [
            self.ladder.rung(name)
            .fitted(
                width=self.width,
                num_classes=self.num_classes,
                fingerprint=self.fingerprint,
                parameters={key: value[:, k] for key, value in own.items()},
                best_epoch=self.best_epoch,
                epochs_run=self.epochs_run,
                diverged=self.diverged,
            )
            .logits(exposure)
            .log_softmax(2)
            for k in range(copies)
        ]
        return torch.stack(told).mean(0).log_softmax(2)

    def __str__(self) -> str:
        from gnn_repair.repair.ladder.words import describe

        return describe(self)

    __repr__ = __str__
