"""Lists as people type them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnn_repair.errors import InputError
from gnn_repair.suggestion import suggestion


def names(text: str, known: Iterable[str], kind: str) -> list[str]:
    """``"gcn,gat"`` or ``"all"`` as a list of known names, in the order given."""
    available = list(known)
    chosen = available if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in available:
            raise InputError(f"unknown {kind} {name!r:.80}; {suggestion(name, available)}")
    return chosen


MOST = 10_000
"""Numbers in a list; more are a typing error."""
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def numbers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]."""
    chosen: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{text[:80]!r} is not a list of numbers such as 0-3,7")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise InputError(f"{part.strip()} runs backwards; write {last}-{first}")
        if len(chosen) + last - first >= MOST:
            raise InputError(f"{text[:80]!r} names more than {MOST:,} numbers; name fewer")
        chosen.extend(range(first, last + 1))
    return chosen
