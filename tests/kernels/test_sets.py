"""The set operations against their plain PyTorch form: values, gradients, dropout masks."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.kernels.sets import (
    Dropout,
    Layer,
    Scorer,
    TermSets,
    compare,
    drop_rows,
    drop_rows_plainly,
    keep_mask,
    no_dropout,
    plain_pool,
    plain_tilt,
    pool,
    tilt,
)
from tests.helpers.device_places import DEVICES

N, P, R, S, H, C = 9, 7, 11, 3, 100, 4
"""H is wider than the channels that one call on the CPU works on, and no multiple of them."""


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_sets(groups: int, shared: bool) -> TermSets:
    """Some empty groups, one recipient without any term, one with a hundred, zero coefficients."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 6, (N * groups,), generator=generator)
    lengths[: 2 * groups : groups] = 0
    lengths[:groups] = 0
    lengths[3 * groups] = 100
    segments = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    terms = int(segments[-1])
    members = 1 if shared else S
    coefficients = randn(members, terms, seed=1).abs()
    coefficients[:, ::7] = 0
    return TermSets(
        segments,
        groups,
        torch.randint(0, P, (terms,), generator=generator).int(),
        torch.randint(0, R, (terms,), generator=generator).int(),
        coefficients,
        randn(members, terms, seed=2).tanh(),
        randn(1, terms, seed=4).abs(),
    )


def moved(sets: TermSets, device: str, dtype: torch.dtype) -> TermSets:
    index = (sets.segments, sets.columns, sets.rows)
    values = (sets.coefficients, sets.cosine, sets.distance)
    segments, columns, rows = (tensor.to(device) for tensor in index)
    return TermSets(segments, sets.groups, columns, rows, *(v.to(device, dtype) for v in values))


def targets() -> torch.Tensor:
    """Every member its own recipients, with a repetition and the one without terms."""
    return torch.tensor([[0, 3, 5, 3, 8], [8, 7, 6, 5, 4], [1, 2, 0, 3, 4]])


def tables() -> list[torch.Tensor]:
    return [
        randn(S, 5, H, seed=5),
        randn(S, P, H, seed=6),
        randn(S, H, seed=7),
        randn(S, H, seed=8),
    ]


def agree(operation, reference, tensors, device):
    """Values and gradients of the operation on ``device``, and of the reference in float64."""
    results = []
    precision = torch.float64 if device == "cpu" else torch.float32
    for function, place, dtype in (
        (operation, device, precision),
        (reference, "cpu", torch.float64),
    ):
        leaves = [tensor.to(place, dtype).requires_grad_() for tensor in tensors]
        out = function(place, dtype, *leaves)
        out.backward(torch.cos(torch.arange(out.numel(), device=place).view_as(out)).to(out))
        results.append([t.detach().cpu().double() for t in (out, *(leaf.grad for leaf in leaves))])
    tolerance = 1e-11 if device == "cpu" else 1e-4
    for found, expected in zip(*results, strict=True):
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(found / scale, expected / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups,shared,share", [(1, True, 0.0), (3, False, 0.0), (3, True, 0.3)])
def test_pool(device, groups, shared, share):
    sets = random_sets(groups, shared)
    agree(
        lambda place, dtype, *layer: pool(
            moved(sets, place, dtype), targets().to(place), Layer(*layer), dropping(share, place)
        ),
        lambda place, dtype, *layer: plain_pool(
            sets, targets(), Layer(*layer), dropping(share, place)
        ),
        tables(),
        device,
    )


def dropping(share: float, device: str) -> Dropout:
    return Dropout(share, torch.tensor(12345, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups,shared,share", [(1, True, 0.0), (3, False, 0.0), (3, True, 0.3)])
def test_tilt(device, groups, shared, share):
    sets, contributions = random_sets(groups, shared), randn(S, R, C, seed=9)
    agree(
        lambda place, dtype, output, bias, *layer: tilt(
            moved(sets, place, dtype),
            targets().to(place),
            Layer(*layer),
            Scorer(output, bias),
            contributions.to(place, dtype),
            dropping(share, place),
        ),
        lambda place, dtype, output, bias, *layer: plain_tilt(
            sets,
            targets(),
            Layer(*layer),
            Scorer(output, bias),
            contributions,
            dropping(share, place),
        ),
        [0.05 * randn(S, H, seed=10), randn(S, seed=11), *tables()],
        device,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [3, 130])
def test_compare(device, width):
    dtype = torch.float64 if device == "cpu" else torch.float32
    sets = random_sets(1, True)
    here, there = randn(S, N, width).to(device, dtype), randn(S, P, width, seed=1).to(device, dtype)
    products, squares = compare(sets.segments.to(device), sets.columns.to(device), here, there)
    owner = torch.repeat_interleave(sets.segments.diff())
    left, right = here.cpu().double()[:, owner], there.cpu().double()[:, sets.columns.long()]
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(products.cpu().double(), (left * right).sum(2), **tolerance)
    torch.testing.assert_close(squares.cpu().double(), (left - right).square().sum(2), **tolerance)


def test_dropout_keeps_its_share_and_differs_between_seeds_and_terms():
    seed, terms = torch.tensor(12345), torch.arange(400)
    mask = keep_mask(seed, 0.2, terms, 128)
    assert abs(float(mask.double().mean()) - 0.8) < 0.005
    # No channel and no term is favoured: column and row means stay within five deviations.
    assert float((mask.double().mean(0) - 0.8).abs().max()) < 5 * (0.16 / 400) ** 0.5
    assert float((mask.double().mean(1) - 0.8).abs().max()) < 5 * (0.16 / 128) ** 0.5
    for other in (keep_mask(seed + 1, 0.2, terms, 128), keep_mask(seed, 0.2, terms + 1, 128)):
        both = float((mask & other).double().mean())
        assert abs(both - 0.64) < 0.01


def test_every_member_has_the_mask_it_would_have_alone():
    sets, layer = random_sets(3, False), Layer(*tables())
    together = pool(sets, targets(), layer, dropping(0.3, "cpu"))
    for s in range(S):
        own = TermSets(
            sets.segments, 3, sets.columns, sets.rows,
            sets.coefficients[s : s + 1], sets.cosine[s : s + 1], sets.distance,
        )  # fmt: skip
        part = Layer(*(table[s : s + 1] for table in layer))
        alone = pool(own, targets()[s : s + 1], part, dropping(0.3, "cpu"))
        assert torch.equal(together[s], alone[0])


def test_rows_are_dropped_alike_for_all_members_and_whatever_follows():
    values = randn(3, 200, 64)
    dropped = drop_rows(values, 0.3, torch.tensor(7))
    zero = dropped == 0
    assert torch.equal(zero[0], zero[2])
    assert abs(float(zero.double().mean()) - 0.3) < 0.02
    torch.testing.assert_close(dropped[~zero], values[~zero] / 0.7)
    assert torch.equal(drop_rows(values[:, :50], 0.3, torch.tensor(7)), dropped[:, :50])
    assert not torch.equal(drop_rows(values, 0.3, torch.tensor(8)), dropped)


def test_threads_do_not_change_the_result():
    sets, threads = random_sets(3, False), torch.get_num_threads()
    contributions = randn(S, R, C, seed=9)
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        leaves = [t.requires_grad_() for t in [randn(S, H, seed=10), randn(S, seed=11), *tables()]]
        mixed = tilt(sets, targets(), Layer(*leaves[2:]), Scorer(*leaves[:2]), contributions)
        pooled = pool(sets, targets(), Layer(*leaves[2:]), dropping(0.2, "cpu"))
        (mixed.log1p().sum() + pooled.square().sum()).backward()
        results.append([leaf.grad for leaf in leaves])
    torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_no_dropout_drops_nothing():
    assert no_dropout(targets()).threshold == 0
    assert no_dropout(targets()).scale == 1


def test_sizes_that_would_be_read_past_their_end_are_refused():
    sets, layer = random_sets(1, True), Layer(*tables())
    with pytest.raises(InputError, match=r"layer\.recipient has shape"):
        pool(sets, targets()[:, 1:], layer)
    with pytest.raises(InputError, match=r"layer\.source has shape"):
        pool(sets, targets(), layer._replace(source=layer.source[..., 1:]))
    with pytest.raises(InputError, match="output has shape"):
        tilt(sets, targets(), layer, Scorer(randn(S, H + 1), randn(S)), randn(S, R, C))
    with pytest.raises(InputError, match="recipients has shape"):
        compare(sets.segments, sets.columns, randn(S, N - 1, 3), randn(S, P, 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.75])
@pytest.mark.parametrize("seed", [0, 7, -3, 2**40 + 11])
def test_dropped_rows_are_the_plain_form_s(device, dtype, share, seed):
    """Masks are the same everywhere; numbers to the last bit on the CPU, else to rounding."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, 21, 130, generator=generator).to(device, dtype)
    values.requires_grad_()
    above = torch.randn(3, 21, 130, generator=generator).to(device, dtype)
    number = torch.tensor(seed, device=device)
    expected = drop_rows_plainly(values, share, number)
    (slope,) = torch.autograd.grad(expected, values, above)
    found = drop_rows(values, share, number)
    (own_slope,) = torch.autograd.grad(found, values, above)
    exact = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-6, "atol": 0}
    torch.testing.assert_close(found, expected, **exact)
    torch.testing.assert_close(own_slope, slope, **exact)
    assert torch.equal(found == 0, expected == 0)
    # Values that do not lie one after another in memory.
    across = values.detach().transpose(1, 2)
    both = drop_rows(across, share, number), drop_rows_plainly(across, share, number)
    torch.testing.assert_close(*both, **exact)


def test_dropping_rows_of_nothing():
    assert drop_rows(torch.zeros(2, 0, 4), 0.2, torch.tensor(1)).shape == (2, 0, 4)
