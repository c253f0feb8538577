"""Models with something after their last aggregation, judged by running them edge by edge."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.head import followed_by, kind_of
from tests.helpers.models.gallery import AFFINE, HELD, REFUSED, TAILED, built
from tests.helpers.models.gallery_judge import drawn, graph, judged, run

LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Wider than what ``expose`` promises by the size of the drawn coefficients."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", TAILED)
def test_the_tail_is_the_model(name: str, dtype: torch.dtype) -> None:
    entry, limit = TAILED[name], LIMIT[dtype]
    model = built(entry.build, dtype)
    data = graph(dtype, model)
    exposure = expose(model, data)
    assert exposure.head is not None
    assert not entry.tail or followed_by(exposure.head) == entry.tail
    assert kind_of(exposure.head) == entry.kind
    torch.testing.assert_close(
        exposure.logits()[0], run(model, data).double(), rtol=limit, atol=limit
    )
    for seed in (1, 2):
        lam = drawn(exposure, seed).to(dtype)
        expected = judged(entry, model, exposure, lam).double()
        assert float((expected - exposure.frozen_logits[0]).abs().max()) > 1e-2
        found = exposure.logits(lam.unsqueeze(0))[0]
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)
    assert exposure.replay is not None
    torch.testing.assert_close(exposure.replay(lam), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", AFFINE)
def test_affine_models_stay_what_they_are(name: str) -> None:
    exposure = expose(built(AFFINE[name], torch.float64), graph())
    assert exposure.head is None


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_is_named(name: str) -> None:
    build, words = HELD[name]
    exposure = expose(built(build, torch.float64), graph())
    assert [str(part) for part in exposure.held if part.beside] == [words]
    assert exposure.scope and exposure.residual is not None and exposure.residual <= 1e-12


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(ExposureRefused, match=words):
        expose(built(build, torch.float64), graph())
