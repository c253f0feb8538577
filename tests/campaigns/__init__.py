"""Campaigns: this package against inputs made to break it, judged without its own code."""

from __future__ import annotations

from dataclasses import dataclass, field


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


__all__ = ["CampaignResult"]
