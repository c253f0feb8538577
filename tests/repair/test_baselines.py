"""Temperature scaling and Correct-and-Smooth against independent computations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize_scalar

from gnn_repair.errors import InputError
from gnn_repair.repair import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.baselines import sources_to_recipients
from tests.helpers.repair.toy_exposures import NODES, toy_exposure, toy_graph

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


def test_temperature_is_the_most_likely_one():
    exposure = toy_exposure("sage")
    fitted = TemperatureScaling().fit(exposure, *MASKS)
    for s in range(2):
        val = DATA.val_mask[:, s]
        logits, truth = exposure.frozen_logits[s, val], DATA.y[val]

        def loss(inverse: float, logits=logits, truth=truth) -> float:
            return float(torch.nn.functional.cross_entropy(logits * inverse, truth))

        best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9})
        found = float(fitted.parameters["temperature"][s])
        assert abs(1 / found - best.x) < 1e-4 * best.x
    assert torch.equal(fitted.predict(exposure), exposure.frozen_logits.argmax(2))
    assert fitted.num_parameters == 1


def test_entries_are_those_of_the_graph():
    found = sources_to_recipients(toy_exposure("mixhop"))
    dense = torch.zeros(NODES, NODES, dtype=torch.bool)
    dense[found[1], found[0]] = True
    adjacency = torch.zeros(NODES, NODES)
    adjacency[DATA.edge_index[1], DATA.edge_index[0]] = 1
    expected = (torch.eye(NODES) + adjacency + adjacency @ adjacency) > 0
    assert torch.equal(dense, expected)
    assert found.shape[1] == int(expected.sum())


def test_smoothing_belongs_to_its_graph():
    exposure = toy_exposure("gcn")
    fitted = CorrectAndSmooth(layers=2).fit(exposure, *MASKS)
    other = toy_exposure("gcn")
    object.__setattr__(fitted, "constants", {**fitted.constants})
    fitted.constants["labels"] = fitted.constants["labels"][:, :-1]
    with pytest.raises(InputError, match="graph of 29 nodes"):
        fitted.member_logits(other)


@pytest.mark.parametrize("right,expected", [(True, 0.05), (False, 20.0)])
def test_the_temperature_ends_where_it_is_looked_for(right, expected):
    """Always right: the sharper the better; always wrong: the flatter."""
    exposure = toy_exposure("gcn")
    logits = torch.zeros_like(exposure.frozen_logits)
    logits[:, torch.arange(NODES), (DATA.y + (not right)) % 3] = 0.1
    shifted = replace(
        exposure,
        frozen_logits=logits,
        fixed_logits=exposure.fixed_logits + logits - exposure.frozen_logits,
    )
    found = TemperatureScaling().fit(shifted, *MASKS, device="cpu").parameters["temperature"]
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_temperature_does_not_hang_on_how_many_nodes_other_members_have(count):
    exposure, val = toy_exposure("sage"), DATA.val_mask[:, :2].clone()
    val[val[:, 0].nonzero()[count:, 0], 0] = False
    assert val.sum(0).tolist()[0] == count < int(val[:, 1].sum())
    together = TemperatureScaling().fit(exposure, DATA.y, DATA.train_mask[:, :2], val)
    for s in range(2):
        one = DATA.train_mask[:, s], val[:, s]
        alone = TemperatureScaling().fit(exposure.member(s), DATA.y, *one)
        torch.testing.assert_close(
            together.parameters["temperature"][s], alone.parameters["temperature"][0]
        )
