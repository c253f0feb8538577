"""What the oracle returns: a verdict, a witness and a proof for every question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError, kind_of
from gnn_repair.exposure.pieces import ONE_KIND, NodeNames, recipient_column
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.notebook import ROWS, html_view
from gnn_repair.oracle.certificate import verify
from gnn_repair.oracle.heads.proof import PREFIX, Proofs
from gnn_repair.oracle.problems import (
    CAN,
    CANNOT,
    EXACT,
    FAILED,
    FIRST_STAGE,
    FIXED,
    OPTIMAL,
    STATUS,
    UNDECIDED,
    Floats,
    Integers,
    Problems,
    Tables,
    list_entries,
    require_exposure,
    whole_number,
)
from gnn_repair.oracle.witness import Witness, about
from gnn_repair.published import ACTIVE, REACHABLE, count_of

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure

PER_QUESTION = ("member", "recipient", "node", "target", "margin", "bound", "status")
"""Arrays that every solution has, with an entry per question."""
SOME = ("rival_weights", "wanted", "links")
"""Arrays with a row per question that only some solutions have."""
PER_TERM = ("terms", "coefficients", "sources", "groups")
"""Arrays with an entry for every term of a support, one support after another."""
KEY = 5
"""Senders that a row of a frame names."""
NOUNS = {"classes": "class", "labels": "label", "values": "value", "links": "link"}


@dataclass(frozen=True, eq=False)
class Solution:
    """Answers to L questions, in flat NumPy arrays ordered by member, node and output.

    A question is whether some admissible reweighting λ brings an output to its wanted side: a class
    above all rivals, a label or a value above (or below) its threshold. λ attains ``margin``, and
    no λ exceeds ``bound``, which a proof shows without a solver. Without a nonlinear head the two
    meet, and ``gap`` is rounding. It is a sequence: ``solution[i]`` is a :class:`Witness`, a slice
    is a solution of fewer questions.
    """

    member: Integers
    """[L]: the member (split) of the exposure."""
    recipient: Integers
    """[L]: position in ``exposure.recipients``."""
    node: Integers
    """[L]: the graph node v (of a link: its number)."""
    target: Integers
    """[L]: the class, label or value asked about."""
    margin: Floats
    """[L]: min_r z_c − z_r at λ, of labels ±(z_k − θ); after a head the best found, of the model
    itself where ``replayed``. NaN where there is no answer."""
    bound: Floats
    """[L]: what no reweighting exceeds; infinite where no bound is known."""
    status: NDArray[np.int8]
    """[L]: key of ``STATUS``: how it was solved, or how far a question behind a head went."""
    indptr: Integers
    """[L + 1]: question i owns entries indptr[i] : indptr[i+1] of the four arrays below."""
    terms: Integers
    """[nnz]: term of the exposure, ascending within a question."""
    coefficients: Floats
    """[nnz]: λ > 0."""
    sources: Integers
    """[nnz]: the node that sent the term's message; −1: nobody, the term adds nothing."""
    groups: Integers
    """[nnz]: the term's group."""
    rival_weights: Any = None
    """[L, C], of classes without a head: w ≥ 0, sums to one, zero at the target. It proves the
    bound w·Δβ + Σ_g m_g max_a Σ_r w_r (ℓ_{a,c} − ℓ_{a,r})."""
    proofs: Any = None
    """Of classes behind a head: the ``Proofs`` of the bounds."""
    parts: tuple[OutputPart, ...] = field(default=(), repr=False)
    """Of labels and values behind a head: the answers about each output as a question about two
    classes, whose proofs prove the bounds here."""
    wanted: Any = None
    """[L] bool, of labels and values: whether the output is wanted above the threshold."""
    outputs: str = "classes"
    """What is asked about: ``classes``, ``labels``, ``values`` or ``links``."""
    threshold: float = 0.0
    """θ, of labels and values: an output above it is there."""
    replayed: bool = False
    """After a head: whether margins were read off the model itself, not off its head in float64."""
    skipped: int = 0
    """Selected questions without a known truth (−1); 0 for a part of a solution."""
    method: str = "simplex"
    """Who solved it: simplex, highs, gurobi, or a closed form."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why question i is a fallback, failed, not certified or undecided."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""
    links: Integers | None = None
    """[L, 2]: the end nodes, where recipients are links."""
    n_id: Integers | None = None
    """[N]: of a sampled subgraph, the graph's number of each node; ``node`` and ``sources`` are the
    exposure's own numbers, witnesses and frames say the graph's."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    # Verdicts ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def gap(self) -> Floats:
        """[L]: bound − margin."""
        return self.bound - self.margin

    @property
    def verdict(self) -> NDArray[np.str_]:
        """[L]: ``can`` (λ shows it, by more than 1e-7), ``cannot`` (the proof shows it) or
        ``undecided``."""
        return self.verdict_at(REACHABLE)

    def verdict_at(self, threshold: float) -> NDArray[np.str_]:
        """[L]: the same for another threshold of the margin."""
        return decide_verdicts(self.margin, self.bound, self.status, threshold)

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[L]: whether some λ is known to bring the output to its wanted side."""
        return np.asarray(self.verdict == CAN)

    @property
    def excluded(self) -> NDArray[np.bool_]:
        """[L]: whether it is proved that no λ does."""
        return np.asarray(self.verdict == CANNOT)

    @property
    def decided(self) -> NDArray[np.bool_]:
        """[L]: whether it is one of the two."""
        return self.decided_at(REACHABLE)

    def decided_at(self, threshold: float) -> NDArray[np.bool_]:
        """[L]: the same for another threshold of the margin."""
        return np.asarray(self.verdict_at(threshold) != UNDECIDED)

    @property
    def value(self) -> Floats:
        """[L], of labels and values: the output under λ."""
        return self.threshold + np.where(self.wanted, self.margin, -self.margin)

    @property
    def owner(self) -> Integers:
        """[nnz]: the question of each support entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    @property
    def num_classes(self) -> int:
        """C, of classes."""
        if self.proofs is not None:
            return self.proofs.weights.shape[1]
        return 0 if self.rival_weights is None else self.rival_weights.shape[1]

    @property
    def support(self) -> Integers:
        """[L]: how many terms are active: λ > 1e-7."""
        return self.active_above(ACTIVE)

    def active_above(self, threshold: float) -> Integers:
        """[L]: the same for another threshold of λ."""
        return np.bincount(self.owner[self.coefficients > threshold], minlength=len(self))

    def in_use(self, mass: Any) -> NDArray[np.bool_]:
        """[nnz]: whether λ is active beside its group's mass, ``mass`` being the exposure's."""
        owner = self.owner
        member = np.minimum(self.member, len(mass) - 1)[owner]
        whole = np.asarray(mass)[member, self.recipient[owner], self.groups]
        return np.asarray(self.coefficients > ACTIVE * whole)

    # Other forms ------------------------------------------------------------------------------

    def dense(self, exposure: Exposure, fill: str = "frozen") -> torch.Tensor:
        """λ as coefficients [S, T], α (or zero) at recipients that were not solved.

        With several questions about a node the last one counts.
        """
        require_exposure(exposure)
        if fill not in ("frozen", "zero"):
            raise InputError(f'fill must be "frozen" or "zero", not {fill!r}')
        alpha = exposure.coefficients.double().cpu().numpy()
        full = np.repeat(alpha, exposure.num_members // len(alpha), axis=0)
        full *= fill == "frozen"
        ends = exposure.segments[:: exposure.num_groups].tolist()
        for i in np.flatnonzero(self.status != FAILED):
            row, place = full[self.member[i]], self.recipient[i]
            part = slice(self.indptr[i], self.indptr[i + 1])
            row[ends[place] : ends[place + 1]] = 0.0
            row[self.terms[part]] = self.coefficients[part]
        return torch.from_numpy(full).to(exposure.coefficients.device)

    def by_class(self, num_members: int, num_recipients: int) -> Floats:
        """The margins as [S, n, C], NaN where not solved: reach is ``by_class(...) > 1e-7``."""
        full = np.full((num_members, num_recipients, self.num_classes), np.nan)
        full[self.member, self.recipient, self.target] = self.margin
        return full

    def for_node(self, node: int, member: int | None = None) -> tuple[Witness, ...]:
        """The answers about one node, one per solved output and member; print them."""
        chosen = self.named(self.node) == whole_number(node, "node")
        where = ""
        if member is not None:
            chosen &= self.member == whole_number(member, "member")
            where = f" by member {member}"
        if not chosen.any():
            raise InputError(f"{self.names.node(node)} was not solved{where}; add it to nodes")
        return tuple(self[int(i)] for i in np.flatnonzero(chosen))

    def named(self, nodes: Any) -> Any:
        """The graph's numbers of the exposure's nodes; −1, nobody, stays."""
        return nodes if self.n_id is None else np.where(nodes < 0, nodes, self.n_id[nodes])

    @overload
    def __getitem__(self, index: int) -> Witness: ...
    @overload
    def __getitem__(self, index: slice) -> Solution: ...
    def __getitem__(self, index: int | slice) -> Witness | Solution:
        if isinstance(index, slice):
            try:
                chosen = np.arange(len(self))[index]
            except (TypeError, ValueError) as error:
                raise InputError(f"a solution cannot be cut by {index}: {error}") from error
            return self.taken(chosen)
        place, count = whole_number(index, "an index of a solution"), len(self)
        if not -count <= place < count:
            raise IndexError(f"question {place} does not exist; there are {count}")
        return self._witness(place % count)

    def subject(self, i: int) -> str:
        """What question i is about, in words."""
        if self.links is not None:
            return f"link {self.links[i, 0]} → {self.links[i, 1]}"
        node = self.names.node(self.named(self.node[i]))
        return f"{node}, {NOUNS[self.outputs]} {self.target[i]}"

    def _witness(self, i: int) -> Witness:
        part = slice(self.indptr[i], self.indptr[i + 1])
        return Witness(
            member=int(self.member[i]),
            subject=self.subject(i),
            node=int(self.named(self.node[i])) if self.links is None else int(self.node[i]),
            target=int(self.target[i]),
            verdict=str(decide_verdicts(self.margin[i], self.bound[i], self.status[i])),
            margin=float(self.margin[i]),
            bound=float(self.bound[i]),
            status=STATUS[int(self.status[i])],
            terms=self.terms[part],
            coefficients=self.coefficients[part],
            sources=self.named(self.sources[part]),
            groups=self.groups[part],
            rival_weights=None if self.rival_weights is None else self.rival_weights[i],
            cases=0 if self.proofs is None else int(np.diff(self.proofs.indptr)[i]),
            wanted=None if self.wanted is None else bool(self.wanted[i]),
            reason=self.reasons.get(i, ""),
            **{name: getattr(self, name) for name in ("replayed", "threshold", "scope", "names")},
        )

    def taken(self, chosen: Integers) -> Solution:
        """The questions with the given numbers, in that order."""
        indptr = np.append(0, np.cumsum(np.diff(self.indptr)[chosen]))
        entries = list_entries(self.indptr, chosen)
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in PER_QUESTION}
        for name in SOME:
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)[chosen]
        arrays |= {name: getattr(self, name)[entries] for name in PER_TERM}
        reasons = {k: self.reasons[i] for k, i in enumerate(chosen.tolist()) if i in self.reasons}
        return replace(
            self,
            **arrays,
            indptr=indptr,
            proofs=None if self.proofs is None else self.proofs.take(chosen),
            reasons=reasons,
            skipped=self.skipped if len(chosen) == len(self) else 0,
        )

    @staticmethod
    def concatenate(parts: Sequence[Solution]) -> Solution:
        """One solution after another; what proves bounds behind a head is left out."""
        held = [name for name in SOME if getattr(parts[0], name) is not None]
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*PER_QUESTION, *held, *PER_TERM)
        }
        counts = np.concatenate([np.diff(part.indptr) for part in parts])
        reasons, offset = dict[int, str](), 0
        for part in parts:
            reasons |= {offset + i: reason for i, reason in part.reasons.items()}
            offset += len(part)
        indptr = np.append(0, np.cumsum(counts))
        return replace(parts[0], **arrays, indptr=indptr, reasons=reasons, proofs=None, skipped=0)

    def check(self, exposure: Any) -> Any:
        """Verify every λ and every bound from the exposure alone, without any solver.

        Returns:
            A :class:`Verification`, of classes behind a head a ``HeadVerification``: true where
            everything holds; printed, what was found.
        """
        return verify(self, exposure)

    # Files and frames -------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the solution as one safetensors file."""
        header, tensors = to_file(self)
        save_tensors(path, KIND, header, tensors)

    @classmethod
    def load(cls, path: str | Path) -> Solution:
        """Read what :meth:`save` wrote; everything that can be checked without the exposure is."""
        header, tensors = load_tensors(path, KIND, formerly=EARLIER)
        with contents_of(path):
            return from_file(header, tensors)

    def to_frame(self, exposure: Any = None) -> pd.DataFrame:
        """One row per question, in words and numbers that survive a CSV file.

        ``support`` counts the active terms, ``key_messages`` names their senders. With the exposure
        also what the frozen model has: ``predicted`` and ``frozen_margin``, the margin at α.
        """
        import pandas as pd

        columns = {
            **self.subjects(),
            **({} if exposure is None else self.frozen(exposure)),
            "verdict": self.verdict,
            "margin": self.margin,
            "bound": self.bound,
        }
        if self.wanted is not None:
            columns |= {"wanted": self.wanted, "value": self.value}
        columns["status"] = [STATUS[code] for code in self.status.tolist()]
        columns["support"] = self.support
        columns["key_messages"] = self.key_messages()
        return pd.DataFrame(columns)

    def subjects(self) -> dict[str, Any]:
        """What the questions are about, as columns of a frame."""
        if self.links is not None:
            ends = {"source": self.links[:, 0], "target": self.links[:, 1]}
            return {"member": self.member, "link": self.node, **ends}
        output = "output" if self.outputs == "values" else NOUNS[self.outputs]
        nodes = self.named(self.node)
        return {"member": self.member, recipient_column(self.names): nodes, output: self.target}

    def frozen(self, exposure: Any) -> dict[str, Any]:
        """What is predicted without reweighting (of labels: whether it is there), and the margin
        there, as columns of a frame."""
        nodes = exposure if self.links is None else exposure.mixture
        if self.recipient.max(initial=-1) >= nodes.num_recipients:
            raise InputError("the solution is of another exposure; pass the one that was solved")
        logits = nodes.frozen_logits[:, nodes.recipients].cpu().numpy()[self.member, self.recipient]
        at = np.arange(len(self)), self.target
        asked = logits[at]
        if self.wanted is not None:
            above = asked - self.threshold
            predicted = asked if self.outputs == "values" else asked > self.threshold
            return {"predicted": predicted, "frozen_margin": np.where(self.wanted, above, -above)}
        predicted = logits.argmax(1)
        logits[at] = -np.inf
        return {"predicted": predicted, "frozen_margin": asked - logits.max(1, initial=-np.inf)}

    def key_messages(self) -> list[str]:
        """[L]: who is listened to, the largest λ first; one sender's terms (of several heads, say)
        are one message."""
        rows = []
        for start, end in pairwise(self.indptr.tolist()):
            who, place = np.unique(self.named(self.sources[start:end]), return_inverse=True)
            total = np.bincount(place, self.coefficients[start:end], len(who))
            order = [i for i in np.argsort(-total, kind="stable") if total[i] > ACTIVE]
            words = ", ".join(
                f"{self.names.sender(who[i])} (λ {total[i]:.4g})" for i in order[:KEY]
            )
            rows.append(words + (f" and {len(order) - KEY} more" if len(order) > KEY else ""))
        return rows

    def _repr_html_(self) -> str:
        return html_view(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        verdict, support = self.verdict, self.support
        counts = [int((verdict == word).sum()) for word in (CAN, CANNOT, UNDECIDED)]
        skipped = f"; {self.skipped:,} without a label skipped" if self.skipped else ""
        lines = [
            f"Solution of {count_of(len(self), 'question')} about {self.outputs}: {counts[0]:,} "
            f"can, {counts[1]:,} cannot, {counts[2]:,} undecided{skipped}"
        ]
        if self.proofs is not None or self.parts:
            proofs = [part.solution.proofs for part in self.parts] or [self.proofs]
            where = "the model" if self.replayed else "its head"
            cases = sum(proof.count for proof in proofs)
            lines.append(f"  every λ was run through {where}; {cases:,} cases prove the bounds")
        else:
            solved = ", ".join(
                f"{int((self.status == code).sum()):,} {word}"
                for code, word in STATUS.items()
                if (self.status == code).any()
            )
            mean = float(support[verdict == CAN].mean()) if counts[0] else 0.0
            active = f"{mean:.2f} messages used on average, " if counts[0] else ""
            gap = f"largest gap {np.nanmax(self.gap, initial=0.0):.1e}"
            lines.append(f"  by {self.method}: {solved or 'none'}; {active}{gap}")
        return "\n".join(lines) + about(self.scope)

    __repr__ = __str__


def build_solution(
    tables: Tables, asked: Problems, counts: Any, terms: Integers, **fields: Any
) -> Solution:
    """The answers to all that was asked; supports have ``counts`` [L] terms, one after another."""
    sources, groups = tables.origin(np.repeat(asked.position, counts), terms)
    return Solution(
        member=asked.member,
        recipient=asked.position,
        node=tables.nodes[asked.position],
        target=asked.target,
        indptr=np.append(0, np.cumsum(counts)),
        terms=terms,
        sources=sources,
        groups=groups,
        wanted=asked.wanted,
        skipped=asked.skipped,
        **fields,
    )


def replace_answers(solution: Solution, places: Integers, others: Solution) -> Solution:
    """The same with the answers at ``places`` replaced."""
    chosen = np.arange(len(solution))
    chosen[places] = len(chosen) + np.arange(len(places))
    return Solution.concatenate([solution, others]).taken(chosen)


def decide_verdicts(
    margin: Any, bound: Any, status: Any, threshold: float = REACHABLE
) -> NDArray[np.str_]:
    """Of answers, whatever they are about."""
    wins = margin > threshold
    # An optimum that is certified is γ itself, so what does not win cannot.
    lost = np.where(np.isin(status, EXACT), ~wins, bound <= threshold)
    known = (wins != lost) & (status != FAILED) & ~np.isnan(margin)
    return np.where(known, np.where(wins, CAN, CANNOT), UNDECIDED)


@dataclass(frozen=True, eq=False)
class OutputPart:
    """The answers about one output behind a head, as a question about the classes (0, z_k − θ)."""

    output: int
    threshold: float | Tensor
    """θ, or one for every node, [N]."""
    solution: Solution


def require_class_answers(solution: Any, *exposures: Any) -> None:
    """Raise InputError unless it holds answers about classes, of the exposure if one is given."""
    if not isinstance(solution, Solution):
        raise InputError(f"solution is {kind_of(solution)}; give what solve returns")
    if solution.outputs != "classes":
        raise InputError(f"solution is about {solution.outputs}, and this is about classes")
    for exposure in exposures:
        require_exposure(exposure)
        terms, nodes = solution.terms.max(initial=-1), solution.node.max(initial=-1)
        if terms >= exposure.num_terms or nodes >= exposure.num_nodes:
            raise InputError("the solution is of another exposure; pass the one that was solved")


def write_frame(frame: pd.DataFrame, csv: str | Path | None) -> pd.DataFrame:
    """The frame itself, once it stands in the file."""
    if csv is not None:
        with replacing(check_target(csv)) as temporary:
            frame.to_csv(temporary, index=False)
    return frame


# Files --------------------------------------------------------------------------------------------

KIND = "gnn-repair solution"
HEADER = {
    "outputs": str, "threshold": float, "replayed": bool, "skipped": int, "method": str,
    "reasons": dict, "scope": str, "names": dict | None,
}  # fmt: skip
METHODS = ("simplex", "highs", "gurobi", "closed form")
"""gurobi: in files of version 0.2."""
EARLIER = tuple(f"gnn-repair {kind} solution" for kind in ("oracle", "tail", "label"))
"""Kinds of file that version 0.2 wrote."""
ARRAYS: dict[str, Any] = {
    **dict.fromkeys(("member", "recipient", "node", "target", "indptr"), np.int64),
    **dict.fromkeys(("terms", "sources", "groups", "links", "n_id"), np.int64),
    **dict.fromkeys(("margin", "bound", "coefficients", "rival_weights"), np.float64),
    "status": np.int8,
    "wanted": np.bool_,
}
"""Every array but those of proofs, and its type."""
OPTIONAL = (*SOME, "n_id")
LARGEST = 1e300
"""No threshold is larger: sums with it stay finite."""
WHOLE = 1e-6
"""How far Σ w may be from one: the coarsest tolerance among the solvers."""

Arrays = Mapping[str, NDArray[Any]]


def to_file(solution: Solution) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The words and arrays of a file; what could not be read back is rejected at once."""
    if solution.parts:
        raise InputError(
            "answers about labels or values behind a head hold a proof per output; save each of "
            ".parts (of a range: .lower.parts and .upper.parts) with part.solution.save(path)"
        )
    header = {name: getattr(solution, name) for name in HEADER}
    header |= {"threshold": float(solution.threshold), "skipped": int(solution.skipped)}
    header["reasons"] = {str(i): reason for i, reason in solution.reasons.items()}
    header["names"] = solution.names.header() if solution.names.typed else None
    arrays = {n: getattr(solution, n) for n in ARRAYS if getattr(solution, n) is not None}
    if solution.proofs is not None:
        arrays |= solution.proofs.arrays()
    tensors = {n: torch.from_numpy(np.ascontiguousarray(array)) for n, array in arrays.items()}
    from_file(header, tensors)
    return header, tensors


def _upgraded(
    header: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What version 0.2 wrote, in today's words."""
    noun = header.get("noun", "class")
    called = {noun: outputs for outputs, noun in NOUNS.items()}
    _require(noun in called, f"its outputs are called {str(noun)[:40]!r}")
    defaults = {
        "threshold": 0.0,
        "replayed": False,
        "method": "simplex",
        "reasons": {},
        "scope": "",
    }
    header = {**defaults, "names": None, **header, "outputs": called[noun]}
    header.pop("noun", None)
    tensors = dict(tensors)
    if noun != "class" and "indptr" in tensors:  # closed forms, or nothing to reweight
        header["method"] = "closed form"
        some = tensors["indptr"].diff() > 0
        tensors["status"] = torch.where(some, OPTIMAL, FIXED).to(torch.int8)
    if "verdict" in tensors and "status" in tensors:  # behind a head; margin and bound say it
        del tensors["verdict"]
        tensors["status"] = tensors["status"] + FIRST_STAGE
    return header, tensors


def from_file(header: dict[str, Any], tensors: dict[str, Tensor]) -> Solution:
    """The solution of a file's words and arrays, once all of it holds."""
    if "outputs" not in header:
        header, tensors = _upgraded(header, tensors)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    proofs = {name: arrays.pop(name) for name in list(arrays) if name.startswith(PREFIX)}
    _check_types(arrays)
    words = _words(header, len(arrays["margin"]))
    _check_shapes(arrays, words["outputs"], bool(proofs))
    _check_numbers(arrays)
    _check_answers(arrays)
    if not proofs:
        return Solution(**arrays, **words)
    try:
        kept = Proofs.from_arrays(proofs)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a piece of its proofs is missing or another: {error}") from error
    _require(kept.fits(len(arrays["margin"])), "its proofs do not fit its answers")
    return Solution(**arrays, **words, proofs=kept)


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise InputError(message)


def _check_types(arrays: Arrays) -> None:
    names = sorted((ARRAYS.keys() - set(OPTIONAL)) - arrays.keys() | arrays.keys() - ARRAYS.keys())
    _require(not names, f"{', '.join(names)[:80]} is missing or no array of a solution")
    for name, array in arrays.items():
        dtype, kind = array.dtype, ARRAYS[name]
        _require(dtype == kind, f"{name} holds {dtype} instead of {kind.__name__}")
        dims = 2 if name in ("rival_weights", "links") else 1
        _require(array.ndim == dims, f"{name} has {array.ndim} axes instead of {dims}")


def _check_shapes(arrays: Arrays, outputs: str, proved: bool) -> None:
    """L answers, C ≥ 2 classes, and supports that lie one after another."""
    count, terms, indptr = len(arrays["member"]), len(arrays["terms"]), arrays["indptr"]
    for name in (*PER_QUESTION, *(name for name in SOME if name in arrays)):
        _require(len(arrays[name]) == count, f"{name} has {len(arrays[name])} answers, not {count}")
    whole = len(indptr) == count + 1 and indptr[0] == 0 and indptr[-1] == terms
    rising = whole and (np.diff(indptr) >= 0).all()
    _require(rising, "indptr must rise from 0 to the number of entries")
    for name in PER_TERM:
        _require(len(arrays[name]) == terms, f"{name} has {len(arrays[name])} entries, not {terms}")
    stages = (arrays["status"] >= FIRST_STAGE).any()
    _require(proved or not stages, "status holds numbers that mean nothing without a head")
    mixed = "rival_weights" in arrays
    if outputs == "classes":
        _require(mixed != proved, "answers about classes need rival_weights or proofs")
        _require("wanted" not in arrays, "wanted is of labels, and these are classes")
        classes = arrays["rival_weights"].shape[1] if mixed else 2
        _require(classes >= 2, f"a solution needs at least two classes, not {classes}")
    else:
        _require("wanted" in arrays, "wanted is missing or no array of a solution")
        _require(not (mixed or proved), "answers about labels have no rivals")
    linked = "links" in arrays
    _require(linked == (outputs == "links"), "links is missing, or these are no links")
    if linked:
        shape = arrays["links"].shape
        _require(shape == (count, 2), f"links has shape {list(shape)}")
        _require((arrays["links"] >= 0).all(), "links holds negative numbers")


def _check_numbers(arrays: Arrays) -> None:
    """Places are nonnegative (a source may be nobody, −1), terms ascend within a question."""
    for name in ("member", "recipient", "node", "target", "terms", "groups"):
        _require((arrays[name] >= 0).all(), f"{name} holds negative numbers")
    _require((arrays["sources"] >= -1).all(), "sources holds numbers below -1")
    if "n_id" in arrays:
        most = max(arrays["node"].max(initial=-1), arrays["sources"].max(initial=-1))
        _require(most < len(arrays["n_id"]), f"n_id does not name node {most}")
        _require((arrays["n_id"] >= 0).all(), "n_id holds negative numbers")
    terms, starts = arrays["terms"], arrays["indptr"][1:-1]
    rises = np.diff(terms) > 0
    inner = starts[(starts > 0) & (starts < len(terms))]
    rises[inner - 1] = True  # another question begins
    _require(rises.all(), "terms must ascend within a question")


def _check_answers(arrays: Arrays) -> None:
    """λ > 0; where an optimum is claimed, its numbers are finite and w is a mixture of rivals."""
    share, status = arrays["coefficients"], arrays["status"]
    _require((np.isfinite(share) & (share > 0)).all(), "coefficients must be positive and finite")
    _require(np.isin(status, [*STATUS]).all(), "status holds numbers that mean nothing")
    failed, claimed = status == FAILED, np.isin(status, EXACT)
    margin, bound = arrays["margin"], arrays["bound"]
    _require(np.isnan(margin[failed]).all(), "a question without an answer has a margin")
    _require(np.isfinite(margin[~failed]).all(), "margin holds NaN or infinite values")
    _require(np.isfinite(bound[claimed]).all(), "bound holds NaN or infinite values")
    _require(not np.isnan(bound[~failed]).any(), "bound holds NaN")
    if "rival_weights" in arrays:
        weights = arrays["rival_weights"]
        _require(np.isfinite(weights).all() and (weights >= 0).all(), "rival_weights must be ≥ 0")
        classes = weights.shape[1]
        _require((arrays["target"] < classes).all(), f"target must lie in 0..{classes - 1}")
        own = weights[np.arange(len(weights)), arrays["target"]]
        _require((own == 0).all(), "rival_weights must be zero at the target")
        mixed = np.abs(weights[claimed].sum(1) - 1) <= WHOLE
        _require(mixed.all(), "rival_weights must sum to one")


def _words(header: dict[str, Any], count: int) -> dict[str, Any]:
    check_fields(header, HEADER, "header")
    _require(header["skipped"] >= 0, f"skipped is {header['skipped']}")
    _require(header["method"] in METHODS, f"method {header['method'][:80]!r} is unknown")
    _require(header["outputs"] in NOUNS, f"its outputs are called {header['outputs'][:40]!r}")
    # JSON's whole numbers have no end, and are read as real ones.
    _require(abs(header["threshold"]) <= LARGEST, f"threshold is beyond {LARGEST}")
    questions = {str(i): i for i in range(count)}
    for key, text in header["reasons"].items():
        fits = key in questions and type(text) is str
        _require(fits, f"reason {key[:80]!r} belongs to no question")
    reasons = {questions[key]: text for key, text in header["reasons"].items()}
    names = NodeNames.of_header(header["names"])
    return {**header, "threshold": float(header["threshold"]), "reasons": reasons, "names": names}
