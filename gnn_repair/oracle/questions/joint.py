"""Can *one* reweighting put all labels of a node on their true sides?

Each label by itself has a λ of its own. Together they are a question about classes: let class 0
have the logit 0 and class k + 1 the logit ∓(z_k − θ), negative where label k is right. Then class
0 wins by min_k ±(z_k − θ), and the oracle of classes, its certificates and proofs serve unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.heads.operations import Affine, Scale
from gnn_repair.exposure.pieces import require_outputs, truths_for
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.problems import append_operations, check_number, require_exposure


def jointly(exposure: Exposure, y: Any, nodes: Any = None, *, threshold: float = 0.0) -> Exposure:
    """The exposure of K + 1 classes whose class 0 wins where all labels are right.

    Ask it with ``solve(together, zeros)`` or ``reach(together, zeros)``, zeros being the
    target of every node. A label that is not known does not count; a node of which none is known
    is right. Behind a nonlinear head margins are at most 1 where a label is not known.

    Args:
        exposure: of a model with several labels per node.
        y: [N, K] zeros and ones, NaN or −1 where unknown.
        nodes: a mask [N] or node numbers; all unless given. The contributions of each of these
            nodes' terms are held once more, [T, K + 1].
        threshold: θ; an output above it is there.
    """
    require_exposure(exposure)
    require_outputs(exposure, "labels")
    limit, truths = check_number(threshold, "threshold"), truths_for(exposure, y)
    if exposure.head is not None:
        return _after_head(exposure, truths, limit)
    part = exposure if nodes is None else exposure.restrict(nodes)
    row = part.rows.long()
    owner = torch.repeat_interleave(part.recipients, part.segments[:: part.num_groups].diff())
    return replace(
        part,
        rows=torch.arange(len(row), dtype=torch.int32, device=row.device),
        sources=part.sources[row],
        message_rows=part.message_rows[row],
        contributions=_signed(part.contributions[:, row], truths[owner], 0.0, 0.0),
        fixed_logits=_signed(part.fixed_logits, truths, limit, 1.0),
        frozen_logits=_signed(part.frozen_logits, truths, limit, 1.0),
        outputs="classes",
    )


def _signed(values: Tensor, truths: Tensor, limit: float, empty: float) -> Tensor:
    """(0, ∓(z − θ)) of rows [S, R, K], ∓ as their truths [R, K] say.

    A label that is not known says what another of its row says; where none is known, −``empty``.
    """
    known = ~truths.isnan()
    own = torch.arange(truths.shape[1], device=truths.device)
    column = torch.where(known, own, known.int().argmax(1, keepdim=True))
    sign = 1 - 2 * truths.gather(1, column)
    moved = (values - limit).gather(2, column.expand(len(values), -1, -1)) * sign
    moved = torch.where(known.any(1)[:, None], moved, -empty)
    return torch.cat([torch.zeros_like(moved[..., :1]), moved], dim=2)


def _after_head(exposure: Exposure, truths: Tensor, limit: float) -> Exposure:
    known = ~truths.isnan()
    sign = torch.where(known, 1 - 2 * truths, 0.0)
    # A rival that always loses by one, where a label is not known, changes no verdict.
    shift = torch.where(known, -limit * sign, -1.0)
    count = exposure.num_classes
    weight = torch.cat([sign.new_zeros(1, count), torch.eye(count).to(sign)])
    with_zero = Affine((1,), weight, weight.new_zeros(count + 1))
    return append_operations(exposure, Scale((0,), sign, shift), with_zero)
