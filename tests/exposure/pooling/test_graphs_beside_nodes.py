"""Models that say something of graphs and of nodes at once, and probabilities of one class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, aggr, global_mean_pool

import gnn_repair as gr
from tests.helpers.models.made import Made
from tests.helpers.models.pool_models import CLASSES, WIDTH, Body, Pooled, batch_of, ring

ORDERS = {
    "graphs first": lambda nodes, pooled, logits: (logits, nodes),
    "nodes first": lambda nodes, pooled, logits: (nodes, logits),
    "dict": lambda nodes, pooled, logits: {"node_emb": nodes, "out": logits},
    "vectors of graphs first": lambda nodes, pooled, logits: (pooled, logits),
}


def telling(form: str) -> Any:
    """Logits of graphs, and something else beside them."""

    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        nodes = self.body.nodes(x, edge_index)
        pooled = global_mean_pool(nodes, batch)
        return ORDERS[form](nodes, pooled, self.head(pooled))

    torch.manual_seed(0)
    return Made(forward, body=Body(), head=nn.Linear(WIDTH, CLASSES)).double()


def brief(repair: Any) -> Any:
    return replace(repair, budget=type(repair.budget)(3, None, 1e-2, 0.0))


@pytest.mark.parametrize("form", list(ORDERS)[:3])
@pytest.mark.parametrize("labelled", [True, False])
def test_graphs_are_classified_though_nodes_are_told_too(form: str, labelled: bool) -> None:
    model, batch = telling(form), batch_of()
    if not labelled:
        del batch.y
    exposure = gr.expose(model, batch)
    assert exposure.graph_starts is not None and exposure.num_classes == CLASSES
    with torch.no_grad():
        nodes = model.body.nodes(batch.x, batch.edge_index)
        told = model.head(global_mean_pool(nodes, batch.batch))
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-12, atol=1e-12)


def test_labels_of_nodes_say_that_nodes_are_classified() -> None:
    model, batch = telling("nodes first"), batch_of()
    batch.y = torch.arange(batch.num_nodes) % WIDTH
    exposure = gr.expose(model, batch)
    assert exposure.graph_starts is None and exposure.num_nodes == batch.num_nodes


def test_a_repaired_model_knows_the_logits_among_several_outputs() -> None:
    model, batch = telling("vectors of graphs first"), batch_of()
    exposure = gr.expose(model, batch)
    part = torch.arange(exposure.num_nodes) % 2 == 0
    fitted = brief(gr.RefitHead()).fit(exposure, batch.y, part, ~part, device="cpu")
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    torch.testing.assert_close(served[1], fitted.logits(exposure), rtol=1e-9, atol=1e-9)


# Probabilities ------------------------------------------------------------------------------------


class Probable(nn.Module):
    """One probability a row, by a linear map or with something before it."""

    def __init__(self, pooled: bool, bent: bool) -> None:
        super().__init__()
        self.conv, self.pooled, self.bent = GCNConv(5, WIDTH), pooled, bent
        self.head = nn.Linear(WIDTH, 1)

    def logit(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.conv(x, edge_index)
        x = global_mean_pool(x, batch) if self.pooled else x
        return self.head(x.tanh() if self.bent else x).squeeze(-1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.logit(x, edge_index, batch).sigmoid()


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_probability_is_compared_with_one_half(pooled: bool, bent: bool) -> None:
    torch.manual_seed(3)
    model, batch = Probable(pooled, bent).double(), batch_of()
    rows = batch.num_graphs if pooled else batch.num_nodes
    batch.y, given = torch.arange(rows) % 2, (batch.x, batch.edge_index, batch.batch)
    exposure = gr.expose(model, batch, expected=model(*given))
    assert (exposure.head is not None) == bool(bent)
    with torch.no_grad():
        logit = model.logit(*given)
    told = torch.stack([torch.zeros_like(logit), logit], 1)
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-9, atol=1e-9)
    assert exposure.called.endswith("the sigmoid at its end is taken off")
    # Class 0 is within reach where the logit can be negative, which (0, σ) would deny always.
    solution = gr.solve(exposure, torch.zeros(rows, dtype=torch.long))
    assert solution.check(exposure).ok
    assert (solution.margin[(logit < 0).numpy()] > 0).all() and bool((logit < 0).any())
    if exposure.head is not None:
        again = exposure.replay(exposure.coefficients[0])  # type: ignore[misc]
        torch.testing.assert_close(again.double(), told, rtol=1e-9, atol=1e-9)
    elif pooled:  # a repair of probabilities serves probabilities
        part = torch.arange(rows) < 6
        fitted = brief(gr.Reweighting()).fit(exposure, batch.y, part, ~part, device="cpu")
        served = gr.repaired(model, fitted)(*given)
        assert served.shape == model(*given).shape
        wanted = fitted.logits(exposure).softmax(1)[:, 1]
        torch.testing.assert_close(served.view(-1), wanted, rtol=1e-9, atol=1e-9)


def test_probabilities_of_many_batches_are_compared_with_what_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr("gnn_repair.exposure.calling.LARGEST_BATCH", 12)
    model, graphs = Probable(True, False), [ring(4 + i % 3, i, i % 2) for i in range(8)]
    batch: Any = Batch.from_data_list(graphs)
    told = model(batch.x, batch.edge_index, batch.batch).detach()
    assert gr.expose(model, graphs, expected=told).num_recipients == 8
    with pytest.raises(gr.GnnRepairError, match="other logits than expected="):
        gr.expose(model, graphs, expected=told + 0.1)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("bent", [False, True])
def test_one_column_of_a_softmax_of_two_is_a_probability(
    classes: int, column: int, bent: bool
) -> None:
    """One of three is left as it is."""
    head = nn.Sequential(nn.Tanh() if bent else nn.Identity(), nn.Linear(WIDTH, classes))
    torch.manual_seed(1)
    model = Pooled(global_mean_pool, head, end=lambda z: z.softmax(1)[:, column]).double()
    batch = batch_of()
    batch.y = torch.arange(batch.num_graphs) % 2
    exposure = gr.expose(model, batch, outputs=None if classes == 2 else "values")
    with torch.no_grad():
        told = model(batch.x, batch.edge_index, batch.batch)
    found = exposure.frozen_logits[0]
    if classes == 2:
        assert (exposure.head is not None) == bool(bent) and not found[:, 0].any()
        told = torch.logit(told)
    torch.testing.assert_close(found[:, -1], told, rtol=1e-9, atol=1e-9)


# What nodes are before they are pooled ------------------------------------------------------------


def test_earlier_steps_of_an_optimised_pool_are_held() -> None:
    torch.manual_seed(0)
    pool = aggr.EquilibriumAggregation(WIDTH, WIDTH, num_layers=[4], grad_iter=2)
    held = [part for part in gr.expose(Pooled(pool).double(), batch_of()).held if part.beside]
    assert len(held) == 1 and "EquilibriumAggregation" in held[0].title


def test_a_histogram_of_features_beside_a_pool_is_held() -> None:
    torch.manual_seed(0)

    def forward(self: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        pooled = global_mean_pool(self.conv(x, edge_index), batch)
        kinds, ones = (x[:, 0] > 0).long(), torch.ones(len(x)).to(x)
        known = torch.zeros(len(pooled), 2).to(x).index_put_((batch, kinds), ones, accumulate=True)
        return self.last(torch.cat([pooled, known], 1))

    batch = batch_of()
    width = batch.x.shape[1]
    model = Made(forward, conv=GCNConv(width, 6), last=nn.Linear(8, CLASSES)).double()
    beside = [part for part in gr.expose(model, batch).held if part.beside]
    assert [part.operations for part in beside] == [("index_put",)]


def test_vectors_that_cancel_in_their_mean_are_pooled_all_the_same() -> None:
    torch.manual_seed(0)
    norm, batch = pyg.PairNorm(), batch_of(torch.float32)
    model = Pooled(lambda x, graphs: global_mean_pool(norm(x, graphs), graphs))
    exposure = gr.expose(model, batch)
    weights = torch.rand(batch.num_nodes, generator=torch.Generator().manual_seed(2))
    total = torch.zeros(batch.num_graphs).index_add(0, batch.batch, weights)
    share = weights / total[batch.batch]
    with torch.no_grad():
        vectors = norm(model.nodes(batch.x, batch.edge_index), batch.batch) * share[:, None]
        told = model.head(torch.zeros(batch.num_graphs, WIDTH).index_add(0, batch.batch, vectors))
    source = exposure.sources[exposure.rows.long()].long()
    found = exposure.logits(share[source].double().unsqueeze(0))[0].float()
    torch.testing.assert_close(found, told, rtol=1e-4, atol=1e-5)
