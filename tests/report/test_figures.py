"""Figures and plots hold the numbers of the evidence; what cannot be drawn is refused."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.reporting import gather, report, write_figures
from gnn_repair.reporting.figures import (
    convex_hull,
    draw_degree,
    draw_homophily,
    group_slices,
    hull,
    plane_of,
)
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# The geometry of the picture, against SciPy and brute force; figures are written.


def test_the_hull_is_scipys():
    points = np.random.default_rng(0).normal(size=(200, 2))
    expected = points[ConvexHull(points).vertices]
    found = convex_hull(points)
    assert {tuple(p) for p in found} == {tuple(p) for p in expected}
    edges = np.roll(found, -1, axis=0) - found
    following = np.roll(edges, -1, axis=0)
    turns = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
    assert (turns > 0).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_the_outline_is_that_of_every_extreme_mixture(groups):
    exposure, y = make_exposure(groups=groups)
    evidence = gather(exposure, y)
    i = int(np.flatnonzero(evidence.nodes == 5)[0])
    plane = plane_of(evidence, i)
    slices = group_slices(evidence, i)
    corners = []
    for chosen in itertools.product(*[range(s.start, s.stop) for s in slices]):
        logits = evidence.fixed_logits[i].copy()
        for part, term in zip(slices, chosen, strict=True):
            mass = evidence.coefficients[part].sum()
            logits += mass * evidence.contributions[evidence.rows[term]]
        corners.append(plane.place(logits))
    expected = convex_hull(np.array(corners))
    found = hull(evidence, i, plane)
    np.testing.assert_allclose(sorted(map(tuple, found)), sorted(map(tuple, expected)), atol=1e-9)


def test_the_default_plane_is_against_the_strongest_rival():
    exposure, y = make_exposure()
    evidence = gather(exposure, y)
    for i in range(len(evidence.nodes)):
        plane = plane_of(evidence, i)
        logits = evidence.frozen_logits[i].copy()
        logits[plane.true] = -np.inf
        assert plane.one == logits.argmax()
        assert len({plane.true, plane.one, plane.two}) == 3


def test_figures_are_written_with_their_words(tmp_path):
    exposure, y = make_exposure()
    names = ["<script>", "$x$", "b & c", "plain"]
    evidence = gather(exposure, y, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    node = int(evidence.nodes[2])
    paths = write_figures(evidence, tmp_path, node=node, class_names=names, formats=["svg"])
    stems = ("accuracy", "moves", "margins", "degree", "homophily", "support", f"node-{node}")
    assert {p.name for p in paths} == {f"{name}.svg" for name in stems}
    assert all(p.read_bytes()[:5] == b"<?xml" for p in paths)
    drawn = (tmp_path / f"node-{node}.svg").read_text(encoding="utf-8")
    assert "Set translation" in drawn and "<script>" not in drawn
    with pytest.raises(InputError, match="node 999 is not among"):
        write_figures(evidence, tmp_path, node=999)


# Plots on the caller's axes hold the numbers of the exposure.


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


def test_axes_are_made_where_none_are_given(exposure):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    ax = gr.plots.node(exposure, 0, torch.tensor([0, 0, 1]))
    plt.close(ax.figure)


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


# What recipients are called, and what a report says about what it cannot draw.


def typed_exposure():
    exposure, y = make_exposure()
    return replace(exposure, names=NodeNames("field/of study", (("field/of study", 40),))), y


def test_figures_are_named_after_them(tmp_path):
    exposure, y = typed_exposure()
    evidence = gather(exposure, y)
    assert evidence.noun == "field/of study"
    written = write_figures(evidence, tmp_path, formats=["svg"])
    assert f"field-of-study-{evidence.nodes[0]}.svg" in {path.name for path in written}
    with pytest.raises(InputError, match="field/of study 99 is not among the report's field/of st"):
        write_figures(evidence, tmp_path, node=99)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_answers_that_are_no_numbers_are_refused(tmp_path, bad):
    exposure, y = make_exposure()
    logits = torch.rand(40, 4)
    logits[3, 1] = bad
    with pytest.raises(InputError, match=f"logits of 'mine' at node 3 hold {bad}; give finite"):
        report(exposure, y, tmp_path / "r.html", repairs={"mine": logits})
    assert not (tmp_path / "r.html").exists()


def test_numbers_beyond_the_page_are_refused(tmp_path):
    """float32 would turn them into infinity, and every picture into nothing."""
    exposure, y = make_exposure()
    for scale, fine in ((1e30, True), (1e300, False)):
        grown = replace(
            exposure,
            contributions=scale * exposure.contributions,
            fixed_logits=scale * exposure.fixed_logits,
            frozen_logits=scale * exposure.frozen_logits,
        )
        if fine:
            assert report(grown, y, tmp_path / "r.html").is_file()
        else:
            with pytest.raises(InputError, match=r"frozen logits reach \d\.\de\+30\d, and a page"):
                report(grown, y, tmp_path / "r.html")


def test_labels_are_no_classes(tmp_path):
    exposure, _ = make_exposure()
    several = replace(exposure, outputs="labels")
    with pytest.raises(InputError, match=r"outputs are labels.*use solve"):
        report(several, torch.ones(40, 4, dtype=torch.bool), tmp_path / "r.html")


@pytest.mark.parametrize("draw", [draw_degree, draw_homophily])
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
