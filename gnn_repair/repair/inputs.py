"""What repairs see of an exposure: each recipient, its messages and how the two compare.

Nothing of size terms × state is built. A node or message is described by [h, z⁰]; the pair
features of a term follow from the two descriptions and two frozen numbers, the cosine and the
distance of the states, which are computed once per exposure.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnn_repair.backbones.graph import Features
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.parts import mixture_of
from gnn_repair.kernels import Pattern, mix
from gnn_repair.kernels.products import SharedRows, picked_product, product
from gnn_repair.kernels.sets import TermSets, compare

NARROW = 32
"""A state no wider than this is kept once a member, beside the logits, even where all share it."""
CHUNK = 1 << 22
"""Numbers that go through a head at once: 32 MB, and a few times that for values in between."""
WIDEST = 160
"""Wider states are projected: they are raw features, which a rung of their own reads in full."""
PROJECTED = 128
"""Directions of the projection, as wide as the hidden states of the paper's backbones."""
SHARP = 6.0
"""Weights e^(6 cos): a message that points the same way counts e^6 times one at a right angle."""
NEAR = 3.0
"""Weights e^(∓3 d) of distances in units of the set's own mean: near counts e^3 times far."""
FARTHEST = 4.0
"""Distances beyond four means count as four, so that one outlier cannot take all the weight."""
SURE = -8.0
"""Log-probabilities below are cut: e⁻⁸ and less mean the same, never."""
CUT = 6.0
"""Standardised values beyond six deviations are cut, for sums over thousands of neighbours."""
KERNELS = 5
"""α, even, alike by angle, near, far."""


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
        return self._shared_times(by_state) + torch.bmm(self.rows, weight[:, self.width :])

    def _shared_times(self, weight: Tensor) -> Tensor:
        assert self.shared is not None
        members, width, channels = weight.shape
        if self.shared.sparse is None:
            return torch.matmul(self.shared.dense, weight)
        table = weight.transpose(0, 1).reshape(width, members * channels)
        out = mix(self.shared.sparse.pattern, self.shared.sparse.coefficients, table)
        return out.view(-1, members, channels).transpose(0, 1)

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
        self._state, self._messages = exposure.state, exposure.messages
        self._rows, self._segments = exposure.rows, exposure.segments
        self._message_rows, self._sources = exposure.message_rows, exposure.sources
        self._senders = exposure.num_sources
        self._own = exposure.names.own(exposure.num_nodes)
        # Where nodes have no logits of their own: those of the graph by each node alone.
        self._alone: Tensor | None = None
        if exposure.graph_starts is not None:
            distinct, pair = self._pairs
            self._alone = alone_logits(exposure, pair, len(distinct))
        self._coefficients, self._mass = exposure.coefficients.to(self.dtype), exposure.mass
        self._head = exposure.head
        mixture = exposure.aggregate
        self._contributions, self._fixed = mixture.contributions, mixture.fixed_logits

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
        return Description(self._repeated(self._state), self.frozen_logits)

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Distinct (message, source) pairs as one number each, and the pair of every table row."""
        key = self._message_rows.long() * self._senders + self._sources.long()
        distinct, pair = key.unique(return_inverse=True)
        return distinct, pair

    @cached_property
    def messages(self) -> Description:
        """Every distinct message: its state and its sender's frozen logits.

        Senders of another kind than the recipients have no logits of theirs: zeros stand there.
        """
        distinct, _ = self._pairs
        row, source = distinct // self._senders, distinct % self._senders
        state = self._repeated(self._messages[:, row])
        if self._alone is not None:
            return Description(state, self._each(self._alone.to(self.dtype)))
        logits = self.frozen_logits[:, torch.where(source < self._own, source, 0)]
        logits = torch.where((source < self._own).view(1, -1, 1), logits, 0.0)
        return Description(state, logits)

    @cached_property
    def sets(self) -> TermSets:
        """The terms, with cosine and distance of every (recipient, message) pair."""
        columns = self._pairs[1][self._rows.long()].int()
        numbers = (self._coefficients, *self._geometry(columns))
        return TermSets(
            self._segments, self.groups, columns, self._rows, *map(self._repeated, numbers)
        )

    def _geometry(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        distinct, _ = self._pairs
        members = max(self._state.shape[0], self._messages.shape[0])
        here = self._state[:, self.nodes].expand(members, -1, -1).contiguous()
        there = self._messages[:, distinct // self._senders]
        there = there.expand(members, -1, -1).contiguous()
        ends = self._segments[:: self.groups].contiguous()
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
        nonzero = (self._state != 0).any(2).to(self.dtype)
        return self._each(nonzero)

    @cached_property
    def total(self) -> Tensor:
        """m̄_v = Σ ω over the whole set, root included, [S, n]."""
        total = self._mass.sum(2) + (1.0 if self.root else 0.0)
        return self._each(total.to(self.dtype))

    @cached_property
    def mass(self) -> Tensor:
        """m_{v,g}, [S, n, G]."""
        return self._each(self._mass.to(self.dtype))

    @cached_property
    def contributions(self) -> Tensor:
        """ℓ, [S, R, C]; before a head h, [S, R, D]."""
        return self._each(self._contributions.to(self.dtype)).contiguous()

    @cached_property
    def fixed_logits(self) -> Tensor:
        """β of every recipient, [S, n, C]; before a head o, [S, n, D]."""
        return self._each(self._fixed[:, self.nodes].to(self.dtype))

    @cached_property
    @torch.no_grad()
    def summary(self) -> Tensor:
        """A frozen description of every recipient's message set, [S, n, D].

        A learned encoder reads every term in every step of every copy. What it can say of a set is
        mostly in a few means, under the model's own coefficients and under weights that prefer what
        is alike or what is far. These are computed once and shared by all rungs, folds and epochs.
        """
        return torch.stack([_of_member(self, member) for member in range(self.num_members)])

    def after_head(self, mixed: Tensor, targets: Tensor) -> Tensor:
        """Logits [S, L, C] of targets [S, L] from what was mixed for them, [S, L, C or D]."""
        if self._head is None:
            return mixed
        nodes = self.node_of(targets).flatten()
        logits = self._head(mixed.flatten(0, 1).double(), nodes)
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
        return (
            values.flatten(2)
            .gather(1, targets.unsqueeze(2).expand(-1, -1, values[0, 0].numel()))
            .view(*targets.shape, *values.shape[2:])
        )


def repair_inputs(exposure: Exposure, copies: int = 1) -> RepairInputs:
    """What K copies of a repair see of an exposure, once it is known to be finite."""
    if not bool(torch.isfinite(exposure.state).all() & torch.isfinite(exposure.messages).all()):
        raise InputError("state or messages hold NaN or infinite values; repairs cannot read them")
    return RepairInputs(exposure, copies)


# Graphs that are classified as a whole -----------------------------------------------------------


def alone_logits(exposure: Exposure, sender: Tensor, count: int) -> Tensor:
    """z of a graph if it heard one sender alone, [1, count, C] float64.

    The whole mass of every group that hears the sender is on it; the other groups stay frozen.
    Senders that no graph hears are zero.

    Args:
        exposure: its recipients are graphs.
        sender: [R], from 0 to count − 1: who stands behind a table row; the same one in several
            pools.
        count: how many senders there are.
    """
    head = exposure.head
    mixture = exposure.aggregate
    by_term = sender.long()[mixture.rows.long()]
    slot = torch.repeat_interleave(mixture.segments.diff())
    graph = slot.new_full((count,), -1)
    graph[by_term] = mixture.recipients[slot // mixture.num_groups]
    moved = _moved(mixture, slot, by_term, count)
    out = exposure.frozen_logits.new_zeros(1, count, exposure.num_classes)
    step = max(1, CHUNK // max(1, mixture.num_classes))
    for heard in (graph >= 0).nonzero().view(-1).split(step):
        value = mixture.frozen_logits[0, graph[heard]] + moved[heard]
        out[0, heard] = value if head is None else head(value, graph[heard])
    return out


def _moved(mixture: Exposure, slot: Tensor, by_term: Tensor, count: int) -> Tensor:
    """What the sums change by when senders are heard alone, [count, C]: Σ_g (m_g ℓ − Σ α ℓ)."""
    slots = Pattern(mixture.segments, mixture.rows, mixture.contributions.shape[1])
    by_group = mixture_of(slots, mixture.coefficients, mixture.contributions)[0]
    mass = mixture.mass[0].reshape(-1, 1)
    out = by_group.new_zeros(count, by_group.shape[1])
    step = max(1, CHUNK // max(1, by_group.shape[1]))
    for part in torch.arange(len(slot), device=slot.device).split(step):
        own = mixture.contributions[0, mixture.rows[part].long()]
        out.index_add_(0, by_term[part], mass[slot[part]] * own - by_group[slot[part]])
    return out


# The summary of a message set --------------------------------------------------------------------


def summary_width(state: int, classes: int) -> int:
    """Numbers a recipient, for a state this wide."""
    return 3 * _kept(state) + (3 + KERNELS) * classes + 3


def _kept(state: int) -> int:
    return state if state <= WIDEST else PROJECTED


def statistics(inputs: RepairInputs) -> dict[str, Tensor]:
    """Mean and deviation of every number over the recipients, [S, D] each."""
    table = inputs.summary
    deviation = table.std(1, correction=0)
    scale = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))
    return {"mean": table.mean(1), "scale": scale}


def standardised(table: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """A summary [S, n, D] in units of these deviations [S, D] from these means."""
    return ((table - mean.unsqueeze(1)) / scale.unsqueeze(1)).clamp(-CUT, CUT)


def _of_member(inputs: RepairInputs, member: int) -> Tensor:
    """[n, D]: the recipient itself, its mean message and its spread, classes under each weight."""
    here, there, sender = _states(inputs, member)
    told = inputs.frozen_logits[member].log_softmax(1)
    ends = inputs.sets.segments[:: inputs.groups].contiguous()
    pattern = Pattern(ends, inputs.sets.columns, there.shape[0])
    cosine, distance, alpha = (
        values[min(member, len(values) - 1)]
        for values in (inputs.sets.cosine, inputs.sets.distance, inputs.sets.coefficients)
    )
    said = told.exp()[sender]
    weights = _weights(pattern, alpha, cosine, distance)
    message, spread = _moments(pattern, weights[0], torch.cat([there, said], 1))
    own = told[inputs.nodes]
    return torch.cat(
        [
            here,
            own.clamp(min=SURE),
            own.exp(),
            inputs.total[member].unsqueeze(1),
            ends.diff().to(said.dtype).log1p().unsqueeze(1),
            _sums(pattern, weights[0] * cosine),
            message,
            spread,
            *(mix(pattern, others, said) for others in weights[1:]),
        ],
        1,
    )


def _states(inputs: RepairInputs, member: int) -> tuple[Tensor, Tensor, Tensor]:
    """States of the recipients and of the messages, projected where wide; who sent each."""
    nodes = inputs.frozen_logits.shape[1]
    distinct, _ = inputs._pairs
    state, messages = (
        values[min(member, len(values) - 1)] for values in (inputs._state, inputs._messages)
    )
    width = state.shape[1]
    if width > WIDEST:
        # Drawn on the CPU from a fixed seed: the same directions everywhere, nothing to keep.
        generator = torch.Generator().manual_seed(width)
        onto = torch.randn(width, PROJECTED, generator=generator) / PROJECTED**0.5
        state, messages = (values @ onto.to(values) for values in (state, messages))
    return state[inputs.nodes], messages[distinct // nodes], distinct % nodes


def _weights(pattern: Pattern, alpha: Tensor, cosine: Tensor, distance: Tensor) -> list[Tensor]:
    """Shares of the terms [T] under each of the kernels; they sum to 1 over a set."""
    even = torch.ones_like(alpha)
    counts = _sums(pattern, even).clamp(min=1)
    usual = _sums(pattern, distance) / counts
    apart = (distance / _spread(pattern, usual).clamp(min=1e-12)).clamp(max=FARTHEST)
    kernels = [
        alpha.abs(),
        even,
        (SHARP * cosine).exp(),
        (-NEAR * apart).exp(),
        (NEAR * apart).exp(),
    ]
    return [
        kernel / _spread(pattern, _sums(pattern, kernel)).clamp(min=1e-12) for kernel in kernels
    ]


def _sums(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number a term over every set, [n, 1]."""
    return mix(pattern, values, values.new_ones(pattern.num_columns, 1))


def _spread(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number a recipient [n, 1] to its terms, [T]."""
    return values.view(-1)[pattern.recipients.long()]


def _moments(pattern: Pattern, weights: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of table rows over every set."""
    mean = mix(pattern, weights, table)
    square = mix(pattern, weights, table.square())
    return mean, (square - mean.square()).clamp(min=0).sqrt()
