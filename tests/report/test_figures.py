"""Figures and plots hold the numbers of the evidence; a page is a link in a notebook."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.reporting import gather, write_figures
from gnn_repair.reporting.figures import (
    convex_hull,
    draw_degree,
    draw_homophily,
    draw_support,
    group_slices,
    hull,
    plane_of,
)
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure


@pytest.mark.parametrize("groups", [1, 2])
def test_the_outline_is_that_of_every_extreme_mixture(groups):
    """In the plane of the strongest rival when frozen, by brute force and SciPy."""
    exposure, y = make_exposure(groups=groups)
    evidence = gather(exposure, y)
    for i, node in enumerate(evidence.nodes):
        plane = plane_of(evidence, i)
        logits = evidence.frozen_logits[i].copy()
        logits[plane.true] = -np.inf
        assert plane.true == y[node] and plane.one == logits.argmax()
        assert len({plane.true, plane.one, plane.two}) == 3
        slices = group_slices(evidence, i)
        if node < 3 or np.prod([s.stop - s.start for s in slices]) < 3:
            continue  # too few terms, or too many
        corners = []
        for chosen in itertools.product(*[range(s.start, s.stop) for s in slices]):
            logits = evidence.fixed_logits[i].copy()
            for part, term in zip(slices, chosen, strict=True):
                mass = evidence.coefficients[part].sum()
                logits += mass * evidence.contributions[evidence.rows[term]]
            corners.append(plane.place(logits))
        expected = np.array(corners)[ConvexHull(corners).vertices]
        found = hull(evidence, i, plane)
        np.testing.assert_allclose(sorted(map(tuple, found)), sorted(map(tuple, expected)))


def test_a_hull_turns_to_the_left_and_has_corners_alone():
    grid = np.array([*itertools.product(range(4), range(3)), (1, 1), (0, 0)], float)
    assert convex_hull(grid).tolist() == [[0, 0], [3, 0], [3, 2], [0, 2]]
    assert convex_hull(grid[[5, 5]]).tolist() == [grid[5].tolist()]


def test_figures_are_named_and_hold_their_words(tmp_path):
    exposure, y = make_exposure()
    exposure = replace(exposure, names=NodeNames("field/of study", (("field/of study", 40),)))
    evidence = gather(exposure, y, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    names, node = ["<script>", "$x$", "b & c", "plain"], int(evidence.nodes[2])
    paths = write_figures(evidence, tmp_path, node=node, class_names=names, formats=["svg"])
    stems = ("accuracy", "moves", "margins", "degree", "homophily", "support")
    stems = (*stems, f"field-of-study-{node}")
    assert {p.name for p in paths} == {f"{name}.svg" for name in stems}
    assert all(p.read_bytes()[:5] == b"<?xml" for p in paths)
    drawn = (tmp_path / f"field-of-study-{node}.svg").read_text(encoding="utf-8")
    assert "set_translation" in drawn and "<script>" not in drawn
    with pytest.raises(InputError, match="field/of study 99 "):
        write_figures(evidence, tmp_path, node=99)


@pytest.mark.parametrize("draw", [draw_degree, draw_homophily, draw_support])
def test_errors_without_an_answer_are_neither_reachable_nor_not(draw):
    """Bars of a figure whose undecided errors are taken out by hand are the same."""
    exposure, y = make_exposure(nodes=200)
    evidence = gather(exposure, y, edge_index=torch.randint(200, (2, 900)))
    errors = np.flatnonzero(~evidence.right)
    margin = evidence.margin.copy()
    margin[errors[::2]] = np.nan
    torn = replace(evidence, margin=margin)
    left = torn.cut(np.setdiff1d(np.arange(len(margin)), errors[::2]))
    bars = []
    for one in (evidence, torn, left):
        axes = Figure().add_subplot()
        draw(axes, one)
        bars.append([patch.get_height() for patch in axes.patches])
    assert bars[1] == pytest.approx(bars[2]) and bars[0] != pytest.approx(bars[1])


# Plots on the caller's axes.


@pytest.fixture
def exposure():
    table = np.array([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 2.0], [0, 4.0, 0], [0, 0, 1.0]])
    alpha = np.array([0.25, 0.75, 1.0, 0.5, 0.5])
    lengths = np.array([[2], [1], [2]], np.int64)
    return exposure_of(Numbers(lengths, alpha, table, np.zeros((3, 3))))


def test_a_node_is_drawn_where_its_logits_are(exposure):
    ax = Figure().add_subplot()
    assert gr.plots.node(exposure, 0, 0, class_names=["red", "green", "blue"], ax=ax) is ax
    assert ax.get_title() == "node 0, which is red"
    points = {line.get_label(): line.get_xydata()[0] for line in ax.lines}
    rivals = [text.split(" over ")[1].split(" ")[0] for text in (ax.get_xlabel(), ax.get_ylabel())]
    place = {"green": 0.75 - 2.25, "blue": 0.75}  # z = (0.75, 2.25, 0)
    assert points["Frozen"] == pytest.approx([place[rival] for rival in rivals])
    assert points["Oracle"] == pytest.approx([3, 3])  # λ puts all on the first message
    pyplot.switch_backend("agg")
    own = gr.plots.node(exposure, 0)  # on new axes, about the prediction
    assert own.get_title() == "node 0, which is class 1"
    pyplot.close(own.figure)
    stack = make_exposure(members=2)[0]
    said = stack.frozen_logits[:, 0].argmax(1).tolist()
    assert said[0] != said[1]  # each member's own prediction
    for member, name in enumerate(said):
        drawn = gr.plots.node(stack, 0, member=member, ax=Figure().add_subplot())
        assert drawn.get_title().endswith(f"class {name}")
    several = replace(exposure, outputs="labels")
    for draw in (lambda: gr.plots.node(several, 0), lambda: gr.plots.reach(several, torch.ones(3))):
        with pytest.raises(InputError, match="labels"):
            draw()


def test_a_report_is_a_path_and_a_link_to_it(exposure, tmp_path):
    path = tmp_path / "a <b> & c.html"
    page = gr.report(exposure, torch.tensor([0, 0, 1]), path)
    assert page == path and page.read_text(encoding="utf-8").startswith("<!")
    shown = page._repr_html_()
    assert "<b>" not in shown and "a &lt;b&gt; &amp; c.html</a>, " in shown
    size = path.stat().st_size / 1e6
    assert "a%20%3Cb%3E%20%26%20c.html" in shown and shown.endswith(f", {size:.1f} MB</p>")
    assert pickle.loads(pickle.dumps(page)) == path
