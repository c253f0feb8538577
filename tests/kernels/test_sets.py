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
    plain_pool,
    plain_tilt,
    pool,
    tilt,
)
from tests.helpers.device_places import DEVICES
from tests.helpers.kernel_forms import agree, gradients_by_threads, randn

N, P, R, S, H, C = 9, 7, 11, 3, 100, 4
"""H is wider than the channels that one call on the CPU works on, and no multiple of them."""


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


SETS = pytest.mark.parametrize(
    "groups,shared,share", [(1, True, 0.0), (3, False, 0.0), (3, True, 0.3)]
)


def dropping(share: float, device: str) -> Dropout:
    return Dropout(share, torch.tensor(12345, device=device))


@SETS
@pytest.mark.parametrize("device", DEVICES)
def test_pool(device, groups, shared, share):
    sets = random_sets(groups, shared)

    def of(operation):
        def call(place, *layer):
            own, chosen = moved(sets, place, layer[0].dtype), targets().to(place)
            return operation(own, chosen, Layer(*layer), dropping(share, place))

        return call

    agree(of(pool), of(plain_pool), tables(), device)


@SETS
@pytest.mark.parametrize("device", DEVICES)
def test_tilt(device, groups, shared, share):
    sets, contributions = random_sets(groups, shared), randn(S, R, C, seed=9)

    def of(operation):
        def call(place, output, bias, *layer):
            own, chosen = moved(sets, place, bias.dtype), targets().to(place)
            held, scorer = contributions.to(bias), Scorer(output, bias)
            return operation(own, chosen, Layer(*layer), scorer, held, dropping(share, place))

        return call

    leaves = [0.05 * randn(S, H, seed=10), randn(S, seed=11), *tables()]
    agree(of(tilt), of(plain_tilt), leaves, device)


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


def test_threads_do_not_change_the_result():
    sets, contributions = random_sets(3, False), randn(S, R, C, seed=9)

    def work(output, bias, *layer):
        mixed = tilt(sets, targets(), Layer(*layer), Scorer(output, bias), contributions)
        pooled = pool(sets, targets(), Layer(*layer), dropping(0.2, "cpu"))
        return mixed.log1p().sum() + pooled.square().sum()

    leaves = [randn(S, H, seed=10), randn(S, seed=11), *tables()]
    one, other = gradients_by_threads(work, leaves)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


SETS_OF_ONE, LAYER = random_sets(1, True), Layer(*tables())
BAD_SIZES = {
    "layer.recipient": lambda: pool(SETS_OF_ONE, targets()[:, 1:], LAYER),
    "layer.source": lambda: pool(
        SETS_OF_ONE, targets(), LAYER._replace(source=LAYER.source[..., 1:])
    ),
    "output": lambda: tilt(
        SETS_OF_ONE, targets(), LAYER, Scorer(randn(S, H + 1), randn(S)), randn(S, R, C)
    ),
    "contributions": lambda: tilt(
        SETS_OF_ONE, targets(), LAYER, Scorer(randn(S, H), randn(S)), randn(S - 1, R, C)
    ),
    "recipients": lambda: compare(
        SETS_OF_ONE.segments, SETS_OF_ONE.columns, randn(S, N - 1, 3), randn(S, P, 3)
    ),
}


@pytest.mark.parametrize("name", BAD_SIZES)
def test_sizes_that_would_be_read_past_their_end_are_refused(name):
    with pytest.raises(InputError, match=f"^{name} has shape"):
        BAD_SIZES[name]()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.75])
@pytest.mark.parametrize("seed", [0, 7, -3, 2**40 + 11])
def test_dropped_rows_are_the_plain_form_s(device, dtype, share, seed):
    """Masks are the same everywhere; numbers to the last bit on the CPU, else to rounding."""
    values, above = (randn(3, 21, 130, seed=k).to(device, dtype) for k in (1, 2))
    values.requires_grad_()
    number = torch.tensor(seed, device=device)
    expected, found = (form(values, share, number) for form in (drop_rows_plainly, drop_rows))
    slope, own_slope = (torch.autograd.grad(z, values, above)[0] for z in (expected, found))
    exact = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-6, "atol": 0}
    torch.testing.assert_close(found, expected, **exact)
    torch.testing.assert_close(own_slope, slope, **exact)
    zero = found == 0
    assert torch.equal(zero, expected == 0) and torch.equal(zero[0], zero[2])
    torch.testing.assert_close(found[~zero], values[~zero] / (1 - share))
    assert abs(float(zero[0].double().mean()) - share) < 5 * (share * (1 - share) / 2730) ** 0.5
    # A row's mask does not hang on how many there are; another seed, another mask.
    assert torch.equal(drop_rows(values[:, :5], share, number), found[:, :5])
    assert not torch.equal(drop_rows(values, share, number + 1) == 0, zero)
    assert drop_rows(values[:, :0], share, number).shape == (3, 0, 130)
    # Values that do not lie one after another in memory.
    across = values.detach().transpose(1, 2)
    both = drop_rows(across, share, number), drop_rows_plainly(across, share, number)
    torch.testing.assert_close(*both, **exact)
