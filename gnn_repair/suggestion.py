"""What somebody who mistyped a name probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.6
"""Share of letters that must agree, difflib's own choice: 'gin' suggests 'gcn', 'ogbn' nothing."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean 'gcn'?`` or, where nothing is near, ``choose from`` and all of them."""
    names = list(known)
    near = closest(name, names)
    return f"choose from {', '.join(names)}" if near is None else f"did you mean {near!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest; None where none is near."""
    typed = name.lower()
    near = difflib.get_close_matches(typed, known, n=5, cutoff=NEAR)
    # Two letters that changed places are the likeliest slip, and difflib counts them twice.
    return next((each for each in near if sorted(each) == sorted(typed)), near[0] if near else None)
