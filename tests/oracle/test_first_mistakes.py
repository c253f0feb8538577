"""Slips of a first day: the sentence says what to do instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.reporting.evidence import chosen_nodes


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    data = Data(x=torch.randn(12, 4), edge_index=torch.randint(12, (2, 40)))
    data.y = torch.randint(3, (12,))
    return data, gr.expose(GCN(4, 8, 2, 3), data)


def test_masks_of_several_splits(case):
    data, exposure = case
    masks = torch.ones(12, 10, dtype=torch.bool)
    with pytest.raises(InputError, match=r"pass the column of one split, such as mask\[:, 0\]"):
        gr.reach(exposure, data.y, masks)
    assert gr.reach(exposure, data.y, masks[:, 0]).true_class >= 0
    with pytest.raises(InputError) as caught:
        gr.reach(exposure, data.y, masks[:5, 0])
    assert "split" not in str(caught.value)


def test_labels_in_a_column(case):
    data, exposure = case
    with pytest.raises(InputError, match=r"pass target\.flatten\(\)"):
        gr.solve(exposure, data.y[:, None])
    with pytest.raises(InputError) as caught:
        gr.solve(exposure, torch.zeros(12, 3, dtype=torch.long))
    assert "flatten" not in str(caught.value)


def test_a_class_in_place_of_a_model(case):
    with pytest.raises(InputError, match="model is the class GCN; pass a trained instance"):
        gr.expose(GCN, case[0])


def test_a_path_and_labels_that_changed_places(case):
    data, exposure = case
    with pytest.raises(InputError, match=r"^Tensor is no path; give a string or a Path$"):
        gr.report(exposure, "report.html", data.y)


@pytest.mark.parametrize("nodes", [[2, 5], (2, 5), np.array([2, 5]), np.arange(12) % 3 == 2])
def test_lists_and_arrays_of_nodes_are_taken_everywhere(case, nodes):
    data, exposure = case
    numbers = torch.as_tensor(nodes)
    wanted = numbers.nonzero().view(-1) if numbers.dtype == torch.bool else numbers
    assert chosen_nodes(exposure, nodes, 0).tolist() == wanted.tolist()
    assert gr.solve(exposure, data.y, nodes).node.tolist() == wanted.tolist()


@pytest.mark.parametrize("nodes", ["2", [[1], [2, 3]], [None]])
def test_what_is_no_list_of_nodes_is_named(case, nodes):
    with pytest.raises(InputError, match=r"^nodes is .* a mask \[N\] or node numbers"):
        chosen_nodes(case[1], nodes, 0)


def test_no_reachable_class_has_no_support():
    torch.manual_seed(1)
    data = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    model = GCN(2, 4, 2, 2)
    with torch.no_grad():
        model.convs[-1].bias.copy_(torch.tensor([5.0, 0.0]))  # class 0 always wins
    exposure = gr.expose(model, data)
    target = torch.ones(3, dtype=torch.long)
    solution = gr.solve(exposure, target)
    assert not np.any(solution.reachable)
    for value in (gr.reach(exposure, target), solution):
        assert "nan" not in str(value)
    assert "support          –" in str(gr.reach(exposure, target))
