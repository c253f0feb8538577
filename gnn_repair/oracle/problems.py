"""What is asked: an exposure's numbers and a list of questions as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index as integer
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError, kind_of
from gnn_repair.exposure.heads.head import simplify
from gnn_repair.exposure.heads.operations import Affine, HeadGraph, Operation
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import classes_for, nodes_for, require_outputs, truths_for
from gnn_repair.exposure.value import Exposure, Replay

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

OPTIMAL, FALLBACK, FIXED, FAILED, UNCERTIFIED = range(5)
FIRST_STAGE = 5
STATUS = {
    OPTIMAL: "optimal", FALLBACK: "fallback", FIXED: "no terms", FAILED: "failed",
    UNCERTIFIED: "not certified", FIRST_STAGE: "no bound", FIRST_STAGE + 1: "linear relaxation",
    FIRST_STAGE + 2: "witness search", FIRST_STAGE + 3: "best lines", FIRST_STAGE + 4: "cases",
}  # fmt: skip
"""What became of a question. Without a head: optimal; optimal at a second attempt (``reasons`` says
which); nothing to reweight, γ is the frozen margin; no answer (``reasons`` says why); γ lies
between margin and bound, which do not meet. Behind a head, how far it went: no bound is known; one
line per unit; a λ searched for; several rounds of lines; cases by the signs of units."""
EXACT = (OPTIMAL, FALLBACK, FIXED)
"""Where margin and bound are γ."""
CAN, CANNOT, UNDECIDED = "can", "cannot", "undecided"
FLIP = "flip"

# An exposure's numbers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tables:
    """What the LPs of an exposure are made of; nothing is copied where the layout allows."""

    nodes: Integers
    """[n]: the graph node behind each recipient."""
    segments: Integers
    """[n·G + 1]: where the terms of each recipient and group begin."""
    rows: NDArray[np.int32]
    """[T]: the table row of each term."""
    sources: NDArray[np.int32]
    """[R]: the node that sends each row's message."""
    contributions: Floats
    """[S, R, C]: ℓ."""
    mass: Floats
    """[S or 1, n, G]: m."""
    fixed_logits: Floats
    """[S, N, C]: β."""

    @classmethod
    def from_exposure(cls, exposure: Exposure) -> Tables:
        """The tables of an exposure on any device."""
        places = (exposure.recipients, exposure.segments, exposure.rows, exposure.sources)
        numbers = (exposure.contributions, exposure.mass, exposure.fixed_logits)
        return cls(*map(_array, (*places, *numbers)))

    @property
    def num_groups(self) -> int:
        """G."""
        return self.mass.shape[2]

    @property
    def num_classes(self) -> int:
        """C."""
        return self.contributions.shape[2]

    def counts(self, positions: Integers) -> Integers:
        """[L]: K, the number of terms of the recipients at ``positions``."""
        ends = self.segments[:: self.num_groups]
        return ends[positions + 1] - ends[positions]

    def origin(self, positions: Integers, terms: Integers) -> tuple[Integers, Integers]:
        """[k], [k]: the source node and the group of terms of the recipients at ``positions``."""
        groups = np.zeros(len(terms), np.int64)
        for g in range(1, self.num_groups):
            groups += terms >= self.segments[positions * self.num_groups + g]
        return self.sources[self.rows[terms]].astype(np.int64), groups


def select_terms(tables: Tables, position: Integers, owner: Integers, terms: Integers) -> Tables:
    """Tables with a recipient for each of the q positions, on some of its terms.

    Args:
        tables: the exposure's.
        position: [q] recipients, any of them several times.
        owner: [t] ascending, which of the q each term is for.
        terms: [t] terms of the exposure, ascending for each of the q.
    """
    groups = tables.num_groups
    _, group = tables.origin(position[owner], terms)
    lengths = np.bincount(owner * groups + group, minlength=len(position) * groups)
    return replace(
        tables,
        nodes=tables.nodes[position],
        segments=np.append(0, np.cumsum(lengths)),
        rows=tables.rows[terms],
        mass=np.ascontiguousarray(tables.mass[:, position]),
    )


def list_entries(indptr: Integers, chosen: Integers) -> Integers:
    """The places of all entries that the ``chosen`` owners have, indptr[i] : indptr[i+1] each."""
    counts = np.diff(indptr)[chosen]
    shift = indptr[chosen] - np.cumsum(counts) + counts
    entries: Integers = np.repeat(shift, counts) + np.arange(counts.sum())
    return entries


def check_number(value: Any, name: str) -> float:
    """A finite number, or InputError."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number = float(value)
        if np.isfinite(number):
            return number
    raise InputError(f"{name} must be a finite number, not {value!r}")


def whole_number(value: Any, name: str) -> int:
    """A whole number (NumPy's count, truth values do not), or InputError."""
    if not isinstance(value, bool | np.bool_):
        try:
            return integer(value)
        except TypeError:
            pass
    raise InputError(f"{name} must be a whole number, not {value!r}")


def require_exposure(exposure: Any) -> None:
    """Raise InputError unless it is an exposure."""
    if isinstance(exposure, LinkExposure):
        raise InputError("exposure is of links; ask solve, reach, value_range or diagnose about it")
    if not isinstance(exposure, Exposure):
        raise InputError(f"exposure is {kind_of(exposure)}; give what expose(model, data) returns")


def require_no_head(exposure: Any, remedy: str) -> None:
    """Raise InputError unless it is an exposure without a head; ``remedy`` is for one with."""
    require_exposure(exposure)
    if exposure.head is not None:
        raise InputError(f"exposure is that of a model with a nonlinear head; {remedy}")


def _array(tensor: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def describe_exposure(exposure: Exposure) -> dict[str, Any]:
    """What a solution says of its exposure, by the solution's field names."""
    n_id = None if exposure.n_id is None else exposure.n_id.cpu().numpy()
    return {"scope": exposure.scope, "names": exposure.term_names, "n_id": n_id}


# Questions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problems:
    """The questions: one per member, recipient and output."""

    member: Integers
    """[L]."""
    position: Integers
    """[L]: the recipient, as a position in ``exposure.recipients``."""
    target: Integers
    """[L]: the class c, or the output k."""
    skipped: int = 0
    """Selected questions left out because no truth is known, over all members."""
    wanted: NDArray[np.bool_] | None = None
    """[L], of labels and values: whether the output is wanted above the threshold."""

    def __len__(self) -> int:
        return len(self.member)

    def taken(self, chosen: Any) -> Problems:
        """Some of the questions."""
        wanted = None if self.wanted is None else self.wanted[chosen]
        return Problems(
            self.member[chosen], self.position[chosen], self.target[chosen], wanted=wanted
        )


def pose_problems(
    exposure: Exposure, target: Tensor | Literal["all"], nodes: Tensor | None = None
) -> Problems:
    """The questions about classes that ``target`` and ``nodes`` ask, by member, node and class.

    Args:
        exposure: S members, N nodes, n recipients.
        target: [N] a class per node of the graph, −1 where unknown; or ``"all"``.
        nodes: a mask [N] or [N, S] (member s takes column s), node numbers, or None for all.
    """
    require_outputs(exposure, "classes")
    member, position = select_recipients(exposure, nodes)
    classes = exposure.num_classes
    if isinstance(target, str):
        if target != "all":
            raise InputError(f'y must be a tensor of classes or "all", not {target!r}')
        labels = np.tile(np.arange(classes), len(member))
        return Problems(np.repeat(member, classes), np.repeat(position, classes), labels)
    labels = _array(classes_for(exposure, target))[_array(exposure.recipients)[position]]
    known = labels >= 0
    skipped = len(labels) - int(np.count_nonzero(known))
    if skipped == len(labels):
        noun = exposure.names.recipient
        raise InputError(f"none of the {skipped} selected {noun}s has a label; give y for them")
    return Problems(member[known], position[known], labels[known], skipped)


def pose_label_problems(
    exposure: Exposure, y: Any, nodes: Any, outputs: Any, threshold: float
) -> Problems:
    """The questions about labels or values that y asks, by member, node and output.

    Args:
        exposure: S members, N nodes, K outputs.
        y: [N, K] the truth of every output, ``"flip"`` for the other side of what the model says,
            or one truth value for all.
        nodes: a mask [N] or [N, S], node numbers, or None for all.
        outputs: numbers of the outputs asked about, or None for all.
        threshold: what an output that is there exceeds.
    """
    require_outputs(exposure, "labels", "values")
    member, position = select_recipients(exposure, nodes)
    columns = select_outputs(exposure.num_classes, outputs)
    node = _array(exposure.recipients)[position]
    known = np.ones((len(node), len(columns)), bool)
    if isinstance(y, bool):
        wanted = np.full_like(known, y)
    elif isinstance(y, str):
        if y != FLIP:
            raise InputError(f'y is {y!r}; give truths [N, K] or "flip"')
        wanted = ~(_array(exposure.frozen_logits)[member, node][:, columns] > threshold)
    else:
        truths = truths_for(exposure, y).cpu().numpy()[node][:, columns]
        wanted, known = truths == 1, ~np.isnan(truths)
        if not known.any():
            raise InputError(
                f"no truth is known of the {len(node)} selected {exposure.names.recipient}s; give "
                "y for them"
            )
    pair, column = np.nonzero(known)
    skipped = int(known.size - len(pair))
    return Problems(member[pair], position[pair], columns[column], skipped, wanted[pair, column])


def select_outputs(count: int, outputs: Any) -> Integers:
    """The numbers of some outputs of ``count``, ascending, each once."""
    if outputs is None:
        return np.arange(count)
    if isinstance(outputs, torch.Tensor | np.ndarray):
        outputs = outputs.tolist()
    one = outputs if isinstance(outputs, list | tuple | range | set) else [outputs]
    chosen = np.unique([whole_number(number, "an output's number") for number in one])
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= count:
        raise InputError(f"outputs are numbered 0..{count - 1}; {outputs!r:.60} is not among them")
    return chosen.astype(np.int64)


def select_recipients(exposure: Exposure, nodes: Any) -> tuple[Integers, Integers]:
    """Members and recipient positions asked for, member by member."""
    size, members = exposure.num_nodes, exposure.num_members
    recipients = _array(exposure.recipients)
    if getattr(nodes, "ndim", 1) == 2:  # a mask with a column per member
        mask = torch.as_tensor(nodes)
        if mask.dtype != torch.bool or mask.shape != (size, members):
            one = "; pass the column of one split, such as mask[:, 0]" * (mask.shape[0] == size)
            raise InputError(
                f"nodes is {mask.dtype} of shape {list(mask.shape)}; give node numbers, or a "
                f"boolean mask [{size}] or [{size}, {members}]{one}"
            )
        member, chosen = (_array(index) for index in mask.t().nonzero(as_tuple=True))
    else:
        own = recipients if nodes is None else _array(nodes_for(exposure, nodes))
        member, chosen = np.repeat(np.arange(members), len(own)), np.tile(own, members)
    if not len(member):
        noun = exposure.names.recipient
        raise InputError(f"nodes selects no {noun}; give a mask or numbers of at least one")
    place = np.full(size, -1)
    place[recipients] = np.arange(len(recipients))
    position = place[chosen]
    if (position < 0).any():
        node = int(chosen[position < 0][0])
        raise InputError(
            f"{exposure.names.node(node)} is not among the exposure's recipients; leave it out"
        )
    return member, position


# Outputs behind a head as classes -----------------------------------------------------------------


def binarise(exposure: Exposure, output: int, threshold: float | Tensor = 0.0) -> Exposure:
    """The exposure of the two classes (0, z_k − θ), of a model with a head.

    Output k above θ is class 1 winning, and below it class 0.
    """
    frozen = exposure.frozen_logits
    limit = torch.as_tensor(threshold, dtype=torch.float64, device=frozen.device)
    weight = frozen.new_zeros(2, exposure.num_classes)
    weight[1, output] = 1.0
    bias = torch.stack([torch.zeros_like(limit), -limit], -1)
    return append_operations(exposure, Affine((0,), weight, bias))


def append_operations(exposure: Exposure, *operations: Operation) -> Exposure:
    """The exposure of classes whose logits are made of the outputs of its head by further
    operations, which number their values from the outputs on."""
    assert exposure.head is not None
    head, replay, steps = exposure.head, exposure.replay, len(exposure.head.operations)
    last = HeadGraph(exposure.num_classes, operations)
    moved = [replace(one, inputs=tuple(i + steps for i in one.inputs)) for one in operations]
    whole = HeadGraph(head.width, (*head.operations, *moved))
    kept = simplify(whole.operations, whole.widths(), len(whole.operations))
    whole = HeadGraph(head.width, tuple(kept))
    nodes = torch.arange(exposure.num_nodes, device=exposure.frozen_logits.device)
    logits = last(exposure.frozen_logits[0], nodes)
    # The head's own: of what a threshold leaves, the model's rounding may be a large part.
    logits[exposure.recipients] = whole(exposure.aggregate.logits()[0], exposure.recipients)

    def run(coefficients: Tensor) -> Tensor:
        assert replay is not None
        return last(replay(coefficients).double().to(nodes.device), nodes)

    return replace(
        exposure,
        outputs="classes",
        head=whole,
        frozen_logits=logits.unsqueeze(0),
        replay=run if replay else None,
    )


def remap_replay(exposure: Exposure, behind: Tensor) -> Replay | None:
    """The model run with coefficients of other terms; ``behind`` names the exposure's own term of
    each, −1 for none."""
    replay, terms = exposure.replay, exposure.num_terms
    if replay is None:
        return None

    def run(coefficients: Tensor) -> Tensor:
        sent, whole = behind.cpu() >= 0, torch.zeros(terms, dtype=torch.float64)
        whole.index_add_(0, behind.cpu()[sent], coefficients.double().cpu()[sent])
        return replay(whole.to(coefficients.device))

    return run


# One LP -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """One LP as dense arrays, for general solvers and for exact checks."""

    gaps: Floats
    """[K, R]: ℓ_{a,c} − ℓ_{a,r}."""
    fixed: Floats
    """[R]: d_r = β_c − β_r."""
    group: Integers
    """[K]: the group of each term, 0..B−1 over the groups that are present."""
    mass: Floats
    """[B]."""
    terms: Integers
    """[K]: the exposure's terms."""
    rivals: Integers
    """[R]: the classes r ≠ c."""

    def part(self, kept: NDArray[np.bool_]) -> Instance:
        """The LP on some of its terms, at least one of every group."""
        gaps, group, terms = self.gaps[kept], self.group[kept], self.terms[kept]
        return replace(self, gaps=gaps, group=group, terms=terms)

    @property
    def columns(self) -> Floats:
        """[K, R]: D_{a,r} = m_g (ℓ_{a,c} − ℓ_{a,r})."""
        return self.gaps * self.mass[self.group][:, None]

    def best(self, scores: Floats) -> Floats:
        """[B]: the largest of the scores [K] of each group's terms."""
        best = np.full(len(self.mass), -np.inf)
        np.maximum.at(best, self.group, scores)
        return best

    @property
    def masses(self) -> Floats:
        """[B, K]: 1 where a term is of the group."""
        return np.equal.outer(np.arange(len(self.mass)), self.group).astype(np.float64)

    @property
    def scale(self) -> float:
        """The power of two just above the largest |D|."""
        size = float(np.abs(self.columns).max(initial=0.0))
        return float(2.0 ** np.ceil(np.log2(size))) if size > 0 else 1.0


def build_lp(tables: Tables, member: int, position: int, target: int) -> Instance:
    """LP (member, recipient position, class) of an exposure."""
    groups = tables.num_groups
    ends = tables.segments[position * groups : (position + 1) * groups + 1]
    lengths = np.diff(ends)
    present = lengths > 0
    terms = np.arange(ends[0], ends[-1])
    rivals = np.delete(np.arange(tables.num_classes), target)
    table = tables.contributions[member, tables.rows[terms]]
    beta = tables.fixed_logits[member, tables.nodes[position]]
    mass = tables.mass[min(member, len(tables.mass) - 1), position]
    with np.errstate(over="ignore"):  # what overflows is refused by whoever solves it
        gaps, fixed = table[:, target, None] - table[:, rivals], beta[target] - beta[rivals]
    group = np.repeat(np.arange(present.sum()), lengths[present])
    return Instance(gaps, fixed, group, mass[present], terms, rivals)
