"""The factorised repairs against the literal ones, on every exposure; their sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import repair as bench
from gnn_repair.backbones import BACKBONES
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.kernels.sets import rows_read
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.adapters import matched_width, set_translation_size
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.device_places import DEVICES
from tests.helpers.models import convolutions, typed_models
from tests.helpers.repair import literal
from tests.helpers.repair.contract_exposures import KINDS, world
from tests.helpers.repair.literal import check
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

# The factorised repairs against the literal ones: outputs and gradients, on all exposures.

CASES = {
    "translation": (SetTranslation(hidden=12), literal.translated),
    "reweighting": (Reweighting(hidden=12), literal.reweighted),
    "node": (NodeTranslation(hidden=12), literal.translated),
}
LINEAR = [kind for kind in KINDS if kind != "head"]
EVERY = [(kind, torch.float64) for kind in LINEAR] + [(kind, torch.float32) for kind in BACKBONES]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "dtype"), EVERY)
def test_outputs_and_gradients_are_those_of_the_literal_form(name, kind, dtype):
    exposure = world(kind).exposure if dtype == torch.float64 else toy_exposure(kind, dtype)
    check(*CASES[name], exposure, 1e-10 if dtype == torch.float64 else 1e-5)


# Repairs of models with any of the exposable convolutions as their last one.


@pytest.mark.parametrize("name", convolutions.CASES)
def test_every_convolution_agrees_with_the_literal_form(name):
    torch.manual_seed(5)
    case = convolutions.CASES[name]
    model = convolutions.Net(case).double().eval()
    exposure = expose(model, convolutions.graph(), hops=case.hops)
    for repair, reference in CASES.values():
        check(repair, reference, exposure, 1e-10)


@pytest.mark.parametrize("name", ["HeteroConv by sum", "HeteroConv by mean"])
def test_senders_of_another_kind_have_no_logits(name):
    exposure = expose(*typed_models.build(name))
    exposure = replace(exposure, state=exposure.state.double(), messages=exposure.messages.double())
    assert int(exposure.sources.max()) >= exposure.num_nodes
    for repair, reference in CASES.values():
        check(repair, reference, exposure, 1e-5)


# Only the messages that are read are multiplied.


def read_one_by_one(sets, targets):
    """The columns of each member's terms, walked over in plain Python."""
    ends = sets.segments[:: sets.groups].tolist()
    return [
        sorted({int(sets.columns[t]) for v in row for t in range(ends[v], ends[v + 1])})
        for row in targets.tolist()
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backbone", ["sgc", "mixhop", "gcn", "sage"])
def test_the_rows_are_those_of_the_targets_terms(backbone, device):
    inputs = RepairInputs(toy_exposure(backbone, torch.float32).to(device))
    for targets in ([[3, 5], [0, 0]], [[1, 4], [2, 9]]):
        chosen = torch.tensor(targets, device=device)
        read = rows_read(inputs.sets, chosen, inputs.messages.rows.shape[1])
        for s, expected in enumerate(read_one_by_one(inputs.sets, chosen)):
            assert int(read.counts[s]) == len(expected)
            assert sorted(read.numbers[s, : len(expected)].tolist()) == expected


# Parameter counts against the paper's formulas and figures.

CLASSES = {
    "actor": 5, "amazon-ratings": 5, "chameleon": 5, "citeseer": 6, "cora": 7, "pubmed": 3,
    "roman-empire": 18, "squirrel": 5,
}  # fmt: skip
FEATURES = (932, 300, 2325, 3703, 1433, 500, 300, 2089)
SIZES = [*((128, c) for c in CLASSES.values()), *zip(FEATURES, CLASSES.values(), strict=True)]
"""(d, C) of every case of the paper: hidden states, or raw features."""


def numbers_of(inputs: int, outputs: int) -> int:
    """Of a perceptron with 128 hidden units."""
    return (inputs + 1) * 128 + 129 * outputs


@pytest.mark.parametrize("d,c", SIZES)
def test_counts_are_those_of_the_formulas(d, c):
    pair, context = 3 * d + 3 * c + 2, d + c + 128 + 1
    translation = numbers_of(pair, 128) + numbers_of(context, c)
    assert SetTranslation().num_parameters(d, c) == set_translation_size(d, c) == translation
    scorer = numbers_of(pair, 128) + numbers_of(pair + context, 1)
    assert Reweighting().num_parameters(d, c) == scorer
    assert RefitHead().num_parameters(d, c) == c * (d + 1)
    # The node control is matched as closely as a width can.
    width = matched_width(translation, d, c)
    counts = {h: h * (d + 2 * c + 1) + c for h in range(max(1, width - 3), width + 4)}
    gaps = {h: abs(count - translation) for h, count in counts.items()}
    assert NodeTranslation().num_parameters(d, c) == counts[width]
    assert gaps[width] == min(gaps.values()) <= 0.00083 * translation


# The benchmark's peer computes the same function, and the benchmark runs.


def test_every_form_is_measured(monkeypatch):
    monkeypatch.setattr(bench, "citeseer_sized_graph", lambda: toy_graph(torch.float32))
    monkeypatch.setattr(bench, "SLOW", 0.0)  # each is timed once, over an epoch
    for module in ("benchmarks.repair", "gnn_repair.training"):
        monkeypatch.setattr(f"{module}.CHECK_EVERY", 1)
    case = {"device": "cpu", "members": 2, "epochs": 2, "repairs": ["reweighting"]}
    rows = list(bench.bench_repair(["generated:sgc"], **case))
    forms = [("literal", 1), ("plain", 1), ("fused", 1), ("fused", 2)]
    assert [(row["form"], row["members"]) for row in rows] == forms
    assert all(row["ms"] > 0 for row in rows) and rows[0]["literal / this"] == 1
    with pytest.raises(InputError, match="minibatches"):
        list(bench.bench_minibatch(["cora:gcn"]))
