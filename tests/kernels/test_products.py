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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("binary", [True, False])
def test_product_and_gradient_are_those_of_double_precision(device, binary):
    x, rows, weight, upstream = (value.to(device) for value in operands(binary))
    shared = SharedRows(x)
    assert shared.exact == binary
    weight.requires_grad_()
    found = product(rows, weight, shared)
    found.backward(upstream)
    joined = torch.cat([x.expand(MEMBERS, -1, -1), rows], dim=2).double()
    exact = joined @ weight.detach().double()
    gradient = joined.mT @ upstream.double()
    # Two bfloat16 pieces hold 16 bits of a number; the bound is on |X| |W|.
    allowed = 2**-16 * (joined.abs() @ weight.detach().double().abs())
    assert ((found - exact).abs() <= allowed).all()
    allowed = 2**-16 * (joined.abs().mT @ upstream.double().abs())
    assert ((weight.grad - gradient).abs() <= allowed).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [3, 16, 100])
def test_without_a_shared_part(device, width):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 700, width, generator=generator).to(device)
    weight = torch.randn(2, width, 24, generator=generator).to(device).requires_grad_()
    upstream = torch.randn(2, 700, 24, generator=generator).to(device)
    product(rows, weight).backward(upstream)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("binary", [True, False])
def test_picked_rows_are_rows_of_the_product(device, binary):
    """Each member picks its own rows, some twice; a sparse and a denser X."""
    x, own, weight, _ = (value.to(device) for value in operands(binary))
    shared = SharedRows(x)
    assert (shared.nonzeros is None) == (not binary)
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(ROWS, (MEMBERS, 50), generator=generator).to(device)
    upstream = torch.randn(MEMBERS, 50, CHANNELS, generator=generator).to(device)
    weight.requires_grad_()
    found = picked_product(shared, own, index, weight)
    found.backward(upstream)
    rows = torch.cat([x.expand(MEMBERS, -1, -1), own], dim=2).double()
    rows = torch.stack([rows[s, index[s]] for s in range(MEMBERS)])
    expected = rows @ weight.detach().double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    gradient = rows.mT @ upstream.double()
    torch.testing.assert_close(weight.grad.double(), gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("binary", [True, False])
def test_rows_that_are_read_are_rows_of_the_product(device, binary):
    """One member reads none, one a few, one all; nobody looks at the others."""
    x, own, weight, upstream = (value.to(device) for value in operands(binary))
    generator = torch.Generator().manual_seed(4)
    numbers = torch.stack([torch.randperm(ROWS, generator=generator) for _ in range(MEMBERS)])
    counts = [0, 37, ROWS]
    read = ReadRows(*(v.int().to(device) for v in (numbers, torch.tensor(counts))))
    for s, count in enumerate(counts):
        upstream[s, numbers[s, count:]] = 0
    weight.requires_grad_()
    found = read_product(SharedRows(x), own, read, weight)
    found.backward(upstream)
    joined = torch.cat([x.expand(MEMBERS, -1, -1), own], dim=2).double()
    exact = joined @ weight.detach().double()
    allowed = 2**-16 * (joined.abs() @ weight.detach().double().abs())
    for s, count in enumerate(counts):
        rows = numbers[s, :count]
        assert ((found[s, rows] - exact[s, rows]).abs() <= allowed[s, rows]).all()
    gradient = joined.mT @ upstream.double()
    allowed = 2**-16 * (joined.abs().mT @ upstream.double().abs())
    assert ((weight.grad - gradient).abs() <= allowed).all()
