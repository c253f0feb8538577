"""What the oracle says of a model with a tail: can win, cannot win, or undecided, with proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import index as integer
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.notebook import ROWS, shown
from gnn_repair.oracle.flat_arrays import (
    ANSWERED,
    ASKED,
    PER_TERM,
    active_terms,
    numbered,
    support_entries,
)
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.proof import Proofs
from gnn_repair.oracle.tails.sentence import CAN, CANNOT, STAGES, UNDECIDED, TailWitness
from gnn_repair.thresholds import ACTIVE

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.tails.verification import TailVerification

KIND = "gnn-repair tail solution"
VERDICTS = (CAN, CANNOT, UNDECIDED)
_PER_LP = (*ASKED, *ANSWERED, "verdict")


@dataclass(frozen=True, eq=False)
class TailSolution:
    """Verdicts about L (node, class) pairs, in flat NumPy arrays ordered by node and class.

    *can*: λ was run through the model and the class won. *cannot*: no admissible λ has a margin
    above ``bound``, which ``proofs`` shows without a solver. *undecided*: the largest margin lies
    between ``margin`` and ``bound``. It is a sequence: ``solution[i]`` is a :class:`TailWitness`.
    """

    member: Integers
    """[L]: always 0."""
    recipient: Integers
    """[L]: position in the exposure's recipients."""
    node: Integers
    """[L]: the graph node v."""
    target: Integers
    """[L]: the class c."""
    margin: Floats
    """[L]: min_r z_c − z_r at λ, the best found; of the model itself where ``replayed``."""
    bound: Floats
    """[L]: what max_λ min_r z_c − z_r cannot exceed; infinite where no bound is known."""
    verdict: NDArray[np.str_]
    """[L]: ``can``, ``cannot`` or ``undecided``."""
    indptr: Integers
    """[L + 1]: LP i owns entries indptr[i] : indptr[i+1] of the four arrays below."""
    terms: Integers
    """[nnz]: term of the exposure, ascending within an LP."""
    coefficients: Floats
    """[nnz]: λ > 0."""
    sources: Integers
    """[nnz]: the node that sent the term's message."""
    groups: Integers
    """[nnz]: the term's group."""
    status: NDArray[np.int8]
    """[L]: the stage that was reached last, a key of ``STAGES``."""
    proofs: Proofs
    """What proves the bounds."""
    replayed: bool
    """Whether margins were read off the model itself, not off its tail in float64."""
    skipped: int = 0
    """Selected nodes without a label (−1)."""
    method: str = "simplex"
    reasons: dict[int, str] = field(default_factory=dict)
    """Why LP i is undecided."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""
    n_id: Integers | None = None
    """[N]: of a sampled subgraph, the graph's number of each node, by which witnesses name them."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[L]: whether some λ is known to make the class win."""
        return np.asarray(self.verdict == CAN)

    @property
    def excluded(self) -> NDArray[np.bool_]:
        """[L]: whether it is proved that no λ does."""
        return np.asarray(self.verdict == CANNOT)

    @property
    def decided(self) -> NDArray[np.bool_]:
        """[L]: whether it is one of the two."""
        return np.asarray(self.verdict != UNDECIDED)

    @property
    def gap(self) -> Floats:
        """[L]: bound − margin; unlike that of an affine model it need not be zero."""
        return self.bound - self.margin

    @property
    def support(self) -> Integers:
        """[L]: how many terms are active: λ > 1e-7."""
        return active_terms(self.coefficients, self.indptr, ACTIVE)

    def dense(self, exposure: Exposure, fill: str = "frozen") -> torch.Tensor:
        """λ as coefficients [1, T], α (or zero) at recipients that were not solved.

        With several targets for a node the last one counts.
        """
        alpha = exposure.aggregate.coefficients.double()
        full = alpha.clone() if fill == "frozen" else torch.zeros_like(alpha)
        groups = exposure.aggregate.num_groups
        ends = exposure.aggregate.segments[::groups].tolist()
        for i in range(len(self)):
            v = int(self.recipient[i])
            full[0, ends[v] : ends[v + 1]] = 0.0
            part = slice(self.indptr[i], self.indptr[i + 1])
            full[0, torch.from_numpy(self.terms[part])] = torch.from_numpy(self.coefficients[part])
        return full

    def by_class(self, num_members: int, num_recipients: int) -> Floats:
        """The margins as [1, n, C], NaN where not solved."""
        full = np.full((num_members, num_recipients, self.proofs.weights.shape[1]), np.nan)
        full[self.member, self.recipient, self.target] = self.margin
        return full

    def for_node(self, node: int) -> tuple[TailWitness, ...]:
        """The answers about one node, one per solved class; print them."""
        chosen = np.flatnonzero(self.named(self.node) == _whole(node, "node"))
        if not len(chosen):
            raise InputError(f"{self.names.node(node)} was not solved; add it to nodes")
        return tuple(self[int(i)] for i in chosen)

    def named(self, nodes: Any) -> Any:
        """The graph's numbers of the exposure's nodes; −1, nobody, stays."""
        return numbered(nodes, self.n_id)

    @overload
    def __getitem__(self, index: int) -> TailWitness: ...
    @overload
    def __getitem__(self, index: slice) -> TailSolution: ...
    def __getitem__(self, index: int | slice) -> TailWitness | TailSolution:
        if isinstance(index, slice):
            return self.taken(np.arange(len(self))[index])
        place, count = _whole(index, "an index of a solution"), len(self)
        if not -count <= place < count:
            raise IndexError(f"LP {place} does not exist; there are {count}")
        return self._witness(place % count)

    def __iter__(self) -> Iterator[TailWitness]:
        return (self._witness(i) for i in range(len(self)))

    def _witness(self, i: int) -> TailWitness:
        part = slice(self.indptr[i], self.indptr[i + 1])
        return TailWitness(
            node=int(self.named(self.node[i])),
            target=int(self.target[i]),
            verdict=str(self.verdict[i]),
            margin=float(self.margin[i]),
            bound=float(self.bound[i]),
            terms=self.terms[part],
            coefficients=self.coefficients[part],
            sources=self.named(self.sources[part]),
            groups=self.groups[part],
            stage=STAGES[int(self.status[i])],
            cases=int(np.diff(self.proofs.indptr[i : i + 2])[0]),
            replayed=self.replayed,
            reason=self.reasons.get(i, ""),
            scope=self.scope,
            names=self.names,
        )

    def taken(self, chosen: Integers) -> TailSolution:
        """The questions with the given numbers, in that order."""
        indptr, entry = support_entries(self.indptr, chosen)
        arrays = {name: getattr(self, name)[chosen] for name in _PER_LP}
        arrays |= {name: getattr(self, name)[entry] for name in PER_TERM}
        reasons = {k: self.reasons[i] for k, i in enumerate(chosen.tolist()) if i in self.reasons}
        skipped = self.skipped if len(chosen) == len(self) else 0
        proofs = self.proofs.take(chosen)
        return replace(
            self, **arrays, indptr=indptr, proofs=proofs, reasons=reasons, skipped=skipped
        )

    def check(self, exposure: Exposure) -> TailVerification:
        """Verify every λ and every bound from the exposure alone, without any solver."""
        from gnn_repair.oracle.tails.verification import verify

        return verify(self, exposure)

    def save(self, path: str | Path) -> None:
        """Write the solution as one safetensors file."""
        header: dict[str, Any] = {
            "skipped": self.skipped,
            "method": self.method,
            "replayed": self.replayed,
            "scope": self.scope,
            "reasons": {str(i): reason for i, reason in self.reasons.items()},
        }
        if self.names.typed:
            header["names"] = self.names.header()
        arrays = {name: getattr(self, name) for name in (*_PER_LP, "indptr", *PER_TERM)}
        arrays["verdict"] = np.array([VERDICTS.index(word) for word in self.verdict], np.int8)
        arrays |= self.proofs.arrays() | ({} if self.n_id is None else {"n_id": self.n_id})
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        save_tensors(path, KIND, header, tensors)

    @classmethod
    def load(cls, path: str | Path) -> TailSolution:
        """Read what :meth:`save` wrote."""
        header, tensors = load_tensors(path, KIND)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        try:
            arrays["verdict"] = np.array(VERDICTS)[arrays["verdict"]]
            proofs = Proofs.from_arrays(arrays)
            own = {name: arrays[name] for name in (*_PER_LP, "indptr", *PER_TERM)}
            reasons = {int(i): str(reason) for i, reason in header.pop("reasons").items()}
            names = NodeNames.of_header(header.pop("names", None))
            numbers = arrays.get("n_id")
            solution = cls(
                **own, proofs=proofs, reasons=reasons, n_id=numbers, names=names, **header
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise FileFormatError(
                f"{path} lacks a piece of a tail solution or holds another: {error}"
            ) from error
        if not solution._fits():
            raise FileFormatError(f"{path} holds a tail solution whose pieces do not fit together")
        return solution

    def _fits(self) -> bool:
        count, ends = len(self.margin), self.indptr
        whole = all(len(getattr(self, name)) == count for name in _PER_LP)
        whole = whole and ends.shape == (count + 1,) and bool((np.diff(ends) >= 0).all())
        entries = all(len(getattr(self, name)) == ends[-1] for name in PER_TERM)
        most = max(self.node.max(initial=-1), self.sources.max(initial=-1))
        whole = whole and (self.n_id is None or bool(most < len(self.n_id)))
        stages = bool(np.isin(self.status, list(STAGES)).all())
        return whole and entries and stages and self.proofs.fits(count)

    def to_frame(self) -> pd.DataFrame:
        """One row an LP: node, class, verdict, margin, bound, status, support and terms."""
        from gnn_repair.oracle.frames import solution_frame

        return solution_frame(self, STAGES)

    def _repr_html_(self) -> str:
        return shown(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        counts = [int((self.verdict == word).sum()) for word in VERDICTS]
        share = f" ({100 * (1 - counts[2] / len(self)):.1f} % decided)" if len(self) else ""
        whose = "run through the model" if self.replayed else "run through its tail in float64"
        skipped = f"; {self.skipped:,} without a label skipped" if self.skipped else ""
        return (
            f"TailSolution of {len(self):,} questions{skipped}: {counts[0]:,} can win, "
            f"{counts[1]:,} cannot, {counts[2]:,} undecided{share}\n"
            f"  every λ was {whose}; {self.proofs.count:,} cases prove the bounds"
            + (f"; about the {self.scope}" if self.scope else "")
        )

    __repr__ = __str__


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, bool | np.bool_):
        try:
            return integer(value)
        except TypeError:
            pass
    raise InputError(f"{name} must be a whole number, not {value!r}")
