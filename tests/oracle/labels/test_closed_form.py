"""Labels in closed form against every corner of the polytope, and certificates that notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.oracle import Solution, ValueRange
from tests.helpers.oracle.label_cases import corners, random_exposure


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


def test_unknown_truths_are_skipped_and_counted():
    exposure, y = random_exposure(5, members=1), truths(5)
    y[2, 1], y[3, 0] = float("nan"), -1
    solution = gr.solve(exposure, y)
    assert len(solution) == 21 - 2
    assert solution.skipped == 2
    pairs = set(zip(solution.node.tolist(), solution.target.tolist(), strict=True))
    assert (2, 1) not in pairs
    assert (3, 0) not in pairs


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


def test_a_member_mask_asks_each_member_about_its_own_nodes():
    exposure = random_exposure(8)
    mask = torch.zeros(7, 2, dtype=torch.bool)
    mask[1, 0] = mask[4, 1] = True
    solution = gr.solve(exposure, truths(8), mask)
    assert sorted(set(zip(solution.member.tolist(), solution.node.tolist(), strict=True))) == [
        (0, 1),
        (1, 4),
    ]


# Certificates -------------------------------------------------------------------------------------


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


# Reach --------------------------------------------------------------------------------------------


def test_reach_counts_by_hand():
    """Every figure from the corners of the polytope and the frozen logits alone."""
    exposure = random_exposure(11, nodes=4, groups=1, outputs=2, members=1)
    y = truths(11, 4, 2)
    found = gr.reach(exposure, y)
    can, turns = np.zeros((2, 4, 2), bool)
    for node in range(4):
        values = corners(exposure, node)[0]
        sides = torch.where(y[node] == 1, values, -values)
        can[node], turns[node] = (sides.amax(0) > 1e-7).numpy(), (sides.amin(0) < -1e-7).numpy()
    wrong = (exposure.frozen_logits[0] > 0).numpy() != (y == 1).numpy()
    assert [one.reach.hits for one in found.labels] == can.sum(0).tolist()
    assert [one.error.total for one in found.labels] == wrong.sum(0).tolist()
    assert [one.error.hits for one in found.labels] == (can & wrong).sum(0).tolist()
    assert [one.chance.hits for one in found.labels] == (turns & ~wrong).sum(0).tolist()
    assert found.chance.total == (~wrong).sum() and 0 < found.chance.hits < found.chance.total
    excess = can[wrong].mean() - turns[~wrong].mean()
    assert found.excess.low == pytest.approx(excess)
    assert found.excess.interval[0] < excess < found.excess.interval[1]
    assert found.micro.value == pytest.approx(can.mean())
    assert found.macro == pytest.approx(can.mean(0).mean())
    truth = (y == 1).numpy()
    hits = (truth & ~wrong).sum()
    assert found.frozen.micro == pytest.approx(2 * hits / (2 * hits + wrong.sum()))
    left = wrong & ~can
    best = (truth & ~left).sum()
    assert found.best.micro == pytest.approx(2 * best / (2 * best + left.sum()))
    assert "label reach" in str(found)
    assert found.to_frame()["hits"].tolist() == can.sum(0).tolist()


def test_macro_is_the_mean_of_labels_and_micro_pools_them():
    from gnn_repair.f1 import f1_from

    score = f1_from([8, 0, 0], [0, 1, 0], [2, 1, 0])  # the last is neither there nor predicted
    assert score.micro == pytest.approx(16 / 20)
    assert score.macro == pytest.approx((16 / 18 + 0) / 2)
    assert f1_from([0], [0], [0]).macro != f1_from([0], [0], [0]).macro


# Words, frames, files -----------------------------------------------------------------------------


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


# Values -------------------------------------------------------------------------------------------


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


def test_a_value_is_inside_or_as_far_away_as_said():
    exposure = random_exposure(16, outputs=1, members=1, kind="values")
    ranges = gr.value_range(exposure)
    y = torch.from_numpy(ranges.high.copy())
    y[1] += 2
    y[2] -= ranges.width[2] + 3
    assert ranges.contains(y).tolist() == [True, False, False, True, True, True, True]
    assert ranges.distance(y)[:3] == pytest.approx([0, 2, 3])
    assert "value 0" in ranges.sentence(0)
    assert ranges.to_frame()["low"].tolist() == ranges.low.tolist()


def test_the_simplex_on_two_classes_agrees():
    from benchmarks.oracle import bench_labels

    row = bench_labels(nodes=120, labels=4, neighbours=5)
    assert row["terms"] == 120 * 2 * 5
    assert row["largest difference"] < 1e-12


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_a_frame_says_what_is_predicted_at_the_threshold_that_was_asked(threshold):
    exposure = random_exposure(2)
    frame = gr.solve(exposure, truths(2), threshold=threshold).to_frame(exposure)
    logits = exposure.frozen_logits.numpy()[frame["member"], frame["node"], frame["label"]]
    assert frame["predicted"].tolist() == (logits > threshold).tolist()
    above = np.where(frame["wanted"], logits - threshold, threshold - logits)
    assert frame["frozen_margin"].to_numpy() == pytest.approx(above)
