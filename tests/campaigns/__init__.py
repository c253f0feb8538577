"""Campaigns: this package against inputs made to break it, judged without its own code."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

SHOWN = 50
"""Faults that are told in words; the others are counted."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class CampaignResult:
    """What a campaign tried and what went wrong."""

    name: str
    """Such as ``lps``."""
    tried: int
    """How many inputs."""
    faults: tuple[str, ...]
    """One sentence each, with what is needed to see the fault again."""
    details: dict[str, int] = field(default_factory=dict)
    """Counts by what was tried and what became of it."""

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return not self.faults


@dataclass(frozen=True)
class Search:
    """One kind of input after another, each drawn by a seed of its own and judged."""

    name: str
    noun: str
    """What is counted, such as ``LPs``."""
    kinds: Iterable[str]
    attempt: Callable[[str, int], tuple[int, Counter[str], list[str]]]
    """From a kind and a seed to how many were tried, what was seen and what went wrong."""

    def campaign(
        self, seed: int, seconds: float, on_progress: Progress | None = None
    ) -> CampaignResult:
        """For about ``seconds``; every kind has its turn at least once.

        Args:
            seed: of the first input; the same seed draws the same ones.
            seconds: when to stop, after the first round.
            on_progress: told a sentence after every round.
        """
        end = time.monotonic() + seconds
        return self._run(seed, lambda tried: time.monotonic() >= end, on_progress)

    def campaign_of(
        self, seed: int, count: int, on_progress: Progress | None = None
    ) -> CampaignResult:
        """The same until ``count`` have been tried."""
        return self._run(seed, lambda tried: tried >= count, on_progress)

    def _run(self, seed: int, done: Callable[[int], bool], tell: Progress | None) -> CampaignResult:
        kinds, details, faults = list(self.kinds), Counter[str](), list[str]()
        tried, turn = 0, 0
        while turn < len(kinds) or not done(tried):
            kind, own = kinds[turn % len(kinds)], seed + turn
            count, seen, found = self.attempt(kind, own)
            tried += count
            details += seen
            details["faults"] += len(found)
            faults += [f"{kind}, seed {own}: {fault}" for fault in found][: SHOWN - len(faults)]
            turn += 1
            if tell is not None and turn % len(kinds) == 0:
                tell(f"{tried:,} {self.noun}, {details['faults']:,} faults")
        return CampaignResult(self.name, tried, tuple(faults), dict(details))


__all__ = ["SHOWN", "CampaignResult", "Progress", "Search"]
