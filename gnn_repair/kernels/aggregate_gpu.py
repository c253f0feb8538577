"""Sums over a pattern on a GPU, and Adam: Triton kernels (float32) and their launches.

T entries, N rows, G coefficients an entry, D channels a coefficient (K = G·D). Operations and
bytes (float32) per call; gathered bytes come from L2 while the table fits there:

    mix            2·T·K operations,  4·T·K bytes gathered + 4·N·K written
    dot            2·T·K operations,  8·T·K bytes gathered + 4·T·G written
    softmax        about 10·T·G operations, 8·T·G bytes read + 4·T·G written
    pair_scores    4·T·K operations,  8·T·K bytes gathered + 4·T·G written
    pair_gradient  6·T·K operations,  4·T·K bytes gathered + 8·N·K written
    adam           about 15·Q operations and 28·Q bytes a member

Kernels named *_rows give one program a row, so sums have one owner and are deterministic;
kernels named *_entries give one program a block of entries.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnn_repair.budget import Budget
from gnn_repair.kernels.aggregate import Pattern

TILE = 2048
"""Elements one program holds at a time."""


@triton.jit
def mix_rows(
    indptr, indices, order, coefficients, table, out, K, G, D,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[v, k] = Σ_t coefficients[order[t], k // D] · table[indices[t], k]."""
    v = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = k < K
    group = k // D
    start, stop = tl.load(indptr + v), tl.load(indptr + v + 1)
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        valid = t < stop
        column = tl.load(indices + t, mask=valid, other=0).to(tl.int64)
        entry = tl.load(order + t, mask=valid, other=0).to(tl.int64)
        mask = valid[:, None] & inside[None, :]
        weight = tl.load(coefficients + entry[:, None] * G + group[None, :], mask=mask, other=0.0)
        message = tl.load(table + column[:, None] * K + k[None, :], mask=mask, other=0.0)
        total += tl.sum(weight * message, axis=0)
    tl.store(out + v * K + k, total, mask=inside)


@triton.jit
def sum_rows(
    indptr, order, values, out, G, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """out[v, g] = Σ_t values[order[t], g]."""
    v = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    inside = g < G
    start, stop = tl.load(indptr + v), tl.load(indptr + v + 1)
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        valid = t < stop
        entry = tl.load(order + t, mask=valid, other=0).to(tl.int64)
        mask = valid[:, None] & inside[None, :]
        total += tl.sum(tl.load(values + entry[:, None] * G + g[None, :], mask=mask, other=0.0), 0)
    tl.store(out + v * G + g, total, mask=inside)


@triton.jit
def softmax_rows(indptr, scores, out, G, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr):
    """out[t, g] = softmax of scores[·, g] over the entries of row v."""
    v = tl.program_id(0)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    inside = g < G
    start, stop = tl.load(indptr + v), tl.load(indptr + v + 1)
    top = tl.full((BLOCK_G,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        mask = (t < stop)[:, None] & inside[None, :]
        score = tl.load(scores + t[:, None] * G + g[None, :], mask=mask, other=float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=0))
        # Columns outside G stay at −inf; keep their difference finite.
        base = tl.where(inside, higher, 0.0)
        total = total * tl.exp(tl.where(inside, top, 0.0) - base)
        total += tl.sum(tl.exp(score - base[None, :]), axis=0)
        top = higher
    base = tl.where(inside, top, 0.0)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        mask = (t < stop)[:, None] & inside[None, :]
        place = t[:, None] * G + g[None, :]
        score = tl.load(scores + place, mask=mask, other=float("-inf"))
        tl.store(out + place, tl.exp(score - base[None, :]) / total[None, :], mask=mask)


@triton.jit
def softmax_gradient_rows(
    indptr, shares, gradient, out, G, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """out = α (∂α − Σ α ∂α) over the entries of row v."""
    v = tl.program_id(0)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    inside = g < G
    start, stop = tl.load(indptr + v), tl.load(indptr + v + 1)
    total = tl.zeros((BLOCK_G,), dtype=tl.float32)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        mask = (t < stop)[:, None] & inside[None, :]
        place = t[:, None] * G + g[None, :]
        share = tl.load(shares + place, mask=mask, other=0.0)
        total += tl.sum(share * tl.load(gradient + place, mask=mask, other=0.0), axis=0)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        mask = (t < stop)[:, None] & inside[None, :]
        place = t[:, None] * G + g[None, :]
        share = tl.load(shares + place, mask=mask, other=0.0)
        upstream = tl.load(gradient + place, mask=mask, other=0.0)
        tl.store(out + place, share * (upstream - total[None, :]), mask=mask)


@triton.jit(do_not_specialize=["T"])
def dot_entries(
    recipients, indices, gradient, table, out, T, G, D,
    BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[t, g] = Σ_d gradient[recipients[t], g·D+d] · table[indices[t], g·D+d]."""
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    valid = t < T
    K = G * D
    row = tl.load(recipients + t, mask=valid, other=0).to(tl.int64) * K
    column = tl.load(indices + t, mask=valid, other=0).to(tl.int64) * K
    total = tl.zeros((BLOCK_T, BLOCK_G), dtype=tl.float32)
    mask = valid[:, None] & (g < G)[None, :]
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        k = (g * D)[None, :, None] + d[None, None, :]
        inside = mask[:, :, None] & (d < D)[None, None, :]
        left = tl.load(gradient + row[:, None, None] + k, mask=inside, other=0.0)
        right = tl.load(table + column[:, None, None] + k, mask=inside, other=0.0)
        total += tl.sum(left * right, axis=2)
    tl.store(out + t[:, None] * G + g[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["T"])
def pair_scores_entries(
    recipients, indices, attention, source, recipient, out, T, G, D, slope,
    BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[t, g] = Σ_d a[g·D+d] · leaky(source[indices[t], g·D+d] + recipient[v, g·D+d])."""
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    valid = t < T
    K = G * D
    row = tl.load(recipients + t, mask=valid, other=0).to(tl.int64) * K
    column = tl.load(indices + t, mask=valid, other=0).to(tl.int64) * K
    total = tl.zeros((BLOCK_T, BLOCK_G), dtype=tl.float32)
    mask = valid[:, None] & (g < G)[None, :]
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        k = (g * D)[None, :, None] + d[None, None, :]
        known = (g < G)[None, :, None] & (d < D)[None, None, :]
        inside = mask[:, :, None] & known
        pair = tl.load(source + column[:, None, None] + k, mask=inside, other=0.0)
        pair += tl.load(recipient + row[:, None, None] + k, mask=inside, other=0.0)
        pair = tl.where(pair > 0, pair, slope * pair)
        total += tl.sum(tl.load(attention + k, mask=known, other=0.0) * pair, axis=2)
    tl.store(out + t[:, None] * G + g[None, :], total, mask=mask)


@triton.jit
def pair_gradient_rows(
    indptr, indices, order, attention, here, there, gradient, out, by_attention, K, G, D, slope,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Gradient of the pair scores for the row side, and this row's share of the attention's."""
    v = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = k < K
    group = k // D
    start, stop = tl.load(indptr + v), tl.load(indptr + v + 1)
    own = tl.load(here + v * K + k, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for first in range(start, stop, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        valid = t < stop
        column = tl.load(indices + t, mask=valid, other=0).to(tl.int64)
        entry = tl.load(order + t, mask=valid, other=0).to(tl.int64)
        mask = valid[:, None] & inside[None, :]
        pair = tl.load(there + column[:, None] * K + k[None, :], mask=mask, other=0.0)
        pair += own[None, :]
        upstream = tl.load(gradient + entry[:, None] * G + group[None, :], mask=mask, other=0.0)
        upstream *= tl.where(pair > 0, 1.0, slope)
        total += tl.sum(upstream, axis=0)
        weighted += tl.sum(upstream * pair, axis=0)
    total *= tl.load(attention + k, mask=inside, other=0.0)
    tl.store(out + v * K + k, total, mask=inside)
    tl.store(by_attention + v * K + k, weighted, mask=inside)


@triton.jit(do_not_specialize=["Q"])
def adam_rows(
    matrix, gradient, first, second, steps, scale, learning, Q, rate, decay,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One update of Adam (or AdamW) on row s of the matrix, its gradient times scale[s].

    Row s stays as it is where learning[s] is 0.
    """
    s = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (q < Q) & (tl.load(learning + s) != 0)
    at = s * Q + q
    value = tl.load(matrix + at, mask=inside, other=0.0)
    g = tl.load(gradient + at, mask=inside, other=0.0) * tl.load(scale + s)
    if DECOUPLED:
        value -= rate * decay * value
    else:
        g += decay * value
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    # BETAS and EPSILON of gnn_repair/training.py.
    m += 0.1 * (g - m)
    v += 0.001 * (g * g - v)
    # Bias corrections in double precision: 1 − 0.999 would lose half its digits. Natural
    # logarithms of 0.9 and 0.999.
    t = tl.load(steps + s).to(tl.float64)
    unbias_m = (1.0 - tl.exp(t * -0.10536051565782628)).to(tl.float32)
    unbias_v = (1.0 - tl.exp(t * -0.0010005003335835335)).to(tl.float32)
    size = tl.sqrt(v) / tl.sqrt(unbias_v) + 1e-8
    value -= rate / unbias_m * m / size
    tl.store(matrix + at, value, mask=inside)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)


# Launches -----------------------------------------------------------------------------------------


def _tile(width: int, widest: int) -> int:
    return int(min(triton.next_power_of_2(width), widest))


def _rows(pattern: Pattern, width: int, widest: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and block sizes of a kernel with one program per row and block of columns."""
    block = _tile(width, widest)
    mean = max(1, pattern.indices.numel() // max(1, pattern.num_rows))
    deep = _tile(4 * mean, max(2, TILE // block))
    return (pattern.num_rows, triton.cdiv(width, block)), {"BLOCK_T": deep, "wide": block}


def _entries(total: int, groups: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and block sizes of a kernel with one program per block of entries."""
    channels = _tile(width, 128)
    chosen = _tile(groups, max(1, 128 // channels))
    blocks = {"BLOCK_T": TILE // (channels * chosen), "BLOCK_G": chosen, "BLOCK_D": channels}
    return (triton.cdiv(total, blocks["BLOCK_T"]), triton.cdiv(groups, chosen)), blocks


def mix(pattern: Pattern, order: Tensor, coefficients: Tensor, table: Tensor) -> Tensor:
    """Σ_t coefficients · table over each row's entries."""
    width, groups = table.shape[1], coefficients.shape[1]
    out = table.new_empty(pattern.num_rows, width)
    grid, blocks = _rows(pattern, width, 128)
    blocks["BLOCK_K"] = blocks.pop("wide")
    operands = (pattern.indptr, pattern.indices, order, coefficients, table, out)
    mix_rows[grid](*operands, width, groups, width // groups, **blocks)
    return out


def dot(pattern: Pattern, gradient: Tensor, table: Tensor, groups: int) -> Tensor:
    """⟨gradient of the row, table row⟩ per entry and group, [T, G]."""
    total, width = pattern.indices.numel(), table.shape[1] // groups
    out = table.new_empty(total, groups)
    grid, blocks = _entries(total, groups, width)
    operands = (pattern.recipients, pattern.indices, gradient, table, out)
    dot_entries[grid](*operands, total, groups, width, **blocks)
    return out


def segment_sum(pattern: Pattern, order: Tensor, values: Tensor) -> Tensor:
    """Σ of ``values`` [T, G] over each row's entries, [N, G]."""
    out = values.new_empty(pattern.num_rows, values.shape[1])
    _launch_groups(sum_rows, pattern, (order, values, out), values.shape[1])
    return out


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over each row's entries."""
    out = torch.empty_like(scores)
    _launch_groups(softmax_rows, pattern, (scores, out), scores.shape[1])
    return out


def segment_softmax_gradient(pattern: Pattern, shares: Tensor, gradient: Tensor) -> Tensor:
    """α (∂α − Σ α ∂α), [T, G]."""
    out = torch.empty_like(shares)
    operands = (shares, gradient, out)
    _launch_groups(softmax_gradient_rows, pattern, operands, shares.shape[1])
    return out


def _launch_groups(
    kernel: Any, pattern: Pattern, operands: tuple[Tensor, ...], groups: int
) -> None:
    grid, blocks = _rows(pattern, groups, 32)
    blocks["BLOCK_G"] = blocks.pop("wide")
    kernel[grid](pattern.indptr, *operands, groups, **blocks)


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    slope: float,
    groups: int,
) -> Tensor:
    """a · leaky(source_a + recipient_v) per entry and group, [T, G]."""
    total, width = pattern.indices.numel(), source.shape[1] // groups
    out = source.new_empty(total, groups)
    grid, blocks = _entries(total, groups, width)
    operands = (pattern.recipients, pattern.indices, attention, source, recipient, out)
    pair_scores_entries[grid](*operands, total, groups, width, slope, **blocks)
    return out


def pair_gradient(
    pattern: Pattern,
    order: Tensor,
    attention: Tensor,
    here: Tensor,
    there: Tensor,
    slope: float,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`pair_scores` for the row side and for the attention vector."""
    width, groups = here.shape[1], gradient.shape[1]
    out, by_row = torch.empty_like(here), torch.empty_like(here)
    grid, blocks = _rows(pattern, width, 128)
    blocks["BLOCK_K"] = blocks.pop("wide")
    operands = (pattern.indptr, pattern.indices, order, attention, here, there, gradient)
    sizes = (width, groups, width // groups, slope)
    pair_gradient_rows[grid](*operands, out, by_row, *sizes, **blocks)
    return out, by_row.sum(0)


def adam(
    matrix: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    steps: Tensor,
    scale: Tensor,
    learning: Tensor,
    budget: Budget,
) -> None:
    """Update rows of ``matrix`` [S, Q] by their gradient times ``scale`` [S].

    ``learning`` [S] says which; ``steps`` [S] counts this update too.
    """
    members, count = matrix.shape
    block = TILE // 2
    adam_rows[triton.cdiv(count, block), members](
        matrix, gradient.contiguous(), *moments, steps, scale, learning.view(torch.uint8), count,
        budget.learning_rate, budget.weight_decay, DECOUPLED=budget.decoupled, BLOCK=block,
    )  # fmt: skip
