"""Softmax, quotients, roots and logarithms behind the aggregate: what the function itself says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from gnn_repair.exposure import expose
from gnn_repair.oracle import solve
from gnn_repair.oracle.heads import solve as solve_module
from gnn_repair.oracle.heads.solve import NAMED, EffortLimit
from tests.campaigns import heads
from tests.campaigns.heads import KINDS, Model, exposure_of, judge


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


def numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("kind", "seed", "scale"),
    [("attention", 2, 18.0), ("softmax of a layer", 6, 10.0), ("softmax as a gate", 7, 60.0)],
)
def test_no_bound_of_a_wide_softmax_is_beaten(kind, seed, scale):
    rng = np.random.default_rng(seed)
    function, fixed = KINDS[kind](numbers(seed), 4), rng.standard_normal((24, 4))
    messages = [scale * rng.standard_normal((2, 4)) for _ in range(24)]
    _, solution = asked(function, messages, fixed, "fast")
    assert solution.excluded.any() and solution.reachable.any()


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("log", [True, False])
def test_a_softmax_inside_a_head_takes_inputs_of_any_size(size, log):
    head = numbers(3)(3, 3)
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
    _, solution = asked(lambda x: function(x).flip(1), CROSSING)
    assert not solution.excluded.any() and np.isinf(solution.bound).all()


def test_a_bound_that_does_not_hold_when_recomputed_is_not_stated(monkeypatch):
    function = KINDS["softmax of a layer"](numbers(1), 4)
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
        lambda x: functional.relu(x.view(-1, 2, 2).norm(dim=2) - 1.0)[:, [0, 1, 1]] * x[:, :3],
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
    function = KINDS["division by y² + 0.1"](numbers(8), 3)
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
    function = KINDS["division by y² + 0.1"](numbers(8), 3)
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
    function = KINDS["relu"](numbers(2), 4)
    model = Model(function, np.zeros((8, 4)), [[1.0]] * 8, [[rng.standard_normal((3, 4))]] * 8)
    solution = solve(exposure_of(model), "all")
    assert solution.reachable.any() and list(judge(model, solution, 1)) == []
    tight = replace(solution, bound=solution.margin - 1e-6 * np.abs(solution.margin) - 1e-9)
    spoiled = replace(solution, coefficients=1.001 * solution.coefficients)
    denied = replace(solution, margin=np.full(len(solution), -2.0), bound=-np.ones(len(solution)))
    for wrong in (tight, spoiled, denied):
        assert len(list(judge(model, wrong, 1))) >= 8


class SparseAttention(nn.Module):
    """Attention as Σ e·h / Σ e, by two sparse products; the second one's messages are all equal."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.lin, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.score = nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, (source, target) = self.lin(self.enter(x).relu()), edge_index
        scores = self.score(torch.cat([h[target], h[source]], 1))[:, 0]
        raised = nn.functional.leaky_relu(scores, 0.2).exp()
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), raised, (len(x), len(x)))
        summed = torch.sparse.mm(matrix, torch.ones_like(x[:, :1]))
        return self.out(nn.functional.elu(torch.sparse.mm(matrix, h) / summed))


def test_a_quotient_of_two_sums_is_decided() -> None:
    torch.manual_seed(0)
    chance = torch.rand(16, 16)
    index = ((chance < 0.2) | torch.eye(16, dtype=torch.bool)).nonzero().t().contiguous()
    data = Data(x=torch.randn(16, 5).double(), edge_index=index)
    exposure = expose(SparseAttention().double(), data)
    assert exposure.head is not None
    for label in range(4):
        solution = solve(exposure, torch.full((16,), label))
        assert solution.decided.all()
