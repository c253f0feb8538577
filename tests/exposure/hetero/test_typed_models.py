"""Every model of the gallery is what it is said to be, and its exposure is that model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gnn_repair as gr
from gnn_repair import expose
from gnn_repair.errors import ExposureRefused
from tests.helpers.models.scaled_messages import (
    logits_of,
    random_factors,
    scaled_coefficients,
    scaled_run,
)
from tests.helpers.models.typed_models import MODELS, SIZES, build, first_run

EXPOSED = [name for name, entry in MODELS.items() if not entry.refused]
REFUSED = [name for name, entry in MODELS.items() if entry.refused]
WITHOUT_HOOKS = {"sparse products", "rows averaged by hand", "mixed convolutions",
                 "attention between relations", "to_hetero_with_bases", "attention over all nodes",
                 "GAT in one set"}  # fmt: skip
"""Sums by hand have no hooks; the others run their relations in an order of their own, scale their
messages by hooks themselves, or add loops."""
WITH_LOOPS = {"GAT in one set"}
PART = re.compile(r" head \d+$| \(.*\)$| \(.*\) −$")


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", EXPOSED)
def test_models_are_exposed(name: str) -> None:
    entry = MODELS[name]
    model, data = build(name)
    exposure = expose(model, data)
    assert (exposure.head is not None) == bool(entry.tail)
    assert entry.tail in str(exposure).splitlines()[0]
    assert exposure.num_groups == entry.groups
    assert exposure.residual is not None and exposure.residual <= 1e-12
    torch.testing.assert_close(
        exposure.logits()[0], logits_of(first_run(model, data)), rtol=0, atol=1e-10
    )
    edges = {
        " ".join(kind): data[kind].edge_index.shape[1]
        for kind in data.edge_types
        if kind[2] == "paper"
    }
    sent = exposure.to_frame().groupby("group").size()
    for group, terms in sent.items():
        relation = PART.sub("", str(group))
        if name in WITH_LOOPS and relation not in edges:
            assert (relation, terms) == ("paper to itself", SIZES["paper"])
        else:
            own = SIZES["paper"] if name == "mixed convolutions" and "cites" in relation else 0
            assert terms == edges[relation] + own


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", [n for n in EXPOSED if n not in WITHOUT_HOOKS | {"HAN"}])
def test_scaled_messages_scale_coefficients(name: str) -> None:
    """By PyG's hooks, message by message: every term has its edge's sender and recipient."""
    model, data = build(name)
    exposure, factors = expose(model, data), random_factors(data)
    seen = scaled_run(model, data, factors)
    said = exposure.logits(scaled_coefficients(exposure, data, factors))[0]
    torch.testing.assert_close(said, seen, rtol=0, atol=1e-10)
    assert float((seen - exposure.frozen_logits[0]).abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("name", ["to_hetero SAGE", "HGT", "HAN", "edge vectors"])
def test_single_precision(name: str) -> None:
    model, data = build(name, torch.float32)
    residual = expose(model, data).residual
    assert residual is not None and 1e-12 < residual <= 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_cause(name: str) -> None:
    model, data = build(name)
    with pytest.raises(ExposureRefused, match=MODELS[name].refused):
        expose(model, data)


def test_the_documentation_counts_them() -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "hetero.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    tailed = sum(bool(entry.tail) for entry in MODELS.values())
    plain = len(EXPOSED) - tailed
    sentence = (
        f"Of {len(MODELS)} styles {plain} are exposed without a nonlinear head, {tailed} with one, "
        f"{len(REFUSED)} unsupported"
    )
    assert sentence in " ".join(page.read_text(encoding="utf-8").split())


RELATIONS = 3


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize("how", [{}, {"num_bases": 2}, {"num_blocks": 2}])
def test_every_relation_is_a_group_named_by_its_number(kind, how):
    torch.manual_seed(0)
    edges = torch.unique(torch.randint(0, 20, (2, 80)), dim=1)
    types = torch.arange(edges.shape[1]) % RELATIONS
    data = Data(x=torch.randn(20, 4).double(), edge_index=edges, edge_type=types)
    exposure = gr.expose(kind(4, 4, RELATIONS, **how).double(), data)
    assert [g.name.rpartition("relation ")[2] for g in exposure.groups] == ["0", "1", "2"]
    owner = torch.repeat_interleave(exposure.segments.diff())
    group, node = owner % RELATIONS, exposure.recipients[owner // RELATIONS]
    source = exposure.sources[exposure.rows.long()].long()
    found = sorted(zip(group.tolist(), source.tolist(), node.tolist(), strict=True))
    assert found == sorted(zip(types.tolist(), *edges.tolist(), strict=True))
