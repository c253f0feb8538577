"""Answers about outputs that stand for themselves, with a witness and a bound for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.notebook import ROWS, shown
from gnn_repair.oracle.flat_arrays import (
    PER_TERM,
    active_terms,
    numbered,
    support_entries,
)
from gnn_repair.oracle.labels.saving import ARRAYS, read_solution, write_solution
from gnn_repair.oracle.labels.witness import LabelWitness
from gnn_repair.oracle.tables import Floats, Integers, as_whole
from gnn_repair.thresholds import ACTIVE, REACHABLE

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.labels.certificate import LabelVerification
    from gnn_repair.oracle.labels.tails import TailPart

ASKED = ("member", "recipient", "node", "target", "wanted")
ANSWERED = ("margin", "bound")
PER_QUESTION = (*ASKED, *ANSWERED)


@dataclass(frozen=True, eq=False)
class LabelSolution:
    """How far each of L outputs can be brought to its wanted side, in flat NumPy arrays.

    The margin of output k is its own logit, z_k − θ where the label is wanted and θ − z_k where it
    is not. λ attains ``margin``, and no admissible λ exceeds ``bound``. In closed form the two are
    one number; after a nonlinear tail they may leave a gap, and the verdict is undecided where the
    gap holds zero. Ordered by member, node and output; ``solution[i]`` is a
    :class:`LabelWitness`, a slice is a solution of fewer questions.
    """

    member: Integers
    """[L]: the member of the exposure."""
    recipient: Integers
    """[L]: position in ``exposure.recipients``."""
    node: Integers
    """[L]: the graph node v (of a link: its number)."""
    target: Integers
    """[L]: the output k."""
    wanted: NDArray[np.bool_]
    """[L]: whether it is wanted above the threshold."""
    margin: Floats
    """[L]: the largest margin, attained by λ."""
    bound: Floats
    """[L]: ± (β_k − θ) + Σ_g m_g max_a ± ℓ_{a,k}: what no reweighting exceeds."""
    indptr: Integers
    """[L + 1]: question i owns entries indptr[i] : indptr[i+1] of the four arrays below."""
    terms: Integers
    """[nnz]: term of the exposure, ascending within a question."""
    coefficients: Floats
    """[nnz]: λ > 0; in closed form the whole mass of a group on one message."""
    sources: Integers
    """[nnz]: the node that sent the term's message."""
    groups: Integers
    """[nnz]: the term's group."""
    threshold: float = 0.0
    """θ: an output above it is there."""
    skipped: int = 0
    """Selected pairs without a known truth; 0 for a part of a solution."""
    noun: str = "label"
    """What an output is called: ``label``, ``value`` or ``link``."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""
    links: Integers | None = None
    """[L, 2]: the end nodes, where recipients are links."""
    n_id: Integers | None = None
    """[N]: of a sampled subgraph, the graph's number of each node; ``node`` and ``sources`` are the
    exposure's own numbers, witnesses and frames say the graph's."""
    parts: tuple[TailPart, ...] = field(default=(), repr=False)
    """After a tail: the proofs, one :class:`TailSolution` an output."""

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def value(self) -> Floats:
        """[L]: the output under λ."""
        return self.threshold + np.where(self.wanted, self.margin, -self.margin)

    @property
    def gap(self) -> Floats:
        """[L]: bound − margin."""
        return self.bound - self.margin

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[L]: whether λ puts the output on its wanted side, by more than 1e-7."""
        return self.margin > REACHABLE

    @property
    def decided(self) -> NDArray[np.bool_]:
        """[L]: whether it is proven that it can get there, or that it cannot."""
        flags: NDArray[np.bool_] = self.reachable | (self.bound <= REACHABLE)
        return flags

    @property
    def verdict(self) -> NDArray[np.str_]:
        """[L]: ``can`` or ``cannot``; ``undecided`` where the numbers prove neither."""
        known = np.where(self.reachable, "can", "cannot")
        return np.where(self.decided, known, "undecided")

    @property
    def support(self) -> Integers:
        """[L]: how many terms are active: λ > 1e-7."""
        return active_terms(self.coefficients, self.indptr, ACTIVE)

    def for_node(self, node: int) -> tuple[LabelWitness, ...]:
        """The answers about one node, one per output and member; print them."""
        chosen = np.flatnonzero(self.named(self.node) == as_whole(node, "node"))
        if not len(chosen):
            raise InputError(f"{self.names.node(node)} was not solved; add it to nodes")
        return tuple(self[int(i)] for i in chosen)

    def named(self, nodes: Any) -> Any:
        """The graph's numbers of the exposure's nodes; −1, nobody, stays."""
        return numbered(nodes, self.n_id)

    @overload
    def __getitem__(self, index: int) -> LabelWitness: ...
    @overload
    def __getitem__(self, index: slice) -> LabelSolution: ...
    def __getitem__(self, index: int | slice) -> LabelWitness | LabelSolution:
        if isinstance(index, slice):
            chosen = np.arange(len(self))[index]
            skipped = self.skipped if len(chosen) == len(self) else 0
            return replace(self.taken(chosen), skipped=skipped)
        place, count = as_whole(index, "an index of a solution"), len(self)
        if not -count <= place < count:
            raise IndexError(f"question {place} does not exist; there are {count}")
        return self._witness(place % count)

    def taken(self, chosen: Integers) -> LabelSolution:
        """The questions with the given numbers, in that order."""
        indptr, entries = support_entries(self.indptr, chosen)
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in PER_QUESTION}
        arrays |= {name: getattr(self, name)[entries] for name in PER_TERM}
        if self.links is not None:
            arrays["links"] = self.links[chosen]
        return replace(self, **arrays, indptr=indptr)

    def _witness(self, i: int) -> LabelWitness:
        part = slice(self.indptr[i], self.indptr[i + 1])
        return LabelWitness(
            member=int(self.member[i]),
            subject=self.subject(i),
            wanted=bool(self.wanted[i]),
            margin=float(self.margin[i]),
            bound=float(self.bound[i]),
            threshold=self.threshold,
            terms=self.terms[part],
            coefficients=self.coefficients[part],
            sources=self.named(self.sources[part]),
            groups=self.groups[part],
            verdict=str(self.verdict[i]),
            reason=f"its margin is at least {self.margin[i]:.4g} and at most {self.bound[i]:.4g}",
            scope=self.scope,
            names=self.names,
        )

    def subject(self, i: int) -> str:
        """What question i is about, in words."""
        if self.links is not None:
            return f"link {self.links[i, 0]} → {self.links[i, 1]}"
        return f"{self.names.node(self.named(self.node[i]))}, {self.noun} {self.target[i]}"

    def check(self, exposure: Exposure | Any) -> LabelVerification:
        """Verify every λ and every bound from the exposure alone, without the solver's code."""
        from gnn_repair.oracle.labels.certificate import verify

        return verify(self, exposure)

    def save(self, path: str | Path) -> None:
        """Write the solution as one safetensors file."""
        write_solution(path, *self.written())

    def written(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and words of a file."""
        if self.parts:
            raise InputError(
                "answers about a model with a tail hold a proof an output; save each of "
                "solution.parts with part.solution.save(path)"
            )
        arrays = {name: getattr(self, name) for name in ARRAYS}
        for name in ("links", "n_id"):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        names = ("threshold", "skipped", "noun", "scope")
        header: dict[str, Any] = {name: getattr(self, name) for name in names}
        header["names"] = self.names.header() if self.names.typed else None
        return arrays, header

    @classmethod
    def load(cls, path: str | Path) -> LabelSolution:
        """Read what :meth:`save` wrote; everything that can be checked without the exposure is."""
        return cls(**read_solution(path))

    def to_frame(self) -> pd.DataFrame:
        """One row a question: node, output, truth, verdict, margin, bound, value and terms."""
        from gnn_repair.oracle.labels.frames import solution_frame

        return solution_frame(self)

    def _repr_html_(self) -> str:
        return shown(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        can, decided = int(self.reachable.sum()), int(self.decided.sum())
        skipped = f"; {self.skipped:,} without a truth skipped" if self.skipped else ""
        open_ = f", {len(self) - decided:,} undecided" if decided < len(self) else ""
        share = f" ({100 * can / decided:.1f} %)" if decided else ""
        return (
            f"LabelSolution of {len(self):,} questions{skipped}: {can:,} can be on their wanted "
            f"side{share}, {decided - can:,} cannot{open_}"
            + (f"; about the {self.scope}" if self.scope else "")
        )

    __repr__ = __str__
