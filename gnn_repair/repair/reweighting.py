"""Evidence-constrained correction: new coefficients with every group's mass kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gnn_repair.budget import REWEIGHTING, Budget, check_whole
from gnn_repair.exposure import Exposure
from gnn_repair.kernels.sets import BOUND, Layer, TermSets, tilt
from gnn_repair.methods import METHODS
from gnn_repair.repair.base import FittedRepair, TrainedRepair
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import (
    ContextWeights,
    MessageTable,
    Noise,
    PairWeights,
    Parameters,
    encode,
    encoder_reads,
    pair_width,
    perceptron,
    split_context,
    split_pair,
)

CHUNK = 1 << 24
"""Numbers of one block when all terms are scored."""


class ReweightingTables(NamedTuple):
    """The weights taken apart, and their products with every message."""

    encoder: PairWeights
    scorer: PairWeights
    context: ContextWeights
    """The scorer's weight on c_v."""
    encoder_messages: MessageTable
    """[h_a, z_a] times ψ's source part, [S, P, H]."""
    scorer_messages: MessageTable
    """[h_a, z_a] times the scorer's source part, [S, P, H]."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedReweighting(FittedRepair["Reweighting"]):
    """z = β + Σ λ ℓ."""

    one_by_one = True

    def coefficients(self, exposure: Exposure) -> Tensor:
        """λ = m_g α e^s / Σ α e^s, [S, T] float64: nonnegative, same support, same masses."""
        with self.gradients(exposure):
            return self._coefficients(exposure)

    def _coefficients(self, exposure: Exposure) -> Tensor:
        p, inputs = self._matching(exposure), repair_inputs(exposure)
        method = self.repair
        tables = method.tables(p, inputs)
        layer = method.scorer_layer(p, inputs, tables, inputs.everyone, None)
        scores = term_scores(
            inputs.sets, layer, p["scorer.2.weight"].squeeze(2), p["scorer.2.bias"].squeeze(1)
        )
        tilted = exposure.coefficients.double() * scores.double().exp()
        ratio = exposure.mass / exposure.masses(tilted).clamp(min=torch.finfo(torch.float64).tiny)
        lengths = exposure.segments.diff()
        return tilted * torch.repeat_interleave(ratio.flatten(1), lengths, dim=1)

    def logits(self, exposure: Exposure) -> Tensor:
        """β + Σ λ ℓ at the recipients, [S, n, C] float64; z⁰ where nothing is adjustable."""
        return exposure.logits(self.coefficients(exposure))


@dataclass(frozen=True)
class Reweighting(TrainedRepair[FittedReweighting]):
    """λ_{v,a} ∝ α_{v,a} e^s within each group, s = 4 tanh(MLP([x_{v,a}, c_v]))."""

    title: ClassVar[str] = METHODS["reweighting"].title
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedReweighting
    budget_setting: ClassVar[str] = "reweighting"
    takes_labels: ClassVar[bool] = True
    budget: Budget = REWEIGHTING
    hidden: int = 128
    """H, also the width of p_v."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("Reweighting", "hidden", self.hidden, 1)

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ and the scorer."""
        pair, own, hidden = pair_width(width, classes), width + classes, self.hidden
        return nn.ModuleDict(
            {
                "encoder": perceptron(pair, hidden, hidden),
                "scorer": perceptron(pair + own + hidden + 1, hidden, 1, zero=True),
            }
        )

    def tables(self, p: Parameters, inputs: RepairInputs) -> ReweightingTables:
        """What does not depend on the targets."""
        size = inputs.width, inputs.num_classes
        encoder = split_pair(p["encoder.0.weight"], *size)
        start = pair_width(*size)
        before, after = p["scorer.0.weight"].split([start, self._after(size)], dim=1)
        scorer = split_pair(before, *size)
        return ReweightingTables(
            encoder,
            scorer,
            split_context(after, sum(size)),
            MessageTable(inputs, encoder.source),
            MessageTable(inputs, scorer.source),
        )

    def _after(self, size: tuple[int, int]) -> int:
        """How wide c_v is."""
        return sum(size) + self.hidden + 1

    def scorer_layer(
        self,
        p: Parameters,
        inputs: RepairInputs,
        tables: ReweightingTables,
        targets: Tensor,
        noise: Noise | None,
    ) -> Layer:
        """The scorer's first affine layer on [x_{v,a}, c_v]; c_v joins the recipient's part."""
        encoder, scorer, context = tables.encoder, tables.scorer, tables.context
        reads = [scorer.recipient + context.own, *encoder_reads(inputs, encoder)]
        own, *by_pair = inputs.times_at(targets, *reads)
        messages = tables.encoder_messages.read_by(targets)
        pooled = encode(p, inputs, targets, encoder, by_pair, messages, noise)
        total = inputs.total.gather(1, targets)
        recipient = context.times(own + p["scorer.0.bias"].unsqueeze(1), pooled, total)
        return Layer(
            recipient, tables.scorer_messages.read_by(targets), scorer.cosine, scorer.distance
        )

    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """β + Σ λ ℓ, or T(o + Σ λ h)."""
        layer = self.scorer_layer(p, inputs, tables, targets, noise)
        return reweighted(p, inputs, layer, targets, noise)


def reweighted(
    p: Parameters, inputs: RepairInputs, layer: Layer, targets: Tensor, noise: Noise | None
) -> Tensor:
    """β + Σ λ ℓ of targets [S, L], or T(o + Σ λ h), from the scorer's first layer; [S, L, C]."""
    mixed = tilt(
        inputs.sets,
        targets,
        layer,
        p["scorer.2.weight"].squeeze(2),
        p["scorer.2.bias"].squeeze(1),
        inputs.contributions,
        noise.scorer if noise else None,
    )
    totals = mixed[..., -1:]
    # A group that a recipient does not have adds nothing.
    present = (totals > 0).to(totals.dtype)
    ratio = inputs.at(inputs.mass, targets).unsqueeze(3) * present / (totals + (1 - present))
    total = inputs.at(inputs.fixed_logits, targets) + (ratio * mixed[..., :-1]).sum(2)
    return inputs.after_tail(total, targets)


def term_scores(sets: TermSets, layer: Layer, output: Tensor, bias: Tensor) -> Tensor:
    """s of every term, [S, T], in blocks of terms."""
    owner = torch.repeat_interleave(sets.segments[:: sets.groups].diff())
    members, _, channels = layer.source.shape
    out = layer.source.new_empty(members, owner.numel())
    step = max(1, CHUNK // (members * channels))
    for first in range(0, owner.numel(), step):
        part = slice(first, first + step)
        pre = layer.recipient[:, owner[part]] + layer.source[:, sets.columns[part].long()]
        pre += sets.cosine[:, part, None] * layer.cosine.unsqueeze(1)
        pre += sets.distance[:, part, None] * layer.distance.unsqueeze(1)
        raw = torch.bmm(pre.relu_(), output.unsqueeze(2)).squeeze(2) + bias.unsqueeze(1)
        out[:, part] = BOUND * raw.tanh()
    return out
