"""Training S·K copies as one stack: what each learns from and is judged on are its roles."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gnn_repair.devices import seeded
from gnn_repair.repair.base import TrainedRepair
from gnn_repair.repair.evidence import EvidenceInputs, KnownEvidence
from gnn_repair.repair.fitting import Predict, RepairTrainee
from gnn_repair.repair.folds import Roles, as_targets
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.repair.layers import Parameters
from gnn_repair.repair.stacked_inputs import StackedInputs
from gnn_repair.training import Fitted, ProgressCallback, fit

CHUNK = 1 << 25
"""Hidden numbers of one block of predictions."""


class RoleTrainee(RepairTrainee):
    """A repair whose targets have their own shares of the loss, judged on other inputs."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        tables: Callable[[Parameters], Any],
        learn: Predict,
        judge: Predict,
        roles: Roles,
        labels: Tensor,
        *,
        begin_step: Callable[[Tensor], None],
        dropout: float,
        batch_size: int | None,
        seed: int,
    ) -> None:
        train, val = (as_targets(who, labels) for who in (roles.weights > 0, roles.judged))
        super().__init__(
            parameters, tables, learn, train, val,
            dropout=dropout, batch_size=batch_size, seed=seed,
        )  # fmt: skip
        self.judge, self.begin_step, self.shares = judge, begin_step, roles.weights
        # In how many steps of an epoch a copy learns, whoever else is in the stack.
        self.own_steps = (-(-self.train.sizes // self.batch)).unsqueeze(1)

    def losses(self, trunk: Any) -> Tensor:
        self.begin_step(self._stream())
        return super().losses(trunk)

    def _next_batch(self) -> tuple[Tensor, ...]:
        """The shares travel with their nodes; a batch's sum stands for the whole epoch's."""
        positions, labels, means = super()._next_batch()
        shares = self.shares.gather(1, positions) * (means > 0) * self.own_steps
        return positions, labels, shares

    def scores(self, trunk: Any) -> Tensor:
        logits = self.judge(self.parameters, trunk, self.val.positions, None)
        return ((logits.argmax(2) == self.val.labels) & self.val.real).sum(1)


@dataclass(frozen=True, eq=False)
class Stack:
    """S·K trained copies."""

    parameters: Parameters
    """[S·K, …], constants included."""
    best_epoch: Tensor
    """[S·K]."""
    epochs_run: Tensor
    diverged: Tensor
    trained: tuple[str, ...]
    """Which parameters were trained; the others were fixed before."""


def train_stack(
    repair: TrainedRepair[Any],
    own: RepairInputs,
    roles: Roles,
    labels: Tensor,
    *,
    evidence: KnownEvidence | None = None,
    batch_size: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> Stack:
    """Train K copies of every member through the one loop.

    Args:
        repair: what is trained.
        own: what its S members see.
        roles: what the copies learn from and are judged on.
        labels: [n] of the recipients; read where a copy learns or is judged.
        evidence: for repairs that read more than the exposure.
        batch_size: targets an update sees; all unless given.
        on_progress: called every few epochs.
    """
    judged = stacked(own, roles.copies, evidence)
    learned = judged
    begin: Callable[[Tensor], None] = _nothing
    if evidence is not None:
        learned = EvidenceInputs(own, roles.copies, evidence, roles)
        begin = learned.begin_step
    constants = repair.constants(judged, as_targets(roles.weights > 0, labels))

    def predict(inputs: RepairInputs) -> Predict:
        return lambda p, *rest: repair.corrected({**p, **constants}, inputs, *rest)

    trainee = RoleTrainee(
        initial_copies(repair, judged, roles.copies),
        lambda p: repair.tables({**p, **constants}, judged),
        predict(learned),
        predict(judged),
        roles,
        labels,
        begin_step=begin,
        dropout=repair.dropout,
        batch_size=batch_size,
        seed=repair.seed,
    )
    with seeded(repair.seed, own.device):
        outcome = fit(trainee, repair.budget, on_progress)
    _warn_diverged(repair, outcome)
    trained = {name: value.detach() for name, value in outcome.parameters.items()}
    return Stack(
        {**trained, **constants},
        outcome.best_epoch,
        outcome.epochs_run,
        outcome.diverged,
        tuple(trained),
    )


def stacked(own: RepairInputs, copies: int, evidence: KnownEvidence | None) -> StackedInputs:
    """What K copies see once they have learned."""
    return StackedInputs(own, copies) if evidence is None else EvidenceInputs(own, copies, evidence)


def _nothing(stream: Tensor) -> None:
    """No labels to hide."""


def initial_copies(
    repair: TrainedRepair[Any], inputs: StackedInputs, copies: int
) -> dict[str, Tensor]:
    """Untrained parameters [S·K, …]: copy k starts from seed + k, whatever the member.

    Copies that start apart make different mistakes, which is what averaging them takes away.
    """
    evidence = inputs.evidence if isinstance(inputs, EvidenceInputs) else None
    single = stacked(inputs.own, 1, evidence)
    single.num_members = 1
    starts = [replace(repair, seed=repair.seed + k).initial(single) for k in range(copies)]
    members = inputs.own.num_members
    return {
        name: torch.cat([start[name] for start in starts]).repeat(members, *[1] * (value.dim() - 1))
        for name, value in starts[0].items()
    }


def _warn_diverged(repair: TrainedRepair[Any], outcome: Fitted) -> None:
    count = int(outcome.diverged.sum())
    if count:
        warnings.warn(
            f"{repair.title}: {count} of {outcome.diverged.numel()} copies diverged; "
            "the best of their earlier states were kept",
            stacklevel=4,
        )


@torch.no_grad()
def stack_logits(
    repair: TrainedRepair[Any], inputs: StackedInputs, parameters: Parameters
) -> Tensor:
    """Logits of all copies at all recipients, [S·K, n, C], in blocks of recipients."""
    tables = repair.tables(parameters, inputs)
    everyone = inputs.everyone
    width = max(getattr(repair, "hidden", None) or 1, inputs.width)
    step = max(1, CHUNK // (inputs.num_members * width))
    parts = [
        repair.corrected(parameters, inputs, tables, part.contiguous(), None)
        for part in everyone.split(step, dim=1)
    ]
    return torch.cat(parts, dim=1)
