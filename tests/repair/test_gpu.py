"""Whole fits on a GPU, captured as CUDA graphs, against the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair import inputs as module
from tests.helpers.repair.toy_exposures import toy_exposure, toy_graph

DATA = toy_graph()
ADAPTERS = [Reweighting(), SetTranslation(), NodeTranslation()]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A fit that cannot be captured says so in a warning.
    pytest.mark.filterwarnings("error", "ignore:member . is repaired without"),
]


@pytest.mark.parametrize("repair", [*ADAPTERS, RefitHead()])
@pytest.mark.parametrize("backbone", ["sage", "gat", "h2gcn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_captured_fit_is_that_of_the_cpu(repair, backbone, dtype):
    """Without dropout nothing is random in a full batch, so both devices learn the same.

    Double precision cannot be captured: nothing is tried that would then have to be explained.
    """
    exposure = toy_exposure(backbone, dtype)
    budget = replace(repair.budget, epochs=12, epoch_zero=False)
    method = replace(repair, budget=budget, dropout=0.0)
    arguments = (DATA.y, DATA.train_mask, DATA.val_mask)
    here, there = (method.fit(exposure, *arguments, device=place) for place in ("cpu", "cuda"))
    placed = exposure.to("cuda")
    assert torch.equal(here.best_epoch, there.best_epoch.cpu())
    torch.testing.assert_close(
        there.member_logits(placed).cpu(), here.member_logits(exposure), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("repair", ADAPTERS)
def test_a_wide_shared_state_is_read_the_same_on_tensor_cores(repair, monkeypatch):
    """H2GCN's state is the raw features, here treated as wide; outputs and gradients."""
    monkeypatch.setattr(module, "NARROW", 0)
    exposure = toy_exposure("h2gcn", torch.float32)
    found = {}
    for place in ("cpu", "cuda"):
        inputs = module.RepairInputs(exposure.to(place))
        assert (inputs.messages.pieces is not None) == (place == "cuda")
        p = repair.initial(inputs)
        generator = torch.Generator().manual_seed(0)
        for value in p.values():
            value.add_(0.1 * torch.randn(value.shape, generator=generator).to(place))
            value.requires_grad_()
        logits = repair.corrected(p, inputs, repair.tables(p, inputs), inputs.everyone, None)
        logits.square().sum().backward()
        found[place] = [logits.detach(), *(value.grad for value in p.values())]
    for here, there in zip(*found.values(), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=2e-3, atol=2e-3)


PLACE = torch.arange(30)
TRAIN = torch.stack([(PLACE % 10 < 1) & (PLACE > 0), PLACE % 10 < 5], dim=1)
VAL = torch.stack([PLACE % 10 > 4, PLACE % 10 > 7], dim=1)


@pytest.mark.parametrize("repair", ADAPTERS)
@pytest.mark.parametrize("batch", [None, 4])
def test_members_of_different_size_learn_what_they_would_alone_and_on_the_cpu(repair, batch):
    """Two targets beside fifteen; captured steps, hashed masks and shuffles on both devices."""
    exposure = toy_exposure("sage", torch.float32)
    budget = replace(repair.budget, epochs=12, epoch_zero=False, weight_decay=0.1)
    method = replace(repair, budget=budget, dropout=0.3)
    together = method.fit(exposure, DATA.y, TRAIN, VAL, device="cuda", batch_size=batch)
    here = method.fit(exposure, DATA.y, TRAIN, VAL, device="cpu", batch_size=batch)
    for s in range(2):
        one = exposure.member(s)
        masks = TRAIN[:, s], VAL[:, s]
        alone = method.fit(one, DATA.y, *masks, device="cuda", batch_size=batch)
        for name, value in alone.parameters.items():
            found = together.parameters[name][s]
            torch.testing.assert_close(found, value[0], rtol=1e-3, atol=1e-4)
        assert together.epochs_run[s] == alone.epochs_run[0]
    # Adam turns the rounding of a gradient that ought to be zero (the scorer's last bias, nearly
    # free under the normalisation) into whole steps, so devices are compared by what they predict.
    there, expected = together.member_logits(exposure), here.member_logits(exposure)
    torch.testing.assert_close(there, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("repair", ADAPTERS[:2])
@pytest.mark.parametrize("backbone", ["h2gcn", "mixhop", "sgc"])
def test_rows_that_are_read_teach_what_the_whole_table_teaches(repair, backbone, monkeypatch):
    """Captured minibatches that multiply the messages they read, against all messages."""
    monkeypatch.setattr(module, "NARROW", 0)
    monkeypatch.setattr(module, "FEW", 100.0)
    exposure = toy_exposure(backbone, torch.float32)
    budget = replace(repair.budget, epochs=12, epoch_zero=False)
    method = replace(repair, budget=budget, dropout=0.0)
    calls = []
    real = module.read_product

    def counted(*arguments):
        calls.append(None)  # the tensors themselves would outlive their step
        return real(*arguments)

    monkeypatch.setattr(module, "read_product", counted)

    def train():
        calls.clear()
        fitted = method.fit(
            exposure, DATA.y, DATA.train_mask, DATA.val_mask, device="cuda", batch_size=2
        )
        return fitted.member_logits(exposure.to("cuda")), len(calls)

    few, used = train()
    monkeypatch.setattr(module.Description, "picks_cheaply", False)
    whole, unused = train()
    assert used > 0 and unused == 0
    torch.testing.assert_close(few, whole, rtol=1e-3, atol=1e-3)
