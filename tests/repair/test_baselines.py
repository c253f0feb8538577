"""Temperature scaling and Correct-and-Smooth against independent computations."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch_geometric.nn import CorrectAndSmooth as Reference

from gnn_repair.errors import InputError
from gnn_repair.repair import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.baselines import (
    ALPHAS,
    TABLE_BYTES,
    correct_and_smooth,
    jobs_at_once,
    sources_to_recipients,
)
from gnn_repair.repair.evidence import normalised_adjacency
from tests.helpers.repair.toy_exposures import NODES, toy_exposure, toy_graph

# Temperature scaling and Correct-and-Smooth against independent computations.

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


def test_temperature_is_the_most_likely_one():
    exposure = toy_exposure("sage")
    fitted = TemperatureScaling().fit(exposure, *MASKS)
    for s in range(2):
        val = DATA.val_mask[:, s]
        logits, truth = exposure.frozen_logits[s, val], DATA.y[val]

        def loss(inverse: float, logits=logits, truth=truth) -> float:
            return float(torch.nn.functional.cross_entropy(logits * inverse, truth))

        best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9})
        found = float(fitted.parameters["temperature"][s])
        assert abs(1 / found - best.x) < 1e-4 * best.x
    assert torch.equal(fitted.predict(exposure), exposure.frozen_logits.argmax(2))
    assert fitted.num_parameters == 1


def test_entries_are_those_of_the_graph():
    found = sources_to_recipients(toy_exposure("mixhop"))
    dense = torch.zeros(NODES, NODES, dtype=torch.bool)
    dense[found[1], found[0]] = True
    adjacency = torch.zeros(NODES, NODES)
    adjacency[DATA.edge_index[1], DATA.edge_index[0]] = 1
    expected = (torch.eye(NODES) + adjacency + adjacency @ adjacency) > 0
    assert torch.equal(dense, expected)
    assert found.shape[1] == int(expected.sum())


def test_smoothing_belongs_to_its_graph():
    exposure = toy_exposure("gcn")
    fitted = CorrectAndSmooth(layers=2).fit(exposure, *MASKS)
    other = toy_exposure("gcn")
    object.__setattr__(fitted, "constants", {**fitted.constants})
    fitted.constants["labels"] = fitted.constants["labels"][:, :-1]
    with pytest.raises(InputError, match="graph of 29 nodes"):
        fitted.member_logits(other)


@pytest.mark.parametrize("right,expected", [(True, 0.05), (False, 20.0)])
def test_the_temperature_ends_where_it_is_looked_for(right, expected):
    """Always right: the sharper the better; always wrong: the flatter."""
    exposure = toy_exposure("gcn")
    logits = torch.zeros_like(exposure.frozen_logits)
    logits[:, torch.arange(NODES), (DATA.y + (not right)) % 3] = 0.1
    shifted = replace(
        exposure,
        frozen_logits=logits,
        fixed_logits=exposure.fixed_logits + logits - exposure.frozen_logits,
    )
    found = TemperatureScaling().fit(shifted, *MASKS, device="cpu").parameters["temperature"]
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-9, atol=0)


# Stacked Correct-and-Smooth against PyG's own class, one member and one strength at a time.
EXACT = {"rtol": 1e-9, "atol": 1e-9}
MEMBERS, CLASSES = 5, 4
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def reference(soft, labels, entries, strengths, layers):
    """[N, C]: PyG's scores of one member."""
    correct, smooth, autoscale = strengths
    known = labels >= 0
    method = Reference(layers, correct, layers, smooth, bool(autoscale))
    soft = method.correct(soft, labels[known], known, entries)
    return method.smooth(soft, labels[known], known, entries)


def random_problem(seed: int, nodes: int = 40, density: float = 0.05):
    """Directed entries, one hub that all send to, self-loops; the last five have no entry."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(nodes, nodes, generator=generator) < density
    chosen[:, 3] = True
    chosen[-5:] = False
    chosen[:, -5:] = False
    logits = 3 * torch.randn(MEMBERS, nodes, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (MEMBERS, nodes), generator=generator)
    labels[torch.rand(MEMBERS, nodes, generator=generator) < 0.6] = -1
    return chosen.nonzero().t(), logits.softmax(2), labels


def stacked(strengths) -> torch.Tensor:
    return torch.tensor(strengths, dtype=torch.float64)


MIXED = [(0.5, 0.8, 1), (0.8, 0.5, 0), (0.95, 0.95, 1), (0.95, 0.3, 0), (0.0, 1.0, 1)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strengths", [MIXED, [(0.9, 0.8, 1)] * 5, [(0.9, 0.8, 0)] * 5])
def test_scores_are_those_of_pyg(seed, strengths):
    entries, soft, labels = random_problem(seed)
    operator = normalised_adjacency(entries, soft.shape[1])
    found = correct_and_smooth(operator, soft, labels, stacked(strengths), layers=12)
    for s in range(MEMBERS):
        expected = reference(soft[s], labels[s], entries, strengths[s], 12)
        torch.testing.assert_close(found[s], expected, **EXACT)
        assert torch.equal(found[s].argmax(1), expected.argmax(1))


@pytest.mark.parametrize("density", [0.02, 0.5])
def test_sparse_and_dense_operators_agree(density, monkeypatch):
    entries, soft, labels = random_problem(7, density=density)
    operator = normalised_adjacency(entries, 40)
    assert (operator.layout == torch.strided) == (density == 0.5)
    monkeypatch.setattr("gnn_repair.repair.evidence.DENSE_ABOVE", 0.0 if density < 0.1 else 1.0)
    other = normalised_adjacency(entries, 40)
    assert other.layout != operator.layout
    scores = [correct_and_smooth(o, soft, labels, stacked(MIXED), 12) for o in (operator, other)]
    torch.testing.assert_close(*scores, **EXACT)


@pytest.mark.parametrize("backbone", ["gcn", "sage", "h2gcn"])
def test_strengths_are_the_first_best_of_pyg(backbone):
    """h2gcn has several messages per source, in groups that overlap."""
    exposure = toy_exposure(backbone)
    fitted = CorrectAndSmooth(layers=4).fit(exposure, *MASKS, device="cpu")
    entries, logits = sources_to_recipients(exposure), fitted.member_logits(exposure)
    for s in range(2):
        labels = torch.where(DATA.train_mask[:, s], DATA.y, -1)
        assert torch.equal(fitted.constants["labels"][s], labels)
        soft, val = exposure.frozen_logits[s].softmax(1), DATA.val_mask[:, s]

        def hits(strengths, soft=soft, val=val, labels=labels) -> int:
            scores = reference(soft, labels, entries, strengths, 4)
            return int((scores.argmax(1) == DATA.y)[val].sum())

        best = max(product(ALPHAS, ALPHAS, (True, False)), key=hits)
        assert fitted.constants["strengths"][s].tolist() == list(best)
        scores = reference(soft, labels, entries, best, 4)
        torch.testing.assert_close(logits[s].exp(), scores.clamp(min=1e-12), **EXACT)


def test_messages_of_one_source_count_once():
    exposure = toy_exposure("h2gcn")
    assert exposure.sources.unique().numel() < exposure.sources.numel()
    operator = normalised_adjacency(sources_to_recipients(exposure), NODES).to_dense()
    received = (operator > 0).sum(1).double()
    expected = (operator > 0) * (received[:, None] * received[None]).rsqrt()
    torch.testing.assert_close(operator, expected, rtol=1e-6, atol=1e-6)


def test_tables_are_cut_to_size_without_a_trace(monkeypatch):
    exposure = toy_exposure("gcn")
    whole = CorrectAndSmooth(layers=3).fit(exposure, *MASKS, device="cpu")
    expected = whole.member_logits(exposure)
    job = NODES * exposure.num_classes * 8
    for limit in (1, 5 * job, 7 * job):
        monkeypatch.setitem(TABLE_BYTES, "cpu", limit)
        assert jobs_at_once(exposure.frozen_logits) == max(1, limit // job)
        again = CorrectAndSmooth(layers=3).fit(exposure, *MASKS, device="cpu")
        assert torch.equal(again.constants["strengths"], whole.constants["strengths"])
        torch.testing.assert_close(again.member_logits(exposure), expected, **EXACT)


def test_some_recipients_only():
    """Entries end at recipients; whoever else sends keeps receiving nothing."""
    nodes = torch.arange(NODES).flip(0)[:-6]
    exposure = toy_exposure("sage").restrict(nodes)
    masks = [mask.clone() for mask in MASKS[1:]]
    for mask in masks:
        mask[:6] = False
    fitted = CorrectAndSmooth(layers=4).fit(exposure, DATA.y, *masks, device="cpu")
    entries, logits = sources_to_recipients(exposure), fitted.member_logits(exposure)
    for s in range(2):
        labels = torch.where(masks[0][:, s], DATA.y, -1)
        strengths = fitted.constants["strengths"][s].tolist()
        soft = exposure.frozen_logits[s].softmax(1)
        scores = reference(soft, labels, entries, strengths, 4)[nodes]
        torch.testing.assert_close(logits[s].exp(), scores.clamp(min=1e-12), **EXACT)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("density", [0.02, 0.5])
def test_a_gpu_propagates_alike_and_without_waiting(density):
    problem = random_problem(3, density=density)
    here = normalised_adjacency(problem[0], 40)
    expected = correct_and_smooth(here, *problem[1:], stacked(MIXED), 12)
    entries, soft, labels = (tensor.cuda() for tensor in problem)
    operator = normalised_adjacency(entries, 40)
    strengths = stacked(MIXED).cuda()
    correct_and_smooth(operator, soft, labels, strengths, 1)  # libraries start up
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = correct_and_smooth(operator, soft, labels, strengths, 12)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backbone", ["gcn", "h2gcn"])
def test_a_gpu_chooses_the_same_strengths(backbone):
    exposure = toy_exposure(backbone)
    here = CorrectAndSmooth(layers=4).fit(exposure, *MASKS, device="cpu")
    there = CorrectAndSmooth(layers=4).fit(exposure, *MASKS, device="cuda")
    assert torch.equal(there.constants["strengths"].cpu(), here.constants["strengths"])
    found = there.member_logits(exposure.to("cuda")).cpu()
    torch.testing.assert_close(
        found.exp(), here.member_logits(exposure).exp(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_temperature_does_not_hang_on_how_many_nodes_other_members_have(count):
    exposure, val = toy_exposure("sage"), DATA.val_mask[:, :2].clone()
    val[val[:, 0].nonzero()[count:, 0], 0] = False
    assert val.sum(0).tolist()[0] == count < int(val[:, 1].sum())
    together = TemperatureScaling().fit(exposure, DATA.y, DATA.train_mask[:, :2], val)
    for s in range(2):
        one = DATA.train_mask[:, s], val[:, s]
        alone = TemperatureScaling().fit(exposure.member(s), DATA.y, *one)
        torch.testing.assert_close(
            together.parameters["temperature"][s], alone.parameters["temperature"][0]
        )
