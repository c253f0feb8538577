"""The stages a question about a tail goes through, cheapest first; only what is open goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.base import Base
from gnn_repair.oracle.tails.branching import BATCH, grow
from gnn_repair.oracle.tails.effort import EffortLimit
from gnn_repair.oracle.tails.leaves import Leaf, Tree, bounded, flat_slopes
from gnn_repair.oracle.tails.region import Region, bare_region, region_of
from gnn_repair.oracle.tails.relaxation import first_relaxation
from gnn_repair.oracle.tails.rounds import dense_shares, mixed_at
from gnn_repair.oracle.tails.subdivision import free_terms
from gnn_repair.oracle.tails.witness import Search
from gnn_repair.thresholds import REACHABLE

CHUNK = 512
"""Questions relaxed together: their numbers stay in the second-level cache."""
ASCENT = 8
"""Steps of the search for a λ; most wins are found in the first three."""
FIRST_STEPS = 2
"""Of these, steps that stage 1 takes already: they cost less than a general solver's one LP."""
LONGER = 30
"""Steps where the model did not confirm a win that its tail has: a larger margin is looked for."""
ROUNDS = 4
"""Rounds of lines; the relaxation settles in two or three."""


@dataclass(eq=False)
class Questions:
    """L questions on their way: what is known of each."""

    base: Base
    position: Integers
    target: Integers
    low: Floats = field(init=False)
    """[L]: the smallest σ the lowered margin may have to be divided by; 1 where there is none."""
    high: Floats = field(init=False)
    """[L]: the largest."""
    raw: Floats = field(init=False)
    """[L]: the bound of the lowered margin."""
    margin: Floats = field(init=False)
    """[L]: the lowered margin at the best λ."""
    shares: list[Floats] = field(init=False)
    """λ [K] of each."""
    cases: list[list[Leaf]] = field(init=False)
    stage: NDArray[np.int8] = field(init=False)
    late: NDArray[np.bool_] = field(init=False)
    """[L]: its time ran out."""

    def __post_init__(self) -> None:
        count = len(self.position)
        self.low, self.high = np.ones(count), np.ones(count)
        self.raw, self.margin = np.full(count, np.inf), np.full(count, -np.inf)
        self.shares, self.cases = [np.empty(0)] * count, [[] for _ in range(count)]
        self.stage, self.late = np.zeros(count, np.int8), np.zeros(count, bool)

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

    @property
    def bound(self) -> Floats:
        """[L]: the bounds of the model's own margins."""
        with np.errstate(divide="ignore"):  # a length that may be zero bounds no quotient
            bound = np.where(self.raw > 0, self.raw / self.low, self.raw / self.high)
        if not self.base.lowered.squashed:
            return bound
        # p_c − p_r ≤ tanh(m / 2) for a win by m in logits; a loss is against a p_r ≥ 1 / C.
        lost = np.expm1(np.minimum(bound, 0.0)) / self.base.num_classes
        return np.where(bound > 0, np.tanh(bound / 2), lost)

    def open(self) -> NDArray[np.bool_]:
        """[L]: neither excluded nor won in the tail."""
        return (self.raw > self.threshold) & (self.margin <= self.win)

    def take_search(self, chosen: Integers, search: Search) -> None:
        """Note the λ of a search over the chosen questions."""
        margin, begins = search.margin.numpy(), search.region.begins
        for row, i in enumerate(chosen):
            if margin[row] > self.margin[i] or not len(self.shares[i]):
                self.margin[i] = margin[row]
                self.shares[i] = search.shares[begins[row] : begins[row + 1]].copy()


def relax_all(questions: Questions, frozen: Floats) -> None:
    """Stage 1; frozen λ, the relaxation's, the vertices and two steps are the first witnesses."""
    for first in range(0, len(questions), CHUNK):
        chosen = np.arange(first, min(first + CHUNK, len(questions)))
        position, target = questions.position[chosen], questions.target[chosen]
        if questions.base.lowered.reason:
            region = bare_region(questions.base, position)
            questions.take_search(chosen, Search.start(region, target, frozen))
            continue
        nodes, inverse = np.unique(position, return_inverse=True)
        region = region_of(questions.base, nodes)
        if len(nodes) != len(position) or (inverse[1:] < inverse[:-1]).any():
            region = region.take(inverse)
        _relax_chunk(questions, chosen, region, frozen)


def _relax_chunk(questions: Questions, chosen: Integers, region: Region, frozen: Floats) -> None:
    scale = questions.base.lowered.scale
    if scale is not None:
        top = region.tops[scale - 1]
        questions.low[chosen], questions.high[chosen] = top.low[:, 0], top.high[:, 0]
    certificate, piece = first_relaxation(region, questions.target[chosen])
    questions.raw[chosen] = certificate.bound.numpy()
    questions.stage[chosen] = 1
    weights, slopes = certificate.weights.numpy(), flat_slopes(region, certificate.slopes)
    for row, i in enumerate(chosen):
        questions.cases[i] = [Leaf(weights=weights[row], slopes=slopes[row])]
    search = Search.start(region, questions.target[chosen], frozen)
    search.offer(mixed_at(region, piece), dense_shares(region, piece))
    questions.take_search(chosen, search)
    left = chosen[questions.open()[chosen]]
    if len(left):
        _search(questions, left, frozen, FIRST_STEPS)


def search_all(questions: Questions, chosen: Integers, frozen: Floats, steps: int) -> None:
    """Stage 2: vertices and ascent for the chosen questions."""
    for first in range(0, len(chosen), CHUNK):
        part = chosen[first : first + CHUNK]
        _search(questions, part, frozen, steps)
        questions.stage[part] = np.maximum(questions.stage[part], 2)


def _search(questions: Questions, chosen: Integers, frozen: Floats, steps: int) -> None:
    region = bare_region(questions.base, questions.position[chosen])
    search = Search.start(region, questions.target[chosen], frozen)
    search.offer_shares(np.concatenate([questions.shares[i] for i in chosen]))
    search.vertices()
    search.ascend(steps)
    questions.take_search(chosen, search)


def split_all(questions: Questions, chosen: Integers, budget: EffortLimit) -> None:
    """Stages 3 and 4: rounds of lines, then cases, for the chosen questions."""
    threshold, win = questions.threshold, questions.win
    seconds = np.inf if budget.seconds is None else budget.seconds
    deadline = time.process_time() + seconds * len(chosen)
    for first in range(0, len(chosen), BATCH // 2):
        part = chosen[first : first + BATCH // 2]
        if time.process_time() > deadline:
            questions.late[part] = True
            continue
        terms = [free_terms(questions.base, int(p)) for p in questions.position[part]]
        trees = [
            Tree(int(questions.position[i]), int(questions.target[i]), threshold[i], win[i], k)
            for i, k in zip(part, terms, strict=True)
        ]
        bounded(questions.base, [(tree, Leaf()) for tree in trees], ROUNDS)
        questions.stage[part] = 3
        left = np.array([_is_open(tree) for tree in trees])
        if budget.leaves > 1:
            grow(questions.base, trees, budget.leaves, deadline)
            questions.stage[part[left]] = 4
            if time.process_time() > deadline:
                questions.late[part] = [_is_open(tree) for tree in trees]
        for tree, i in zip(trees, part, strict=True):
            _take_tree(questions, int(i), tree)


def _is_open(tree: Tree) -> bool:
    return tree.bound > tree.threshold and tree.margin <= tree.win


def _take_tree(questions: Questions, i: int, tree: Tree) -> None:
    """Note what a tree proves and the best λ it met."""
    if tree.bound < questions.raw[i]:
        questions.raw[i] = tree.bound
        questions.cases[i] = [*tree.closed, *tree.leaves]
    if tree.shares is not None and tree.margin > questions.margin[i]:
        questions.margin[i], questions.shares[i] = tree.margin, tree.shares


def unsplittable(questions: Questions, i: int) -> bool:
    """Whether a question is open although nothing is left to split."""
    open_cases = [leaf for leaf in questions.cases[i] if leaf.bound > questions.threshold[i]]
    return questions.stage[i] == 4 and any(leaf.last for leaf in open_cases)


def frozen_of(coefficients: torch.Tensor) -> Floats:
    """α [T] in float64."""
    return np.ascontiguousarray(coefficients[0].double().cpu().numpy())
