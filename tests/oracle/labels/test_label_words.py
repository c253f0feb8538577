"""Sentences, frames and files of label solutions, number by number."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.files import load_tensors, save_tensors
from gnn_repair.oracle import Solution, ValueRange
from gnn_repair.oracle.questions.ranges import KIND as RANGE
from gnn_repair.oracle.solution import KIND
from gnn_repair.oracle.witness import Witness
from tests.helpers.oracle.label_cases import random_exposure


def witness(shares, groups=None, **other):
    count = len(shares)
    values = {
        "member": 0, "subject": "node 1, label 2", "node": 1, "target": 2,
        "wanted": True, "margin": 0.5, "bound": 0.5,
        "threshold": 0.25, "terms": np.arange(count), "coefficients": np.array(shares),
        "sources": np.arange(10, 10 + count), "verdict": "can", "status": "optimal",
        "groups": np.zeros(count, int) if groups is None else np.array(groups),
    }  # fmt: skip
    return Witness(**{**values, **other})


def test_senders_come_by_weight_and_the_last_are_counted():
    text = str(witness([0.1, 1e-9, 0.7]))
    assert text == (
        "node 1, label 2 can be above 0.25: 0.75 using node 12 (λ 0.7), node 10 (λ 0.1); "
        "no reweighting goes beyond 0.75"
    )
    six = str(witness([6, 5, 4, 3, 2, 1]))
    assert "more" not in six
    seven = str(witness([7, 6, 5, 4, 3, 2, 1]))
    assert "node 15 (λ 2) and 1 more" in seven
    assert "node 16" not in seven
    assert "(λ 2, group 1), node 10 (λ 1, group 0)" in str(witness([1, 2], [0, 1]))


def test_sides_limits_and_doubts_in_words():
    below = witness([1.0], wanted=False, margin=0.5, bound=0.6)
    assert below.value == -0.25
    assert "can be below 0.25: -0.25 using" in str(below)
    assert "goes beyond -0.35" in str(below)
    no = witness([1.0], wanted=False, margin=-2.0, bound=-1.0, verdict="cannot", scope="last hop")
    assert "(last hop) cannot be below 0.25: under every reweighting it is at least 1.25" in str(no)
    assert not no.reachable
    doubt = witness([1.0], verdict="undecided", margin=-1.0, bound=0.5)
    assert str(doubt).endswith("is undecided: its margin is at least -1 and at most 0.5")
    assert "0.75 as it stands; no message" in str(witness([]))


def test_frames_hold_the_largest_weight_first_and_both_ends():
    exposure = random_exposure(2, groups=3, members=1, kind="values")
    ranges = gr.value_range(exposure)
    frame = ranges.to_frame()
    assert frame["output"].tolist() == ranges.lower.target.tolist()
    assert frame["value"].tolist() == ranges.frozen.tolist()
    for words in frame["messages_high"]:
        weights = [float(weight) for weight in re.findall(r"λ ([^)]+)", words)]
        assert weights and weights == sorted(weights, reverse=True)
    assert "low_bound" not in frame
    assert "never beyond" not in ranges.sentence(0)
    assert ranges.contains(ranges.low.reshape(7, 3)).all()


def test_a_file_that_was_changed_is_refused(tmp_path):
    exposure = random_exposure(3, members=1)
    solution = gr.solve(exposure, "flip")
    solution.save(tmp_path / "good")
    header, tensors = load_tensors(tmp_path / "good", KIND)
    few = {name: value for name, value in tensors.items() if name != "bound"}
    changes = {
        "missing": (header, few),
        "negative": ({**header, "skipped": -1}, tensors),
        "outputs": ({**header, "outputs": "things"}, tensors),
        "short": (header, {**tensors, "margin": tensors["margin"][1:]}),
        "nan": (header, {**tensors, "margin": tensors["margin"] * float("nan")}),
        "falling": (header, {**tensors, "indptr": tensors["indptr"].flip(0)}),
        "terms": (header, {**tensors, "terms": tensors["terms"][1:]}),
        "kind": (header, {**tensors, "margin": tensors["margin"].float()}),
        "order": (header, {**tensors, "terms": tensors["terms"].flip(0)}),
        "node": (header, {**tensors, "node": -tensors["node"] - 1}),
        "links": (header, {**tensors, "links": torch.zeros(3, 2, dtype=torch.long)}),
    }
    for name, (words, pieces) in changes.items():
        save_tensors(tmp_path / name, KIND, words, dict(pieces))
        with pytest.raises(FileFormatError):
            Solution.load(tmp_path / name)


def test_a_range_whose_ends_differ_is_refused(tmp_path):
    ranges = gr.value_range(random_exposure(4, members=1, kind="values"))
    ranges.save(tmp_path / "good")
    header, tensors = load_tensors(tmp_path / "good", RANGE)
    other = {**tensors, "high/node": tensors["high/node"].flip(0)}
    bare = {name: value for name, value in tensors.items() if name != "low/frozen"}
    more = {**tensors, "middle/node": tensors["high/node"]}
    short = {**tensors, "low/frozen": tensors["low/frozen"][1:]}
    for name, pieces in {"other": other, "bare": bare, "more": more, "short": short}.items():
        save_tensors(tmp_path / name, RANGE, header, dict(pieces))
        with pytest.raises(FileFormatError):
            ValueRange.load(tmp_path / name)


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
