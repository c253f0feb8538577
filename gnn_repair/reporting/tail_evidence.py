"""What a report shows beside the terms where a model ends in a nonlinear tail.

Logits are then no mixture of contributions. Shown are logits that the model, or its certified tail,
really gives: at the oracle's λ, and with all of a group's mass on one message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.exposure.tails.heads import followed_by
from gnn_repair.oracle.tails.search import model_logits
from gnn_repair.oracle.tails.sentence import CAN, CANNOT, UNDECIDED
from gnn_repair.oracle.tails.solution import TailSolution

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

VERDICTS = (CAN, CANNOT, UNDECIDED)
UNSOLVED = len(VERDICTS)
"""The code of a node that nobody asked about."""
CHUNK = 1 << 22
"""Numbers of aggregates that go through the tail at once."""


@dataclass(frozen=True, eq=False)
class TailEvidence:
    """Verdicts about n nodes and the logits that stand behind them."""

    words: str
    """The tail's operations, such as ``layer_norm, relu, affine``."""
    scope: str
    """What of the model was reweighted where that is not all."""
    replayed: bool
    """Whether the oracle's logits are the model's own."""
    verdict: Integers
    """[n]: a place in VERDICTS, or UNSOLVED."""
    margin: Floats
    """[n]: the best margin found, at the witness; NaN where unsolved."""
    bound: Floats
    """[n]: what no reweighting exceeds; infinite where nothing is proved."""
    reasons: tuple[str, ...]
    """[n]: why a node is undecided; empty for the others."""
    oracle_logits: Floats
    """[n, C]: with the witness's λ; the frozen ones where unsolved."""
    alone_logits: Floats
    """[T, C]: with all of a term's group mass on it and the other groups as frozen."""

    @property
    def proved(self) -> NDArray[np.bool_]:
        """[n]: the true class was shown to win somewhere."""
        return np.asarray(self.verdict == VERDICTS.index(CAN))

    @property
    def decided(self) -> NDArray[np.bool_]:
        """[n]: one of the two was shown."""
        return self.proved | ~self.possible

    @property
    def possible(self) -> NDArray[np.bool_]:
        """[n]: it was not excluded."""
        return np.asarray(self.verdict != VERDICTS.index(CANNOT))


def tail_evidence(
    part: Exposure, solution: TailSolution, place: Integers, witness: Floats
) -> TailEvidence:
    """What is shown of the recipients of ``part``.

    Args:
        part: the chosen nodes' exposure, on the CPU.
        solution: the oracle's.
        place: [n] each node's question, −1 where there is none.
        witness: [T] the oracle's λ on the terms of ``part``.
    """
    head, known = part.head, place >= 0
    assert head is not None
    where = np.where(known, place, 0)
    codes = np.array([VERDICTS.index(str(word)) for word in solution.verdict], np.int64)
    counts = np.diff(part.segments[:: part.num_groups].numpy())
    alpha = part.coefficients[0].double().numpy()
    chosen = torch.from_numpy(np.where(np.repeat(known, counts), witness, alpha))
    return TailEvidence(
        words=followed_by(head),
        scope=part.scope,
        replayed=part.replay is not None,
        verdict=np.where(known, codes[where], UNSOLVED),
        margin=np.where(known, solution.margin[where], np.nan),
        bound=np.where(known, solution.bound[where], np.inf),
        reasons=tuple(solution.reasons.get(int(i), "") if i >= 0 else "" for i in place),
        oracle_logits=model_logits(part, chosen).numpy(),
        alone_logits=alone_logits(part),
    )


def alone_logits(part: Exposure) -> Floats:
    """[T, C]: each term alone in its group, by the tail in float64."""
    mixed, head = part.aggregate, part.head
    assert head is not None
    frozen = mixed.logits()[0]
    lengths, groups = mixed.segments.diff(), mixed.num_groups
    slot = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    step = max(1, CHUNK // max(1, head.width))
    own = _group_mixtures(part, slot, len(lengths), step)
    mass = mixed.mass[0].reshape(-1)
    rows = []
    for terms in torch.arange(part.num_terms).split(step):
        at = slot[terms]
        message = mixed.contributions[0, mixed.rows[terms].long()]
        points = frozen[at // groups] - own[at] + mass[at].unsqueeze(1) * message
        rows.append(head(points, mixed.recipients[at // groups]).detach())
    return torch.cat([torch.zeros(0, part.num_classes, dtype=torch.float64), *rows]).numpy()


def _group_mixtures(part: Exposure, slot: Tensor, slots: int, step: int) -> Tensor:
    """Σ α h of every recipient and group, [n·G, D]."""
    mixed = part.aggregate
    total = torch.zeros(slots, mixed.num_classes, dtype=torch.float64)
    alpha = mixed.coefficients[0].double()
    for terms in torch.arange(part.num_terms).split(step):
        sent = alpha[terms].unsqueeze(1) * mixed.contributions[0, mixed.rows[terms].long()]
        total.index_add_(0, slot[terms], sent)
    return total
