"""A sample of the campaign of spellings; `make campaign ARGS="--only kinds"` runs all of them."""

from __future__ import annotations

from typing import Any

import pytest

import gnn_repair as gr
from tests.campaigns.kinds import LINK_MODELS, LinkModel, cases, dense, graph, judged, ones

CASES = cases()
FOUND = {
    "nodes: both ends joined": "exact",
    "nodes: edge convolution before a perceptron": "exact",
    "nodes: one above the other": "exact",
    "nodes: batch of matrices": "exact",
    "nodes: rows by kind before a perceptron": "exact",
    "types: one above the other": "exact",
    "types: one matrix": "exact",
    "graphs: kinds side by side": "exact",
    "graphs: heads and graphs on one axis": "exact",
    "graphs: adaptive average before a perceptron": "exact",
    "graphs: centre node joined": "held",
    "graphs: set to set": "held",
    "graphs: einsum of a masked batch": "exact",
    "graphs: rows of zeros and ones": "exact",
    "graphs: clusters": "exact",
    "graphs: clusters side by side": "exact",
    "graphs: clusters of clusters before a perceptron": "exact",
    "graphs: edges of neighbours in order": "exact",
    "graphs: two levels": "exact",
    "graphs: beside the root": "exact",
    "links: norm before, encode and decode": "exact",
    "links: columns of both, encode and decode": "exact",
    "links: gathered, in one forward": "exact",
    "links: attention between ends, encode and decode": "exact",
    "links: NCN, encode and decode": "held",
    "links: completed common neighbours, encode and decode": "held",
    "links: attention to what is near, in one forward": "held",
    "links: end of the next link, encode and decode": "held",
    "links: largest of all, in one forward": "held",
    "links: beside the mean link, encode and decode": "held",
    "links: all pairs, encode and decode": "refused",
}


@pytest.mark.parametrize("name", list(CASES)[::12])
def test_reweighted_models_say_what_their_exposures_say(name):
    assert judged(CASES[name], seed=1) in ("exact", "held", "refused")


@pytest.mark.parametrize("name", FOUND)
def test_what_is_exact_what_is_held_and_what_is_unsupported(name):
    assert judged(CASES[name], seed=2) == FOUND[name]


def test_answers_about_links_say_what_is_held():
    data = graph(1)
    model: Any = LinkModel(LINK_MODELS["mean of all"], whole=False).double()
    u, v = data.edge_index
    model.adjacency = dense(u, v, ones(u, 1.0))
    exposure = gr.expose_links(model, data)
    assert "the decoder" in exposure.mixture.scope
    assert "held" in str(gr.solve(exposure, "flip", [0])[0])
