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


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def both(operation, reference, *tensors, device):
    """Values and gradients of the operation on ``device`` and of the reference in float64."""
    results = []
    for function, place, dtype in (
        (operation, device, torch.float64 if device == "cpu" else torch.float32),
        (reference, "cpu", torch.float64),
    ):
        leaves = [tensor.to(place, dtype).requires_grad_() for tensor in tensors]
        out = function(*leaves)
        out.backward(torch.cos(torch.arange(out.numel()).view_as(out)).to(out))
        results.append([t.detach().cpu().double() for t in (out, *(leaf.grad for leaf in leaves))])
    tolerance = 1e-12 if device == "cpu" else 2e-5
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups,width", [(1, 1), (1, 24), (3, 8), (20, 5), (8, 16), (1, 200)])
def test_mix(device, groups, width):
    pattern = random_pattern()
    placed = pattern.to(device)
    both(
        lambda a, x: mix(placed, a, x),
        lambda a, x: plain_mix(pattern, a, x),
        randn(300, groups),
        randn(30, groups * width, seed=1),
        device=device,
    )


def test_mix_with_one_coefficient_per_entry_is_a_sparse_product():
    pattern = random_pattern()
    coefficients, table = randn(300), randn(30, 12, seed=1)
    dense = torch.zeros(40, 30, dtype=torch.float64)
    dense.index_put_((pattern.recipients.long(), pattern.indices.long()), coefficients, True)
    torch.testing.assert_close(mix(pattern, coefficients, table), dense @ table)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 3, 70])
def test_segment_softmax(device, groups):
    pattern = random_pattern()
    placed = pattern.to(device)
    both(
        lambda s: segment_softmax(placed, s),
        lambda s: plain_softmax(pattern, s),
        10 * randn(300, groups),
        device=device,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups,width", [(1, 24), (3, 8), (20, 5), (10, 128)])
def test_pair_scores(device, groups, width):
    pattern = random_pattern()
    placed = pattern.to(device)
    both(
        lambda a, x, y: pair_scores(placed, a, x, y, groups, 0.2),
        lambda a, x, y: plain_pair_scores(pattern, a, x, y, groups, 0.2),
        randn(groups * width),
        randn(30, groups * width, seed=1),
        randn(40, groups * width, seed=2),
        device=device,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_spread(device):
    pattern = random_pattern()
    placed = pattern.to(device)
    both(
        lambda x, y: pair_sums(placed, x, y),
        lambda x, y: x[pattern.indices.long()] + y[pattern.recipients.long()],
        randn(30, 6),
        randn(40, 6, seed=1),
        device=device,
    )


def test_threads_do_not_change_the_result():
    pattern, threads = random_pattern(), torch.get_num_threads()
    arguments = (randn(16), randn(30, 16, seed=1), randn(40, 16, seed=2))
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        leaves = [tensor.clone().requires_grad_() for tensor in arguments]
        pair_scores(pattern, *leaves, 2, 0.2).square().sum().backward()
        results.append([leaf.grad for leaf in leaves])
    torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_kernels_are_for_the_precisions_they_were_written_for():
    """Others, and devices without kernels, go the plain way."""
    assert (
        kernel_module("aggregate", randn(1)) is kernel_module("sets", randn(1).float()) is not None
    )
    for other in (randn(1).half(), randn(1).to("meta")):
        assert kernel_module("aggregate", other) is None
    found = mix(random_pattern(), randn(300).bfloat16(), randn(30, 4).bfloat16())
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_dropout_drops_as_often_as_asked_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    values = torch.ones(301, 1, 1001, dtype=torch.float64, requires_grad=True)
    dropped = drop(values, probability)
    share = float((dropped == 0).double().mean())
    assert abs(share - probability) < 5 * (probability * (1 - probability) / values.numel()) ** 0.5
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())
    # Rows, columns and repeated draws are independent of each other.
    zero = (dropped == 0).double()
    assert float((zero[1:] * zero[:-1]).mean()) == pytest.approx(probability**2, abs=0.01)
    assert not torch.equal(drop(values, probability), dropped)
    torch.manual_seed(0)
    assert torch.equal(drop(values, probability), dropped)
    assert drop(values, 0.0) is values


def test_members_share_their_dropout_and_draw_what_they_would_alone():
    values = torch.rand(40, 3, 17, dtype=torch.float64) + 1
    torch.manual_seed(3)
    together = drop(values, 0.4)
    assert torch.equal(together[:, 0] == 0, together[:, 2] == 0)
    for member in range(3):
        torch.manual_seed(3)
        assert torch.equal(drop(values[:, member : member + 1], 0.4)[:, 0], together[:, member])


def test_sizes_that_would_be_read_past_their_end_are_refused():
    pattern = Pattern(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1], dtype=torch.int32), 3)
    table, two = torch.ones(3, 4), torch.ones(2, 4)
    with pytest.raises(InputError, match=r"coefficients has shape \[2, 1\] instead of \[3, any\]"):
        mix(pattern, torch.ones(2), table)
    with pytest.raises(InputError, match=r"table has shape \[2, 4\] instead of \[3, any\]"):
        mix(pattern, torch.ones(3), two)
    with pytest.raises(InputError, match="table has 4 channels, which 3 groups cannot share"):
        mix(pattern, torch.ones(3, 3), table)
    with pytest.raises(InputError, match=r"scores has shape \[4, 1\] instead of \[3, any\]"):
        segment_softmax(pattern, torch.ones(4, 1))
    with pytest.raises(InputError, match=r"source has shape \[2, 4\] instead of \[3, 4\]"):
        pair_scores(pattern, torch.ones(4), two, two, 2, 0.2)
    with pytest.raises(InputError, match=r"recipient has shape \[3, 4\] instead of \[2, 4\]"):
        pair_scores(pattern, torch.ones(4), table, table, 2, 0.2)
    with pytest.raises(InputError, match="attention has 4 channels, which 3 groups"):
        pair_scores(pattern, torch.ones(4), table, two, 3, 0.2)
    with pytest.raises(InputError, match=r"by_recipient has shape \[2, 3\] instead of \[2, 4\]"):
        pair_sums(pattern, table, torch.ones(2, 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shift", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_a_softmax_does_not_change_with_what_all_scores_have_in_common(device, shift):
    """Also where exp of a score is 0 or infinite: one common shift per row of entries."""
    pattern = random_pattern()
    scores = torch.randint(-8, 8, (300, 3), generator=torch.Generator().manual_seed(0)).float()
    common = shift * (1 + torch.arange(pattern.num_rows).remainder(3))[pattern.recipients.long()]
    found = segment_softmax(pattern.to(device), (scores + common.unsqueeze(1)).to(device)).cpu()
    expected = plain_softmax(pattern, scores.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    plainly = plain_softmax(pattern, scores.double() + common.double().unsqueeze(1))
    torch.testing.assert_close(plainly, expected, rtol=1e-9, atol=1e-12)
