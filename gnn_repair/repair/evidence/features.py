"""The raw features of a node, which a trained network may have thrown away."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.backbones.graph import Features
from gnn_repair.kernels import mix, row_hash

DROPPED = 0.5
"""Share of the features that is left out in each training step. Bags of words have thousands of
them, far more than training nodes; without this the head would learn single words by heart."""


class FeatureEvidence:
    """x of every node, shared by all members and copies."""

    def __init__(self, x: Tensor) -> None:
        self.features = Features(x)

    @property
    def width(self) -> int:
        """F."""
        return self.features.dense.shape[1]

    def times_at(self, weight: Tensor, nodes: Tensor, seed: Tensor | None) -> Tensor:
        """x_v W of each copy's own nodes [M, L], for weights [M, F, H]: [M, L, H].

        Args:
            weight: of every copy.
            nodes: which rows.
            seed: while training, says which features are dropped (the same for all copies).
        """
        copies, width, channels = weight.shape
        table = weight.transpose(0, 1).reshape(width, copies * channels)
        product = self._times(table, seed).view(-1, channels)
        # Rows of the product stand by node and then by copy.
        index = nodes * copies + torch.arange(copies, device=nodes.device).unsqueeze(1)
        return product.index_select(0, index.view(-1)).view(*nodes.shape, channels)

    def _times(self, table: Tensor, seed: Tensor | None) -> Tensor:
        """X W with some entries of X dropped, [N, M·H]."""
        sparse = self.features.sparse
        if sparse is None:
            return _dropped(self.features.dense, seed) @ table
        return mix(sparse.pattern, _dropped(sparse.coefficients, seed), table)


def _dropped(values: Tensor, seed: Tensor | None) -> Tensor:
    if seed is None:
        return values
    place = torch.arange(values.numel(), device=values.device).view_as(values)
    kept = row_hash(seed, place) >= round(DROPPED * 2**32)
    return values * (kept.to(values.dtype) / (1 - DROPPED))
