"""The geometry of the picture, against SciPy and brute force; figures are written."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull

from gnn_repair.errors import InputError
from gnn_repair.reporting import gather, write_figures
from gnn_repair.reporting.figures import (
    convex_hull,
    draw_degree,
    draw_homophily,
    draw_polytope,
    group_slices,
    hull,
    plane_of,
)
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure


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


def test_two_classes_are_drawn_on_a_line():
    exposure, y = make_exposure(classes=2, groups=2)
    repairs = {"reweighting": Tilted()}
    evidence = gather(exposure, y, repairs=repairs)
    for i in (0, 9, 30):
        axes = Figure().add_subplot()
        draw_polytope(axes, evidence, i, ["licit", "$i$"])
        c = int(evidence.true_class[i])
        lead = [float(z[c] - z[1 - c]) for z in (
            evidence.frozen_logits[i], None, evidence.corrections[0].logits[i]
        ) if z is not None]  # fmt: skip
        drawn = [float(line.get_xdata()[0]) for line in axes.lines[:3]]
        assert drawn == pytest.approx([lead[0], evidence.margin[i], lead[1]], abs=1e-9)
        (bar,) = axes.patches
        # The right end of all mixtures is the oracle's; the left end is the other class's.
        assert bar.get_x() + bar.get_width() == pytest.approx(evidence.margin[i], abs=1e-7)
        other = gather(exposure, 1 - y, torch.tensor([int(evidence.nodes[i])]))
        assert bar.get_x() == pytest.approx(-other.margin[0], abs=1e-7)
        labels = [tick.get_text() for tick in axes.get_yticklabels()]
        assert labels == ["Frozen", "Oracle", "Reweight", "all mixtures", "terms, each alone"]


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
