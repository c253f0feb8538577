"""Tools for working on the project; not part of the package."""

from __future__ import annotations

from collections.abc import Iterable

from gnn_repair.errors import InputError, suggestion


def names(text: str, known: Iterable[str], kind: str) -> list[str]:
    """``"gcn,gat"`` or ``"all"`` as a list of known names, in the order given."""
    available = list(known)
    chosen = available if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in available:
            raise InputError(f"unknown {kind} {name!r:.80}; {suggestion(name, available)}")
    return chosen
