"""What a repair can read beside the exposure: labels of neighbours and similar nodes, features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnn_repair.backbones.graph import Features, Operator
from gnn_repair.kernels import Pattern, mix, row_hash
from gnn_repair.repair.inputs import RepairInputs

HIDDEN = 0.3
"""Share of the known labels that is hidden in each training step: a repair that always saw all of
them would rely on counts that nodes with fewer known neighbours do not have."""
DROPPED = 0.5
"""Share of the features that is left out in each training step. Bags of words have thousands of
them, far more than training nodes; without this the head would learn single words by heart."""
SIMILAR = 30
"""Nodes that are asked, of thousands: enough for a histogram of a handful of classes."""
POWER = 4
"""Weights are cos⁴: a node of the same neighbours counts 16 times one that shares half."""
TINY = 1e-30
"""Where nothing is alike, nobody is asked."""
BLOCK = 1 << 25
"""Numbers of one block of similarities."""
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

LEAST_SCORE = 1e-12
"""Smoothed scores below this count as this in logarithms: scores are shares of one, and a zero
would be an infinite loss."""
DENSE_ABOVE = 0.1
"""An operator with a larger share of nonzeros is multiplied as a dense matrix."""
LARGEST_DENSE = 256 << 20
"""Bytes such a matrix may take: no more than the exposure of a large graph itself."""
LARGEST_SCALE = 1000.0
"""Automatic scales above this count as 1."""

# Labels ------------------------------------------------------------------------------------------


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels […] as rows of 0 and 1, […, C]; of other numbers zeros."""
    return (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).to(dtype)


class LabelEvidence:
    """Histograms of known labels over one hop and over two, for labels known to S members."""

    def __init__(
        self,
        entries: Tensor,
        known: Tensor,
        classes: int,
        dtype: torch.dtype,
        x: Tensor | None = None,
    ) -> None:
        """From entries [2, E] (source, recipient) and known labels [S, N], C where unknown.

        ``x`` are raw features, by which nodes can be alike beside their neighbourhoods.
        """
        self.known, self.classes = known, classes
        self.operator, self.returning = _neighbours(entries, known.shape[1], dtype)
        self.entries, self.x = entries, x

    @cached_property
    def similar(self) -> list[Operator]:
        """Means over the nodes most alike, by neighbourhood and by features where there are any."""
        operators = [alike_by_links(self.entries, self.known.shape[1], self.returning.dtype)]
        return operators if self.x is None else [*operators, alike_by_features(self.x)]

    @property
    def similar_width(self) -> int:
        """Numbers per node that similar nodes add."""
        return (1 if self.x is None else 2) * (self.classes + 1)

    @property
    def width(self) -> int:
        """Numbers per node: C classes and "unknown", one hop and two."""
        return 2 * (self.classes + 1)

    def histograms(self, labels: Tensor) -> Tensor:
        """Of labels [M, N] in 0..C: [M, N, 2 (C + 1)].

        P is the mean over a node's neighbours, itself left out. P² leads back to the node with
        probability (P²)_vv; that part is taken out, so no node is told its own label.
        """
        shown = self._shown(labels)
        one = self.operator(shown)
        back = self.returning.view(-1, 1, 1)
        rest = 1 - back
        # Where every way of two hops leads back there is no second hop to tell of.
        two = (self.operator(one) - back * shown) / torch.where(rest > 0, rest, 1.0)
        return torch.cat([one, two.clamp(min=0)], dim=2).transpose(0, 1)

    def similar_histograms(self, labels: Tensor) -> Tensor:
        """Of labels [M, N] over the nodes most alike, never the node itself: [M, N, k (C + 1)]."""
        shown = self._shown(labels)
        return torch.cat([operator(shown) for operator in self.similar], dim=2).transpose(0, 1)

    def _shown(self, labels: Tensor) -> Tensor:
        """Labels [M, N] as rows of 0 and 1, [N, M, C + 1]."""
        return one_hot(labels.t(), self.classes + 1, self.returning.dtype)

    def partly(self, withheld: Tensor, seed: Tensor) -> Tensor:
        """Labels [M, N] while training: some hidden by chance, some withheld.

        Args:
            withheld: [M, N] bool, labels a copy must not see even as its neighbours'.
            seed: another one, other labels hidden.
        """
        nodes = torch.arange(self.known.shape[1], device=self.known.device)
        hidden = row_hash(seed, nodes) < round(HIDDEN * 2**32)
        known = self.known.repeat_interleave(withheld.shape[0] // self.known.shape[0], 0)
        return torch.where(withheld | hidden, self.classes, known)


def _neighbours(entries: Tensor, nodes: int, dtype: torch.dtype) -> tuple[Operator, Tensor]:
    """P, and the diagonal of P² [N]."""
    others = entries[:, entries[0] != entries[1]]
    pattern, _ = Pattern.from_entries(others, nodes)
    counts = pattern.indptr.diff().clamp(min=1).double()
    share = counts.reciprocal()[pattern.recipients.long()]
    # From triplets, which are summed where they repeat: the pattern's own memory is not touched.
    place = (pattern.recipients.cpu().numpy(), pattern.indices.cpu().numpy())
    matrix = scipy.sparse.coo_matrix((share.cpu().numpy(), place), (nodes, nodes)).tocsr()
    returning = torch.from_numpy(matrix.multiply(matrix.T).sum(axis=1).A1).to(entries.device)
    return Operator(pattern, share.to(dtype)), returning.to(dtype)


@torch.no_grad()
def alike_by_links(entries: Tensor, nodes: int, dtype: torch.dtype) -> Operator:
    """The mean over the nodes whose neighbours are most the same, self-loops left out."""
    listed = entries[1] * nodes + entries[0]
    distinct = listed[entries[0] != entries[1]].unique()
    row, column = distinct // nodes, distinct % nodes
    pattern, _ = Pattern.from_entries(torch.stack([column, row]), nodes)
    size = pattern.indptr.diff().clamp(min=1).to(dtype).rsqrt()[pattern.recipients.long()]

    def rows(part: Tensor) -> Tensor:
        """Unit rows of some nodes as columns, [N, B]."""
        inside = (row >= part[0]) & (row <= part[-1])
        block = torch.zeros(nodes, part.numel(), dtype=dtype, device=entries.device)
        block[column[inside], row[inside] - part[0]] = size[inside]
        return block

    return _nearest(nodes, entries.device, lambda part: mix(pattern, size, rows(part)))


@torch.no_grad()
def alike_by_features(x: Tensor) -> Operator:
    """The mean over the nodes whose features [N, F] point most the same way."""
    unit = Features(x / x.norm(dim=1, keepdim=True).clamp(min=TINY))

    def cosines(part: Tensor) -> Tensor:
        return unit.times(unit.dense[part].t().unsqueeze(0)).squeeze(1)

    return _nearest(x.shape[0], x.device, cosines)


def _nearest(nodes: int, device: torch.device, cosines: Callable[[Tensor], Tensor]) -> Operator:
    """Each node's nearest with weights cos⁴, itself left out; ``cosines`` [N, B] of a block."""
    weights, chosen = [], []
    for part in torch.arange(nodes, device=device).split(max(1, BLOCK // nodes)):
        alike = cosines(part)
        alike[part, torch.arange(part.numel(), device=device)] = 0
        best = alike.topk(min(SIMILAR, nodes), dim=0)
        weights.append(best.values.clamp(min=0).t() ** POWER)
        chosen.append(best.indices.t())
    weight, column = torch.cat(weights), torch.cat(chosen)
    share = weight / weight.sum(1, keepdim=True).clamp(min=TINY)
    ends = torch.arange(nodes + 1, device=device) * column.shape[1]
    pattern = Pattern(ends, column.int().flatten(), nodes)
    return Operator(pattern, share.flatten().contiguous())


# Labels spread along the links, many ways at once ------------------------------------------------


def normalised_adjacency(entries: Tensor, num_nodes: int) -> Tensor:
    """D^{−1/2} A D^{−1/2} of entries [2, E] (source, recipient), [N, N] float64, CSR or dense.

    D counts what a node receives; coefficients are rounded as PyG rounds them.
    """
    _, weights = gcn_norm(entries, num_nodes=num_nodes, add_self_loops=False)
    pattern, order = Pattern.from_entries(entries, num_nodes)
    with warnings.catch_warnings():  # PyTorch remarks once that CSR is a beta and unchecked
        warnings.filterwarnings("ignore", message="Sparse ")
        matrix = torch.sparse_csr_tensor(
            pattern.indptr.int(),
            pattern.indices,
            weights[order].double(),
            (num_nodes, num_nodes),
            check_invariants=False,
        )
    filled = entries.shape[1] > DENSE_ABOVE * num_nodes**2
    return matrix.to_dense() if filled and 8 * num_nodes**2 <= LARGEST_DENSE else matrix


@dataclass(frozen=True, eq=False)
class Propagation:
    """J jobs over one graph."""

    operator: Tensor
    """[N, N]: see :func:`normalised_adjacency`."""
    layers: int
    """Steps of each part."""
    soft: Tensor
    """[N, J, C]: frozen probabilities."""
    labels: Tensor
    """[N, J]: training labels; −1 elsewhere."""

    @property
    def known(self) -> Tensor:
        """[N, J, 1] bool: which nodes are training nodes."""
        return (self.labels >= 0).unsqueeze(2)

    @property
    def truth(self) -> Tensor:
        """[N, J, C]: training labels as rows of 0 and 1."""
        return one_hot(self.labels, self.soft.shape[2], self.soft.dtype)

    def corrected(self, alpha: Tensor, autoscale: Tensor) -> Tensor:
        """Probabilities plus the errors on training nodes, spread over the graph; [N, J, C].

        With ``autoscale`` [J] the spread errors are clamped to ±1 and scaled node by node;
        without, training nodes keep their own error at every step.
        """
        alpha, autoscale = alpha.unsqueeze(1), autoscale.unsqueeze(1)
        error = torch.where(self.known, self.truth - self.soft, 0.0)
        held = self.known & ~autoscale
        rest = torch.where(held, error, (1 - alpha) * error)
        bound = torch.where(autoscale, 1.0, inf).to(error.dtype)
        spread = self._diffuse(error, rest, torch.where(held, 0.0, alpha), -bound, bound)
        size = error.abs().sum((0, 2)) / self.known.sum((0, 2))
        scale = size.unsqueeze(1) / spread.abs().sum(2, keepdim=True)
        usable = autoscale & ~(scale.isinf() | (scale > LARGEST_SCALE))
        return torch.where(usable, scale, 1.0).mul(spread).add_(self.soft)

    def smoothed(self, corrected: Tensor, alpha: Tensor) -> Tensor:
        """Corrected scores with the training labels put in, spread over the graph; [N, J, C]."""
        alpha = alpha.unsqueeze(1)
        start = torch.where(self.known, self.truth, corrected)
        low, high = start.new_zeros(()), start.new_ones(())
        return self._diffuse(start, (1 - alpha) * start, alpha, low, high)

    def spread(self, alpha: Tensor) -> Tensor:
        """The training labels alone, spread over the graph, [N, J, C]."""
        alpha, bound = alpha.unsqueeze(1), torch.full_like(alpha[:1], inf)
        return self._diffuse(self.truth, (1 - alpha) * self.truth, alpha, -bound, bound)

    def _diffuse(
        self, start: Tensor, rest: Tensor, gain: Tensor, low: Tensor, high: Tensor
    ) -> Tensor:
        """``layers`` times x ← clamp(gain ⊙ Âx + rest), from ``start``."""
        out = start
        for _ in range(self.layers):
            mixed = (self.operator @ out.flatten(1)).view_as(start)
            out = torch.addcmul(rest, gain, mixed, out=mixed).clamp_(low, high)
        return out


# Features ----------------------------------------------------------------------------------------


class FeatureEvidence:
    """x [N, F], shared by all members and copies."""

    def __init__(self, x: Tensor, nodes: Tensor | None = None) -> None:
        """Of all nodes, or the rows of some [L]: what is dropped depends on the node, not on L."""
        self.features = Features(x if nodes is None else x[nodes])
        numbers = torch.arange(len(x), device=x.device) if nodes is None else nodes
        sparse = self.features.sparse
        if sparse is None:
            row, column = numbers.unsqueeze(1), torch.arange(x.shape[1], device=x.device)
        else:
            pattern = sparse.pattern
            row, column = numbers[pattern.recipients.long()], pattern.indices.long()
        self._places = row * x.shape[1] + column

    @property
    def x(self) -> Tensor:
        """[N, F]."""
        return self.features.dense

    def times(self, table: Tensor, seed: Tensor | None) -> Tensor:
        """X W for a table W [F, k], [N, k]; ``seed``, while training, says what is dropped."""
        sparse = self.features.sparse
        if sparse is None:
            return self._kept(self.x, seed) @ table
        return mix(sparse.pattern, self._kept(sparse.coefficients, seed), table)

    def _kept(self, values: Tensor, seed: Tensor | None) -> Tensor:
        if seed is None:
            return values
        kept = row_hash(seed, self._places) >= round(DROPPED * 2**32)
        return values * (kept.to(values.dtype) / (1 - DROPPED))


# The summary of a message set --------------------------------------------------------------------


def summary_width(state: int, classes: int) -> int:
    """Numbers per recipient, for a state this wide."""
    return 3 * _kept(state) + (3 + KERNELS) * classes + 3


def _kept(state: int) -> int:
    return state if state <= WIDEST else PROJECTED


@torch.no_grad()
def summary(inputs: RepairInputs) -> Tensor:
    """A frozen description of every recipient's message set, [S, n, D].

    A learned encoder reads every term in every step of every copy. What it can say of a set is
    mostly in a few means, under the model's own coefficients and under weights that prefer what
    is alike or what is far. These are computed once and shared by all rungs, folds and epochs.
    """
    return torch.stack([_of_member(inputs, member) for member in range(inputs.num_members)])


def statistics(table: Tensor) -> dict[str, Tensor]:
    """Mean and deviation of every number of a summary over the recipients, [S, D] each."""
    deviation = table.std(1, correction=0)
    scale = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))
    return {"mean": table.mean(1), "scale": scale}


def standardise(table: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """A summary [S, n, D] in units of these deviations [S, D] from these means."""
    return ((table - mean.unsqueeze(1)) / scale.unsqueeze(1)).clamp(-CUT, CUT)


def _of_member(inputs: RepairInputs, member: int) -> Tensor:
    """[n, D]: the recipient itself, its mean message and its spread, classes under each weight."""
    here, there, sender = _states(inputs, member)
    log_probs = inputs.frozen_logits[member].log_softmax(1)
    ends = inputs.sets.segments[:: inputs.groups].contiguous()
    pattern = Pattern(ends, inputs.sets.columns, there.shape[0])
    cosine, distance, alpha = (
        values[min(member, len(values) - 1)]
        for values in (inputs.sets.cosine, inputs.sets.distance, inputs.sets.coefficients)
    )
    # Senders of another kind than the recipients have no logits: all classes alike.
    own = (sender < inputs.exposure.names.own(len(log_probs))).unsqueeze(1)
    probabilities = torch.where(
        own, log_probs.exp()[sender.clamp(max=len(log_probs) - 1)], 1 / log_probs.shape[1]
    )
    weights = _weights(pattern, alpha, cosine, distance)
    message, spread = _moments(pattern, weights[0], torch.cat([there, probabilities], 1))
    at_node = log_probs[inputs.nodes]
    return torch.cat(
        [
            here,
            at_node.clamp(min=SURE),
            at_node.exp(),
            inputs.total[member].unsqueeze(1),
            ends.diff().to(probabilities.dtype).log1p().unsqueeze(1),
            _sums(pattern, weights[0] * cosine),
            message,
            spread,
            *(mix(pattern, others, probabilities) for others in weights[1:]),
        ],
        1,
    )


def _states(inputs: RepairInputs, member: int) -> tuple[Tensor, Tensor, Tensor]:
    """States of the recipients and of the messages, projected where wide; who sent each."""
    row, sender, _ = inputs.pairs
    both = inputs.exposure.state, inputs.exposure.messages
    state, messages = (values[min(member, len(values) - 1)] for values in both)
    width = state.shape[1]
    if width > WIDEST:
        # Drawn on the CPU from a fixed seed: the same directions everywhere, nothing to keep.
        generator = torch.Generator().manual_seed(width)
        onto = torch.randn(width, PROJECTED, generator=generator) / PROJECTED**0.5
        state, messages = (values @ onto.to(values) for values in (state, messages))
    return state[inputs.nodes], messages[row], sender


def _weights(pattern: Pattern, alpha: Tensor, cosine: Tensor, distance: Tensor) -> list[Tensor]:
    """Shares of the terms [T] under each of the kernels; they sum to 1 over a set."""
    even = torch.ones_like(alpha)
    counts = _sums(pattern, even).clamp(min=1)
    usual = _sums(pattern, distance) / counts
    apart = (distance / _spread(pattern, usual).clamp(min=1e-12)).clamp(max=FARTHEST)
    by_distance = (-NEAR * apart).exp(), (NEAR * apart).exp()
    kernels = [alpha.abs(), even, (SHARP * cosine).exp(), *by_distance]
    return [k / _spread(pattern, _sums(pattern, k)).clamp(min=1e-12) for k in kernels]


def _sums(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number per term over every set, [n, 1]."""
    return mix(pattern, values, values.new_ones(pattern.num_columns, 1))


def _spread(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number per recipient [n, 1] to its terms, [T]."""
    return values.view(-1)[pattern.recipients.long()]


def _moments(pattern: Pattern, weights: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of table rows over every set."""
    mean = mix(pattern, weights, table)
    square = mix(pattern, weights, table.square())
    return mean, (square - mean.square()).clamp(min=0).sqrt()
