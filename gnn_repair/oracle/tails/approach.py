"""Coming nearer to the frozen coefficients while the class still wins in the tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.exposure.value import Exposure
from gnn_repair.highs import new_highs
from gnn_repair.oracle.nearest import closest
from gnn_repair.oracle.tables import Floats, Instance, Integers
from gnn_repair.oracle.tails.solution import TailSolution

ROUNDS = 8
"""Linear programs at most; the tail's pieces met on the way are few, so three or four suffice."""
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
    """[K]: the nearest λ so far that wins in the tail."""

    @classmethod
    def of(cls, exposure: Exposure, solution: TailSolution, index: int, margin: float) -> Approach:
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
        starts = [self.witness, *self._winners()]
        for start in starts:
            self._keep(self._descended(highs, start))

    def offer(self, shares: Floats) -> None:
        """Descend from a λ that may be slightly inadmissible."""
        shares = np.maximum(shares, 0.0)
        total = np.bincount(self.group, shares, len(self.mass))
        shares = shares * (self.mass / np.maximum(total, 1e-300))[self.group]
        if self._margins(shares[None])[0] >= self.margin:
            self._keep(self._descended(new_highs(), shares))

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

    def _descended(self, highs: Any, start: Floats) -> Floats:
        """The nearest λ found from one that wins."""
        best = self._shortened(start)
        if best is None:
            return self.best
        for _ in range(ROUNDS):
            nearer = self._step(highs, best)
            if nearer is None or self.moved(nearer) >= self.moved(best):
                break
            small = self.moved(nearer) > (1 - GAIN) * self.moved(best)
            best = nearer
            if small:
                break
        return best

    def at(self, aim: float) -> Floats:
        """The λ near the best one at which the tail wins by ``aim`` more: farther from α, or
        towards the witness."""
        if aim == 0.0:
            return self.best
        want = self.margin + aim * self._size()
        change = self.best - self.alpha
        room = self.alpha[change < 0] / -change[change < 0]
        beyond = self.alpha + min(BEYOND, float(room.min(initial=BEYOND))) * change
        found = [self._first(self.best, end, want) for end in (beyond, self.witness)]
        return min([one for one in found if one is not None] or [self.witness], key=self.moved)

    def _keep(self, shares: Floats) -> None:
        if self.moved(shares) < self.moved(self.best):
            self.best = shares

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
        found = [self._shortened(between[k]) for k in won]
        known = [shares for shares in found if shares is not None]
        return min(known, key=self.moved) if known else None

    def _shortened(self, shares: Floats) -> Floats | None:
        """The λ nearest α on the segment to ``shares`` that wins; None where that does not."""
        return self._first(self.alpha, shares, self.margin)

    def _first(self, start: Floats, end: Floats, margin: float) -> Floats | None:
        """The first λ from ``start`` to ``end`` with this margin, by refinement."""
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

    def _aggregates(self, shares: Floats) -> Tensor:
        """[P, D] at λ [P, K]."""
        aggregate = self.exposure.aggregate
        messages = aggregate.contributions[0, aggregate.rows.long()]
        return aggregate.fixed_logits[0, aggregate.recipients] + torch.from_numpy(shares) @ messages

    def _outputs(self, aggregates: Tensor) -> Tensor:
        nodes = self.exposure.recipients.expand(len(aggregates))
        assert self.exposure.head is not None
        return self.exposure.head(aggregates, nodes)

    def _margins(self, shares: Floats) -> Floats:
        """[P]: of the target at λ [P, K]."""
        outputs = self._outputs(self._aggregates(shares)).detach().numpy()
        rest = np.delete(outputs, self.target, axis=1)
        return np.asarray(outputs[:, self.target] - rest.max(1))

    def _size(self) -> float:
        """The scale of the logits."""
        return float(self.exposure.frozen_logits[0, self.exposure.recipients].abs().max().clamp(1))

    def _linearised(self, shares: Floats) -> Instance:
        """The exact-mass problem of the tail's first order at λ."""
        aggregate = self.exposure.aggregate
        point = self._aggregates(shares[None]).requires_grad_(True)
        with torch.enable_grad():
            outputs = self._outputs(point)[0]
            rows = [
                torch.autograd.grad(z, point, retain_graph=True, allow_unused=True)[0]
                for z in outputs
            ]
        slopes = torch.stack([point[0] * 0 if row is None else row[0] for row in rows]).detach()
        rivals = np.delete(np.arange(len(outputs)), self.target)
        table = aggregate.contributions[0, aggregate.rows.long()] @ slopes.t()
        values, logits = table.numpy(), outputs.detach().numpy()
        gaps = values[:, self.target, None] - values[:, rivals]
        fixed = logits[self.target] - logits[rivals] - shares @ gaps
        terms = np.arange(len(shares))
        return Instance(gaps, fixed, self.group, self.mass, terms, rivals)
