"""What a model's outputs are read as: classes, labels or values, and never one for another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GraphConv, HeteroConv, SAGEConv, global_add_pool

import gnn_repair as gr
from tests.helpers.models.output_models import NODES, Network, graph, several
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused

NUMBERS = torch.arange(NODES)
UNKNOWN = several(5).masked_fill(torch.arange(5).eq(1) & NUMBERS.view(-1, 1).remainder(3).eq(0), -1)
SAID: list[tuple[int, Tensor | None, str]] = [
    (3, several(3), "labels"),
    (3, several(3).long(), "labels"),
    (3, several(3).bool(), "labels"),
    (3, several(3).masked_fill(several(3) == 1, torch.nan), "labels"),
    (3, nn.functional.one_hot(NUMBERS % 3).float(), "classes"),
    (3, NUMBERS % 3, "classes"),
    (3, (NUMBERS % 3).float(), "classes"),
    (3, torch.linspace(-1, 1, 3 * NODES).view(NODES, 3), "values"),
    (3, several(4), "classes"),
    (3, torch.zeros(NODES, 3, 2), "classes"),
    (3, None, "classes"),
    (5, UNKNOWN, "labels"),
    (5, UNKNOWN.long(), "labels"),
    (5, several(5) * 2 - 1, "values"),  # no zero among them: what −1 says is not clear
    (1, NUMBERS % 9, "classes"),  # one against the rest
    (1, NUMBERS % 9 * 1.0, "values"),
    (1, NUMBERS % 2, "classes"),
    (1, NUMBERS.unsqueeze(1) % 2 * 1.0, "classes"),
    (1, NUMBERS % 3 - 1, "classes"),
    (1, (NUMBERS % 2 * 2 - 1).double(), "values"),
    (2, torch.linspace(-1, 1, NODES), "values"),
    (2, torch.linspace(-1, 1, NODES).unsqueeze(1), "values"),
]


@pytest.mark.parametrize(("columns", "y", "kind"), SAID)
def test_what_y_says_that_the_outputs_are(columns, y, kind):
    exposure = gr.expose(Network(columns), graph(y))
    assert exposure.outputs == kind
    assert ("as data.y says" in exposure.called) == (kind != "classes")


def test_a_lone_output_is_two_classes_or_one_label():
    model = Network(1, lambda z: z.squeeze(-1))
    told = gr.expose(model, graph(torch.randn(NODES)), outputs="classes")
    label = gr.expose(model, graph(), outputs="labels")
    assert told.num_classes == 2 and "as the two classes (0, z)" in told.called
    assert (label.num_classes, label.outputs) == (1, "labels")
    assert torch.equal(label.contributions[..., 0], told.contributions[..., 1])


def test_a_shift_common_to_all_outputs_is_none_for_classes_only():
    """log_softmax moves every label's logit, and no class's margin."""
    model = Network(3, lambda z: z.log_softmax(1))
    assert gr.expose(model, graph()).head is None
    bent = gr.expose(model, graph(), outputs="labels")
    assert bent.head is not None
    assert torch.allclose(bent.frozen_logits[0].exp().sum(1), torch.ones(NODES).double())


@pytest.mark.parametrize(
    ("columns", "y", "outputs"),
    [(3, several(3), None), (1, torch.linspace(-1, 1, NODES), None), (1, None, "classes")],
)
def test_expected_outputs_are_compared(columns, y, outputs):
    model, data = Network(columns, lambda z: z.squeeze(-1)), graph(y)
    right = model(data.x, data.edge_index).detach()
    assert gr.expose(model, data, expected=right, outputs=outputs).num_nodes == NODES
    with refused(f"{NODES} of {NODES}", "forward="):
        gr.expose(model, data, expected=right + 1, outputs=outputs)


def test_labels_of_which_some_are_minus_one_are_asked_about():
    exposure = gr.expose(Network(5), graph(UNKNOWN))
    solution = gr.solve(exposure, UNKNOWN)
    assert solution.skipped == int((UNKNOWN == -1).sum()) == 14
    assert len(solution) == NODES * 5 - 14 and solution.check(exposure).ok


# Answers, worked out from what is sent ------------------------------------------------------------


def extremes(adjacency: Tensor, said: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of every recipient, of what is said by senders."""
    heard, mass = adjacency > 0, adjacency.sum(1)
    low = said.masked_fill(~heard, torch.inf).amin(1).nan_to_num(posinf=0.0)
    high = said.masked_fill(~heard, -torch.inf).amax(1).nan_to_num(neginf=0.0)
    return fixed + mass * low, fixed + mass * high


def test_edge_weights_are_the_coefficients_of_a_regression():
    model = GraphConv(6, 1).double()
    data = graph(torch.randn(NODES), torch.float64)
    data.edge_weight = torch.rand(150).double() + 0.1
    exposure = gr.expose(model, data)
    adjacency = torch.zeros(NODES, NODES).double()
    adjacency.index_put_(tuple(data.edge_index.flip(0)), data.edge_weight, accumulate=True)
    torch.testing.assert_close(dense(exposure)[0], adjacency)
    with torch.no_grad():
        said = (data.x @ model.lin_rel.weight.t()).view(1, -1)
        fixed = (model.lin_root(data.x) + model.lin_rel.bias).view(-1)
    ranges = gr.value_range(exposure)
    for found, expected in zip(
        (ranges.low, ranges.high), extremes(adjacency, said, fixed), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(found), expected)


class Pooled(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(4, 6), nn.Linear(6, outputs)

    def nodes(self, x, edge_index):
        return self.conv(x, edge_index).relu()

    def forward(self, x, edge_index, batch):
        return self.head(global_add_pool(self.nodes(x, edge_index), batch)).squeeze(-1)


def graphs(columns: int) -> list[Data]:
    torch.manual_seed(1)
    found = []
    for size in torch.randint(3, 7, (20,)).tolist():
        y = torch.randn(1) if columns == 1 else (torch.rand(1, columns) > 0.5).float()
        edges = torch.randint(0, size, (2, 2 * size))
        found.append(Data(x=torch.randn(size, 4).double(), edge_index=edges, y=y.double()))
    return found


def test_a_graphs_value_lies_between_its_nodes_extremes():
    many, model = graphs(1), Pooled(1).double()
    batch = Batch.from_data_list(many)
    with torch.no_grad():
        said = (model.nodes(batch.x, batch.edge_index) @ model.head.weight.t()).view(1, -1)
    own = torch.zeros(20, len(said[0])).double()
    own[batch.batch, torch.arange(len(own[0]))] = 1
    low, high = extremes(own, said, model.head.bias.detach())
    for given in (many, DataLoader(many, batch_size=7)):
        exposure = gr.expose(model, given)
        assert exposure.outputs == "values" and exposure.residual <= 1e-12
        ranges = gr.value_range(exposure)
        assert all(ranges.check(exposure)) and ranges.sentence(0).startswith("graph 0, value 0 is ")
        torch.testing.assert_close(torch.from_numpy(ranges.low), low)
        torch.testing.assert_close(torch.from_numpy(ranges.high), high)


def test_labels_of_graphs_are_reached_repaired_and_served(tmp_path):
    many, model = graphs(3), Pooled(3).double()
    exposure = gr.expose(model, many)
    y = torch.cat([graph.y for graph in many])
    solution = gr.solve(exposure, y)
    assert solution.check(exposure).ok
    assert str(solution[0]).startswith("graph 0, label 0 ")
    part = torch.arange(20) % 2 == 0
    budget = type(gr.SetTranslation().budget)(3, None, 1e-2, 0.0)
    fitted = gr.SetTranslation(budget=budget).fit(exposure, y, part, ~part, device="cpu")
    batch = Batch.from_data_list(many)
    served = gr.repaired(model, fitted)(batch.x, batch.edge_index, batch.batch)
    assert torch.allclose(served, fitted.logits(exposure), atol=1e-9)
    solution.save(tmp_path / "graphs")
    assert str(type(solution).load(tmp_path / "graphs")[0]) == str(solution[0])


class Typed(nn.Module):
    def __init__(self, kinds) -> None:
        super().__init__()
        self.conv = HeteroConv({kind: SAGEConv((3, 4), 3) for kind in kinds})

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)["paper"]


def test_labels_of_one_of_several_node_types():
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(30, 4).double(), torch.randn(20, 3).double()
    writes = torch.stack([torch.randint(0, 20, (90,)), torch.randint(0, 30, (90,))])
    data["author", "writes", "paper"].edge_index = writes
    data["paper"].y = (torch.rand(30, 3) > 0.5).double()
    model = Typed(data.edge_types).double()
    exposure = gr.expose(model, data)
    assert exposure.outputs == "labels"
    solution = gr.solve(exposure, torch.ones(30, 3))
    assert solution.check(exposure).ok
    (conv,) = model.conv.convs.values()
    with torch.no_grad():
        said = data["author"].x @ conv.lin_l.weight.t()
        fixed = conv.lin_r(data["paper"].x) + conv.lin_l.bias
    heard = torch.zeros(30, 20).double()
    heard[writes[1], writes[0]] = 1
    heard /= heard.sum(1, keepdim=True).clamp(min=1)
    best = torch.stack([extremes(heard, said[:, k], fixed[:, k])[1] for k in range(3)], 1)
    found = torch.from_numpy(solution.margin)
    torch.testing.assert_close(found, best[solution.node, solution.target])
    assert "author" in str(solution[int(solution.reachable.argmax())])
