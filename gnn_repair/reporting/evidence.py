"""What a report shows about one run: every chosen node's terms, witness and predictions.

Gathered once from an exposure, its oracle solution and the fitted repairs, into plain NumPy
arrays that the page, the figures and the tests read alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.oracle.counting import ReachCounts, count_reach
from gnn_repair.oracle.solution import OracleSolution
from gnn_repair.oracle.solve import solve_oracle
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.reporting.corrections import Correction, RepairLike, correction_of
from gnn_repair.reporting.inputs import INTEGERS, check_gathered, check_solution
from gnn_repair.reporting.nouns import noun_of
from gnn_repair.reporting.pooled import PooledGraphs, own_edges, with_nodes
from gnn_repair.reporting.senders import with_senders
from gnn_repair.reporting.surroundings import surroundings, undirected
from gnn_repair.reporting.tail_evidence import TailEvidence, tail_evidence
from gnn_repair.thresholds import ACTIVE, REACHABLE

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Solution = OracleSolution | TailSolution


@dataclass(frozen=True, eq=False)
class Evidence:
    """One member's view of n chosen nodes: errors first, by γ from high to low.

    Sizes: n nodes, N nodes of the graph, G groups, T terms, R table rows, C classes.
    """

    groups: tuple[str, ...]
    nodes: Integers
    """[n]: the graph node."""
    labels: Integers
    """[N]: y, −1 where unknown."""
    predictions: Integers
    """[N]: the frozen model's class."""
    degree: Integers
    """[n]: neighbours, the node itself left out."""
    homophily: Floats
    """[n]: share of labelled neighbours with the node's class; NaN without any."""
    frozen_logits: Floats
    """[n, C]: z⁰."""
    fixed_logits: Floats
    """[n, C]: β; zero with a tail, which knows no such part of logits."""
    segments: Integers
    """[n·G + 1]: terms of node i and group g are ``segments[i·G+g] : segments[i·G+g+1]``."""
    rows: Integers
    """[T]: the table row of a term."""
    coefficients: Floats
    """[T]: α."""
    contributions: Floats
    """[R, C]: ℓ; zero with a tail."""
    sources: Integers
    """[R]: the node that sent it."""
    margin: Floats
    """[n]: γ of the true class; NaN where not solved or not decided. With a tail, the best margin
    that was found."""
    rival_weights: Floats
    """[n, C]: w."""
    witness: Floats
    """[T]: the oracle's λ."""
    corrections: tuple[Correction, ...] = ()
    edges: Integers | None = None
    """[2, E]: each undirected edge once, for drawing; None where the graph is not known."""
    unlabelled: int = 0
    """Chosen nodes that are not shown because their class is unknown."""
    tail: TailEvidence | None = None
    """Verdicts and logits of a model that ends in a nonlinear tail."""
    pooled: PooledGraphs | None = None
    """Where graphs are classified: whose nodes the sources are."""
    senders: tuple[str, ...] = ()
    """Senders of other kinds, such as ``author 3``: their numbers follow the nodes'."""
    origin: str = field(default="", kw_only=True)
    noun: str = field(default="node", kw_only=True)
    """What one recipient is called."""

    @property
    def num_classes(self) -> int:
        """C."""
        return self.frozen_logits.shape[1]

    @property
    def true_class(self) -> Integers:
        """[n]."""
        return self.labels[self.nodes]

    @property
    def right(self) -> NDArray[np.bool_]:
        """[n]: whether the frozen model is right."""
        return self.predictions[self.nodes] == self.true_class

    @property
    def starts(self) -> Integers:
        """[n + 1]: where each node's terms begin."""
        return self.segments[:: len(self.groups)]

    @property
    def support(self) -> Integers:
        """[n]: active terms of the witness."""
        active = np.concatenate([[0], np.cumsum(self.witness > ACTIVE)])
        return active[self.starts[1:]] - active[self.starts[:-1]]

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """[n]: whether the true class can win."""
        return self.margin > REACHABLE

    @property
    def reach(self) -> ReachCounts:
        """What is counted over the chosen nodes; those without an answer are counted nowhere. Of a
        tail the proved ones, out of all."""
        if self.tail is not None:
            everyone = np.ones(len(self.nodes), bool)
            return count_reach(self.tail.proved, ~self.right, self.support, everyone)
        return count_reach(self.reachable, ~self.right, self.support, ~np.isnan(self.margin))


def gather(
    exposure: Exposure,
    y: Tensor,
    nodes: Tensor | None = None,
    *,
    member: int = 0,
    solution: Solution | None = None,
    repairs: Mapping[str, RepairLike] | None = None,
    edge_index: Tensor | None = None,
) -> Evidence:
    """Collect what a report shows.

    Args:
        exposure: the frozen model's final aggregation.
        y: [N] true classes, −1 where unknown (such nodes are not shown).
        nodes: mask [N] or [N, S], node numbers, or None for every recipient.
        member: which member (split) is shown.
        solution: of the true class at these nodes; solved here unless given.
        repairs: by name, fitted repairs or logits [N, C] of one's own method.
        edge_index: [2, E] the graph; without it the sources of the terms stand for neighbours.
    """
    check_gathered(exposure, y, member, repairs, edge_index)
    if bool((exposure.sources < 0).any()):
        raise InputError(
            "the exposure has terms that nobody sent (relaxed masses), and a report shows who sent "
            "what; report the exposure that it was relaxed from"
        )
    exposure, y = exposure.to("cpu"), y.cpu().long()
    if bool((y >= exposure.num_classes).any()):
        raise InputError(f"y holds class {int(y.max())}; classes end at {exposure.num_classes - 1}")
    chosen = chosen_nodes(exposure, nodes, member)
    known = chosen[y[chosen] >= 0]
    if not len(known):
        raise InputError("no labelled node was chosen for the report; check the mask and y")
    if solution is None:
        solution = solve_oracle(exposure.member(member), y, known)
        solved = 0
    else:
        check_solution(solution, exposure)
        solved = member
    margin, weights = _answers(solution, solved, known, y)
    predicted = exposure.frozen_logits[member].argmax(1)
    order = _order(known, y, predicted, margin)
    known, margin, weights = known[order], margin[order.numpy()], weights[order.numpy()]
    part = exposure.restrict(known)
    witness = _witness(solution, solved, exposure, part, y)
    pooled = part.graph_starts is not None
    if pooled:
        edges = own_edges(edge_index, part)
        degree, homophily = np.zeros(len(known), np.int64), np.zeros(len(known))
    else:
        edges = None if edge_index is None else undirected(edge_index)
        degree, homophily = surroundings(part, y, edges)
    used, rows = np.unique(part.rows.numpy(), return_inverse=True)
    fixed, table, tail = _behind(part, member, solution, solved, y, witness)
    evidence = Evidence(
        groups=tuple(group.name for group in exposure.groups),
        nodes=known.numpy(),
        labels=y.numpy(),
        predictions=predicted.numpy(),
        degree=degree,
        homophily=homophily,
        frozen_logits=part.frozen_logits[member, known].numpy(),
        fixed_logits=fixed,
        segments=part.segments.numpy(),
        rows=rows.astype(np.int64),
        coefficients=_of_member(part.coefficients, member).double().numpy(),
        contributions=table[used],
        sources=part.sources.numpy()[used].astype(np.int64),
        margin=margin,
        rival_weights=weights,
        witness=witness,
        corrections=tuple(
            correction_of(name, repair, exposure, part, member)
            for name, repair in (repairs or {}).items()
        ),
        edges=edges,
        unlabelled=len(chosen) - len(known),
        tail=tail,
        origin=exposure.origin,
        noun=noun_of(exposure),
    )
    if pooled:
        return with_nodes(evidence, part)
    return with_senders(evidence, exposure.names) if exposure.names.typed else evidence


def _behind(
    part: Exposure,
    member: int,
    solution: Solution,
    solved: int,
    y: Tensor,
    witness: Floats,
) -> tuple[Floats, Floats, TailEvidence | None]:
    """β [n, C] and ℓ [R, C]; with a tail, zeros and what it shows instead."""
    if part.head is None:
        fixed = part.fixed_logits[member, part.recipients].numpy()
        return fixed, part.contributions[member].numpy(), None
    assert isinstance(solution, TailSolution)
    place = _places(solution, solved, part.num_nodes, y)[part.recipients.numpy()]
    shape = (part.num_recipients, part.num_classes)
    table = np.zeros((len(part.sources), part.num_classes))
    return np.zeros(shape), table, tail_evidence(part, solution, place, witness)


def chosen_nodes(exposure: Exposure, nodes: Tensor | None, member: int) -> Tensor:
    """Node numbers [n] behind a mask, numbers or None."""
    if nodes is None:
        return exposure.recipients.cpu()
    nodes = _as_tensor(nodes).cpu()
    if nodes.dtype != torch.bool:
        return _numbered(exposure, nodes)
    if nodes.dim() == 2:
        if nodes.shape[1] != exposure.num_members:
            raise InputError(
                f"the mask has {nodes.shape[1]} columns for {exposure.num_members} members; "
                "give one column a member, or one mask"
            )
        nodes = nodes[:, member]
    if nodes.dim() != 1 or nodes.shape[0] != exposure.num_nodes:
        raise InputError(
            f"the mask has shape {list(nodes.shape)} instead of [{exposure.num_nodes}]"
        )
    return nodes.nonzero().view(-1)


def _as_tensor(nodes: Any) -> Tensor:
    """Lists and arrays are taken as the oracle takes them."""
    if isinstance(nodes, list | tuple | np.ndarray) and len(nodes):
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            nodes = torch.as_tensor(nodes)
    if not isinstance(nodes, Tensor):
        raise InputError(f"nodes is {nodes!r:.60}; give a mask [N] or node numbers")
    return nodes


def _numbered(exposure: Exposure, nodes: Tensor) -> Tensor:
    """Node numbers that are recipients, each once."""
    if nodes.dtype not in INTEGERS or nodes.dim() != 1:
        raise InputError(
            f"nodes is {nodes.dtype} of shape {list(nodes.shape)}; give a boolean mask or whole "
            "node numbers"
        )
    chosen = torch.unique(nodes.long().view(-1))
    absent = chosen[~torch.isin(chosen, exposure.recipients.cpu())]
    if len(absent):
        raise InputError(f"node {int(absent[0])} is no recipient of the exposure; choose others")
    return chosen


def _of_member(values: Tensor, member: int) -> Tensor:
    return values[member if values.shape[0] > 1 else 0]


def _answers(solution: Solution, member: int, nodes: Tensor, y: Tensor) -> tuple[Floats, Floats]:
    """γ and w of the true class at ``nodes``; NaN and zero where they were not solved."""
    place = _places(solution, member, len(y), y)[nodes.numpy()]
    found = (place >= 0) & solution.decided[np.where(place >= 0, place, 0)]
    margin = np.where(found, solution.margin[np.where(found, place, 0)], np.nan)
    if isinstance(solution, TailSolution):  # its proofs weigh rivals case by case
        return margin, np.zeros((len(nodes), solution.proofs.weights.shape[1]))
    weights = np.where(found[:, None], solution.rival_weights[np.where(found, place, 0)], 0.0)
    return margin, weights


def _places(solution: Solution, member: int, nodes: int, y: Tensor) -> Integers:
    """[N]: the LP of each node's true class, −1 where there is none."""
    if not len(solution):
        raise InputError("the oracle solution is empty; solve it at the nodes of the report")
    ours = (solution.member == member) & (solution.target == y.numpy()[solution.node])
    place = np.full(nodes, -1)
    place[solution.node[ours]] = np.flatnonzero(ours)
    return place


def _order(nodes: Tensor, y: Tensor, predicted: Tensor, margin: Floats) -> Tensor:
    right = (predicted[nodes] == y[nodes]).numpy()
    return torch.from_numpy(np.lexsort((nodes.numpy(), -margin, right)))


def _witness(
    solution: Solution,
    member: int,
    exposure: Exposure,
    part: Exposure,
    y: Tensor,
) -> Floats:
    """[T]: λ on the terms of ``part``, which ``solution`` numbers as ``exposure`` does."""
    place = _places(solution, member, exposure.num_nodes, y)
    witness = np.zeros(part.num_terms)
    theirs = exposure.segments[:: exposure.num_groups].numpy()
    ours = part.segments[:: part.num_groups].numpy()
    for i, node in enumerate(part.recipients.tolist()):
        lp = place[node]
        if lp >= 0:
            entries = slice(solution.indptr[lp], solution.indptr[lp + 1])
            local = solution.terms[entries] - theirs[solution.recipient[lp]] + ours[i]
            witness[local] = solution.coefficients[entries]
    return witness
