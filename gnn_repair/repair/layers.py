"""The two-layer perceptrons of the repairs, and the first layer on pairs taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnn_repair.kernels import drop_rows
from gnn_repair.kernels.products import read_product
from gnn_repair.kernels.sets import Dropout, Layer, TermSets, pool, rows_read
from gnn_repair.repair.inputs import Description, RepairInputs

Parameters = Mapping[str, Tensor]
"""Trained parameters [S, …]; matrices input × output."""
FEW = 0.5
"""Share of the messages up to which they are picked: picking copies rows before multiplying, and on
a GPU its products run at a good half of the speed of the whole one."""


class Noise(NamedTuple):
    """Dropout during one step of training, the same for every member."""

    share: float
    seed: Tensor
    """int64 scalar: this number and the three after it are the step's, one a place."""

    @property
    def encoder(self) -> Dropout:
        """Of ψ's hidden channels."""
        return Dropout(self.share, self.seed)

    @property
    def scorer(self) -> Dropout:
        """Of the scorer's hidden channels."""
        return Dropout(self.share, self.seed + 1)

    def root(self, values: Tensor) -> Tensor:
        """ψ's hidden channels at the root, [S, L, H], dropped."""
        return drop_rows(values, self.share, self.seed + 2)

    def head(self, values: Tensor) -> Tensor:
        """ρ's hidden channels, [S, L, H], dropped."""
        return drop_rows(values, self.share, self.seed + 3)


SEEDS_A_STEP = 4
"""How many numbers :class:`Noise` takes from its seed on."""


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
    return PairWeights(*_SplitPair.apply(weight, state, classes))  # type: ignore[no-untyped-call]


class _SplitPair(torch.autograd.Function):
    """One pass over the weight each way; left to autograd it would be a dozen."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, state: int, classes: int) -> tuple[Tensor, ...]:
        ctx.sizes = [state] * 3 + [classes] * 3 + [2]
        own, other, gap, own_z, other_z, gap_z, rest = weight.split(ctx.sizes, dim=1)
        recipient = weight.new_empty(weight.shape[0], state + classes, weight.shape[2])
        source = torch.empty_like(recipient)
        torch.sub(own, gap, out=recipient[:, :state])
        torch.sub(own_z, gap_z, out=recipient[:, state:])
        torch.add(other, gap, out=source[:, :state])
        torch.add(other_z, gap_z, out=source[:, state:])
        return recipient, source, rest[:, 0].clone(), rest[:, 1].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, recipient: Tensor, source: Tensor, cosine: Tensor, distance: Tensor
    ) -> tuple[Tensor | None, ...]:
        state = ctx.sizes[0]
        members, _, channels = recipient.shape
        out = recipient.new_empty(members, sum(ctx.sizes), channels)
        own, other, gap, own_z, other_z, gap_z, rest = out.split(ctx.sizes, dim=1)
        for part, to in (
            (slice(state), (own, other, gap)),
            (slice(state, None), (own_z, other_z, gap_z)),
        ):
            to[0].copy_(recipient[:, part])
            to[1].copy_(source[:, part])
            torch.sub(source[:, part], recipient[:, part], out=to[2])
        rest[:, 0], rest[:, 1] = cosine, distance
        return out, None, None


def affine(p: Parameters, name: str, values: Tensor) -> Tensor:
    """values W + b for every member: [S, L, i] gives [S, L, o]."""
    return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), values, p[f"{name}.weight"])


def encode(
    p: Parameters,
    inputs: RepairInputs,
    targets: Tensor,
    pair: PairWeights,
    own: Sequence[Tensor],
    messages: Tensor,
    noise: Noise | None,
) -> Tensor:
    """p_v = (1/m̄) Σ ω ψ(x_{v,a}), [S, L, d_p]; zero for an empty set.

    ψ's last affine layer commutes with the weighted mean, so it is applied once a target.

    Args:
        p: ψ's parameters are ``encoder.*``.
        inputs: what the repair sees.
        targets: [S, L].
        pair: ψ's first weight, taken apart.
        own: [h_v, z_v] times :func:`encoder_reads`, [S, L, H] each.
        messages: [h_a, z_a] times its source part, [S, P, H].
        noise: dropout.
    """
    by_recipient = own[0] + p["encoder.0.bias"].unsqueeze(1)
    layer = Layer(by_recipient, messages, pair.cosine, pair.distance)
    summed = pool(inputs.sets, targets, layer, noise.encoder if noise else None)
    if inputs.root:
        cosine = inputs.root_cosine.gather(1, inputs.node_of(targets)).unsqueeze(2)
        at_root = by_recipient + own[1] + cosine * pair.cosine.unsqueeze(1)
        summed = summed + (noise.root(at_root.relu()) if noise else at_root.relu())
    total = inputs.total.gather(1, targets).unsqueeze(2)
    known = (total > 0).to(total.dtype)
    mean = summed / (total + (1 - known))
    return torch.bmm(mean, p["encoder.2.weight"]) + known * p["encoder.2.bias"].unsqueeze(1)


def encoder_reads(inputs: RepairInputs, pair: PairWeights) -> list[Tensor]:
    """What ψ multiplies [h_v, z_v] with: the recipient's part and, for a root, the source's."""
    return [pair.recipient, pair.source] if inputs.root else [pair.recipient]


class ContextWeights(NamedTuple):
    """W acting on c_v = [h_v, z_v, p_v, m̄_v], by what it reads."""

    own: Tensor
    """[S, d + C, H]."""
    pooled: Tensor
    """[S, d_p, H]."""
    total: Tensor
    """[S, 1, H]."""

    def times(self, own: Tensor, pooled: Tensor, total: Tensor) -> Tensor:
        """c_v W, given its part ``own`` on [h_v, z_v]; [S, L, H]."""
        return torch.baddbmm(own + total.unsqueeze(2) * self.total, pooled, self.pooled)


def split_context(weight: Tensor, own: int) -> ContextWeights:
    """Take a weight [S, d + C + d_p + 1, H] apart."""
    return ContextWeights(*weight.split([own, weight.shape[1] - own - 1, 1], dim=1))


def centred(values: Tensor) -> Tensor:
    """Without its mean over classes: P q."""
    return values - values.mean(-1, keepdim=True)


class MessageTable:
    """[h_a, z_a] W of all messages with one weight [S, d + C, H], when it is known who reads it.

    A step on a few targets reads the messages of their sets, and where graphs are large that is a
    small part of all. The table has all P rows all the same, so that terms find theirs where they
    are; the rows that nobody reads are left as they come.
    """

    def __init__(self, inputs: RepairInputs, weight: Tensor, whole: bool = False) -> None:
        """``whole``: every message is multiplied at once, whoever reads it."""
        self.inputs, self.weight = inputs, weight
        self.whole = whole or not inputs.messages.picks_cheaply

    @cached_property
    def all(self) -> Tensor:
        """[S, P, H]."""
        return self.inputs.messages.times(self.weight)

    def read_by(self, targets: Tensor) -> Tensor:
        """[S, P, H], of which the rows that terms of the targets [S, L] read are right."""
        if self.whole or "all" in self.__dict__:
            return self.all
        picked = (self._on_gpu if self.inputs.messages.pieces else self._on_cpu)(targets)
        return self.all if picked is None else picked

    def _on_gpu(self, targets: Tensor) -> Tensor | None:
        """How many rows are read is known to the device alone, as a captured step asks."""
        messages, sets = self.inputs.messages, self.inputs.sets
        rows = messages.rows.shape[1]
        if messages.pieces is None or expected_terms(sets, targets) > FEW * rows:
            return None
        return read_product(
            messages.pieces, messages.rows, rows_read(sets, targets, rows), self.weight
        )

    def _on_cpu(self, targets: Tensor) -> Tensor | None:
        messages = self.inputs.messages
        rows = messages.rows.shape[1]
        numbers, counts = rows_read(self.inputs.sets, targets, rows)
        most = int(counts.max())
        if most == 0 or most > FEW * rows:
            return None
        picked = numbers[:, :most]
        out: Tensor = _PickedTable.apply(messages, picked, self.weight)  # type: ignore[no-untyped-call]
        return out


def expected_terms(sets: TermSets, targets: Tensor) -> float:
    """Terms of a member's targets [S, L] if they are like all recipients."""
    recipients = max(1, (sets.segments.numel() - 1) // sets.groups)
    return targets.shape[1] * sets.columns.numel() / recipients


class _PickedTable(torch.autograd.Function):
    """A table [S, P, H] of which rows [S, K] are worked out; gradients for the weight alone.

    Behind a member's own rows others fill up the K; nobody reads them, and their gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, messages: Description, numbers: Tensor, weight: Tensor) -> Tensor:
        rows = messages.at(numbers)
        ctx.save_for_backward(rows, numbers)
        out = weight.new_empty(weight.shape[0], messages.rows.shape[1], weight.shape[2])
        # Member by member: whole rows are copied, not single numbers.
        for table, own, found in zip(out, numbers, torch.bmm(rows, weight), strict=True):
            table.index_copy_(0, own, found)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, numbers = ctx.saved_tensors
        own = torch.stack([g.index_select(0, n) for g, n in zip(upstream, numbers, strict=True)])
        return None, None, torch.bmm(rows.transpose(1, 2), own)
