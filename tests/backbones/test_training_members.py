"""Stacked members learn exactly what each would learn alone, and what a plain PyG loop learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.training import plain_loop
from gnn_repair.backbones import BACKBONES, Shape, train_backbone
from gnn_repair.backbones.train import _BackboneTrainee
from gnn_repair.training import LONG, SHORT, unstack_parameters

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
