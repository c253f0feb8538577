"""What a model's outputs are read as: classes, labels or values, and never one for another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_add_pool

import gnn_repair as gr
from gnn_repair.exposure.record.replay import random_admissible
from tests.helpers.models.output_models import NODES, Network, graph, several
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
    (1, (NUMBERS % 3 * 1.0).masked_fill(NUMBERS % 3 == 2, torch.nan), "classes"),
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


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("log", [False, True])
def test_one_column_of_a_softmax_of_two_is_a_sigmoid(column, log):
    def end(z):
        return (z.log_softmax(1) if log else z.softmax(1))[:, [column]]

    model, data = Network(2, end), graph(dtype=torch.float64)
    model.double()
    label = gr.expose(model, data, outputs="labels")
    given = model(data.x, data.edge_index).detach()
    assert (label.head is None) == (not log)
    torch.testing.assert_close(label.logits()[0], given if log else torch.logit(given))


@pytest.mark.parametrize("before", [None, nn.ReLU(), nn.LayerNorm(3)])
def test_a_softmax_of_all_classes_is_taken_off(before):
    """Margins are those of the logits before it, with a head or without, on every mixture."""
    body = before or nn.Identity()
    model = Network(3, lambda z: body(z).softmax(1)).double().eval()
    data = graph(several(3).argmax(1), torch.float64)
    plain = Network(3, body).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    bare, made = (
        gr.expose(plain, data),
        gr.expose(model, data, expected=model(data.x, data.edge_index)),
    )
    assert (made.head is None) == (before is None)
    lam = random_admissible(made.aggregate, seed=1, corners=0.5)
    torch.testing.assert_close(made.logits(lam), bare.logits(lam))
    for margins in (made.margins(data.y, lam), bare.margins(data.y, lam)):
        ran = margins if made.replay is None else margin_of(made.replay(lam), data.y)
        torch.testing.assert_close(margins[0], ran if ran.dim() == 1 else ran[0])
    assert (gr.solve(made, data.y).verdict == gr.solve(bare, data.y).verdict).all()


def test_the_embedding_behind_a_softmax_is_known():
    end = nn.Linear(3, 3)
    model = Network(3, nn.Sequential(end, nn.Softmax(1))).double().eval()
    exposure = gr.expose(model, graph(several(3).argmax(1), torch.float64))
    assert exposure.embedding is not None
    torch.testing.assert_close(end(exposure.embedding[0]), exposure.logits()[0])


def margin_of(logits, y):
    own = logits.gather(1, y.unsqueeze(1))
    return (own - logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1, keepdim=True)).squeeze(1)


def test_a_shift_common_to_all_outputs_is_none_for_classes_only():
    """log_softmax moves every label's logit, and no class's margin; nor does that of halves."""
    halves = Network(4, lambda z: z.view(-1, 2, 2).log_softmax(2).flatten(1))
    assert gr.expose(halves, graph()).head is not None
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
        said = (model.nodes(batch.x, batch.edge_index) @ model.head.weight.t()).view(-1)
        bias = float(model.head.bias)
    own = [said[batch.batch == i] for i in range(20)]
    low = torch.stack([bias + len(one) * one.min() for one in own])
    high = torch.stack([bias + len(one) * one.max() for one in own])
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
