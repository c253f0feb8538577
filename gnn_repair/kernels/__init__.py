"""Operations with gradients, the same on every device: one folder an operation.

``aggregate`` sums over the entries of a pattern, ``sets`` over the terms of a repair's targets,
``products`` multiplies frozen rows with trained weights. Each has a plain PyTorch form (the
reference), one for the CPU and one for the GPU; all three agree.
"""

from gnn_repair.kernels.aggregate import backend, mix, pair_scores, segment_softmax, spread
from gnn_repair.kernels.dropout import drop, drop_rows, row_hash
from gnn_repair.kernels.pattern import Pattern

__all__ = [
    "Pattern",
    "backend",
    "drop",
    "drop_rows",
    "mix",
    "pair_scores",
    "row_hash",
    "segment_softmax",
    "spread",
]
