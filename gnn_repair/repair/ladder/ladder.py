"""The evidence ladder: which kind of evidence a frozen model lost, and a repair that reads it.

Cross-fitted rungs, each reading another kind of evidence, weighed by their held-out predictions.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gnn_repair.backbones.frozen import under
from gnn_repair.budget import LADDER, Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import FROZEN, RUNGS, rung_title
from gnn_repair.published import count_of
from gnn_repair.repair.base import FittedRepair, Repair
from gnn_repair.repair.evidence import (
    LEAST_SCORE,
    Propagation,
    normalised_adjacency,
    summary_width,
)
from gnn_repair.repair.folds import (
    FOLDS,
    Roles,
    check_table,
    cross_roles,
    deal_folds,
    held_out,
    kept_rows,
    same_graph,
    signature,
)
from gnn_repair.repair.ladder.network import (
    FittedRungs,
    Sources,
    climb,
    inductive_log_probabilities,
)
from gnn_repair.repair.ladder.rungs import (
    MORE_LABELS,
    Findings,
    decide,
    find,
    is_significant,
    likelihoods,
    mix,
    weigh,
    weights_without,
)
from gnn_repair.repair.targets import Task, require_nodes

TWINS = 2
"""Copies per fold: a node's held-out prediction is their mean, as deployed it is the mean of
all, and a single copy would do worse than either."""
STRENGTH, LAYERS = 0.5, 10
"""Of smoothing: half from neighbours, ten times, after which a thousandth is left to come."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedLadder(FittedRepair["EvidenceLadder"]):
    """Rungs weighed by their held-out predictions.

    On the graph it was fitted on it holds each rung's predictions, since rungs that read labels
    hold for that graph only. On another graph the rungs that read none predict.
    """

    @property
    def candidates(self) -> tuple[str, ...]:
        """Frozen, then the rungs that were fitted."""
        names = self.repair.rungs
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
        predicted = self.constants["out_of_fold"].argmax(3)
        return (predicted == labels.unsqueeze(1)) & (labels >= 0).unsqueeze(1), labels >= 0

    def findings(self) -> Findings:
        """Where the evidence was lost, by kind of evidence and by class."""
        log_probs, labels, folds = (self.constants[n] for n in ("out_of_fold", "labels", "folds"))
        stays = bool(self.unchanged.all())
        return find(
            self.candidates, log_probs, labels, folds, classes=self.num_classes, stays=stays
        )

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Weighted mean log-probabilities at the ladder's temperature, [S, n, C] float64.

        On another graph than the one it was fitted on, labels are not known: the rungs that need
        none share the weight, with a warning that says so.
        """
        with self.gradients(exposure):
            self._matching(exposure)
            weights = self.weights.to(exposure.recipients.device)
            log_probs = self._on_its_graph(exposure)
            if log_probs is None:
                weights, log_probs = self._elsewhere(exposure, weights)
            mixed = torch.einsum("sr,srnc->snc", weights, log_probs)
            scale = self.temperature.to(mixed.device).view(-1, 1, 1)
            return (mixed.log_softmax(2) / scale).log_softmax(2)

    def rung_log_probs(self, exposure: Exposure) -> dict[str, Tensor]:
        """What each candidate says alone, [S, n, C]; on the graph it was fitted on."""
        log_probs = self._on_its_graph(exposure)
        if log_probs is None:
            raise InputError("rungs that read labels hold for the graph they were fitted on only")
        return dict(zip(self.candidates, log_probs.unbind(1), strict=True))

    def _on_its_graph(self, exposure: Exposure) -> Tensor | None:
        """[S, candidates, n, C]; None where this is another graph."""
        if not same_graph(self.constants["signature"], exposure):
            return None
        place = exposure.recipients
        kept = kept_rows(self.constants["log_probs"], exposure, "the ladder")
        frozen = exposure.frozen_logits[:, place].log_softmax(2)
        return torch.cat([frozen.unsqueeze(1), kept], 1)

    def _elsewhere(self, exposure: Exposure, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and predictions of the rungs that read no labels and no raw features."""
        names = [name for name in self.candidates[1:] if RUNGS[name].inductive]
        log_probs = [exposure.frozen_logits[:, exposure.recipients].log_softmax(2)]
        log_probs += [self._inductive(name, exposure) for name in names]
        kept = weights[:, [self.candidates.index(name) for name in (FROZEN, *names)]]
        total = kept.sum(1, keepdim=True)
        # Where all weight lay on rungs that cannot speak here, those that can share it.
        shared = torch.where(total > 0, kept / total.clamp(min=1e-12), 1 / kept.shape[1])
        warnings.warn(
            "the ladder was fitted on another graph and no labels are known on this one; "
            f"only {', '.join(('frozen', *names))} can speak here",
            stacklevel=4,  # whoever called logits, past torch's own wrapper
        )
        return shared, torch.stack(log_probs, 1)

    def _inductive(self, name: str, exposure: Exposure) -> Tensor:
        """Mean log-probabilities of a rung's copies on any graph."""
        own = under(self.parameters, f"{name}/")
        return inductive_log_probabilities(
            {n: value.to(exposure.state) for n, value in own.items()}, exposure
        )

    # In words ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        members, findings = self.num_members, self.findings()
        lines = [f"Evidence ladder of {count_of(members, 'member')}, {self.repair.folds} folds"]
        wide = max(len(rung_title(name)) for name in self.candidates)
        lines.append(f"  {'candidate':{wide}}     held out   weight   most weight for")
        mean, most = self.weights.mean(0).tolist(), Counter(self.chosen)
        for (name, accuracy), weight in zip(self.out_of_fold.items(), mean, strict=True):
            share = f"{100 * float(accuracy.mean()):9.1f} %   {weight:6.2f}"
            lines.append(f"  {rung_title(name):{wide}}  {share}   {most[name]} of {members}")
        if kept := int(self.unchanged.sum()):
            lines.append(f"Frozen stays for {kept} of {members}: nothing clearly beats it.")
        if again := int(self.refitted.sum()):
            lines.append(f"More labels help: the best rung learned from all of them for {again}.")
        if left_out := [name for name in self.repair.rungs if name not in self.candidates]:
            names = ", ".join(map(rung_title, left_out))
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
            f"{', '.join(map(rung_title, bound))}. On another graph the ladder falls back to "
            f"{', '.join(map(rung_title, free))}, with a warning."
        ]

    __repr__ = __str__


def reads_features(name: str) -> bool:
    """Whether a rung needs raw features."""
    return "features" in RUNGS[name].blocks


@dataclass(frozen=True)
class EvidenceLadder(Repair[FittedLadder], method="evidence_ladder"):
    """Frozen, then candidates that read more or other evidence, weighed by held-out accuracy."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedLadder
    reads_graph: ClassVar[bool] = True
    rungs: tuple[str, ...] = tuple(RUNGS)
    """Which, of ``RUNGS``; Frozen always stands beside them."""
    folds: int = FOLDS
    hidden: int = 32
    dropout: float = 0.2
    seed: int = 0
    budget: Budget = LADDER
    epochs: InitVar[int | None] = field(default=None, kw_only=True)
    lr: InitVar[float | None] = field(default=None, kw_only=True)

    def __post_init__(self, epochs: int | None, lr: float | None) -> None:
        if isinstance(self.rungs, str) or not isinstance(self.rungs, Iterable):
            raise InputError(f"rungs is {self.rungs!r:.80}; give names of {', '.join(RUNGS)}")
        object.__setattr__(self, "rungs", tuple(self.rungs))
        unknown = [name for name in self.rungs if name not in list(RUNGS)]
        if unknown or not any(RUNGS[name].blocks for name in self.rungs):
            named = f"{unknown[0]!r:.80}" if unknown else "no rung that reads anything"
            raise InputError(f"the ladder has {named}; choose from {', '.join(RUNGS)}")
        if len(set(self.rungs)) < len(self.rungs):
            raise InputError(f"the ladder has a rung twice: {', '.join(self.rungs)}")
        # In the table's order: what combines others stands behind them.
        ordered = tuple(name for name in RUNGS if name in self.rungs)
        object.__setattr__(self, "rungs", ordered)
        super().__post_init__(epochs, lr)

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the rungs stand as a list."""
        return {**super().setting_hints(), "rungs": list}

    def learn(self, task: Task) -> FittedLadder:
        """Fit every rung in folds, then weigh them by their held-out predictions.

        Heads are small and learn from all their targets at once, whatever the batch size.
        """
        require_nodes(task.exposure, "the evidence ladder")
        sources = Sources.of(task)
        names = [
            name
            for name in self.rungs
            if RUNGS[name].blocks and (sources.features is not None or not reads_features(name))
        ]
        if not names:
            raise InputError("these rungs read raw features; pass data=… with x to fit")
        folds = deal_folds(task.val, task.labels, self.folds, self.seed, even=False)
        roles = cross_roles(task.train, folds, self.folds, times=TWINS)
        climbed = climb(names, sources, roles, task.labels, self, on_progress=task.on_progress)
        frozen = task.exposure.frozen_logits[:, task.exposure.recipients].log_softmax(2)
        by_fold = climbed.log_probs.unflatten(2, (TWINS, self.folds)).mean(2).log_softmax(4)
        out_of_fold = torch.cat([frozen.unsqueeze(1), held_out(by_fold, folds).double()], 1)
        log_probs = climbed.log_probs.mean(2).log_softmax(3).double()
        log_probs, refitted = self._refit(task, sources, climbed, folds, out_of_fold, log_probs)
        if "smoothed" in self.rungs:
            held, smooth = _smoothed(task, by_fold, folds, out_of_fold, log_probs, self.folds)
            out_of_fold = torch.cat([out_of_fold, held.unsqueeze(1)], 1)
            log_probs = torch.cat([log_probs, smooth.unsqueeze(1)], 1)
        # A few hundred tiny problems: the CPU solves them sooner than a GPU starts them.
        decision = decide(out_of_fold.cpu(), task.labels.cpu(), folds.cpu(), self.folds)
        constants = {
            "log_probs": _nodes_last(task, log_probs),
            "out_of_fold": _nodes_last(task, out_of_fold),
            "folds": task.by_node(folds + 1) - 1,
            "labels": task.by_node(torch.where(task.val, task.labels + 1, 0)) - 1,
            "signature": signature(task.exposure),
            "count": torch.full_like(folds[:, 0], climbed.count),
            "refitted": refitted,
            **{name: value.to(folds.device) for name, value in decision._asdict().items()},
        }
        return self.fitted_on(
            task.exposure,
            parameters={
                f"{rung}/{name}": value
                for rung, own in climbed.parameters.items()
                for name, value in {**own, **sources.statistics}.items()
            },
            constants=constants,
            **_epochs(climbed, constants["weights"]),
        )

    def _refit(
        self,
        task: Task,
        sources: Sources,
        climbed: FittedRungs,
        folds: Tensor,
        out_of_fold: Tensor,
        log_probs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Each member's best rung fitted on all labels, where more labels are seen to help.

        They are where copies that learn from one fold less make the labels less likely, by
        ``MORE_LABELS`` standard errors. What the copies on all labels say stands in for the rung's
        own prediction. All keep the epochs that the folds chose.
        """
        best = [
            int(weigh(out_of_fold[s, 1:][:, dealt >= 0], task.labels[dealt >= 0]).argmax())
            for s, dealt in enumerate(folds)
        ]
        rungs = sorted(set(best))
        fewer, full = (cross_roles(task.train, folds, self.folds, leave) for leave in (2, 0))
        roles = _side_by_side(fewer, full)
        epochs = climbed.best_epoch[rungs][:, :, : self.folds]
        usual = epochs.median(2, keepdim=True).values.expand_as(epochs)
        names = [climbed.rungs[r] for r in rungs]
        kept = torch.cat([epochs, usual], 2)
        again = climb(names, sources, roles, task.labels, self, epochs=kept)
        # One copy per fold beside one that starts alike: averages of several would do better.
        first, held = (
            held_out(every[:, :, : self.folds], folds).double()
            for every in (climbed.log_probs[:, rungs], again.log_probs)
        )
        everywhere = again.log_probs[:, :, self.folds :].mean(2).log_softmax(3).double()
        log_probs, helps = log_probs.clone(), []
        for s, dealt in enumerate(folds):
            judged, place = dealt >= 0, rungs.index(best[s])
            both = torch.stack([first[s, place], held[s, place]])[:, judged]
            likely = likelihoods(both, task.labels[judged], dealt[judged], self.folds)
            helps.append(is_significant(likely[0] - likely[1], MORE_LABELS))
            if helps[-1]:
                log_probs[s, best[s]] = everywhere[s, place]
        return log_probs, torch.tensor(helps, device=log_probs.device).long()

    # Files ------------------------------------------------------------------------------------

    def check_constants(self, fitted: FittedLadder) -> None:
        """Raise :class:`InputError` where tables read from a file do not fit together."""
        (count,) = check_table(fitted, "weights", torch.float64, None)
        if count != len(fitted.candidates):
            raise InputError(f"weights stand for {count} candidates, not {len(fitted.candidates)}")
        (nodes,) = check_table(fitted, "signature", torch.float32, None)
        classes = fitted.num_classes
        tables: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, int] | None]] = {
            "log_probs": (torch.float32, (count - 1, nodes, classes), None),
            "out_of_fold": (torch.float32, (count, nodes, classes), None),
            "folds": (torch.int64, (nodes,), (-1, self.folds - 1)),
            "labels": (torch.int64, (nodes,), (-1, classes - 1)),
            "count": (torch.int64, (), (0, 2**62)),
            "refitted": (torch.int64, (), (0, 1)),
            "temperature": (torch.float64, (), None),
            "nested_accuracy": (torch.float64, (), (0, 1)),
        }
        for name, (dtype, shape, within) in tables.items():
            check_table(fitted, name, dtype, *shape, within=within)
        if unknown := sorted(fitted.constants.keys() - {*tables, "weights", "signature"}):
            raise InputError(f"a ladder has no constant {unknown[0][:80]!r}")
        # Sums of a handful of doubles.
        sums = (fitted.weights.sum(1) - 1).abs()
        if bool((fitted.weights < 0).any()) or bool((sums > 1e-9).any()):
            raise InputError("a ladder's weights must be shares that sum to 1")
        if not bool((fitted.temperature > 0).all()):
            raise InputError("a temperature must be positive")
        dealt, judged = fitted.constants["folds"] >= 0, fitted.constants["labels"] >= 0
        if not torch.equal(dealt, judged) or not bool(judged.any(1).all()):
            raise InputError("a ladder's folds and labels are of other nodes")

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


def _side_by_side(first: Roles, second: Roles) -> Roles:
    """The copies of both for every member."""

    def joined(name: str) -> Tensor:
        each = [getattr(roles, name).unflatten(0, (-1, roles.copies)) for roles in (first, second)]
        return torch.cat(each, 1).flatten(0, 1)

    return Roles(joined("weights"), joined("judged"), first.copies + second.copies)


def _smoothed(
    task: Task, every: Tensor, folds: Tensor, out_of_fold: Tensor, log_probs: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The candidates' weighed mean, smoothed along links with the known labels, [S, n, C] twice.

    Held out: for fold k the k-th copies speak, weighed without the fold's labels, and these
    are not among those that are spread. And with all labels.
    """
    exposure = task.exposure
    operator = normalised_adjacency(task.links, exposure.num_nodes)
    known = task.by_node(task.train | task.val)
    dealt = task.by_node(folds + 1) - 1
    strength = torch.full((count + 1,), STRENGTH, dtype=torch.float64, device=folds.device)
    out = []
    for s, own in enumerate(folds):
        judged = own >= 0
        seen, labels = out_of_fold[s, 1:][:, judged], task.labels[judged]
        without = weights_without(seen, labels, own[judged], count)
        bases = [mix(every[s, :, k].double(), without[k]) for k in range(count)]
        bases.append(mix(log_probs[s], weigh(seen, labels)))
        shape = exposure.num_nodes, count + 1, exposure.num_classes
        soft = strength.new_full(shape, 1 / exposure.num_classes)
        soft[exposure.recipients] = torch.stack(bases, 1).exp()
        jobs = torch.arange(count + 1, device=folds.device)
        shown = known[s].unsqueeze(1) & (dealt[s].unsqueeze(1) != jobs)
        given = torch.where(shown, task.y.unsqueeze(1), -1)
        scores = Propagation(operator, LAYERS, soft, given).smoothed(soft, strength)
        scores = scores[exposure.recipients].clamp(min=LEAST_SCORE).log().log_softmax(2)
        index = own.clamp(min=0).view(-1, 1, 1).expand(-1, 1, scores.shape[2])
        out.append((scores.gather(1, index).squeeze(1), scores[:, count]))
    return tuple(torch.stack(part) for part in zip(*out, strict=True))  # type: ignore[return-value]


def _epochs(climbed: FittedRungs, weights: Tensor) -> dict[str, Tensor]:
    """Epochs of each member's rung of most weight; none where that is Frozen."""
    most = weights[:, : 1 + len(climbed.rungs)].argmax(1)
    member = torch.arange(len(most), device=most.device)
    epochs = {}
    for name in ("best_epoch", "epochs_run"):
        each = getattr(climbed, name).median(2).values
        epochs[name] = torch.cat([torch.zeros_like(each[:1]), each])[most, member]
    return {**epochs, "diverged": climbed.diverged.any(2).any(0)}


def _nodes_last(task: Task, values: Tensor) -> Tensor:
    """[S, R, n, C] by recipient as [S, R, N, C] by node."""
    return task.by_node(values.transpose(1, 2)).transpose(1, 2).contiguous()
