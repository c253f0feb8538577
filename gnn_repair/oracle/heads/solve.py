"""From an exposure with a nonlinear head to its verdicts: stages, cheapest first; only what is
open goes on. A λ that wins is searched for along the oracle's LP about the head's first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.checks import require_derivatives
from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.kernel_cache import working_seconds
from gnn_repair.oracle.heads.bound import Region, bare_region, base_of, free_terms, region_of
from gnn_repair.oracle.heads.branch import (
    BATCH,
    Leaf,
    Tree,
    bound_leaves,
    dense_shares,
    first_relaxation,
    flat_slopes,
    game_of,
    grow,
    inner_slopes,
    mix_dense,
    play,
    worst,
)
from gnn_repair.oracle.heads.proof import PRECISION, ProofCase, Proofs, proved_bounds
from gnn_repair.oracle.problems import (
    FIRST_STAGE,
    Floats,
    Integers,
    describe_exposure,
    pose_problems,
)
from gnn_repair.oracle.solution import Solution
from gnn_repair.published import REACHABLE

# The search for a λ -------------------------------------------------------------------------------

STEPS = (1.0, 0.5, 0.25, 0.1, 0.03)
"""Shares of a step that are tried."""
TOGETHER = 2048
"""Points times classes up to which derivatives come from one pass: calls cost more than numbers."""
SHRINK = 0.3
"""How much shorter the next step is where none of them helped."""


@dataclass(eq=False)
class Search:
    """The best λ found so far for each of B LPs, by places of their region."""

    region: Region
    target: Integers
    shares: Floats
    """[places]: λ."""
    x: Tensor
    """[B, D]."""
    margin: Tensor
    """[B]: of the lowered head."""

    @classmethod
    def start(cls, region: Region, target: Integers, frozen: Floats) -> Search:
        """Begin at the frozen coefficients α [T]."""
        shares = frozen[region.places()[1]]
        x = mix_dense(region, shares)
        margin = worst(region.base.graph(x, region.nodes), torch.from_numpy(target))
        return cls(region, target, shares, x, margin)

    def offer(self, x: Tensor, shares: Floats) -> None:
        """Take λ where its margin is larger."""
        outputs = self.region.base.graph(x, self.region.nodes)
        margin = worst(outputs, torch.from_numpy(self.target))
        take = margin > self.margin
        self.margin = torch.where(take, margin, self.margin)
        self.x = torch.where(take.unsqueeze(1), x, self.x)
        owner = np.repeat(take.numpy(), np.diff(self.region.begins))
        self.shares = np.where(owner, shares, self.shares)

    def offer_shares(self, shares: Floats) -> None:
        """The same for λ [places] alone."""
        self.offer(mix_dense(self.region, shares), shares)

    def vertices(self) -> None:
        """Try every vertex; with several groups, every term of each against the present rest."""
        region = self.region
        owner, _, own = region.places()
        corners = region.corners()[0]
        for group in range(region.mass.shape[1]):
            places = np.flatnonzero(own == group)
            if not len(places):
                continue
            rows, shares, best = owner[places], self.shares.copy(), self.x.clone()
            shares[places] = 0.0
            points = mix_dense(region, shares).numpy()[rows] + corners[places]
            nodes = region.nodes[torch.from_numpy(rows)]
            outputs = region.base.graph(torch.from_numpy(points), nodes)
            margins = worst(outputs, torch.from_numpy(self.target[rows])).numpy()
            order = np.lexsort((margins, rows))
            last = order[np.flatnonzero(np.diff(rows[order], append=-1))]
            shares[places[last]] = region.mass[rows[last], group]
            best[torch.from_numpy(rows[last])] = torch.from_numpy(points[last])
            self.offer(best, shares)

    def ascend(self, rounds: int) -> None:
        """Steps along the LP of the head linearised where one stands, never downhill."""
        reach = torch.ones(len(self.region), dtype=torch.float64)
        for _ in range(rounds):
            before = self.margin.clone()
            x, shares = self._step(reach)
            old_x, old_shares = self.x.clone(), self.shares.copy()
            owner = np.repeat(reach.numpy(), np.diff(self.region.begins))
            for step in STEPS:
                part = step * reach.unsqueeze(1)
                self.offer(
                    old_x + part * (x - old_x), old_shares + step * owner * (shares - old_shares)
                )
            reach = torch.where(self.margin > before, reach, reach * SHRINK)

    def _step(self, reach: Tensor) -> tuple[Tensor, Floats]:
        """Where the linearised head is best within a share ``reach`` of the way to any λ."""
        region = self.region
        outputs, jacobian = jacobian_at(region, self.x)
        rows, target = torch.arange(len(region)), torch.from_numpy(self.target)
        keep = torch.ones_like(outputs, dtype=torch.bool)
        keep[rows, target] = False
        count, rivals = len(region), outputs.shape[1] - 1
        slopes = jacobian[rows, target].unsqueeze(1) - jacobian
        functions = slopes[keep].view(count, rivals, -1) * reach[:, None, None]
        gaps = (outputs[rows, target].unsqueeze(1) - outputs)[keep].view(count, rivals)
        constant = gaps - (functions @ self.x.unsqueeze(2)).squeeze(2)
        bare = functions.new_empty(count, rivals, region.lifts.shape[1])
        piece = play(region, game_of(region, functions.contiguous(), bare, constant))
        shares = dense_shares(region, piece)
        return mix_dense(region, shares), shares


def jacobian_at(region: Region, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, C] and their derivatives [B, C, D] by x."""
    classes = region.base.num_classes
    if len(x) * classes <= TOGETHER:  # by one pass, each point standing once for every class
        point = x.detach().repeat_interleave(classes, dim=0).requires_grad_(True)
        with torch.enable_grad():
            outputs = region.base.graph(point, region.nodes.repeat_interleave(classes))
            diagonal = outputs.view(len(x), classes, classes).diagonal(dim1=1, dim2=2)
            return diagonal.detach(), derivative(diagonal.sum(), point).view(len(x), classes, -1)
    point = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        outputs = region.base.graph(point, region.nodes)
        rows = [derivative(outputs[:, c].sum(), point) for c in range(classes)]
    return outputs.detach(), torch.stack(rows, dim=1)


def derivative(value: Tensor, point: Tensor) -> Tensor:
    """By the point it is worked out at; zero where a head only chooses, as by argmax."""
    require_derivatives()
    if not value.requires_grad:
        return torch.zeros_like(point)
    return torch.autograd.grad(value, point, retain_graph=True)[0]


def replay_margins(
    exposure: Exposure, position: Integers, target: Integers, shares: Sequence[Floats]
) -> Floats:
    """[L]: the margin of ``target`` at recipient ``position`` with λ = shares[i] on its terms.

    The model runs as often as a recipient stands in ``position``; without a model its head is
    evaluated instead.
    """
    aggregate = exposure.aggregate
    ends = aggregate.segments[:: aggregate.num_groups].cpu().numpy()
    alpha = aggregate.coefficients[0].double().cpu().numpy()
    margins, left = np.empty(len(position)), np.arange(len(position))
    while len(left):  # one run for the first question of every recipient, and so on
        _, first = np.unique(position[left], return_index=True)
        chosen, left = left[first], np.delete(left, first)
        full = alpha.copy()
        for i in chosen:
            full[ends[position[i]] : ends[position[i] + 1]] = shares[i]
        logits = model_logits(exposure, torch.from_numpy(full))
        rows = logits[torch.from_numpy(position[chosen])]
        margins[chosen] = worst(rows, torch.from_numpy(target[chosen])).numpy()
    return margins


def model_logits(exposure: Exposure, coefficients: Tensor) -> Tensor:
    """z(λ) at the recipients, [n, C] float64: the model's own, or its head's without a model."""
    if exposure.replay is None:
        return exposure.logits(coefficients.unsqueeze(0))[0].cpu()
    with torch.no_grad():
        logits = exposure.replay(coefficients).detach().double().cpu()
    expected = (exposure.num_nodes, exposure.frozen_logits.shape[2])
    if logits.shape != expected:
        raise InputError(
            f"replay returned logits of shape {list(logits.shape)} instead of {list(expected)}; "
            "expose the model again"
        )
    return logits[exposure.recipients.cpu()]


def to_cpu(exposure: Exposure) -> Exposure:
    """The exposure where its bounds are computed; its replay runs wherever the model is."""
    if exposure.recipients.device.type == "cpu":
        return exposure
    return exposure.to("cpu")


# Stages -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EffortLimit:
    """Cases and seconds, whichever ends first."""

    leaves: int
    """Cases a question may be split into; 1 splits none."""
    seconds: float | None = None
    """Processor time for each question that one linear bound leaves open, shared by all of them;
    None: no limit."""


Effort = str | float | EffortLimit
NAMED = {
    "fast": EffortLimit(1, 0.1),
    "normal": EffortLimit(1000, 0.5),
    "full": EffortLimit(50_000, 60.0),
}
"""A case takes about a quarter of a millisecond (64 units after one layer): a question that is
never decided costs a quarter of a second with ``normal``. Cases of a long head, such as an LSTM's,
take a hundred times as long; the time ends them, and nobody waits for hours."""
MOST = 1_000_000
"""Cases at most where only time counts, so that memory stays bounded."""


def budget_of(effort: Effort) -> EffortLimit:
    """The budget that a word or a number of seconds stands for."""
    if isinstance(effort, EffortLimit):
        return effort
    if isinstance(effort, str) and effort in NAMED:
        return NAMED[effort]
    if isinstance(effort, int | float) and not isinstance(effort, bool) and effort >= 0:
        return EffortLimit(MOST, float(effort))
    words = ", ".join(f'"{name}"' for name in NAMED)
    raise InputError(f"effort must be one of {words} or seconds per question, not {effort!r}")


CHUNK = 512
"""Questions relaxed together: their numbers stay in the second-level cache."""
FEW_CURVED = 8
"""Curved operations up to which so many are relaxed together; of longer heads, such as an LSTM's,
fewer, so that a time limit ends them soon."""
ASCENT = 8
"""Steps of the search for a λ; most wins are found in the first three."""
FIRST_STEPS = 2
"""Of these, steps that stage 1 takes already: they cost less than a general solver's one LP."""
LONGER = 30
"""Steps where the model did not confirm a win that its head has: a larger margin is looked for."""
ROUNDS = 4
"""Rounds of lines; the relaxation settles in two or three."""


class Questions:
    """L questions on their way: what is known of each."""

    def __init__(
        self, exposure: Exposure, position: Integers, target: Integers, budget: EffortLimit
    ) -> None:
        self.exposure, self.budget, self.base = exposure, budget, base_of(exposure, position)
        self.frozen = np.ascontiguousarray(exposure.coefficients[0].double().cpu().numpy())
        """[T]: α."""
        self.position, self.target, count = position, target, len(position)
        self.low, self.high = np.ones((2, count))
        """[L]: the smallest and the largest σ that the lowered margin may have to be divided by; 1
        where there is none."""
        self.raw, self.margin = np.full(count, np.inf), np.full(count, -np.inf)
        """[L]: the bound of the lowered margin, and the margin at the best λ."""
        self.shares, self.cases = [np.empty(0)] * count, [list[Leaf]() for _ in range(count)]
        """That λ [K] of each, and what proves its bound."""
        self.confirmed, self.kept = np.full(count, -np.inf), [np.empty(0)] * count
        """[L]: the largest margin of the model itself, and its λ."""
        self.stage, self.late = np.zeros(count, np.int8), np.zeros(count, bool)
        """[L]: how far each went, and whether its time ran out."""

    def __len__(self) -> int:
        return len(self.position)

    @property
    def threshold(self) -> Floats:
        """[L]: a lowered margin at or below this is none of the model's above REACHABLE."""
        return REACHABLE * self.low

    @property
    def win(self) -> Floats:
        """[L]: a lowered margin above this is one of the model's above REACHABLE."""
        spread = self.base.num_classes if self.base.lowered.squashed else 1
        return REACHABLE * self.high * spread

    def open(self) -> NDArray[np.bool_]:
        """[L]: neither excluded nor won in the head."""
        return (self.raw > self.threshold) & (self.margin <= self.win)

    def take_search(self, chosen: Integers, search: Search) -> None:
        """Note the λ of a search over the chosen questions."""
        margin, begins = search.margin.numpy(), search.region.begins
        for row, i in enumerate(chosen):
            if margin[row] > self.margin[i] or not len(self.shares[i]):
                self.margin[i] = margin[row]
                self.shares[i] = search.shares[begins[row] : begins[row + 1]].copy()

    def confirm(self, chosen: Integers) -> None:
        """Run the model with the chosen questions' present λ and keep what is better."""
        shares = [self.shares[i] for i in chosen]
        margins = replay_margins(self.exposure, self.position[chosen], self.target[chosen], shares)
        for i, margin, share in zip(chosen, margins, shares, strict=True):
            if not self.confirmed[i] >= margin:
                self.confirmed[i], self.kept[i] = margin, share

    def deadline(self, count: int) -> float:
        """When the time is over that so many questions share from now on."""
        seconds = np.inf if self.budget.seconds is None else self.budget.seconds
        return working_seconds() + seconds * count


def relax_all(questions: Questions) -> None:
    """Stage 1; frozen λ, the relaxation's, the vertices and two steps are the first witnesses."""
    deadline = questions.deadline(len(questions))
    step = max(1, CHUNK // max(1, len(questions.base.graph.curved) // FEW_CURVED))
    for first in range(0, len(questions), step):
        chosen = np.arange(first, min(first + step, len(questions)))
        position, target = questions.position[chosen], questions.target[chosen]
        questions.late[chosen] = working_seconds() > deadline
        if questions.base.lowered.reason or questions.late[first]:
            region = bare_region(questions.base, position)
            questions.take_search(chosen, Search.start(region, target, questions.frozen))
            continue
        nodes, inverse = np.unique(position, return_inverse=True)
        region = region_of(questions.base, nodes)
        if len(nodes) != len(position) or (inverse[1:] < inverse[:-1]).any():
            region = region.take(inverse)
        _relax_chunk(questions, chosen, region)


def _relax_chunk(questions: Questions, chosen: Integers, region: Region) -> None:
    if region.scale is not None:
        low, high = (end[:, 0].numpy() for end in (region.scale.low, region.scale.high))
        questions.low[chosen], questions.high[chosen] = np.maximum(low, 0.0), high
    certificate, piece = first_relaxation(region, questions.target[chosen])
    questions.raw[chosen] = certificate.bound.numpy()
    questions.stage[chosen] = 1
    weights, slopes = certificate.weights.numpy(), flat_slopes(region, certificate.slopes)
    inner = inner_slopes(region)
    for row, i in enumerate(chosen):
        questions.cases[i] = [Leaf(ProofCase(weights[row], slopes[row], inner[row]))]
    search = Search.start(region, questions.target[chosen], questions.frozen)
    search.offer_shares(dense_shares(region, piece))
    questions.take_search(chosen, search)
    left = chosen[questions.open()[chosen]]
    if len(left):
        _search(questions, left, FIRST_STEPS)


def search_all(questions: Questions, chosen: Integers, steps: int) -> None:
    """Stage 2: vertices and ascent for the chosen questions."""
    for first in range(0, len(chosen), CHUNK):
        part = chosen[first : first + CHUNK]
        _search(questions, part, steps)
        questions.stage[part] = np.maximum(questions.stage[part], 2)


def _search(questions: Questions, chosen: Integers, steps: int) -> None:
    region = bare_region(questions.base, questions.position[chosen])
    search = Search.start(region, questions.target[chosen], questions.frozen)
    search.offer_shares(np.concatenate([questions.shares[i] for i in chosen]))
    search.vertices()
    search.ascend(steps)
    questions.take_search(chosen, search)


def split_all(questions: Questions, chosen: Integers) -> None:
    """Stages 3 and 4: rounds of lines, then cases, for the chosen questions."""
    threshold, win, leaves = questions.threshold, questions.win, questions.budget.leaves
    deadline = questions.deadline(len(chosen))
    for first in range(0, len(chosen), BATCH // 2):
        part = chosen[first : first + BATCH // 2]
        if working_seconds() > deadline:
            questions.late[part] = True
            continue
        terms = [free_terms(questions.base, int(p)) for p in questions.position[part]]
        trees = [
            Tree(int(questions.position[i]), int(questions.target[i]), threshold[i], win[i], k)
            for i, k in zip(part, terms, strict=True)
        ]
        bound_leaves(questions.base, [(tree, Leaf()) for tree in trees], ROUNDS)
        questions.stage[part] = 3
        left = np.array([tree.open for tree in trees])
        if leaves > 1:
            grow(questions.base, trees, leaves, deadline)
            questions.stage[part[left]] = 4
            if working_seconds() > deadline:
                questions.late[part] = [tree.open for tree in trees]
        for tree, i in zip(trees, part, strict=True):
            _take_tree(questions, int(i), tree)


def _take_tree(questions: Questions, i: int, tree: Tree) -> None:
    """Note what a tree proves and the best λ it met."""
    if tree.bound < questions.raw[i]:
        questions.raw[i] = tree.bound
        questions.cases[i] = [*tree.closed, *tree.leaves]
    if tree.shares is not None and tree.margin > questions.margin[i]:
        questions.margin[i], questions.shares[i] = tree.margin, tree.shares


DROPPED = 1e-12
"""λ below this share of its node's mass is left out of a support: rounding of sums of steps."""


def solve_head(
    exposure: Exposure,
    target: Tensor | Literal["all"],
    nodes: Tensor | None = None,
    *,
    method: str = "simplex",
    effort: Effort = "normal",
    below: float = np.inf,
) -> Solution:
    """Whether reweighting can make a class win, for a model whose mixture is followed by a head.

    Args:
        exposure: of one model.
        target: [N] a class per node (−1: skipped and counted), or ``"all"``.
        nodes: a mask [N], node numbers, or None for all.
        method: ``simplex``; general solvers know nothing of heads.
        effort: ``fast`` (no cases), ``normal``, ``full``, or processor seconds per question.
        below: a bound that is not below this is stated as infinite, its proof not recomputed.
    """
    if method != "simplex":
        raise InputError(f'a model with a head is solved by method "simplex", not "{method}"')
    budget, exposure = budget_of(effort), to_cpu(exposure)
    asked = pose_problems(exposure, target, nodes)
    questions = Questions(exposure, asked.position, asked.target, budget)
    _decide(questions)
    base, proofs = questions.base, _proofs(questions)
    # A bound is stated as its proof shows it when it is recomputed by other code.
    most = below / REACHABLE * questions.win.clip(min=1e-300)
    stated = np.isfinite(questions.raw) & (questions.raw <= most)
    bound = proved_bounds(proofs, exposure, asked.position, asked.target, stated)
    indptr, terms, coefficients = _supports(questions)
    owner = np.repeat(asked.position, np.diff(indptr))
    return Solution(
        member=asked.member,
        recipient=asked.position,
        node=base.nodes[asked.position],
        target=asked.target,
        margin=questions.confirmed,
        bound=bound,
        indptr=indptr,
        terms=terms,
        coefficients=coefficients,
        sources=base.sources[base.rows[terms]].astype(np.int64),
        groups=(terms[:, None] >= base.ends[owner, 1:-1]).sum(1),
        status=questions.stage + np.int8(FIRST_STAGE),
        proofs=proofs,
        replayed=exposure.replay is not None,
        skipped=asked.skipped,
        reasons=_reasons(questions, bound),
        **describe_exposure(exposure),
    )


def _decide(questions: Questions) -> None:
    """Run the stages."""
    relax_all(questions)
    search_all(questions, np.flatnonzero(questions.open()), ASCENT)
    questions.confirm(np.arange(len(questions)))
    unsure = (questions.margin > questions.win) & (questions.confirmed <= REACHABLE)
    if unsure.any():
        search_all(questions, np.flatnonzero(unsure), LONGER)
        questions.confirm(np.flatnonzero(unsure))
    left = (questions.raw > questions.threshold) & (questions.confirmed <= REACHABLE)
    left &= ~questions.late
    if not questions.base.lowered.reason and left.any():
        split_all(questions, np.flatnonzero(left))
        questions.confirm(np.flatnonzero(left))


def _reasons(questions: Questions, bound: Floats) -> dict[int, str]:
    """Why questions are undecided."""
    exposure, margin = questions.exposure, questions.confirmed
    wins, excluded = margin > REACHABLE, bound <= REACHABLE
    reasons = {int(i): _reason(questions, int(i)) for i in np.flatnonzero(~(wins | excluded))}
    both = np.flatnonzero(wins & excluded)
    if not len(both):
        return reasons
    headed = replace(exposure, replay=None)
    lambdas = [questions.kept[i] for i in both]
    head_margins = replay_margins(headed, questions.position[both], questions.target[both], lambdas)
    size = PRECISION * max(1.0, float(exposure.frozen_logits.abs().max()))
    for i, head in zip(both, head_margins, strict=True):
        why = "the difference is rounding"
        if margin[i] - head > size:
            why = f"it has {head:.2g} there, so the exposure is not of this model; expose it again"
        reasons[int(i)] = (
            f"the model run in its own precision wins by {margin[i]:.2g}, which its head excludes: "
            + why
        )
    return reasons


def _reason(questions: Questions, i: int) -> str:
    lowered, budget = questions.base.lowered, questions.budget
    if questions.margin[i] > questions.win[i]:
        return (
            f"its head wins by {questions.margin[i]:.2g} in float64, which the model run in its "
            "own precision does not confirm"
        )
    if lowered.reason:
        return f"{lowered.reason}, and no λ that wins was found"
    if questions.late[i]:
        return f"time limit of {budget.seconds:g} s per question; a larger effort goes on"
    if questions.raw[i] <= questions.threshold[i]:
        return "the bound that was found does not hold when its proof is recomputed"
    left = [leaf for leaf in questions.cases[i] if leaf.bound > questions.threshold[i]]
    if questions.stage[i] == 4 and any(leaf.last for leaf in left):  # nothing is left to split
        graph = questions.base.graph
        titles = {graph.operations[k].title for k in graph.curved}
        words = " and ".join(sorted(titles - {"relu"})) or "relu"
        return f"the bounds of {words} leave a gap that no case closes"
    if budget.leaves == 1:
        return 'the relaxation leaves it open; effort="normal" splits it into cases'
    return f"{len(questions.cases[i]):,} cases leave it open; a larger effort may close them"


def _supports(questions: Questions) -> tuple[Integers, Integers, Floats]:
    """λ of all questions as indptr, terms and coefficients."""
    shares, first = questions.kept, questions.base.ends[questions.position, 0]
    kept = [np.flatnonzero(share > DROPPED * share.sum()) for share in shares]
    counts = np.array([len(own) for own in kept], np.int64)
    terms = np.concatenate([*kept, np.empty(0, np.int64)])
    values = np.concatenate([*(s[k] for s, k in zip(shares, kept, strict=True)), np.empty(0)])
    return np.append(0, np.cumsum(counts)), np.repeat(first, counts) + terms, values


def _proofs(questions: Questions) -> Proofs:
    cases = [[leaf.case for leaf in leaves] for leaves in questions.cases]
    width = max((len(case.slopes) for proof in cases for case in proof), default=0)
    return Proofs.of(cases, (questions.base.num_classes, width))
