"""How much work a question may cost before it is left undecided."""

from __future__ import annotations

from dataclasses import dataclass

from gnn_repair.errors import InputError

Effort = str | float


@dataclass(frozen=True)
class EffortLimit:
    """Cases and seconds, whichever ends first."""

    leaves: int
    """Cases a question may be split into; 1 splits none."""
    seconds: float | None = None
    """Processor time for each question that one linear bound leaves open, shared by all of them;
    None: no limit."""


NAMED = {
    "fast": EffortLimit(1, 0.1),
    "normal": EffortLimit(1000, 0.5),
    "full": EffortLimit(50_000, 60.0),
}
"""A case takes about a quarter of a millisecond (64 units after one layer): a question that is
never decided costs a quarter of a second with ``normal``. Cases of a long tail, such as an LSTM's,
take a hundred times as long; the time ends them, and nobody waits for hours."""
MOST = 1_000_000
"""Cases at most where only time counts, so that memory stays bounded."""


def budget_of(effort: Effort) -> EffortLimit:
    """The budget that a word or a number of seconds stands for."""
    if isinstance(effort, str) and effort in NAMED:
        return NAMED[effort]
    if isinstance(effort, int | float) and not isinstance(effort, bool) and effort >= 0:
        return EffortLimit(MOST, float(effort))
    words = ", ".join(f'"{name}"' for name in NAMED)
    raise InputError(f"effort must be one of {words} or seconds per question, not {effort!r}")
