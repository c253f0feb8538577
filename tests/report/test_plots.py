"""Plots on the caller's axes hold the numbers of the exposure."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import gnn_repair as gr
from gnn_repair.errors import InputError
from tests.campaigns.lp_families import Numbers, exposure_of


@pytest.fixture
def exposure():
    table = np.array([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 2.0], [0, 4.0, 0], [0, 0, 1.0]])
    alpha = np.array([0.25, 0.75, 1.0, 0.5, 0.5])
    lengths = np.array([[2], [1], [2]], np.int64)
    return exposure_of(Numbers(lengths, alpha, table, np.zeros((3, 3))))


def axes():
    return Figure().add_subplot()


def test_a_node_is_drawn_where_its_logits_are(exposure):
    ax = gr.plots.node(exposure, 0, 0, class_names=["red", "green", "blue"], ax=axes())
    assert ax.get_title() == "node 0, which is red"
    points = {line.get_label(): line.get_xydata()[0] for line in ax.lines}
    rivals = [ax.get_xlabel().split(" over ")[1].split(" ")[0] for _ in (0,)]
    rivals.append(ax.get_ylabel().split(" over ")[1].split(" ")[0])
    place = {"green": 0.75 - 2.25, "blue": 0.75}  # z = (0.75, 2.25, 0)
    assert points["Frozen"] == pytest.approx([place[rival] for rival in rivals])
    assert points["Oracle"] == pytest.approx([3, 3])  # λ puts all on the first message


def test_reach_is_a_histogram_of_every_node(exposure):
    ax = gr.plots.reach(exposure, torch.tensor([0, 0, 1]), ax=axes())
    assert sum(patch.get_height() for patch in ax.patches) == pytest.approx(3)


def test_axes_are_made_where_none_are_given(exposure):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    ax = gr.plots.node(exposure, 0, torch.tensor([0, 0, 1]))
    plt.close(ax.figure)


def test_without_a_class_the_models_own_is_drawn(exposure):
    told = int(exposure.frozen_logits[0, 0].argmax())
    plain, asked = (Figure().subplots() for _ in range(2))
    gr.plots.node(exposure, 0, ax=plain)
    gr.plots.node(exposure, 0, told, ax=asked)
    points = [[line.get_xydata() for line in ax.lines] for ax in (plain, asked)]
    assert len(points[0]) == len(points[1]) > 0
    for mine, other in zip(*points, strict=True):
        np.testing.assert_allclose(mine, other)
    assert plain.get_xlabel() == asked.get_xlabel()


def test_labels_are_told_from_classes(exposure):
    from dataclasses import replace

    labels = replace(exposure, outputs="labels")
    for draw in (
        lambda: gr.plots.node(labels, 0),
        lambda: gr.plots.reach(labels, torch.ones(3, 3)),
    ):
        with pytest.raises(InputError, match="outputs are labels"):
            draw()


def test_a_report_is_a_path_and_a_link_to_it(exposure, tmp_path):
    path = tmp_path / "a <b> & c.html"
    page = gr.report(exposure, torch.tensor([0, 0, 1]), path)
    assert page == path and page.read_text(encoding="utf-8").startswith("<!")
    shown = page._repr_html_()
    assert "<b>" not in shown and "a &lt;b&gt; &amp; c.html</a>, " in shown
    assert "a%20%3Cb%3E%20%26%20c.html" in shown and shown.endswith(" MB</p>")
    assert pickle.loads(pickle.dumps(page)) == path
