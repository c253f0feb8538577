"""Evidence-constrained correction: new coefficients with every group's mass kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnn_repair.exposure import Exposure
from gnn_repair.kernels.sets import BOUND, Layer, TermSets, tilt
from gnn_repair.repair.base import FittedRepair, TrainedRepair
from gnn_repair.repair.layers import (
    Noise,
    Parameters,
    context,
    encode,
    pair_width,
    perceptron,
    split_pair,
)
from gnn_repair.repair.surroundings import Surroundings, surroundings
from gnn_repair.training import Budget

REWEIGHTING = Budget(
    epochs=300, patience=60, learning_rate=5e-4, weight_decay=1e-4, decoupled=True, epoch_zero=True
)
CHUNK = 1 << 24
"""Numbers of one block when all terms are scored."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedReweighting(FittedRepair):
    """z = β + Σ λ ℓ."""

    @torch.no_grad()
    def coefficients(self, exposure: Exposure) -> Tensor:
        """λ = m_g α e^s / Σ α e^s, [S, T] float64: nonnegative, same support, same masses."""
        p, near = self._matching(exposure), surroundings(exposure)
        method: Reweighting = self.repair  # type: ignore[assignment]
        tables = method.tables(p, near)
        layer = method.scorer_layer(p, near, tables, near.everyone, None)
        scores = term_scores(
            near.sets, layer, p["scorer.2.weight"].squeeze(2), p["scorer.2.bias"].squeeze(1)
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

    budget: Budget = REWEIGHTING
    hidden: int = 128
    """H, also the width of p_v."""
    title: ClassVar[str] = "Reweighting"

    def network(self, width: int, classes: int) -> nn.Module:
        """ψ and the scorer."""
        pair, own, hidden = pair_width(width, classes), width + classes, self.hidden
        return nn.ModuleDict(
            {
                "encoder": perceptron(pair, hidden, hidden),
                "scorer": perceptron(pair + own + hidden + 1, hidden, 1, zero=True),
            }
        )

    def tables(self, p: Parameters, near: Surroundings) -> tuple[Tensor, Tensor]:
        """[h_a, z_a] times the source parts of ψ and of the scorer, each [S, P, H]."""
        size = near.width, near.num_classes
        encoder = split_pair(p["encoder.0.weight"], *size)
        scorer = split_pair(p["scorer.0.weight"][:, : pair_width(*size)], *size)
        both = near.messages.times(torch.cat([encoder.source, scorer.source], dim=2))
        return both[..., : self.hidden], both[..., self.hidden :]

    def scorer_layer(
        self, p: Parameters, near: Surroundings, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Layer:
        """The scorer's first affine layer on [x_{v,a}, c_v]; c_v joins the recipient's part."""
        size = near.width, near.num_classes
        start, hidden = pair_width(*size), self.hidden
        encoder = split_pair(p["encoder.0.weight"], *size)
        scorer = split_pair(p["scorer.0.weight"][:, :start], *size)
        after = p["scorer.0.weight"][:, start:]
        on_nodes = [scorer.recipient + after[:, : sum(size)], encoder.recipient]
        on_nodes += [encoder.source] if near.root else []
        own = near.times_at(targets, torch.cat(on_nodes, dim=2))
        pooled = encode(p, near, targets, encoder, own[..., hidden:], tables[0], noise)
        total = near.total.gather(1, targets)
        recipient = context(after, own[..., :hidden], pooled, total)
        recipient = recipient + p["scorer.0.bias"].unsqueeze(1)
        return Layer(recipient, tables[1], scorer.cosine, scorer.distance)

    def corrected(
        self, p: Parameters, near: Surroundings, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """β + Σ λ ℓ."""
        layer = self.scorer_layer(p, near, tables, targets, noise)
        mixed = tilt(
            near.sets,
            targets,
            layer,
            p["scorer.2.weight"].squeeze(2),
            p["scorer.2.bias"].squeeze(1),
            near.contributions,
            noise.scorer if noise else None,
        )
        totals = mixed[..., -1:]
        # A group that a recipient does not have adds nothing.
        present = (totals > 0).to(totals.dtype)
        ratio = near.at(near.mass, targets).unsqueeze(3) * present / (totals + (1 - present))
        return near.at(near.fixed_logits, targets) + (ratio * mixed[..., :-1]).sum(2)

    def fitted(self, **values: Any) -> FittedReweighting:
        """The fitted value with these fields."""
        return FittedReweighting(repair=self, **values)


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
