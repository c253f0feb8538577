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
from gnn_repair.repair.baselines import ALPHAS, correct_and_smooth, sources_to_recipients
from gnn_repair.repair.evidence import normalised_adjacency
from tests.helpers.device_places import DEVICES
from tests.helpers.repair.toy_exposures import NODES, toy_exposure, toy_graph

DATA = toy_graph()
MASKS = (DATA.y, DATA.train_mask, DATA.val_mask)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_the_temperature_is_the_most_likely_one_whoever_is_beside(count):
    """Member 0 has at most so many validation nodes; what is always right is cooled to the end."""
    exposure, val = toy_exposure("sage"), DATA.val_mask.clone()
    val[val[:, 0].nonzero()[count:, 0], 0] = False
    fitted = TemperatureScaling().fit(exposure, DATA.y, DATA.train_mask, val)
    for s in range(2):
        logits, truth = exposure.frozen_logits[s, val[:, s]], DATA.y[val[:, s]]

        def loss(inverse: float, logits=logits, truth=truth) -> float:
            return float(torch.nn.functional.cross_entropy(logits * inverse, truth))

        best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9})
        found = float(fitted.parameters["temperature"][s])
        assert loss(1 / found) <= best.fun + 1e-9
        assert abs(1 / found - best.x) < 1e-3 * best.x
    assert torch.equal(fitted.predict(exposure), exposure.frozen_logits.argmax(2))
    assert fitted.num_parameters == 1 and not torch.equal(*fitted.parameters["temperature"])


@pytest.mark.parametrize("right,expected", [(True, 0.05), (False, 20.0)])
def test_the_temperature_ends_where_it_is_looked_for(right, expected):
    """Always right: the sharper the better; always wrong: the flatter."""
    exposure = toy_exposure("gcn")
    logits = torch.zeros_like(exposure.frozen_logits)
    logits[:, torch.arange(NODES), (DATA.y + (not right)) % 3] = 0.1
    fixed = exposure.fixed_logits + logits - exposure.frozen_logits
    shifted = replace(exposure, frozen_logits=logits, fixed_logits=fixed)
    found = TemperatureScaling().fit(shifted, *MASKS, device="cpu").parameters["temperature"]
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-9, atol=0)


# Stacked Correct-and-Smooth against PyG's own class, one member and one strength at a time.
EXACT = {"rtol": 1e-9, "atol": 1e-9}
MEMBERS, CLASSES = 5, 4


def reference(soft, labels, entries, strengths, layers):
    """[N, C]: PyG's scores of one member."""
    correct, smooth, autoscale = strengths
    known = labels >= 0
    method = Reference(layers, correct, layers, smooth, bool(autoscale))
    soft = method.correct(soft, labels[known], known, entries)
    return method.smooth(soft, labels[known], known, entries)


def random_problem(seed: int, density: float, nodes: int = 40):
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


MIXED = [(0.5, 0.8, 1), (0.8, 0.5, 0), (0.95, 0.95, 1), (0.95, 0.3, 0), (0.0, 1.0, 1)]


@pytest.mark.parametrize("density", [0.02, 0.05, 0.5])
@pytest.mark.parametrize("strengths", [MIXED, [(0.9, 0.8, 1)] * 5, [(0.9, 0.8, 0)] * 5])
def test_scores_are_those_of_pyg_sparse_and_dense(density, strengths, monkeypatch):
    entries, soft, labels = random_problem(int(100 * density), density)
    layouts = set()
    for above in (0.1, 0.0, 1.0):
        monkeypatch.setattr("gnn_repair.repair.evidence.DENSE_ABOVE", above)
        operator = normalised_adjacency(entries, soft.shape[1])
        layouts.add((above, operator.layout == torch.strided))
        chosen = torch.tensor(strengths, dtype=torch.float64)
        found = correct_and_smooth(operator, soft, labels, chosen, layers=12)
        for s in range(MEMBERS):
            expected = reference(soft[s], labels[s], entries, strengths[s], 12)
            torch.testing.assert_close(found[s], expected, **EXACT)
    assert layouts == {(0.1, density == 0.5), (0.0, True), (1.0, False)}


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "sage", "h2gcn"])
def test_strengths_are_the_first_best_of_pyg(backbone, some):
    """h2gcn has several messages per source, in groups that overlap.

    Of some recipients entries end there; whoever else sends keeps receiving nothing.
    """
    nodes = torch.arange(NODES).flip(0)[: -6 if some else None]
    exposure, masks = toy_exposure(backbone).restrict(nodes), [mask.clone() for mask in MASKS[1:]]
    for mask in masks:
        mask[: 6 * some] = False
    fitted = CorrectAndSmooth(layers=4).fit(exposure, DATA.y, *masks, device="cpu")
    entries, logits = sources_to_recipients(exposure), fitted.member_logits(exposure)
    for s in range(2):
        labels = torch.where(masks[0][:, s], DATA.y, -1)
        assert torch.equal(fitted.constants["labels"][s], labels)
        soft, val = exposure.frozen_logits[s].softmax(1), masks[1][:, s]

        def hits(strengths, soft=soft, val=val, labels=labels) -> int:
            scores = reference(soft, labels, entries, strengths, 4)
            return int((scores.argmax(1) == DATA.y)[val].sum())

        best = max(product(ALPHAS, ALPHAS, (True, False)), key=hits)
        assert fitted.constants["strengths"][s].tolist() == list(best)
        scores = reference(soft, labels, entries, best, 4)[nodes]
        torch.testing.assert_close(logits[s].exp(), scores.clamp(min=1e-12), **EXACT)
    # As many senders, but others.
    with pytest.raises(InputError, match="another graph"):
        fitted.member_logits(replace(exposure, sources=exposure.sources.roll(1)))


def test_entries_are_those_of_the_graph_each_once():
    found = sources_to_recipients(toy_exposure("mixhop"))
    dense, adjacency = torch.zeros(NODES, NODES), torch.zeros(NODES, NODES)
    dense[found[1], found[0]] = 1
    adjacency[DATA.edge_index[1], DATA.edge_index[0]] = 1
    expected = (torch.eye(NODES) + adjacency + adjacency @ adjacency > 0).float()
    assert torch.equal(dense, expected) and found.shape[1] == int(expected.sum())
    size = expected.sum(1).rsqrt()
    operator = normalised_adjacency(found, NODES).to_dense()
    torch.testing.assert_close(operator.float(), size[:, None] * expected * size[None])


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("density", [0.02, 0.5])
def test_a_gpu_propagates_alike_and_without_waiting(density, device):
    problem, strengths = random_problem(3, density), torch.tensor(MIXED, dtype=torch.float64)
    here = normalised_adjacency(problem[0], 40)
    expected = correct_and_smooth(here, *problem[1:], strengths, 12)
    entries, soft, labels = (tensor.to(device) for tensor in problem)
    operator, strengths = normalised_adjacency(entries, 40), strengths.to(device)
    correct_and_smooth(operator, soft, labels, strengths, 1)  # libraries start up
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = correct_and_smooth(operator, soft, labels, strengths, 12)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)
