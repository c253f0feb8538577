"""The smallest change of coefficients that makes a class win: a counterfactual.

    min ½ Σ_a |λ_a − α_a|   s.t.  λ ∈ Δ_v,  z_c(λ) − z_r(λ) ≥ margin for every rival r

is the mass that must move. Any w ≥ 0 proves a lower bound on it: with s_a = Σ_r w_r (ℓ_c − ℓ_r)
and b_r = margin − (z⁰_c − z⁰_r),

    moved ≥ w·b + Σ_g Σ_{a∈g} α_a min(0, s_a − max_{b∈g} s_b + 1).

Behind a nonlinear head what is found is an upper value: a λ that was run through the model, with
the mass that it moves. What is proved is a lower one: no reweighting nearer than ``bound`` wins, by
the oracle's bounds over all of them. Where the two meet it is the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.pieces import ONE_KIND, NodeNames, cut_terms, require_outputs
from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.highs import TIGHT, new_highs, pass_lp, status_of
from gnn_repair.oracle.certificate import ROUNDING
from gnn_repair.oracle.fallback import SMALLEST
from gnn_repair.oracle.heads.branch import worst
from gnn_repair.oracle.heads.solve import (
    Effort,
    EffortLimit,
    budget_of,
    derivative,
    replay_margins,
    solve_head,
    to_cpu,
)
from gnn_repair.oracle.lps import map_lps
from gnn_repair.oracle.problems import (
    CANNOT,
    FAILED,
    STATUS,
    UNCERTIFIED,
    UNDECIDED,
    Floats,
    Instance,
    Integers,
    Tables,
    build_lp,
    check_number,
    require_exposure,
)
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from gnn_repair.oracle.witness import Gains, compute_gains, describe_gains, percent, within
from gnn_repair.published import REACHABLE

ALREADY, MOVED, UNREACHABLE, UNSOLVED = "already wins", "moved", "unreachable", "failed"
NEAREST = 1e-2
"""Upper and lower value this close, relative to the upper one, are called the nearest."""
SETTLED = 1000 * TIGHT
"""What an answer may violate, relative to the numbers in question: highspy's tolerance holds for
its scaled numbers, and scaling back costs a few digits."""
SURE = 1 - SETTLED
"""What w is multiplied by to be dual feasible beyond highspy's tolerance."""


@dataclass(frozen=True, eq=False)
class Nearest:
    """One node's nearest winning reweighting."""

    member: int
    node: int
    target: int
    status: str
    """``already wins``, ``moved``, ``unreachable`` (γ < margin) or ``failed``; behind a head
    ``undecided`` instead."""
    moved: float
    """Mass that moves, ½ Σ |λ − α|, behind a head an upper value; NaN without an answer."""
    bound: float
    """What must move at least, proved by ``weights`` or, behind a head, by bounds; 0 where nothing
    is."""
    weights: Floats
    """[C]: w ≥ 0, zero at the target; not normalised. Zero behind a head."""
    terms: Integers
    """The exposure's terms whose coefficient changes."""
    change: Floats
    """λ − α there."""
    sources: Integers
    """The nodes that sent them."""
    mass: float
    """The node's total mass, for comparison."""
    gains: Gains = ()
    """Who gets more weight, and how much, as shares of the mass."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""
    margin: float = np.nan
    """Behind a head: the margin at λ, of the model itself where ``replayed``."""
    replayed: bool | None = None
    """Whether the model itself was run with λ; None: there is no head, and the answer is exact."""
    reason: str = ""
    """Why it is undecided."""
    scope: str = ""
    """What of the model was reweighted where that is not all (``Exposure.scope``)."""

    @property
    def share(self) -> float:
        """The share of the node's mass that moves."""
        return self.moved / self.mass if self.mass else float("nan")

    @property
    def proved(self) -> bool:
        """Whether nothing notably nearer wins."""
        return bool(self.moved - self.bound <= NEAREST * self.moved)

    def __str__(self) -> str:
        head = within(f"{self.names.node(self.node)}, class {self.target}", self.scope)
        if self.status != MOVED:
            return f"{head}: {self.status}" + (f" ({self.reason})" if self.reason else "")
        says, limit = "", f"at least {percent(self.bound / self.mass)} must move"
        if not self.proved:
            limit = "not proved nearest" + f": {limit}" * (self.bound > 0)
        if self.replayed is not None:
            says = f" ({'the model itself' if self.replayed else 'its head'} says so)"
        elif self.proved:
            limit = "and no smaller change is enough"
        return (
            f"{head}: {describe_gains(self.gains, self.names)} would be enough{says}; "
            f"{percent(self.share)} of the mass moves, {limit}"
        )

    __repr__ = __str__


def nearest_reweighting(
    exposure: Exposure,
    target: Tensor,
    nodes: Tensor | None = None,
    *,
    margin: float = REACHABLE,
    threads: int | None = None,
    effort: str | float = "normal",
) -> tuple[Nearest, ...]:
    """The admissible λ closest to α in moved mass that makes the target win by ``margin``.

    Args:
        exposure: as for :func:`solve`, like ``target``, ``nodes`` and ``threads``.
        target: [N] a class per node.
        nodes: which nodes.
        margin: the worst-rival margin to reach; a win to :func:`solve` unless given.
        threads: worker threads, each with its own highspy.
        effort: how long answers behind a head may take.

    Returns:
        One answer per node. With a head, a λ that was run through the model and the mass that it
        moves, with what is proved to move at least.
    """
    require_exposure(exposure)
    require_outputs(exposure, "classes")
    margin = check_number(margin, "margin")
    limit = budget_of(effort)
    if exposure.head is not None:
        return _behind_head(to_cpu(exposure), target, nodes, margin, limit)
    solution = solve(exposure, target, nodes, threads=threads)
    tables = Tables.from_exposure(exposure)
    alpha = exposure.coefficients.double().cpu().numpy()

    def answer(index: int, highs: Any) -> Nearest:
        witness = solution[index]
        problem = build_lp(tables, witness.member, int(solution.recipient[index]), witness.target)
        frozen = alpha[min(witness.member, len(alpha) - 1), problem.terms]
        need = margin - (problem.fixed + frozen @ problem.gaps)
        change, duals = np.zeros(len(frozen)), np.zeros(len(need))
        status, moved, bound = UNSOLVED, np.nan, np.nan
        if need.max() <= 0:
            status, moved, bound = ALREADY, 0.0, 0.0
        elif (witness.bound if witness.status == STATUS[UNCERTIFIED] else witness.margin) < margin:
            status = UNREACHABLE
        elif witness.status != STATUS[FAILED]:
            solved = _settled(highs, problem, frozen, need, margin, witness.terms)
            if solved is not None:
                status, (moved, bound, change, duals) = MOVED, solved
        weights = np.zeros(len(need) + 1)
        weights[problem.rivals] = duals
        senders, mass = tables.sources[tables.rows[problem.terms]], float(problem.mass.sum())
        node = problem.terms, senders, frozen, change, mass
        return _named(
            solution, index, *node, status=status, moved=moved, bound=bound, weights=weights
        )

    return tuple(map_lps(len(solution), answer, new_highs, threads))


def _named(
    solution: Solution, i: int, terms: Integers, sources: Any, alpha: Floats, change: Floats,
    mass: float, **answer: Any,
) -> Nearest:  # fmt: skip
    """The answer to question i, which changes α of the node's terms, [K] each."""
    used, senders = np.flatnonzero(change), solution.named(sources.astype(np.int64))
    return Nearest(
        member=int(solution.member[i]),
        node=int(solution.named(solution.node[i])),
        target=int(solution.target[i]),
        terms=terms[used],
        change=change[used],
        sources=senders[used],
        mass=mass,
        gains=compute_gains(senders, alpha, change),
        names=solution.names,
        scope=solution.scope,
        **answer,
    )


def closest(highs: Any, problem: Instance, alpha: Floats, margin: float) -> Floats | None:
    """λ − α [K] of the nearest λ whose margins reach ``margin``; None where there is none."""
    need = margin - problem.fixed - alpha @ problem.gaps
    if need.max() <= 0:
        return np.zeros(len(alpha))
    solved = _run(highs, problem, alpha, need, problem.terms)
    return None if solved is None else solved[0]


def _run(
    highs: Any, problem: Instance, alpha: Floats, need: Floats, optimum: Integers
) -> tuple[Floats, Floats, Floats] | None:
    """λ − α [K], w [R] and the length that each term's change is measured by, [K]; None where
    highspy finds no optimum. ``optimum`` holds the terms the oracle uses.

    min Σ p over λ = α + p − n: p ≥ 0, 0 ≤ n ≤ α, Σ_g p = Σ_g n, gains ≥ need; p and n are in
    multiples of ``step · unit / lengths``: where little is needed, tolerances are of little.
    """
    (count, rivals), groups = problem.gaps.shape, len(problem.mass)
    # In shares of a mass of about one: highspy's tolerances would be more than all of a small one.
    size = float(2.0 ** np.round(np.log2(max(problem.mass.sum(), SMALLEST))))
    gaps, alpha = problem.gaps * size, alpha / size
    # The unit is what is needed, or the longest message that the oracle uses. Longer ones are
    # shortened to it, so that a message that nobody uses sets no scale.
    lengths = np.abs(gaps).max(1)
    used = float(lengths[np.isin(problem.terms, optimum)].max(initial=0.0))
    unit = max(used, float(need.max()), SMALLEST)
    lengths = np.maximum(lengths, unit)
    share, step = unit / lengths, float(need.max()) / unit
    plus = np.concatenate([(gaps / lengths[:, None]).T, problem.masses * share])
    pass_lp(
        highs,
        np.concatenate([share, np.zeros(count)]),
        np.zeros(2 * count),
        np.concatenate([np.full(count, np.inf), alpha / (step * share)]),
        np.concatenate([need / (step * unit), np.zeros(groups)]),
        np.concatenate([np.full(rivals, np.inf), np.zeros(groups)]),
        np.concatenate([plus, -plus], axis=1),
    )
    highs.run()
    if status_of(highs) != "Optimal":
        return None
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    change = (values[:count] - values[count:]) * step * share
    duals = np.array(solution.row_dual)[:rivals].clip(min=0.0) / unit
    return size * change, size * duals, lengths


def moved_bound(problem: Instance, alpha: Floats, need: Floats, duals: Floats) -> float:
    """The lower bound on moved mass that w ≥ 0 [R] proves; ``need`` [R] is b."""
    scores = problem.gaps @ duals
    behind = scores - problem.best(scores)[problem.group]
    return float(duals @ need + (alpha * np.minimum(0.0, behind + 1)).sum())


def _settled(
    highs: Any, problem: Instance, alpha: Floats, need: Floats, margin: float, optimum: Integers
) -> tuple[float, float, Floats, Floats] | None:
    """What moves, its bound, λ − α [K] and w [R]; ``optimum`` holds the terms the oracle uses.

    None unless λ is admissible and reaches the margin, and its bound is near, beside the mass;
    ``proved`` says whether it is near beside what moves.
    """
    solved = _run(highs, problem, alpha, need, optimum)
    if solved is None:
        return None
    change, duals, lengths = solved
    mass = problem.mass
    # highspy leaves rounding behind; against a huge gap even that may matter.
    steps = np.abs(change) * lengths
    noise = 1e-12 * steps.max()
    change = np.where(steps > noise, change, 0.0)
    gone = (change < 0) & ((alpha + change) * lengths <= noise)
    change = np.where(gone, -alpha, change)
    moved, lam = float(np.abs(change).sum() / 2), alpha + change
    # Any w proves a bound: where little moves, one that is surely dual feasible may prove more.
    proofs = [(moved_bound(problem, alpha, need, w), w) for w in (duals, SURE * duals)]
    bound, duals = max(proofs, key=lambda proof: proof[0])
    reached = problem.fixed + lam @ problem.gaps
    sizes = np.abs(problem.fixed) + np.abs(lam) @ np.abs(problem.gaps)
    sums = np.bincount(problem.group, lam, len(mass))
    settled = (
        (reached >= margin - SETTLED * need.max() - ROUNDING * sizes).all()
        and (reached.min() > 0 or margin <= 0)
        and (lam >= -SETTLED * mass[problem.group]).all()
        and (np.abs(sums - mass) <= SETTLED * mass).all()
        # Both ends of the gap are sums over all terms, each with an error of its own.
        and moved - bound <= 10 * SETTLED * mass.sum()
    )
    return (moved, bound, change, duals) if settled else None


# Behind a head ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ball:
    """The mixtures within a distance of α, one question after another.

    λ with ½ Σ_{a∈g} |λ_a − α_a| ≤ d in a group is α + p − n with p, n ≥ 0 and Σp = Σn = d. So the
    aggregates within the distance d are mixtures of two groups of exact mass d, messages h and −h,
    around the frozen aggregate: an exposure of their own. That λ stays nonnegative is left out,
    which only makes the set larger and the answer safer.
    """

    around: Exposure
    """Whose admissible mixtures these are; its node i is that of question i."""
    alpha: Tensor
    """[T]: α of the questions' terms."""
    ends: list[int]
    """[L + 1]: whose they are."""
    term: Tensor
    """[2T]: which of them each term of ``around`` changes."""
    less: Tensor
    """[2T]: whether it takes mass away."""

    @classmethod
    def of(cls, exposure: Exposure, position: Tensor, distance: Tensor) -> Ball:
        """All mixtures of recipients within distances.

        Args:
            exposure: on the CPU.
            position: [L] recipients; one may stand several times.
            distance: [L] d > 0: the mass that may move in each group of a recipient, of which no
                more can move than it has.
        """
        assert exposure.head is not None
        aggregate, nodes = exposure.aggregate, exposure.recipients[position]
        segments, terms = cut_terms(aggregate.segments, aggregate.num_groups, position)
        alpha, lengths = aggregate.coefficients[0, terms].double(), segments.diff()
        twice = torch.cat([segments[:1], lengths.repeat_interleave(2).cumsum(0)])
        side = torch.arange(2 * len(lengths)) % 2
        term = torch.arange(int(twice[-1])) - (
            twice[:-1] - segments[:-1].repeat_interleave(2)
        ).repeat_interleave(twice.diff())
        less = side.repeat_interleave(twice.diff()).bool()
        mass = aggregate.mass[0, position]
        scale = torch.minimum(distance.unsqueeze(1), mass) / mass.clamp(min=1e-300)
        # The same on both sides, so that it starts at the frozen aggregate.
        share = scale.reshape(-1).repeat_interleave(lengths) * alpha
        table, frozen = aggregate.contributions, aggregate.logits()[:, position]
        pieces = Exposure(
            groups=tuple(
                Group(f"{group.name} ({side})", group.rule, group.coefficients_from)
                for group in aggregate.groups
                for side in ("more", "less")
            ),
            recipients=torch.arange(len(position)),
            segments=twice,
            rows=aggregate.rows[terms][term] + less.int() * table.shape[1],
            coefficients=share[term].unsqueeze(0),
            contributions=torch.cat([table, -table], dim=1),
            fixed_logits=frozen,
            frozen_logits=frozen,
            state=aggregate.state.new_zeros(1, len(position), 1),
            messages=aggregate.state.new_zeros(1, 1, 1),
            message_rows=torch.zeros(2 * table.shape[1], dtype=torch.int32),
            sources=torch.full((2 * table.shape[1],), -1, dtype=torch.int32),
            origin=aggregate.origin,
        )
        head, logits = exposure.head.at(nodes), exposure.frozen_logits[:, nodes]
        around = pieces.with_head(head, logits, exposure.residual)
        return cls(around, alpha, segments[:: aggregate.num_groups].tolist(), term, less)

    def solve(self, target: Integers, effort: Effort, margin: float) -> tuple[Floats, list[Floats]]:
        """Bounds [L] of the margins, infinite where not below ``margin``, and α + p − n [K] of the
        best λ found for each question."""
        below = margin if margin > 0 else np.inf
        answer = solve_head(self.around, torch.from_numpy(target), effort=effort, below=below)
        moved = answer.dense(self.around)[0]
        whole = self.alpha.index_add(0, self.term, torch.where(self.less, -moved, moved)).numpy()
        return answer.bound, [whole[a:b] for a, b in pairwise(self.ends)]


ROUNDS = 8
"""Linear programs at most; the head's pieces met on the way are few, so three or four suffice."""
GAIN = 1e-4
"""A round that saves less than this share of the moved mass is the last."""
BEYOND = 1.5
"""How far beyond the best λ a larger margin is looked for, in multiples of its change."""
STARTS = 4
"""Descents beside that from the oracle's λ: winners lie in few separate places."""
MOST = 16
"""Terms between which transfers are tried."""
RANDOM = 64
"""Mixtures tried beside transfers."""
POINTS = 16
"""Places of a segment that are tried at once."""
DEPTH = 4
"""How often a segment is refined: to 16⁻⁴ of its length."""


@dataclass(eq=False)
class Approach:
    """One question's way from the oracle's λ towards α."""

    exposure: Exposure
    """Of this recipient alone."""
    target: int
    margin: float
    alpha: Floats
    """[K]."""
    witness: Floats
    """[K]: the λ that the oracle found."""
    group: Integers
    """[K]: 0.. over the groups that are present."""
    mass: Floats
    best: Floats
    """[K]: the nearest λ so far that wins in the head."""

    @classmethod
    def of(cls, exposure: Exposure, solution: Solution, index: int, margin: float) -> Approach:
        """Begin at the λ of LP ``index``."""
        part = exposure.restrict(torch.tensor([int(solution.node[index])]))
        alpha = part.coefficients[0].double().numpy()
        first = exposure.segments[:: exposure.num_groups][int(solution.recipient[index])]
        entries = slice(solution.indptr[index], solution.indptr[index + 1])
        witness = np.zeros(len(alpha))
        witness[solution.terms[entries] - int(first)] = solution.coefficients[entries]
        lengths = part.segments.diff().numpy()
        lengths = lengths[lengths > 0]
        group = np.repeat(np.arange(len(lengths)), lengths)
        mass = np.bincount(group, alpha, len(lengths)).astype(np.float64)
        target = int(solution.target[index])
        return cls(part, target, margin, alpha, witness, group, mass, witness)

    def moved(self, shares: Floats) -> float:
        """½ Σ |λ − α|."""
        return float(np.abs(shares - self.alpha).sum() / 2)

    def come_nearer(self) -> None:
        """Descend from the witness and from the nearest winners among many admissible λ."""
        highs = new_highs()
        for start in [self.witness, *self._winners()]:
            self._descend(highs, start)

    def offer(self, shares: Floats) -> None:
        """Descend from a λ that may be slightly inadmissible."""
        shares = np.maximum(shares, 0.0)
        total = np.bincount(self.group, shares, len(self.mass))
        shares = shares * (self.mass / np.maximum(total, 1e-300))[self.group]
        if self._margins(shares[None])[0] >= self.margin:
            self._descend(new_highs(), shares)

    def _winners(self) -> list[Floats]:
        """The nearest λ that win on segments from α to transfers between two terms and to random
        mixtures; each stands for a place where the descent may begin."""
        ends = np.concatenate([self._transfers(), self._random()])
        steps = np.arange(1, POINTS + 1) / POINTS
        points = self.alpha + steps[:, None, None] * (ends - self.alpha)
        won = self._margins(points.reshape(-1, len(self.alpha))).reshape(POINTS, -1) >= self.margin
        first = np.where(won.any(0), won.argmax(0), POINTS)
        moved = np.abs(ends - self.alpha).sum(1) / 2 * (first + 1) / POINTS
        order = np.argsort(np.where(first < POINTS, moved, np.inf), kind="stable")[:STARTS]
        return [points[first[k], k] for k in order if first[k] < POINTS]

    def _transfers(self) -> Floats:
        """[P, K]: all of one term's share given to another of its group, the largest first."""
        givers = np.argsort(-self.alpha, kind="stable")[:MOST]
        pairs = [
            (a, b)
            for a in givers
            for b in np.flatnonzero(self.group == self.group[a])[:MOST]
            if a != b
        ]
        ends = np.tile(self.alpha, (len(pairs), 1))
        for row, (a, b) in enumerate(pairs):
            ends[row, b] += ends[row, a]
            ends[row, a] = 0.0
        return ends

    def _random(self) -> Floats:
        """[RANDOM, K]: mixtures of few terms, the same ones each time."""
        draw = np.random.default_rng(int(self.exposure.recipients[0]))
        raw = draw.gamma(0.3, size=(RANDOM, len(self.alpha))) + 1e-12
        total = np.stack([np.bincount(self.group, row, len(self.mass)) for row in raw])
        return np.asarray(raw / total[:, self.group] * self.mass[self.group])

    def _descend(self, highs: Any, start: Floats) -> None:
        """Keep the nearest λ found from one that wins."""
        best = self._first(self.alpha, start, self.margin)
        if best is None:
            return
        for _ in range(ROUNDS):
            nearer = self._step(highs, best)
            if nearer is None or self.moved(nearer) >= self.moved(best):
                break
            small = self.moved(nearer) > (1 - GAIN) * self.moved(best)
            best = nearer
            if small:
                break
        if self.moved(best) < self.moved(self.best):
            self.best = best

    def at(self, aim: float) -> Floats:
        """The λ near the best one at which the head wins by ``aim`` more: farther from α, or
        towards the witness."""
        if aim == 0.0:
            return self.best
        logits = self.exposure.frozen_logits[0, self.exposure.recipients]
        want = self.margin + aim * float(logits.abs().max().clamp(1))
        change = self.best - self.alpha
        room = self.alpha[change < 0] / -change[change < 0]
        beyond = self.alpha + min(BEYOND, float(room.min(initial=BEYOND))) * change
        candidates = [self._first(self.best, end, want) for end in (beyond, self.witness)]
        return min([one for one in candidates if one is not None] or [self.witness], key=self.moved)

    def _step(self, highs: Any, point: Floats) -> Floats | None:
        """Linearise at a λ that wins, aim at the nearest λ that wins there, and take the nearest
        of what really wins on the way."""
        change = closest(highs, self._linearised(point), self.alpha, self.margin)
        if change is None:
            return None
        aimed = np.maximum(self.alpha + change, 0.0)
        steps = np.linspace(0.0, 1.0, POINTS + 1)
        between = point + steps[:, None] * (aimed - point)
        won = np.flatnonzero(self._margins(between) >= self.margin)[::-1][:2]
        candidates = [self._first(self.alpha, between[k], self.margin) for k in won]
        points = [shares for shares in candidates if shares is not None]
        return min(points, key=self.moved) if points else None

    def _first(self, start: Floats, end: Floats, margin: float) -> Floats | None:
        """The first λ from ``start`` to ``end`` with this margin, by refinement; None where none of
        those tried has it."""
        low, high = 0.0, 1.0
        for depth in range(DEPTH):
            steps = np.linspace(low, high, POINTS + 1)
            points = start + steps[:, None] * (end - start)
            won = np.flatnonzero(self._margins(points) >= margin)
            if not len(won) and not depth:
                return None
            k = int(won[0]) if len(won) else POINTS
            low, high = float(steps[max(k - 1, 0)]), float(steps[k])
        return np.asarray(start + high * (end - start))

    @cached_property
    def messages(self) -> Tensor:
        """[K, D]: h of every term."""
        return self.exposure.contributions[0, self.exposure.rows.long()]

    def _aggregates(self, shares: Floats) -> Tensor:
        """[P, D] at λ [P, K]."""
        fixed = self.exposure.fixed_logits[0, self.exposure.recipients]
        return fixed + torch.from_numpy(shares) @ self.messages

    def _outputs(self, aggregates: Tensor) -> Tensor:
        nodes = self.exposure.recipients.expand(len(aggregates))
        assert self.exposure.head is not None
        return self.exposure.head(aggregates, nodes)

    def _margins(self, shares: Floats) -> Floats:
        """[P]: of the target at λ [P, K]."""
        outputs = self._outputs(self._aggregates(shares)).detach()
        return worst(outputs, torch.full((len(shares),), self.target)).numpy()

    def _linearised(self, shares: Floats) -> Instance:
        """The exact-mass problem of the head's first order at λ."""
        count = self.exposure.num_classes
        point = self._aggregates(shares[None]).repeat(count, 1).requires_grad_(True)
        with torch.enable_grad():  # the same point for every class: one pass gives all slopes
            outputs = self._outputs(point).diagonal()
            slopes = derivative(outputs.sum(), point)
        rivals = np.delete(np.arange(len(outputs)), self.target)
        table = self.messages @ slopes.t()
        values, logits = table.numpy(), outputs.detach().numpy()
        gaps = values[:, self.target, None] - values[:, rivals]
        fixed = logits[self.target] - logits[rivals] - shares @ gaps
        terms = np.arange(len(shares))
        return Instance(gaps, fixed, self.group, self.mass, terms, rivals)


BELOW = 1 - NEAREST / 2.1
STEPS = ((False, BELOW), (True, BELOW), *[(False, 0.5)] * 5, *[(True, 0.5)] * 5)
"""Steps towards the lower value: whether with cases, and where between the two values it is asked.
Most of what was found is the nearest: asked just below it, first without and then with cases, they
are done. For the others the gap is halved, without cases first."""
STEP = 0.2
"""A step's share of a question's seconds: all steps with cases together take about as long."""
AIMS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
"""By how much more the head is to win, relative to its logits, until the model, which is run in a
precision of its own, confirms it."""


def _behind_head(
    exposure: Exposure, target: Tensor, nodes: Tensor | None, margin: float, limit: EffortLimit
) -> tuple[Nearest, ...]:
    """One answer per node and target, in the order of :func:`solve_head`."""
    solution = solve_head(exposure, target, nodes, effort=limit)
    logits = exposure.frozen_logits[0, torch.from_numpy(solution.node)]
    frozen = worst(logits, torch.from_numpy(solution.target)).numpy()
    approaches = {
        int(i): Approach.of(exposure, solution, int(i), margin)
        for i in np.flatnonzero((solution.margin >= margin) & (frozen < margin))
    }
    for approach in approaches.values():
        approach.come_nearer()
    bounds = _lower_values(exposure, solution, approaches, margin, limit)
    confirmed = _confirmed(exposure, solution, approaches, margin)
    ends, alphas = exposure.segments[:: exposure.num_groups], exposure.coefficients[0].double()

    def answer(i: int) -> Nearest:
        first, last = ends[int(solution.recipient[i]) :][:2].tolist()
        alpha, status, reason = alphas[first:last].numpy(), UNDECIDED, ""
        change, own = np.zeros(len(alpha)), np.nan
        if frozen[i] >= margin:
            status, own = ALREADY, frozen[i]
        elif i in confirmed:
            status, (change, own) = MOVED, (confirmed[i][0] - alpha, confirmed[i][1])
        elif solution.verdict[i] == CANNOT and solution.bound[i] < margin:
            status = UNREACHABLE
        else:
            best = f"the best margin found is {solution.margin[i]:.4g}"
            reason = f"{best}, and none above {solution.bound[i]:.4g} exists"
        moved = float(np.abs(change).sum() / 2) if status in (ALREADY, MOVED) else np.nan
        active = np.abs(change) > 1e-12 * max(float(alpha.sum()), 1e-300)
        senders = exposure.sources[exposure.rows[first:last].long()].numpy()
        node = np.arange(first, last), senders, alpha, np.where(active, change, 0.0)
        return _named(
            solution, i, *node, float(alpha.sum()), status=status, moved=moved,
            bound=bounds.get(i, 0.0), weights=np.zeros(exposure.num_classes), margin=own,
            replayed=solution.replayed, reason=reason,
        )  # fmt: skip

    return tuple(map(answer, range(len(solution))))


def _confirmed(
    exposure: Exposure,
    solution: Solution,
    approaches: dict[int, Approach],
    margin: float,
) -> dict[int, tuple[Floats, float]]:
    """The nearest λ [K] of each question that the model confirms, and its margin."""
    nearest: dict[int, tuple[Floats, float]] = {}
    for aim in AIMS:
        left = np.array([i for i in approaches if i not in nearest], np.int64)
        shares = [approaches[int(i)].at(aim) for i in left]
        margins = replay_margins(exposure, solution.recipient[left], solution.target[left], shares)
        for i, share, value in zip(left.tolist(), shares, margins, strict=True):
            if value >= margin:
                nearest[i] = share, float(value)
    for i in approaches.keys() - nearest.keys():  # the oracle's own λ, confirmed before
        nearest[i] = approaches[i].witness, float(solution.margin[i])
    return nearest


def _lower_values(
    exposure: Exposure,
    solution: Solution,
    approaches: dict[int, Approach],
    margin: float,
    limit: EffortLimit,
) -> dict[int, float]:
    """Distances within which nothing wins, found by halving; all questions together.

    What wins within a distance is offered to the approaches: they know the head near where they
    are, the balls all around α.
    """
    proved, tried = dict.fromkeys(approaches, 0.0), dict[tuple[EffortLimit, int], float]()
    seconds = None if limit.seconds is None else STEP * limit.seconds
    for split, share in STEPS:
        effort = EffortLimit(limit.leaves if split else 1, seconds)
        high = {
            i: min(one.moved(one.best), tried.get((effort, i), np.inf))
            for i, one in sorted(approaches.items())
        }
        left = np.array([i for i in high if high[i] - proved[i] > NEAREST / 2 * high[i]], np.int64)
        if not len(left):
            continue
        middle = np.array([proved[i] + share * (high[i] - proved[i]) for i in left.tolist()])
        position = torch.from_numpy(solution.recipient[left])
        ball = Ball.of(exposure, position, torch.from_numpy(middle))
        for i, d, bound, shares in zip(
            left.tolist(),
            middle.tolist(),
            *ball.solve(solution.target[left], effort, margin),
            strict=True,
        ):
            if bound < margin:
                proved[i] = d
            else:
                tried[effort, i] = d
                approaches[i].offer(shares)
    return proved
