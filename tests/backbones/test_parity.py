"""Stacked training against PyG, member by member."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.training import plain_loop
from gnn_repair.backbones import BACKBONES, Graph, Shape, find_backbone, train_backbone
from gnn_repair.backbones.graph import Features
from gnn_repair.backbones.train import _BackboneTrainee
from gnn_repair.training import LONG, SHORT, stack_parameters, unstack_parameters

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


def test_h2gcn_equals_plain_sparse_algebra(graph):
    backbone, ours = find_backbone("h2gcn"), Graph(graph)
    p = random_parameters(backbone, graph)
    adjacency = torch.zeros(36, 36, dtype=torch.float64)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    adjacency.fill_diagonal_(0)
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    streams = [graph.x, mean @ graph.x, mean @ mean @ graph.x]
    for member in range(MEMBERS):
        embedding = torch.cat(
            [
                stream @ p[f"conv.lins.{k}.weight"][member] + p[f"conv.lins.{k}.bias"][member]
                for k, stream in enumerate(streams)
            ],
            dim=1,
        )
        expected = embedding @ p["classifier.weight"][member] + p["classifier.bias"][member]
        found = backbone.logits(p, ours, None)[:, member]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_member_starts_as_pyg_does_from_that_seed(name, graph):
    backbone = find_backbone(name)
    torch.manual_seed(0)
    network = backbone.network(graph.x.shape[1], 3)
    stacked = stack_parameters(network, 2)
    for member in range(2):
        for key, value in unstack_parameters(stacked, member).items():
            assert torch.equal(value, network.state_dict()[key])


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
    operator = OPERATORS[name](Graph(graph))
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


@pytest.mark.parametrize("first", OPERATORS)
def test_operators_do_not_hang_on_what_the_graph_was_asked_before(first, graph):
    asked = Graph(graph)
    OPERATORS[first](asked)
    for name, operator in OPERATORS.items():
        found, fresh = operator(asked), operator(Graph(graph))
        assert torch.equal(found.coefficients, fresh.coefficients), name
        assert torch.equal(found.pattern.indices, fresh.pattern.indices), name


def test_the_hub_and_the_doubled_self_loop_are_there(graph):
    operator = Graph(graph).total
    counts = operator.pattern.indptr.diff()
    assert counts[0] == 1
    assert int((operator.pattern.indices[operator.pattern.recipients == 1] == 1).sum()) == 2
    assert counts[2] >= 33


def test_features_multiply_alike_sparse_or_dense(graph, monkeypatch):
    weight = torch.randn(2, 12, 5, dtype=torch.float64)
    monkeypatch.setattr("gnn_repair.backbones.graph.SPARSE_BELOW", 2.0)
    sparse = Features(graph.x)
    assert sparse.sparse is not None
    torch.testing.assert_close(sparse.times(weight), torch.einsum("nf,sfk->nsk", graph.x, weight))


# Stacked members learn exactly what each would learn alone, and what a plain PyG loop learns.

STILL = Shape(hidden=16, heads=4, dropout=0.0)
FIVE = replace(SHORT, epochs=5)


@pytest.mark.parametrize("name", BACKBONES)
def test_losses_and_gradients_separate_by_member(name, graph):
    backbone = BACKBONES[name](STILL)
    together = _BackboneTrainee(backbone, graph, (0, 1, 2), torch.device("cpu"), seed=0)
    for parameter in together.parameters.values():
        parameter.requires_grad_()
    losses = together.losses(together.trunk())
    losses.sum().backward()
    for member in range(3):
        alone = _BackboneTrainee(backbone, graph, (member,), torch.device("cpu"), seed=0)
        for parameter in alone.parameters.values():
            parameter.requires_grad_()
        loss = alone.losses(alone.trunk())
        loss.sum().backward()
        torch.testing.assert_close(losses[member], loss[0])
        for key, parameter in alone.parameters.items():
            torch.testing.assert_close(together.parameters[key].grad[member], parameter.grad[0])


@pytest.mark.parametrize("name", BACKBONES)
def test_stacked_training_equals_training_alone(name, graph):
    backbone = BACKBONES[name](STILL)
    together = train_backbone(backbone, graph, range(3), device="cpu", budget=FIVE)
    for split in range(3):
        alone = train_backbone(backbone, graph, [split], device="cpu", budget=FIVE)
        torch.testing.assert_close(together.logits[split], alone.logits[0])
        assert together.best_epoch[split] == alone.best_epoch[0]


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


@pytest.mark.parametrize("name", BACKBONES)
def test_the_same_seed_gives_the_same_bits(name, graph):
    backbone, state = BACKBONES[name](Shape(hidden=16, heads=4)), torch.get_rng_state()
    first, second = (
        train_backbone(backbone, graph, range(2), device="cpu", budget=FIVE) for _ in range(2)
    )
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator must not move"
    other = train_backbone(backbone, graph, range(2), device="cpu", budget=FIVE, seed=1)
    assert not torch.equal(first.logits, other.logits)


@pytest.mark.parametrize("name", BACKBONES)
def test_planted_classes_are_recovered(name, graph):
    """Three rings, one a class, with the label in the features: nothing may be misclassified."""
    ring = torch.arange(36)
    graph.edge_index = torch.cat(
        [torch.stack([ring, ring]), torch.stack([ring, (ring + 3) % 36])], dim=1
    )
    # Loud, since the first epoch with perfect validation is kept, however young it is.
    graph.x[ring, graph.y] += 3
    frozen = train_backbone(name, graph, range(3), device="cpu", budget=replace(LONG, epochs=40))
    assert frozen.accuracy(graph.test_mask).tolist() == [1.0, 1.0, 1.0]


def test_dropout_is_applied_while_training_only(graph):
    still, moving = BACKBONES["gcn"](STILL), BACKBONES["gcn"](replace(STILL, dropout=0.5))
    trainee = _BackboneTrainee(moving, graph, (0,), torch.device("cpu"), seed=0)
    calm = _BackboneTrainee(still, graph, (0,), torch.device("cpu"), seed=0)
    first, second = (trainee.losses(trainee.trunk()) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(trainee.scores(trainee.trunk()), calm.scores(calm.trunk()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype,epochs,tolerance", [("float64", 30, 1e-7), ("float32", 8, 1e-2)])
@pytest.mark.parametrize("name", BACKBONES)
def test_the_captured_graph_trains_like_the_cpu(name, dtype, epochs, tolerance, graph):
    graph.x = graph.x.to(getattr(torch, dtype))
    backbone, budget = BACKBONES[name](STILL), replace(SHORT, epochs=epochs)
    cpu, gpu = (
        train_backbone(backbone, graph, range(3), device=device, budget=budget)
        for device in ("cpu", "cuda")
    )
    assert torch.equal(cpu.best_epoch, gpu.best_epoch.cpu())
    torch.testing.assert_close(cpu.logits, gpu.logits.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BACKBONES)
def test_stacked_training_equals_training_alone_with_dropout(name, graph):
    """Members of different size, each with the noise that it would have alone."""
    graph.train_mask[:, 1] &= torch.arange(36) % 2 == 0
    backbone = BACKBONES[name](Shape(hidden=16, heads=4, dropout=0.5))
    together = train_backbone(backbone, graph, range(3), device="cpu", budget=FIVE)
    for split in range(3):
        alone = train_backbone(backbone, graph, [split], device="cpu", budget=FIVE)
        torch.testing.assert_close(together.logits[split], alone.logits[0])
        assert together.best_epoch[split] == alone.best_epoch[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["gcn", "gat", "gatv2", "sage"])
def test_captured_members_draw_the_noise_that_they_would_alone(name, graph):
    backbone = BACKBONES[name](Shape(hidden=16, heads=4, dropout=0.5))
    budget = replace(SHORT, epochs=12)
    together = train_backbone(backbone, graph, range(3), device="cuda", budget=budget)
    for split in range(3):
        alone = train_backbone(backbone, graph, [split], device="cuda", budget=budget)
        torch.testing.assert_close(together.logits[split], alone.logits[0])
