"""How the plain loops are compiled: as the package's kernels, and the optimiser may do more."""

import numba

_OPTIONS = {
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "error_model": "numpy",
    "forceinline": True,
}
# Without "no NaN" and "no signed zero" the compiler may not vectorise a maximum: its best chance.
kernel = numba.njit(**_OPTIONS, fastmath={"contract", "nnan", "nsz"})
# Where a number may be NaN, and must be noticed.
ordered_kernel = numba.njit(**_OPTIONS, fastmath={"contract"})
