"""Sentences, frames and files of label solutions, number by number."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.errors import InputError
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
