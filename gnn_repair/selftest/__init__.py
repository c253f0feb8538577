"""Long searches for faults, with a seed: random inputs against what must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CampaignResult:
    """What came of a campaign."""

    name: str
    tried: int
    """How many inputs."""
    faults: tuple[str, ...]
    """One sentence each; empty where all is well."""
    details: dict[str, int]
    """How often what was seen."""
