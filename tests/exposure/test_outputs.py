"""What a model's outputs are read as: classes, labels or values, and never one for another."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GraphConv

import gnn_repair as gr
from gnn_repair.errors import InputError
from tests.helpers.models.output_models import (
    NODES,
    HeadedGcn,
    Network,
    OgbSage,
    PpiGat,
    graph,
    several,
)


@pytest.mark.parametrize("model", [PpiGat, OgbSage, HeadedGcn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_of_several_labels_are_exposed_exactly(model, dtype):
    torch.manual_seed(1)
    data = graph(several(5), dtype)
    exposure = gr.expose(model().to(dtype), data)
    assert exposure.head is None
    assert exposure.outputs == "labels"
    assert exposure.num_classes == 5
    assert exposure.residual <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert "5 labels" in str(exposure)


def test_a_lone_output_is_a_value_where_y_says_so_and_two_classes_otherwise():
    squeeze = Network(1, lambda z: z.squeeze(-1))
    value = gr.expose(squeeze, graph(torch.randn(NODES)))
    assert value.outputs == "values"
    assert "its outputs are values, as data.y says" in value.called
    classes = gr.expose(squeeze, graph(torch.randint(0, 2, (NODES,))))
    assert classes.num_classes == 2
    assert "as the two classes (0, z)" in classes.called
    told = gr.expose(squeeze, graph(torch.randn(NODES)), outputs="classes")
    assert told.num_classes == 2
    label = gr.expose(squeeze, graph(), outputs="labels")
    assert (label.num_classes, label.outputs) == (1, "labels")
    assert torch.equal(label.contributions[..., 0], told.contributions[..., 1])


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (several(3), "labels"),
        (several(3).long(), "labels"),
        (several(3).bool(), "labels"),
        (several(3).masked_fill(several(3) == 1, float("nan")), "labels"),
        (nn.functional.one_hot(torch.arange(NODES) % 3).float(), "classes"),
        (torch.arange(NODES) % 3, "classes"),
        (torch.randn(NODES, 3), "values"),
        (several(4), "classes"),
        (None, "classes"),
    ],
)
def test_what_y_says(y, kind):
    assert gr.expose(Network(3), graph(y)).outputs == kind


def test_a_shift_common_to_all_outputs_is_none_for_classes_only():
    """log_softmax moves every label's logit, and no class's margin."""
    model = Network(3, lambda z: z.log_softmax(1))
    assert gr.expose(model, graph()).head is None
    bent = gr.expose(model, graph(), outputs="labels")
    assert bent.head is not None
    assert torch.allclose(bent.frozen_logits[0].exp().sum(1), torch.ones(NODES).double())


def test_edge_weights_are_the_coefficients_of_a_regression():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GraphConv(6, 1)

        def forward(self, x, edge_index, edge_weight):
            return self.conv(x, edge_index, edge_weight).squeeze()

    data = graph(torch.randn(NODES), torch.float64)
    data.edge_weight = torch.rand(150).double() + 0.1
    model = Weighted().double()
    exposure = gr.expose(model, data)
    assert exposure.residual <= 1e-12
    ranges = gr.value_range(exposure)
    message = model.conv.lin_rel(data.x).squeeze().detach() - model.conv.lin_rel.bias.detach()
    for node in (3, 17):
        own = data.edge_index[1] == node
        heard = message[data.edge_index[0, own]]
        root = model.conv.lin_root(data.x[node]).item() + model.conv.lin_rel.bias.item()
        mass = float(data.edge_weight[own].sum())
        assert ranges.low[node] == pytest.approx(root + mass * float(heard.min()), abs=1e-12)
        assert ranges.high[node] == pytest.approx(root + mass * float(heard.max()), abs=1e-12)


def test_expected_outputs_are_compared():
    model, data = Network(3), graph(several(3))
    right = model(data.x, data.edge_index).detach()
    assert gr.expose(model, data, expected=right).outputs == "labels"
    with pytest.raises(InputError, match="gives other logits"):
        gr.expose(model, data, expected=right + 1)
    squeeze, one = Network(1, lambda z: z.squeeze(-1)), graph(torch.randn(NODES))
    value = squeeze(one.x, one.edge_index).detach()
    assert gr.expose(squeeze, one, expected=value).outputs == "values"
    assert gr.expose(squeeze, one, expected=value, outputs="classes").num_classes == 2
    with pytest.raises(InputError, match="gives other logits"):
        gr.expose(squeeze, one, expected=value + 1)
    with pytest.raises(InputError, match="choose 'classes', 'labels' or 'values'"):
        gr.expose(model, data, outputs="label")


def with_unknown(columns):
    y = several(columns)
    y[::3, 1] = -1
    return y


@pytest.mark.parametrize(
    ("columns", "y", "kind"),
    [
        (5, with_unknown(5), "labels"),
        (5, with_unknown(5).long(), "labels"),
        (5, several(5) * 2 - 1, "values"),  # no zero among them: what −1 says is not clear
        (1, torch.arange(NODES) % 9, "classes"),  # one against the rest
        (1, torch.arange(NODES) % 9 * 1.0, "values"),
        (1, torch.arange(NODES) % 2, "classes"),
        (1, torch.arange(NODES).unsqueeze(1) % 2 * 1.0, "classes"),
        (1, torch.arange(NODES) % 3 - 1, "classes"),
        (1, (torch.arange(NODES) % 2 * 2 - 1).double(), "values"),
        (2, torch.linspace(-1, 1, NODES), "values"),
        (2, torch.linspace(-1, 1, NODES).unsqueeze(1), "values"),
        (3, torch.arange(NODES) % 3, "classes"),
        (3, (torch.arange(NODES) % 3).float(), "classes"),
        (3, torch.zeros(NODES, 3, 2), "classes"),
    ],
)
def test_what_y_says_that_the_outputs_are(columns, y, kind):
    assert gr.expose(Network(columns), graph(y)).outputs == kind


def test_labels_of_which_some_are_minus_one_are_asked_about():
    y = with_unknown(5)
    exposure = gr.expose(Network(5), graph(y))
    solution = gr.solve(exposure, y)
    assert solution.skipped == int((y == -1).sum()) == 14
    assert len(solution) == NODES * 5 - 14 and solution.check(exposure).ok
