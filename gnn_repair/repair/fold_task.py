"""One frozen model, its masks and its folds: what cross-fitted repairs are fitted to."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen
from gnn_repair.budget import check_real, check_whole
from gnn_repair.devices import choose_device, out_of_memory_hint
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.repair.base import F, Repair, TrainedRepair, on_device
from gnn_repair.repair.evidence import Evidence, gather_evidence
from gnn_repair.repair.folds import Roles, cross_roles, deal_folds
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.stack_training import Stack, stack_logits, stacked, train_stack
from gnn_repair.repair.targets import Targets, check_exposure_given, find_targets
from gnn_repair.training import ProgressCallback

FOLDS = 5
"""Four fifths of the validation nodes to learn from, a fifth to choose the epoch by."""
FOLD_SHARE = 0.8
"""How much of the loss falls on validation nodes, where the frozen model's mistakes are honest;
the rest keeps what holds on training nodes, of which there are more."""


@dataclass(frozen=True, eq=False)
class Task:
    """What repairs of one frozen model are fitted to. It holds no label outside the masks."""

    exposure: Exposure
    inputs: RepairInputs
    labels: Tensor
    """[n], of the recipients; 0 where no member may see one."""
    train: Tensor
    """[S, n] bool, by recipient."""
    val: Tensor
    """[S, n] bool."""
    data: Data | None = None
    frozen: Frozen | None = None

    @property
    def y(self) -> Tensor:
        """[N], of the nodes; 0 where no member may see one."""
        out = self.labels.new_zeros(self.exposure.num_nodes)
        out[self.exposure.recipients] = self.labels
        return out

    def evidence(self) -> Evidence:
        """What there is beside the exposure: labels of training and validation nodes alone."""
        shape = self.exposure.num_members, self.exposure.num_nodes
        known = torch.zeros(shape, dtype=torch.bool, device=self.val.device)
        known[:, self.exposure.recipients] = self.train | self.val
        return gather_evidence(self.exposure, self.y, known, self.data)


def as_task(
    exposure: Exposure, train: Targets, val: Targets, data: Data | Frozen | None = None
) -> Task:
    """Targets that are known to be sound as a task, where the exposure is."""
    count = exposure.num_recipients
    labels = torch.zeros(count, dtype=torch.long, device=train.positions.device)
    for targets in (train, val):
        labels[targets.positions.flatten()] = targets.labels.flatten()
    frozen = data if isinstance(data, Frozen) else None
    graph = frozen.data if frozen is not None else data
    if graph is not None and not isinstance(graph, Data):
        raise InputError(f"data is {type(graph).__name__}; give the graph that was exposed")
    inputs = repair_inputs(exposure)
    return Task(exposure, inputs, labels, _mask(train, count), _mask(val, count), graph, frozen)


def _mask(targets: Targets, count: int) -> Tensor:
    chosen = torch.zeros(targets.sizes.numel(), count, dtype=torch.int, device=targets.sizes.device)
    return chosen.scatter_add(1, targets.positions, targets.real.int()) > 0


@dataclass(frozen=True)
class ReadsGraph(Repair[F]):
    """A repair that can read the graph beside the exposure."""

    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        data: Data | Frozen | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> F:
        """Learn from training and validation labels.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read.
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it.
            data: the graph with ``edge_index`` and ``x``, or the frozen backbone, which holds it.
            batch_size: targets an update sees; all unless given.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
        """
        check_exposure_given(exposure)
        if batch_size is not None:
            check_whole("fit", "batch_size", batch_size, 1)
        place = choose_device(device)
        with out_of_memory_hint(f"fitting {self.title} for {exposure.num_members} members"):
            placed = on_device(exposure, place)
            train, val = find_targets(placed, y, train_mask, val_mask)
            task = as_task(placed, train, val, data)
            return self.learn_task(task, batch_size, on_progress)

    def learn(
        self,
        exposure: Exposure,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Learn without the graph."""
        return self.learn_task(as_task(exposure, train, val), batch_size, on_progress)

    @abstractmethod
    def learn_task(
        self, task: Task, batch_size: int | None, on_progress: ProgressCallback | None
    ) -> F:
        """Learn from a task that is known to be sound."""


@dataclass(frozen=True)
class Folding:
    """How validation nodes are dealt out."""

    folds: int = FOLDS
    repeats: int = 1
    """Times the nodes are dealt anew; each time adds ``folds`` copies."""
    fold_share: float = FOLD_SHARE
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("folds of validation nodes", "folds", self.folds, 2)
        check_whole("folds of validation nodes", "repeats", self.repeats, 1)
        check_real("folds of validation nodes", "fold_share", self.fold_share, 0, 1)
        check_whole("folds of validation nodes", "seed", self.seed, 0)

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


class Outcome(NamedTuple):
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
    evidence: Evidence | None = None,
    batch_size: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> Outcome:
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
    return Outcome(stack, averaged(each, roles.copies), held_out(each, roles))


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
