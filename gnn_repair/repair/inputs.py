"""What repairs see of an exposure, and the first layers of their perceptrons on it.

Nothing of size terms × state is built. A node or message is described by [h, z⁰]; the pair
features of a term follow from the two descriptions and two frozen numbers, the cosine and the
distance of the states, which are computed once per exposure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnn_repair.backbones.graph import Features
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.pieces import mixture_of
from gnn_repair.kernels import Pattern, drop_rows
from gnn_repair.kernels.products import SharedRows, picked_product, product, read_product
from gnn_repair.kernels.sets import Dropout, Layer, TermSets, compare, pool, rows_read
from gnn_repair.training import Parameters

NARROW = 32
"""A state no wider than this is kept once a member, beside the logits, even where all share it."""
CHUNK = 1 << 22
"""Numbers that go through a head at once: 32 MB, and a few times that for values in between."""
FEW = 0.5
"""Share of the messages up to which they are picked: picking copies rows before multiplying, and on
a GPU its products run at a good half of the speed of the whole one."""


class Description:
    """[h, z⁰] of M nodes or messages for S members, ready to be multiplied with weights."""

    def __init__(self, state: Tensor, logits: Tensor) -> None:
        """From h [S or 1, M, d] and z⁰ [S, M, C]."""
        self.width = state.shape[2]
        shared = state.shape[0] == 1 and self.width > NARROW
        self.shared = Features(state[0]) if shared else None
        wide = state.expand(logits.shape[0], -1, -1)
        self.rows = logits if shared else torch.cat([wide, logits], dim=2)

    @cached_property
    def pieces(self) -> SharedRows | None:
        """The shared state for tensor cores; None where there are none."""
        if self.shared is None or self.shared.dense.dtype != torch.float32 or self.varies:
            return None
        return SharedRows(self.shared.dense) if self.rows.device.type == "cuda" else None

    @property
    def varies(self) -> bool:
        """Whether gradients are wanted of the rows, not of the weights alone."""
        shared = self.shared is not None and self.shared.dense.requires_grad
        return shared or self.rows.requires_grad

    @property
    def picks_cheaply(self) -> bool:
        """Whether some rows cost their share of all: not where rows are multiplied as sparse."""
        if self.rows.device.type != "cpu":
            return self.pieces is not None
        sparse = self.shared is not None and self.shared.sparse is not None
        return not sparse and not self.varies

    def times(self, weight: Tensor) -> Tensor:
        """[h, z⁰] W of every row: weight [S, d + C, k] gives [S, M, k]."""
        if self.shared is None or self.pieces is not None:
            return product(self.rows, weight, self.pieces)
        by_state = weight[:, : self.width]
        if self.shared.sparse is None:
            shared = torch.matmul(self.shared.dense, by_state)
        else:
            shared = self.shared.times(by_state).transpose(0, 1)
        return shared + torch.bmm(self.rows, weight[:, self.width :])

    def at(self, index: Tensor) -> Tensor:
        """Rows [S, L, d + C] of each member's own choice [S, L]."""
        chosen = _pick(self.rows, index)
        return chosen if self.shared is None else torch.cat([self.shared.dense[index], chosen], 2)

    def times_at(self, index: Tensor, *weights: Tensor) -> list[Tensor]:
        """[h, z⁰] W of each member's own choice of rows [S, L], for every W: [S, L, k] each."""
        if self.pieces is not None:
            return [picked_product(self.pieces, self.rows, index, weight) for weight in weights]
        if self.shared is not None and 2 * index.shape[1] * self.width >= self._work():
            return [_pick(self.times(weight), index) for weight in weights]
        rows = self.at(index)
        return [torch.bmm(rows, weight) for weight in weights]

    def _work(self) -> int:
        """Numbers read when the shared state is multiplied as a whole."""
        assert self.shared is not None
        sparse = self.shared.sparse
        return self.shared.dense.numel() if sparse is None else sparse.coefficients.numel()


def _pick(table: Tensor, index: Tensor) -> Tensor:
    """table[s, index[s, l]] for every member, [S, L, k]."""
    return table.gather(1, index.unsqueeze(2).expand(-1, -1, table.shape[2]))


class RepairInputs:
    """An exposure as repairs read it, in the model's precision; S members first on every axis.

    Where K copies of each member learn side by side there are S·K of them, copies of one member
    one behind the other.
    """

    def __init__(self, exposure: Exposure, copies: int = 1) -> None:
        if bool((exposure.sources < 0).any()):
            raise InputError(
                "the exposure has terms that nobody sent (relaxed masses), and repairs learn from "
                "messages and their senders; use the exposure that it was relaxed from"
            )
        if not bool(torch.isfinite(exposure.state).all() & torch.isfinite(exposure.messages).all()):
            raise InputError(
                "state or messages hold NaN or infinite values; repairs cannot read them"
            )
        self.exposure, self.mixture = exposure, exposure.aggregate
        self.copies, self.num_classes = copies, exposure.num_classes
        self.num_members = exposure.num_members * copies
        self.outputs = exposure.outputs
        self.width = exposure.state.shape[2]
        self.dtype, self.device = exposure.state.dtype, exposure.recipients.device
        self.root, self.groups = exposure.root, exposure.num_groups
        self.nodes = exposure.recipients
        """[n]: the graph node behind each recipient."""
        everyone = torch.arange(exposure.num_nodes, device=self.device)
        self.in_order = torch.equal(self.nodes, everyone)
        """Whether recipient i is node i, which spares looking it up."""
        self.frozen_logits = self._each(exposure.frozen_logits.to(self.dtype))
        """z⁰ of every node, [S, N, C]."""
        own = exposure.embedding
        self.embedding = None if own is None else self._each(own)

    def _each(self, values: Tensor) -> Tensor:
        """Values [S or 1, …] once for every copy, [S·K, …]."""
        one = self._repeated(values)
        return one.expand(self.num_members, *one.shape[1:])

    def _repeated(self, values: Tensor) -> Tensor:
        """The same, but [1, …] where one row serves all members: it need not be copied."""
        shared = self.copies == 1 or values.shape[0] == 1
        return values if shared else values.repeat_interleave(self.copies, 0)

    @cached_property
    def recipients(self) -> Description:
        """Every node of the graph as a recipient."""
        return Description(self._repeated(self.exposure.state), self.frozen_logits)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct pairs of a message row and its source, [P] each, and each table row's pair."""
        senders = self.exposure.num_sources
        key = self.exposure.message_rows.long() * senders + self.exposure.sources.long()
        distinct, pair = key.unique(return_inverse=True)
        return distinct // senders, distinct % senders, pair

    @cached_property
    def messages(self) -> Description:
        """Every distinct message: its state and its sender's frozen logits.

        Senders of another kind than the recipients have no logits of theirs: zeros stand there.
        """
        row, source, pair = self.pairs
        state = self._repeated(self.exposure.messages[:, row])
        if self.exposure.graph_starts is not None:
            # Nodes have no logits of their own: those of the graph by each node alone.
            alone = alone_logits(self.exposure, pair[self.exposure.rows.long()], len(row))
            return Description(state, self._each(alone.to(self.dtype)))
        own = source < self.exposure.names.own(self.exposure.num_nodes)
        logits = self.frozen_logits[:, torch.where(own, source, 0)]
        logits = torch.where(own.view(1, -1, 1), logits, 0.0)
        return Description(state, logits)

    @cached_property
    def sets(self) -> TermSets:
        """The terms, with cosine and distance of every (recipient, message) pair."""
        rows, segments = self.exposure.rows, self.exposure.segments
        columns = self.pairs[2][rows.long()].int()
        numbers = (self.exposure.coefficients.to(self.dtype), *self._geometry(columns))
        return TermSets(segments, self.groups, columns, rows, *map(self._repeated, numbers))

    def _geometry(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        state, messages = self.exposure.state, self.exposure.messages
        members = max(state.shape[0], messages.shape[0])
        here = state[:, self.nodes].expand(members, -1, -1).contiguous()
        there = messages[:, self.pairs[0]].expand(members, -1, -1).contiguous()
        ends = self.exposure.segments[:: self.groups].contiguous()
        products, squares = compare(ends, columns, here, there)
        owner = torch.repeat_interleave(ends.diff())
        norms = here.norm(dim=2)[:, owner] * there.norm(dim=2)[:, columns.long()]
        # The cosine of a zero vector is 0; of a message from oneself the distance stays 0. Both
        # are computed elsewhere, so that their gradients are zero and not NaN.
        known, apart = norms > 0, squares > 0
        cosine = torch.where(known, products / torch.where(known, norms, 1.0), 0.0)
        return cosine, torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)

    @cached_property
    def root_cosine(self) -> Tensor:
        """cos(h_v, h_v) of every node, [S, N]: 1, or 0 where h_v = 0."""
        return self._each((self.exposure.state != 0).any(2).to(self.dtype))

    @cached_property
    def total(self) -> Tensor:
        """m̄_v = Σ ω over the whole set, root included, [S, n]."""
        total = self.exposure.mass.sum(2) + (1.0 if self.root else 0.0)
        return self._each(total.to(self.dtype))

    @cached_property
    def mass(self) -> Tensor:
        """m_{v,g}, [S, n, G]."""
        return self._each(self.exposure.mass.to(self.dtype))

    @cached_property
    def contributions(self) -> Tensor:
        """ℓ, [S, R, C]; before a head h, [S, R, D]."""
        return self._each(self.mixture.contributions.to(self.dtype)).contiguous()

    @cached_property
    def fixed_logits(self) -> Tensor:
        """β of every recipient, [S, n, C]; before a head o, [S, n, D]."""
        return self._each(self.mixture.fixed_logits[:, self.nodes].to(self.dtype))

    def after_head(self, mixed: Tensor, targets: Tensor) -> Tensor:
        """Logits [S, L, C] of targets [S, L] from what was mixed for them, [S, L, C or D]."""
        head = self.exposure.head
        if head is None:
            return mixed
        logits = head(mixed.flatten(0, 1).double(), self.node_of(targets).flatten())
        return logits.view(*targets.shape, -1).to(mixed.dtype)

    @property
    def everyone(self) -> Tensor:
        """All recipients as targets, [S, n]."""
        index = torch.arange(self.nodes.numel(), device=self.device)
        return index.expand(self.num_members, -1).contiguous()

    def node_of(self, targets: Tensor) -> Tensor:
        """The graph nodes behind recipients."""
        return targets if self.in_order else self.nodes[targets]

    def frozen_at(self, targets: Tensor) -> Tensor:
        """z⁰ of targets [S, L], [S, L, C]."""
        return _pick(self.frozen_logits, self.node_of(targets))

    def times_at(self, targets: Tensor, *weights: Tensor) -> list[Tensor]:
        """[h_v, z⁰_v] W of targets [S, L], for every W [S, d + C, k]: [S, L, k] each."""
        return self.recipients.times_at(self.node_of(targets), *weights)

    def at(self, values: Tensor, targets: Tensor) -> Tensor:
        """Per-recipient values [S, n, …] of targets [S, L], [S, L, …]."""
        return _pick(values.flatten(2), targets).view(*targets.shape, *values.shape[2:])


# Graphs that are classified as a whole -----------------------------------------------------------


def alone_logits(exposure: Exposure, sender: Tensor, count: int) -> Tensor:
    """Logits of a recipient if it heard one sender alone, [1, count, C] float64.

    The whole mass of every group that hears the sender is on it; the other groups stay frozen.
    Senders that nobody hears are zero. ``sender`` [T], from 0 to count − 1, says whose a term is;
    all terms of a sender are of one recipient, in groups of their own.
    """
    head = exposure.head
    mixture = exposure.aggregate
    slot = torch.repeat_interleave(mixture.segments.diff())
    node = slot.new_full((count,), -1)
    node[sender] = mixture.recipients[slot // mixture.num_groups]
    moved = _moved(mixture, slot, sender, count)
    out = exposure.frozen_logits.new_zeros(1, count, exposure.num_classes)
    step = max(1, CHUNK // max(1, mixture.num_classes))
    for heard in (node >= 0).nonzero().view(-1).split(step):
        value = mixture.frozen_logits[0, node[heard]] + moved[heard]
        out[0, heard] = value if head is None else head(value, node[heard])
    return out


def _moved(mixture: Exposure, slot: Tensor, sender: Tensor, count: int) -> Tensor:
    """What the sums change by when senders are heard alone, [count, C]: Σ_g (m_g ℓ − Σ α ℓ)."""
    slots = Pattern(mixture.segments, mixture.rows, mixture.contributions.shape[1])
    by_group = mixture_of(slots, mixture.coefficients, mixture.contributions)[0]
    mass = mixture.mass[0].reshape(-1, 1)
    out = by_group.new_zeros(count, by_group.shape[1])
    step = max(1, CHUNK // max(1, by_group.shape[1]))
    for part in torch.arange(len(slot), device=slot.device).split(step):
        alone = mass[slot[part]] * mixture.contributions[0, mixture.rows[part].long()]
        out.index_add_(0, sender[part], alone - by_group[slot[part]])
    return out


# Perceptrons, and their first layer on pairs taken apart -----------------------------------------


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

    ψ's last affine layer commutes with the weighted mean, so it is applied once per target. Its
    parameters are ``encoder.*``, its first weight taken apart is ``pair``; ``own`` are [h_v, z_v]
    times :func:`encoder_reads`, [S, L, H] each, ``messages`` [h_a, z_a] times the source part.
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


class MessageTable:
    """[h_a, z_a] W of all messages with one weight [S, d + C, H], when it is known who reads it.

    A step on a few targets reads the messages of their sets, and where graphs are large that is a
    small part of all. The table has all P rows all the same, so that terms find theirs where they
    are; the rows that nobody reads are left as they come.
    """

    def __init__(self, inputs: RepairInputs, weight: Tensor, whole: bool = False) -> None:
        """``whole``: every message is multiplied at once, read or not."""
        self.inputs, self.weight = inputs, weight
        self.whole = whole or not inputs.messages.picks_cheaply

    @cached_property
    def all(self) -> Tensor:
        """[S, P, H]."""
        return self.inputs.messages.times(self.weight)

    def read_by(self, targets: Tensor) -> Tensor:
        """[S, P, H], of which the rows that terms of the targets [S, L] read are right."""
        messages, sets = self.inputs.messages, self.inputs.sets
        rows, recipients = messages.rows.shape[1], max(1, self.inputs.nodes.numel())
        if self.whole or "all" in self.__dict__:
            return self.all
        if messages.pieces is not None:
            # How many rows are read the device alone knows, as a captured step asks; so many terms
            # have targets that are like all recipients.
            if targets.shape[1] * sets.columns.numel() / recipients > FEW * rows:
                return self.all
            read = rows_read(sets, targets, rows)
            return read_product(messages.pieces, messages.rows, read, self.weight)
        numbers, counts = rows_read(sets, targets, rows)
        most = int(counts.max())
        if most == 0 or most > FEW * rows:
            return self.all
        return _PickedTable.apply(messages, numbers[:, :most], self.weight)  # type: ignore[no-untyped-call]


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
        for table, own, products in zip(out, numbers, torch.bmm(rows, weight), strict=True):
            table.index_copy_(0, own, products)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, numbers = ctx.saved_tensors
        own = torch.stack([g.index_select(0, n) for g, n in zip(upstream, numbers, strict=True)])
        return None, None, torch.bmm(rows.transpose(1, 2), own)
