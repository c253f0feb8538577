"""Repairs of models whose last aggregation is followed by a nonlinear head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from gnn_repair.exposure import Exposure, expose
from gnn_repair.repair import (
    EvidenceLadder,
    FittedRepair,
    NodeTranslation,
    RefitHead,
    Reweighting,
    SetTranslation,
)
from gnn_repair.repair.inputs import RepairInputs
from gnn_repair.training import Budget

NODES = 120
METHODS = (Reweighting(hidden=8), SetTranslation(hidden=8), NodeTranslation(hidden=8), RefitHead())


class Headed(nn.Module):
    """Heads side by side, a skip connection, LayerNorm, ReLU, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(5, 8), pyg.GATConv(8, 4, heads=2, bias=False)
        self.skip, self.norm, self.lin = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.lin(self.norm(self.conv2(x, edge_index) + self.skip(x)).relu())


def world(
    dtype: torch.dtype = torch.float64, nodes: int = NODES
) -> tuple[nn.Module, Data, Exposure]:
    torch.manual_seed(4)
    edges = torch.randint(nodes, (2, 5 * nodes))
    data = Data(x=2 * torch.randn(nodes, 5, dtype=dtype), edge_index=edges)
    model = Headed().to(dtype).eval()
    with torch.no_grad():  # so that every class is said somewhere
        model.lin.bias -= model(data.x, data.edge_index).mean(0)
    exposure = expose(model, data)
    assert exposure.head is not None
    return model, data, exposure


def masks(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    place = torch.arange(nodes) % 4
    return place < 2, place == 2


def labels(exposure: Exposure) -> Tensor:
    """What the model would say if it listened to messages by their first channel."""
    pull = 3 * exposure.messages[0, exposure.message_rows[exposure.rows].long(), 0].sign()
    tilted = exposure.coefficients.double() * pull.double().exp()
    share = exposure.mass / exposure.masses(tilted)
    lam = tilted * torch.repeat_interleave(share.flatten(1), exposure.segments.diff(), dim=1)
    return exposure.logits(lam)[0].argmax(1)


def short(method, epochs: int = 3, zero: bool = False):  # type: ignore[no-untyped-def]
    return replace(
        method, budget=replace(method.budget, epochs=epochs, learning_rate=0.02, epoch_zero=zero)
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.title)
def test_every_repair_learns_and_is_read_back(method, tmp_path) -> None:
    _, _, exposure = world()
    y = labels(exposure)
    fitted = short(method).fit(exposure, y, *masks(), device="cpu")
    logits = fitted.member_logits(exposure)
    assert logits.shape == (1, NODES, 3) and not torch.allclose(logits, exposure.frozen_logits)
    some = exposure.restrict(torch.tensor([5, 1, 90]))
    torch.testing.assert_close(
        fitted.member_logits(some), logits[:, [5, 1, 90]], rtol=1e-9, atol=1e-9
    )
    fitted.save(tmp_path / "repair")
    again = FittedRepair.load(tmp_path / "repair").member_logits(exposure)
    torch.testing.assert_close(again, logits)


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: method.title)
def test_untrained_repairs_change_nothing(method) -> None:
    _, _, exposure = world()
    fitted = short(method, epochs=1, zero=True).fit(
        exposure, exposure.frozen_logits[0].argmax(1), *masks(), device="cpu"
    )
    assert int(fitted.best_epoch[0]) == 0  # the frozen prediction is perfect here
    torch.testing.assert_close(
        fitted.member_logits(exposure), exposure.frozen_logits, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("given", [True, False])
def test_the_ladder_is_climbed_before_a_head(given, tmp_path) -> None:
    _, data, exposure = world()
    y = labels(exposure)
    ladder = short(EvidenceLadder(hidden=8, folds=2))
    fitted = ladder.fit(exposure, y, *masks(), data=data if given else None, device="cpu")
    assert len(fitted.candidates) == (10 if given else 5)
    logits = fitted.member_logits(exposure)
    fitted.save(tmp_path / "ladder")
    torch.testing.assert_close(
        FittedRepair.load(tmp_path / "ladder").member_logits(exposure), logits
    )


def test_reweighting_is_what_the_model_does_with_these_coefficients() -> None:
    model, data, exposure = world()
    y = labels(exposure)
    fitted = short(Reweighting(hidden=8), epochs=8).fit(exposure, y, *masks(), device="cpu")
    lam = fitted.coefficients(exposure)
    torch.testing.assert_close(exposure.masses(lam), exposure.mass, rtol=1e-12, atol=0)
    assert float((lam - exposure.coefficients).abs().max()) > 1e-3
    # As in training: the mixture formed by the kernels, then the head.
    inputs, method = RepairInputs(exposure), fitted.repair
    p = {name: value.double() for name, value in fitted.parameters.items()}
    trained = method.corrected(p, inputs, method.tables(p, inputs), inputs.everyone, None)
    torch.testing.assert_close(trained, fitted.member_logits(exposure), rtol=1e-9, atol=1e-9)
    # And by hand: attention replaced by λ in the convolution itself.
    torch.testing.assert_close(
        fitted.member_logits(exposure)[0], by_hand(model, data, exposure, lam)
    )


def by_hand(model: nn.Module, data: Data, exposure: Exposure, lam: Tensor) -> Tensor:
    with torch.no_grad():
        x = model.conv1(data.x, data.edge_index).relu()
        heads = model.conv2.lin(x).view(NODES, 2, 4)
        mixed = torch.zeros_like(heads)
        for place in range(2 * NODES):
            for term in range(int(exposure.segments[place]), int(exposure.segments[place + 1])):
                source = int(exposure.sources[exposure.rows[term]])
                mixed[place // 2, place % 2] += lam[0, term] * heads[source, place % 2]
        return model.lin(model.norm(mixed.flatten(1) + model.skip(x)).relu())


def test_gradients_go_through_the_head() -> None:
    _, _, exposure = world()
    inputs, method = RepairInputs(exposure), Reweighting(hidden=4)
    generator = torch.Generator().manual_seed(0)
    p = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in method.initial(inputs).items()
    }
    targets = inputs.everyone[:, ::7].contiguous()

    def loss(weight: Tensor) -> Tensor:
        q = {**p, "scorer.2.weight": weight}
        logits = method.corrected(q, inputs, method.tables(q, inputs), targets, None)
        return logits.log_softmax(2)[..., 0].sum()

    weight = p["scorer.2.weight"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(weight), weight)
    for place in range(4):
        step = torch.zeros_like(weight)
        step[0, place] = 1e-6
        numeric = ((loss(weight + step) - loss(weight - step)) / 2e-6).detach()
        assert float(slope[0, place, 0]) == pytest.approx(float(numeric), rel=1e-5, abs=1e-7)


def test_reweighting_finds_a_planted_preference() -> None:
    _, _, exposure = world(torch.float32, 400)
    y, (train, val) = labels(exposure), masks(400)
    test = ~train & ~val
    frozen = (exposure.frozen_logits[0].argmax(1) == y)[test].double().mean()
    budget = Budget(epochs=120, patience=None, learning_rate=0.02, weight_decay=0.0)
    fitted = Reweighting(budget=budget, hidden=16).fit(exposure, y, train, val, device="cpu")
    right = (fitted.predict(exposure) == y)[test].double().mean()
    assert float(frozen) < 0.85 and float(right) > float(frozen) + 0.08
