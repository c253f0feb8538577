"""Comparing what is printed with what a page shows."""

from __future__ import annotations

import math
import re

from tools.docs.blocks import made_elsewhere

NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def assert_alike(printed: str, shown: str, where: str) -> None:
    """The same words and, up to rounding, numbers; on another processor only that it prints."""
    lines, wanted = (
        [line.rstrip() for line in t.splitlines() if line.strip()] for t in (printed, shown)
    )
    if made_elsewhere():
        assert bool(lines) == bool(wanted), (where, printed)
        return
    assert len(lines) == len(wanted), (where, printed)
    for line, other in zip(lines, wanted, strict=True):
        assert _words(line) == _words(other), (where, line, other)
        pairs = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
        assert all(_near(a, b) for a, b in pairs), (where, line, other)


def _words(line: str) -> str:
    return " ".join(NUMBER.sub("0", line).split())


def _near(one: str, other: str) -> bool:
    """Within five percent; residuals, which are rounding errors, within a factor of a hundred."""
    a, b = (float(text.replace(",", "").replace("−", "-")) for text in (one, other))
    if max(abs(a), abs(b)) < 1e-5:
        return True
    return math.isclose(a, b, rel_tol=0.05, abs_tol=0.02)
