"""Labels in closed form against every corner of the polytope; all labels at once; heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv

import gnn_repair as gr
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle import Solution, ValueRange
from gnn_repair.oracle.questions.joint import jointly
from tests.helpers.oracle.label_cases import corners, random_exposure

# Labels in closed form against every corner of the polytope, and certificates that notice.


def truths(seed, nodes=7, outputs=3):
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(nodes, outputs, generator=draw) > 0.5).double()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", [1, 3])
def test_the_margin_is_the_best_corner(seed, groups):
    exposure = random_exposure(seed, groups=groups)
    y = truths(seed)
    solution = gr.solve(exposure, y, threshold=0.25)
    assert len(solution) == 2 * 7 * 3
    for i in range(len(solution)):
        node, output = solution.node[i], solution.target[i]
        values = corners(exposure, int(node))[solution.member[i], :, output] - 0.25
        best = (values if y[node, output] else -values).max()
        assert solution.margin[i] == pytest.approx(float(best), abs=1e-12)
        assert solution.bound[i] == pytest.approx(float(best), abs=1e-12)
    assert solution.check(exposure).ok


def test_the_witness_attains_the_margin_and_keeps_every_mass():
    exposure = random_exposure(4)
    solution = gr.solve(exposure, truths(4))
    groups = exposure.num_groups
    for i in range(len(solution)):
        one = solution[i]
        lam = exposure.coefficients.clone()
        first, last = exposure.segments[::groups][[solution.node[i], solution.node[i] + 1]].tolist()
        lam[:, first:last] = 0
        lam[0, torch.from_numpy(one.terms)] = torch.from_numpy(one.coefficients)
        assert torch.allclose(exposure.masses(lam), exposure.mass, atol=1e-14)
        value = exposure.logits(lam)[one.member, solution.node[i], solution.target[i]]
        assert one.value == pytest.approx(float(value), abs=1e-12)
        assert (exposure.sources[exposure.rows[one.terms].long()].numpy() == one.sources).all()


def test_some_labels_and_nodes_give_the_same_answers():
    exposure, y = random_exposure(6), truths(6)
    whole = gr.solve(exposure, y)
    part = gr.solve(exposure, y, torch.tensor([5, 1]), labels=[2, 0], threads=2)
    assert part.node.tolist()[:4] == [5, 5, 1, 1]
    assert part.target.tolist()[:4] == [0, 2, 0, 2]
    for i in range(len(part)):
        same = (whole.member == part.member[i]) & (whole.node == part.node[i])
        same &= whole.target == part.target[i]
        assert whole.margin[same] == part.margin[i]


def test_flip_asks_for_the_other_side():
    exposure = random_exposure(7)
    for threshold in (0.0, 0.7, -0.7):
        solution = gr.solve(exposure, "flip", threshold=threshold)
        says = exposure.frozen_logits.numpy()[solution.member, solution.node, solution.target]
        assert (solution.wanted == ~(says > threshold)).all()


def changed(solution, name, value):
    array = getattr(solution, name).copy()
    array[4] = value(array[4])
    return replace(solution, **{name: array})


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("margin", lambda m: m + 1e-6, "margin"),
        ("bound", lambda b: b - 1e-6, "bound"),
        ("wanted", lambda w: ~w, "margin"),
        ("coefficients", lambda c: c * (1 + 1e-6), "mass"),
        ("sources", lambda s: s + 1, "misplaced"),
    ],
)
def test_a_changed_number_is_noticed(name, value, field):
    exposure = random_exposure(9)
    solution = gr.solve(exposure, truths(9))
    assert solution.check(exposure)
    found = changed(solution, name, value).check(exposure)
    assert not found
    assert getattr(found, field) > 0


def test_a_second_best_message_is_noticed():
    """λ on another term of the same group, its margin stated honestly: the bound gives it away."""
    exposure = random_exposure(0, groups=1, members=1)
    solution = gr.solve(exposure, torch.ones(7, 3), torch.tensor([0]))
    first, last = exposure.segments[:2].tolist()
    other = next(t for t in range(first, last) if t != solution.terms[0])
    terms, sources = solution.terms.copy(), solution.sources.copy()
    terms[0], sources[0] = other, int(exposure.sources[int(exposure.rows[other])])
    fake = replace(solution, terms=terms, sources=sources)
    assert fake.check(exposure).margin > 1e-6
    row = int(exposure.rows[other])
    mass = float(exposure.mass[0, 0, 0])
    honest = float(exposure.fixed_logits[0, 0, 0]) + mass * float(exposure.contributions[0, row, 0])
    margin, bound = solution.margin.copy(), solution.bound.copy()
    margin[0] = bound[0] = honest
    found = replace(fake, margin=margin, bound=bound).check(exposure)
    assert found.margin < 1e-12
    assert found.bound > 1e-6


def test_another_exposure_is_refused():
    solution = gr.solve(random_exposure(10), truths(10))
    with pytest.raises(InputError, match="does not belong to this exposure"):
        solution.check(random_exposure(10, nodes=3))
    with pytest.raises(InputError, match="give what expose"):
        solution.check("nothing")


def test_macro_is_the_mean_of_labels_and_micro_pools_them():
    from gnn_repair.f1 import f1_from

    score = f1_from([8, 0, 0], [0, 1, 0], [2, 1, 0])  # the last is neither there nor predicted
    assert score.micro == pytest.approx(16 / 20)
    assert score.macro == pytest.approx((16 / 18 + 0) / 2)
    assert f1_from([0], [0], [0]).macro != f1_from([0], [0], [0]).macro


def test_sentences_say_which_side_and_who():
    exposure = random_exposure(12, members=1)
    solution = gr.solve(exposure, torch.ones(7, 3))
    can = int(np.flatnonzero(solution.reachable)[0])
    text = str(solution[can])
    assert f"node {solution.node[can]}, label {solution.target[can]} can be above 0" in text
    assert f"node {solution[can].sources[0]} (λ" in text
    no = int(np.flatnonzero(~solution.reachable)[0])
    assert f"cannot be above 0: under every reweighting it is at most {solution.bound[no]:.4g}" in (
        str(solution[no])
    )
    frame = solution.to_frame()
    assert frame["verdict"].tolist() == solution.verdict.tolist()
    assert frame["value"].tolist() == pytest.approx(solution.value.tolist())
    assert len(solution[2:5]) == 3
    assert solution[2:5].margin.tolist() == solution.margin[2:5].tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 9])
def test_senders_in_use_are_named_the_largest_first_and_the_rest_are_counted(count):
    """Six at most; what is not in use is nobody's."""
    rng = np.random.default_rng(count)
    shares = np.concatenate([rng.permutation(1.0 + np.arange(count)), [1e-7, 4e-8]])
    one = gr.solve(random_exposure(12, members=1), torch.ones(7, 3))[0]
    other = replace(
        one, coefficients=shares, sources=10 + np.arange(len(shares)), groups=0 * shares.astype(int)
    )
    named = [f"node {10 + i} (λ {shares[i]:.4g})" for i in np.argsort(-shares)[:count]]
    more = f" and {count - 6} more" if count > 6 else ""
    assert other.senders() == (", ".join(named[:6]) + more or "no message")


def test_files_keep_everything_and_refuse_what_does_not_fit(tmp_path):
    exposure = random_exposure(13)
    solution = gr.solve(exposure, truths(13), threshold=0.5)
    solution.save(tmp_path / "one")
    again = Solution.load(tmp_path / "one")
    assert again.check(exposure).ok
    assert again.threshold == 0.5
    assert str(again[0]) == str(solution[0])
    ranges = gr.value_range(exposure)
    ranges.save(tmp_path / "two")
    read = ValueRange.load(tmp_path / "two")
    assert (read.low == ranges.low).all()
    assert (read.frozen == ranges.frozen).all()
    assert all(read.check(exposure))
    with pytest.raises(FileFormatError):
        Solution.load(tmp_path / "two")
    with pytest.raises(InputError, match="coefficients must be positive"):
        replace(solution, coefficients=-solution.coefficients).save(tmp_path / "bad")


def test_other_questions_are_refused_by_name():
    exposure = random_exposure(14)
    with pytest.raises(InputError, match=r"y has shape \[7\] instead of \[7, 3\]"):
        gr.solve(exposure, torch.zeros(7, dtype=torch.long))
    with pytest.raises(InputError, match="outputs are labels, and this is about classes"):
        gr.nearest_reweighting(exposure, torch.zeros(7, dtype=torch.long))
    plain = replace(exposure, outputs="classes")
    with pytest.raises(InputError, match="expose the model with outputs='labels'"):
        gr.solve(plain, torch.ones(7, 3).long())
    with pytest.raises(InputError, match="y holds 3 for label 0 of node 0"):
        gr.solve(exposure, torch.full((7, 3), 3))


def test_ends_are_corners_and_every_value_between_is_a_mixture():
    exposure = random_exposure(15, kind="values")
    ranges = gr.value_range(exposure, torch.tensor([0, 3]), outputs=[1])
    for i in range(len(ranges)):
        member, node = ranges.lower.member[i], int(ranges.lower.node[i])
        values = corners(exposure, node)[member, :, 1]
        assert ranges.low[i] == pytest.approx(float(values.min()), abs=1e-12)
        assert ranges.high[i] == pytest.approx(float(values.max()), abs=1e-12)
        wish = ranges.low[i] + 0.3 * ranges.width[i]
        terms, lam = ranges.mixture_for(i, wish)
        full = exposure.coefficients.clone()
        ends = exposure.segments[:: exposure.num_groups]
        full[:, ends[node] : ends[node + 1]] = 0
        full[0, torch.from_numpy(terms)] = torch.from_numpy(lam)
        assert torch.allclose(exposure.masses(full), exposure.mass)
        assert float(exposure.logits(full)[member, node, 1]) == pytest.approx(wish, abs=1e-12)
    with pytest.raises(InputError, match="cannot be mixed to"):
        ranges.mixture_for(0, float(ranges.high[0]) + 1)


# All labels of a node under one reweighting, against a linear program of another solver.

NODES, LABELS = 18, 3


class Heads(nn.Module):
    def __init__(self, bent: bool = False) -> None:
        super().__init__()
        self.conv = GATConv(4, 5, heads=2, add_self_loops=False)
        self.head, self.bent = nn.Linear(10, LABELS), bent

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        return self.head(x.relu() if self.bent else x)


def exposed(bent: bool = False):
    torch.manual_seed(7)
    edges = torch.randint(0, NODES, (2, 60))
    data = Data(x=torch.randn(NODES, 4).double(), edge_index=edges)
    y = (torch.rand(NODES, LABELS) > 0.5).double()
    return gr.expose(Heads(bent).double(), data, outputs="labels"), y


def best_by_linprog(exposure, y, node: int, limit: float = 0.0) -> float:
    """max t: ±(z_k(λ) − θ) ≥ t for all known k, λ ≥ 0 of the groups' masses."""
    place = int((exposure.recipients == node).nonzero())
    groups = exposure.num_groups
    cuts = exposure.segments[place * groups : (place + 1) * groups + 1].tolist()
    terms = range(cuts[0], cuts[-1])
    table = exposure.contributions[0, exposure.rows[list(terms)].long()].numpy()
    known = ~torch.isnan(y[node])
    sign = (2 * y[node][known] - 1).numpy()
    table, fixed = table[:, known.numpy()], exposure.fixed_logits[0, node][known].numpy()
    upper = np.hstack([-(table * sign).T, np.ones((len(sign), 1))])
    present = [g for g in range(groups) if cuts[g + 1] > cuts[g]]
    equal = np.zeros((len(present), len(terms) + 1))
    for i, g in enumerate(present):
        equal[i, cuts[g] - cuts[0] : cuts[g + 1] - cuts[0]] = 1
    mass = exposure.mass[0, place].numpy()[present]
    cost = np.append(np.zeros(len(terms)), -1.0)
    bounds = [(0, None)] * len(terms) + [(None, None)]
    found = linprog(cost, upper, sign * (fixed - limit), equal, mass, bounds=bounds)
    return -found.fun


@pytest.mark.parametrize("limit", [0.0, 0.3])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_joint_margin_is_that_of_another_solver(unknown: bool, limit: float) -> None:
    exposure, y = exposed()
    if unknown:
        y[torch.arange(NODES), torch.arange(NODES) % LABELS] = torch.nan
    together = jointly(exposure, y, threshold=limit)
    solution = gr.solve(together, torch.zeros(NODES, dtype=torch.long))
    assert solution.check(together).ok
    told = [best_by_linprog(exposure, y, int(node), limit) for node in solution.node]
    assert solution.margin == pytest.approx(told, abs=1e-9)
    assert (solution.margin > 0).any() and (solution.margin < 0).any()
    alone = gr.solve(exposure, y, threshold=limit)
    for i, node in enumerate(solution.node):  # no label does better with all than by itself
        assert solution.margin[i] <= alone.margin[alone.node == node].min() + 1e-9


def test_some_nodes_and_nodes_without_labels():
    exposure, y = exposed()
    y[4] = torch.nan
    chosen = torch.tensor([4, 2, 9])
    together = jointly(exposure, y, chosen)
    solution = gr.solve(together, torch.zeros(NODES, dtype=torch.long))
    assert sorted(solution.node.tolist()) == [2, 4, 9]
    found = dict(zip(solution.node.tolist(), solution.margin.tolist(), strict=True))
    assert found[4] == pytest.approx(1.0)
    for node in (2, 9):
        assert found[node] == pytest.approx(best_by_linprog(exposure, y, node), abs=1e-9)
    right = ((exposure.frozen_logits[0] > 0) == (y == 1)).all(1)
    wins = together.frozen_logits[0].argmax(1) == 0
    assert wins[[2, 9]].tolist() == right[[2, 9]].tolist()


def test_after_a_tail_all_labels_are_asked_in_three_values():
    exposure, y = exposed(bent=True)
    together = jointly(exposure, y)
    zeros = torch.zeros(NODES, dtype=torch.long)
    solution = gr.solve(together, zeros, torch.arange(8))
    assert solution.check(together).ok
    alone = gr.solve(exposure, y, torch.arange(8))
    for i, node in enumerate(solution.node):
        assert solution.margin[i] <= alone.bound[alone.node == node].min() + 1e-9
    again = together.replay(together.coefficients[0])
    torch.testing.assert_close(again, together.frozen_logits[0], rtol=1e-9, atol=1e-9)
    sign = 2 * y - 1
    told = (sign * exposure.frozen_logits[0]).amin(1)
    logits = together.frozen_logits[0]
    torch.testing.assert_close(-logits[:, 1:].amax(1), told, rtol=1e-12, atol=1e-12)


def test_after_a_tail_an_unknown_label_decides_nothing():
    exposure, y = exposed(bent=True)
    few = y.clone()
    few[:, 1] = torch.nan
    zeros, chosen = torch.zeros(NODES, dtype=torch.long), torch.arange(6)
    together = jointly(exposure, few, threshold=0.1)
    solution = gr.solve(together, zeros, chosen)
    assert solution.check(together).ok and (solution.margin <= 1).all()
    rest = ((2 * y - 1) * (exposure.frozen_logits[0] - 0.1))[:, [0, 2]].amin(1)
    wins = -together.frozen_logits[0, :, 1:].amax(1)
    torch.testing.assert_close(wins, rest.clamp(max=1.0), rtol=1e-12, atol=1e-12)


def test_what_has_no_labels_is_refused():
    exposure, y = exposed()
    with pytest.raises(InputError, match="the exposure's outputs are classes"):
        jointly(jointly(exposure, y), y)
    with pytest.raises(InputError, match="exposure is a list; give what expose"):
        jointly([], y)


# Single outputs after a nonlinear head: answers that hold, bounds that contain, proofs.

NODES_LABEL_HEADS = 24


class Network(nn.Module):
    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.conv = SAGEConv(3, 4)
        self.after = after

    def forward(self, x, edge_index):
        return self.after(self.conv(x, edge_index))


def exposed_label_heads(after: nn.Module, outputs: str, seed: int = 0) -> Exposure:
    torch.manual_seed(seed)
    model = Network(after).double()
    data = Data(
        x=torch.randn(NODES_LABEL_HEADS, 3).double(),
        edge_index=torch.randint(0, NODES_LABEL_HEADS, (2, 70)),
    )
    return gr.expose(model, data, outputs=outputs)


def sampled(exposure: Exposure, draws: int = 400) -> np.ndarray:
    """Outputs [draws, N, K] at random λ, half of them corners."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for k in range(draws):
        shares = torch.rand(1, exposure.num_terms, generator=draw, dtype=torch.float64)
        shares = shares ** (1 if k % 2 else 40)
        ratio = exposure.mass / exposure.masses(shares).clamp(min=1e-300)
        lam = shares * torch.repeat_interleave(ratio.view(1, -1), exposure.segments.diff(), dim=1)
        found.append(exposure.logits(lam)[0].numpy())
    return np.stack(found)


@pytest.fixture(scope="module")
def bent():
    torch.manual_seed(0)
    return exposed_label_heads(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), "labels")


def test_verdicts_agree_with_what_sampling_finds(bent):
    values = sampled(bent)
    solution = gr.solve(bent, torch.ones(NODES_LABEL_HEADS, 2), torch.arange(12))
    assert solution.check(bent).ok
    assert solution.target.tolist()[:4] == [0, 1, 0, 1]
    seen = values[:, solution.node, solution.target].max(0)
    assert (seen <= solution.bound + 1e-9).all()
    assert (solution.verdict[seen > 1e-6] == "can").all()
    cannot = solution.verdict == "cannot"
    assert (seen[cannot] <= 0).all()
    assert {"can", "cannot"} <= set(solution.verdict.tolist())


def test_only_what_a_part_attains_and_proves_may_be_stated(bent):
    """Of each question alone: a larger or smaller margin, and a bound that no part proves, whether
    it lies below the margin, at it, between it and the bound, or above."""
    ranges = gr.value_range(replace(bent, outputs="values"), [1], effort="fast")
    solved = gr.solve(bent, torch.ones(NODES_LABEL_HEADS, 2), [1])
    for solution, exposure in (
        (solved, bent),
        (ranges.upper, replace(bent, outputs="values")),
    ):
        assert solution.check(exposure).ok
        for i in (0, len(solution) - 1):
            margin, gap = solution.margin[i], solution.gap[i]
            claims = [("bound", x) for x in (margin - 0.1, margin, margin + gap / 2)]
            claims = [*claims[:1], *claims[1:] * bool(gap > 1e-6), ("bound", margin + gap + 0.1)]
            for name, value in (*claims, ("margin", margin + 1e-3), ("margin", margin - 1e-3)):
                numbers = getattr(solution, name).copy()
                numbers[i] = value
                said = replace(solution, **{name: numbers}).check(exposure)
                assert not said.ok and said.misplaced == 1, (i, name, value)
        for name, other in (("target", 1 - solution.target), ("wanted", ~solution.wanted)):
            assert not replace(solution, **{name: other}).check(exposure).ok
        assert not replace(solution, parts=solution.parts[:1]).check(exposure).ok
    with pytest.raises(InputError, match="hold a proof per output"):
        solved.save("nowhere")


def test_ranges_hold_every_sample_and_are_nearly_closed(bent):
    ranges = gr.value_range(bent, torch.arange(6), outputs=[1])
    assert all(ranges.check(bent))
    assert not ranges.exact
    values = sampled(bent)[:, ranges.lower.node, ranges.lower.target]
    assert (values >= ranges.low_bound - 1e-9).all()
    assert (values <= ranges.high_bound + 1e-9).all()
    assert (ranges.low_bound <= ranges.low + 1e-9).all()
    slack = (ranges.high_bound - ranges.high) + (ranges.low - ranges.low_bound)
    assert np.median(slack / (ranges.width + 1e-3)) < 0.3


@pytest.mark.parametrize("nodes", [[0, 1, 2], [5, 2, 9], [4, 1, 4]])
def test_answers_stand_in_the_order_of_the_questions(bent, nodes):
    """Node by node as asked, each with all of its outputs, as in closed form."""
    plain = exposed_label_heads(nn.Linear(4, 2), "labels")
    for exposure in (bent, plain):
        ranges, labels = gr.value_range(exposure, nodes), gr.solve(exposure, "flip", nodes)
        for found in (ranges.lower, ranges.upper, labels):
            assert found.node.tolist() == np.repeat(nodes, 2).tolist()
            assert found.target.tolist() == [0, 1] * len(nodes)
        frozen = exposure.frozen_logits[0, nodes].numpy()
        np.testing.assert_array_equal(ranges.frozen.reshape(-1, 2), frozen)
        low, high = ranges.low.reshape(-1, 2), ranges.high.reshape(-1, 2)
        assert ((low <= frozen + 1e-9) & (frozen <= high + 1e-9)).all()
        assert all(ranges.check(exposure)) and labels.check(exposure).ok


def test_a_sigmoid_at_the_end_is_taken_off_and_the_rest_is_exact():
    last = nn.Linear(4, 2)
    plain = exposed_label_heads(last, "labels")
    squashed = exposed_label_heads(nn.Sequential(last, nn.Sigmoid()), "labels")
    assert squashed.head is None
    assert "sigmoid at its end is taken off" in squashed.called
    assert torch.allclose(plain.frozen_logits, squashed.frozen_logits, atol=1e-12)
    ours = gr.solve(squashed, "flip")
    theirs = gr.solve(plain, "flip")
    assert ours.margin == pytest.approx(theirs.margin, abs=1e-12)
    assert ours.check(squashed).ok


def test_as_a_value_the_sigmoid_stays():
    kept = exposed_label_heads(
        nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0)), "values"
    )
    assert kept.head is not None
    ranges = gr.value_range(kept, torch.arange(3))
    assert ((ranges.low >= 0) & (ranges.high <= 1)).all()
    plain = gr.value_range(exposed_label_heads(nn.Linear(4, 1), "values"), torch.arange(3))
    assert ranges.high == pytest.approx(1 / (1 + np.exp(-plain.high)), abs=1e-3)
    assert ranges.low == pytest.approx(1 / (1 + np.exp(-plain.low)), abs=1e-3)


def test_bent_labels_behind_a_sigmoid_are_replayed_in_logits():
    after = nn.Sequential(nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())
    exposure = exposed_label_heads(after, "labels")
    solution = gr.solve(exposure, torch.ones(NODES_LABEL_HEADS, 2), torch.arange(4))
    plain = exposed_label_heads(after[:2], "labels")
    other = gr.solve(plain, torch.ones(NODES_LABEL_HEADS, 2), torch.arange(4))
    assert solution.verdict.tolist() == other.verdict.tolist()
    assert solution.check(exposure).ok


class Unit(nn.Module):
    """A row divided by its length."""

    def forward(self, x):
        return nn.functional.normalize(x, dim=1)


def test_outputs_of_normalised_rows_that_never_read_the_length():
    """The sign of w · x/‖x‖ is that of w · x, so that every answer has a closed form."""
    head = nn.Linear(4, 1, bias=False)
    nn.init.constant_(head.weight, 0.5)
    unit = exposed_label_heads(nn.Sequential(Unit(), head), "labels", seed=3)
    plain = exposed_label_heads(head, "labels", seed=3)
    chosen = torch.arange(10)
    found, told = (gr.solve(e, torch.ones(NODES_LABEL_HEADS, 1), chosen) for e in (unit, plain))
    assert found.check(unit).ok
    assert not ((found.bound < 0) & (told.margin > 0)).any()
    assert not ((found.margin > 0) & (told.margin < 0)).any()
    assert (told.margin > 0).any() and (told.margin < 0).any()


# Sentences, frames and files of label solutions, number by number.


def test_reach_is_of_labels_and_outputs_are_chosen_by_number():
    exposure = random_exposure(5, members=1)
    with pytest.raises(InputError, match="outputs are values, and this is about labels"):
        gr.reach(replace(exposure, outputs="values"), torch.ones(7, 3))
    with pytest.raises(InputError, match=r"outputs are numbered 0\.\.2"):
        gr.value_range(exposure, outputs=[3])
    with pytest.raises(InputError, match=r"outputs are numbered 0\.\.2"):
        gr.value_range(exposure, outputs=[-1, 1])
    one = gr.value_range(exposure, outputs=1)
    assert set(one.lower.target.tolist()) == {1}
    with pytest.raises(InputError, match="cut by a slice"):
        one[0]
    with pytest.raises(InputError, match="node 9 was not solved"):
        one.lower.for_node(9)
    assert len(one.lower.for_node(3)) == 1
    with pytest.raises(IndexError):
        one.lower[7]
    assert str(one.upper[-1]) == str(one.upper[6])


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_a_frame_says_what_is_predicted_at_the_threshold_that_was_asked(threshold):
    exposure = random_exposure(2)
    frame = gr.solve(exposure, truths(2), threshold=threshold).to_frame(exposure)
    logits = exposure.frozen_logits.numpy()[frame["member"], frame["node"], frame["label"]]
    assert frame["predicted"].tolist() == (logits > threshold).tolist()
    above = np.where(frame["wanted"], logits - threshold, threshold - logits)
    assert frame["frozen_margin"].to_numpy() == pytest.approx(above)


def heavier(part):
    return replace(part, coefficients=1.5 * part.coefficients)


def moved(part):
    """Every mass is kept, but by the next message of the first segment."""
    return replace(part, terms=part.terms[::-1].copy())


def lighter(part):
    return replace(part, margin=part.margin + 1e-3)


@pytest.mark.parametrize("damage", [heavier, moved, lighter])
def test_every_part_is_checked_by_all_of_its_own_proofs(bent, damage):
    solution = gr.solve(bent, torch.ones(NODES_LABEL_HEADS, 2), torch.arange(12))
    assert solution.check(bent).ok
    for k, part in enumerate(solution.parts):
        other = list(solution.parts)
        other[k] = replace(part, solution=damage(part.solution))
        assert not replace(solution, parts=tuple(other)).check(bent).ok


def test_a_part_that_does_not_win_when_run_again_is_noticed(bent):
    solution = gr.solve(bent, torch.ones(NODES_LABEL_HEADS, 2), torch.arange(12))
    assert (solution.verdict == "can").any()
    assert not solution.check(replace(bent, replay=lambda lam: -bent.replay(lam).abs())).ok


def test_a_range_is_the_best_that_any_round_attained_and_proved():
    """Whatever the rounds say of each question, stated is the largest margin and least bound."""
    torch.manual_seed(0)
    bent = exposed_label_heads(
        nn.Sequential(nn.ReLU(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), "values"
    )
    ranges = gr.value_range(bent, torch.arange(12), effort="fast")
    rounds = 0
    for end in (ranges.lower, ranges.upper):
        for i in range(len(end)):
            told = []
            for part in end.parts:
                here = (part.solution.recipient == end.recipient[i]) & (
                    part.output == end.target[i]
                )
                sign = 1 if end.wanted[i] else -1
                shift = sign * float(
                    torch.as_tensor(part.threshold).expand(NODES_LABEL_HEADS)[end.node[i]]
                )
                told += [
                    (part.solution.margin[j] + shift, part.solution.bound[j] + shift)
                    for j in np.flatnonzero(here)
                ]
            rounds = max(rounds, len({round(bound, 9) for _, bound in told}))
            assert end.margin[i] == pytest.approx(max(m for m, _ in told), abs=1e-9)
            assert end.bound[i] == pytest.approx(min(b for _, b in told), abs=1e-9)
    assert rounds > 1


@pytest.mark.parametrize("name", ["member", "node", "target"])
def test_two_ends_of_other_outputs_are_no_range(name, tmp_path):
    ranges = gr.value_range(exposed_label_heads(nn.Linear(4, 2), "values"), torch.arange(3))
    numbers = getattr(ranges.upper, name).copy()
    numbers[0] += 1
    ValueRange(ranges.lower, replace(ranges.upper, **{name: numbers}), ranges.frozen).save(
        tmp_path / "ends"
    )
    with pytest.raises(InputError, match="not of the same outputs"):
        ValueRange.load(tmp_path / "ends")
