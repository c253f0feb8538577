"""What the oracle returns: margins with a witness and a certificate for every LP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.oracle.status import FAILED, FALLBACK, FIXED, OPTIMAL
from gnn_repair.oracle.tables import Floats, Integers

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure
    from gnn_repair.oracle.certificate import Verification

KIND = "gnn-repair oracle solution"
REACHABLE = 1e-7
"""γ above this counts as a strict win, as in the paper."""
ACTIVE = 1e-7
"""λ above this counts as active, as in the paper."""
STATUS = {OPTIMAL: "optimal", FALLBACK: "fallback", FIXED: "no terms", FAILED: "failed"}
"""Optimal; optimal by highspy after our solver gave up; nothing to reweight, γ is the frozen
margin; no answer (``reasons`` says why)."""

_ARRAYS = (
    "member", "recipient", "node", "target", "margin", "bound", "rival_weights", "indptr",
    "terms", "coefficients", "sources", "groups", "status",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class OracleSolution:
    """γ_v(c) for L linear programs, in flat NumPy arrays ordered by member, node and class.

    Every LP carries two proofs: λ, whose worst margin *is* ``margin``, and w, whose ``bound`` no
    admissible λ can exceed. They meet: ``gap`` is rounding.
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
    """[nnz]: the node that sent the term's message."""
    groups: Integers
    """[nnz]: the term's group."""
    status: NDArray[np.int8]
    """[L]: key of ``STATUS``."""
    skipped: int = 0
    """Selected nodes without a label (−1)."""
    method: str = "simplex"
    """Who solved it: simplex, highs or gurobi."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why LP i is a fallback or failed."""

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def gap(self) -> Floats:
        """[L]: bound − margin: zero up to rounding."""
        return self.bound - self.margin

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[L]: whether some admissible reweighting makes the class win: γ > 1e-7."""
        return self.margin > REACHABLE

    @property
    def verdict(self) -> NDArray[np.str_]:
        """[L]: ``can`` or ``cannot``; ``undecided`` where the numbers prove neither."""
        proven = np.where(self.bound <= REACHABLE, "cannot", "undecided")
        return np.where(self.status == FAILED, "undecided", np.where(self.reachable, "can", proven))

    @property
    def support(self) -> Integers:
        """[L]: how many terms are active: λ > 1e-7."""
        active = np.concatenate([[0], np.cumsum(self.coefficients > ACTIVE)])
        return active[self.indptr[1:]] - active[self.indptr[:-1]]

    def dense(self, exposure: Exposure, fill: str = "frozen") -> torch.Tensor:
        """λ as coefficients [S, T], α (or zero) at recipients that were not solved.

        With several targets for a node the last one counts.
        """
        members = exposure.num_members
        alpha = exposure.coefficients.double().expand(members, -1)
        full = alpha.clone() if fill == "frozen" else torch.zeros_like(alpha)
        ends = exposure.segments[:: exposure.num_groups].tolist()
        solved = self.status != FAILED
        pairs = np.stack([self.member[solved], self.recipient[solved]], axis=1)
        for s, v in np.unique(pairs, axis=0):
            full[s, ends[v] : ends[v + 1]] = 0.0
        owner = np.repeat(self.member, np.diff(self.indptr))
        full[torch.from_numpy(owner), torch.from_numpy(self.terms)] = torch.from_numpy(
            self.coefficients
        )
        return full

    def by_class(self, num_members: int, num_recipients: int) -> Floats:
        """γ as [S, n, C], NaN where not solved: all-class reach is ``by_class(...) > 1e-7``."""
        full = np.full((num_members, num_recipients, self.rival_weights.shape[1]), np.nan)
        full[self.member, self.recipient, self.target] = self.margin
        return full

    def for_node(self, node: int, member: int | None = None) -> tuple[Witness, ...]:
        """The answers about one node, one per solved class and member; print them."""
        chosen = self.node == node
        if member is not None:
            chosen &= self.member == member
        if not chosen.any():
            raise InputError(f"node {node} was not solved; add it to nodes")
        return tuple(self[int(i)] for i in np.flatnonzero(chosen))

    def __getitem__(self, index: int) -> Witness:
        part = slice(self.indptr[index], self.indptr[index + 1])
        return Witness(
            member=int(self.member[index]),
            node=int(self.node[index]),
            target=int(self.target[index]),
            margin=float(self.margin[index]),
            bound=float(self.bound[index]),
            rival_weights=self.rival_weights[index],
            terms=self.terms[part],
            coefficients=self.coefficients[part],
            sources=self.sources[part],
            groups=self.groups[part],
            status=STATUS[int(self.status[index])],
            reason=self.reasons.get(index, ""),
        )

    def check(self, exposure: Exposure) -> Verification:
        """Verify every LP from the exposure alone, without any solver."""
        from gnn_repair.oracle.certificate import verify

        return verify(self, exposure)

    def save(self, path: str | Path) -> None:
        """Write the solution as one safetensors file."""
        header = {
            "skipped": self.skipped,
            "method": self.method,
            "reasons": {str(i): reason for i, reason in self.reasons.items()},
        }
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        save_tensors(path, KIND, header, tensors)

    @classmethod
    def load(cls, path: str | Path) -> OracleSolution:
        """Read what :meth:`save` wrote."""
        header, tensors = load_tensors(path, KIND)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        reasons = {int(i): reason for i, reason in header.pop("reasons").items()}
        return cls(**arrays, **header, reasons=reasons)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{int((self.status == code).sum()):,} {name}"
            for code, name in STATUS.items()
            if (self.status == code).any()
        )
        skipped = f"; {self.skipped:,} without a label skipped" if self.skipped else ""
        reachable = int(self.reachable.sum())
        mean = float(self.support[self.reachable].mean()) if reachable else float("nan")
        share = reachable / len(self) if len(self) else float("nan")
        return (
            f"OracleSolution of {len(self):,} LPs by {self.method}: {counts}{skipped}\n"
            f"  reachable {reachable:,} ({100 * share:.1f} %), {mean:.2f} active terms on average"
            f", largest gap {np.nanmax(self.gap, initial=0.0):.1e}"
        )

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Witness:
    """One LP's answer: who can make the class win, or why nobody can."""

    member: int
    node: int
    target: int
    margin: float
    bound: float
    rival_weights: Floats
    terms: Integers
    coefficients: Floats
    sources: Integers
    groups: Integers
    status: str
    reason: str = ""

    @property
    def reachable(self) -> bool:
        """Whether the class can win."""
        return self.margin > REACHABLE

    def __str__(self) -> str:
        head = f"node {self.node}, class {self.target}"
        if self.status == "failed":
            return f"{head}: no answer ({self.reason})"
        proof = ", ".join(
            f"{100 * w:.1f} % class {r}" for r, w in enumerate(self.rival_weights) if w > 0
        )
        if not self.reachable:
            return (
                f"{head} cannot win: every reweighting loses by at least {abs(self.bound):.4g} "
                f"to the rival mixture {proof}"
            )
        order = np.argsort(-self.coefficients)
        parts = ", ".join(
            f"node {self.sources[i]} (λ {self.coefficients[i]:.4g}"
            + (f", group {self.groups[i]})" if self.groups.any() else ")")
            for i in order
        )
        using = f" using {parts}" if parts else " as it stands"
        limit = f"no reweighting exceeds {self.bound:.4g}"
        return f"{head} can win by {self.margin:.4g}{using}; {limit}"

    __repr__ = __str__
