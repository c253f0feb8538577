"""The sparsity pattern that every aggregation walks over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which columns (sources) each row (recipient) reads: a CSR matrix without its values."""

    indptr: Tensor
    """[N + 1] int64: entries of row v are ``indptr[v] : indptr[v + 1]``."""
    indices: Tensor
    """[T] int32: the column of each entry."""
    num_columns: int
    """M."""

    @classmethod
    def from_entries(cls, edge_index: Tensor, num_nodes: int) -> tuple[Pattern, Tensor]:
        """The pattern of a PyG ``edge_index`` [2, T] (source, recipient), rows sorted.

        Returns the pattern and ``order`` [T]: entry t of the pattern is column ``order[t]`` of
        ``edge_index``. Duplicate entries stay separate terms.
        """
        source, recipient = edge_index
        order = torch.argsort(recipient * num_nodes + source, stable=True)
        counts = torch.bincount(recipient, minlength=num_nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(indptr, source[order].int().contiguous(), num_nodes), order

    @classmethod
    def from_dense(cls, matrix: Tensor) -> tuple[Pattern, Tensor]:
        """The nonzeros of a matrix [N, M]: where they are, and their values [T]."""
        row, column = matrix.nonzero().unbind(1)
        counts = torch.bincount(row, minlength=matrix.shape[0])
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(indptr, column.int(), matrix.shape[1]), matrix[row, column]

    @property
    def num_rows(self) -> int:
        """N."""
        return self.indptr.numel() - 1

    @cached_property
    def recipients(self) -> Tensor:
        """[T] int32: the row of each entry."""
        rows = torch.arange(self.num_rows, dtype=torch.int32, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff())

    @cached_property
    def identity(self) -> Tensor:
        """[T] int32: 0, 1, 2, … — the place of each entry's coefficient."""
        return torch.arange(self.indices.numel(), dtype=torch.int32, device=self.indices.device)

    @cached_property
    def transposed(self) -> tuple[Pattern, Tensor]:
        """The pattern by columns, and ``order`` [T] int32: where its entries stand in this one."""
        order = torch.argsort(self.indices, stable=True)
        counts = torch.bincount(self.indices, minlength=self.num_columns)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Pattern(indptr, self.recipients[order], self.num_rows), order.int()

    def to(self, device: str | torch.device) -> Pattern:
        """The same pattern on another device."""
        return Pattern(self.indptr.to(device), self.indices.to(device), self.num_columns)
