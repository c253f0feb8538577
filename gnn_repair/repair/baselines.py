"""What one would try instead; not from the paper. Same interface, same tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce

from gnn_repair.budget import check_whole
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.kernels import Pattern
from gnn_repair.methods import METHODS
from gnn_repair.repair.base import FittedRepair, Repair, about, untrained
from gnn_repair.repair.targets import Targets, Task, require_nodes

ALPHAS = (0.5, 0.8, 0.95)
"""Propagation strengths that validation accuracy chooses from."""
AUTOSCALE = (True, False)
"""Both ways to scale a correction."""
CORRECTIONS = tuple(product(ALPHAS, AUTOSCALE))
"""Strength of the correction, autoscale."""
CANDIDATES = tuple(product(ALPHAS, ALPHAS, AUTOSCALE))
"""Strength of the correction, of the smoothing, autoscale: the first of equally good ones wins."""
TEMPERATURES = (0.05, 20.0)
"""Where τ is looked for."""
TINY = 1e-12
"""Smoothed scores below this count as this in logarithms: scores are shares of one, and a zero
would be an infinite loss."""
TABLE_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""How large one table may be: on the CPU it is to stay in the cache."""
DENSE_ABOVE = 0.1
"""An operator with a larger share of nonzeros is multiplied as a dense matrix."""
LARGEST_DENSE = 256 << 20
"""Bytes such a matrix may take: no more than the exposure of a large graph itself."""
LARGEST_SCALE = 1000.0
"""Automatic scales above this count as 1."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedTemperature(FittedRepair["TemperatureScaling"]):
    """z = z⁰ / τ."""

    one_by_one = True

    def member_logits(self, exposure: Exposure) -> Tensor:
        """z⁰ / τ at the recipients, [S, n, C] float64."""
        scale = self._matching(exposure)["temperature"].double().view(-1, 1, 1)
        return exposure.frozen_logits[:, exposure.recipients] / scale


@dataclass(frozen=True)
class TemperatureScaling(Repair[FittedTemperature]):
    """One temperature per member, the best in validation likelihood; predictions stay."""

    title: ClassVar[str] = METHODS["temperature_scaling"].title
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedTemperature

    @torch.no_grad()
    def learn(self, task: Task) -> FittedTemperature:
        """Find τ on the validation nodes."""
        exposure, val = task.exposure, task.val_targets
        index = exposure.recipients[val.positions].unsqueeze(2)
        logits = exposure.frozen_logits.gather(1, index.expand(-1, -1, exposure.num_classes))
        temperature = self._search(logits, val)
        parameters = {"temperature": temperature.unsqueeze(1)}
        return self.fitted(**about(exposure), **untrained(exposure), parameters=parameters)

    def _search(self, logits: Tensor, val: Targets) -> Tensor:
        """Golden-section search in 1/τ, where the likelihood is concave; [S]."""
        low = torch.full((logits.shape[0],), 1 / TEMPERATURES[1], dtype=torch.float64)
        low = low.to(logits.device)
        high = torch.full_like(low, 1 / TEMPERATURES[0])
        ratio = (5**0.5 - 1) / 2
        for _ in range(80):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            better = _likelihood(logits * left.view(-1, 1, 1), val) > _likelihood(
                logits * right.view(-1, 1, 1), val
            )
            low, high = torch.where(better, low, left), torch.where(better, right, high)
        return 2 / (low + high)

    def shapes(self, fitted: FittedTemperature) -> dict[str, tuple[int, ...]]:
        """τ, one number that is positive."""
        temperature = fitted.parameters.get("temperature")
        if temperature is not None and not bool((temperature > 0).all()):
            raise InputError("a temperature must be positive")
        return {"temperature": (1,)}


def _likelihood(logits: Tensor, val: Targets) -> Tensor:
    chosen = logits.log_softmax(2).gather(2, val.labels.unsqueeze(2)).squeeze(2)
    return (chosen * val.real).sum(1)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedSmoothing(FittedRepair["CorrectAndSmooth"]):
    """Frozen probabilities, corrected and smoothed over the graph with the training labels."""

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Logarithms of the smoothed scores at the recipients, [S, n, C] float64.

        The training labels and the graph are part of this prediction, so it holds for the graph
        it was fitted on only, whichever of its recipients are asked for.
        """
        self._matching(exposure)
        place, names = exposure.recipients.device, ("labels", "strengths", "entries")
        labels, strengths, entries = (self.constants[name].to(place) for name in names)
        _check_graph(exposure, labels.shape[1], entries[0])
        scores = correct_and_smooth(
            normalised_adjacency(entries[0], exposure.num_nodes),
            exposure.frozen_logits.softmax(2),
            labels,
            Strengths(strengths[:, 0], strengths[:, 1], strengths[:, 2].bool()),
            self.repair.layers,
        )
        return scores[:, exposure.recipients].clamp(min=TINY).log()


def _check_graph(exposure: Exposure, nodes: int, entries: Tensor) -> None:
    """The exposure's recipients hear whom they heard when the repair was fitted."""
    if nodes != exposure.num_nodes:
        raise InputError(
            f"correct-and-smooth was fitted on a graph of {nodes} nodes, not "
            f"{exposure.num_nodes}; fit it again on this one"
        )
    asked = torch.zeros(nodes, dtype=torch.bool, device=entries.device)
    asked[exposure.recipients] = True
    if not torch.equal(entries[:, asked[entries[1]]], sources_to_recipients(exposure)):
        raise InputError(
            "correct-and-smooth was fitted on another graph, or on fewer of its recipients; "
            "fit it again on this exposure"
        )


@dataclass(frozen=True)
class CorrectAndSmooth(Repair[FittedSmoothing]):
    """Correct-and-Smooth over the exposure's own sources, strengths chosen on validation."""

    protocol: ClassVar[Mapping[str, str]] = {"layers": "smoothing_layers"}
    title: ClassVar[str] = METHODS["correct_and_smooth"].title
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedSmoothing
    layers: int = 50
    """Propagation steps of each of the two parts."""

    def __post_init__(self) -> None:
        check_whole("CorrectAndSmooth", "layers", self.layers, 1)

    @torch.no_grad()
    def learn(self, task: Task) -> FittedSmoothing:
        """Choose each member's strengths by validation accuracy."""
        exposure = task.exposure
        require_nodes(exposure, "correct-and-smooth")
        labels = torch.where(task.by_node(task.train), task.y, -1)
        best = self._hits(exposure, labels, task.val_targets).argmax(1)  # the first of the best
        candidates = torch.tensor(CANDIDATES, dtype=torch.float64, device=best.device)
        constants = {
            "labels": labels,
            "strengths": candidates[best],
            "entries": sources_to_recipients(exposure).unsqueeze(0),
        }
        statistics = untrained(exposure)
        return self.fitted(**about(exposure), **statistics, parameters={}, constants=constants)

    def _hits(self, exposure: Exposure, labels: Tensor, val: Targets) -> Tensor:
        """Correct validation nodes of every member and candidate, [S, candidates].

        A correction serves all smoothings that follow it, so jobs are members × corrections.
        """
        members, place = exposure.num_members, labels.device
        operator = normalised_adjacency(sources_to_recipients(exposure), exposure.num_nodes)
        soft, nodes = exposure.frozen_logits.softmax(2), exposure.recipients[val.positions]
        member = torch.arange(members, device=place).repeat_interleave(len(CORRECTIONS))
        corrections = torch.tensor(CORRECTIONS, dtype=torch.float64, device=place)
        hits = val.sizes.new_zeros(len(member), len(ALPHAS))
        for part in torch.arange(len(member), device=place).split(jobs_at_once(soft)):
            own = member[part]
            correct, scaled = corrections[part % len(CORRECTIONS)].t()
            table = soft[own].transpose(0, 1).contiguous()
            jobs = Propagation(operator, self.layers, table, labels[own].t())
            corrected = jobs.corrected(correct, scaled.bool())
            for column, alpha in enumerate(ALPHAS):
                scores = jobs.smoothed(corrected, torch.full_like(correct, alpha))
                found = scores.argmax(2).t().gather(1, nodes[own])
                right = (found == val.labels[own]) & val.real[own]
                hits[part, column] = right.sum(1)
        # hits stand by correction, autoscale, smoothing; candidates by correction, smoothing, …
        by_candidate = hits.view(members, len(ALPHAS), len(AUTOSCALE), len(ALPHAS))
        return by_candidate.transpose(2, 3).flatten(1)

    def check_constants(self, fitted: FittedSmoothing) -> None:
        """Training labels [S, N], strengths [S, 3] among the candidates, entries [1, 2, E]."""
        if fitted.constants.keys() != {"labels", "strengths", "entries"}:
            raise InputError("correct-and-smooth needs labels, strengths and entries, nothing else")
        labels, strengths = fitted.constants["labels"], fitted.constants["strengths"]
        whole = labels.dtype == torch.int64 and labels.dim() == 2
        if not whole or not bool(((labels >= -1) & (labels < fitted.num_classes)).all()):
            raise InputError(f"labels must lie in -1..{fitted.num_classes - 1}, one for every node")
        known = strengths.dtype == torch.float64 and strengths.shape[1:] == (3,)
        if not known or any(tuple(row) not in CANDIDATES for row in strengths.tolist()):
            raise InputError("strengths must be among those that are chosen from")
        entries = fitted.constants["entries"]
        pairs = entries.dtype == torch.int64 and entries.dim() == 3 and entries.shape[:2] == (1, 2)
        if not pairs or not bool(((entries >= 0) & (entries < labels.shape[1])).all()):
            raise InputError(f"entries must be pairs of nodes in 0..{labels.shape[1] - 1}")


def sources_to_recipients(exposure: Exposure) -> Tensor:
    """Who sends to whom among the recipients, each pair once, [2, E] in PyG's order."""
    source = exposure.sources[exposure.rows.long()].long()
    # Before a head the terms are its mixture's.
    mixture = exposure.aggregate
    recipient = exposure.recipients[mixture.terms_by_recipient.recipients.long()]
    # The others are terms without a message, or senders of another kind than the recipients.
    sent = (source >= 0) & (source < exposure.names.own(exposure.num_nodes))
    pairs = torch.stack([source[sent], recipient[sent]])
    entries: Tensor = coalesce(pairs, num_nodes=exposure.num_nodes)
    return entries


# Correct-and-Smooth of many members and strengths at once -----------------------------------------
#
# Every member under every choice of strengths is one *job* of C columns; J jobs stand side by side
# in a table [N, J, C], so that a propagation step is one sparse product whatever J is. PyG's
# ``CorrectAndSmooth`` does the same for one job at a time, and its scores are the reference.


class Strengths(NamedTuple):
    """How strongly each of J jobs propagates."""

    correct: Tensor
    """[J] float64: α of the errors."""
    smooth: Tensor
    """[J] float64: α of the scores."""
    autoscale: Tensor
    """[J] bool: whether errors are scaled to their size on the training nodes."""


def jobs_at_once(soft: Tensor) -> int:
    """How many jobs a table may hold, for probabilities [S, N, C]."""
    limit = TABLE_BYTES.get(soft.device.type, min(TABLE_BYTES.values()))
    return max(1, limit // max(1, soft[0].numel() * soft.element_size()))


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
        classes = torch.arange(self.soft.shape[2], device=self.labels.device)
        return (self.labels.unsqueeze(2) == classes).to(self.soft.dtype)

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

    def _diffuse(
        self, start: Tensor, rest: Tensor, gain: Tensor, low: Tensor, high: Tensor
    ) -> Tensor:
        """``layers`` times x ← clamp(gain ⊙ Âx + rest), from ``start``."""
        out = start
        for _ in range(self.layers):
            mixed = (self.operator @ out.flatten(1)).view_as(start)
            out = torch.addcmul(rest, gain, mixed, out=mixed).clamp_(low, high)
        return out


def correct_and_smooth(
    operator: Tensor, soft: Tensor, labels: Tensor, strengths: Strengths, layers: int
) -> Tensor:
    """Each member's scores under its own strengths, [S, N, C].

    Args:
        operator: [N, N], see :func:`normalised_adjacency`.
        soft: [S, N, C] probabilities.
        labels: [S, N] training labels; −1 elsewhere.
        strengths: one per member (J = S).
        layers: steps of each part.
    """
    out = torch.empty_like(soft)
    width = jobs_at_once(soft)
    for first in range(0, soft.shape[0], width):
        part = slice(first, first + width)
        correct, smooth, autoscale = (values[part] for values in strengths)
        jobs = Propagation(
            operator, layers, soft[part].transpose(0, 1).contiguous(), labels[part].t()
        )
        scores = jobs.smoothed(jobs.corrected(correct, autoscale), smooth)
        out[part] = scores.transpose(0, 1)
    return out
