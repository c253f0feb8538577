"""The smallest change of coefficients that makes a class win, for a model with a tail.

What is found is an upper value: a λ that was run through the model, with the mass that it moves.
What is proved is a lower one: no reweighting nearer than ``bound`` wins, by the oracle's bounds
over all of them (:mod:`gnn_repair.oracle.tails.balls`). Where the two meet it is the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.names import ONE_KIND, NodeNames
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.nearest import (
    ALREADY,
    MOVED,
    UNREACHABLE,
    Gains,
    gain_words,
    gains_of,
    percent,
)
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.approach import Approach
from gnn_repair.oracle.tails.balls import ball, change_of
from gnn_repair.oracle.tails.replaying import on_cpu, replay_margins
from gnn_repair.oracle.tails.sentence import CANNOT
from gnn_repair.oracle.tails.solution import TailSolution
from gnn_repair.oracle.tails.solve import solve_tails

UNDECIDED = "undecided"
HALVINGS = {"fast": 6, "normal": 6}
"""Steps towards the lower value by effort: without cases until a 64th of the upper value is left,
then with cases between what that proved and the upper value."""
NEAREST = 1e-2
"""Upper and lower value this close, relative to the upper one, are called the nearest."""
AIMS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
"""By how much more the tail is to win, relative to its logits, until the model, which is run in a
precision of its own, confirms it."""


@dataclass(frozen=True, eq=False)
class TailNearest:
    """One node's nearest winning reweighting that was found, and what is proved of nearer ones."""

    member: int
    node: int
    target: int
    status: str
    """``already wins``, ``moved``, ``unreachable`` (proved) or ``undecided``."""
    moved: float
    """Mass that moves, ½ Σ |λ − α|: an upper value; NaN without an answer."""
    bound: float
    """What must move at least, proved; 0 where nothing is."""
    margin: float
    """The margin at λ, of the model itself where ``replayed``; NaN without an answer."""
    terms: Integers
    """The exposure's terms whose coefficient changes."""
    change: Floats
    """λ − α there."""
    sources: Integers
    """The nodes that sent them."""
    mass: float
    """The node's total mass, for comparison."""
    replayed: bool
    """Whether the model itself was run with λ."""
    gains: Gains = ()
    """Who gets more weight, and how much, as shares of the mass."""
    reason: str = ""
    """Why it is undecided."""
    names: NodeNames = ONE_KIND
    """What nodes and groups are called."""

    @property
    def share(self) -> float:
        """The share of the node's mass that moves."""
        return self.moved / self.mass if self.mass else float("nan")

    @property
    def proved(self) -> bool:
        """Whether nothing notably nearer wins."""
        return bool(self.moved - self.bound <= NEAREST * self.moved)

    def __str__(self) -> str:
        head = f"{self.names.node(self.node)}, class {self.target}"
        if self.status != MOVED:
            return f"{head}: {self.status}" + (f" ({self.reason})" if self.reason else "")
        where = "the model itself" if self.replayed else "its tail"
        return (
            f"{head}: {gain_words(self.gains, self.names)} would be enough ({where} says so); "
            f"{percent(self.share)} of the mass moves, {self._limit()}"
        )

    __repr__ = __str__

    def _limit(self) -> str:
        if self.bound <= 0:
            return "not proved nearest"
        words = f"no less than {percent(self.bound / self.mass)} will do"
        return words if self.proved else f"not proved nearest: {words}"


def nearest_on_tail(
    exposure: Exposure, target: Tensor, nodes: Tensor | None, margin: float
) -> tuple[TailNearest, ...]:
    """One answer a node and target, in the order of :func:`solve_tails`."""
    exposure = on_cpu(exposure)
    solution = solve_tails(exposure, target, nodes)
    frozen = _frozen_margins(exposure, solution)
    wins = (solution.margin >= margin) & (frozen < margin)
    approaches = {
        int(i): Approach.of(exposure, solution, int(i), margin) for i in np.flatnonzero(wins)
    }
    for approach in approaches.values():
        approach.come_nearer()
    bounds = _lower_values(exposure, solution, approaches, margin)
    found = _confirmed(exposure, solution, approaches, margin)
    return tuple(
        _answer(exposure, solution, i, frozen[i], margin, found.get(i), bounds.get(i, 0.0))
        for i in range(len(solution))
    )


@dataclass(frozen=True, eq=False)
class _Found:
    shares: Floats
    margin: float
    moved: float


def _frozen_margins(exposure: Exposure, solution: TailSolution) -> Floats:
    logits = exposure.frozen_logits[0].numpy()[solution.node]
    own = np.take_along_axis(logits, solution.target[:, None], 1)[:, 0]
    rest = logits.copy()
    np.put_along_axis(rest, solution.target[:, None], -np.inf, 1)
    return np.asarray(own - rest.max(1))


def _confirmed(
    exposure: Exposure,
    solution: TailSolution,
    approaches: dict[int, Approach],
    margin: float,
) -> dict[int, _Found]:
    """The nearest λ of each question that the model confirms."""
    found: dict[int, _Found] = {}
    for aim in AIMS:
        left = np.array([i for i in approaches if i not in found], np.int64)
        shares = [approaches[int(i)].at(aim) for i in left]
        told = replay_margins(exposure, solution.recipient[left], solution.target[left], shares)
        for i, share, value in zip(left.tolist(), shares, told, strict=True):
            if value >= margin:
                found[i] = _Found(share, float(value), approaches[i].moved(share))
    for i in approaches.keys() - found.keys():  # the oracle's own λ, confirmed before
        share = approaches[i].witness
        found[i] = _Found(share, float(solution.margin[i]), approaches[i].moved(share))
    return found


def _lower_values(
    exposure: Exposure, solution: TailSolution, approaches: dict[int, Approach], margin: float
) -> dict[int, float]:
    """Distances within which nothing wins, found by halving; all questions together.

    What wins within a distance is offered to the approaches: they know the tail near where they
    are, the balls all around α.
    """
    proved = dict.fromkeys(approaches, 0.0)
    for effort, steps in HALVINGS.items():
        high = {i: one.moved(one.best) for i, one in approaches.items()}
        for _ in range(steps):
            left = [i for i in sorted(approaches) if high[i] - proved[i] > NEAREST / 2 * high[i]]
            if not left:
                break
            middle = np.array([(proved[i] + high[i]) / 2 for i in left])
            bound, shares = within(exposure, solution, np.array(left), middle, effort)
            for k, i in enumerate(left):
                if bound[k] < margin:
                    proved[i] = float(middle[k])
                else:
                    high[i] = float(middle[k])
                    approaches[i].offer(shares[k])
    return proved


def within(
    exposure: Exposure,
    solution: TailSolution,
    chosen: Integers,
    distance: Floats,
    effort: str = "normal",
) -> tuple[Floats, list[Floats]]:
    """Bounds [k] of the margins within a distance, and α + p − n of the best λ found there."""
    bound, shares = np.empty(len(chosen)), [np.empty(0)] * len(chosen)
    for part in _once_a_node(solution.recipient[chosen]):
        nodes = torch.from_numpy(solution.node[chosen[part]])
        near = exposure.restrict(nodes)
        around = ball(near, torch.from_numpy(distance[part]))
        target = torch.full((exposure.num_nodes,), -1)
        target[nodes] = torch.from_numpy(solution.target[chosen[part]])
        answer = solve_tails(around, target, effort=effort)
        bound[part] = answer.bound
        changes = change_of(near, answer.dense(around))
        for place, share in zip(part, changes, strict=True):
            shares[int(place)] = share
    return bound, shares


def _once_a_node(recipient: Integers) -> list[Integers]:
    """Places split so that no recipient stands twice in a part."""
    parts: list[list[int]] = []
    seen: dict[int, int] = {}
    for place, who in enumerate(recipient.tolist()):
        turn = seen.get(who, 0)
        seen[who] = turn + 1
        if turn == len(parts):
            parts.append([])
        parts[turn].append(place)
    return [np.array(part, np.int64) for part in parts]


def _answer(
    exposure: Exposure,
    solution: TailSolution,
    i: int,
    frozen: float,
    margin: float,
    found: _Found | None,
    bound: float,
) -> TailNearest:
    ends = exposure.segments[:: exposure.num_groups]
    first, last = (int(ends[int(solution.recipient[i]) + k]) for k in (0, 1))
    alpha = exposure.coefficients[0, first:last].double().numpy()
    change = np.zeros(len(alpha)) if found is None else found.shares - alpha
    active = np.abs(change) > 1e-12 * max(float(alpha.sum()), 1e-300)
    status, reason = _status(solution, i, frozen, margin, found)
    terms = first + np.flatnonzero(active)
    rows = exposure.rows[first:last].long()
    senders = solution.named(exposure.sources[rows].numpy().astype(np.int64))
    moved = {ALREADY: 0.0, MOVED: 0.0 if found is None else found.moved}.get(status, np.nan)
    return TailNearest(
        member=0,
        node=int(solution.named(solution.node[i])),
        target=int(solution.target[i]),
        status=status,
        moved=moved,
        bound=bound,
        margin=frozen if status == ALREADY else np.nan if found is None else found.margin,
        terms=terms,
        change=change[active],
        sources=senders[active],
        mass=float(alpha.sum()),
        gains=gains_of(senders, alpha, np.where(active, change, 0.0)),
        replayed=solution.replayed,
        reason=reason,
        names=solution.names,
    )


def _status(
    solution: TailSolution, i: int, frozen: float, margin: float, found: _Found | None
) -> tuple[str, str]:
    if frozen >= margin:
        return ALREADY, ""
    if found is not None:
        return MOVED, ""
    if solution.verdict[i] == CANNOT and solution.bound[i] < margin:
        return UNREACHABLE, ""
    best = f"the best margin found is {solution.margin[i]:.4g}"
    return UNDECIDED, f"{best}, and none above {solution.bound[i]:.4g} exists"
