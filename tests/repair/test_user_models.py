"""Repairs of models with any of the exposable convolutions as their last one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from tests.helpers.models import convolutions
from tests.helpers.repair import literal
from tests.helpers.repair.literal import check


@cache
def exposed(name: str) -> Exposure:
    torch.manual_seed(5)
    case = convolutions.CASES[name]
    model = convolutions.Net(case).double().eval()
    return expose(model, convolutions.graph(), hops=case.hops)


@pytest.mark.parametrize("name", list(convolutions.CASES))
def test_every_convolution_can_be_repaired(name):
    exposure = exposed(name)
    nodes = exposure.num_nodes
    place = torch.arange(nodes)
    y = (place // 4) % exposure.num_classes
    masks = (place % 4 < 2, place % 4 == 2)
    budget = {"epochs": 3, "learning_rate": 0.02, "epoch_zero": False}
    for method in (Reweighting(hidden=8), SetTranslation(hidden=8), NodeTranslation(hidden=8)):
        repair = replace(method, budget=replace(method.budget, **budget))
        fitted = repair.fit(exposure, y, *masks, device="cpu")
        assert bool(fitted.member_logits(exposure).isfinite().all())
        assert not torch.equal(fitted.member_logits(exposure), exposure.frozen_logits)
        if isinstance(repair, Reweighting):
            found = exposure.masses(fitted.coefficients(exposure))
            torch.testing.assert_close(found, exposure.mass, rtol=1e-12, atol=0)
    if exposure.embedding is not None:
        RefitHead(budget=replace(RefitHead().budget, epochs=2)).fit(exposure, y, *masks)


@pytest.mark.parametrize("name", list(convolutions.CASES))
@pytest.mark.parametrize(
    "repair,reference",
    [
        (SetTranslation(hidden=12), literal.translated),
        (Reweighting(hidden=12), literal.reweighted),
    ],
    ids=["translation", "reweighting"],
)
def test_every_convolution_agrees_with_the_literal_form(name, repair, reference):
    exposure = exposed(name)
    # The mean over an empty set is no number in the literal form.
    known = exposure.terms_by_recipient.indptr.diff() > 0
    check(repair, reference, exposure.restrict(exposure.recipients[known]), 1e-10)
