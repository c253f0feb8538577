"""What repairs are cross-fitted to: a frozen model, its labels, and folds of validation nodes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.budget import check_whole
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposed
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.dropout import LOW
from gnn_repair.repair.base import F, Repair, on_device
from gnn_repair.repair.evidence import (
    KnownEvidence,
    check_graph_data,
    gather_evidence,
    with_dense_features,
)
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
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
    learned, judged = (_chosen(targets, exposure.num_recipients) for targets in (train, val))
    return Task(exposure, repair_inputs(exposure), y, learned, judged, data)


def _chosen(targets: Targets, count: int) -> Tensor:
    chosen = torch.zeros(targets.sizes.numel(), count, dtype=torch.int, device=targets.sizes.device)
    return chosen.scatter_add(1, targets.positions, targets.real.int()) > 0


@dataclass(frozen=True)
class GraphRepair(Repair[F]):
    """A repair that reads labels over the graph, or the graph itself where it is given."""

    def learn_with(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        data: Data | None,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """With the graph. Without it, neighbours are the exposure's own sources and there are no
        raw features to read; validation nodes must be at least as many as there are folds."""
        return self.learn_task(task_of(exposure, train, val, data), batch_size, on_progress)

    def learn(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Without the graph."""
        return self.learn_task(task_of(exposure, train, val), batch_size, on_progress)

    @abstractmethod
    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> F:
        """Learn from what is known to be sound, where the exposure is."""


# Folds -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Roles:
    """What each of K copies of S members does with each recipient.

    Copy k of member s is number s·K + k. A copy *learns* where its weight is positive and is
    *judged* elsewhere, on validation nodes that it does not learn from.
    """

    weights: Tensor
    """[S·K, n] float32: shares of the loss, summing to 1 for every copy."""
    judged: Tensor
    """[S·K, n] bool."""
    copies: int
    """K."""


def deal_folds(val: Tensor, labels: Tensor, folds: int, seed: int, even: bool = True) -> Tensor:
    """The fold of every validation recipient, [S, n] int64; −1 elsewhere.

    Nodes are dealt out in a random order that depends on the seed and the node alone, so a
    member's folds do not depend on who is fitted beside it.

    Args:
        val: [S, n] bool.
        labels: [n]; read where ``val`` holds.
        folds: how many.
        seed: another one, other folds.
        even: classes are dealt one after the other, so that every fold has its share of each.
            Then the other folds tell how frequent a class is in this one, and accuracies out of
            fold are a little too high.
    """
    fewest = int(val.sum(1).min())
    if folds < 2:
        raise InputError(f"folds is {folds}; there must be at least 2 to learn and to judge")
    if fewest < folds:
        raise SplitError(
            f"val_mask of a member has {fewest} nodes, too few for {folds} folds; "
            "give more validation nodes or fewer folds"
        )
    numbers = torch.arange(val.shape[1], device=val.device)
    order = row_hash(torch.tensor(seed, device=val.device), numbers)
    # Validation nodes first, by class and then by chance; labels elsewhere are not read.
    kinds = labels if even else torch.zeros_like(labels)
    behind = kinds[val.any(0)].max() + 1
    keys = torch.where(val, kinds, behind) * (LOW + 1) + order
    place = keys.argsort(dim=1).argsort(dim=1)
    return torch.where(val, place % folds, -1)


def cross_roles(
    train: Tensor, folds: Tensor, count: int, fold_share: float, leave: int = 1, times: int = 1
) -> Roles:
    """Copy k learns from the training nodes and all folds but k, and is judged on fold k.

    Args:
        train: [S, n] bool.
        folds: [S, n], from :func:`deal_folds`.
        count: K.
        fold_share: how much of the loss falls on validation nodes.
        leave: how many folds a copy does not learn from, k and those after it; where it learns
            from all of them, it is judged on none.
        times: how many copies do the same, numbers k, k + K, …
    """
    own = (torch.arange(count * times, device=folds.device) % count).view(1, -1, 1)
    dealt = folds.unsqueeze(1)
    judged = ((dealt == own) & (leave > 0)).flatten(0, 1)
    others = ((dealt >= 0) & ((dealt - own) % count >= leave)).flatten(0, 1)
    trained = train.repeat_interleave(count * times, 0)
    weights = fold_share * _mean(others) + (1 - fold_share) * _mean(trained)
    return Roles(weights, judged, count * times)


def _mean(chosen: Tensor) -> Tensor:
    return chosen.float() / chosen.sum(1, keepdim=True).clamp(min=1)


def as_targets(chosen: Tensor, labels: Tensor) -> Targets:
    """Each row's chosen recipients [M, n] as targets; padding repeats a row's first."""
    sizes = chosen.sum(1)
    order = torch.sort(chosen.int(), dim=1, descending=True, stable=True).indices
    order = order[:, : int(sizes.max())]
    real = torch.arange(order.shape[1], device=order.device) < sizes.unsqueeze(1)
    index = torch.where(real, order, order[:, :1])
    return Targets(index, labels[index], sizes)


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


def averaged(logits: Tensor, copies: int) -> Tensor:
    """Mean log-probabilities of the copies' logits [S·K, n, C], normalised; [S, n, C] float64."""
    by_copy = logits.double().log_softmax(2).unflatten(0, (-1, copies))
    return by_copy.mean(1).log_softmax(2)


def held_out(logits: Tensor, roles: Roles) -> Tensor:
    """Mean log-probabilities of the copies that were judged on a node (one a repeat), [S, n, C]."""
    told = logits.double().log_softmax(2).unflatten(0, (-1, roles.copies))
    judged = roles.judged.unflatten(0, (-1, roles.copies)).double()
    count = judged.sum(1).unsqueeze(2)
    mean = (told * judged.unsqueeze(3)).sum(1) / count.clamp(min=1)
    return torch.where(count > 0, mean.log_softmax(2), 0.0)


def by_node(task: Task, values: Tensor) -> Tensor:
    """Values of the recipients [S, n, …] as values of the nodes [S, N, …], zero elsewhere."""
    exposure = task.exposure
    out = values.new_zeros(values.shape[0], exposure.num_nodes, *values.shape[2:])
    out[:, exposure.recipients] = values
    return out.float() if values.is_floating_point() else out
