"""Linear relaxations of heads, and branch and bound over parts of polytopes and signs of units.

With every nonlinear operation replaced by a line, each margin is at most a linear function of λ,
and the largest smallest of those over all admissible λ is the oracle's LP again, with contributions
that belong to the node. Its dual w and the slopes of the lines are the certificate. Bounds of
several rounds stand side by side as rivals of one LP, and its dual says how to mix them: the
cutting-plane way to the best lines, which with ReLUs after one layer ends at the triangle
relaxation, without a general solver.

Where a relaxation stays positive, two cases are made: with few terms the halves of the polytope at
the edge along which lines are loosest, else the signs of the unit whose line is farthest off. In a
case a unit's interval is halved (a ReLU is linear there), and a multiple of its input that is
nonnegative in that case may be added to any bound. Leaves of about one depth are bounded together,
across LPs. An LP is decided when all its leaves are closed or one λ met on the way wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnn_repair.exposure.heads.operations import Activation, Curved, Root, Slopes
from gnn_repair.kernel_cache import working_seconds
from gnn_repair.oracle.heads.bound import (
    DEEPEST,
    FEW,
    HUGE,
    Base,
    LinearBound,
    Region,
    RelaxedOperation,
    mixtures,
    original_shares,
    region_of,
    scores,
    subdivide,
    widest,
)
from gnn_repair.oracle.heads.proof import ProofCase, inner_of
from gnn_repair.oracle.lps import solve_tables
from gnn_repair.oracle.problems import FAILED, Floats, Integers, Problems, Tables
from gnn_repair.oracle.solution import Solution, build_solution, replace_answers

# Relaxations --------------------------------------------------------------------------------------

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
    for number, line in region.lines.items():
        both = slopes[number]
        if isinstance(line.operation, Root):
            both = (line.operation.within(both[0]),)
        parts[number] = line.with_slopes(both, both)
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
        seen = linear.seen[number].expand(len(self.region), -1, -1)
        up, down = seen.clamp(min=0.0), seen.clamp(max=0.0)
        total = down if isinstance(part.operation, Root) else seen  # no slope stands above a Root
        products = (total, *part.operation.carried(up, down, part.above, part.below))
        lists = self.weighted.setdefault(number, [[] for _ in products])
        for entries, product in zip(lists, products, strict=True):
            entries.append(product)

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


def mix_dense(region: Region, shares: Floats) -> Tensor:
    """x [B, D] at λ by places."""
    out = region.base.fixed[region.position]
    mixtures(region.begins, region.places()[1], shares, region.base.rows, region.base.table, out)
    return torch.from_numpy(out)


def worst(outputs: Tensor, target: Tensor) -> Tensor:
    """[B]: the target's output less the largest other's; −∞ where one is no number."""
    index = target.unsqueeze(1)
    asked = outputs.gather(1, index)
    margin = asked - outputs.scatter(1, index, -torch.inf).amax(1, keepdim=True)
    return margin.squeeze(1).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def flat_slopes(region: Region, slopes: SlopesOf) -> Floats:
    """Slopes of all curved operations side by side, [B, U]: by number, then by input."""
    return _side_by_side(region, [part for number in region.lines for part in slopes[number]])


def inner_slopes(region: Region) -> Floats:
    """The slopes with which the region's intervals were found, [B, V]."""
    parts = list[Tensor]()
    for number in inner_of(region.base.graph):
        line = region.lines[number]
        both = line.below if isinstance(line.operation, Root) else (*line.above, *line.below)
        parts += both
    return _side_by_side(region, parts)


def _side_by_side(region: Region, parts: list[Tensor]) -> Floats:
    none = torch.zeros(len(region), 0, dtype=torch.float64)
    return np.ascontiguousarray(torch.cat([none, *parts], dim=1).numpy())


# Cases --------------------------------------------------------------------------------------------

PUSH = 100.0
"""How much larger than any unit's coefficient the multiple of its input may be: a case that hardly
any λ falls into needs a large one."""

Unit = tuple[int, int]
"""An elementwise operation, counted among the curved ones, and a channel of it."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One case, with how far its margin can go."""

    case: ProofCase = field(default_factory=lambda: ProofCase(np.empty(0), np.empty(0)))
    """What it assumes, and what proves the bound."""
    bound: float = np.inf
    """Of the lowered head's margin in this case."""
    split: Unit | None = None
    """The unit whose line is farthest off where the bound is attained; None: there is none left."""
    loose: int = 0
    """How many units could be split."""
    last: bool = False
    """Whether all was tried that there is."""
    edge: tuple[int, int] | None = None
    """The two corners that differ most; None: there are no two."""

    def halves(self, terms: int, others: list[Curved]) -> list[Leaf]:
        """What it is split into: at an edge of few corners, by a unit's sign, or not at all;
        ``others`` are the head's nonlinear operations that are no ReLU."""
        soon_linear = not others and self.loose <= FEW_UNITS
        if self.edge is not None and terms <= FEW and not soon_linear:
            edges = [(*self.case.halvings, (*self.edge, side)) for side in (-1, 1)]
            return [Leaf(replace(self.case, halvings=halvings)) for halvings in edges]
        if self.split is not None:
            signs = [(*self.case.splits, (*self.split, side, 0.0)) for side in (-1, 1)]
            return [Leaf(replace(self.case, splits=splits)) for splits in signs]
        return [replace(self, last=True)]


@dataclass(eq=False)
class Tree:
    """The cases of one LP: they cover all λ."""

    position: int
    target: int
    threshold: float
    """A case with a bound at or below it is closed (of the lowered head's margin)."""
    win: float
    """A λ with a margin above it wins."""
    terms: int
    """Those that can change the aggregate."""
    leaves: list[Leaf] = field(default_factory=list)
    """Those with a bound above the threshold, still to be split."""
    closed: list[Leaf] = field(default_factory=list)
    margin: float = -np.inf
    """The best margin of the lowered head met on the way."""
    shares: Floats | None = None
    """λ [K] by the node's terms that has it."""

    @property
    def size(self) -> int:
        """Leaves so far."""
        return len(self.leaves) + len(self.closed)

    @property
    def bound(self) -> float:
        """What all leaves together prove."""
        return max(leaf.bound for leaf in [*self.leaves, *self.closed])

    @property
    def open(self) -> bool:
        """Neither excluded nor won in the head."""
        return self.bound > self.threshold and self.margin <= self.win


class LeafBatch:
    """Leaves of about one depth as one region."""

    def __init__(self, base: Base, cases: list[tuple[Tree, Leaf]], push: float = PUSH) -> None:
        self.base, self.cases, self.push = base, cases, push
        self.depth = max(len(leaf.case.splits) for _, leaf in cases)
        self.curved = base.graph.curved
        self.position, self.target = np.array([(t.position, t.target) for t, _ in cases]).T
        assumed = [
            (row, level, self.curved[place], unit, sign)
            for row, (_, leaf) in enumerate(cases)
            for level, (place, unit, sign, _) in enumerate(leaf.case.splits)
        ]
        self.assumed = np.array(assumed, np.int64).reshape(-1, 5)
        """[A, 5]: row, level, operation, channel and sign of everything that the leaves assume."""
        self.signs = {
            number: torch.zeros(len(cases), base.widths[number + 1], dtype=torch.float64)
            for number, operation in enumerate(base.graph.operations)
            if isinstance(operation, Activation)
        }
        for number, (row, _, unit, sign) in self._by_operation():
            self.signs[number].numpy()[row, unit] = sign
        halvings, position = [leaf.case.halvings for _, leaf in cases], self.position
        if any(halvings):
            base, position = subdivide(base, position, halvings), np.arange(len(cases))
        self.region = region_of(base, position, self.signs if self.depth else None)
        self.inner = inner_slopes(self.region)
        self.best: list[Leaf | None] = [None] * len(cases)

    def _by_operation(self) -> Iterator[tuple[int, Integers]]:
        """Row, level, channel and sign, [4, A'], of what is assumed about each operation."""
        for number in np.unique(self.assumed[:, 2]).tolist():
            yield number, self.assumed[self.assumed[:, 2] == number][:, [0, 1, 3, 4]].T

    def bound(self, rounds: int) -> list[Leaf]:
        """The leaves with bounds; every λ met is offered to its tree."""
        region = self.region
        rows, mixture = rows_and_mixture(region, self.target)
        cuts, parts = Cuts(region), region.lines
        cuts.add(rows, mixture, parts)
        weights = None
        if self.depth:
            weights = torch.from_numpy(np.stack([leaf.case.weights for _, leaf in self.cases]))
        for turn in range(rounds):
            if weights is not None:
                self._add_mixed(cuts, weights, parts)
            piece = cuts.solve()
            shares = dense_shares(region, piece)
            values = self.base.graph.values(mix_dense(region, shares), region.nodes)
            self._offer(values[-1], shares)
            weights, slopes = cuts.combine(piece)
            final = turn + 1 == rounds
            # Bounds only fall from round to round: a certificate is worth its price at the end.
            if final or any(self._ended(piece.margin)):
                self._keep(weights, slopes, cuts.combine_pushes(piece), values)
            bounds = [np.inf if leaf is None else leaf.bound for leaf in self.best]
            if final or all(self._ended(bounds)):
                break
            parts = region.relax(values)
            cuts.add(rows, mixture, parts)
        return [leaf for leaf in self.best if leaf is not None]

    def _ended(self, bounds: Iterable[float]) -> list[bool]:
        """Of every leaf whether a bound closes it, or its tree has won."""
        return [
            tree.margin > tree.win or bound <= tree.threshold
            for (tree, _), bound in zip(self.cases, bounds, strict=True)
        ]

    def _add_mixed(self, cuts: Cuts, weights: Tensor, parts: dict[int, RelaxedOperation]) -> None:
        """A bound of the rivals' mixture, where units that rivals disagree about cancel, and one
        more for each sign on the way to the leaf, with a large multiple of that input."""
        rows = (-weights).scatter(1, torch.from_numpy(self.target)[:, None], 1.0)
        sizes = {n: seen[0][0].abs().amax((1, 2)) for n, seen in cuts.weighted.items()}
        pushes = {
            number: signs.new_zeros(len(self.cases), self.depth + 1, signs.shape[1])
            for number, signs in self.signs.items()
        }
        for number, (row, level, unit, sign) in self._by_operation():
            size = self.push * sign * sizes[number].numpy()[row]
            pushes[number].numpy()[row, level, unit] = size
        many = (-1, self.depth + 1, -1)
        cuts.add(rows.unsqueeze(1).expand(many), weights.unsqueeze(1).expand(many), parts, pushes)

    def _offer(self, outputs: Tensor, shares: Floats) -> None:
        """Tell every tree of the λ of its leaves' relaxations."""
        margin = worst(outputs, torch.from_numpy(self.target)).numpy()
        begins = self.region.begins
        for row, (tree, leaf) in enumerate(self.cases):
            if margin[row] > tree.margin:
                tree.margin = float(margin[row])
                corner_shares = shares[begins[row] : begins[row + 1]]
                tree.shares = original_shares(leaf.case.halvings, corner_shares)

    def _keep(
        self, weights: Tensor, slopes: SlopesOf, pushes: dict[int, Tensor], values: list[Tensor]
    ) -> None:
        """Take the certificates where they are better than what was had."""
        sided = {n: (pushes[n] * signs).clamp(min=0.0) for n, signs in self.signs.items()}
        multiples = {n: (sided[n] * signs).unsqueeze(1) for n, signs in self.signs.items()}
        parts = parts_with(self.region, slopes)
        certificate = certify(
            self.region, self.target, weights, parts, multiples if self.depth else None
        )
        flat, bounds = flat_slopes(self.region, slopes), certificate.bound.tolist()
        splits, edges = self._splits(certificate, parts, values), self._edges(certificate, parts)
        sizes = np.zeros((len(self.cases), self.depth))
        for number, (row, level, unit, _) in self._by_operation():
            sizes[row, level] = sided[number].numpy()[row, unit]
        for row, (_, leaf) in enumerate(self.cases):
            old = self.best[row]
            if old is not None and old.bound <= bounds[row]:
                continue
            betas = zip(leaf.case.splits, sizes[row].tolist(), strict=False)
            case = ProofCase(
                weights[row].numpy(),
                flat[row],
                self.inner[row],
                tuple((*assumed[:3], beta) for assumed, beta in betas),
                leaf.case.halvings,
            )
            self.best[row] = Leaf(case, bounds[row], *splits[row], leaf.last, edges[row])

    def _edges(
        self, found: Certificate, parts: dict[int, RelaxedOperation]
    ) -> list[tuple[int, int] | None]:
        """For each leaf of few terms the two corners of a group that differ most where its lines
        are loose."""
        edges: list[tuple[int, int] | None] = [None] * len(self.cases)
        few = np.flatnonzero(
            [tree.terms <= FEW and len(leaf.case.halvings) < DEEPEST for tree, leaf in self.cases]
        )
        if not len(few):
            return edges
        at, region = torch.from_numpy(few), self.region.take(few)
        owner = torch.from_numpy(np.repeat(np.arange(len(few)), np.diff(region.begins)))
        values, scaled = self.base.graph.values(*corner_points(region)), list[Tensor]()
        for number, outer in found.seen.items():
            part = parts[number].take(at)
            weight = outer.expand(len(edges), -1, -1)[at, 0].abs()
            for value, loose in zip(part.operation.inputs, _looseness(part, weight), strict=True):
                scaled.append((values[value] * loose[owner]).nan_to_num())
        # Where no bound holds yet, no line is looser than another: the longest edge of all.
        scaled.append(values[0] * region.unbounded[owner].unsqueeze(1))
        corners = np.full((len(few), 2), -1, np.int64)
        widest(region.local, region.begins, torch.cat(scaled, dim=1).contiguous().numpy(), corners)
        for row, (i, j) in zip(few.tolist(), corners.tolist(), strict=True):
            edges[row] = None if i < 0 else (i, j)
        return edges

    def _splits(
        self, found: Certificate, parts: dict[int, RelaxedOperation], values: list[Tensor]
    ) -> list[tuple[Unit | None, int]]:
        """For each leaf the unit that may still be split and whose line is farthest off, and how
        many may."""
        gaps, names = [], list[Unit]()
        for number, signs in self.signs.items():
            outer = found.seen[number].expand(len(self.cases), -1, -1)[:, 0]
            gaps.append(_gaps(parts[number], outer, signs, values, self.region.nodes))
            place = self.curved.index(number)
            names += [(place, unit) for unit in range(signs.shape[1])]
        if not gaps:
            return [(None, 0)] * len(self.cases)
        all_gaps = torch.cat(gaps, dim=1)
        best, loose = all_gaps.argmax(1).tolist(), (all_gaps >= 0).sum(1).tolist()
        return [
            (names[unit] if count else None, count) for unit, count in zip(best, loose, strict=True)
        ]


def _gaps(
    part: RelaxedOperation, outer: Tensor, signs: Tensor, values: list[Tensor], nodes: Tensor
) -> Tensor:
    """C (s y + b − f(y)) of each unit, −1 where it is not to be split, [B, k]."""
    box, slopes = part.box[0], part.below[0]
    y = box.nearest(values[part.operation.inputs[0]])
    constant = torch.where(outer > 0, part.higher, part.lower)
    exact = part.operation.evaluate([y], nodes)
    gap = (outer * (slopes * y + constant - exact)).clamp(min=0.0)
    # Where the point tells nothing (all units tight there), the widest possible gap decides.
    spread = outer.abs() * torch.minimum(box.high, -box.low).clamp(min=0.0)
    splittable = (box.low < 0) & (box.high > 0) & (signs == 0) & (outer != 0)
    return torch.where(splittable, gap + 1e-3 * spread, -1.0)


def bound_leaves(
    base: Base, cases: list[tuple[Tree, Leaf]], rounds: int, push: float = PUSH
) -> None:
    """Bound leaves together and hand them back to their trees."""
    for (tree, _), leaf in zip(cases, LeafBatch(base, cases, push).bound(rounds), strict=True):
        (tree.closed if leaf.bound <= tree.threshold else tree.leaves).append(leaf)


ROUNDS = 2
"""Rounds of lines a leaf: a half inherits its parent's weights, and splitting does the rest."""
LAST_ROUNDS, LAST_PUSH = 8, 1e5
"""For leaves that cannot be split any more: what is left is a linear program, to be solved well."""
FEW_UNITS = 6
"""Units whose signs are tried at once when no more are open: at most so many cases are then linear
programs, where halves would only come closer and closer."""
BATCH = 512
"""Leaves bounded together, so that their numbers stay in the cache."""


def grow(base: Base, trees: list[Tree], leaves: int, deadline: float) -> None:
    """Split leaves above the threshold until all are closed, a λ wins, or the budget is spent.

    Args:
        base: of the exposure.
        trees: one an LP; changed in place.
        leaves: how many leaves a tree may have.
        deadline: process time at which to stop.
    """
    while True:
        alive = [tree for tree in trees if _alive(tree, leaves)]
        if not alive or working_seconds() > deadline:
            return
        _level(base, alive[: BATCH // 2])


def _alive(tree: Tree, leaves: int) -> bool:
    if not tree.leaves or tree.margin > tree.win or tree.size >= leaves:
        return False
    return not any(leaf.last for leaf in tree.leaves)


def _stuck(leaf: Leaf, terms: int, others: list[Curved]) -> bool:
    """Whether nothing is left to split and the gap is that of curved lines, which no rounds close
    (a Root's tangents they do)."""
    curved = any(not isinstance(op, Root) for op in others)
    return curved and leaf.split is None and (terms > FEW or leaf.edge is None)


def _level(base: Base, trees: list[Tree]) -> None:
    """Split the worst leaves of every tree, as many as make a batch."""
    share = max(1, BATCH // (2 * len(trees)))
    others = [op for op in base.graph.operations if isinstance(op, Curved) and op.title != "relu"]
    by_depth: dict[tuple[int, bool], list[tuple[Tree, Leaf]]] = {}
    for tree in trees:
        tree.leaves.sort(key=lambda leaf: leaf.bound)
        for _ in range(min(share, len(tree.leaves))):
            leaf = tree.leaves.pop()
            if _stuck(leaf, tree.terms, others):
                tree.leaves.append(replace(leaf, last=True))
                break
            for half in leaf.halves(tree.terms, others):
                # Calls cost more than a few rows of zeros.
                depth = len(half.case.splits).bit_length()
                by_depth.setdefault((depth, half.last), []).append((tree, half))
    for (_, last), cases in by_depth.items():
        bound_leaves(base, cases, *((LAST_ROUNDS, LAST_PUSH) if last else (ROUNDS, PUSH)))


def corner_points(region: Region) -> tuple[Tensor, Tensor]:
    """x at every corner, [places, D], other groups at their mean; and each one's graph node."""
    owner, _, group = region.places()
    points, centre = region.corners()
    points += region.base.fixed[region.position][owner]
    points += centre.sum(1)[owner] - centre[owner, group]
    return torch.from_numpy(points), region.nodes[torch.from_numpy(owner)]


def _looseness(part: RelaxedOperation, weight: Tensor) -> list[Tensor]:
    """How far the lines of each input are apart in the bound, for each unit of its width."""
    if isinstance(part.operation, Root):
        return [weight.repeat_interleave(part.operation.size, dim=1)]
    band = weight * (part.higher - part.lower).clamp(min=0.0)
    return [band / (box.high - box.low).clamp(min=1e-300) for box in part.box]
