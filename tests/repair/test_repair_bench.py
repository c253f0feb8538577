"""The benchmark's peer computes the same function, and the benchmark runs."""

from __future__ import annotations

import pytest
import torch

from benchmarks import repair as bench
from benchmarks.repair import LiteralRepair
from gnn_repair.errors import InputError
from gnn_repair.repair import Reweighting, SetTranslation
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.repair.literal import random_parameters
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph


@pytest.mark.parametrize("method", [SetTranslation(), Reweighting()])
@pytest.mark.parametrize("backbone", ["gcn", "h2gcn"])
def test_the_literal_peer_gives_the_same_logits(method, backbone):
    exposure = toy_exposure(backbone).member(0)
    inputs = RepairInputs(exposure)
    p = random_parameters(method, inputs)
    peer = LiteralRepair(exposure, isinstance(method, Reweighting)).double().eval()
    last = "scorer" if isinstance(method, Reweighting) else "head"
    with torch.no_grad():
        for ours, theirs in (("encoder", peer.encoder), (last, peer.head)):
            for here, there in ((0, 0), (2, 3)):
                theirs[there].weight.copy_(p[f"{ours}.{here}.weight"][0].t())
                theirs[there].bias.copy_(p[f"{ours}.{here}.bias"][0])
        found = method.corrected(p, inputs, method.tables(p, inputs), inputs.everyone, None)[0]
        torch.testing.assert_close(peer(), found)


def test_every_form_is_measured(monkeypatch):
    monkeypatch.setattr(bench, "citeseer_sized_graph", lambda: toy_graph(torch.float32))
    rows = list(bench.bench_repair(["generated:sgc"], device="cpu", members=2, epochs=2))
    assert [(row["form"], row["members"]) for row in rows] == 2 * [
        ("literal", 1),
        ("plain", 1),
        ("fused", 1),
        ("fused", 2),
    ]
    assert all(row["ms"] > 0 for row in rows)
    assert rows[0]["literal / this"] == 1


def test_a_case_without_minibatches_is_refused():
    for case in ("cora:gcn", "cora"):
        with pytest.raises(InputError, match="not trained on minibatches"):
            list(bench.bench_minibatch([case]))
