"""A stack of copies computes what every copy would compute alone, values and gradients."""

from __future__ import annotations

import pytest
import torch
from toy_exposures import toy_exposure

from gnn_repair.repair import NodeTranslation, RefitHead, Reweighting, SetTranslation
from gnn_repair.repair.cross_fitting import StackedInputs
from gnn_repair.repair.inputs import repair_inputs

COPIES = 3
REPAIRS = [SetTranslation(hidden=6), Reweighting(hidden=6), NodeTranslation(hidden=6), RefitHead()]


def random_parameters(repair, inputs) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=value.dtype).requires_grad_()
        for name, value in repair.initial(inputs).items()
    }


def constants(repair, inputs) -> dict[str, torch.Tensor]:
    if not isinstance(repair, RefitHead):
        return {}
    width = repair.input_width(inputs)
    return {
        "mean": torch.zeros(inputs.num_members, width),
        "scale": torch.ones(inputs.num_members, width),
    }


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("backbone", ["sage", "gat", "sgc", "h2gcn"])
def test_a_stack_is_its_copies(repair, backbone):
    own = repair_inputs(toy_exposure(backbone))
    inputs = StackedInputs(own, COPIES)
    p = random_parameters(repair, inputs)
    generator = torch.Generator().manual_seed(2)
    targets = torch.randint(0, 30, (2 * COPIES, 11), generator=generator)
    fixed = constants(repair, inputs)
    out = repair.corrected({**p, **fixed}, inputs, repair.tables(p, inputs), targets, None)
    upstream = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    (out * upstream).sum().backward()
    for k in range(COPIES):
        mine = {
            name: value.detach()[k::COPIES].clone().requires_grad_() for name, value in p.items()
        }
        alone = repair.corrected(
            {**mine, **constants(repair, own)},
            own,
            repair.tables(mine, own),
            targets[k::COPIES],
            None,
        )
        torch.testing.assert_close(out.detach()[k::COPIES], alone.detach(), rtol=1e-10, atol=1e-10)
        (alone * upstream[k::COPIES]).sum().backward()
        for name, value in mine.items():
            if value.grad is not None:
                torch.testing.assert_close(
                    p[name].grad[k::COPIES], value.grad, rtol=1e-9, atol=1e-9
                )


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_nothing_wide_is_copied(backbone):
    own = repair_inputs(toy_exposure(backbone))
    inputs = StackedInputs(own, COPIES)
    assert inputs.recipients.shared is own.recipients.shared
    if own.recipients.shared is None:
        assert inputs.recipients.rows is own.recipients.rows
        assert inputs.messages.rows is own.messages.rows


def test_one_member_shares_the_numbers_of_its_terms():
    own = repair_inputs(toy_exposure("gcn").member(0))
    sets = StackedInputs(own, COPIES).sets
    for name in ("coefficients", "cosine", "distance"):
        assert getattr(sets, name) is getattr(own.sets, name)
