"""Stacked training against PyG, member by member."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.training import plain_loop
from gnn_repair.backbones import BACKBONES, Graph, Shape, architectures, train_backbone
from gnn_repair.backbones.train import _BackboneTrainee
from gnn_repair.training import SHORT, stack_parameters, unstack_parameters
from tests.helpers.device_places import DEVICES

# Each backbone computes what the same network built from PyG's own convolutions computes.

MEMBERS = 3


def random_parameters(backbone, data):
    """Different parameters for every member, biases included."""
    network = backbone.network(data.x.shape[1], 3).to(data.x.dtype)
    generator = torch.Generator().manual_seed(5)
    return {
        name: value + 0.3 * torch.randn(value.shape, dtype=value.dtype, generator=generator)
        for name, value in stack_parameters(network, MEMBERS).items()
    }


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("loops", ["one", "listed"])
@pytest.mark.parametrize("name", BACKBONES)
def test_logits_and_embedding_equal_those_of_the_pyg_network(
    name, loops, sparse, graph, monkeypatch
):
    monkeypatch.setattr("gnn_repair.backbones.graph.SPARSE_BELOW", 2.0 if sparse else 0.0)
    graph.edge_index = graph.edge_index[:, graph.edge_index[1] > 1]  # two nodes hear nobody
    backbone, ours = BACKBONES[name](Shape(self_loops=loops)), Graph(graph)
    assert (ours.features.sparse is not None) is sparse
    parameters = random_parameters(backbone, graph)
    state = backbone.state(parameters, ours, backbone.trunk(parameters, ours), 0.0)
    readout = backbone.readout(parameters, ours, state, 0.0)
    logits, embedding = readout.logits(state), readout.embedding(state)
    for member in range(MEMBERS):
        network = backbone.network(graph.x.shape[1], 3).to(graph.x.dtype).eval()
        network.load_state_dict(unstack_parameters(parameters, member))
        torch.testing.assert_close(logits[:, member], network(graph.x, graph.edge_index))
        torch.testing.assert_close(network.classifier(embedding[:, member]), logits[:, member])


@pytest.mark.parametrize("zero", [True, False])
def test_h2gcn_streams_start_with_zero_biases_or_as_pytorch_starts_them(zero):
    torch.manual_seed(3)
    lins = BACKBONES["h2gcn"](Shape(zero_stream_biases=zero)).network(5, 2).conv.lins
    torch.manual_seed(3)
    for lin in lins:
        same = torch.nn.Linear(5, 128, bias=not zero)
        assert torch.equal(lin.weight, same.weight)
        assert torch.equal(lin.bias, torch.zeros(128) if zero else same.bias)


OPERATORS = {
    "normalised": lambda graph: graph.normalised(one_loop=True),
    "normalised, loops as listed": lambda graph: graph.normalised(one_loop=False),
    "mean": lambda graph: graph.mean,
    "total": lambda graph: graph.total,
    "mean_without_self": lambda graph: graph.mean_without_self,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_operators_and_their_powers_against_dense_matrices(name, power, graph):
    asked = Graph(graph)
    for first in OPERATORS.values():  # what it is asked before makes no difference
        first(asked)
    operator = OPERATORS[name](asked)
    dense = torch.zeros(36, 36, dtype=torch.float64)
    for source, recipient in graph.edge_index.t().tolist():
        if name == "mean_without_self" and source == recipient:
            continue
        dense[recipient, source] += 1
    if name == "normalised":
        dense.fill_diagonal_(1)
    degree = dense.sum(1).clamp(min=1)
    if name.startswith("normalised"):
        dense = dense / (degree.sqrt().unsqueeze(1) * degree.sqrt())
    elif name != "total":
        dense = dense / degree.unsqueeze(1)
    expected = torch.linalg.matrix_power(dense, power)
    identity = torch.eye(36, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(operator.raised(power)(identity).squeeze(1), expected)
    expanded = operator.raised(power).expanded()
    torch.testing.assert_close(expanded(identity).squeeze(1), expected)
    graph.x = graph.x.float()  # in single precision a power is rounded once, at the end
    single = OPERATORS[name](Graph(graph))
    double = replace(single, coefficients=single.coefficients.double())
    found, exact = (one.raised(power).expanded().coefficients for one in (single, double))
    assert torch.equal(found, exact.float())
    if power != 1:
        pairs = torch.stack([expanded.pattern.recipients, expanded.pattern.indices])
        assert pairs.unique(dim=1).shape == pairs.shape


# Stacked members learn exactly what each would learn alone, and what a plain PyG loop learns.

STILL = Shape(hidden=16, heads=4, dropout=0.0)
FIVE = replace(SHORT, epochs=5)


@pytest.mark.parametrize("name", BACKBONES)
def test_training_equals_a_plain_pyg_loop(name, graph):
    """Same initialisation, updates, clipping and selection as the loop a PyG user writes."""
    backbone = BACKBONES[name](STILL)
    budget = replace(FIVE, clip=0.5)
    frozen = train_backbone(backbone, graph, [1], device="cpu", budget=budget)
    torch.manual_seed(0)
    network = backbone.network(graph.x.shape[1], 3).double()
    best = plain_loop(network, graph, 1, budget)
    for key, value in unstack_parameters(frozen.parameters, 0).items():
        torch.testing.assert_close(value, best[key], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BACKBONES)
def test_stacked_members_learn_what_each_would_learn_alone(name, device, graph):
    """Members of different size, each with the noise that it would have alone."""
    graph.train_mask[:, 1] &= torch.arange(36) % 2 == 0
    backbone = BACKBONES[name](Shape(hidden=16, heads=4, dropout=0.5))
    together = train_backbone(backbone, graph, range(3), device=device, budget=FIVE)
    for split in range(3):
        alone = train_backbone(backbone, graph, [split], device=device, budget=FIVE)
        torch.testing.assert_close(together.logits[split], alone.logits[0])
        assert together.best_epoch[split] == alone.best_epoch[0]


@pytest.mark.parametrize("name", ["gcn", "gatv2"])
def test_the_same_seed_gives_the_same_bits(name, graph):
    backbone, state = BACKBONES[name](Shape(hidden=16, heads=4)), torch.get_rng_state()
    first, second = (
        train_backbone(backbone, graph, range(2), device="cpu", budget=FIVE) for _ in range(2)
    )
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator must not move"
    other = train_backbone(backbone, graph, range(2), device="cpu", budget=FIVE, seed=1)
    assert not torch.equal(first.logits, other.logits)


DROPS = {"gcn": 1, "sage": 1, "graphconv": 1, "gat": 3, "gatv2": 3}
"""Places where values are dropped: hidden states, and coefficients of both attentions."""


@pytest.mark.parametrize("name", BACKBONES)
def test_dropout_is_applied_while_training_only(name, graph, monkeypatch):
    shares, real = [], architectures.drop
    monkeypatch.setattr(architectures, "drop", lambda v, p: shares.append(p) or real(v, p))
    moving = BACKBONES[name](replace(STILL, dropout=0.3))
    trainee = _BackboneTrainee(moving, graph, (0,), torch.device("cpu"), seed=0)
    trainee.losses(trainee.trunk())
    assert [share for share in shares if share] == [0.3] * DROPS.get(name, 0)
    shares.clear()
    trainee.scores(trainee.trunk())
    assert not any(shares)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("dtype,epochs,tolerance", [("float64", 30, 1e-7), ("float32", 8, 1e-2)])
@pytest.mark.parametrize("name", BACKBONES)
def test_the_captured_graph_trains_like_the_cpu(name, dtype, epochs, tolerance, device, graph):
    graph.x = graph.x.to(getattr(torch, dtype))
    backbone, budget = BACKBONES[name](STILL), replace(SHORT, epochs=epochs)
    cpu, gpu = (
        train_backbone(backbone, graph, range(3), device=place, budget=budget)
        for place in ("cpu", device)
    )
    assert torch.equal(cpu.best_epoch, gpu.best_epoch.cpu())
    torch.testing.assert_close(cpu.logits, gpu.logits.cpu(), rtol=tolerance, atol=tolerance)
