"""Linear relaxations of heads, and the search for a λ that makes a class win.

With every nonlinear operation replaced by a line, each margin is at most a linear function of λ,
and the largest smallest of those over all admissible λ is the oracle's LP again, with contributions
that belong to the node. Its dual w and the slopes of the lines are the certificate. Bounds of
several rounds stand side by side as rivals of one LP, and its dual says how to mix them. The same
LP about the head's first order at a λ says where a larger margin may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnn_repair.checks import require_derivatives
from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import Root, Slopes
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.heads.bound import (
    HUGE,
    LinearBound,
    Region,
    RelaxedOperation,
    mixtures,
    scores,
)
from gnn_repair.oracle.lps import solve_tables
from gnn_repair.oracle.problems import FAILED, Floats, Integers, Problems, Tables
from gnn_repair.oracle.solution import Solution, build_solution, replace_answers

SlopesOf = dict[int, Slopes]
"""By number of a curved operation: slopes [B, k], one tensor per input."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """w and slopes of B linear programs: they prove that no λ has a margin above ``bound``."""

    bound: Tensor
    """[B]: of the margin, or of σ times it where the head was multiplied through."""
    weights: Tensor
    """[B, C]: w ≥ 0, sums to one, zero at the target."""
    slopes: SlopesOf
    seen: dict[int, Tensor]
    """By number of a nonlinear operation: the coefficients [B or 1, 1, k] it had."""


Game = tuple[Floats, Floats]
"""Linear upper bounds of margins: [places, R] by term, and [B, R] for what is fixed."""


def rows_and_mixture(region: Region, target: Integers) -> tuple[Tensor, Tensor]:
    """Coefficients [B, C − 1, C] of the margins T_c − T_r, and the rival of each as weights."""
    classes, own = region.base.num_classes, torch.from_numpy(target).unsqueeze(1)
    rivals = torch.arange(classes - 1)
    mixture = functional.one_hot(rivals + (rivals >= own), classes).double()
    return functional.one_hot(own, classes) - mixture, mixture


def game_of(region: Region, functions: Tensor, lifted: Tensor, constant: Tensor) -> Game:
    """Linear functions, as in :class:`LinearBound`, as margins of an exact-mass LP."""
    terms = np.empty((int(region.begins[-1]), constant.shape[1]))
    scores(
        region.ends, region.begins, region.base.rows, region.base.table, region.lifts,
        functions.numpy(), lifted.numpy(), terms,
    )  # fmt: skip
    offset = (functions @ region.fixed.unsqueeze(2)).squeeze(2) + constant
    return terms, offset.numpy()


def play(region: Region, game: Game) -> Solution:
    """max_λ min_r of the game's margins: a λ by places of the region, and weights over r."""
    count, places = len(region), len(game[0])
    # What no number is known for is left out: certificates do not rest on what the LP was told.
    bounded = (np.where(np.abs(part) < HUGE, -part, 0.0) for part in game)
    table, beta = (np.pad(part, ((0, 0), (1, 0)))[None] for part in bounded)
    rows, segments = np.arange(places, dtype=np.int32), np.append(region.local[:, :-1], places)
    tables = Tables(np.arange(count), segments, rows, rows, table, region.mass[None], beta)
    zero = np.zeros(count, np.int64)
    asked = Problems(zero, np.arange(count), zero)
    piece = solve_tables(tables, asked)
    stuck = np.flatnonzero(piece.status == FAILED)
    if not len(stuck):
        return piece
    return replace_answers(piece, stuck, _substitutes(tables, asked.taken(stuck)))


def _substitutes(tables: Tables, asked: Problems) -> Solution:
    """A vertex and equal weights where the solver gave up: worse, but admissible."""
    begins = tables.segments[:-1].reshape(-1, tables.num_groups)[asked.position]
    lengths = np.diff(tables.segments).reshape(-1, tables.num_groups)[asked.position]
    row, group = np.nonzero(lengths)
    count, width = len(asked), tables.num_classes
    return build_solution(
        tables,
        asked,
        np.bincount(row, minlength=count),
        begins[row, group],
        coefficients=tables.mass[0, asked.position[row], group],
        margin=np.full(count, np.nan),
        bound=np.full(count, np.nan),
        status=np.full(count, FAILED, np.int8),
        rival_weights=np.full((count, width), 1.0 / (width - 1)),
    )


def certify(
    region: Region,
    target: Integers,
    weights: Tensor,
    parts: dict[int, RelaxedOperation],
    pushes: dict[int, Tensor] | None = None,
) -> Certificate:
    """What w and the lines prove, rounding included."""
    rows = -weights.unsqueeze(1)
    index = torch.from_numpy(target)[:, None, None]
    rows = rows.scatter(2, index, weights.sum(1)[:, None, None])
    last = len(region.base.graph.operations)
    linear = region.backward(last, rows, parts, pushes)
    bound = region.largest(linear)[:, 0]
    proved = bound.isfinite() & ~region.unbounded
    return Certificate(torch.where(proved, bound, torch.inf), weights, linear.slopes, linear.seen)


def parts_with(region: Region, slopes: SlopesOf) -> dict[int, RelaxedOperation]:
    """Relaxations with given slopes, above and below."""
    parts = dict[int, RelaxedOperation]()
    for number in region.boxes:
        operation, given = region.curved(number), slopes[number]
        if isinstance(operation, Root):
            given = (operation.within(given[0]),)
        parts[number] = region.with_slopes(number, given, given)
    return parts


def first_relaxation(region: Region, target: Integers) -> tuple[Certificate, Solution]:
    """The cheapest bound: one line a unit, tight at the middle of its interval."""
    rows, mixture = rows_and_mixture(region, target)
    linear = region.backward(len(region.base.graph.operations), rows, region.lines)
    piece = play(region, game_of(region, linear.functions, linear.lifted, linear.constant))
    return certify(region, target, mixed_weights(piece, mixture), region.lines), piece


def dual_of(piece: Solution) -> Tensor:
    """The game's weights, [B, 1, R]."""
    return torch.from_numpy(np.ascontiguousarray(piece.rival_weights[:, 1:])).unsqueeze(1)


def mixed_weights(piece: Solution, mixture: Tensor) -> Tensor:
    """The game's weights as weights [B, C] of classes, given those behind each bound."""
    weights = (dual_of(piece) @ mixture)[:, 0].clamp(min=0.0)
    return weights / weights.sum(1, keepdim=True)


TINY = 1e-12
"""Coefficients below this times the largest do not decide about a slope."""


class Cuts:
    """All linear bounds of the rounds so far, for the same B LPs."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.games: list[Game] = []
        self.mixtures: list[Tensor] = []
        """[B, R, C] each: the rivals' weights behind each bound."""
        self.weighted: dict[int, list[list[Tensor]]] = {}
        """By operation: coefficients [B, R, k], then their products with each input's slope."""
        self.pushes: dict[int, list[Tensor]] = {}
        """By operation: multiples [B, R, k] of its input that were added."""

    def add(
        self,
        rows: Tensor,
        mixture: Tensor,
        parts: dict[int, RelaxedOperation],
        pushes: dict[int, Tensor] | None = None,
    ) -> None:
        """Bound rows [B, R, C] of the outputs with these lines."""
        last = len(self.region.base.graph.operations)
        linear = self.region.backward(last, rows, parts, pushes)
        self.games.append(game_of(self.region, linear.functions, linear.lifted, linear.constant))
        self.mixtures.append(mixture)
        for number, part in parts.items():
            width = part.box[0].low.shape[1]
            none = torch.zeros(len(self.region), rows.shape[1], width, dtype=torch.float64)
            self.pushes.setdefault(number, []).append((pushes or {}).get(number, none))
            self._note(number, part, linear)

    def _note(self, number: int, part: RelaxedOperation, linear: LinearBound) -> None:
        seen = linear.seen.get(number)
        count = len(self.region)
        if seen is None:  # the operation does not reach these outputs
            rows, units = linear.constant.shape[1], part.lower.shape[1]
            seen = torch.zeros(count, rows, units, dtype=torch.float64)
        seen = seen.expand(count, -1, -1)
        lists = self.weighted.setdefault(number, [[] for _ in range(1 + len(part.below))])
        if isinstance(part.operation, Root):
            down = seen.clamp(max=0.0)
            lists[0].append(down)
            q = part.below[0].unflatten(1, (-1, part.operation.size)).unsqueeze(1)
            lists[1].append((down.unsqueeze(3) * q).flatten(2))
            return
        lists[0].append(seen)
        for k, (a, b) in enumerate(zip(part.above, part.below, strict=True)):
            slopes = torch.where(seen > 0, a.unsqueeze(1), b.unsqueeze(1))
            lists[k + 1].append(seen * slopes)

    def solve(self) -> Solution:
        """The LP over all bounds."""
        terms, fixed = (np.concatenate(parts, axis=1) for parts in zip(*self.games, strict=True))
        return play(self.region, (terms, fixed))

    def combine(self, piece: Solution) -> tuple[Tensor, SlopesOf]:
        """Rival weights and slopes as the LP's dual mixes them."""
        shares, slopes = dual_of(piece), SlopesOf()
        for number, lists in self.weighted.items():
            operation = self.region.base.graph.operations[number]
            total = (shares @ torch.cat(lists[0], dim=1))[:, 0]
            mixed = tuple((shares @ torch.cat(part, dim=1))[:, 0] for part in lists[1:])
            if isinstance(operation, Root):
                total = total.repeat_interleave(operation.size, dim=1)
            safe = total.abs() > TINY * total.abs().amax(1, keepdim=True).clamp(min=1e-300)
            slopes[number] = tuple(
                torch.where(safe, part / torch.where(safe, total, 1.0), 0.0) for part in mixed
            )
        return mixed_weights(piece, torch.cat(self.mixtures, dim=1)), slopes

    def combine_pushes(self, piece: Solution) -> dict[int, Tensor]:
        """The multiples [B, k] of inputs as the LP's dual mixes them."""
        shares = dual_of(piece)
        return {k: (shares @ torch.cat(parts, dim=1))[:, 0] for k, parts in self.pushes.items()}


def dense_shares(region: Region, piece: Solution) -> Floats:
    """λ of a game by places, [places]."""
    shares = np.zeros(int(region.begins[-1]))
    shares[piece.terms] = piece.coefficients
    return shares


# The search for a λ -------------------------------------------------------------------------------

STEPS = (1.0, 0.5, 0.25, 0.1, 0.03)
"""Shares of a step that are tried."""
TOGETHER = 2048
"""Points times classes up to which derivatives come from one pass: calls cost more than numbers."""
SHRINK = 0.3
"""How much shorter the next step is where none of them helped."""


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
            own = outputs.view(len(x), classes, classes).diagonal(dim1=1, dim2=2)
            return own.detach(), derivative(own.sum(), point).view(len(x), classes, -1)
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


def mix_dense(region: Region, shares: Floats) -> Tensor:
    """x [B, D] at λ by places."""
    out = region.base.fixed[region.position]
    mixtures(region.begins, region.places()[1], shares, region.base.rows, region.base.table, out)
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
    margins = np.empty(len(position))
    for chosen in _occurrences(position):
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


def _occurrences(position: Integers) -> list[Integers]:
    """LPs split so that no recipient stands twice in a part: first, second, … occurrences."""
    order = np.argsort(position, kind="stable")
    starts = np.flatnonzero(np.diff(position[order], prepend=-1))
    which = np.empty(len(position), np.int64)
    which[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return [np.flatnonzero(which == k) for k in range(int(which.max(initial=-1)) + 1)]
