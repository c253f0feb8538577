"""The graph as the backbones see it: operators over its entries, and its features.

Node values of S members are laid out [N, S, d]: node-major, so that one sparse pass moves all
members' channels of a node together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, remove_self_loops

from gnn_repair.kernels import Pattern, mix

SPARSE_BELOW = 0.05
"""Features with a smaller share of nonzeros are multiplied as a sparse matrix."""


@dataclass(frozen=True, eq=False)
class Operator:
    """A power A^p of a nonnegative sparse matrix A [N × N] that mixes node values."""

    pattern: Pattern
    coefficients: Tensor
    """[T], or [T, S] where each member has its own."""
    power: int = 1

    def __call__(self, values: Tensor) -> Tensor:
        """A^p applied to node values [N, S, k]."""
        out = values.flatten(1)
        for _ in range(self.power):
            out = mix(self.pattern, self.coefficients, out)
        return out.view(-1, *values.shape[1:])

    def raised(self, power: int) -> Operator:
        """A^power."""
        return replace(self, power=power)

    def expanded(self) -> Operator:
        """The same operator with A^p multiplied out: every path to a source in one coefficient."""
        if self.power == 1:
            return self
        own, device = self.pattern, self.coefficients.device
        product = scipy.sparse.identity(own.num_rows, format="csr")
        if self.power:
            values = self.coefficients.double(), own.indices, own.indptr
            parts = tuple(part.cpu().numpy() for part in values)
            matrix = scipy.sparse.csr_matrix(parts, (own.num_rows, own.num_columns))
            product = (matrix**self.power).tocsr()
        product.sort_indices()
        indptr = torch.from_numpy(product.indptr.astype(np.int64)).to(device)
        indices = torch.from_numpy(product.indices.astype(np.int32)).to(device)
        data = torch.from_numpy(product.data).to(self.coefficients)
        return Operator(Pattern(indptr, indices, own.num_columns), data)


class Features:
    """Node features X [N, F], the same for all members, multiplied as sparse when they are."""

    def __init__(self, x: Tensor) -> None:
        self.dense = x
        share = float((x != 0).float().mean()) if x.numel() else 1.0
        # A zero has a gradient too, where gradients are asked for.
        sparse = share < SPARSE_BELOW and not x.requires_grad
        self.sparse = Operator(*Pattern.from_dense(x)) if sparse else None

    def times(self, weight: Tensor) -> Tensor:
        """X W for every member: weight [S, F, k] gives [N, S, k]."""
        members, width, channels = weight.shape
        table = weight.transpose(0, 1).reshape(width, members * channels)
        if self.sparse is None:
            product = self.dense @ table
        else:
            product = mix(self.sparse.pattern, self.sparse.coefficients, table)
        return product.view(-1, members, channels)


State = Tensor | Features
"""h: [N, S, d], or the raw features where all members share them."""


def times(state: State, weight: Tensor) -> Tensor:
    """h W for every member: weight [S, d, k] gives [N, S, k]."""
    if isinstance(state, Features):
        return state.times(weight)
    return torch.bmm(state.transpose(0, 1), weight).transpose(0, 1)


class Graph:
    """Entries, operators and features of one dataset on one device."""

    def __init__(self, data: Data, device: str | torch.device = "cpu") -> None:
        self.num_nodes: int = data.x.shape[0]
        self.edge_index: Tensor = data.edge_index.to(device)
        self.features = Features(data.x.to(device))
        self.dtype: torch.dtype = data.x.dtype
        self.entries, _ = Pattern.from_entries(self.edge_index, self.num_nodes)
        self._normalised: dict[bool, Operator] = {}

    @cached_property
    def looped(self) -> Pattern:
        """The entries with exactly one self-loop a node, as PyG's convolutions make them.

        A node that had a self-loop of its own has two entries for it; convolutions that normalise
        or attend see one.
        """
        others, _ = remove_self_loops(self.edge_index)
        looped, _ = add_self_loops(others, num_nodes=self.num_nodes)
        return Pattern.from_entries(looped, self.num_nodes)[0]

    def _degrees(self, pattern: Pattern) -> Tensor:
        """[N]: entries of each row."""
        return pattern.indptr.diff().to(self.dtype)

    @cached_property
    def total(self) -> Operator:
        """A: one coefficient of 1 per entry."""
        ones = torch.ones_like(self.entries.indices, dtype=self.dtype)
        return Operator(self.entries, ones)

    @cached_property
    def mean(self) -> Operator:
        """D⁻¹ A: the mean over a node's entries."""
        return self._mean_over(self.entries)

    def pattern(self, one_loop: bool) -> Pattern:
        """The entries, with exactly one self-loop a node or with all that are listed."""
        return self.looped if one_loop else self.entries

    def normalised(self, one_loop: bool) -> Operator:
        """Â = D^{−1/2} A D^{−1/2}."""
        if one_loop not in self._normalised:
            pattern = self.pattern(one_loop)
            # A node without entries is not heard either, as in PyG: 1/√0 counts as 0.
            scale = self._degrees(pattern).rsqrt().nan_to_num(posinf=0.0)
            operator = Operator(pattern, scale[pattern.recipients] * scale[pattern.indices])
            self._normalised[one_loop] = operator
        return self._normalised[one_loop]

    @cached_property
    def mean_without_self(self) -> Operator:
        """P: the mean over a node's entries other than self-loops; an isolated node has none."""
        others, _ = remove_self_loops(self.edge_index)
        return self._mean_over(Pattern.from_entries(others, self.num_nodes)[0])

    def _mean_over(self, pattern: Pattern) -> Operator:
        return Operator(pattern, self._degrees(pattern).reciprocal()[pattern.recipients])
