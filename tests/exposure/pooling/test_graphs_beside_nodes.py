"""Models that say something of graphs and of nodes at once, and probabilities of one class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, aggr, global_mean_pool

import gnn_repair as gr
from tests.helpers.models.pool_models import CLASSES, WIDTH, Body, batch_of, ring


class Both(Body):
    """Logits of graphs, and embeddings of nodes beside them, in some order."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.head, self.form = nn.Linear(WIDTH, CLASSES), form

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        nodes = self.nodes(x, edge_index)
        logits = self.head(global_mean_pool(nodes, batch))
        if self.form == "dict":
            return {"node_emb": nodes, "out": logits}
        return (logits, nodes) if self.form == "graphs first" else (nodes, logits)


@pytest.mark.parametrize("form", ["graphs first", "nodes first", "dict"])
@pytest.mark.parametrize("labelled", [True, False])
def test_graphs_are_classified_though_nodes_are_told_too(form: str, labelled: bool) -> None:
    torch.manual_seed(0)
    model, batch = Both(form).double(), batch_of()
    if not labelled:
        del batch.y
    exposure = gr.expose(model, batch)
    assert exposure.graph_starts is not None and exposure.num_classes == CLASSES
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
        told = model.head(global_mean_pool(nodes, batch.batch))
    torch.testing.assert_close(exposure.frozen_logits[0], told, rtol=1e-12, atol=1e-12)


def test_labels_of_nodes_say_that_nodes_are_classified() -> None:
    torch.manual_seed(0)
    model, batch = Both("nodes first").double(), batch_of()
    batch.y = torch.arange(batch.num_nodes) % WIDTH
    exposure = gr.expose(model, batch)
    assert exposure.graph_starts is None and exposure.num_nodes == batch.num_nodes


def test_a_repaired_model_knows_the_logits_among_several_outputs() -> None:
    torch.manual_seed(0)

    class Embedding(Both):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
            pooled = global_mean_pool(self.nodes(x, edge_index), batch)
            return pooled, self.head(pooled)

    model, batch = Embedding("").double(), batch_of()
    exposure = gr.expose(model, batch)
    part = torch.arange(exposure.num_nodes) % 2 == 0
    fitted = gr.RefitHead(budget=type(gr.RefitHead().budget)(3, None, 1e-2, 0.0)).fit(
        exposure, batch.y, part, ~part, device="cpu"
    )
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    torch.testing.assert_close(served[1], fitted.logits(exposure), rtol=1e-9, atol=1e-9)


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
    batch.y = torch.arange(rows) % 2
    exposure = gr.expose(model, batch, expected=model(batch.x, batch.edge_index, batch.batch))
    assert (exposure.head is not None) == bool(bent)
    with torch.no_grad():
        logit = model.logit(batch.x, batch.edge_index, batch.batch)
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


def test_a_repair_of_probabilities_serves_probabilities() -> None:
    torch.manual_seed(3)
    model, batch = Probable(True, False).double(), batch_of()
    batch.y = torch.arange(batch.num_graphs) % 2
    exposure, part = gr.expose(model, batch), torch.arange(batch.num_graphs) < 6
    budget = type(gr.Reweighting().budget)(3, None, 1e-2, 0.0)
    fitted = gr.Reweighting(budget=budget).fit(exposure, batch.y, part, ~part, device="cpu")
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    assert served.shape == model(batch.x, batch.edge_index, batch.batch).shape
    wanted = fitted.logits(exposure).softmax(1)[:, 1]
    torch.testing.assert_close(served.view(-1), wanted, rtol=1e-9, atol=1e-9)


def test_probabilities_of_many_batches_are_compared_with_what_is_expected(monkeypatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr("gnn_repair.exposure.calling.LARGEST_BATCH", 12)
    model = Probable(True, False)
    graphs = [ring(4 + i % 3, i, i % 2) for i in range(8)]
    batch: Any = Batch.from_data_list(graphs)
    told = model(batch.x, batch.edge_index, batch.batch).detach()
    assert gr.expose(model, graphs, expected=told).num_recipients == 8
    with pytest.raises(gr.GnnRepairError, match="gives other logits than expected"):
        gr.expose(model, graphs, expected=told + 0.1)


def test_earlier_steps_of_an_optimised_pool_are_held() -> None:
    class Energy(Body):
        def __init__(self) -> None:
            super().__init__()
            self.pool = aggr.EquilibriumAggregation(WIDTH, WIDTH, num_layers=[4], grad_iter=2)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(self.pool(self.nodes(x, edge_index), batch))

    torch.manual_seed(0)
    data: Data = batch_of()
    (held,) = [part for part in gr.expose(Energy().double(), data).held if part.beside]
    assert "EquilibriumAggregation" in held.title


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("bent", [False, True])
def test_one_column_of_a_softmax_of_two_is_a_probability(column: int, bent: bool) -> None:
    class Column(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            pooled = global_mean_pool(self.nodes(x, edge_index), batch)
            return self.head(pooled.tanh() if bent else pooled).softmax(1)[:, column]

    torch.manual_seed(1)
    model, batch = Column().double(), batch_of()
    batch.y = torch.arange(batch.num_graphs) % 2
    exposure = gr.expose(model, batch)
    assert (exposure.head is not None) == bool(bent)
    with torch.no_grad():
        told = torch.logit(model(batch.x, batch.edge_index, batch.batch))
    found = exposure.frozen_logits[0]
    assert not found[:, 0].any()
    torch.testing.assert_close(found[:, 1], told, rtol=1e-9, atol=1e-9)


def test_one_of_three_probabilities_is_left_as_it_is() -> None:
    class OfThree(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(global_mean_pool(self.nodes(x, edge_index), batch)).softmax(1)[:, 2]

    torch.manual_seed(1)
    model, batch = OfThree().double(), batch_of()
    exposure = gr.expose(model, batch, outputs="values")
    with torch.no_grad():
        told = model(batch.x, batch.edge_index, batch.batch)
    torch.testing.assert_close(exposure.frozen_logits[0, :, 0], told, rtol=1e-12, atol=1e-12)


def test_vectors_that_cancel_in_their_mean_are_pooled_all_the_same() -> None:
    class Centred(Body):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = pyg.PairNorm(), nn.Linear(WIDTH, CLASSES)

        def vectors(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.norm(self.nodes(x, edge_index), batch)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.head(global_mean_pool(self.vectors(x, edge_index, batch), batch))

    torch.manual_seed(0)
    model, batch = Centred(), batch_of(torch.float32)
    exposure = gr.expose(model, batch)
    weights = torch.rand(batch.num_nodes, generator=torch.Generator().manual_seed(2))
    total = torch.zeros(batch.num_graphs).index_add(0, batch.batch, weights)
    share = weights / total[batch.batch]
    with torch.no_grad():
        vectors = model.vectors(batch.x, batch.edge_index, batch.batch) * share[:, None]
        told = model.head(torch.zeros(batch.num_graphs, WIDTH).index_add(0, batch.batch, vectors))
    source = exposure.sources[exposure.rows.long()].long()
    found = exposure.logits(share[source].double().unsqueeze(0))[0].float()
    torch.testing.assert_close(found, told, rtol=1e-4, atol=1e-5)
