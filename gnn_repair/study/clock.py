"""Wall time by stage of a case."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Wall time by stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a block, the device's queued work included."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.add(stage, time.perf_counter() - start)

    def add(self, stage: str, seconds: float) -> None:
        """Note the duration of a stage."""
        self.seconds[stage] = seconds

    def shares(self, members: int) -> dict[str, float]:
        """Each run's share of the stack's time, so that runs add up."""
        return {stage: round(value / members, 4) for stage, value in self.seconds.items()}
