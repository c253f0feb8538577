"""CPU implementations: numba kernels, threads over rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gnn_repair.kernels.aggregate import numba_kernels as kernels
from gnn_repair.kernels.pattern import Pattern

CHUNKS = 16
"""Pieces a pass is cut into, whatever the number of threads: results never depend on it."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gnn-repair")


def _over_rows(pattern: Pattern, kernel: Callable[..., None], *arguments: Any) -> None:
    """Run ``kernel(start, stop, …)`` over all rows, in chunks of about equal entries."""
    _over_chunks(pattern, lambda _, start, stop: kernel(start, stop, *arguments))


def _over_chunks(pattern: Pattern, work: Callable[[int, int, int], None]) -> None:
    bounds = chunk_bounds(pattern)
    jobs = [(i, a, b) for i, (a, b) in enumerate(pairwise(bounds)) if a < b]
    threads = torch.get_num_threads()
    if threads == 1 or len(jobs) <= 1:
        for job in jobs:
            work(*job)
    else:
        list(_pool(threads).map(lambda job: work(*job), jobs))


def chunk_bounds(pattern: Pattern) -> list[int]:
    """CHUNKS + 1 row numbers that cut the rows into pieces of about equal entries."""
    work = pattern.indptr + torch.arange(pattern.num_rows + 1)
    cuts = torch.linspace(0, float(work[-1]), CHUNKS + 1, dtype=torch.float64)
    bounds: list[int] = torch.searchsorted(work.double(), cuts).clamp(max=pattern.num_rows).tolist()
    bounds[0], bounds[-1] = 0, pattern.num_rows
    return bounds


def _rows(pattern: Pattern) -> tuple[Any, Any]:
    return pattern.indptr.numpy(), pattern.indices.numpy()


def mix(pattern: Pattern, order: Tensor, coefficients: Tensor, table: Tensor) -> Tensor:
    """Σ_t coefficients · table over each row's entries; see :func:`gnn_repair.kernels.mix`."""
    out = table.new_empty(pattern.num_rows, table.shape[1])
    operands = (order.numpy(), coefficients.numpy(), table.numpy(), out.numpy())
    _over_rows(pattern, kernels.mix, *_rows(pattern), *operands)
    return out


def dot(pattern: Pattern, gradient: Tensor, table: Tensor, groups: int) -> Tensor:
    """⟨gradient of the row, table row⟩ per entry and group, [T, G]."""
    out = table.new_empty(pattern.indices.numel(), groups)
    operands = (gradient.numpy(), table.numpy(), out.numpy())
    _over_rows(pattern, kernels.dot, *_rows(pattern), *operands)
    return out


def segment_sum(pattern: Pattern, order: Tensor, values: Tensor) -> Tensor:
    """Σ of ``values`` [T, G] over each row's entries, [N, G]."""
    out = values.new_empty(pattern.num_rows, values.shape[1])
    operands = (pattern.indptr.numpy(), order.numpy(), values.numpy(), out.numpy())
    _over_rows(pattern, kernels.segment_sum, *operands)
    return out


def segment_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of ``scores`` [T, G] over each row's entries."""
    top = scores.new_empty(pattern.num_rows, scores.shape[1])
    operands = (pattern.indptr.numpy(), scores.numpy(), top.numpy())
    _over_rows(pattern, kernels.segment_max, *operands)
    powers = (scores - top[pattern.recipients]).exp_()
    return powers.div_(segment_sum(pattern, pattern.identity, powers)[pattern.recipients])


def segment_softmax_gradient(pattern: Pattern, shares: Tensor, gradient: Tensor) -> Tensor:
    """α (∂α − Σ α ∂α), [T, G]."""
    weighted = shares * gradient
    total = segment_sum(pattern, pattern.identity, weighted)
    return weighted.sub_(shares * total[pattern.recipients])


def pair_scores(
    pattern: Pattern,
    attention: Tensor,
    source: Tensor,
    recipient: Tensor,
    slope: float,
    groups: int,
) -> Tensor:
    """a · leaky(source_a + recipient_v) per entry and group, [T, G]."""
    out = source.new_empty(pattern.indices.numel(), groups)
    operands = (attention.numpy(), source.numpy(), recipient.numpy(), _like(slope, source))
    _over_rows(pattern, kernels.pair_scores, *_rows(pattern), *operands, out.numpy())
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
    out = here.new_empty(pattern.num_rows, here.shape[1])
    partial = here.new_zeros(CHUNKS, here.shape[1])
    operands = (order.numpy(), attention.numpy(), here.numpy(), there.numpy())
    rows, scale, upstream = _rows(pattern), _like(slope, here), gradient.numpy()

    def work(chunk: int, start: int, stop: int) -> None:
        target = partial[chunk].numpy()
        kernels.pair_gradient(start, stop, *rows, *operands, scale, upstream, out.numpy(), target)

    _over_chunks(pattern, work)
    return out, partial.sum(0)


def _like(value: float, tensor: Tensor) -> Any:
    """``value`` in the tensor's precision, so that the kernel's arithmetic stays in it."""
    return torch.tensor(value, dtype=tensor.dtype).numpy()[()]
