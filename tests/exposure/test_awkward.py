"""Awkward models: exposed or refused as the gallery says, and what is known to go wrong."""

from __future__ import annotations

import re

import pytest
import torch
from awkward import AWKWARD, Exposed

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure import expose


@pytest.mark.parametrize("name", AWKWARD)
def test_what_must_happen(name: str) -> None:
    case = AWKWARD[name]
    torch.manual_seed(0)
    model, data = case.model(), case.data()
    if isinstance(case.must, Exposed):
        exposure = expose(model, data)
        assert exposure.residual is not None and case.must.mentions in str(exposure)
        assert case.must.runs is None or model.runs <= case.must.runs
        return
    with pytest.raises(ExposureRefused) as refusal:
        expose(model, data)
    for words in case.must.words:
        assert re.search(words, str(refusal.value)), (words, str(refusal.value))
