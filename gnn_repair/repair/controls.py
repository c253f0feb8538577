"""What one would do instead of the ladder, with the same labels: the honest comparison.

None of these is from the paper. Each is fitted like a repair and stands in the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen, train_backbone
from gnn_repair.budget import Budget, adjusted, check_whole
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import METHODS
from gnn_repair.repair.base import FittedRepair, Repair, about, starts, untrained
from gnn_repair.repair.baselines import TINY, normalised_adjacency, sources_to_recipients
from gnn_repair.repair.evidence import DROPPED, FeatureEvidence
from gnn_repair.repair.folds import (
    FOLDS,
    averaged,
    check_graph,
    check_table,
    fold_roles,
    kept_rows,
    middle_copy,
    signature,
)
from gnn_repair.repair.inputs import Noise, Parameters, affine
from gnn_repair.repair.targets import RepairTrainee, Task, as_targets
from gnn_repair.training import fit

ALPHAS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Strengths that validation accuracy chooses from."""
PERCEPTRON = Budget(500, 80, 1e-2, 5e-4)
"""A backbone's rate and decay, a translation's patience."""
MANY = 2**31
"""No budget has more epochs."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KeptPrediction(FittedRepair["KeptRepair"]):
    """A prediction for one graph, kept as it was made."""

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Log-probabilities at the recipients, [S, n, C] float64; on its own graph only."""
        self._matching(exposure)
        check_graph(self.constants["signature"], exposure, self.repair.title)
        return kept_rows(self.constants["log_probs"], exposure, self.repair.title)

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

    def keep(self, task: Task, log_probs: Tensor, **more: Tensor) -> KeptPrediction:
        """What was predicted for the recipients; statistics and further constants by name."""
        statistics = untrained(task.exposure)
        statistics |= {name: more.pop(name) for name in statistics if name in more}
        kept = {"log_probs": task.by_node(log_probs), "signature": signature(task.exposure)}
        return self.fitted(
            **about(task.exposure), **statistics, parameters={}, constants={**kept, **more}
        )

    def check_constants(self, fitted: KeptPrediction) -> None:
        """Raise where a prediction read from a file is not one."""
        (nodes,) = check_table(fitted, "signature", torch.float32, None)
        check_table(fitted, "log_probs", torch.float32, nodes, fitted.num_classes)
        if unknown := sorted(
            fitted.constants.keys() - {"signature", "log_probs", "single", "count"}
        ):
            raise InputError(f"a kept prediction has no constant {unknown[0][:80]!r}")
        if "count" in fitted.constants:
            check_table(fitted, "count", torch.int64)
        if fitted.single is not None:
            check_table(fitted, "single", torch.int64, None, nodes)
            if not bool(((fitted.single >= 0) & (fitted.single < fitted.num_classes)).all()):
                raise InputError(f"single must lie in 0..{fitted.num_classes - 1}")


@dataclass(frozen=True)
class LabelPropagation(KeptRepair):
    """Known labels spread over the graph: no features, no model."""

    protocol: ClassVar[Mapping[str, str]] = {"layers": "smoothing_layers"}
    title: ClassVar[str] = METHODS["label_propagation"].title
    reads_graph: ClassVar[bool] = True
    layers: int = 50
    """Propagation steps."""

    def __post_init__(self) -> None:
        check_whole("LabelPropagation", "layers", self.layers, 1)

    @torch.no_grad()
    def learn(self, task: Task) -> KeptPrediction:
        """Choose the strength with training labels on validation nodes, then spread both."""
        data = task.data
        entries = sources_to_recipients(task.exposure) if data is None else data.edge_index
        entries = entries.to(task.inputs.device).long()
        entries = entries[:, entries[0] != entries[1]]
        operator = normalised_adjacency(entries, task.exposure.num_nodes)
        train, val = task.by_node(task.train), task.by_node(task.val)
        chosen = self._strengths(operator, task, train, val)
        told = self._spread(operator, self._shown(task, train | val), chosen)
        return self.keep(task, told[:, task.exposure.recipients].clamp(min=TINY).log())

    def _shown(self, task: Task, known: Tensor) -> Tensor:
        """Known labels as rows of 0 and 1, [N, S, C]."""
        classes = torch.arange(task.exposure.num_classes, device=known.device)
        return ((task.y.view(-1, 1, 1) == classes) & known.t().unsqueeze(2)).double()

    def _strengths(self, operator: Tensor, task: Task, train: Tensor, val: Tensor) -> Tensor:
        """Each member's best α on validation nodes, the first of the best; [S]."""
        shown, members = self._shown(task, train), task.exposure.num_members
        hits = []
        for alpha in ALPHAS:
            same = torch.full((members,), alpha, dtype=torch.float64, device=val.device)
            said = self._spread(operator, shown, same).argmax(2)
            hits.append(((said == task.y) & val).sum(1))
        return torch.tensor(ALPHAS, dtype=torch.float64, device=val.device)[
            torch.stack(hits).argmax(0)
        ]

    def _spread(self, operator: Tensor, shown: Tensor, alpha: Tensor) -> Tensor:
        """``layers`` times x ← α Âx + (1 − α) shown, as shares; [S, N, C]."""
        gain = alpha.view(1, -1, 1)
        out = shown
        for _ in range(self.layers):
            out = gain * (operator @ out.flatten(1)).view_as(shown) + (1 - gain) * shown
        total = out.sum(2, keepdim=True)
        even = torch.full_like(out, 1 / out.shape[2])
        return torch.where(total > 0, out / total.clamp(min=TINY), even).transpose(0, 1)


@dataclass(frozen=True)
class FeaturePerceptron(KeptRepair):
    """One hidden layer on the raw features alone, in folds: no graph, no frozen model."""

    protocol: ClassVar[Mapping[str, str]] = {"hidden": "hidden", "seed": "seed"}
    title: ClassVar[str] = METHODS["feature_perceptron"].title
    reads_graph: ClassVar[bool] = True
    hidden: int = 128
    folds: int = FOLDS
    seed: int = 0
    budget: Budget = PERCEPTRON

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("folds", 2), ("seed", 0)):
            check_whole("FeaturePerceptron", name, getattr(self, name), least)
        adjusted("FeaturePerceptron", self.budget, None, None)

    @property
    def most_epochs(self) -> int:
        """As the budget says."""
        return self.budget.epochs

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

        train = as_targets(roles.weights > 0, task.labels)._replace(shares=roles.weights)
        layers = {"features": (features.width, self.hidden), "head": (self.hidden, classes)}
        start = starts(
            lambda: nn.ModuleDict({name: nn.Linear(*size) for name, size in layers.items()}),
            self.seed, exposure.num_members, self.folds,
        )  # fmt: skip
        trainee = RepairTrainee(
            {name: value.to(features.x) for name, value in start.items()},
            lambda p: None,
            predict,
            train,
            as_targets(roles.judged, task.labels),
            dropout=DROPPED,
            batch_size=task.batch_size,
            seed=self.seed,
        )
        outcome = fit(trainee, self.budget, task.on_progress)
        everyone = torch.arange(len(nodes), device=nodes.device).expand(copies, -1)
        with torch.no_grad():
            each = predict(outcome.parameters, None, everyone, None)
        size = sum(value[0].numel() for value in outcome.parameters.values()) * self.folds
        return self.keep(
            task,
            averaged(each, self.folds),
            count=torch.full_like(outcome.best_epoch[:: self.folds], size),
            **middle_copy(vars(outcome), self.folds),
        )


@dataclass(frozen=True)
class RetrainedBackbone(KeptRepair):
    """The backbone itself, trained anew on training nodes and four fifths of validation.

    One model a fold, each kept at its best epoch on that fold; log-probabilities are averaged.
    """

    protocol: ClassVar[Mapping[str, str]] = {"seed": "seed"}
    title: ClassVar[str] = METHODS["retrained_backbone"].title
    folds: int = FOLDS
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("RetrainedBackbone", "folds", self.folds, 2)
        check_whole("RetrainedBackbone", "seed", self.seed, 0)

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
        said = trained.logits.argmax(2).unflatten(0, (-1, roles.copies))
        return self.keep(
            task,
            averaged(each, roles.copies),
            single=said,
            **middle_copy(vars(trained), roles.copies),
        )


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
