"""Products of shared rows with weights cut into bfloat16 pieces, against double precision."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.kernels.products import SharedRows, picked_product, product, read_product
from gnn_repair.kernels.sets import ReadRows
from tests.helpers.device_places import DEVICES

MEMBERS, ROWS, WIDTH, OWN, CHANNELS = 3, 301, 77, 5, 40


def operands(binary: bool) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, WIDTH, generator=generator)
    x = (x < 0.1).float() if binary else x * (x < 0.4)
    rows = torch.randn(MEMBERS, ROWS, OWN, generator=generator)
    weight = torch.randn(MEMBERS, WIDTH + OWN, CHANNELS, generator=generator)
    upstream = torch.randn(MEMBERS, ROWS, CHANNELS, generator=generator)
    return x, rows, weight, upstream


def joined(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.expand(MEMBERS, -1, -1), own], dim=2).double()


def near(found: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two bfloat16 pieces, which hold 16 bits of a number, allow it: by |X| |W|."""
    allowed = 2**-16 * (one.abs() @ other.double().abs())
    return (found - one @ other.double()).abs() <= allowed


BOTH = pytest.mark.parametrize("binary", [True, False])
EVERYWHERE = pytest.mark.parametrize("device", DEVICES)


@EVERYWHERE
@BOTH
def test_product_and_gradient_are_those_of_double_precision(device, binary):
    x, rows, weight, upstream = (value.to(device) for value in operands(binary))
    shared = SharedRows(x)
    assert shared.exact == binary
    found = product(rows, weight.requires_grad_(), shared)
    found.backward(upstream)
    whole = joined(x, rows)
    assert near(found, whole, weight.detach()).all()
    assert near(weight.grad, whole.mT, upstream).all()


@EVERYWHERE
@pytest.mark.parametrize("width", [3, 16, 100])
def test_without_a_shared_part(device, width):
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 700, width), (2, width, 24), (2, 700, 24))
    rows, weight, upstream = (torch.randn(*n, generator=generator).to(device) for n in sizes)
    product(rows, weight.requires_grad_()).backward(upstream)
    expected = rows.double().mT @ upstream.double()
    torch.testing.assert_close(weight.grad.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_one_piece_more_is_what_makes_it_precise(device):
    """With the first pieces alone the error is a hundred times the bound."""
    x, _, weight, _ = (value.to(device) for value in operands(binary=False))
    exact = x.double() @ weight[:, :WIDTH].double()
    coarse = x.bfloat16().float() @ weight[:, :WIDTH].bfloat16().float()
    fine = SharedRows(x).times(weight[:, :WIDTH])
    assert (fine - exact).abs().max() < (coarse - exact).abs().max() / 50


@EVERYWHERE
@BOTH
def test_picked_rows_are_rows_of_the_product(device, binary):
    """Each member picks its own rows, some twice; a sparse and a denser X."""
    x, own, weight, _ = (value.to(device) for value in operands(binary))
    shared = SharedRows(x)
    assert (shared.nonzeros is None) == (not binary)
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(ROWS, (MEMBERS, 50), generator=generator).to(device)
    upstream = torch.randn(MEMBERS, 50, CHANNELS, generator=generator).to(device)
    found = picked_product(shared, own, index, weight.requires_grad_())
    found.backward(upstream)
    rows = joined(x, own)
    rows = torch.stack([rows[s, index[s]] for s in range(MEMBERS)])
    pairs = (found, rows @ weight.detach().double()), (weight.grad, rows.mT @ upstream.double())
    for one, expected in pairs:
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-4)


@EVERYWHERE
@BOTH
def test_rows_that_are_read_are_rows_of_the_product(device, binary):
    """One member reads none, one a few, one all; nobody looks at the others."""
    x, own, weight, upstream = (value.to(device) for value in operands(binary))
    generator = torch.Generator().manual_seed(4)
    numbers = torch.stack([torch.randperm(ROWS, generator=generator) for _ in range(MEMBERS)])
    counts = [0, 37, ROWS]
    read = ReadRows(*(v.int().to(device) for v in (numbers, torch.tensor(counts))))
    for s, count in enumerate(counts):
        upstream[s, numbers[s, count:]] = 0
    found = read_product(SharedRows(x), own, read, weight.requires_grad_())
    found.backward(upstream)
    whole = joined(x, own)
    right = near(found, whole, weight.detach())
    assert all(right[s, numbers[s, :count]].all() for s, count in enumerate(counts))
    assert near(weight.grad, whole.mT, upstream).all()
