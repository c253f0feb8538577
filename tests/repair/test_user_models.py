"""Repairs of models with any of the exposable convolutions as their last one."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import literal
import pytest
import torch
from test_factorised import check

from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation


def _convolutions() -> ModuleType:
    path = Path(__file__).parent.parent / "exposure" / "convolutions.py"
    spec = importlib.util.spec_from_file_location("convolutions_of_exposure", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CONVOLUTIONS = _convolutions()


@cache
def exposed(name: str) -> Exposure:
    torch.manual_seed(5)
    case = CONVOLUTIONS.CASES[name]
    model = CONVOLUTIONS.Net(case).double().eval()
    return expose(model, CONVOLUTIONS.graph(), hops=case.hops)


@pytest.mark.parametrize("name", list(CONVOLUTIONS.CASES))
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


@pytest.mark.parametrize("name", list(CONVOLUTIONS.CASES))
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
