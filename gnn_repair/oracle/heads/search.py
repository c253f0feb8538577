"""The search for a λ that makes a class win, and what the model itself says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.bound import Region
from gnn_repair.oracle.heads.kernels import mixtures, scores
from gnn_repair.oracle.heads.relax import Game, dense_shares, play
from gnn_repair.oracle.problems import Floats, Integers

STEPS = (1.0, 0.5, 0.25, 0.1, 0.03)
"""Shares of a step that are tried."""
TOGETHER = 2048
"""Points times classes up to which derivatives come from one pass: calls cost more than numbers."""
SHRINK = 0.3
"""How much shorter the next step is where none of them helped."""


def margins(region: Region, target: Integers, x: Tensor) -> Tensor:
    """[B]: min_r of the lowered head's margins at x [B, D]."""
    outputs = region.base.graph(x, region.nodes)
    return worst(outputs, torch.from_numpy(target))


def worst(outputs: Tensor, target: Tensor) -> Tensor:
    """[B]: the target's output less the largest other's; −∞ where one is no number."""
    index = target.unsqueeze(1)
    own = outputs.gather(1, index)
    margin = own - outputs.scatter(1, index, -torch.inf).amax(1, keepdim=True)
    return margin.squeeze(1).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


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
        shares = frozen[term_numbers(region)]
        x = mix_dense(region, shares)
        return cls(region, target, shares, x, margins(region, target, x))

    def offer(self, x: Tensor, shares: Floats) -> None:
        """Take λ where its margin is larger."""
        margin = margins(self.region, self.target, x)
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
        for group in range(region.mass.shape[1]):
            self._vertices(region, group)

    def _vertices(self, region: Region, group: int) -> None:
        ends, mass = region.ends, region.mass
        owner = np.repeat(np.arange(len(region)), np.diff(region.begins))
        term = term_numbers(region)
        inside = (term >= ends[owner, group]) & (term < ends[owner, group + 1])
        if not inside.any():
            return
        rest = np.where(inside, 0.0, self.shares)
        still = mix_dense(region, rest).numpy()
        places = np.flatnonzero(inside)
        mine = owner[places]
        points = (
            still[mine]
            + mass[mine, group, None] * region.base.table[region.base.rows[term[places]]]
        )
        outputs = region.base.graph(torch.from_numpy(points), region.nodes[torch.from_numpy(mine)])
        found = worst(outputs, torch.from_numpy(self.target[mine])).numpy()
        order = np.lexsort((found, mine))
        last = order[np.append(np.flatnonzero(np.diff(mine[order])), len(order) - 1)]
        shares, best = rest.copy(), self.x.clone()
        shares[places[last]] = mass[mine[last], group]
        best[torch.from_numpy(mine[last])] = torch.from_numpy(points[last])
        lacking = np.setdiff1d(np.arange(len(region)), mine[last])
        keep = np.isin(owner, lacking)
        shares[keep] = self.shares[keep]
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
        target = torch.from_numpy(self.target)
        index = target[:, None, None]
        own = jacobian.gather(1, index.expand(-1, 1, jacobian.shape[2]))
        gaps = outputs.gather(1, target.unsqueeze(1)) - outputs
        keep = torch.ones_like(outputs, dtype=torch.bool).scatter(1, target.unsqueeze(1), False)
        count, rivals = len(region), outputs.shape[1] - 1
        functions = (own - jacobian)[keep].view(count, rivals, -1) * reach[:, None, None]
        functions = functions.contiguous()
        terms = np.empty((int(region.begins[-1]), rivals))
        scores(
            region.ends, region.begins, region.base.rows, region.base.table,
            np.empty((len(terms), 0)), functions.numpy(), np.empty((count, rivals, 0)), terms,
        )  # fmt: skip
        away = (functions @ (region.fixed - self.x).unsqueeze(2)).squeeze(2)
        piece = play(region, Game(terms, (gaps[keep].view(count, rivals) + away).numpy()))
        shares = dense_shares(region, piece)
        return mix_dense(region, shares), shares


def jacobian_at(region: Region, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, C] and their derivatives [B, C, D] by x."""
    classes = region.base.num_classes
    if len(x) * classes <= TOGETHER:
        return _jacobian_together(region, x, classes)
    point = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        outputs = region.base.graph(point, region.nodes)
        rows = [
            torch.autograd.grad(outputs[:, c].sum(), point, retain_graph=True)[0]
            for c in range(classes)
        ]
    return outputs.detach(), torch.stack(rows, dim=1)


def _jacobian_together(region: Region, x: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The same by one pass, each point standing once for every class."""
    point = x.detach().repeat_interleave(classes, dim=0).requires_grad_(True)
    with torch.enable_grad():
        outputs = region.base.graph(point, region.nodes.repeat_interleave(classes))
        own = outputs.view(len(x), classes, classes).diagonal(dim1=1, dim2=2)
        (slopes,) = torch.autograd.grad(own.sum(), point)
    return own.detach(), slopes.view(len(x), classes, -1)


def term_numbers(region: Region) -> Integers:
    """The exposure's term at each place."""
    counts = np.diff(region.begins)
    shift = np.repeat(region.ends[:, 0] - region.begins[:-1], counts)
    return np.arange(int(region.begins[-1])) + shift


def mix_dense(region: Region, shares: Floats) -> Tensor:
    """x [B, D] at λ by places."""
    out = region.base.fixed[region.position]
    mixtures(region.begins, term_numbers(region), shares, region.base.rows, region.base.table, out)
    return torch.from_numpy(out)


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
    found = np.empty(len(position))
    for chosen in _occurrences(position):
        full = alpha.copy()
        for i in chosen:
            full[ends[position[i]] : ends[position[i] + 1]] = shares[i]
        logits = model_logits(exposure, torch.from_numpy(full))
        rows = logits[torch.from_numpy(position[chosen])]
        found[chosen] = worst(rows, torch.from_numpy(target[chosen])).numpy()
    return found


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


def on_cpu(exposure: Exposure) -> Exposure:
    """The exposure where its bounds are computed; its replay runs wherever the model is."""
    if exposure.recipients.device.type == "cpu":
        return exposure
    return exposure.to("cpu")


def _occurrences(position: Integers) -> list[Integers]:
    """LPs split so that no recipient stands twice in a part: first, second, … occurrences."""
    order = np.argsort(position, kind="stable")
    ordered = position[order]
    begin = np.append(True, ordered[1:] != ordered[:-1]) if len(order) else np.zeros(0, bool)
    starts = np.flatnonzero(begin)
    rank = np.empty(len(order), np.int64)
    counts = np.diff(np.append(starts, len(order)))
    rank[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return [np.flatnonzero(rank == k) for k in range(int(rank.max(initial=-1)) + 1)]
