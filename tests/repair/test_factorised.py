"""The factorised repairs against the literal ones: outputs and gradients, on all exposures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.backbones import BACKBONES
from gnn_repair.repair import NodeTranslation, Reweighting, SetTranslation
from gnn_repair.repair.base import about
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.repair import literal
from tests.helpers.repair.contract_exposures import by_hand
from tests.helpers.repair.literal import check, random_parameters
from tests.helpers.repair.toy_exposures import toy_exposure

CASES = [
    (SetTranslation(hidden=12), literal.translated),
    (Reweighting(hidden=12), literal.reweighted),
]


@pytest.mark.parametrize("repair,reference", CASES, ids=["translation", "reweighting"])
@pytest.mark.parametrize("backbone", list(BACKBONES))
@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_outputs_and_gradients_are_those_of_the_literal_form(
    repair, reference, backbone, dtype, tolerance
):
    check(repair, reference, toy_exposure(backbone, dtype), tolerance)


@pytest.mark.parametrize("repair,reference", CASES, ids=["translation", "reweighting"])
@pytest.mark.parametrize("backbone", ["sage", "h2gcn"])
def test_some_recipients_in_any_order(repair, reference, backbone):
    exposure = toy_exposure(backbone)
    check(repair, reference, exposure.restrict(torch.tensor([7, 0, 4, 2])), 1e-10)


@pytest.mark.parametrize("repair,reference", CASES, ids=["translation", "reweighting"])
def test_messages_that_are_not_node_states(repair, reference):
    """A table row per term, each with its own message, as convolutions with edge features give."""
    exposure = toy_exposure("gcn")
    generator = torch.Generator().manual_seed(2)
    terms, row = exposure.num_terms, exposure.rows.long()
    noise = torch.randn(2, terms, exposure.state.shape[2], generator=generator).double()
    own = replace(
        exposure,
        rows=torch.arange(terms).int(),
        contributions=exposure.contributions[:, row],
        message_rows=torch.arange(terms).int().flip(0),
        messages=(exposure.messages[:, exposure.message_rows[row].long()] + noise).flip(1),
        sources=exposure.sources[row],
    )
    check(repair, reference, own, 1e-10)


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_reported_coefficients_are_those_of_the_literal_form(backbone):
    exposure, repair = toy_exposure(backbone), Reweighting(hidden=12)
    inputs = RepairInputs(exposure)
    p = random_parameters(repair, inputs)
    statistics = torch.zeros(2, dtype=torch.long)
    fitted = repair.fitted(
        **about(exposure),
        parameters=p,
        best_epoch=statistics,
        epochs_run=statistics,
        diverged=statistics.bool(),
    )
    found = fitted.coefficients(exposure)
    for s in range(2):
        one = {name: value[s] for name, value in p.items()}
        expected = literal.coefficients(one, exposure, s)
        torch.testing.assert_close(found[s], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_the_node_control_is_its_literal_form(backbone):
    check(NodeTranslation(hidden=12), literal.node_translated, toy_exposure(backbone), 1e-10)


@pytest.mark.parametrize(
    "repair,reference",
    [*CASES, (NodeTranslation(hidden=12), literal.node_translated)],
    ids=["translation", "reweighting", "node"],
)
@pytest.mark.parametrize("sizes", [(3, 5), (2, 40), (2, 40, 1)], ids=str)
def test_members_that_share_nothing_agree_with_the_literal_form(repair, reference, sizes):
    """Coefficients, masses, messages, states and logits differ by member; a root, two groups."""
    exposure = by_hand(*sizes)
    # The literal form has no mean over an empty set; with a root no set is empty.
    assert exposure.root
    check(repair, reference, exposure, 1e-10)
