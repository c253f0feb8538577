"""What the oracle returns: margins with a witness and a certificate for every LP."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.notebook import ROWS, shown
from gnn_repair.oracle.flat_arrays import PER_LP, PER_TERM, active_terms, numbered, support_entries
from gnn_repair.oracle.saving import ARRAYS, read_arrays, write_arrays
from gnn_repair.oracle.status import FAILED, UNCERTIFIED
from gnn_repair.oracle.tables import Floats, Integers, as_whole, require_exposure
from gnn_repair.oracle.witness import STATUS, Witness
from gnn_repair.thresholds import ACTIVE, REACHABLE

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.certificate import Verification


@dataclass(frozen=True, eq=False)
class OracleSolution:
    """γ_v(c) for L linear programs, in flat NumPy arrays ordered by member, node and class.

    Every LP carries two proofs: λ, whose worst margin *is* ``margin``, and w, whose ``bound`` no
    admissible λ can exceed. They meet: ``gap`` is rounding. It is a sequence of its LPs:
    ``solution[i]`` is a :class:`Witness`, a slice is a solution of fewer LPs.
    """

    member: Integers
    """[L]: the member (split) of the exposure."""
    recipient: Integers
    """[L]: position in ``exposure.recipients``."""
    node: Integers
    """[L]: the graph node v."""
    target: Integers
    """[L]: the class c."""
    margin: Floats
    """[L]: γ_v(c), recomputed from λ; NaN where the solve failed."""
    bound: Floats
    """[L]: w·Δβ + Σ_g m_g max_a Σ_r w_r (ℓ_{a,c} − ℓ_{a,r}), an upper bound on γ."""
    rival_weights: Floats
    """[L, C]: w ≥ 0, sums to one, zero at the target."""
    indptr: Integers
    """[L + 1]: LP i owns entries indptr[i] : indptr[i+1] of the four arrays below."""
    terms: Integers
    """[nnz]: term of the exposure, ascending within an LP."""
    coefficients: Floats
    """[nnz]: λ > 0."""
    sources: Integers
    """[nnz]: the node that sent the term's message; −1: nobody, the term adds nothing."""
    groups: Integers
    """[nnz]: the term's group."""
    status: NDArray[np.int8]
    """[L]: key of ``STATUS``."""
    skipped: int = 0
    """Selected nodes without a label (−1); 0 for a part of a solution."""
    method: str = "simplex"
    """Who solved it: simplex, highs or gurobi."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why LP i is a fallback, failed or not certified."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""
    n_id: Integers | None = None
    """[N]: of a sampled subgraph, the graph's number of each node; ``node`` and ``sources`` are the
    exposure's own numbers, witnesses and frames say the graph's."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def gap(self) -> Floats:
        """[L]: bound − margin: zero up to rounding."""
        return self.bound - self.margin

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[L]: whether λ makes the class win: γ > 1e-7."""
        return self.margin > REACHABLE

    @property
    def decided(self) -> NDArray[np.bool_]:
        """[L]: whether it is proven that the class can win, or that it cannot."""
        return self.decided_at(REACHABLE)

    def decided_at(self, threshold: float) -> NDArray[np.bool_]:
        """[L]: the same for another threshold of γ."""
        proven = (self.margin > threshold) | (self.bound <= threshold)
        claimed = (self.status != FAILED) & (self.status != UNCERTIFIED)
        flags: NDArray[np.bool_] = claimed | (proven & (self.status != FAILED))
        return flags

    @property
    def verdict(self) -> NDArray[np.str_]:
        """[L]: ``can`` or ``cannot``; ``undecided`` where the numbers prove neither."""
        known = np.where(self.reachable, "can", "cannot")
        return np.where(self.decided, known, "undecided")

    @property
    def support(self) -> Integers:
        """[L]: how many terms are active: λ > 1e-7."""
        return self.active_above(ACTIVE)

    def active_above(self, threshold: float) -> Integers:
        """[L]: the same for another threshold of λ."""
        return active_terms(self.coefficients, self.indptr, threshold)

    def dense(self, exposure: Exposure, fill: str = "frozen") -> torch.Tensor:
        """λ as coefficients [S, T], α (or zero) at recipients that were not solved.

        With several targets for a node the last one counts.
        """
        require_exposure(exposure)
        if fill not in ("frozen", "zero"):
            raise InputError(f'fill must be "frozen" or "zero", not {fill!r}')
        members = exposure.num_members
        alpha = exposure.coefficients.double().expand(members, -1)
        full = alpha.clone() if fill == "frozen" else torch.zeros_like(alpha)
        ends = exposure.segments[:: exposure.num_groups].tolist()
        solved = self.status != FAILED
        pairs = np.stack([self.member[solved], self.recipient[solved]], axis=1)
        # Of a node's LPs the last: unique finds the first, so the order is turned.
        chosen, turned = np.unique(pairs[::-1], axis=0, return_index=True)
        last = np.zeros(len(self), bool)
        last[np.flatnonzero(solved)[len(pairs) - 1 - turned]] = True
        for s, v in chosen:
            full[s, ends[v] : ends[v + 1]] = 0.0
        kept = np.repeat(last, np.diff(self.indptr))
        member = torch.from_numpy(np.repeat(self.member, np.diff(self.indptr))[kept])
        place = member.to(full.device), torch.from_numpy(self.terms[kept]).to(full.device)
        full[place] = torch.from_numpy(self.coefficients[kept]).to(full.device)
        return full

    def by_class(self, num_members: int, num_recipients: int) -> Floats:
        """γ as [S, n, C], NaN where not solved: all-class reach is ``by_class(...) > 1e-7``."""
        full = np.full((num_members, num_recipients, self.rival_weights.shape[1]), np.nan)
        full[self.member, self.recipient, self.target] = self.margin
        return full

    def for_node(self, node: int, member: int | None = None) -> tuple[Witness, ...]:
        """The answers about one node, one per solved class and member; print them."""
        chosen = self.named(self.node) == as_whole(node, "node")
        where = ""
        if member is not None:
            chosen &= self.member == as_whole(member, "member")
            where = f" by member {member}"
        if not chosen.any():
            raise InputError(f"{self.names.node(node)} was not solved{where}; add it to nodes")
        return tuple(self[int(i)] for i in np.flatnonzero(chosen))

    def named(self, nodes: Any) -> Any:
        """The graph's numbers of the exposure's nodes; −1, nobody, stays."""
        return numbered(nodes, self.n_id)

    @overload
    def __getitem__(self, index: int) -> Witness: ...
    @overload
    def __getitem__(self, index: slice) -> OracleSolution: ...
    def __getitem__(self, index: int | slice) -> Witness | OracleSolution:
        if isinstance(index, slice):
            return self._part(index)
        place, count = as_whole(index, "an index of a solution"), len(self)
        if not -count <= place < count:
            raise IndexError(f"LP {place} does not exist; there are {count}")
        return self._witness(place % count)

    def _witness(self, place: int) -> Witness:
        part = slice(self.indptr[place], self.indptr[place + 1])
        return Witness(
            member=int(self.member[place]),
            node=int(self.named(self.node[place])),
            target=int(self.target[place]),
            margin=float(self.margin[place]),
            bound=float(self.bound[place]),
            rival_weights=self.rival_weights[place],
            terms=self.terms[part],
            coefficients=self.coefficients[part],
            sources=self.named(self.sources[part]),
            groups=self.groups[part],
            status=STATUS[int(self.status[place])],
            reason=self.reasons.get(place, ""),
            scope=self.scope,
            names=self.names,
        )

    def _part(self, index: slice) -> OracleSolution:
        """The solution of the LPs of a slice, in its order."""
        try:
            chosen = np.arange(len(self))[index]
        except (TypeError, ValueError) as error:
            raise InputError(f"a solution cannot be cut by {index}: {error}") from error
        skipped = self.skipped if len(chosen) == len(self) else 0
        return replace(self.taken(chosen), skipped=skipped)

    def taken(self, chosen: Integers) -> OracleSolution:
        """The LPs with the given numbers, in that order."""
        indptr, entries = support_entries(self.indptr, chosen)
        arrays = {name: getattr(self, name)[chosen] for name in PER_LP}
        arrays |= {name: getattr(self, name)[entries] for name in PER_TERM}
        reasons = {k: self.reasons[i] for k, i in enumerate(chosen.tolist()) if i in self.reasons}
        return replace(self, **arrays, indptr=indptr, reasons=reasons)

    def check(self, exposure: Exposure) -> Verification:
        """Verify every LP from the exposure alone, without any solver."""
        from gnn_repair.oracle.certificate import verify

        require_exposure(exposure)
        return verify(self, exposure)

    def save(self, path: str | Path) -> None:
        """Write the solution as one safetensors file."""
        header: dict[str, Any] = {
            "skipped": int(self.skipped),
            "method": self.method,
            "reasons": {str(i): reason for i, reason in self.reasons.items()},
            "scope": self.scope,
        }
        if self.names.typed:
            header["names"] = self.names.header()
        arrays = {name: getattr(self, name) for name in ARRAYS}
        if self.n_id is not None:
            arrays["n_id"] = self.n_id
        write_arrays(path, arrays, header, STATUS)

    @classmethod
    def load(cls, path: str | Path) -> OracleSolution:
        """Read what :meth:`save` wrote; everything that can be checked without the exposure is."""
        return cls(**read_arrays(path, STATUS))

    def to_frame(self) -> pd.DataFrame:
        """One row an LP: node, class, verdict, margin, bound, status, support and terms."""
        from gnn_repair.oracle.frames import solution_frame

        return solution_frame(self, STATUS)

    def _repr_html_(self) -> str:
        return shown(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        counts = ", ".join(
            f"{int((self.status == code).sum()):,} {name}"
            for code, name in STATUS.items()
            if (self.status == code).any()
        )
        skipped = f"; {self.skipped:,} without a label skipped" if self.skipped else ""
        reachable = int(self.reachable.sum())
        decided = int(self.decided.sum())
        mean = float(self.support[self.reachable].mean()) if reachable else float("nan")
        terms = "" if np.isnan(mean) else f", {mean:.2f} active terms on average"
        share = f" ({100 * reachable / decided:.1f} %)" if decided else ""
        return (
            f"OracleSolution of {len(self):,} LPs by {self.method}: {counts or 'none'}{skipped}\n"
            f"  reachable {reachable:,}{share}{terms}"
            f", largest gap {np.nanmax(self.gap, initial=0.0):.1e}"
            + (f"; {self.scope}" if self.scope else "")
        )

    __repr__ = __str__
