"""Figures that the ladder's records are made of, and choices of its controls, on planted values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.repair import CrossFitted, NodeTranslation, RefitHead
from gnn_repair.repair import baselines as spreading
from gnn_repair.repair.base import fitted_of
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph


def test_the_strength_is_the_one_that_is_right_about_validation_nodes(monkeypatch):
    """Node 0's neighbour says class 0; all that lies behind it says class 1."""
    monkeypatch.setattr(spreading, "SPREADS", (0.05, 0.99))
    edges = torch.tensor([[0, 1, *[1] * 8], [1, 0, *range(2, 10)]])
    edges = torch.cat([edges, edges.flip(0)], 1)
    operator = spreading.normalised_adjacency(edges.unique(dim=1), 10)
    method = spreading.LabelPropagation(layers=50)
    train = torch.tensor([[False, True, *[True] * 8]])
    val = ~train
    for label, strength in ((0, 0.05), (1, 0.99)):
        y = torch.tensor([label, 0, *[1] * 8])
        task = SimpleNamespace(y=y, exposure=SimpleNamespace(num_classes=2, num_members=1))
        chosen = method._strengths(operator, task, train, val)
        assert chosen.tolist() == [strength]


"""By method: reads the message set, in batches, from the paper, trained, run by default."""


def test_a_fitted_head_needs_positive_scales():
    data, exposure = toy_graph(), toy_exposure("gcn")
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    fitted = RefitHead(budget=Budget(2, None, 0.01, 0.0)).fit(exposure, data.y, *masks)
    header, tensors = fitted.header(), fitted.tensors()
    scale = tensors["constants/scale"].clone()
    scale[0, ..., 0] = 0.0
    with pytest.raises(InputError, match="scale"):
        fitted_of(header, {**tensors, "constants/scale": scale})


def test_copies_that_diverge_are_told():
    data, exposure = toy_graph(), toy_exposure("gcn")
    budget = Budget(4, None, 1e308, 0.0)
    folded = CrossFitted(NodeTranslation(budget=budget, hidden=3), folds=2)
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    with pytest.warns(UserWarning, match="Node translation of member 0 diverged"):
        folded.fit(exposure, data.y, *masks, device="cpu")


# What a repair's file may not say -----------------------------------------------------------------


@pytest.fixture
def described():
    from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

    data = toy_graph()
    repair = NodeTranslation(budget=Budget(2, None, 0.01, 0.0), hidden=3)
    masks = data.train_mask[:, :2], data.val_mask[:, :2]
    fitted = repair.fit(toy_exposure("gcn"), data.y, *masks, device="cpu")
    return fitted.header(), fitted.tensors()


@pytest.mark.parametrize(
    "damage",
    [
        lambda header, tensors: tensors.update(best_epoch=tensors["best_epoch"] + 9),
        lambda header, tensors: tensors.update(diverged=tensors["diverged"].long()),
        lambda header, tensors: header["settings"].update(hidden="3"),
        lambda header, tensors: header["settings"].update(dropout=None),
        lambda header, tensors: header.update(width="7"),
    ],
)
def test_inconsistent_descriptions_are_refused(described, damage):
    header, tensors = described
    header = {**header, "settings": {**header["settings"]}}
    assert fitted_of(header, tensors).num_members == 2
    damage(header, tensors)
    with pytest.raises(InputError):
        fitted_of(header, tensors)
