"""Every convolution and every backbone against dense algebra of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.utils import to_dense_adj

from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.exposure import expose
from gnn_repair.exposure.from_model import expose_frozen
from gnn_repair.exposure.record.replay import random_admissible
from gnn_repair.training import SHORT
from tests.helpers.models.convolutions import CASES, Net, graph
from tests.helpers.models.gallery_judge import drawn
from tests.helpers.models.terms import dense
from tests.helpers.refusals import refused
from tests.helpers.repair.toy_exposures import toy_exposure, toy_frozen, toy_graph

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_exposure_is_the_model(name: str, dtype: torch.dtype) -> None:
    case, limit = CASES[name], LIMIT[dtype]
    torch.manual_seed(5)
    net, data = Net(case).to(dtype).eval(), graph(dtype)
    for parameter in net.parameters():  # zero-initialised biases would hide their loss
        parameter.add_(torch.randn_like(parameter) * 0.1)
    exposure = expose(net, data, hops=case.hops)  # type: ignore[arg-type]
    hidden = net.hidden(data)
    expected = torch.stack(case.operators(net.conv2, hidden, data)).double()
    torch.testing.assert_close(dense(exposure), expected, rtol=limit, atol=limit)
    torch.testing.assert_close(exposure.logits()[0], net(data).double(), rtol=limit, atol=limit)
    assert exposure.residual is not None and exposure.residual <= limit
    reweighted, wide = random_admissible(exposure, seed=9), 10 * limit
    operators = list(dense(exposure, reweighted).to(dtype))
    by_hand = net.lin(case.by_hand(net.conv2, hidden, data, operators)).double()
    torch.testing.assert_close(exposure.logits(reweighted)[0], by_hand, rtol=wide, atol=wide)


@pytest.mark.parametrize("corners", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["GCNConv", "MixHopConv", "GATConv heads"])
def test_draws_keep_every_mass_and_differ(name: str, corners: float) -> None:
    """No term is left untried but at corners, where one has its group's whole mass."""
    torch.manual_seed(5)
    exposure = expose(Net(CASES[name]).double(), graph())
    draws = torch.stack([random_admissible(exposure, seed, corners) for seed in range(40)])
    lengths = exposure.segments.diff()
    size = lengths[group := torch.repeat_interleave(lengths)]
    for draw in draws:
        assert bool((draw >= 0).all()) and bool((draw > 0).all()) == (corners == 0)
        torch.testing.assert_close(exposure.masses(draw), exposure.mass, rtol=1e-12, atol=0)
    whole = (draws / exposure.mass.view(-1)[group] > 1 - 1e-12) & (size > 1)
    assert float(whole.sum() / 40 / (lengths > 1).sum()) == pytest.approx(corners, abs=0.1)
    assert corners < 1 or bool(whole.any(0)[(size > 1) & (size < 5)].all())
    assert float((draws[0] - draws[1]).abs().max()) > 0.1


# Exposing the eight backbones: identities, and an independent way to the same logits.


def trained(loops: str = "one"):
    """A GCN of one member, hardly trained."""
    backbone, budget = BACKBONES["gcn"](Shape(hidden=8, self_loops=loops)), replace(SHORT, epochs=1)
    return train_backbone(backbone, toy_graph(), [0], device="cpu", budget=budget)


@pytest.mark.parametrize("member", range(2))
@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_exposed_by_algebra_is_its_network(name: str, member: int) -> None:
    """A member's plain network, exposed as any model; of H2GCN's means that sees the last alone."""
    frozen, whole = toy_frozen(name), toy_exposure(name)
    network, algebra = frozen.network(member).double(), whole.member(member)
    assert len(set(whole.fingerprint)) == 2  # by the weights of each
    read = algebra.messages[0, algebra.message_rows.long()]
    assert torch.equal(read, frozen.state[member % len(frozen.state)][algebra.sources.long()])
    if name == "h2gcn":
        adjacency = to_dense_adj(toy_graph().edge_index).squeeze(0).double().t()
        others = adjacency.fill_diagonal_(0)
        mean = others / others.sum(1, keepdim=True).clamp(min=1)
        expected = torch.stack([torch.eye(len(mean)).double(), mean, mean @ mean])
        torch.testing.assert_close(dense(algebra), expected)
        return
    probed = expose(network, frozen.data)
    assert probed.root == algebra.root
    torch.testing.assert_close(dense(probed), dense(algebra), rtol=1e-9, atol=1e-9)
    # Contributions may differ by a constant (a bias inside h), which mass and β balance.
    given, orders = drawn(probed, 3), []
    for one in (probed, algebra):
        place = torch.repeat_interleave(one.segments.diff())
        keys = place * one.num_nodes + one.sources[one.rows.long()]
        orders.append(torch.argsort(keys, stable=True))
    aligned = torch.empty_like(given)
    aligned[orders[1]] = given[orders[0]]
    torch.testing.assert_close(probed.logits(given), algebra.logits(aligned))
    seen = network(frozen.data.x, frozen.data.edge_index).double()
    torch.testing.assert_close(algebra.logits()[0], seen)
    if probed.embedding is not None:
        torch.testing.assert_close(algebra.embedding[0], probed.embedding[0].double())


@pytest.mark.parametrize(("loops", "entries"), [("one", 1), ("listed", 2)])
def test_a_doubled_self_loop_is_one_term_or_two(loops, entries):
    part = expose_frozen(trained(loops)).restrict([1])
    assert part.sources[part.rows.long()].tolist().count(1) == entries


def test_what_is_expected_of_a_backbone():
    frozen = trained()
    whole = expose_frozen(frozen)
    right = whole.frozen_logits[0].argmax(1)
    assert expose(frozen, expected=right).num_members == 1
    with refused("frozen backbone", f"{len(right)} of {len(right)}"):
        expose(frozen, expected=(right + 1) % whole.num_classes)
    with refused("expected", "2 members"):
        expose(toy_frozen("gcn"), expected=right)
    with refused("classes", "labels"):
        expose(frozen, outputs="labels")
