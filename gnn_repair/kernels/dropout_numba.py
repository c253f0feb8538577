# mypy: allow-untyped-defs, disable-error-code="untyped-decorator, no-untyped-call"
"""Dropout of rows on the CPU: the plain form's very bits, without its thirty passes."""

import numpy as np

from gnn_repair.kernel_cache import cached_njit
from gnn_repair.kernels.sets.numba_kernels import _STEP, mixed_hash, term_key
from gnn_repair.startup import load_numba

load_numba()


@cached_njit(nogil=True)
def drop_rows(values, key, threshold, scale, out):
    """out[s, l] = values[s, l] · scale where a hash of (key, l, channel) is not below threshold."""
    members, rows, channels = values.shape
    factor = np.empty(channels, values.dtype)
    nothing = values.dtype.type(0)
    for row in range(rows):
        start = term_key(key, row)
        for i in range(channels):
            value = mixed_hash(np.uint32(start + np.uint32(np.uint32(i) * _STEP)))
            factor[i] = scale if value >= threshold else nothing
        for s in range(members):
            for i in range(channels):
                out[s, row, i] = values[s, row, i] * factor[i]
