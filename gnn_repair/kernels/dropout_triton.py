# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="untyped-decorator"
"""Dropout of rows on a GPU: one launch in place of some forty small ones a step.

Z numbers: 22·Z integer operations, 8·Z bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnn_repair.kernels.sets.triton_kernels import mixed_hash, stream_key

BLOCK = 1024
"""Numbers a program hashes: enough to hide the launch, few enough to fill all processors."""


@triton.jit(do_not_specialize=["total", "rows", "channels", "threshold"])
def _drop_rows(values, seed, out, total, rows, channels, threshold, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row = ((at // channels) % rows).to(tl.uint32)
    channel = (at % channels).to(tl.uint32)
    start = mixed_hash(stream_key(seed) ^ (row * tl.full([], 0x9E3779B1, tl.uint32)))
    value = mixed_hash(start + channel * tl.full([], 0x9E3779B9, tl.uint32))
    x = tl.load(values + at, mask=inside, other=0.0)
    x = tl.where(value >= threshold.to(tl.uint32), x * scale, 0.0)
    tl.store(out + at, x, mask=inside)


def drop_rows(values: Tensor, seed: Tensor, threshold: int, scale: float) -> Tensor:
    """Float32 values [S, L, H], zero where a hash of (seed, l, channel) is below the threshold."""
    out = torch.empty_like(values)
    total, (_, rows, channels) = values.numel(), values.shape
    if total:
        _drop_rows[(triton.cdiv(total, BLOCK),)](
            values, seed, out, total, rows, channels, threshold, scale, BLOCK=BLOCK
        )
    return out
