"""A head without the sigmoid or softmax at its end, and an affine head folded into its mixture.

A label is there where its probability exceeds one half, which is where its logit exceeds zero, and
the most probable class is the one of the largest logit: what makes probabilities of logits at the
very end changes no verdict. Where nothing but affine steps is left, the head is no head, and every
answer is exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gnn_repair.checks import require_derivatives
from gnn_repair.exposure.heads.head import simplify
from gnn_repair.exposure.heads.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    HeadGraph,
    Scale,
    Select,
    Softmax,
    prune,
)
from gnn_repair.exposure.pieces import mixture_of
from gnn_repair.exposure.value import Exposure, Replay
from gnn_repair.kernels import Pattern

AFFINE = (Affine, Scale, Select, Add, Concatenate, Constant)
CHUNK = 1 << 18
"""Terms whose contributions are formed at once where every node has its own W: some tens of
megabytes, where all terms of a large graph would fill the memory."""
SATURATED = 2.0**-52
"""Probabilities nearer than this to zero or one stand for a logit of ±36, and for no other."""
BEFORE_SOFTMAX = " before softmax"
"""At the end of fingerprints where a softmax is taken off."""
SMALLEST = 2.0**-149
"""The smallest positive number of float32: a smaller probability stands for none."""
SIGMOID_OFF = "; the sigmoid at its end is taken off"
SOFTMAX_OFF = "; the softmax at its end is taken off"


def ends_in_sigmoid(head: HeadGraph) -> bool:
    """Whether the last step is a sigmoid of everything."""
    last = head.operations[-1] if head.operations else None
    return isinstance(last, Activation) and last.name == "sigmoid"


def ends_in_softmax(head: HeadGraph) -> bool:
    """Whether the last step is a softmax over all outputs."""
    last = head.operations[-1] if head.operations else None
    return isinstance(last, Softmax) and not last.log and last.size == head.widths()[-1]


def without_last(head: HeadGraph) -> HeadGraph:
    """The head whose outputs are what its last step reads."""
    rest = prune(head.operations[:-1], set(head.operations[-1].inputs))[0]
    return HeadGraph(head.width, tuple(rest))


def logit_head(head: HeadGraph) -> HeadGraph | None:
    """The logit of the one probability that a head gives; None where it gives none."""
    if ends_in_sigmoid(head):
        return without_last(head)
    if len(head.operations) < 2:
        return None
    before, last = head.operations[-2:]
    column = isinstance(last, Select) and last.index.numel() == 1
    if not column or last.inputs != (len(head.operations) - 1,):
        return None
    if not isinstance(before, Softmax) or before.log or before.size != 2:
        return None
    if head.widths()[before.inputs[0]] != 2:
        return None
    assert isinstance(last, Select)
    chosen = int(last.index)
    weight = torch.full((1, 2), -1.0, dtype=torch.float64, device=last.index.device)
    weight[0, chosen] = 1.0
    difference = Affine(before.inputs, weight, torch.zeros_like(weight[:, 0]))
    return HeadGraph(head.width, (*head.operations[:-2], difference))


def is_affine(head: HeadGraph) -> bool:
    """Whether every step is affine."""
    return all(isinstance(operation, AFFINE) for operation in head.operations)


def probabilities_as_logits(exposure: Exposure) -> Exposure:
    """Classes or labels whose probabilities the model gives, as those whose logits it gives.

    One column of a softmax of two is the sigmoid of their difference.
    """
    classes, head = exposure.outputs == "classes", exposure.head
    assert head is not None
    if classes:
        head = without_last(head) if ends_in_softmax(head) else None
    elif exposure.outputs == "labels":
        head = logit_head(head)
    if head is None or head is exposure.head:
        return exposure
    changed: dict[str, Any] = {"called": exposure.called + SIGMOID_OFF}
    if classes:  # repairs that version 0.2 fitted to probabilities fit no logits
        marked = tuple(digest + BEFORE_SOFTMAX for digest in exposure.fingerprint)
        changed = {"called": exposure.called + SOFTMAX_OFF, "fingerprint": marked}
    aggregate = replace(exposure.aggregate, **changed)
    if is_affine(head):
        return fold_affine(aggregate, head, exposure.residual)
    nodes = torch.arange(exposure.num_nodes, device=exposure.frozen_logits.device)
    logits = head(aggregate.frozen_logits[0], nodes).unsqueeze(0)
    replay = exposure.replay
    run = None if replay is None else (log_of if classes else logit_of)(replay)
    return aggregate.with_head(head, logits, exposure.residual, run)


def as_model_gives(logits: Tensor, called: str) -> Tensor:
    """Logits [n, C] or [n] with the sigmoid or softmax put on again that was taken off."""
    if SOFTMAX_OFF in called:
        return logits.softmax(-1)
    return logits.sigmoid() if SIGMOID_OFF in called else logits


def logit_as_two_classes(exposure: Exposure) -> Exposure:
    """The classes (0, z) of one logit z per node."""
    replay = exposure.replay
    changed: dict[str, Any] = {
        "outputs": "classes",
        "frozen_logits": pad(exposure.frozen_logits, (1, 0)),
        "replay": None if replay is None else lambda given: pad(replay(given), (1, 0)),
    }
    if exposure.head is None:
        for name in ("contributions", "fixed_logits"):
            changed[name] = pad(getattr(exposure, name), (1, 0))
        return replace(exposure, **changed)
    count = len(exposure.head.operations)
    zero = Constant((), exposure.frozen_logits.new_zeros(1))
    operations = [*exposure.head.operations, zero, Concatenate((count + 1, count))]
    steps = simplify(operations, [*exposure.head.widths(), 1, 2], len(operations))
    return replace(exposure, head=HeadGraph(exposure.head.width, tuple(steps)), **changed)


def logit_of(replay: Replay) -> Replay:
    """A replay that gives logits where the model gives probabilities."""
    return lambda coefficients: torch.logit(replay(coefficients).double(), eps=SATURATED)


def log_of(replay: Replay) -> Replay:
    """A replay that gives logits, up to a shift per node, where the model gives probabilities."""
    return lambda coefficients: replay(coefficients).double().clamp(min=SMALLEST).log()


def fold_affine(aggregate: Exposure, head: HeadGraph, residual: float | None) -> Exposure:
    """The mixture of an affine head's outputs, z = W_v a_v + b_v.

    Args:
        aggregate: the mixture before it, in D channels.
        head: affine.
        residual: what was certified of the model.
    """
    nodes = torch.arange(aggregate.num_nodes, device=aggregate.recipients.device)
    frozen = head(aggregate.frozen_logits[0], nodes).unsqueeze(0)
    weight = linear_part(head, nodes)
    pieces: dict[str, Tensor] = {}
    if weight.dim() == 2:
        table = aggregate.contributions[0] @ weight.t()
    else:
        table = _by_term(aggregate, weight)
        row = aggregate.rows.long()
        terms = torch.arange(len(row), dtype=torch.int32, device=row.device)
        pieces = {"rows": terms, "message_rows": aggregate.message_rows[row]}
        pieces["sources"] = aggregate.sources[row]
    rows = pieces.get("rows", aggregate.rows)
    pattern = Pattern(aggregate.segments[:: aggregate.num_groups], rows, len(table))
    fixed = frozen.clone()
    mixed = mixture_of(pattern, aggregate.coefficients, table.unsqueeze(0))
    fixed[:, aggregate.recipients] -= mixed
    pieces |= {"contributions": table.unsqueeze(0), "fixed_logits": fixed, "frozen_logits": frozen}
    whole: dict[str, Any] = {**pieces, "residual": residual}
    return replace(aggregate, **whole)


def linear_part(head: HeadGraph, nodes: Tensor) -> Tensor:
    """W of an affine head: [C, D], or [N, C, D] where nodes differ."""
    require_derivatives()
    with torch.enable_grad():
        values = torch.zeros(len(nodes), head.width, dtype=torch.float64, device=nodes.device)
        values.requires_grad_()
        out = head(values, nodes)
        rows = [
            torch.autograd.grad(out[:, c].sum(), values, retain_graph=True, allow_unused=True)[0]
            for c in range(out.shape[1])
        ]
    zero = torch.zeros_like(values)
    weight = torch.stack([zero if row is None else row for row in rows], 1).detach()
    return weight[0] if bool((weight == weight[:1]).all()) else weight


def _by_term(aggregate: Exposure, weight: Tensor) -> Tensor:
    """W_v h_a of every term, [T, C]."""
    counts = aggregate.segments[:: aggregate.num_groups].diff()
    owner = torch.repeat_interleave(aggregate.recipients, counts)
    parts = [
        torch.einsum("tcd,td->tc", weight[nodes], aggregate.contributions[0, rows])
        for nodes, rows in zip(owner.split(CHUNK), aggregate.rows.long().split(CHUNK), strict=True)
    ]
    return torch.cat([weight.new_zeros(0, weight.shape[1]), *parts])
