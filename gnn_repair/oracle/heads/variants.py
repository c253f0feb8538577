"""Two further questions about a class behind a nonlinear head: which terms it needs, and what the
exact masses cost it.

γ is known up to its verdict only, so instead of ranges of λ near γ the first asks, term by term,
whether the class can still win while the term's message stays unused. A λ that wins without it
answers at once; a term that is all of its group cannot stay unused.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.value import Exposure, Replay
from gnn_repair.oracle.heads.search import on_cpu
from gnn_repair.oracle.heads.solve import solve_head
from gnn_repair.oracle.problems import CAN, CANNOT, UNDECIDED, Floats, Integers
from gnn_repair.oracle.questions.relaxed import merged_groups, old_terms, relax_mixture
from gnn_repair.oracle.rates import Rate
from gnn_repair.oracle.solution import Solution

SHOWN = 6
"""Terms named in a sentence; more would not be read."""
WORD = f"U{max(len(word) for word in (CAN, CANNOT, UNDECIDED))}"
"""NumPy cuts texts to the first one's length unless told."""


@dataclass(frozen=True, eq=False)
class NeededTerms:
    """One node's terms, and whether its class wins without each of them."""

    member: int
    node: int
    target: int
    verdict: str
    """Whether the class can win with all of them."""
    terms: Integers
    """[K]: all terms of the node."""
    sources: Integers
    """[K]."""
    without: NDArray[np.str_]
    """[K]: whether the class can win while this term is unused: ``can``, ``cannot`` (proved, or the
    term is all of its group) or ``undecided``."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def indispensable(self) -> NDArray[np.bool_]:
        """[K]: the class can win, and it is proved that it cannot without the term."""
        return (self.without == CANNOT) & (self.verdict == CAN)

    @property
    def replaceable(self) -> NDArray[np.bool_]:
        """[K]: some λ wins without the term."""
        return np.asarray(self.without == CAN)

    def __str__(self) -> str:
        head = f"{self.names.node(self.node)}, class {self.target}"
        if self.verdict != CAN:
            if self.verdict == CANNOT:
                return f"{head} cannot win, with all of its {len(self.terms)} terms or fewer"
            return f"{head} is undecided, so it is not known which terms it needs"
        needed = self.sources[self.indispensable]
        names = ", ".join(self.names.sender(source) for source in needed[:SHOWN])
        open_ = int((self.without == UNDECIDED).sum())
        return (
            f"{head} can win: {len(needed)} indispensable terms{': ' * bool(len(needed))}{names}; "
            f"{int(self.replaceable.sum())} of {len(self.terms)} can be done without"
            + (f", {open_} undecided" if open_ else "")
        )

    __repr__ = __str__


def needed_terms(
    exposure: Exposure, target: Tensor, nodes: Tensor | None
) -> tuple[NeededTerms, ...]:
    """One answer a node, in the order of :func:`solve_head`."""
    exposure = on_cpu(exposure)
    solution = solve_head(exposure, target, nodes)
    ends = exposure.segments[:: exposure.num_groups].numpy()
    begin, end = ends[solution.recipient], ends[solution.recipient + 1]
    without = [np.full(last - first, CAN, WORD) for first, last in zip(begin, end, strict=True)]
    used = solution.in_use(exposure.mass)
    asked: dict[int, list[tuple[int, int]]] = {}
    for i, node in enumerate(solution.node.tolist()):
        single, shared = _used(exposure, solution, used, i)
        without[i][single - begin[i]] = CANNOT
        asked.setdefault(node, []).extend((i, term) for term in shared.tolist())
    for one_per_node in zip_longest(*asked.values()):
        chosen, dropped = np.array([pair for pair in one_per_node if pair]).T
        answers = _solve_without(exposure, solution, chosen, dropped)
        for i, term, answer in zip(chosen, dropped, answers, strict=True):
            without[i][term - begin[i]] = answer
    rows, sources = exposure.rows.numpy(), exposure.sources.numpy()
    return tuple(
        NeededTerms(
            member=0,
            node=int(solution.named(solution.node[i])),
            target=int(solution.target[i]),
            verdict=str(solution.verdict[i]),
            terms=np.arange(begin[i], end[i]),
            sources=solution.named(sources[rows[begin[i] : end[i]]].astype(np.int64)),
            without=without[i] if solution.verdict[i] == CAN else _same(without[i], solution, i),
            names=solution.names,
        )
        for i in range(len(solution))
    )


def _same(without: NDArray[np.str_], solution: Solution, i: int) -> NDArray[np.str_]:
    """What cannot win with all terms cannot with fewer; of the undecided nothing is known."""
    return np.full(len(without), str(solution.verdict[i]), WORD)


def _used(
    exposure: Exposure, solution: Solution, used: NDArray[np.bool_], i: int
) -> tuple[Integers, Integers]:
    """Terms alone in their group, and others that the λ which wins uses."""
    groups, position = exposure.num_groups, int(solution.recipient[i])
    ends = exposure.segments[position * groups : (position + 1) * groups + 1].numpy()
    single = ends[:-1][np.diff(ends) == 1]
    if solution.verdict[i] != CAN:
        return single, np.empty(0, np.int64)
    part = slice(solution.indptr[i], solution.indptr[i + 1])
    return single, np.setdiff1d(solution.terms[part][used[part]], single)


def _solve_without(
    exposure: Exposure, solution: Solution, chosen: Integers, dropped: Integers
) -> list[str]:
    """The verdicts of the chosen questions (of different nodes) without one term each."""
    groups, nodes = exposure.num_groups, torch.from_numpy(solution.node[chosen])
    part = exposure.restrict(nodes)
    theirs = exposure.segments[::groups].numpy()[solution.recipient[chosen]]
    ours = part.segments[::groups].numpy()[:-1]
    target = torch.full((exposure.num_nodes,), -1)
    target[nodes] = torch.from_numpy(solution.target[chosen])
    rest = without_terms(part, torch.from_numpy(dropped - theirs + ours))
    # None: every recipient, in the order in which they were chosen.
    return [str(word) for word in solve_head(rest, target, None).verdict]


def without_terms(exposure: Exposure, dropped: Tensor) -> Exposure:
    """The exposure whose λ leave some terms unused; each of their groups has others.

    Its frozen coefficients spread a dropped term's share over the rest of its group, in proportion
    to α.
    """
    mixture = exposure.aggregate
    kept = torch.ones(mixture.num_terms, dtype=torch.bool)
    kept[dropped] = False
    count = len(mixture.segments) - 1
    owner = torch.repeat_interleave(torch.arange(count), mixture.segments.diff())[kept]
    alpha = mixture.coefficients[0].double()[kept]
    left = alpha.new_zeros(count).index_add_(0, owner, alpha)
    scaled = alpha * (mixture.mass[0].reshape(-1) / left.clamp(min=1e-300))[owner]
    lengths = torch.bincount(owner, minlength=count)
    rows, frozen = mixture.rows[kept], mixture.fixed_logits.clone()
    to = mixture.recipients[owner // mixture.num_groups]
    sent = scaled.unsqueeze(1) * mixture.contributions[0, rows.long()]
    frozen[0].index_add_(0, to, sent)
    pieces = replace(
        mixture,
        segments=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        rows=rows,
        coefficients=scaled.unsqueeze(0),
        frozen_logits=frozen,
    )
    logits = exposure.frozen_logits.clone()
    assert exposure.head is not None
    logits[0, pieces.recipients] = exposure.head(
        frozen[0, pieces.recipients], pieces.recipients
    ).detach()
    return pieces.with_head(exposure.head, logits, exposure.residual, _replay_kept(exposure, kept))


def _replay_kept(exposure: Exposure, kept: Tensor) -> Replay | None:
    """The model run with λ on the kept terms and nothing on the others."""
    replay = exposure.replay
    if replay is None:
        return None

    def run(coefficients: Tensor) -> Tensor:
        whole = torch.zeros(len(kept), dtype=torch.float64)
        whole[kept] = coefficients.double().cpu()
        return replay(whole.to(coefficients.device))

    return run


@dataclass(frozen=True, eq=False)
class HeadRelaxedMargins:
    """Verdicts, and the margins between which γ lies, as functions of the slack ρ."""

    slack: tuple[float, ...]
    """The ρ tried."""
    between_groups: bool
    """Whether mass could move between groups."""
    member: Integers
    """[L]: always 0."""
    node: Integers
    """[L]."""
    target: Integers
    """[L]."""
    margin: Floats
    """[len(slack), L]: the largest margin found."""
    bound: Floats
    """[len(slack), L]: what it cannot exceed."""
    verdict: NDArray[np.str_]
    """[len(slack), L]."""

    @property
    def reach(self) -> tuple[Rate, ...]:
        """How many classes can win, from proved to not excluded, for each ρ."""
        count = self.verdict.shape[1]
        return tuple(
            Rate(int((row == CAN).sum()), count, int(((row != CAN) & (row != CANNOT)).sum()))
            for row in self.verdict
        )

    def __str__(self) -> str:
        kind = ", mass may move between groups" if self.between_groups else ""
        lines = [f"relaxed masses of {len(self.node):,} questions{kind}:"]
        for rho, rate in zip(self.slack, self.reach, strict=True):
            lines.append(f"  ρ = {rho:g}: reach {rate}")
        return "\n".join(lines)

    __repr__ = __str__


def relaxed_behind_head(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None,
    slack: tuple[float, ...],
    between_groups: bool,
) -> HeadRelaxedMargins:
    """Each ρ's verdicts; a λ that wins at a smaller ρ is admissible at a larger one."""
    solutions = [
        solve_head(relax_head(exposure, rho, between_groups), target, nodes) for rho in slack
    ]
    first = solutions[0]
    margin = np.stack([one.margin for one in solutions])
    bound = np.stack([one.bound for one in solutions])
    verdict = np.stack([one.verdict for one in solutions])
    _carry(np.array(slack), margin, bound, verdict)
    return HeadRelaxedMargins(
        slack, between_groups, first.member, first.node, first.target, margin, bound, verdict
    )


def _carry(slack: Floats, margin: Floats, bound: Floats, verdict: NDArray[np.str_]) -> None:
    """The set of admissible λ grows with ρ: what wins within a part of it wins in the whole, and
    what the whole excludes no part allows."""
    order = np.argsort(slack, kind="stable")
    for less, more in itertools.pairwise(order):
        better = margin[less] > margin[more]
        margin[more] = np.where(better, margin[less], margin[more])
        verdict[more] = np.where((verdict[less] == CAN), CAN, verdict[more])
    for less, more in list(itertools.pairwise(order))[::-1]:
        bound[less] = np.minimum(bound[less], bound[more])
        verdict[less] = np.where(verdict[more] == CANNOT, CANNOT, verdict[less])


def relax_head(exposure: Exposure, slack: float, between_groups: bool = False) -> Exposure:
    """The exposure with a head whose exact-mass problem is the relaxed one of ``exposure``."""
    mixture = merged_groups(exposure.aggregate) if between_groups else exposure.aggregate
    relaxed = relax_mixture(mixture, slack)
    behind, terms = old_terms(mixture, slack), exposure.num_terms
    replay = exposure.replay

    def replay_relaxed(coefficients: Tensor) -> Tensor:
        assert replay is not None
        sent = behind >= 0
        whole = torch.zeros(terms, dtype=torch.float64)
        whole.index_add_(0, behind[sent].cpu(), coefficients.double().cpu()[sent])
        return replay(whole.to(coefficients.device))

    assert exposure.head is not None
    run = replay_relaxed if replay else None
    return relaxed.with_head(exposure.head, exposure.frozen_logits, exposure.residual, run)
