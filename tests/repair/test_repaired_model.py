"""A repaired model is the model with its repair, on every graph and after every way of saving."""

from __future__ import annotations

import copy

import pytest
import torch

import gnn_repair as gr
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from tests.helpers.repair.repaired_models import (
    CLASSES,
    KINDS,
    fitted_on,
    graph,
)


@pytest.fixture
def case(request):
    torch.manual_seed(0)
    model, data = KINDS[getattr(request, "param", "gcn")](), graph(0, 40)
    return model.eval(), data, fitted_on(model, data)


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_it_is_the_repair_of_the_models_exposure_on_new_graphs(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    assert not fitted.unchanged.any()
    for other in (data, graph(1, 25), graph(2, 60)):
        expected = fitted.member_logits(gr.expose(model, other))[0]
        found = repaired(other.x, other.edge_index)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, atol=2e-5)
        assert (found - model(other.x, other.edge_index)).abs().max() > 1e-3


def test_later_graphs_are_not_certified(case, monkeypatch):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    repaired(data.x, data.edge_index)
    monkeypatch.setattr("gnn_repair.exposure.from_model.certify", None)
    other = graph(1, 25)
    assert repaired(other.x, other.edge_index).shape == (25, CLASSES)


@pytest.mark.parametrize("repair", [gr.Reweighting, gr.NodeTranslation, gr.RefitHead])
def test_other_repairs_work_too(case, repair):
    model, data, _ = case
    fitted = fitted_on(model, data, repair(budget=Budget(20, None, 0.05, 0.0)))
    other = graph(1, 25)
    expected = fitted.member_logits(gr.expose(model, other))[0]
    found = gr.repaired(model, fitted)(other.x, other.edge_index)
    assert torch.allclose(found.double(), expected, atol=2e-5)


def test_the_model_is_left_as_it_was(case):
    model, data, fitted = case
    model.train()
    before = copy.deepcopy(model.state_dict())
    repaired = gr.repaired(model, fitted)
    repaired(data.x, data.edge_index)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_changes_are_the_nodes_whose_class_changes(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted)
    found = repaired.changes(data.x, data.edge_index)
    before = model(data.x, data.edge_index).argmax(1)
    after = repaired(data.x, data.edge_index).argmax(1)
    assert found["node"].tolist() == (before != after).nonzero().view(-1).tolist()
    assert found["after"].tolist() == after[found["node"].to_numpy()].tolist()
    assert len(found) > 0


def test_double_precision_gives_double_logits(case):
    model, data, fitted = case
    repaired = gr.repaired(model, fitted).double()
    found = repaired(data.x.double(), data.edge_index)
    assert found.dtype == torch.float64
    single = gr.repaired(model.float(), fitted)(data.x, data.edge_index)
    assert torch.allclose(found, single.double(), atol=1e-4)


def test_bad_input_is_one_sentence(case, tmp_path):
    model, data, fitted = case
    torch.manual_seed(7)
    with pytest.raises(InputError, match="other weights"):
        gr.repaired(KINDS["gcn"](), fitted)
    with pytest.raises(InputError, match="pass what a repair's fit gave"):
        gr.repaired(model, "nothing")
    with pytest.raises(InputError, match="cannot be called like that"):
        gr.repaired(model, fitted)(data.x)
    gr.repaired(model, fitted).save(tmp_path / "f")
    with pytest.raises(InputError, match="another model's weights"):
        gr.RepairedModel.load(tmp_path / "f", KINDS["sgc"]())
