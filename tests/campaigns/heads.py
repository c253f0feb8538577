"""The campaign of nonlinear heads: the oracle's answers against the function itself.

Every model is a last aggregation of a few messages and a head written in plain PyTorch, in float64,
with scales from 1e-6 to 1e6. The judge knows only that function: it evaluates it at the corners, on
edges, at random mixtures and along an ascent, and asks whether a λ beats a bound, whether an
excluded class wins, and whether the λ of a *can* is admissible and wins.

python -c "from tests.campaigns.heads import campaign_of; print(campaign_of(0, 50_000))"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.head import simplify
from gnn_repair.exposure.heads.operations import HeadGraph
from gnn_repair.exposure.heads.tracer import Tracer
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.solution import Solution
from gnn_repair.oracle.solver import solve
from tests.campaigns import Search
from tests.helpers.hand_made import hand_made

NODES, CLASSES = 24, 3
WINS = 1e-7
"""What the oracle calls a win."""
Array = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]
Draw = Callable[..., Tensor]


def _linear(draw: Draw, width: int, out: int) -> Function:
    weight, bias = draw(out, width) / width**0.5, 0.3 * draw(out)
    return lambda x: x @ weight.t() + bias


def _headed(inner: Callable[[Draw, int], tuple[Function, int]]) -> Callable[[Draw, int], Function]:
    """A head with a linear layer at its end."""

    def made(draw: Draw, width: int) -> Function:
        function, out = inner(draw, width)
        head = _linear(draw, out, CLASSES)
        return lambda x: head(function(x))

    return made


def _plain(function: Function) -> Callable[[Draw, int], Function]:
    """A head of a function that needs no numbers of its own."""
    return _headed(lambda draw, width: (function, width))


def _gated(draw: Draw, width: int) -> tuple[Function, int]:
    scores = _linear(draw, width, width)
    return lambda x: scores(x).softmax(1) * x, width


def _attention(draw: Draw, width: int) -> tuple[Function, int]:
    scores = _linear(draw, width, 3)
    values = [_linear(draw, width, 2) for _ in range(3)]

    def run(x: Tensor) -> Tensor:
        weight = scores(x).softmax(1)
        return torch.stack([value(x) for value in values], 1).mul(weight.unsqueeze(2)).sum(1)

    return run, 2


def _stacked(inner: Function) -> Callable[[Draw, int], Function]:
    """Linear layers on both sides of a function."""

    def made(draw: Draw, width: int) -> tuple[Function, int]:
        first = _linear(draw, width, 4)
        return lambda x: inner(first(x)), 4

    return _headed(made)


def _quotient(denominator: Function) -> Callable[[Draw, int], Function]:
    def made(draw: Draw, width: int) -> tuple[Function, int]:
        above, below = _linear(draw, width, 3), _linear(draw, width, 3)
        return lambda x: above(x) / denominator(below(x)), 3

    return _headed(made)


def _ending(last: Function) -> Callable[[Draw, int], Function]:
    """A softmax at the very end, and one before it."""

    def made(draw: Draw, width: int) -> Function:
        first, second = _linear(draw, width, 4), _linear(draw, 4, CLASSES)
        return lambda x: last(second(first(x).softmax(1)))

    return made


def _by_length(x: Tensor) -> Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


def _standardised(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()


KINDS: dict[str, Callable[[Draw, int], Function]] = {
    "softmax": _plain(lambda x: x.softmax(1)),
    "softmax of a layer": _stacked(lambda x: x.softmax(1)),
    "softmax as a gate": _headed(_gated),
    "attention": _headed(_attention),
    "softmax twice": _ending(lambda x: x.softmax(1)),
    "softmax, log_softmax": _ending(lambda x: x.log_softmax(1)),
    "log_softmax": _stacked(lambda x: x.log_softmax(1)),
    "log_softmax, relu": _stacked(lambda x: (x.log_softmax(1) + 2.0).relu()),
    "logsumexp": _stacked(lambda x: x.view(-1, 2, 2).logsumexp(2)[:, [0, 1, 1, 0]]),
    "log of a sum of exp": _stacked(lambda x: x - x.exp().sum(1, keepdim=True).log()),
    "log": _stacked(lambda x: (1.0 + x.relu()).log()),
    "log of probabilities": _stacked(lambda x: (x.softmax(1) + 1e-9).log()),
    "log of a sigmoid": _stacked(lambda x: x.sigmoid().log()),
    "division by 1 + |y|": _quotient(lambda y: 1.0 + y.abs()),
    "division by y² + 0.1": _quotient(lambda y: y.square() + 0.1),
    "division by exp": _quotient(torch.exp),
    "division by a difference": _quotient(lambda y: y - 3.0),
    "quotient of sums": _quotient(lambda y: 0.01 + y.relu().sum(1, keepdim=True)),
    "square root": _stacked(lambda x: (x.relu() + 1e-3).sqrt()),
    "square root from zero": _stacked(lambda x: x.relu().sqrt()),
    "square root of squares": _stacked(lambda x: (x * x + 1e-4).sqrt()),
    "inverse square root": _stacked(lambda x: x * (x.square() + 0.1).rsqrt()),
    "norm by hand": _plain(_by_length),
    "norm": _stacked(lambda x: x.norm(dim=1, keepdim=True).expand(-1, 4)),
    "normalize": _stacked(lambda x: functional.normalize(x, dim=1).relu()),
    "layer norm": _stacked(lambda x: functional.layer_norm(x, (4,)).relu()),
    "layer norm by hand": _stacked(_standardised),
    "layer norm, gelu": _stacked(lambda x: functional.gelu(functional.layer_norm(x, (4,)))),
    "exp": _stacked(lambda x: (-x.square()).exp()),
    "cumsum": _plain(lambda x: x.cumsum(1).tanh()),
    "relu": _stacked(torch.relu),
    "gelu": _stacked(functional.gelu),
    "silu": _stacked(functional.silu),
    "softplus": _stacked(functional.softplus),
    "softplus far out": _stacked(lambda x: functional.softplus(30 * x, beta=0.7)),
    "mish": _stacked(functional.mish),
    "elu": _stacked(functional.elu),
    "gate": _stacked(lambda x: x * x.flip(1).sigmoid()),
}
SCALES = 10.0 ** np.arange(-6, 7)


@dataclass(frozen=True, eq=False)
class Model:
    """Mixtures of a few messages, and the function behind them."""

    function: Function
    fixed: Array
    """[n, D]."""
    masses: list[list[float]]
    """Of every node and group."""
    messages: list[list[Array]]
    """[K, D] each."""

    def margins(self, node: int, shares: Array) -> tuple[Array, Array]:
        """[S, C]: every class's margin at λ [S, K] of one node, and the size of the logits [S]."""
        mixed = self.fixed[node] + shares @ np.concatenate(self.messages[node])
        with torch.no_grad():
            logits = self.function(torch.from_numpy(mixed)).numpy()
        rest = np.stack([np.delete(logits, c, 1).max(1) for c in range(CLASSES)], 1)
        return logits - rest, np.abs(logits).max(1)


def draw_model(kind: str, seed: int) -> tuple[Model, Exposure]:
    """A model of one kind and its exposure, the head translated from the function's run."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    width, groups = int(rng.integers(2, 6)), int(rng.integers(1, 3))
    # Half of the models have ordinary sizes: the others saturate, or hardly move.
    scale, mean, heavy = (
        rng.choice(SCALES, 3) if rng.random() < 0.5 else rng.choice([0.3, 1.0, 3.0, 10.0, 30.0], 3)
    )
    function = KINDS[kind](draw, width)
    fixed = mean * rng.standard_normal((NODES, width))
    masses = [[float(heavy * (0.2 + rng.random())) for _ in range(groups)] for _ in range(NODES)]
    messages = [
        [scale / heavy * _messages(rng, width) for _ in range(groups)] for _ in range(NODES)
    ]
    model = Model(function, fixed, masses, messages)
    return model, exposure_of(model)


def _messages(rng: np.random.Generator, width: int) -> Array:
    """Some of them equal, now and then all of them."""
    found = rng.standard_normal((int(rng.integers(1, 5)), width))
    return np.broadcast_to(found[0], found.shape).copy() if rng.random() < 0.1 else found


def exposure_of(model: Model) -> Exposure:
    """Its exposure, with the function itself as replay."""
    nodes, groups = len(model.messages), len(model.messages[0])
    table = np.concatenate([part for own in model.messages for part in own])
    lengths = [len(part) for own in model.messages for part in own]
    masses = [m for own in model.masses for m in own]
    alpha = np.concatenate([np.full(k, m / k) for k, m in zip(lengths, masses, strict=True)])
    owner = np.repeat(np.arange(nodes), np.reshape(lengths, (nodes, groups)).sum(1))
    mixed = model.fixed.copy()
    np.add.at(mixed, owner, alpha[:, None] * table)
    with torch.no_grad():
        logits = model.function(torch.from_numpy(mixed))
    exposure = hand_made(
        torch.tensor(np.append(0, np.cumsum(lengths))),
        torch.arange(len(table)),
        torch.from_numpy(alpha)[None],
        torch.from_numpy(table)[None],
        torch.from_numpy(model.fixed)[None],
        groups,
        frozen_logits=torch.from_numpy(mixed)[None],
        sources=torch.zeros(len(table), dtype=torch.int32),
    )

    def replay(coefficients: Tensor) -> Tensor:
        total = model.fixed.copy()
        np.add.at(total, owner, coefficients.numpy()[:, None] * table)
        return model.function(torch.from_numpy(total))

    return exposure.with_head(_head(model), logits[None], replay=replay)


def _head(model: Model) -> HeadGraph:
    """The operations that the function runs, as the package follows them."""
    values = torch.from_numpy(model.fixed)
    with torch.no_grad(), Tracer(values) as tracer:
        logits = model.function(values)
    value, _ = tracer.builder.flat(tracer.output(logits))
    operations = simplify(tracer.builder.operations, tracer.builder.widths, value)
    return HeadGraph(values.shape[1], tuple(operations))


# The judge ------------------------------------------------------------------------------------


def samples(model: Model, node: int, rng: np.random.Generator) -> Array:
    """[S, K]: admissible λ of one node: corners, edges, mixtures of few and of many."""
    masses, sizes = model.masses[node], [len(part) for part in model.messages[node]]
    corners = [mass * np.eye(size) for mass, size in zip(masses, sizes, strict=True)]
    whole = np.array([np.concatenate(one) for one in product(*corners)])
    pairs = rng.integers(0, len(whole), (2, 40))
    steps = rng.choice(np.linspace(0.05, 0.95, 19), (40, 1))
    edges = steps * whole[pairs[0]] + (1 - steps) * whole[pairs[1]]
    mixed = []
    for sharp in (0.1, 0.5, 2.0):
        parts = [
            mass * rng.dirichlet(np.full(size, sharp), 30)
            for mass, size in zip(masses, sizes, strict=True)
        ]
        mixed.append(np.concatenate(parts, axis=1))
    found = np.concatenate([whole[rng.permutation(len(whole))[:64]], edges, *mixed])
    return np.asarray(found[np.isfinite(found).all(1)])


def largest(model: Model, node: int, start: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """[C] and [C, K]: the largest margin of each class found by ascent from samples, and its λ."""
    best, shares = np.full(CLASSES, -np.inf), np.tile(start[0], (CLASSES, 1))
    points = start
    for step in (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.003):
        margins = np.nan_to_num(model.margins(node, points)[0], nan=-np.inf)
        for c in range(CLASSES):
            i = int(margins[:, c].argmax())
            if margins[i, c] > best[c]:
                best[c], shares[c] = margins[i, c], points[i]
        ends = start[rng.permutation(len(start))[:24]]
        points = (shares[:, None] + step * (ends - shares[:, None])).reshape(-1, start.shape[1])
    return best, shares


def noise(model: Model, node: int, shares: Array, rng: np.random.Generator) -> float:
    """What rounding may do to a margin: λ disturbed in the last places, and the logits' size."""
    disturbed = shares * (1 + 1e-15 * rng.standard_normal((30, len(shares))))
    margins, size = model.margins(node, disturbed)
    spread = margins.max(0) - margins.min(0)
    return float(100 * np.nan_to_num(spread, nan=np.inf).max() + 1e-13 * size.max())


def judge(model: Model, solution: Solution, seed: int) -> Iterator[str]:
    """Everything that is wrong with the answers about all nodes and classes."""
    rng = np.random.default_rng(seed)
    for node in range(len(model.messages)):
        start = samples(model, node, rng)
        best, shares = largest(model, node, start, rng)
        for i in np.flatnonzero(solution.node == node):
            c = int(solution.target[i])
            if solution.verdict[i] == "can":
                text = _replayed(model, solution, int(i), rng)
                if text:
                    yield f"{solution[int(i)]}: {text}"
            limit = min(
                float(solution.bound[i]), WINS if solution.verdict[i] == "cannot" else np.inf
            )
            excess = best[c] - limit
            if excess > 0 and excess > noise(model, node, shares[c], rng):
                yield f"{solution[int(i)]}: λ {shares[c].tolist()} wins by {best[c]:.17g}"


def _replayed(model: Model, solution: Solution, i: int, rng: np.random.Generator) -> str:
    """What is wrong with the λ of a *can*."""
    node, part = int(solution.node[i]), slice(solution.indptr[i], solution.indptr[i + 1])
    sizes = [len(one) for one in model.messages[node]]
    before = sum(len(one) for own in model.messages[:node] for one in own)
    shares = np.zeros(sum(sizes))
    shares[solution.terms[part] - before] = solution.coefficients[part]
    totals = np.add.reduceat(shares, np.append(0, np.cumsum(sizes)[:-1]))
    if (shares < 0).any() or not np.allclose(totals, model.masses[node], rtol=1e-9, atol=0):
        return "its λ is not admissible"
    margin = float(model.margins(node, shares[None])[0][0, solution.target[i]])
    allowed = noise(model, node, shares, rng)
    if not margin > WINS - allowed:
        return f"its λ has the margin {margin}"
    return "" if abs(margin - solution.margin[i]) <= allowed + 1e-9 * abs(margin) else "its margin"


def attempt(kind: str, seed: int) -> tuple[int, Counter[str], list[str]]:
    """Draw, solve and judge one model: questions, how many of each verdict, faults in words."""
    try:
        model, exposure = draw_model(kind, seed)
    except InputError:  # its own logits are not finite, which is refused as it should be
        return 0, Counter(), []
    try:
        solution = solve(exposure, "all", effort="fast" if seed % 3 else "normal")
        assert isinstance(solution, Solution)
        check = solution.check(exposure)
    except Exception as error:  # whatever it is, it is a fault of the oracle
        return 1, Counter({f"{kind}: error": 1}), [f"raised {type(error).__name__}: {error}"]
    found = list(judge(model, solution, seed))
    if check.unproved or check.unconfirmed or not check.excess <= 1e-9:
        found.append(f"the check refuses it: {check}")
    words, counts = np.unique(solution.verdict, return_counts=True)
    seen = {f"{kind}: {word}": int(n) for word, n in zip(words, counts, strict=True)}
    return len(solution), Counter(seen), found


SEARCH = Search("heads", "questions", KINDS, attempt)
campaign, campaign_of = SEARCH.campaign, SEARCH.campaign_of
