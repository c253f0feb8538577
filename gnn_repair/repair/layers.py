"""The two-layer perceptrons of the repairs, and the first layer on pairs taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnn_repair.kernels import drop
from gnn_repair.kernels.sets import Dropout, Layer, pool
from gnn_repair.repair.surroundings import Surroundings

Parameters = Mapping[str, Tensor]
"""Trained parameters [S, …]; matrices input × output."""


class Noise(NamedTuple):
    """Dropout during training."""

    share: float
    seed: Tensor
    """int64 scalar; the encoder's terms use it, the scorer's the number after it."""

    @property
    def encoder(self) -> Dropout:
        """Of ψ's hidden channels."""
        return Dropout(self.share, self.seed)

    @property
    def scorer(self) -> Dropout:
        """Of the scorer's hidden channels."""
        return Dropout(self.share, self.seed + 1)

    def __call__(self, values: Tensor) -> Tensor:
        """Dropout of anything else."""
        return drop(values, self.share)


def perceptron(inputs: int, hidden: int, outputs: int, *, zero: bool = False) -> nn.Sequential:
    """Affine, ReLU (and dropout), affine; ``zero`` starts the last layer at zero."""
    first, last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    if zero:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(first, nn.ReLU(), last)


def perceptron_size(inputs: int, outputs: int, hidden: int = 128) -> int:
    """F(i, o) = iH + H + Ho + o."""
    return inputs * hidden + hidden + hidden * outputs + outputs


def pair_width(state: int, classes: int) -> int:
    """d_x = 3d + 3C + 2."""
    return 3 * state + 3 * classes + 2


class PairWeights(NamedTuple):
    """W acting on x_{v,a} = [h_v, h_a, h_a−h_v, z_v, z_a, z_a−z_v, cos, ‖·‖], by what it reads.

    x W = [h_v, z_v] recipient + [h_a, z_a] source + cos · cosine + ‖·‖ · distance.
    """

    recipient: Tensor
    """[S, d + C, H]."""
    source: Tensor
    """[S, d + C, H]."""
    cosine: Tensor
    """[S, H]."""
    distance: Tensor
    """[S, H]."""


def split_pair(weight: Tensor, state: int, classes: int) -> PairWeights:
    """Take a first-layer weight [S, 3d + 3C + 2, H] apart."""
    own, other, gap, own_z, other_z, gap_z, rest = weight.split(
        [state] * 3 + [classes] * 3 + [2], dim=1
    )
    return PairWeights(
        torch.cat([own - gap, own_z - gap_z], dim=1),
        torch.cat([other + gap, other_z + gap_z], dim=1),
        rest[:, 0],
        rest[:, 1],
    )


def affine(p: Parameters, name: str, values: Tensor) -> Tensor:
    """values W + b for every member: [S, L, i] gives [S, L, o]."""
    return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), values, p[f"{name}.weight"])


def encode(
    p: Parameters,
    near: Surroundings,
    targets: Tensor,
    pair: PairWeights,
    own: Tensor,
    messages: Tensor,
    noise: Noise | None,
) -> Tensor:
    """p_v = (1/m̄) Σ ω ψ(x_{v,a}), [S, L, d_p]; zero for an empty set.

    ψ's last affine layer commutes with the weighted mean, so it is applied once a target.

    Args:
        p: ψ's parameters are ``encoder.*``.
        near: the surroundings.
        targets: [S, L].
        pair: ψ's first weight, taken apart.
        own: [h_v, z_v] times its recipient part (and, where there is a root, its source part),
            [S, L, H or 2H].
        messages: [h_a, z_a] times its source part, [S, P, H].
        noise: dropout.
    """
    hidden = pair.cosine.shape[1]
    by_recipient = own[..., :hidden] + p["encoder.0.bias"].unsqueeze(1)
    layer = Layer(by_recipient, messages, pair.cosine, pair.distance)
    summed = pool(near.sets, targets, layer, noise.encoder if noise else None)
    if near.root:
        cosine = near.root_cosine.gather(1, near.nodes[targets]).unsqueeze(2)
        at_root = by_recipient + own[..., hidden:] + cosine * pair.cosine.unsqueeze(1)
        summed = summed + (noise(at_root.relu()) if noise else at_root.relu())
    total = near.total.gather(1, targets).unsqueeze(2)
    known = (total > 0).to(total.dtype)
    mean = summed / (total + (1 - known))
    return torch.bmm(mean, p["encoder.2.weight"]) + known * p["encoder.2.bias"].unsqueeze(1)


def context(weight: Tensor, own: Tensor, pooled: Tensor, total: Tensor) -> Tensor:
    """c_v W with c_v = [h_v, z_v, p_v, m̄_v], given its part ``own`` on [h_v, z_v]; [S, L, H]."""
    start = weight.shape[1] - pooled.shape[2] - 1
    by_set = torch.bmm(pooled, weight[:, start:-1])
    return own + by_set + total.unsqueeze(2) * weight[:, -1:]


def centred(values: Tensor) -> Tensor:
    """Without its mean over classes: P q."""
    return values - values.mean(-1, keepdim=True)
