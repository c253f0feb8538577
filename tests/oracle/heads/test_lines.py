"""Lines and poles stay on their side of every operation, whatever their slopes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from gnn_repair.exposure.heads.operations import (
    FUNCTIONS,
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    HeadGraph,
    Interval,
    Multiply,
    Root,
    Scale,
    Select,
    lower,
)
from gnn_repair.oracle import solve
from gnn_repair.oracle.heads import solve as solve_module
from gnn_repair.oracle.heads.solve import NAMED, EffortLimit
from tests.campaigns import heads
from tests.campaigns.heads import Model, exposure_of, judge
from tests.helpers.oracle.head_cases import NODES, draw

# Lines stay on their side of every operation, whatever their slopes.

NAMES = [name for name in FUNCTIONS if name != "leaky_relu"]  # that one becomes a ReLU
FALLING = "elu of a negative scale"
STEEP = [name for name in NAMES if FUNCTIONS[name].steep]
UNITS = 400


def intervals(seed: int, positive: bool = False) -> Interval:
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(1, UNITS)) * rng.choice([0.1, 1, 5, 30], (1, UNITS))
    half = np.abs(rng.normal(size=(1, UNITS))) * rng.choice([0, 1e-12, 1e-3, 1, 4], (1, UNITS))
    if positive:
        middle = np.abs(middle) + half + 1e-3
    return Interval(torch.tensor(middle - half), torch.tensor(middle + half))


def operation_of(name: str):
    parameter = {"elu": 0.7, FALLING: -0.7}.get(name, 0.0)
    return Activation((0,), name.split()[0], torch.tensor(parameter, dtype=torch.float64))


@pytest.mark.parametrize("which", [*NAMES, FALLING, "multiply"])
def test_lines_of_any_slope_stay_above_and_below(which):
    name, nodes = which.split()[0], torch.zeros(1, dtype=torch.int64)
    box = [intervals(3, name in ("log", "sqrt", "reciprocal"))]
    shares = [torch.linspace(0, 1, 801, dtype=torch.float64)[:, None]]
    if name == "multiply":
        box, random = [*box, intervals(8)], np.random.default_rng(1).random((2, 801, UNITS))
        shares = list(torch.tensor(random.round(1)))
    operation = Multiply((0, 1)) if name == "multiply" else operation_of(which)
    points = [x.low + share * (x.high - x.low) for x, share in zip(box, shares, strict=True)]
    f = operation.evaluate(points, nodes)
    lines = operation.lines(box, [x.low + 0.3 * (x.high - x.low) for x in box])
    drawn = tuple(0.8 * draw(5 + k)(1, UNITS) for k in range(len(box)))
    for slopes in (*lines, drawn, tuple(torch.zeros_like(slope) for slope in drawn)):
        parts = [slope * y for slope, y in zip(slopes, points, strict=True)]
        low, up = (sum(parts) + constant for constant in operation.gaps(slopes, box))
        size = sum((part.abs().amax(0) for part in parts), f.abs().amax(0))
        rounding = 1e-15 * size  # of this comparison
        assert float((f - rounding - up).max()) <= 0 and float((low - f - rounding).max()) <= 0
        # And they touch: nowhere is the constant larger than it must be.
        if name not in (*STEEP, "multiply"):
            # The grid misses a kink by half a step, a smooth touch by its square.
            step = (box[0].high - box[0].low) / 800
            miss = 2 * step if name in ("relu", "elu") else step.square() / 4
            miss = miss + 2 * FUNCTIONS[name].off + 1e-9 * (size + 1)
            assert bool(((up - f).amin(0) <= miss).all())
            assert bool(((f - low).amin(0) <= miss).all())
    found = operation.interval(box)
    assert bool((found.low <= f.amin(0)).all()) and bool((found.high >= f.amax(0)).all())


def test_bounds_hold_where_pytorch_lets_softplus_fall():
    operation, at = operation_of("softplus_linear"), torch.tensor([[20.0]], dtype=torch.float64)
    box, nodes = Interval(at - 10, at + 1e-10), torch.zeros(1, dtype=torch.int64)
    top, end = (operation.evaluate([y], nodes) for y in (at, at + 1e-10))
    assert top > end and operation.interval([box]).high >= top
    for slope in (torch.zeros_like(at), torch.ones_like(at)):
        low, high = operation.gaps((slope,), [box])
        assert low + slope * (at + 1e-10) <= end and high + slope * at >= top


def test_a_length_lies_above_its_tangents():
    root, normal = Root((0,), 5, 1e-5, 0.0), draw(11)
    at = normal(60, 10) * torch.logspace(-4, 2, 60, dtype=torch.float64)[:, None]
    box = Interval(at - 1, at + 1)
    _, (q,) = root.lines([box], [at])
    constant = root.gaps((q,), [box])[0]
    for scale in (1e-3, 1.0, 10.0):
        x = at + scale * normal(60, 10)
        tangent = (q * x).unflatten(1, (2, 5)).sum(2) + constant
        assert bool((tangent <= root.evaluate([x], torch.arange(60))).all())
    touch = (q * at).unflatten(1, (2, 5)).sum(2) + constant
    torch.testing.assert_close(touch, root.evaluate([at], torch.arange(60)), rtol=1e-9, atol=0)


LINEAR = {
    "affine": (Affine((0,), draw(1)(5, 6), draw(2)(NODES, 5)), 1),
    "scale": (Scale((0,), draw(3)(NODES, 6), draw(4)(6)), 1),
    "select": (Select((0,), torch.tensor([5, 0, 0])), 1),
    "constant": (Constant((), draw(5)(NODES, 6)), 0),
    "add": (Add((0, 1), (2.0, -0.5)), 2),
    "concatenate": (Concatenate((0, 1)), 2),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_operation_agrees_with_itself(name):
    """Its interval holds its values, and its coefficients carried back give the same sums."""
    operation, count = LINEAR[name]
    nodes, normal = torch.arange(NODES), draw(8)
    boxes = [Interval(x, x + normal(NODES, 6).abs()) for x in (normal(NODES, 6),) * count]
    points = [box.low + 0.4 * (box.high - box.low) for box in boxes]
    value, found = operation.evaluate(points, nodes), operation.interval(boxes, nodes)
    assert bool((found.low <= value).all()) and bool((found.high >= value).all())
    assert value.shape[1] == operation.width([6] * count) and operation.fits([6] * count)
    sizes = operation.size([point.abs() for point in points], nodes)
    assert bool((sizes >= value.abs() * (1 - 1e-12)).all())
    outer = normal(NODES, 2, value.shape[1])
    total, offset = (outer @ value.unsqueeze(2))[..., 0], operation.offset(nodes)
    parts = operation.pull(outer, nodes, [6] * count)
    pulled = sum(((c @ x.unsqueeze(2))[..., 0] for c, x in zip(parts, points, strict=True)), 0.0)
    pulled = pulled + (0.0 if offset is None else (outer @ offset.unsqueeze(2))[..., 0])
    torch.testing.assert_close(pulled, total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_a_sign_that_is_claimed_is_that_of_every_value(name):
    """Of the operation, of the same without negative constants, and of that with an empty row.

    2: positive, 1: not below 0."""
    operation, count = LINEAR[name]
    plain = {n: c.abs() for n, c in operation.constants() if c.is_floating_point()}
    plain |= {"factors": (2.0, 0.5)} if name == "add" else {}
    partly = {
        n: c.index_fill(0, torch.tensor([0]), 0.0) for n, c in plain.items() if n != "factors"
    }
    forms = (operation, *(replace(operation, **constants) for constants in (plain, partly)))
    nodes, normal, claimed = torch.arange(NODES), draw(8), set()
    for one, signs in product(forms, product(range(3), repeat=count)):
        inputs = [normal(NODES, 6).clamp(min=(-9.0, 0.0, 1e-9)[sign]) for sign in signs]
        value, sign = one.evaluate(inputs, nodes), one.sign(signs, [6] * count)
        claimed.add(sign)
        assert sign < 1 or bool((value > 0 if sign == 2 else value >= 0).all())
    assert 2 in claimed


def test_one_division_by_a_positive_number_is_multiplied_out():
    one, zero = torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    steps = [
        Activation((0,), "relu", zero[0]),
        Affine((1,), one, zero + 0.1),
        Activation((2,), "reciprocal", zero[0]),
        Select((3,), torch.zeros(3, dtype=torch.int64)),
        Multiply((0, 4)),
    ]
    head = HeadGraph(3, tuple(steps))
    x, nodes = draw(3)(7, 3), torch.zeros(7, dtype=torch.int64)
    lowered = lower(head)
    values = lowered.graph.values(x, nodes)
    assert lowered.scale is not None
    torch.testing.assert_close(values[-1] / values[lowered.scale], head(x, nodes))
    doubtful = replace(steps[1], bias=zero - 0.1)  # may be negative: it stays a quotient
    assert lower(HeadGraph(3, (steps[0], doubtful, *steps[2:]))).scale is None


# Softmax, quotients, roots and logarithms behind the aggregate: what the function itself says.


def asked(function, messages, fixed=None, effort="normal"):
    """All classes of one node per entry of ``messages`` ([K, D] each, mass 1), judged."""
    width = messages[0].shape[1]
    fixed = np.zeros((len(messages), width)) if fixed is None else fixed
    model = Model(function, fixed, [[1.0]] * len(messages), [[part] for part in messages])
    exposure = exposure_of(model)
    solution = solve(exposure, "all", effort=effort)
    assert list(judge(model, solution, 1)) == []
    assert solution.check(exposure).ok, solution.check(exposure)
    return exposure, solution


@pytest.mark.parametrize("size", [1e-3, 10.0, 1e6])
@pytest.mark.parametrize("log", [True, False])
def test_a_softmax_inside_a_head_takes_inputs_of_any_size(size, log):
    head = draw(3)(3, 3)
    softmax = torch.Tensor.log_softmax if log else torch.Tensor.softmax
    rng = np.random.default_rng(4)
    messages = [size * rng.standard_normal((3, 3)) for _ in range(8)]
    _, solution = asked(lambda x: softmax(x, 1).tanh() @ head, messages, effort="fast")
    assert solution.decided.any()


CROSSING = [np.array([[-1.0, 1.0, 0.5], [1.0, 1.2, 0.3], [0.5, -0.8, 2.0]])]
"""Every entry passes through zero on its way between corners."""


@pytest.mark.parametrize(
    "function", [lambda x: 1 / x, lambda x: x.log(), lambda x: x.sqrt(), lambda x: x.rsqrt()]
)
def test_nothing_is_excluded_across_a_pole(function):
    exposure, solution = asked(lambda x: function(x).flip(1), CROSSING)
    assert not solution.excluded.any() and np.isinf(solution.bound).all()
    claimed = replace(solution, bound=np.full(len(solution), 1e6))
    assert claimed.check(exposure).excess == np.inf


def test_a_bound_that_does_not_hold_when_recomputed_is_not_stated(monkeypatch):
    function = heads.KINDS["softmax of a layer"](draw(1), 4)
    messages = [np.random.default_rng(k).standard_normal((3, 4)) for k in range(12)]
    exposure, honest = asked(function, messages)
    original = solve_module.split_all, solve_module.relax_all

    def eager(questions, *rest):
        original[1](questions, *rest)
        questions.raw -= 10.0

    monkeypatch.setattr(solve_module, "relax_all", eager)
    found = solve(exposure, "all")
    assert honest.reachable.any() and (found.verdict[honest.reachable] == "can").all()
    assert found.check(exposure).ok
    doubted = np.flatnonzero(~found.decided)
    assert all("recomputed" in found.reasons[int(i)] for i in doubted)


def _mean_by_hand(x):
    return x[:, :3] / x[:, 3:].exp().sum(1, keepdim=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(1)[:, 1:],
        _mean_by_hand,
        lambda x: x[:, :3] / x[:, 3:].square().sum(1, keepdim=True).sqrt().add(1.0),
        lambda x: (x / (x * x).sum(1, keepdim=True).sqrt())[:, :3],
        lambda x: x[:, :3] - x.logsumexp(1, keepdim=True).abs() * x[:, 1:],
    ],
)
def test_what_mathematics_decides_is_decided(function):
    rng = np.random.default_rng(9)
    messages = [rng.standard_normal((4, 4)) for _ in range(10)]
    _, solution = asked(function, messages)
    assert solution.decided.mean() >= 0.9, Counter(solution.reasons.values())
    assert solution.excluded.any()


def test_groups_of_equal_messages_do_not_count_as_choices():
    """Twelve equal messages beside three: the three are still halved, and all is decided."""
    rng = np.random.default_rng(5)
    function = heads.KINDS["division by y² + 0.1"](draw(8), 3)
    free = [rng.standard_normal((3, 3)) for _ in range(10)]
    equal = [np.tile(rng.standard_normal(3), (12, 1)) for _ in range(10)]
    parts = [[a, b] for a, b in zip(free, equal, strict=True)]
    model = Model(function, np.zeros((10, 3)), [[1.0, 0.7]] * 10, parts)
    alone = Model(
        function, np.array([0.7 * part[0] for part in equal]), [[1.0]] * 10, [[a] for a in free]
    )
    found, wanted = (solve(exposure_of(one), "all") for one in (model, alone))
    assert (wanted.status == 9).any() and wanted.decided.all()
    assert found.verdict.tolist() == wanted.verdict.tolist()


def test_a_time_limit_is_said(monkeypatch):
    function = heads.KINDS["division by y² + 0.1"](draw(8), 3)
    rng = np.random.default_rng(5)
    messages = [3 * rng.standard_normal((4, 3)) for _ in range(10)]
    exposure, patient = asked(function, messages)
    monkeypatch.setitem(NAMED, "normal", EffortLimit(1000, 0.0))
    hasty = solve(exposure, "all")
    late = np.flatnonzero(~hasty.decided & patient.decided)
    assert len(late) and all("time limit of 0 s" in str(hasty[int(i)]) for i in late)


@pytest.mark.parametrize(("gap", "word"), [(1e-5, "rounding"), (50.0, "expose it again")])
def test_rounding_is_said_of_rounding_only(gap, word):
    """Classes 0 and 1 tie whatever λ is; the model favours one of them by a gap."""
    messages = [np.random.default_rng(k).standard_normal((3, 4)) + 1.0 for k in range(4)]
    exposure, solution = asked(lambda x: x.relu()[:, [0, 0, 1]], messages)
    assert solution.excluded[::3].all() and solution.excluded[1::3].all()
    lift = torch.tensor([gap, 0.0, 0.0], dtype=torch.float64)
    found = solve(replace(exposure, replay=lambda c: exposure.replay(c) + lift), "all")
    wins = np.flatnonzero(found.margin > 1e-7)
    wins = wins[found.target[wins] == 0]
    assert len(wins) and all(word in found.reasons[int(i)] for i in wins)


def test_every_kind_of_the_campaign_in_turn_without_a_fault(monkeypatch):
    monkeypatch.setattr(heads, "NODES", 4)
    told: list[str] = []
    result = heads.campaign(11, 0.0, told.append)
    assert result.ok, result.faults
    assert told == [f"{result.tried:,} questions, 0 faults"] and result.tried > 300


def test_the_judge_notices_what_is_wrong():
    rng = np.random.default_rng(3)
    function = heads.KINDS["relu"](draw(2), 4)
    model = Model(function, np.zeros((8, 4)), [[1.0]] * 8, [[rng.standard_normal((3, 4))]] * 8)
    solution = solve(exposure_of(model), "all")
    assert solution.reachable.any() and list(judge(model, solution, 1)) == []
    tight = replace(solution, bound=solution.margin - 1e-6 * np.abs(solution.margin) - 1e-9)
    spoiled = replace(solution, coefficients=1.001 * solution.coefficients)
    denied = replace(solution, margin=np.full(len(solution), -2.0), bound=-np.ones(len(solution)))
    for wrong in (tight, spoiled, denied):
        assert len(list(judge(model, wrong, 1))) >= 8
