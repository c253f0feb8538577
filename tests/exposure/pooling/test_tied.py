"""Pools after every layer with one weight per node for all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GraphConv, global_add_pool, global_mean_pool
from torch_geometric.utils import softmax

import gnn_repair as gr
from gnn_repair.errors import InputError
from tests.campaigns.kinds import batch, drawn, graph


class EveryLayer(nn.Module):
    """A mean of the nodes, a sum, a mean, beside attention if asked; weights w of nodes in all."""

    def __init__(self, bent: bool, attention: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(5 if i == 0 else 4, 4) for i in range(3)])
        self.lins = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
        self.joined, self.score = nn.Linear(16 if attention else 12, 3), nn.Linear(4, 1)
        self.bent, self.attention = bent, attention

    def forward(self, x, edge_index, batch, w=1.0):
        read = []
        for number, conv in enumerate(self.convs):
            x = conv(x, edge_index).relu()
            pool = global_add_pool if number == 1 else global_mean_pool
            read.append(pool(x * w, batch))
        if self.attention:
            read.append(global_add_pool(x * softmax(self.score(x), batch), batch))
        if self.bent:
            return self.joined(torch.cat(read, 1).relu())
        return sum(lin(part) for lin, part in zip(self.lins, read, strict=False))


def exposed(bent: bool, attention: bool = False):
    data = batch(2)
    torch.manual_seed(3)
    model = EveryLayer(bent, attention).double()
    return model, data, gr.expose(model, data, outputs="classes")


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("corner", [False, True])
def test_a_node_has_one_weight_in_the_model_itself(bent, corner):
    model, data, exposure = exposed(bent)
    tied = exposure.tied()
    assert exposure.num_groups == 3 and tied.num_groups == 1
    assert "tied()" in str(exposure) and "one weight per sender" in str(tied)
    assert torch.equal(tied.frozen_logits, exposure.frozen_logits)
    torch.testing.assert_close(tied.logits(), exposure.logits(), rtol=0, atol=1e-14)
    assert torch.equal(tied.mass[..., 0], exposure.mass[..., 0])  # that of the first
    torch.manual_seed(4)
    weight = drawn(tied.aggregate, corner)
    factor = torch.ones(data.num_nodes, 1).double()
    factor[tied.sources[tied.rows.long()].long(), 0] = weight / tied.coefficients[0]
    with torch.no_grad():
        seen = model(data.x, data.edge_index, data.batch, factor)
    torch.testing.assert_close(tied.logits(weight)[0], seen, rtol=0, atol=1e-12)
    if bent:
        torch.testing.assert_close(tied.replay(weight), seen, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bent", [False, True])
def test_fewer_weights_reach_no_more(bent):
    _, data, exposure = exposed(bent)
    tied = exposure.tied()
    apart, together = gr.solve(exposure, data.y), gr.solve(tied, data.y)
    assert bool((together.margin <= apart.margin + 1e-9).all())
    assert float((apart.margin - together.margin).max()) > 1e-3


def test_other_weights_stay_their_own():
    _, _, exposure = exposed(True, attention=True)
    tied = exposure.tied()
    assert [group.name for group in tied.groups] == [
        "mean pool 1 + sum pool + mean pool 2", "attention pool"
    ]  # fmt: skip
    with pytest.raises(InputError, match="no two groups"):
        tied.tied()


def test_a_file_is_bound_again(tmp_path):
    model, data, exposure = exposed(True)
    exposure.tied().save(tmp_path / "tied")
    read = gr.Exposure.load(tmp_path / "tied").bind(model, data)
    alpha = read.coefficients[0]
    torch.testing.assert_close(read.replay(alpha), exposure.frozen_logits[0])


def test_a_repair_of_tied_weights_does_not_fit_others():
    model, data, exposure = exposed(False)
    fitted = gr.Reweighting(epochs=2).fit(exposure.tied(), data.y, train=[0, 1, 2], val=[3, 4])
    with pytest.raises(InputError, match="other weights"):
        fitted.logits(exposure)
    with pytest.raises(InputError, match="tied exposure"):
        gr.repaired(model, fitted)


def test_nodes_hear_two_sums_over_the_same_edges():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = GraphConv(5, 3), GraphConv(5, 3, aggr="mean")

        def forward(self, x, edge_index):
            return self.one(x, edge_index) * self.two(x, edge_index)

    data = graph(1)
    torch.manual_seed(0)
    exposure = gr.expose(Twice().double(), data, outputs="values")
    tied = exposure.tied()
    weight = drawn(tied.aggregate, False)
    assert (exposure.num_groups, tied.num_groups) == (2, 1)
    torch.testing.assert_close(tied.replay(weight), tied.logits(weight)[0])
    assert gr.expose(GCNConv(5, 3).double(), data, outputs="values").tied().num_groups == 1


def test_clusters_of_the_same_numbers_are_not_the_same_clusters():
    """Pairs of nodes: neighbours in number, or one of each half of a graph; numbered alike."""

    class Clusters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lins = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])

        def forward(self, x, batch):
            half = batch.bincount() // 2
            start, place = half.cumsum(0) - half, torch.arange(len(x))
            local = place - 2 * start[batch]
            pairs = start[batch] + local // 2, start[batch] + local % half[batch]
            graph_of = torch.arange(len(half)).repeat_interleave(half)
            return sum(
                lin(global_mean_pool(global_mean_pool(x, pair).relu(), graph_of))
                for lin, pair in zip(self.lins, pairs, strict=True)
            )

    torch.manual_seed(0)
    exposure = gr.expose(Clusters().double(), batch(2), outputs="classes")
    group = torch.repeat_interleave(exposure.segments.diff()) % exposure.num_groups
    assert torch.equal(*(exposure.sources[exposure.rows[group == g].long()] for g in (0, 1)))
    with pytest.raises(InputError, match="no two groups of this exposure can share"):
        exposure.tied()
