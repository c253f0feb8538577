"""The oracle's simplex method on plain numba loops, to measure what the vectorised ones are worth.

``install()`` puts the plain loops in the place of the package's before anything is compiled.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext

FILES = ("rows", "terms")


def loops(package: str) -> dict[str, object]:
    """The loops of both files of a package, by name."""
    found = dict[str, object]()
    for file in FILES:
        module = importlib.import_module(f"{package}.{file}")
        # numba's dispatchers alone have ``py_func``.
        found |= {
            name: value
            for name, value in vars(module).items()
            if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
        }
    return found


def install(level: int = 3) -> None:
    """From now on this process solves with plain loops, compiled at LLVM's level 2 or 3."""
    import gnn_repair.oracle.lps as lps

    vectorised, plain = loops("gnn_repair.oracle.vectors"), loops("tools.plain_simplex")
    for name, module in list(sys.modules.items()):
        if name.startswith("gnn_repair.oracle"):
            for loop, value in list(vars(module).items()):
                if loop in plain and value is vectorised.get(loop):
                    setattr(module, loop, plain[loop])
    if level == 3:
        vars(lps)["moderately_optimised"] = nullcontext
