"""The proofs of many bounds as flat arrays: nothing in them is left for a checker to choose.

The cases of a bound cover all λ: with none of them assuming anything there is one. In a case every
curved operation is replaced by lines of the given slopes, the rivals are mixed by w, and β ≥ 0
times the input of a unit, with the sign assumed, is added; the largest value of the linear function
of λ that results is the case's bound, and the largest case's is the bound. A case may also be a
part of the polytope: an edge between two corners, the terms at first, is halved, and its middle
takes the place of the one corner or of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.heads.operations import Curved, HeadGraph, Root, Slopes
from gnn_repair.oracle.problems import Floats, Integers

PREFIX = "proof_"
Split = tuple[int, int, int, float]
"""A curved operation counted from 0, a unit, the sign that its input is taken to have, and β."""
Halving = tuple[int, int, int]
"""Corners i and j of one group, by the node's terms, and a side: −1 keeps i, 1 keeps j."""


@dataclass(frozen=True, eq=False)
class ProofCase:
    """One case of a proof."""

    weights: Floats
    """[C]: w ≥ 0, sums to one, zero at the target."""
    slopes: Floats
    """[U]: of the curved operations of the lowered head in order, input by input."""
    inner: Floats = field(default_factory=lambda: np.empty(0))
    """[V]: slopes with which intervals are found, of the operations that :func:`inner_of` names:
    input by input above, then below; of a Root below only."""
    splits: tuple[Split, ...] = ()
    halvings: tuple[Halving, ...] = ()
    """In order."""


def inner_of(graph: HeadGraph) -> list[int]:
    """The curved operations whose lines are needed to find intervals: those that a later one
    depends on, and lengths."""
    needed, operations = set[int](), graph.operations
    for k in range(len(operations) - 1, -1, -1):
        if k + 1 in needed or isinstance(operations[k], Curved):
            needed.update(operations[k].inputs)
    curved = [k for k, op in enumerate(operations) if isinstance(op, Curved)]
    return [k for k in curved if k + 1 in needed or isinstance(operations[k], Root)]


class ProofForm:
    """What the proofs of a lowered head hold, and in which order."""

    def __init__(self, graph: HeadGraph) -> None:
        operations, self.widths = graph.operations, graph.widths()
        self.curved = [k for k, op in enumerate(operations) if isinstance(op, Curved)]
        self.reads = {k: [self.widths[i] for i in operations[k].inputs] for k in self.curved}
        """By number of a curved operation: the widths of its inputs."""
        self.inner = {
            k: self.reads[k] * (1 if isinstance(operations[k], Root) else 2)
            for k in inner_of(graph)
        }
        """By number of an inner operation: the widths of its inner slopes."""

    def slopes(self, flat: Tensor) -> dict[int, Slopes]:
        """Slopes [Q, U] by number of the curved operation."""
        return _parted(flat, self.reads)

    def inner_slopes(self, flat: Tensor) -> dict[int, tuple[Slopes, Slopes]]:
        """Inner slopes [B, V] above and below, by number of the operation."""
        counts = {k: len(self.reads[k]) for k in self.inner}
        parts = _parted(flat, self.inner)
        return {k: (own[: counts[k]], own[-counts[k] :]) for k, own in parts.items()}

    def is_of(self, proofs: Proofs) -> bool:
        """Whether proofs hold as many slopes as they must."""
        slopes, inner = (sum(map(sum, form.values())) for form in (self.reads, self.inner))
        return proofs.slopes.shape[1] == slopes and proofs.inner.shape[1] == inner

    def allows(self, case: ProofCase) -> bool:
        """Whether the signs that a case assumes are those of units, one each."""
        units = [self.reads[k][0] for k in self.curved]
        inside = all(
            place < len(units) and 0 <= unit < units[place] and sign in (-1, 1)
            for place, unit, sign, _ in case.splits
        )
        return inside and len({split[:2] for split in case.splits}) == len(case.splits)


def _parted(flat: Tensor, widths: dict[int, list[int]]) -> dict[int, Slopes]:
    """Columns side by side as parts of these widths."""
    parts = iter(flat.split([width for own in widths.values() for width in own], dim=1))
    return {k: tuple(next(parts) for _ in own) for k, own in widths.items()}


@dataclass(frozen=True, eq=False)
class Proofs:
    """F cases of L bounds."""

    indptr: Integers
    """[L + 1]: which cases prove bound i."""
    weights: Floats
    """[F, C]."""
    slopes: Floats
    """[F, U]."""
    splits: Integers
    """[F + 1]: which assumptions a case makes, of the four arrays below."""
    operation: Integers
    """[nnz]: the curved operation, counted from 0; −1 − i where the edge of the node's corners i
    and j is halved, in the order of the halvings."""
    unit: Integers
    """[nnz]: its channel; j."""
    sign: NDArray[np.int8]
    """[nnz]: −1 or 1, the sign its input is taken to have; −1 keeps corner i, 1 keeps j."""
    multiplier: Floats
    """[nnz]: β; 0 for halvings."""
    inner: Floats
    """[P, V]: the inner slopes of P parts of nodes."""
    part: Integers
    """[F]: which of them a case has."""

    @property
    def count(self) -> int:
        """F."""
        return len(self.weights)

    @classmethod
    def of(cls, cases: Sequence[Sequence[ProofCase]], shape: tuple[int, int]) -> Proofs:
        """Pack the cases of each of L bounds; ``shape`` is C and U."""
        flat = [case for own in cases for case in own]
        weights, slopes = np.empty((len(flat), shape[0])), np.empty((len(flat), shape[1]))
        rows, part = dict[bytes, int](), np.empty(len(flat), np.int64)
        entries, ends = list[tuple[int, int, int, float]](), [0]
        for k, case in enumerate(flat):
            weights[k], slopes[k] = case.weights, case.slopes
            part[k] = rows.setdefault(case.inner.tobytes(), len(rows))
            entries += [*case.splits, *((-1 - i, j, side, 0.0) for i, j, side in case.halvings)]
            ends.append(len(entries))
        inner = np.stack([np.frombuffer(row) for row in rows]) if rows else np.empty((0, 0))
        operation, unit, sign, beta = zip(*entries, strict=True) if entries else ((), (), (), ())
        return cls(
            np.append(0, np.cumsum([len(own) for own in cases], dtype=np.int64)),
            weights,
            slopes,
            np.array(ends, np.int64),
            np.array(operation, np.int64),
            np.array(unit, np.int64),
            np.array(sign, np.int8),
            np.array(beta, np.float64),
            inner,
            part,
        )

    def cases(self, i: int) -> list[ProofCase]:
        """The cases that prove bound i."""
        cases = []
        for f in range(int(self.indptr[i]), int(self.indptr[i + 1])):
            part = slice(int(self.splits[f]), int(self.splits[f + 1]))
            columns = (self.operation, self.unit, self.sign, self.multiplier)
            rows = list(zip(*(column[part].tolist() for column in columns), strict=True))
            splits = tuple(row for row in rows if row[0] >= 0)
            halvings = tuple((-1 - first, j, side) for first, j, side, _ in rows if first < 0)
            inner = self.inner[self.part[f]]
            cases.append(ProofCase(self.weights[f], self.slopes[f], inner, splits, halvings))
        return cases

    def take(self, chosen: Integers) -> Proofs:
        """The proofs of some of the bounds, in that order."""
        cases, indptr = _entries(self.indptr, chosen)
        entries, splits = _entries(self.splits, cases)
        by_case = {name: getattr(self, name)[cases] for name in ("weights", "slopes", "part")}
        names = ("operation", "unit", "sign", "multiplier")
        by_entry = {name: getattr(self, name)[entries] for name in names}
        return replace(self, indptr=indptr, splits=splits, **by_case, **by_entry)

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, to be written."""
        return {PREFIX + item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Proofs:
        """What :meth:`arrays` gave; version 0.2 wrote no inner slopes."""
        count = len(arrays[PREFIX + "weights"])
        old = {PREFIX + "inner": np.empty((1, 0)), PREFIX + "part": np.zeros(count, np.int64)}
        return cls(**{item.name: (old | arrays)[PREFIX + item.name] for item in fields(cls)})

    def fits(self, count: int) -> bool:
        """Whether these can be the proofs of ``count`` bounds."""
        cases, entries = self.count, len(self.unit)
        ends = self.indptr.shape == (count + 1,) and self.splits.shape == (cases + 1,)
        ends = ends and int(self.indptr[-1]) == cases and int(self.splits[-1]) == entries
        rising = bool((np.diff(self.indptr) >= 0).all()) and bool((np.diff(self.splits) >= 0).all())
        sizes = {len(self.operation), len(self.sign), len(self.multiplier), entries}
        inside = bool(((self.part >= 0) & (self.part < len(self.inner))).all())
        whole = len(self.slopes) == cases == len(self.part) and len(sizes) == 1
        return ends and rising and whole and inside and self.inner.ndim == 2


def _entries(ends: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """The entries of the chosen segments one after another, and where each now ends."""
    counts = np.diff(ends)[chosen]
    indptr = np.append(0, np.cumsum(counts))
    return np.repeat(ends[chosen] - indptr[:-1], counts) + np.arange(indptr[-1]), indptr
