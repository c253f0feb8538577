"""A fitted ladder: what each rung said, how they are weighed, and what that means."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.fitted import FittedRepair
from gnn_repair.repair.kept_tables import check_table, kept_rows, same_graph
from gnn_repair.repair.ladder.findings import Findings, find
from gnn_repair.repair.ladder.network import from_messages
from gnn_repair.repair.rungs import FROZEN, RUNGS, title_of

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
        names = self.ladder.rungs
        if self.constants["weights"].shape[1] <= len(names):
            names = tuple(name for name in names if not reads_features(name))
        return (FROZEN, *names)

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
        """The candidate of most weight for every member; Frozen where it stays."""
        return tuple(self.candidates[index] for index in self.weights.argmax(1).tolist())

    @property
    def refitted(self) -> Tensor:
        """[S] bool: the best rung was fitted again on all labels, for more of them help."""
        return self.constants["refitted"] > 0

    @property
    def out_of_fold(self) -> dict[str, Tensor]:
        """Accuracy of each candidate on validation nodes that it did not learn from, [S] each."""
        right, judged = self.right_out_of_fold()
        shares = right.sum(2) / judged.sum(1, keepdim=True)
        return dict(zip(self.candidates, shares.t(), strict=True))

    @property
    def nested(self) -> Tensor:
        """Accuracy of the combination, weighed without the node's fold, [S]."""
        return self.constants["nested_accuracy"]

    def right_out_of_fold(self) -> tuple[Tensor, Tensor]:
        """Who is right about which validation nodes [S, candidates, N], and which these are."""
        labels = self.constants["labels"]
        told = self.constants["out_of_fold"].argmax(3)
        return (told == labels.unsqueeze(1)) & (labels >= 0).unsqueeze(1), labels >= 0

    def findings(self) -> Findings:
        """Where the evidence was lost, by kind of evidence and by class."""
        told, labels, folds = (self.constants[n] for n in ("out_of_fold", "labels", "folds"))
        stays = bool(self.unchanged.all())
        return find(self.candidates, told, labels, folds, classes=self.num_classes, stays=stays)

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
        names = [name for name in self.candidates[1:] if RUNGS[name].inductive]
        told = [exposure.frozen_logits[:, exposure.recipients].log_softmax(2)]
        told += [self._inductive(name, exposure) for name in names]
        kept = weights[:, [self.candidates.index(name) for name in (FROZEN, *names)]]
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
            key.removeprefix(f"{name}/"): value.to(exposure.state)
            for key, value in self.parameters.items()
            if key.startswith(f"{name}/")
        }
        return from_messages(own, exposure)

    # In words ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        members, findings = self.num_members, self.findings()
        who = "1 member" if members == 1 else f"{members} members"
        lines = [f"Evidence ladder of {who}, {self.ladder.folds} folds"]
        wide = max(len(title_of(name)) for name in self.candidates)
        lines.append(f"  {'candidate':{wide}}  out of fold   weight   most weight for")
        mean, most = self.weights.mean(0).tolist(), Counter(self.chosen)
        for (name, accuracy), weight in zip(self.out_of_fold.items(), mean, strict=True):
            share = f"{100 * float(accuracy.mean()):9.1f} %   {weight:6.2f}"
            lines.append(f"  {title_of(name):{wide}}  {share}   {most[name]} of {members}")
        if kept := int(self.unchanged.sum()):
            lines.append(f"Frozen stays for {kept} of {members}: nothing clearly beats it.")
        if again := int(self.refitted.sum()):
            lines.append(f"More labels help: the best rung learned from all of them for {again}.")
        if left_out := [name for name in self.ladder.rungs if name not in self.candidates]:
            names = ", ".join(map(title_of, left_out))
            lines.append(f"Left out, since no raw features were given (data=…): {names}.")
        lines += [text[0].upper() + text[1:] + "." for text in map(str, findings.overall())]
        lines += [f"→ {line}" for line in findings.advice()]
        return "\n".join([*lines, *self._transductive()])

    def _transductive(self) -> list[str]:
        """Which candidates hold for this graph only, and who speaks on another one."""
        bound = [name for name in self.candidates[1:] if not RUNGS[name].inductive]
        free = [FROZEN, *(name for name in self.candidates[1:] if name not in bound)]
        if not bound:
            return []
        return [
            "Transductive, for they read labels or features of this graph: "
            f"{', '.join(map(title_of, bound))}. On another graph the ladder falls back to "
            f"{', '.join(map(title_of, free))}, with a warning."
        ]

    __repr__ = __str__


def reads_features(name: str) -> bool:
    """Whether a rung needs raw features."""
    return "features" in RUNGS[name].reads


# Files --------------------------------------------------------------------------------------------


def check_ladder(fitted: FittedLadder) -> None:
    """Raise :class:`InputError` where tables read from a file do not fit together."""
    (count,) = check_table(fitted, "weights", torch.float64, None)
    if count != len(fitted.candidates):
        raise InputError(f"weights stand for {count} candidates, not {len(fitted.candidates)}")
    (nodes,) = check_table(fitted, "signature", torch.float32, None)
    classes = fitted.num_classes
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "log_probs": (torch.float32, (count - 1, nodes, classes)),
        "out_of_fold": (torch.float32, (count, nodes, classes)),
        "folds": (torch.int64, (nodes,)),
        "labels": (torch.int64, (nodes,)),
        "count": (torch.int64, ()),
        "refitted": (torch.int64, ()),
        "temperature": (torch.float64, ()),
        "nested_accuracy": (torch.float64, ()),
    }
    for name, (dtype, shape) in shapes.items():
        check_table(fitted, name, dtype, *shape)
    if unknown := sorted(fitted.constants.keys() - {*shapes, "weights", "signature"}):
        raise InputError(f"a ladder has no constant {unknown[0][:80]!r}")
    _check_values(fitted, fitted.weights)


def _check_values(fitted: FittedLadder, weights: Tensor) -> None:
    """Shares that sum to 1, folds and labels that there are."""
    sums = (weights.sum(1) - 1).abs()
    # Sums of a handful of doubles.
    if bool((weights < 0).any()) or bool((sums > 1e-9).any()):
        raise InputError("a ladder's weights must be shares that sum to 1")
    if not bool((fitted.temperature > 0).all()):
        raise InputError("a temperature must be positive")
    limits = {
        "folds": (-1, fitted.ladder.folds),
        "labels": (-1, fitted.num_classes),
        "count": (0, 2**62),
        "refitted": (0, 2),
    }
    for name, (least, end) in limits.items():
        value = fitted.constants[name]
        if not bool(((value >= least) & (value < end)).all()):
            raise InputError(f"{name} of a ladder must lie in {least}..{end - 1}")
    accuracy = fitted.nested
    if not bool(((accuracy >= 0) & (accuracy <= 1)).all()):
        raise InputError("nested_accuracy of a ladder must be shares")
    told, judged = fitted.constants["folds"] >= 0, fitted.constants["labels"] >= 0
    if not torch.equal(told, judged) or not bool(judged.any(1).all()):
        raise InputError("a ladder's folds and labels are of other nodes")
