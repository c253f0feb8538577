"""The optimiser of stacked members against torch's own, one member at a time."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.budget import Budget
from gnn_repair.training import FlatParameters, MemberAdam, plain_adam

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [True, False])
def test_members_move_as_they_would_alone(device, dtype, decoupled):
    """Gradients from far below to far above the clipping norm, over several updates."""
    generator = torch.Generator().manual_seed(0)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled, clip=5.0)
    sizes = torch.tensor([1e-4, 1.0, 10.0]).view(-1, 1)
    start = torch.randn(3, 5000, generator=generator, dtype=dtype)
    stacked = start.clone().to(device)
    together = MemberAdam(stacked, budget)
    method = torch.optim.AdamW if decoupled else torch.optim.Adam
    alone = [start[s].clone() for s in range(3)]
    optimizers = [method([value], lr=1e-2, weight_decay=0.1) for value in alone]
    for _ in range(5):
        gradient = torch.randn(3, 5000, generator=generator, dtype=dtype) * sizes
        stacked.grad = gradient.clone().to(device)
        together.step()
        for value, optimizer, own in zip(alone, optimizers, gradient, strict=True):
            value.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([value], 5.0)
            optimizer.step()
    torch.testing.assert_close(stacked.cpu(), torch.stack(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decoupled", [True, False])
def test_members_that_sit_out_stay_as_they_are_and_count_their_own_steps(device, dtype, decoupled):
    """Member 1 learns in every second step, member 2 from the third on; one more never does."""
    generator = torch.Generator().manual_seed(1)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled)
    start = torch.randn(4, 300, generator=generator, dtype=dtype)
    stacked = start.clone().to(device)
    together = MemberAdam(stacked, budget)
    method = torch.optim.AdamW if decoupled else torch.optim.Adam
    alone = [start[s].clone() for s in range(4)]
    optimizers = [method([value], lr=1e-2, weight_decay=0.1) for value in alone]
    for step in range(6):
        learning = [True, step % 2 == 0, step >= 3, False]
        gradient = torch.randn(4, 300, generator=generator, dtype=dtype)
        stacked.grad = gradient.clone().to(device)
        together.step(torch.tensor(learning, device=device))
        for value, optimizer, own, learns in zip(
            alone, optimizers, gradient, learning, strict=True
        ):
            value.grad = own.clone()
            torch.nn.utils.clip_grad_norm_([value], 5.0)
            if learns:
                optimizer.step()
    torch.testing.assert_close(stacked.cpu(), torch.stack(alone), rtol=1e-5, atol=1e-6)
    assert torch.equal(stacked[3].cpu(), start[3])


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_written_out_update_is_torchs(decoupled):
    generator = torch.Generator().manual_seed(2)
    budget = Budget(1, None, learning_rate=1e-2, weight_decay=0.1, decoupled=decoupled)
    found = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    expected = MemberAdam(found.clone(), budget)
    moments = torch.zeros_like(found), torch.zeros_like(found)
    steps = torch.zeros(2, dtype=torch.long)
    for step in range(4):
        learning = torch.tensor([True, step != 1])
        gradient = torch.randn(2, 50, generator=generator, dtype=torch.float64) * 3
        expected.matrix.grad = gradient.clone()
        expected.step(learning)
        steps += learning
        scale = (5 / (gradient.norm(dim=1) + 1e-6)).clamp(max=1)
        plain_adam(found, gradient, moments, steps, scale, learning, budget)
    torch.testing.assert_close(found, expected.matrix, rtol=1e-12, atol=1e-12)


def test_views_are_the_parameters_and_gradients_flow_through_them():
    parameters = {"weight": torch.arange(12.0).view(2, 2, 3), "bias": torch.arange(4.0).view(2, 2)}
    flat = FlatParameters(parameters)
    views = flat.views(flat.matrix)
    assert list(views) == ["weight", "bias"]
    for name, value in parameters.items():
        assert torch.equal(views[name], value)
    (views["weight"].square().sum() + 3 * views["bias"].sum()).backward()
    expected = torch.cat([2 * parameters["weight"].flatten(1), torch.full((2, 2), 3.0)], dim=1)
    assert torch.equal(flat.matrix.grad, expected)
