"""Operations with gradients, the same on every device.

``aggregate`` sums over the entries of a pattern, ``sets`` over the terms of a repair's targets,
``products`` multiplies frozen rows with trained weights. Each has a plain PyTorch form, the
reference, beside kernels for the CPU (``cpu``) and for a GPU (``…_gpu``).
"""

from gnn_repair.kernels.aggregate import (
    Pattern,
    drop,
    kernel_module,
    mix,
    pair_scores,
    pair_sums,
    segment_softmax,
)
from gnn_repair.kernels.sets import drop_rows, row_hash

__all__ = [
    "Pattern",
    "drop",
    "drop_rows",
    "kernel_module",
    "mix",
    "pair_scores",
    "pair_sums",
    "row_hash",
    "segment_softmax",
]
