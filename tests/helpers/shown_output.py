"""Comparing what is printed with what a page shows."""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def assert_alike(printed: str, shown: str, where: str, rounding: float = 0.002) -> None:
    """The same words and, up to rounding, the same numbers."""
    lines, wanted = (
        [line.rstrip() for line in t.splitlines() if line.strip()] for t in (printed, shown)
    )
    assert len(lines) == len(wanted), (where, printed)
    for line, other in zip(lines, wanted, strict=True):
        assert _words(line) == _words(other), (where, line, other)
        pairs = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
        assert all(_near(a, b, rounding) for a, b in pairs), (where, line, other)


def _words(line: str) -> str:
    return " ".join(NUMBER.sub("0", line).split())


def _near(one: str, other: str, rounding: float) -> bool:
    """Residuals, which are rounding errors, may be anything small."""
    a, b = (float(text.replace(",", "").replace("−", "-")) for text in (one, other))
    return max(abs(a), abs(b)) < 1e-5 or math.isclose(a, b, rel_tol=rounding, abs_tol=1e-3)
