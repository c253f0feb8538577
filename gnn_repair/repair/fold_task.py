"""One frozen model, its masks and its folds: what cross-fitted repairs are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.budget import check_whole
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.base import TrainedRepair, on_device
from gnn_repair.repair.evidence import (
    KnownEvidence,
    check_graph_data,
    gather_evidence,
    with_dense_features,
)
from gnn_repair.repair.folds import Roles, cross_roles, deal_folds
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.stack_training import Stack, stack_logits, stacked, train_stack
from gnn_repair.repair.targets import (
    Targets,
    check_exposure_given,
    find_targets,
    require_nodes,
)
from gnn_repair.training import ProgressCallback

FOLDS = 5
"""Four fifths of the validation nodes to learn from, a fifth to choose the epoch by."""
FOLD_SHARE = 0.8
"""How much of the loss falls on validation nodes, where the frozen model's mistakes are honest;
the rest keeps what holds on training nodes, of which there are more."""


@dataclass(frozen=True, eq=False)
class Task:
    """What repairs of one frozen model are fitted to."""

    exposure: Exposed
    inputs: RepairInputs
    y: Tensor
    """[N]; the labels of training and validation nodes alone, 0 elsewhere."""
    train: Tensor
    """[S, n] bool, by recipient."""
    val: Tensor
    """[S, n] bool."""
    data: Data | None = None

    @property
    def labels(self) -> Tensor:
        """[n], of the recipients."""
        return self.y[self.exposure.recipients]

    def evidence(self) -> KnownEvidence:
        """What there is beside the exposure: labels of training and validation nodes alone."""
        require_nodes(self.exposure, "the evidence ladder")
        shape = self.exposure.num_members, self.exposure.num_nodes
        known = torch.zeros(shape, dtype=torch.bool, device=self.val.device)
        known[:, self.exposure.recipients] = self.train | self.val
        return gather_evidence(self.exposure, self.y, known, self.data)


def prepare(
    exposure: Exposed,
    y: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    data: Data | None,
    device: str | torch.device,
) -> Task:
    """Check what a repair is to be fitted to, and bring it to the device."""
    check_exposure_given(exposure)
    placed = on_device(exposure, choose_device(device))
    return task_of(placed, *find_targets(placed, y, train_mask, val_mask), data)


def task_of(exposure: Exposed, train: Targets, val: Targets, data: Data | None = None) -> Task:
    """What the members' targets say; no other label is in it."""
    if data is not None:
        data = with_dense_features(data)
        check_graph_data(exposure, data)
    y = torch.zeros(exposure.num_nodes, dtype=torch.long, device=train.labels.device)
    for targets in (train, val):
        y[exposure.recipients[targets.positions]] = targets.labels
    learned, judged = (_mask(targets, exposure.num_recipients) for targets in (train, val))
    return Task(exposure, repair_inputs(exposure), y, learned, judged, data)


def _mask(targets: Targets, count: int) -> Tensor:
    chosen = torch.zeros(targets.sizes.numel(), count, dtype=torch.int, device=targets.sizes.device)
    return chosen.scatter_add(1, targets.positions, targets.real.int()) > 0


@dataclass(frozen=True)
class Folding:
    """How validation nodes are dealt out."""

    folds: int = FOLDS
    repeats: int = 1
    """Times the nodes are dealt anew; each time adds ``folds`` copies."""
    fold_share: float = FOLD_SHARE
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("folds", 2), ("repeats", 1), ("seed", 0)):
            check_whole("Folding", name, getattr(self, name), least)
        share = self.fold_share
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 <= share <= 1:
            raise InputError(f"fold_share is {share!r}; it must lie between 0 and 1")

    def deal(self, task: Task) -> Tensor:
        """The fold of every validation recipient in every repeat, [repeats, S, n]; −1 elsewhere."""
        return torch.stack(
            [
                deal_folds(task.val, task.labels, self.folds, self.seed + again)
                for again in range(self.repeats)
            ]
        )

    def roles(self, task: Task) -> Roles:
        """Of ``repeats`` × ``folds`` copies of every member."""
        dealt = [
            cross_roles(task.train, folds, self.folds, self.fold_share) for folds in self.deal(task)
        ]
        members = task.train.shape[0]
        weights, judged = (
            torch.cat([getattr(roles, name).unflatten(0, (members, -1)) for roles in dealt], 1)
            for name in ("weights", "judged")
        )
        return Roles(weights.flatten(0, 1), judged.flatten(0, 1), self.folds * self.repeats)


class FoldOutcome(NamedTuple):
    """What fitting one repair gave."""

    stack: Stack
    log_probs: Tensor
    """[S, n, C]: the copies' mean, at every recipient."""
    out_of_fold: Tensor
    """[S, n, C]: by copies that did not learn from the node; zero where a recipient is no
    validation node."""


def fit_stack(
    repair: TrainedRepair[Any],
    task: Task,
    roles: Roles,
    evidence: KnownEvidence | None = None,
    batch_size: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> FoldOutcome:
    """Train the copies and average what they say."""
    stack = train_stack(
        repair,
        task.inputs,
        roles,
        task.labels,
        evidence=evidence,
        batch_size=batch_size,
        on_progress=on_progress,
    )
    inputs = stacked(task.inputs, roles.copies, evidence)
    each = stack_logits(repair, inputs, stack.parameters)
    return FoldOutcome(stack, averaged(each, roles.copies), held_out(each, roles))


def averaged(logits: Tensor, copies: int) -> Tensor:
    """Mean log-probabilities of the copies' logits [S·K, n, C], normalised; [S, n, C] float64."""
    by_copy = logits.double().log_softmax(2).unflatten(0, (-1, copies))
    return by_copy.mean(1).log_softmax(2)


def held_out(logits: Tensor, roles: Roles) -> Tensor:
    """Mean log-probabilities of the copies that were judged on a node (one a repeat), [S, n, C].

    The copy's epoch was chosen on the node's fold, as the frozen model's was on all validation
    nodes: both flatter a little.
    """
    told = logits.double().log_softmax(2).unflatten(0, (-1, roles.copies))
    judged = roles.judged.unflatten(0, (-1, roles.copies)).double()
    count = judged.sum(1).unsqueeze(2)
    mean = (told * judged.unsqueeze(3)).sum(1) / count.clamp(min=1)
    return torch.where(count > 0, mean.log_softmax(2), 0.0)


def summary(stack: Stack, copies: int) -> dict[str, Tensor]:
    """A stack's statistics by member: the middle copy's epochs, whether any diverged."""
    best, run, gone = (
        value.view(-1, copies) for value in (stack.best_epoch, stack.epochs_run, stack.diverged)
    )
    return {
        "best_epoch": best.median(1).values,
        "epochs_run": run.median(1).values,
        "diverged": gone.any(1),
    }


def by_node(task: Task, values: Tensor) -> Tensor:
    """Values of the recipients [S, n, …] as values of the nodes [S, N, …], zero elsewhere."""
    exposure = task.exposure
    out = values.new_zeros(values.shape[0], exposure.num_nodes, *values.shape[2:])
    out[:, exposure.recipients] = values
    return out.float() if values.is_floating_point() else out
