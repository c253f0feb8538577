"""Galleries of models with nonlinear heads, judged by running them edge by edge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.head import followed_by, kind_of
from tests.helpers.models import census_models as c
from tests.helpers.models.census import AFFINE as AFFINE_CENSUS
from tests.helpers.models.census import NODES, STYLES
from tests.helpers.models.census import TAILED as TAILED_CENSUS
from tests.helpers.models.census import built as built_census
from tests.helpers.models.census import graph as graph_census
from tests.helpers.models.gallery import HELD, TAILED, built
from tests.helpers.models.gallery import graph as graph_conventions
from tests.helpers.models.gallery_judge import drawn, graph, judged, run
from tests.helpers.models.gallery_models import CONVENTIONS

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
    for seed in (1, 2):
        lam = drawn(exposure, seed).to(dtype)
        expected = judged(entry, model, exposure, lam).double()
        assert float((expected - exposure.frozen_logits[0]).abs().max()) > 1e-2
        found = exposure.logits(lam.unsqueeze(0))[0]
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)
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


class Weighed(c.ByScatter):
    """The same model; in its second layer every edge's message is multiplied by hand."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.ratio: Tensor | None = None
        self.layer = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.layer = 0
        return super().forward(x, edge_index)

    def spread(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.layer += 1
        if self.layer == 1 or self.ratio is None:
            return super().spread(x, edge_index)
        source, target = edge_index
        weight = torch.ones(len(source), dtype=x.dtype)
        if self.how == "attention":
            scores = self.score(torch.cat([x[target], x[source]], 1))[:, 0]
            raised = nn.functional.leaky_relu(scores, 0.2).exp()
            weight = raised / torch.zeros(NODES, dtype=x.dtype).index_add(0, target, raised)[target]
        if self.how == "statement":
            weight = torch.sigmoid((x[source] * x[target]).sum(1))
        out = torch.zeros(NODES, NODES, dtype=x.dtype)
        out[target, source] = weight * self.ratio
        if self.how == "mean":
            out = out / torch.bincount(target, minlength=NODES).clamp(min=1).unsqueeze(1)
        return out @ x + (x if self.how == "statement" else 0)


@pytest.mark.parametrize("how", ["index_add", "scatter_add", "mean", "attention", "statement"])
def test_a_sum_by_hand_is_reweighted_edge_by_edge(how):
    torch.manual_seed(4)
    model, data = Weighed(how).double().eval(), graph_census()
    exposure = expose(model, data)
    draw = torch.Generator().manual_seed(6)
    raw = torch.rand(exposure.num_terms, generator=draw, dtype=torch.float64).pow(3) + 0.01
    lam = raw * torch.repeat_interleave(
        (exposure.mass / exposure.masses(raw.unsqueeze(0))).reshape(-1), exposure.segments.diff()
    )
    owner = torch.repeat_interleave(torch.arange(NODES), exposure.segments.diff())
    source = exposure.sources[exposure.rows.long()].long()
    ratio = torch.zeros(NODES, NODES, dtype=torch.float64)
    ratio[owner, source] = lam / exposure.coefficients[0].double()
    with torch.no_grad():
        model.ratio = ratio[data.edge_index[1], data.edge_index[0]]
        truth = model(data.x, data.edge_index)
    torch.testing.assert_close(exposure.logits(lam.unsqueeze(0))[0], truth, rtol=1e-10, atol=1e-10)
    assert float((truth - exposure.frozen_logits[0]).abs().max()) > 1e-3


def test_of_several_outputs_the_one_with_a_column_a_class_is_taken():
    model, data = built_census("returns (embedding, logits)")
    exposure = expose(model, data)
    assert exposure.num_classes == c.CLASSES and "output 1 of its 2" in exposure.called
    del data.y
    with pytest.raises(InputError, match="several tensors with a row per node"):
        expose(model, data)
    named, _ = built_census("returns a dict with logits")
    assert "output 'logits' of its 2" in expose(named, data).called


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
    lam = torch.zeros_like(exposure.coefficients)  # every node listens to one neighbour only
    mixed = torch.zeros_like(data.x)
    for node in range(data.num_nodes):
        start, stop = int(exposure.segments[node]), int(exposure.segments[node + 1])
        if stop > start:
            lam[0, start] = 1.0
            mixed[node] = data.x[exposure.sources[exposure.rows[start]]]
    expected = model.logits(data.x, data.edge_index, mixed)
    found = exposure.logits(lam)[0]
    assert exposure.replay is not None
    torch.testing.assert_close(exposure.replay(lam[0]), found)
    if expected.shape[1] == 1:
        found, expected = found[:, 1:] - found[:, :1], expected
    torch.testing.assert_close(found, expected)
