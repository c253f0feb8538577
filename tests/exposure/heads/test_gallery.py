"""Galleries of models with nonlinear heads, judged by running them edge by edge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.head import followed_by, kind_of
from tests.helpers.models import census as c
from tests.helpers.models.census import AFFINE as AFFINE_CENSUS
from tests.helpers.models.census import STYLES
from tests.helpers.models.census import TAILED as TAILED_CENSUS
from tests.helpers.models.census import built as built_census
from tests.helpers.models.gallery import HELD, TAILED, built
from tests.helpers.models.gallery import graph as graph_conventions
from tests.helpers.models.gallery_judge import drawn, graph, judged, run
from tests.helpers.models.gallery_models import CONVENTIONS
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused

# Models with something after their last aggregation, judged by running them edge by edge.

LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Wider than what ``expose`` promises by the size of the drawn coefficients."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", TAILED)
def test_the_tail_is_the_model(name: str, dtype: torch.dtype) -> None:
    entry, limit = TAILED[name], LIMIT[dtype]
    model = built(entry.build, dtype)
    data = graph(dtype)
    exposure = expose(model, data)
    assert exposure.head is not None
    assert not entry.tail or followed_by(exposure.head) == entry.tail
    assert kind_of(exposure.head) == entry.kind
    torch.testing.assert_close(
        exposure.logits()[0], run(model, data).double(), rtol=limit, atol=limit
    )
    lam = drawn(exposure, 2).to(dtype)
    expected = judged(entry, model, exposure, lam).double()
    assert float((expected - exposure.frozen_logits[0]).abs().max()) > 1e-2
    torch.testing.assert_close(exposure.logits(lam)[0], expected, rtol=limit, atol=limit)
    assert exposure.replay is not None
    torch.testing.assert_close(exposure.replay(lam), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_is_named(name: str) -> None:
    build, words = HELD[name]
    exposure = expose(built(build, torch.float64), graph())
    assert [str(part) for part in exposure.held if part.beside] == [words]
    assert exposure.scope and exposure.residual is not None and exposure.residual <= 1e-12


# Every style of the census gives what is expected of it, or is refused for the right cause.

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "models.md"


def test_the_documented_count_is_that_of_the_list():
    kinds = Counter(
        s.gives if s.gives in (AFFINE_CENSUS, TAILED_CENSUS) else "refused" for s in STYLES.values()
    )
    said = (
        f"{len(STYLES)} further styles: {kinds[AFFINE_CENSUS]} exposed without a nonlinear head, "
        f"{kinds[TAILED_CENSUS]} with one, {kinds['refused']} unsupported"
    )
    assert said in " ".join(DOCS.read_text(encoding="utf-8").split())


def test_of_several_outputs_the_one_with_a_column_a_class_is_taken():
    model, data = built_census("returns (embedding, logits)")
    exposure = expose(model, data)
    assert exposure.num_classes == c.CLASSES and "output 1 of its 2" in exposure.called
    del data.y
    with refused("output 0", "output 1", "forward="):
        expose(model, data)


# Tails of models that are called, or that answer, in other ways than logits = model(x, edges).


@pytest.mark.parametrize("name", CONVENTIONS)
@torch.no_grad()
def test_the_same_tail_however_a_model_is_called(name: str) -> None:
    torch.manual_seed(2)
    data = graph_conventions()
    model, settings = CONVENTIONS[name](data)
    model.double().eval()
    exposure = expose(model, data, **settings)
    assert exposure.head is not None
    first = exposure.segments[:-1][exposure.segments.diff() > 0]
    lam = torch.zeros_like(exposure.coefficients)  # every node listens to one neighbour only
    lam[0, first] = 1.0
    mixed = dense(exposure, lam[0])[0] @ data.x
    expected = model.logits(data.x, data.edge_index, mixed)
    found = exposure.logits(lam)[0]
    assert exposure.replay is not None
    torch.testing.assert_close(exposure.replay(lam[0]), found)
    if expected.shape[1] == 1:
        found, expected = found[:, 1:] - found[:, :1], expected
    torch.testing.assert_close(found, expected)
