"""Every style of graph classifier in the table: exposed as it must be, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import aggr, global_add_pool, global_mean_pool

import gnn_repair as gr
from gnn_repair.errors import ExposureRefused
from tests.helpers.models.pool_models import (
    CLASSES,
    GRAPHS,
    MODELS,
    REFUSED,
    SIZES,
    WIDTH,
    Alone,
    Body,
    OtherNames,
    Pooled,
    batch_of,
    built,
    one,
    ring,
)

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
"""What is promised of residuals."""
REPEATED = [
    name
    for name, case in MODELS.items()
    if isinstance(case.build(), Pooled)
    # Weights of a pool that are computed from all rows change where rows are repeated; a maximum
    # does not, and neither does one of the marks' columns.
    and name not in ("softmax by channel", "Set2Set", "GraphNorm")
]


def logits_of(model: nn.Module, batch: Any) -> Tensor:
    names = [
        n for n in ("x", "edge_index", "batch", "u") if n in model.forward.__code__.co_varnames
    ]
    out = model(batch) if not names or names == ["x"] else model(*(batch[n] for n in names))
    out = out[0] if isinstance(out, tuple) else out
    return torch.stack([torch.zeros_like(out), out], 1) if out.dim() == 1 else out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_classifier_is_a_mixture_of_its_nodes(name: str, dtype: torch.dtype) -> None:
    case, batch = MODELS[name], batch_of(dtype)
    model = built(name, dtype)
    exposure = gr.expose(model, batch)
    assert (exposure.head is not None) == bool(case.tail)
    assert exposure.residual is not None and exposure.residual <= LIMIT[dtype]
    with torch.no_grad():
        told = logits_of(model, batch).double()
    shift = told - exposure.frozen_logits[0]
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=1e-6)
    assert exposure.graph_starts is not None
    assert exposure.graph_starts.tolist() == [sum(SIZES[:i]) for i in range(len(SIZES) + 1)]
    wanted = [[mass(n) if mass else -1.0 for mass in case.masses] for n in SIZES]
    known = torch.tensor(wanted, dtype=torch.float64)
    found = torch.where(known < 0, -1.0, exposure.mass[0])
    torch.testing.assert_close(found, known, rtol=1e-6, atol=0)
    owner = torch.repeat_interleave(exposure.segments[:: exposure.num_groups].diff())
    sources = exposure.sources[exposure.rows.long()].long()
    assert torch.equal(batch.batch[sources], owner)


def repeats(seed: int) -> Tensor:
    """How often each node is repeated; as many rows in a graph as it has nodes."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(n, (n,), generator=generator).bincount(minlength=n) for n in SIZES]
    return torch.cat(drawn)


@pytest.mark.parametrize("name", REPEATED)
def test_coefficients_weigh_what_repeated_nodes_weigh(name: str) -> None:
    model, batch = built(name), batch_of()
    exposure = gr.expose(model, batch)
    count = repeats(7)
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
        if "max" in name:  # held fixed: what is repeated comes after what it was
            count = count.clamp(min=1) * 0 + 1
        again = model.pool(nodes.repeat_interleave(count, 0), batch.batch.repeat_interleave(count))
        told = model.end(model.head(again))
    told = told[0] if isinstance(told, tuple) else told
    told = torch.stack([torch.zeros_like(told), told], 1) if told.dim() == 1 else told
    raw = exposure.coefficients * count[exposure.sources[exposure.rows.long()].long()]
    share = exposure.mass / exposure.masses(raw)
    normal = torch.tensor([mass is one for mass in MODELS[name].masses])
    scale = torch.where(normal, share, 1.0).flatten().repeat_interleave(exposure.segments.diff())
    torch.testing.assert_close(exposure.logits(raw * scale)[0], told, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_weighted_sum_is_refused_with_the_reason(name: str) -> None:
    build, words = REFUSED[name]
    torch.manual_seed(1)
    with pytest.raises(ExposureRefused, match=words):
        gr.expose(build().double(), batch_of())


@pytest.mark.parametrize("size", [4, 7])
def test_one_graph_without_a_batch(size: int) -> None:
    torch.manual_seed(2)
    model, graph = Alone().double(), ring(size, 3, 0)
    graph.x = graph.x.double()
    exposure = gr.expose(model, graph)
    assert exposure.mass.tolist() == [[[pytest.approx(1)]]]
    weights = torch.rand(size, dtype=torch.float64)
    with torch.no_grad():
        nodes = model.nodes(graph.x, graph.edge_index)
        told = model.eval().head((weights / weights.sum() @ nodes).unsqueeze(0))
    found = exposure.logits((weights / weights.sum()).unsqueeze(0))[0]
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-10)


class ByHand(Alone):
    """The mean of one graph's nodes: their sum over their number."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.nodes(x, edge_index)
        return self.head(x.sum(0, keepdim=True) / x.size(0))


def test_a_mean_by_hand_of_one_graph() -> None:
    torch.manual_seed(2)
    graph = ring(6, 3, 0)
    graph.x = graph.x.double()
    exposure = gr.expose(ByHand().double(), graph)
    assert exposure.groups[0].rule.startswith("mean pool")
    assert exposure.mass.item() == pytest.approx(1)


def test_what_repairs_see_of_a_graph_and_its_nodes() -> None:
    model, batch = built("sum"), batch_of()
    exposure = gr.expose(model, batch)
    with torch.no_grad():
        nodes = model.nodes(batch.x, batch.edge_index)
        mean = global_mean_pool(nodes, batch.batch)
    torch.testing.assert_close(exposure.messages[0], nodes, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(exposure.state[0], mean, rtol=1e-12, atol=1e-12)


def test_a_pool_by_max_beside_a_mean_is_said_to_stay() -> None:
    found = gr.expose(built("max beside mean"), batch_of())
    assert "held as it is: the forward of Pooled (scatter_reduce)" in str(found)
    assert not any(part.beside for part in gr.expose(built("attention"), batch_of()).held)


def test_means_over_graphs_are_held_by_name() -> None:
    torch.manual_seed(1)
    found = gr.expose(Pooled(global_mean_pool, end=lambda z: z - z.mean(0)).double(), batch_of())
    assert found.scope == "model with the forward of Pooled held"


def test_a_standard_deviation_is_two_moments_and_a_tail() -> None:
    torch.manual_seed(1)
    pool = aggr.MultiAggregation(["mean", "std"])
    found = gr.expose(Pooled(pool, wide=2 * WIDTH).double(), batch_of())
    assert found.head is not None and "sqrt" in str(found)
    assert found.residual is not None and found.residual <= 1e-12


def test_the_batch_vector_goes_by_other_names() -> None:
    torch.manual_seed(0)
    exposure = gr.expose(OtherNames().double(), batch_of())
    assert "batch_idx=data.batch" in exposure.called
    assert exposure.called.endswith("its one logit z a graph as the two classes (0, z)")
    assert str(exposure).splitlines()[1].startswith("  11 graphs with 59 nodes, 2 classes")
    one = ring(5, 0, 0)
    one.x = one.x.double()
    assert "1 graph with 5 nodes" in repr(gr.expose(OtherNames().double(), one))


def test_graphs_are_graphs_whatever_their_number() -> None:
    model = built("mean")
    for count in (1, 2, len(GRAPHS)):
        exposure = gr.expose(model, batch_of(count=count))
        assert exposure.num_recipients == count
        assert exposure.num_terms == sum(SIZES[:count])


class Thinned(Pooled):
    """A sum over all nodes beside one over those that a layer leaves."""

    def __init__(self) -> None:
        super().__init__(global_mean_pool, wide=2 * WIDTH)
        self.layer = pyg.TopKPooling(WIDTH, 0.5)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        x = self.nodes(x, edge_index)
        few, _, _, where, *_ = self.layer(x, edge_index, None, batch)
        both = [global_mean_pool(x, batch), global_mean_pool(few, where)]
        return self.head(torch.cat(both, dim=1))


def test_a_sum_over_all_nodes_beside_one_over_some() -> None:
    torch.manual_seed(0)
    found = gr.expose(Thinned().double(), batch_of())
    kept = sum((size + 1) // 2 for size in SIZES)
    assert found.num_groups == 2 and found.num_terms == sum(SIZES) + kept


def test_a_pool_that_one_later_pool_reads_is_not_final_though_another_does_not() -> None:
    class Gated(Body):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2 * WIDTH, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.nodes(x, edge_index)
            whole = global_add_pool(x, batch)
            parts = [global_mean_pool(x.sin() + whole[batch], batch), global_mean_pool(x, batch)]
            return self.head(torch.cat(parts, dim=1))

    torch.manual_seed(0)
    exposure = gr.expose(Gated().double(), batch_of())
    assert [group.rule[:9] for group in exposure.groups] == ["mean pool", "mean pool"]
    assert exposure.residual is not None and exposure.residual <= 1e-12


def test_gates_that_add_up_to_less_than_one_are_no_attention() -> None:
    def gates(x: Tensor, batch: Tensor) -> Tensor:
        return global_add_pool(x * (x[:, :1].sigmoid() / 10), batch)

    torch.manual_seed(0)
    exposure = gr.expose(Pooled(gates).double(), batch_of())
    assert float(exposure.mass.max()) < 1
    assert exposure.groups[0].rule.startswith("weighted pool: α = a weight")
