"""The labels that a node's neighbours are known to have, never its own."""

from __future__ import annotations

from functools import cached_property

import scipy.sparse
import torch
from torch import Tensor

from gnn_repair.backbones.graph import Operator
from gnn_repair.kernels import Pattern, row_hash
from gnn_repair.repair.evidence.kin import alike_by_features, alike_by_links

HIDDEN = 0.3
"""Share of the known labels that is hidden in each training step: a repair that always saw all of
them would rely on counts that nodes with fewer known neighbours do not have."""


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
    def kin(self) -> list[Operator]:
        """Means over the nodes most alike, by neighbourhood and by features where there are any."""
        found = [alike_by_links(self.entries, self.known.shape[1], self.returning.dtype)]
        return found if self.x is None else [*found, alike_by_features(self.x)]

    @property
    def kin_width(self) -> int:
        """Numbers a node that its kin add."""
        return (1 if self.x is None else 2) * (self.classes + 1)

    @property
    def width(self) -> int:
        """Numbers a node: C classes and "unknown", one hop and two."""
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

    def kin_histograms(self, labels: Tensor) -> Tensor:
        """Of labels [M, N] over the nodes most alike, never the node itself: [M, N, k (C + 1)]."""
        shown = self._shown(labels)
        return torch.cat([operator(shown) for operator in self.kin], dim=2).transpose(0, 1)

    def _shown(self, labels: Tensor) -> Tensor:
        """Labels [M, N] as rows of 0 and 1, [N, M, C + 1]."""
        kinds = torch.arange(self.classes + 1, device=labels.device)
        return (labels.t().unsqueeze(2) == kinds).to(self.returning.dtype)

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
