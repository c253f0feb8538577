"""The factorised repairs against the literal ones, on every exposure; their sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import repair as bench
from benchmarks.repair import LiteralRepair
from gnn_repair.backbones import BACKBONES
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.kernels.sets import rows_read
from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair import inputs as tables
from gnn_repair.repair.adapters import matched_width, set_translation_size
from gnn_repair.repair.base import about
from gnn_repair.repair.inputs import Description, RepairInputs
from tests.helpers.device_places import DEVICES
from tests.helpers.models import convolutions
from tests.helpers.repair import literal
from tests.helpers.repair.contract_exposures import KINDS, world
from tests.helpers.repair.literal import check, random_parameters
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

# The factorised repairs against the literal ones: outputs and gradients, on all exposures.

CASES = {
    "translation": (SetTranslation(hidden=12), literal.translated),
    "reweighting": (Reweighting(hidden=12), literal.reweighted),
    "node": (NodeTranslation(hidden=12), literal.node_translated),
}
LINEAR = [kind for kind in KINDS if kind != "head"]
EVERY = [(kind, torch.float64) for kind in LINEAR] + [(kind, torch.float32) for kind in BACKBONES]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "dtype"), EVERY)
def test_outputs_and_gradients_are_those_of_the_literal_form(name, kind, dtype):
    exposure = world(kind).exposure if dtype == torch.float64 else toy_exposure(kind, dtype)
    check(*CASES[name], exposure, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_reported_coefficients_are_those_of_the_literal_form(backbone):
    exposure, repair = toy_exposure(backbone), Reweighting(hidden=12)
    inputs = RepairInputs(exposure)
    p = random_parameters(repair, inputs)
    statistics = torch.zeros(2, dtype=torch.long)
    fitted = repair.fitted(
        **about(exposure),
        parameters=p,
        best_epoch=statistics,
        epochs_run=statistics,
        diverged=statistics.bool(),
    )
    found = fitted.coefficients(exposure)
    for s in range(2):
        one = {name: value[s] for name, value in p.items()}
        expected = literal.coefficients(one, exposure, s)
        torch.testing.assert_close(found[s], expected, rtol=1e-10, atol=1e-12)


# Repairs of models with any of the exposable convolutions as their last one.


@pytest.mark.parametrize("name", convolutions.CASES)
def test_every_convolution_agrees_with_the_literal_form(name):
    torch.manual_seed(5)
    case = convolutions.CASES[name]
    model = convolutions.Net(case).double().eval()
    exposure = expose(model, convolutions.graph(), hops=case.hops)
    # The mean over an empty set is no number in the literal form.
    known = exposure.terms_by_recipient.indptr.diff() > 0
    for repair, reference in CASES.values():
        check(repair, reference, exposure.restrict(exposure.recipients[known]), 1e-10)


# Only the messages that are read are multiplied, and nothing else changes.


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


@pytest.mark.parametrize("backbone", ["sgc", "h2gcn", "sage"])
@pytest.mark.parametrize("repair", [SetTranslation, Reweighting])
def test_training_is_the_same_to_rounding(backbone, repair, monkeypatch):
    """Batches of two: the picked rows and the whole table lead to the same repair."""
    monkeypatch.setattr(tables, "FEW", 1.0)
    exposure, data = toy_exposure(backbone), toy_graph()
    calls = []
    real = tables.rows_read

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(tables, "rows_read", counted)
    budget = Budget(3, None, 1e-2, 1e-4, decoupled=True, epoch_zero=False)

    def train():
        fitted = repair(budget=budget, hidden=8).fit(
            exposure, data.y, data.train_mask, data.val_mask, device="cpu", batch_size=2
        )
        return fitted.member_logits(exposure)

    few = train()
    assert calls
    calls.clear()
    monkeypatch.setattr(Description, "picks_cheaply", False)
    whole = train()
    assert not calls
    torch.testing.assert_close(few, whole, rtol=1e-9, atol=1e-9)


# Parameter counts against the paper's formulas and figures.

DATASETS = {
    "actor": (932, 5),
    "amazon-ratings": (300, 5),
    "chameleon": (2325, 5),
    "citeseer": (3703, 6),
    "cora": (1433, 7),
    "pubmed": (500, 3),
    "roman-empire": (300, 18),
    "squirrel": (2089, 5),
}
SIZES = [(128, classes) for _, classes in DATASETS.values()] + list(DATASETS.values())
"""(d, C) of every case of the paper: hidden states, or raw features."""


def literal_sizes(inputs: int, outputs: int) -> int:
    network = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))
    return sum(value.numel() for value in network.parameters())


@pytest.mark.parametrize("d,c", SIZES)
def test_counts_are_those_of_the_formulas(d, c):
    pair, context = 3 * d + 3 * c + 2, d + c + 128 + 1
    translation = literal_sizes(pair, 128) + literal_sizes(context, c)
    assert SetTranslation().num_parameters(d, c) == translation
    assert set_translation_size(d, c) == translation
    assert Reweighting().num_parameters(d, c) == literal_sizes(pair, 128) + literal_sizes(
        pair + context, 1
    )
    assert RefitHead().num_parameters(d, c) == c * (d + 1)


@pytest.mark.parametrize("d,c", SIZES)
def test_the_node_control_is_matched_as_closely_as_a_width_can(d, c):
    goal = SetTranslation().num_parameters(d, c)
    width = matched_width(goal, d, c)
    gaps = {h: abs(h * (d + 2 * c + 1) + c - goal) for h in range(max(1, width - 3), width + 4)}
    assert gaps[width] == min(gaps.values())
    count = NodeTranslation().num_parameters(d, c)
    assert count == width * (d + 2 * c + 1) + c
    assert abs(count - goal) / goal <= 0.00083


# The benchmark's peer computes the same function, and the benchmark runs.


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
