"""Labels in closed form against every corner of the polytope; all labels at once; heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv

import gnn_repair as gr
from gnn_repair.diagnosis import ValueDiagnosis
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.f1 import f1_from
from gnn_repair.oracle import Solution, ValueRange, solver
from gnn_repair.oracle.problems import Tables, build_lp
from gnn_repair.oracle.questions.joint import jointly
from tests.helpers.oracle.label_cases import corners, random_exposure
from tests.helpers.oracle.oracle_scipy import margin_by_scipy

# Closed forms against every corner of the polytope, and certificates that notice.


def truths(seed, nodes=7, outputs=3):
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(nodes, outputs, generator=draw) > 0.5).double()


def replaced(exposure, one):
    """α of all members with one answer's λ at its node."""
    lam, ends = exposure.coefficients.clone(), exposure.segments[:: exposure.num_groups]
    lam[:, ends[one.node] : ends[one.node + 1]] = 0
    lam[0, torch.from_numpy(one.terms)] = torch.from_numpy(one.coefficients)
    return lam


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [1, 3])
def test_margins_are_those_of_the_best_corner_and_their_witness_attains_them(seed, groups):
    exposure, y = random_exposure(seed, groups=groups), truths(seed)
    solution = gr.solve(exposure, y, threshold=0.25)
    assert len(solution) == 2 * 7 * 3 and solution.check(exposure).ok
    for one in solution:
        values = corners(exposure, one.node)[one.member, :, one.target] - 0.25
        best = float((values if y[one.node, one.target] else -values).max())
        assert one.margin == pytest.approx(best, abs=1e-12)
        assert one.bound == pytest.approx(best, abs=1e-12)
        lam = replaced(exposure, one)
        assert torch.allclose(exposure.masses(lam), exposure.mass, atol=1e-14)
        value = exposure.logits(lam)[one.member, one.node, one.target]
        assert one.value == pytest.approx(float(value), abs=1e-12)
        assert (exposure.sources[exposure.rows[one.terms].long()].numpy() == one.sources).all()


def test_some_labels_and_nodes_a_few_at_a_time_have_the_same_answers(monkeypatch):
    exposure, y = random_exposure(6), truths(6)
    whole = gr.solve(exposure, y)
    monkeypatch.setattr(solver, "CHUNK", 5)
    part = gr.solve(exposure, y, torch.tensor([5, 1]), labels=[2, 0], threads=2)
    assert part.node.tolist()[:4] == [5, 5, 1, 1] and part.target.tolist()[:4] == [0, 2, 0, 2]
    rows = {(w.member, w.node, w.target): w for w in whole}
    for other in (part, gr.solve(exposure, y, threads=1)):
        for one in other:
            same = rows[one.member, one.node, one.target]
            assert (one.margin, str(one)) == (same.margin, str(same))


def test_flip_asks_for_the_other_side():
    exposure = random_exposure(7)
    for threshold in (0.0, 0.7, -0.7):
        solution = gr.solve(exposure, "flip", threshold=threshold)
        says = exposure.frozen_logits.numpy()[solution.member, solution.node, solution.target]
        assert (solution.wanted == ~(says > threshold)).all()


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
    array = getattr(solution, name).copy()
    array[4] = value(array[4])
    found = replace(solution, **{name: array}).check(exposure)
    assert not found and getattr(found, field) > 0
    with pytest.raises(InputError, match="does not belong to this exposure"):
        solution.check(random_exposure(9, nodes=3))


def test_macro_is_the_mean_of_labels_and_micro_pools_them():
    score = f1_from([8, 0, 0], [0, 1, 0], [2, 1, 0])  # the last is neither there nor predicted
    assert score.micro == pytest.approx(16 / 20)
    assert score.macro == pytest.approx((16 / 18 + 0) / 2)
    assert np.isnan(f1_from([0], [0], [0]).macro)


@pytest.mark.parametrize("threshold", [0.0, -0.5])
@pytest.mark.parametrize("side", [True, False])
def test_sentences_say_which_side_how_far_and_who(side, threshold):
    exposure = random_exposure(12, members=1)
    solution = gr.solve(exposure, side, threshold=threshold)
    word, edge = ("above", "at most") if side else ("below", "at least")
    limits = threshold + np.where(side, 1, -1) * solution.bound
    for one, limit in zip(solution, limits, strict=True):
        said = str(one)
        assert said.startswith(f"node {one.node}, label {one.target} ")
        if not len(one.terms):
            assert "as it stands" in said and f"{one.value:.4g}" in said
        elif one.reachable:
            assert f" can be {word} {threshold:g}: {one.value:.4g} using node " in said
            assert f"node {one.sources[0]} (λ" in said and said.endswith(f"beyond {limit:.4g}")
        else:
            assert f"cannot be {word} {threshold:g}" in said and f"{edge} {limit:.4g}" in said
    assert {True, False} == set(solution.reachable)
    assert solution.to_frame()["value"].tolist() == pytest.approx(solution.value.tolist())


@pytest.mark.parametrize("count", [0, 1, 6, 7, 9])
def test_senders_in_use_are_named_the_largest_first_and_the_rest_are_counted(count):
    """Six at most; what is not in use is nobody's."""
    rng = np.random.default_rng(count)
    shares = np.concatenate([rng.permutation(1.0 + np.arange(count)), [1e-7, 4e-8]])
    one = gr.solve(random_exposure(12, members=1), torch.ones(7, 3))[0]
    groups, sources = np.zeros(len(shares), int), 10 + np.arange(len(shares))
    other = replace(one, coefficients=shares, sources=sources, groups=groups)
    named = [f"node {10 + i} (λ {shares[i]:.4g})" for i in np.argsort(-shares)[:count]]
    more = f" and {count - 6} more" if count > 6 else ""
    assert other.senders() == (", ".join(named[:6]) + more or "no message")


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_a_frame_says_what_is_predicted_at_the_threshold_that_was_asked(threshold):
    exposure = random_exposure(2)
    frame = gr.solve(exposure, truths(2), threshold=threshold).to_frame(exposure)
    logits = exposure.frozen_logits.numpy()[frame["member"], frame["node"], frame["label"]]
    assert frame["predicted"].tolist() == (logits > threshold).tolist()
    above = np.where(frame["wanted"], logits - threshold, threshold - logits)
    assert frame["frozen_margin"].to_numpy() == pytest.approx(above)


@pytest.mark.parametrize("name", ["member", "node", "target"])
def test_files_of_ranges_keep_both_ends_of_the_same_outputs(name, tmp_path):
    exposure = random_exposure(13)
    ranges = gr.value_range(exposure)
    ranges.save(tmp_path / "kept")
    read = ValueRange.load(tmp_path / "kept")
    for field in ("low", "high", "frozen"):
        np.testing.assert_array_equal(getattr(read, field), getattr(ranges, field))
    assert all(read.check(exposure))
    with pytest.raises(FileFormatError):
        Solution.load(tmp_path / "kept")
    numbers = getattr(ranges.upper, name).copy()
    numbers[0] += 1
    other = replace(ranges.upper, **{name: numbers})
    ValueRange(ranges.lower, other, ranges.frozen).save(tmp_path / "ends")
    with pytest.raises(InputError, match="same outputs"):
        ValueRange.load(tmp_path / "ends")
    with pytest.raises(InputError, match="coefficients"):
        replace(other, coefficients=-other.coefficients).save(tmp_path / "bad")


def test_other_questions_are_refused_by_name():
    exposure, numbers = random_exposure(14), torch.zeros(7, dtype=torch.long)
    values, plain = (replace(exposure, outputs=kind) for kind in ("values", "classes"))
    one = gr.value_range(exposure, outputs=1)
    for call, words in (
        (lambda: gr.solve(exposure, numbers), r"y has shape \[7\] instead of \[7, 3\]"),
        (lambda: gr.nearest_reweighting(exposure, numbers), "outputs are labels"),
        (lambda: gr.solve(plain, torch.ones(7, 3).long()), "outputs='labels'"),
        (lambda: gr.solve(exposure, torch.full((7, 3), 3)), "y holds 3 for label 0 of node 0"),
        (lambda: gr.reach(values, torch.ones(7, 3)), "outputs are values"),
        (lambda: gr.class_reach(exposure, [3]), "outputs are labels"),
        (lambda: gr.solve(values, torch.rand(7, 3)), r"for value 0 of node 0; .*value_range"),
        (lambda: gr.value_range(values).contains(torch.ones(7)), "every node and output"),
        (lambda: gr.value_range(exposure, outputs=[3]), r"0\.\.2"),
        (lambda: gr.value_range(exposure, outputs=[-1, 1]), r"0\.\.2"),
        (lambda: jointly(plain, truths(14)), "outputs are classes"),
        (lambda: jointly([], truths(14)), "exposure is a list"),
        (lambda: gr.solve(exposure, True).check("nothing"), "give what expose"),
        (lambda: one[0], "slice"),
        (lambda: one.lower.for_node(9), "node 9"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert set(one.lower.target.tolist()) == {1} and len(one.lower.for_node(3, member=0)) == 1


def test_ends_are_corners_and_every_value_between_is_a_mixture():
    exposure = random_exposure(15, kind="values")
    ranges = gr.value_range(exposure, torch.tensor([0, 3]), outputs=[1])
    for i, lower in enumerate(ranges.lower):
        values = corners(exposure, lower.node)[lower.member, :, 1]
        assert ranges.low[i] == pytest.approx(float(values.min()), abs=1e-12)
        assert ranges.high[i] == pytest.approx(float(values.max()), abs=1e-12)
        wish = ranges.low[i] + 0.3 * ranges.width[i]
        terms, lam = ranges.mixture_for(i, wish)
        full = replaced(exposure, replace(lower, terms=terms, coefficients=lam))
        assert torch.allclose(exposure.masses(full), exposure.mass)
        value = exposure.logits(full)[lower.member, lower.node, 1]
        assert float(value) == pytest.approx(wish, abs=1e-12)
    with pytest.raises(InputError, match="cannot be mixed to"):
        ranges.mixture_for(0, float(ranges.high[0]) + 1)


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_a_prediction_is_within_its_range_however_sums_are_rounded(end):
    exposure = random_exposure(15, members=1, kind="values")
    ranges, far = gr.value_range(exposure), -np.inf if end == "lower" else np.inf
    attained = getattr(ranges, end)
    ranges = replace(ranges, frozen=np.nextafter(attained.value, far))
    again = np.nextafter(ranges.frozen, far)
    nobodys = again + np.copysign(1e-9 * np.abs(again), far)
    for values, inside in ((ranges.frozen, True), (again, True), (nobodys, False)):
        y = torch.from_numpy(values.reshape(7, 3))
        assert (ranges.contains(y) == inside).all() and ((ranges.distance(y) == 0) == inside).all()
        frame = ValueDiagnosis(exposure, y, None, "nodes", ranges).to_frame()
        assert set(frame["verdict"]) == {"can" if inside else "cannot"}
        assert (frame["chance"] >= 0).all()
    assert (getattr(ranges, "low" if end == "lower" else "high") == ranges.frozen).all()
    terms, lam = ranges.mixture_for(0, float(again[0]))
    assert (terms == attained[0].terms).all()
    assert lam == pytest.approx(attained[0].coefficients, rel=1e-12)


# Models: all labels of a node under one reweighting, and outputs behind a nonlinear head.

NODES, LABELS = 18, 3


class Network(nn.Module):
    def __init__(self, conv: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.conv, self.after = conv, after

    def forward(self, x, edge_index):
        return self.after(self.conv(x, edge_index))


def exposed(after, outputs="labels", seed=0, conv=lambda: SAGEConv(3, 4)):
    torch.manual_seed(seed)
    x, edges = torch.randn(NODES, 3).double(), torch.randint(0, NODES, (2, 60))
    return gr.expose(
        Network(conv(), after()).double(), Data(x=x, edge_index=edges), outputs=outputs
    )


def two_heads():
    return GATConv(3, 5, heads=2, add_self_loops=False)


def two_headed(bent):
    """Of labels, by two groups of messages."""
    last = (nn.ReLU(), nn.Linear(10, LABELS)) if bent else (nn.Linear(10, LABELS),)
    draw = torch.Generator().manual_seed(7)
    y = (torch.rand(NODES, LABELS, generator=draw) > 0.5).double()
    return exposed(lambda: nn.Sequential(*last), conv=two_heads), y


def best_by_scipy(exposure, y, node: int, limit: float = 0.0) -> float:
    """max t: ±(z_k(λ) − θ) ≥ t for all known k, λ ≥ 0 of the groups' masses."""
    place, labels = int((exposure.recipients == node).nonzero()), ~y[node].isnan()
    problem = build_lp(Tables.from_exposure(exposure), 0, place, 0)
    sign = (2 * y[node][labels] - 1).numpy()
    table = exposure.contributions[0, exposure.rows[problem.terms].long()][:, labels].numpy()
    fixed = exposure.fixed_logits[0, node][labels].numpy() - limit
    numbers = {"gaps": sign * table, "fixed": sign * fixed, "rivals": np.flatnonzero(labels)}
    return margin_by_scipy(replace(problem, **numbers))


@pytest.mark.parametrize("limit", [0.0, 0.3])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_joint_margin_is_that_of_another_solver(unknown: bool, limit: float) -> None:
    exposure, y = two_headed(False)
    assert exposure.num_groups > 1
    if unknown:
        y[torch.arange(NODES), torch.arange(NODES) % LABELS] = torch.nan
        y[4] = torch.nan
    nodes = torch.arange(NODES).flip(0) if not unknown else None
    together = jointly(exposure, y, nodes, threshold=limit)
    solution = gr.solve(together, torch.zeros(NODES, dtype=torch.long))
    assert solution.check(together).ok and len(solution) == NODES
    alone = gr.solve(exposure, y, threshold=limit)
    right = (exposure.frozen_logits[0] > limit) == (y == 1)
    wins = together.frozen_logits[0].argmax(1) == 0
    for node, margin in zip(solution.node.tolist(), solution.margin, strict=True):
        known = ~y[node].isnan()
        if not known.any():
            assert margin == pytest.approx(1.0)
            continue
        assert margin == pytest.approx(best_by_scipy(exposure, y, node, limit), abs=1e-9)
        # No label does better with all than by itself.
        assert margin <= alone.margin[alone.node == node].min() + 1e-9
        assert bool(wins[node]) == bool(right[node][known].all())
    assert (solution.margin > 0).any() and (solution.margin < 0).any()


@pytest.mark.parametrize("unknown", [False, True])
def test_after_a_head_all_labels_are_asked_in_three_values(unknown):
    """A label that is not known decides nothing, and lets margins be at most one."""
    exposure, y = two_headed(True)
    few, zeros, chosen = y.clone(), torch.zeros(NODES, dtype=torch.long), torch.arange(6)
    few[:, 1] = torch.nan if unknown else y[:, 1]
    together = jointly(exposure, few, threshold=0.1)
    solution = gr.solve(together, zeros, chosen)
    assert solution.check(together).ok and (not unknown or (solution.margin <= 1).all())
    alone = gr.solve(exposure, few, chosen, threshold=0.1)
    assert alone.skipped == 6 * unknown
    for i, node in enumerate(solution.node):
        assert solution.margin[i] <= alone.bound[alone.node == node].min() + 1e-9
    again = together.replay(together.coefficients[0])
    torch.testing.assert_close(again, together.frozen_logits[0], rtol=1e-9, atol=1e-9)
    told = (2 * y - 1) * (exposure.frozen_logits[0] - 0.1)
    least = told[:, [0, 2]].amin(1).clamp(max=1.0) if unknown else told.amin(1)
    wins = -together.frozen_logits[0, :, 1:].amax(1)
    torch.testing.assert_close(wins, least, rtol=1e-12, atol=1e-12)


def sampled(exposure: Exposure, draws: int = 200) -> np.ndarray:
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


def curved():
    return nn.Sequential(nn.ReLU(), nn.Linear(4, 2))


ONES = torch.ones(NODES, 2)


@pytest.fixture(scope="module")
def bent():
    return exposed(curved)


@pytest.fixture(scope="module")
def answers(bent):
    return gr.solve(bent, ONES, torch.arange(12))


def test_verdicts_and_ranges_agree_with_what_sampling_finds(bent, answers):
    values = sampled(bent)
    assert answers.check(bent).ok and answers.target.tolist()[:4] == [0, 1, 0, 1]
    seen = values[:, answers.node, answers.target].max(0)
    assert (seen <= answers.bound + 1e-9).all()
    assert (answers.verdict[seen > 1e-6] == "can").all()
    assert (seen[answers.verdict == "cannot"] <= 0).all()
    assert {"can", "cannot"} <= set(answers.verdict.tolist())
    ranges = gr.value_range(bent, torch.arange(6), outputs=[1])
    assert all(ranges.check(bent)) and not ranges.exact
    values = values[:, ranges.lower.node, ranges.lower.target]
    assert (values >= ranges.low_bound - 1e-9).all() and (values <= ranges.high_bound + 1e-9).all()
    assert (ranges.low_bound <= ranges.low + 1e-9).all()
    assert (ranges.high <= ranges.high_bound + 1e-9).all()
    slack = (ranges.high_bound - ranges.high) + (ranges.low - ranges.low_bound)
    assert np.median(slack / (ranges.width + 1e-3)) < 0.3


def test_a_range_is_shown_with_what_is_attained_and_proved(bent, tmp_path):
    ranges = gr.value_range(replace(bent, outputs="values"), [2, 5], effort="fast")
    wide = replace(ranges.upper, bound=ranges.upper.bound + 2)
    ranges = ValueRange(replace(ranges.lower, bound=ranges.lower.bound + 1), wide, ranges.frozen)
    frame = ranges.to_frame()
    names = ("low", "high", "low_bound", "high_bound")
    for name in names:
        np.testing.assert_array_equal(frame[name], getattr(ranges, name))
    np.testing.assert_array_equal(frame["value"], bent.frozen_logits[0, [2, 5]].flatten())
    for i, row in enumerate(frame.itertuples()):
        said, ends = ranges.sentence(i), [f"{getattr(row, name):.4g}" for name in names]
        assert f"is {row.value:.4g}; reweighting takes it from {ends[0]} using" in said
        assert f"to {ends[1]} using" in said and said.endswith(f"[{ends[2]}, {ends[3]}]")
        for end, shown in ((ranges.lower, row.messages_low), (ranges.upper, row.messages_high)):
            assert shown == end.key_messages()[i] and end[i].senders() in said
    assert (frame["messages_low"] != frame["messages_high"]).any()
    with pytest.raises(InputError, match=r"values behind a head .* \.lower\.parts"):
        ranges.save(tmp_path / "whole")
    for number, part in enumerate(ranges.lower.parts):
        part.solution.save(tmp_path / str(number))


def test_only_what_a_part_attains_and_proves_may_be_stated(bent):
    """Of each question alone: a larger or smaller margin, and a bound that no part proves, whether
    it lies below the margin, at it, between it and the bound, or above."""
    values = replace(bent, outputs="values")
    ranges = gr.value_range(values, [1], effort="fast")
    solved = gr.solve(bent, ONES, [1], threshold=0.2)
    for solution, exposure in ((solved, bent), (ranges.upper, values)):
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
    with pytest.raises(InputError, match="proof per output"):
        solved.save("nowhere")


def heavier(part):
    return replace(part, coefficients=1.5 * part.coefficients)


def moved(part):
    """Every mass is kept, but by the next message of the first segment."""
    return replace(part, terms=part.terms[::-1].copy())


def lighter(part):
    return replace(part, margin=part.margin + 1e-3)


@pytest.mark.parametrize("damage", [heavier, moved, lighter])
def test_every_part_is_checked_by_all_of_its_own_proofs(bent, answers, damage):
    for k, part in enumerate(answers.parts):
        other = list(answers.parts)
        other[k] = replace(part, solution=damage(part.solution))
        assert not replace(answers, parts=tuple(other)).check(bent).ok
    liar = replace(bent, replay=lambda lam: -bent.replay(lam).abs())
    assert (answers.verdict == "can").any() and not answers.check(liar).ok


@pytest.mark.parametrize("nodes", [[0, 1, 2], [4, 1, 4]])
@pytest.mark.parametrize("headed", [True, False])
def test_answers_stand_in_the_order_of_the_questions(nodes, headed, bent):
    """Node by node as asked, each with all of its outputs, as in closed form."""
    exposure = bent if headed else exposed(lambda: nn.Linear(4, 2))
    ranges, labels = gr.value_range(exposure, nodes), gr.solve(exposure, "flip", nodes)
    for found in (ranges.lower, ranges.upper, labels):
        assert found.node.tolist() == np.repeat(nodes, 2).tolist()
        assert found.target.tolist() == [0, 1] * len(nodes)
    frozen = exposure.frozen_logits[0, nodes].numpy()
    np.testing.assert_array_equal(ranges.frozen.reshape(-1, 2), frozen)
    low, high = ranges.low.reshape(-1, 2), ranges.high.reshape(-1, 2)
    assert ((low <= frozen + 1e-9) & (frozen <= high + 1e-9)).all()
    assert all(ranges.check(exposure)) and labels.check(exposure).ok


@pytest.mark.parametrize("first", [nn.ReLU(), nn.LayerNorm(4)])
def test_a_range_is_the_best_that_any_round_attained_and_proved(first):
    """Whatever the rounds say of each question, stated is the largest margin and least bound."""

    def deep():
        return nn.Sequential(first, nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    ranges = gr.value_range(exposed(deep, "values"), torch.arange(8), effort="fast")
    rounds = 0
    for end in (ranges.lower, ranges.upper):
        for i in range(len(end)):
            told = []
            for part in end.parts:
                own = part.solution
                here = (own.recipient == end.recipient[i]) & (part.output == end.target[i])
                limit = torch.as_tensor(part.threshold).expand(NODES)[end.node[i]]
                shift = (1 if end.wanted[i] else -1) * float(limit)
                told += zip(own.margin[here] + shift, own.bound[here] + shift, strict=True)
            rounds = max(rounds, len({round(bound, 9) for _, bound in told}))
            assert end.margin[i] == pytest.approx(max(m for m, _ in told), abs=1e-9)
            assert end.bound[i] == pytest.approx(min(b for _, b in told), abs=1e-9)
    assert rounds > 1


def test_a_node_that_is_named_twice_counts_once():
    exposure, y, twice = random_exposure(1), truths(1), torch.tensor([4, 2, 4])
    assert str(gr.reach(exposure, y, twice)) == str(gr.reach(exposure, y, twice[:2]))
    classes = replace(exposure, outputs="classes")
    assert gr.class_reach(classes, twice).node.tolist() == [2, 4] * exposure.num_members
