"""Rows of large tables a few at a time, so that what is computed of them on the way stays small."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 1 << 22
"""Numbers of a table that are looked at together: 32 MB in double precision, where a graph of a
million nodes has tables ten times as large and a comparison holds five of them."""


def slices(rows: int, width: int) -> Iterator[slice]:
    """The rows of a table so wide, in order; at least one slice, which may be empty."""
    step = max(1, NUMBERS // max(1, width))
    for start in range(0, max(1, rows), step):
        yield slice(start, min(start + step, rows))
