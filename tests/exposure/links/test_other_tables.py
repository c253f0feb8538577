"""Decoders that look up more than embeddings for the ends of a link."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnn_repair as gr
from tests.helpers.models.link_form_models import NODES, Embedding, graph, product


def extra(kind: str, data):
    torch.manual_seed(9)
    table = torch.randn(NODES, 4 if kind != "narrow" else 3).double()
    bias = torch.randn(NODES).double()

    def decoder(z, links):
        if kind == "bias":
            return product(z, links) + bias[links[0]] - bias[links[1]]
        if kind == "features":
            return product(z, links) + product(data.x, links)
        if kind == "before":
            return product(table, links) + product(z, links)
        return product(z, links) + product(table, links)

    return decoder


@pytest.mark.parametrize("vary", ["source", "target"])
@pytest.mark.parametrize("kind", ["bias", "features", "before", "after", "narrow"])
def test_tables_that_no_message_reaches_stay(kind, vary):
    torch.manual_seed(1)
    data, model = graph(), Embedding().double()
    decoder = extra(kind, data)
    exposure = gr.expose_links(model, data, decoder=decoder, vary=vary)
    assert exposure.exact and exposure.residual <= 1e-12
    with torch.no_grad():
        told = decoder(model(data.x, data.edge_index), data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    plain = gr.expose_links(model, data, decoder=product, vary=vary)
    terms = [e.mixture.contributions[0, e.mixture.rows.long()] for e in (exposure, plain)]
    torch.testing.assert_close(*terms, rtol=1e-12, atol=1e-12)


class Scored(Embedding):
    """Trained numbers of nodes beside their embeddings, all in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Embedding(NODES, 4)

    def forward(self, x, edge_index, edge_label_index):
        z = super().forward(x, edge_index)
        source, target = edge_label_index
        return (self.own(source) * self.own(target)).sum(1) + (z[source] * z[target]).sum(1)


def test_trained_tables_in_a_forward_stay():
    torch.manual_seed(1)
    data, model = graph(), Scored().double()
    exposure = gr.expose_links(model, data)
    with torch.no_grad():
        told = model(data.x, data.edge_index, data.edge_label_index)
    torch.testing.assert_close(exposure.frozen_logits, told, rtol=1e-12, atol=1e-12)
    assert exposure.exact and exposure.residual <= 1e-12


def test_of_two_layers_that_are_looked_up_the_first_is_held_by_name():
    class Layers(Embedding):
        def forward(self, x, edge_index, edge_label_index):
            first = self.conv1(x, edge_index).relu()
            second = self.conv2(first, edge_index)
            return product(first, edge_label_index) + product(second, edge_label_index)

    torch.manual_seed(1)
    exposure = gr.expose_links(Layers().double(), graph())
    assert [group.name for group in exposure.mixture.groups] == ["conv2"]
    assert "`conv1` (SAGEConv)" in exposure.mixture.scope
