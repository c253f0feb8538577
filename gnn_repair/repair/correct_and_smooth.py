"""Correct-and-Smooth of many members and strengths at once.

Every member under every choice of strengths is one *job* of C columns; J jobs stand side by side
in a table [N, J, C], so that a propagation step is one sparse product whatever J is. PyG's
``CorrectAndSmooth`` does the same for one job at a time, and its scores are the reference.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnn_repair.kernels import Pattern

TABLE_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""How large one table may be: on the CPU it is to stay in the cache."""
DENSE_ABOVE = 0.1
"""An operator with a larger share of nonzeros is multiplied as a dense matrix."""
LARGEST_DENSE = 256 << 20
"""Bytes such a matrix may take: no more than the exposure of a large graph itself."""
LARGEST_SCALE = 1000.0
"""Automatic scales above this count as 1."""


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
