"""Galleries of models with nonlinear heads, judged by running them edge by edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gnn_repair.exposure import expose
from gnn_repair.exposure.heads.head import followed_by, kind_of
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.oracle import solve
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


# What is claimed behind any end of a model is contradicted by no weights that are drawn.

ORDER, WEIGHTS = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "in another order": lambda z: z.softmax(1)[:, ORDER],
    "weighed": lambda z: z.softmax(1) * WEIGHTS,
    "twice": lambda z: (5 * z.softmax(1)).softmax(1),
    "two blocks": lambda z: torch.cat([z[:, :2].softmax(1), z[:, 2:].softmax(1)], 1),
    "two blocks of logs": lambda z: z.view(-1, 2, 2).log_softmax(2).flatten(1),
    "two blocks of one softmax": lambda z: z.view(-1, 2, 2).softmax(2).flatten(1),
    "by columns": lambda z: z.view(-1, 2, 2).softmax(1).flatten(1),
    "beside a logit": lambda z: torch.cat([z[:, :3].softmax(1), z[:, 3:]], 1),
    "sum of two": lambda z: z.softmax(1) + z.relu().softmax(1),
    "tanh of half": lambda z: torch.cat([z[:, :2].tanh(), z[:, 2:]], 1),
    "layer norm of halves": lambda z: F.layer_norm(z.view(-1, 2, 2), (2,)).flatten(1),
    "product": lambda z: z * z[:, ORDER],
}
"""What the campaign of heads does not end in."""


class Model(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.lin, self.end = SAGEConv(5, 6), nn.Linear(6, 4), end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.end(3 * self.lin(self.conv(x, edge_index).relu()))


@pytest.mark.parametrize("name", ENDS)
def test_no_drawn_weights_contradict_a_verdict(name: str) -> None:
    torch.manual_seed(3)
    edges = torch.cat([torch.randint(0, 7, (2, 22)), torch.arange(7).repeat(2, 1)], 1)
    data = Data(x=2 * torch.randn(7, 5).double(), edge_index=edges.unique(dim=1))
    exposure = expose(Model(ENDS[name]).double(), data)
    assert exposure.head is not None
    solution = solve(exposure, "all", effort="fast")
    assert solution.check(exposure).ok
    best = torch.full((7, 4), -torch.inf).double()
    for seed in range(90):
        lam = random_admissible(exposure.aggregate, seed, corners=(0.0, 0.5, 1.0)[seed % 3])
        margins = [exposure.margins(torch.full((7,), label), lam)[0] for label in range(4)]
        best = torch.maximum(best, torch.stack(margins, 1))
    seen = best[solution.node, solution.target].numpy()
    assert not (seen[solution.verdict == "cannot"] > 1e-6).any()
    assert (solution.margin[solution.verdict == "can"] > 0).all()
    assert (solution.bound[seen > 1e-6] > 0).all()
