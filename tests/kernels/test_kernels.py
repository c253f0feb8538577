"""Every operation against its plain PyTorch form: values and gradients."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.kernels import (
    Pattern,
    drop,
    kernel_module,
    mix,
    pair_scores,
    pair_sums,
    segment_softmax,
)
from gnn_repair.kernels.aggregate import plain_mix, plain_pair_scores, plain_softmax
from tests.helpers.device_places import DEVICES
from tests.helpers.kernel_forms import agree, gradients_by_threads, randn

EVERYWHERE = pytest.mark.parametrize("device", DEVICES)


def random_pattern(rows: int = 40, columns: int = 30, entries: int = 300) -> Pattern:
    """A pattern with empty rows, unread columns, duplicates and one very long row."""
    generator = torch.Generator().manual_seed(7)
    recipient = torch.randint(2, rows - 2, (entries,), generator=generator)
    recipient[: entries // 3] = 5
    source = torch.randint(1, columns - 1, (entries,), generator=generator)
    order = torch.argsort(recipient * columns + source, stable=True)
    counts = torch.bincount(recipient, minlength=rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Pattern(indptr, source[order].int(), columns)


PATTERN = random_pattern()


@EVERYWHERE
@pytest.mark.parametrize("groups,width", [(1, 1), (1, 24), (3, 8), (20, 5), (8, 16), (1, 200)])
def test_mix(device, groups, width):
    agree(
        lambda place, a, x: mix(PATTERN.to(place), a, x),
        lambda place, a, x: plain_mix(PATTERN, a, x),
        [randn(300, groups), randn(30, groups * width, seed=1)],
        device,
    )
    # Each alone, where the other asks for no gradient.
    for at in range(2):
        given = [randn(300, groups), randn(30, groups * width, seed=1)]
        given[at].requires_grad_()
        assert torch.autograd.grad(mix(PATTERN, *given).sum(), given[at])[0].abs().sum() > 0


@EVERYWHERE
@pytest.mark.parametrize("groups", [1, 3, 70])
def test_segment_softmax(device, groups):
    agree(
        lambda place, s: segment_softmax(PATTERN.to(place), s),
        lambda place, s: plain_softmax(PATTERN, s),
        [10 * randn(300, groups)],
        device,
    )


@EVERYWHERE
@pytest.mark.parametrize("groups,width", [(1, 24), (3, 8), (20, 5), (10, 128)])
def test_pair_scores(device, groups, width):
    agree(
        lambda place, *tables: pair_scores(PATTERN.to(place), *tables, groups, 0.2),
        lambda place, *tables: plain_pair_scores(PATTERN, *tables, groups, 0.2),
        [randn(groups * width), *(randn(n, groups * width, seed=n) for n in (30, 40))],
        device,
    )


@EVERYWHERE
def test_pair_sums(device):
    agree(
        lambda place, x, y: pair_sums(PATTERN.to(place), x, y),
        lambda place, x, y: x[PATTERN.indices.long()] + y[PATTERN.recipients.long()],
        [randn(30, 6), randn(40, 6, seed=1)],
        device,
    )


def test_threads_do_not_change_the_result():
    def work(*leaves):
        return pair_scores(PATTERN, *leaves, 2, 0.2).square().sum()

    one, other = gradients_by_threads(work, [randn(16), randn(30, 16, seed=1), randn(40, 16)])
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_other_precisions_and_devices_without_kernels_go_the_plain_way():
    own = kernel_module("aggregate", randn(1))
    assert own is kernel_module("sets", randn(1).float()) is not None
    for other in (randn(1).half(), randn(1).to("meta")):
        assert kernel_module("aggregate", other) is None
    found = mix(PATTERN, randn(300).bfloat16(), randn(30, 4).bfloat16())
    torch.testing.assert_close(
        found.double(), mix(PATTERN, randn(300), randn(30, 4)), rtol=0.1, atol=0.1
    )
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_dropout_drops_as_often_as_asked_and_keeps_the_mean(probability):
    """All members share their mask, and draw what they would draw alone."""
    torch.manual_seed(0)
    values = torch.ones(301, 3, 1001, dtype=torch.float64, requires_grad=True)
    dropped = drop(values, probability)
    zero = (dropped == 0).double()
    size = values[:, 0].numel()
    assert (
        abs(float(zero.mean()) - probability) < 5 * (probability * (1 - probability) / size) ** 0.5
    )
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())
    # Rows, columns and repeated draws are independent of each other.
    assert float((zero[1:] * zero[:-1]).mean()) == pytest.approx(probability**2, abs=0.01)
    assert not torch.equal(drop(values, probability), dropped)
    torch.manual_seed(0)
    alone = drop(values[:, 1:2], probability)
    assert torch.equal(alone.expand_as(dropped), dropped)
    assert drop(values, 0.0) is values


SMALL = Pattern(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1], dtype=torch.int32), 3)
TABLE, TWO = torch.ones(3, 4), torch.ones(2, 4)
BAD_SIZES = {
    "coefficients": lambda: mix(SMALL, torch.ones(2), TABLE),
    "table": lambda: mix(SMALL, torch.ones(3), TWO),
    "table has 4 channels": lambda: mix(SMALL, torch.ones(3, 3), TABLE),
    "scores": lambda: segment_softmax(SMALL, torch.ones(4, 1)),
    "source": lambda: pair_scores(SMALL, torch.ones(4), TWO, TWO, 2, 0.2),
    "recipient": lambda: pair_scores(SMALL, torch.ones(4), TABLE, TABLE, 2, 0.2),
    "attention has 4 channels": lambda: pair_scores(SMALL, torch.ones(4), TABLE, TWO, 3, 0.2),
    "by_recipient": lambda: pair_sums(SMALL, TABLE, torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", BAD_SIZES)
def test_sizes_that_would_be_read_past_their_end_are_refused(name):
    with pytest.raises(InputError, match=f"^{name}[ ,]"):
        BAD_SIZES[name]()


@EVERYWHERE
@pytest.mark.parametrize("shift", [-1e4, -100.0, 100.0, 1e4])
def test_a_softmax_does_not_change_with_what_all_scores_have_in_common(device, shift):
    """Also where exp of a score is 0 or infinite: one common shift per row of entries."""
    scores = torch.randint(-8, 8, (300, 3), generator=torch.Generator().manual_seed(0)).float() ** 3
    common = shift * (1 + torch.arange(PATTERN.num_rows).remainder(3))[PATTERN.recipients.long()]
    expected = plain_softmax(PATTERN, scores.double())
    moved = scores + common.unsqueeze(1)
    found = segment_softmax(PATTERN.to(device), moved.to(device)).cpu()
    for shares in (found, plain_softmax(PATTERN, moved)):
        torch.testing.assert_close(shares.double(), expected, rtol=1e-5, atol=1e-6)
