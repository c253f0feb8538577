"""What one would do instead, with the same labels: the honest comparison.

None of these is from the paper. Each is fitted like a repair and stands in the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen, train_backbone
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import FittedRepair, Repair, starts
from gnn_repair.repair.evidence import (
    DROPPED,
    LEAST_SCORE,
    FeatureEvidence,
    Propagation,
    normalised_adjacency,
)
from gnn_repair.repair.folds import (
    FOLDS,
    average_copies,
    check_table,
    fold_roles,
    kept_rows,
    middle_copy,
    same_graph,
    signature,
    split_into_folds,
)
from gnn_repair.repair.inputs import Noise, affine
from gnn_repair.repair.targets import (
    RepairTrainee,
    Targets,
    Task,
    require_nodes,
    sources_to_recipients,
)
from gnn_repair.training import Budget, Parameters, fit

ALPHAS = (0.5, 0.8, 0.95)
"""Propagation strengths that validation accuracy chooses from."""
AUTOSCALE = (True, False)
"""Both ways to scale a correction."""
CORRECTIONS = tuple(product(ALPHAS, AUTOSCALE))
"""Strength of the correction, autoscale."""
CANDIDATES = tuple(product(ALPHAS, ALPHAS, AUTOSCALE))
"""Strength of the correction, of the smoothing, autoscale: the first of equally good ones wins."""
TEMPERATURES = (0.05, 20.0)
"""Where τ is looked for."""
TABLE_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""How large one table may be: on the CPU it is to stay in the cache."""
SPREADS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Strengths that validation accuracy chooses from."""
PERCEPTRON = Budget(500, 80, 1e-2, 5e-4)
"""A backbone's rate and decay, a translation's patience."""
MANY = 2**31
"""No budget has more epochs."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedTemperature(FittedRepair["TemperatureScaling"]):
    """z = z⁰ / τ."""

    one_by_one = True

    def member_logits(self, exposure: Exposure) -> Tensor:
        """z⁰ / τ at the recipients, [S, n, C] float64."""
        scale = self._matching(exposure)["temperature"].double().view(-1, 1, 1)
        return exposure.frozen_logits[:, exposure.recipients] / scale


@dataclass(frozen=True)
class TemperatureScaling(Repair[FittedTemperature], method="temperature_scaling"):
    """One temperature per member, the best in validation likelihood; predictions stay."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedTemperature

    @torch.no_grad()
    def learn(self, task: Task) -> FittedTemperature:
        """Find τ on the validation nodes."""
        exposure, val = task.exposure, task.val_targets
        index = exposure.recipients[val.positions].unsqueeze(2)
        logits = exposure.frozen_logits.gather(1, index.expand(-1, -1, exposure.num_classes))
        temperature = self._search(logits, val)
        return self.fitted_on(exposure, parameters={"temperature": temperature.unsqueeze(1)})

    def _search(self, logits: Tensor, val: Targets) -> Tensor:
        """Golden-section search in 1/τ, where the likelihood is concave; [S]."""
        low = torch.full((logits.shape[0],), 1 / TEMPERATURES[1], dtype=torch.float64)
        low = low.to(logits.device)
        high = torch.full_like(low, 1 / TEMPERATURES[0])
        ratio = (5**0.5 - 1) / 2
        for _ in range(80):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            by_side = (_likelihood(logits * at.view(-1, 1, 1), val) for at in (left, right))
            better = torch.gt(*by_side)
            low, high = torch.where(better, low, left), torch.where(better, right, high)
        return 2 / (low + high)

    def shapes(self, fitted: FittedTemperature) -> dict[str, tuple[int, ...]]:
        """τ, one number that is positive."""
        temperature = fitted.parameters.get("temperature")
        if temperature is not None and not bool((temperature > 0).all()):
            raise InputError("a temperature must be positive")
        return {"temperature": (1,)}


def _likelihood(logits: Tensor, val: Targets) -> Tensor:
    chosen = logits.log_softmax(2).gather(2, val.labels.unsqueeze(2)).squeeze(2)
    return (chosen * val.real).sum(1)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedSmoothing(FittedRepair["CorrectAndSmooth"]):
    """Frozen probabilities, corrected and smoothed over the graph with the training labels."""

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Logarithms of the smoothed scores at the recipients, [S, n, C] float64.

        The training labels and the graph are part of this prediction, so it holds for the graph
        it was fitted on only, whichever of its recipients are asked for.
        """
        self._matching(exposure)
        place, names = exposure.recipients.device, ("labels", "strengths", "entries")
        labels, strengths, entries = (self.constants[name].to(place) for name in names)
        _check_graph(exposure, labels.shape[1], entries[0])
        scores = correct_and_smooth(
            normalised_adjacency(entries[0], exposure.num_nodes),
            exposure.frozen_logits.softmax(2),
            labels,
            strengths,
            self.repair.layers,
        )
        return scores[:, exposure.recipients].clamp(min=LEAST_SCORE).log()


def _check_graph(exposure: Exposure, nodes: int, entries: Tensor) -> None:
    """The exposure's recipients hear whom they heard when the repair was fitted."""
    if nodes != exposure.num_nodes:
        raise InputError(
            f"correct-and-smooth was fitted on a graph of {nodes} nodes, not "
            f"{exposure.num_nodes}; fit it again on this one"
        )
    asked = torch.zeros(nodes, dtype=torch.bool, device=entries.device)
    asked[exposure.recipients] = True
    if not torch.equal(entries[:, asked[entries[1]]], sources_to_recipients(exposure)):
        raise InputError(
            "correct-and-smooth was fitted on another graph, or on fewer of its recipients; "
            "fit it again on this exposure"
        )


@dataclass(frozen=True)
class CorrectAndSmooth(Repair[FittedSmoothing], method="correct_and_smooth"):
    """Correct-and-Smooth over the exposure's own sources, strengths chosen on validation."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedSmoothing
    layers: int = 50
    """Propagation steps of each of the two parts."""

    @torch.no_grad()
    def learn(self, task: Task) -> FittedSmoothing:
        """Choose each member's strengths by validation accuracy."""
        exposure = task.exposure
        require_nodes(exposure, "correct-and-smooth")
        labels = torch.where(task.by_node(task.train), task.y, -1)
        best = self._hits(exposure, labels, task.val_targets).argmax(1)  # the first of the best
        candidates = torch.tensor(CANDIDATES, dtype=torch.float64, device=best.device)
        constants = {
            "labels": labels,
            "strengths": candidates[best],
            "entries": sources_to_recipients(exposure).unsqueeze(0),
        }
        return self.fitted_on(exposure, constants=constants)

    def _hits(self, exposure: Exposure, labels: Tensor, val: Targets) -> Tensor:
        """Correct validation nodes of every member and candidate, [S, candidates].

        A correction serves all smoothings that follow it, so jobs are members × corrections.
        """
        members, place = exposure.num_members, labels.device
        operator = normalised_adjacency(sources_to_recipients(exposure), exposure.num_nodes)
        soft, nodes = exposure.frozen_logits.softmax(2), exposure.recipients[val.positions]
        member = torch.arange(members, device=place).repeat_interleave(len(CORRECTIONS))
        corrections = torch.tensor(CORRECTIONS, dtype=torch.float64, device=place)
        hits = val.sizes.new_zeros(len(member), len(ALPHAS))
        for part in torch.arange(len(member), device=place).split(jobs_at_once(soft)):
            own = member[part]
            correct, scaled = corrections[part % len(CORRECTIONS)].t()
            table = soft[own].transpose(0, 1).contiguous()
            jobs = Propagation(operator, self.layers, table, labels[own].t())
            corrected = jobs.corrected(correct, scaled.bool())
            for column, alpha in enumerate(ALPHAS):
                scores = jobs.smoothed(corrected, torch.full_like(correct, alpha))
                predicted = scores.argmax(2).t().gather(1, nodes[own])
                right = (predicted == val.labels[own]) & val.real[own]
                hits[part, column] = right.sum(1)
        # hits stand by correction, autoscale, smoothing; candidates by correction, smoothing, …
        by_candidate = hits.view(members, len(ALPHAS), len(AUTOSCALE), len(ALPHAS))
        return by_candidate.transpose(2, 3).flatten(1)

    def check_constants(self, fitted: FittedSmoothing) -> None:
        """Training labels [S, N], strengths [S, 3] among the candidates, entries [1, 2, E]."""
        if fitted.constants.keys() != {"labels", "strengths", "entries"}:
            raise InputError("correct-and-smooth needs labels, strengths and entries, nothing else")
        top = fitted.num_classes - 1
        (nodes,) = check_table(fitted, "labels", torch.int64, None, within=(-1, top))
        check_table(fitted, "strengths", torch.float64, 3)
        if any(tuple(row) not in CANDIDATES for row in fitted.constants["strengths"].tolist()):
            raise InputError("strengths must be among those that are chosen from")
        entries = fitted.constants["entries"]
        pairs = entries.dtype == torch.int64 and entries.dim() == 3 and entries.shape[:2] == (1, 2)
        if not pairs or not bool(((entries >= 0) & (entries < nodes)).all()):
            raise InputError(f"entries must be pairs of nodes in 0..{nodes - 1}")


# Correct-and-Smooth of many members and strengths at once -----------------------------------------
#
# Every member under every choice of strengths is one *job* of C columns; J jobs stand side by side
# in a table [N, J, C], so that a propagation step is one sparse product whatever J is. PyG's
# ``CorrectAndSmooth`` does the same for one job at a time, and its scores are the reference.


def jobs_at_once(soft: Tensor) -> int:
    """How many jobs a table may hold, for probabilities [S, N, C]."""
    limit = TABLE_BYTES.get(soft.device.type, min(TABLE_BYTES.values()))
    return max(1, limit // max(1, soft[0].numel() * soft.element_size()))


def correct_and_smooth(
    operator: Tensor, soft: Tensor, labels: Tensor, strengths: Tensor, layers: int
) -> Tensor:
    """Each member's scores under its own strengths, [S, N, C].

    Of probabilities [S, N, C] and training labels [S, N], −1 elsewhere. Strengths [S, 3] are α of
    the errors, α of the scores, and whether errors are scaled to their size on the training nodes.
    """
    out = torch.empty_like(soft)
    width = jobs_at_once(soft)
    for first in range(0, soft.shape[0], width):
        part = slice(first, first + width)
        correct, smooth, autoscale = strengths[part].unbind(1)
        jobs = Propagation(
            operator, layers, soft[part].transpose(0, 1).contiguous(), labels[part].t()
        )
        scores = jobs.smoothed(jobs.corrected(correct, autoscale.bool()), smooth)
        out[part] = scores.transpose(0, 1)
    return out


# Predictions that are kept as they were made ------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KeptPrediction(FittedRepair["KeptRepair"]):
    """A prediction for one graph, kept as it was made."""

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Log-probabilities at the recipients, [S, n, C] float64; on its own graph only."""
        self._matching(exposure)
        title = self.repair.title
        if not same_graph(self.constants["signature"], exposure):
            raise InputError(
                f"{title} reads known labels of the graph it was fitted on and this is another "
                "one; fit it again here, or use a repair that reads no labels"
            )
        return kept_rows(self.constants["log_probs"], exposure, title)

    @property
    def num_parameters(self) -> int:
        """Trained numbers of one member, all copies together, where they were counted."""
        return int(self.constants["count"][0]) if "count" in self.constants else 0

    @property
    def single(self) -> Tensor | None:
        """[S, models, N]: the class each single model says, where several were averaged."""
        return self.constants.get("single")


class KeptRepair(Repair[KeptPrediction]):
    """A repair whose prediction holds for the graph it was fitted on."""

    fitted_type: ClassVar[type[FittedRepair[Any]]] = KeptPrediction

    def keep(
        self, task: Task, log_probs: Tensor, statistics: Mapping[str, Tensor], **constants: Tensor
    ) -> KeptPrediction:
        """What was predicted for the recipients, and what training it came to."""
        constants |= {"log_probs": task.by_node(log_probs), "signature": signature(task.exposure)}
        return self.fitted_on(task.exposure, **statistics, constants=constants)

    def check_constants(self, fitted: KeptPrediction) -> None:
        """Raise where a prediction read from a file is not one."""
        (nodes,) = check_table(fitted, "signature", torch.float32, None)
        check_table(fitted, "log_probs", torch.float32, nodes, fitted.num_classes)
        unknown = fitted.constants.keys() - {"signature", "log_probs", "single", "count"}
        if unknown:
            raise InputError(f"a kept prediction has no constant {min(unknown)[:80]!r}")
        if "count" in fitted.constants:
            check_table(fitted, "count", torch.int64)
        if fitted.single is not None:
            among = 0, fitted.num_classes - 1
            check_table(fitted, "single", torch.int64, None, nodes, within=among)


@dataclass(frozen=True)
class LabelPropagation(KeptRepair, method="label_propagation"):
    """Known labels spread over the graph: no features, no model."""

    reads_graph: ClassVar[bool] = True
    layers: int = 50
    """Propagation steps."""

    @torch.no_grad()
    def learn(self, task: Task) -> KeptPrediction:
        """Choose the strength with training labels on validation nodes, then spread both."""
        exposure, val = task.exposure, task.by_node(task.val)
        operator = normalised_adjacency(task.links, exposure.num_nodes)

        def shares(known: Tensor, alpha: Tensor) -> Tensor:
            """Labels of the known nodes spread with α, [S, N, C]."""
            labels = torch.where(task.by_node(known), task.y, -1).t()
            even = exposure.frozen_logits.new_full((), 1 / exposure.num_classes)
            soft = even.expand(*labels.shape, exposure.num_classes)
            spread = Propagation(operator, self.layers, soft, labels).spread(alpha)
            total = spread.sum(2, keepdim=True)
            scores = torch.where(total > 0, spread / total.clamp(min=LEAST_SCORE), soft)
            return scores.transpose(0, 1)

        strengths = torch.tensor(SPREADS, dtype=torch.float64, device=val.device)
        every = strengths.unsqueeze(1).expand(-1, exposure.num_members)
        hits = [((shares(task.train, alpha).argmax(2) == task.y) & val).sum(1) for alpha in every]
        best = strengths[torch.stack(hits).argmax(0)]  # the first of the best
        scores = shares(task.train | task.val, best)[:, exposure.recipients]
        return self.keep(task, scores.clamp(min=LEAST_SCORE).log(), {})


@dataclass(frozen=True)
class FeaturePerceptron(KeptRepair, method="feature_perceptron"):
    """One hidden layer on the raw features alone, in folds: no graph, no frozen model."""

    reads_graph: ClassVar[bool] = True
    hidden: int = 128
    folds: int = FOLDS
    seed: int = 0
    budget: Budget = PERCEPTRON

    def learn(self, task: Task) -> KeptPrediction:
        """Train a copy per fold, all of them as one stack, each kept at its best epoch there."""
        x = getattr(task.data, "x", None)
        if x is None:
            raise InputError(f"{self.title} reads raw features; pass data=… with x")
        exposure, roles = task.exposure, fold_roles(task, self.folds, self.seed)
        features = FeatureEvidence(x.to(exposure.recipients.device, exposure.state.dtype))
        nodes, copies, classes = exposure.recipients, len(roles.weights), exposure.num_classes
        place = torch.arange(copies, device=nodes.device).unsqueeze(1)

        def predict(p: Parameters, tables: Any, targets: Tensor, noise: Noise | None) -> Tensor:
            """W relu(x_v V + b) + c of targets [S·K, L]; features are dropped while training."""
            table = p["features.weight"].transpose(0, 1).flatten(1)
            product = features.times(table, None if noise is None else noise.seed + 1)
            # Rows of the product stand by node and then by copy.
            rows = product.view(-1, self.hidden)[nodes[targets] * copies + place]
            return affine(p, "head", (rows + p["features.bias"].unsqueeze(1)).relu())

        part = split_into_folds(task, roles)
        layers = {"features": (features.x.shape[1], self.hidden), "head": (self.hidden, classes)}
        start = starts(
            lambda: nn.ModuleDict({name: nn.Linear(*size) for name, size in layers.items()}),
            self.seed, exposure.num_members, self.folds,
        )  # fmt: skip
        trainee = RepairTrainee(
            {name: value.to(features.x) for name, value in start.items()},
            lambda p: None,
            predict,
            part.train_targets,
            part.val_targets,
            dropout=DROPPED,
            batch_size=task.batch_size,
            seed=self.seed,
        )
        outcome = fit(trainee, self.budget, task.on_progress)
        everyone = torch.arange(len(nodes), device=nodes.device).expand(copies, -1)
        with torch.no_grad():
            each = predict(outcome.parameters, None, everyone, None)
        size = sum(value[0].numel() for value in outcome.parameters.values()) * self.folds
        count = torch.full_like(outcome.best_epoch[:: self.folds], size)
        statistics = middle_copy(vars(outcome), self.folds)
        return self.keep(task, average_copies(each, self.folds), statistics, count=count)


@dataclass(frozen=True)
class RetrainedBackbone(KeptRepair, method="retrained_backbone"):
    """The backbone itself, trained anew on training nodes and four fifths of validation.

    One model a fold, each kept at its best epoch on that fold; log-probabilities are averaged.
    """

    folds: int = FOLDS
    seed: int = 0

    @property
    def most_epochs(self) -> int:
        """As many as the backbone's own budget allows, which it does not know."""
        return MANY

    def learn(self, task: Task) -> KeptPrediction:
        """Train ``frozen``'s architecture within its budget, on its own graph; batches do not
        matter."""
        frozen = task.frozen
        if not isinstance(frozen, Frozen):
            raise InputError("a retrained backbone needs frozen=…, the model that is trained anew")
        if frozen.data.num_nodes != task.exposure.num_nodes:
            raise InputError(
                f"frozen has {frozen.data.num_nodes} nodes but the exposure has "
                f"{task.exposure.num_nodes}; pass the model that was exposed"
            )
        roles = fold_roles(task, self.folds, self.seed)
        masks = [task.by_node(who).t().cpu() for who in (roles.weights > 0, roles.judged)]
        again = _relabelled(frozen.data, task.y, task.exposure.num_classes, masks)
        trained = train_backbone(
            frozen.backbone,
            again,
            device=task.exposure.recipients.device,
            budget=frozen.budget,
            seed=frozen.seed,
            on_progress=task.on_progress,
        )
        each = trained.logits[:, task.exposure.recipients]
        predicted = trained.logits.argmax(2).unflatten(0, (-1, roles.copies))
        statistics = middle_copy(vars(trained), roles.copies)
        return self.keep(task, average_copies(each, roles.copies), statistics, single=predicted)


def _relabelled(data: Data, y: Tensor, classes: int, masks: list[Tensor]) -> Data:
    """The graph with other masks, and labels only where one of them holds."""
    again = data.clone()
    seen = (masks[0] | masks[1]).any(1)
    # What no copy may see is class 0; the number of classes stays that of the model.
    again.y = torch.where(seen, y.cpu(), torch.zeros_like(y.cpu()))
    again.classes = classes
    again.train_mask, again.val_mask = masks
    again.test_mask = None
    return again
