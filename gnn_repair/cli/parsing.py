"""Lists as people type them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gnn_repair.errors import InputError


def names(text: str, known: Iterable[str], kind: str) -> list[str]:
    """``"gcn,gat"`` or ``"all"`` as a list of known names, in the order given."""
    available = list(known)
    chosen = available if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in available:
            near = difflib.get_close_matches(name.lower(), available, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(available)}"
            raise InputError(f"unknown {kind} {name!r}; {hint}")
    return chosen


def numbers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]."""
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            chosen.extend(range(start, int(last) + 1) if dash else [start])
        except ValueError as error:
            raise InputError(f"{text!r} is not a list of numbers such as 0-3,7") from error
    return chosen
