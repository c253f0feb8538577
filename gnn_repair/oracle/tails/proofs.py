"""The proofs of many bounds as flat arrays: cases with weights, slopes and multiples each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.leaves import Leaf

PREFIX = "proof_"


@dataclass(frozen=True, eq=False)
class Proofs:
    """F cases of L bounds.

    The cases of a bound cover all λ: with none of them assuming anything there is one. In a case
    every nonlinear operation is replaced by lines of the given slopes, the rivals are mixed by w,
    and β ≥ 0 times the input of a unit, with the sign assumed, is added; the largest value of the
    linear function of λ that results is the case's bound, and the largest case's is the bound.
    A case may also be a part of the polytope: an edge between two corners, the terms at first, is
    halved, and its middle takes the place of the one corner or of the other.
    """

    indptr: Integers
    """[L + 1]: which cases prove bound i."""
    weights: Floats
    """[F, C]: w ≥ 0, sums to one, zero at the target."""
    slopes: Floats
    """[F, U]: of the nonlinear operations of the lowered tail in order, input by input."""
    splits: Integers
    """[F + 1]: which assumptions a case makes, of the four arrays below."""
    operation: Integers
    """[nnz]: the nonlinear operation, counted from 0; −1 − i where the edge of the node's corners
    i and j is halved, in the order of the halvings."""
    unit: Integers
    """[nnz]: its channel; j."""
    sign: NDArray[np.int8]
    """[nnz]: −1 or 1, the sign its input is taken to have; −1 keeps corner i, 1 keeps j."""
    multiplier: Floats
    """[nnz]: β; 0 for halvings."""

    @property
    def count(self) -> int:
        """F."""
        return len(self.weights)

    @classmethod
    def of(
        cls, cases: Sequence[Sequence[Leaf]], order: dict[int, int], shape: tuple[int, int]
    ) -> Proofs:
        """Pack the cases of each bound.

        Args:
            cases: of each of the L bounds.
            order: the place of each nonlinear operation among them, by its number.
            shape: C and U.
        """
        flat = [leaf for own in cases for leaf in own]
        weights, slopes = np.empty((len(flat), shape[0])), np.empty((len(flat), shape[1]))
        for k, leaf in enumerate(flat):
            weights[k], slopes[k] = leaf.weights, leaf.slopes
        entries = [entry for leaf in flat for entry in _assumptions(leaf, order)]
        operation, unit, sign, beta = zip(*entries, strict=True) if entries else ((), (), (), ())
        return cls(
            np.append(0, np.cumsum([len(own) for own in cases], dtype=np.int64)),
            weights,
            slopes,
            np.append(
                0,
                np.cumsum([len(leaf.units) + len(leaf.halvings) for leaf in flat], dtype=np.int64),
            ),
            np.array(operation, np.int64),
            np.array(unit, np.int64),
            np.array(sign, np.int8),
            np.array(beta, np.float64),
        )

    def take(self, chosen: Integers) -> Proofs:
        """The proofs of some of the bounds, in that order."""
        cases, indptr = _entries(self.indptr, chosen)
        entries, splits = _entries(self.splits, cases)
        return Proofs(
            indptr,
            self.weights[cases],
            self.slopes[cases],
            splits,
            self.operation[entries],
            self.unit[entries],
            self.sign[entries],
            self.multiplier[entries],
        )

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, to be written."""
        return {PREFIX + item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Proofs:
        """What :meth:`arrays` gave."""
        return cls(**{item.name: arrays[PREFIX + item.name] for item in fields(cls)})

    def fits(self, count: int) -> bool:
        """Whether these can be the proofs of ``count`` bounds."""
        cases, entries = self.count, len(self.unit)
        ends = self.indptr.shape == (count + 1,) and self.splits.shape == (cases + 1,)
        ends = ends and int(self.indptr[-1]) == cases and int(self.splits[-1]) == entries
        rising = bool((np.diff(self.indptr) >= 0).all()) and bool((np.diff(self.splits) >= 0).all())
        sizes = {len(self.operation), len(self.sign), len(self.multiplier), entries}
        return ends and rising and len(self.slopes) == cases and len(sizes) == 1


def _assumptions(leaf: Leaf, order: dict[int, int]) -> list[tuple[int, int, int, float]]:
    """What a case assumes: signs of units, then halvings."""
    units = zip(leaf.units, leaf.signs, leaf.multipliers, strict=True)
    signs = [(order[n], channel, sign, float(beta)) for (n, channel), sign, beta in units]
    return signs + [(-1 - i, j, side, 0.0) for i, j, side in leaf.halvings]


def _entries(ends: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """The entries of the chosen segments one after another, and where each now ends."""
    counts = np.diff(ends)[chosen]
    indptr = np.append(0, np.cumsum(counts))
    return np.repeat(ends[chosen] - indptr[:-1], counts) + np.arange(indptr[-1]), indptr
