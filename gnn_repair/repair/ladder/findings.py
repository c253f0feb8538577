"""Where the evidence was lost: what each kind of it is worth, overall and by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.repair.ladder.combination import likelihoods
from gnn_repair.repair.rung_words import NOTHING, WORDS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """What one rung gains over the one below it, out of fold, in points of accuracy."""

    rung: str
    above: str
    """The rung it is compared with."""
    label: int | None
    """The class, or None for all nodes."""
    gain: float
    """Mean over members."""
    error: float
    """Standard error of one member's gain, mean over members. Members share nodes, so averaging
    over them does not make it smaller."""
    deviation: float
    """Sample standard deviation of the gain over members; 0 for one member."""
    nats: float
    """Gain of log-likelihood a node, at each rung's best temperature; mean over members."""
    nats_error: float
    """Its standard error, likewise."""
    over_frozen: float
    """Mean gain of accuracy over Frozen."""
    nodes: float
    """Validation nodes behind it, mean over members."""

    @property
    def clear(self) -> bool:
        """Whether accuracy and likelihood both change by more than their standard errors.

        Accuracy alone is not enough: a rung keeps the epoch that is best on the nodes it is judged
        by, which flatters it; likelihood has no part in that choice.
        """
        ups = self.gain > self.error and self.nats > self.nats_error
        return ups or (self.gain < -self.error and self.nats < -self.nats_error)

    def __str__(self) -> str:
        what = WORDS[self.rung].evidence
        where = "" if self.label is None else f" on class {self.label}"
        size = f"{self.gain:+.1f} ± {self.error:.1f}"
        if not self.clear:
            return f"{what} bring nothing that stands out{where} ({size})"
        verb = "are worth" if self.gain > 0 else "cost"
        return f"{what} {verb} {abs(self.gain):.1f} ± {self.error:.1f} points{where}"


@dataclass(frozen=True)
class Findings:
    """All of them: overall first, then by class."""

    rows: tuple[Finding, ...]

    def to_frame(self) -> pd.DataFrame:
        """One finding a row."""
        import pandas as pd

        columns = [field.name for field in fields(Finding)]
        table = [[getattr(row, name) for name in columns] for row in self.rows]
        frame = pd.DataFrame(table, columns=columns).astype({"label": "Int64"})
        frame["advice"] = [
            WORDS[row.rung].advice if row.clear and row.gain > 0 else "" for row in self.rows
        ]
        return frame

    def of(self, rung: str, label: int | None = None) -> Finding:
        """The finding of a rung, overall or on a class."""
        return next(row for row in self.rows if (row.rung, row.label) == (rung, label))

    def overall(self) -> tuple[Finding, ...]:
        """One a rung."""
        return tuple(row for row in self.rows if row.label is None)

    def advice(self) -> tuple[str, ...]:
        """One line a finding that stands out, the largest first; says so where none does."""
        clear = sorted(
            (row for row in self.overall() if row.clear and row.gain > 0), key=lambda r: -r.gain
        )
        if not clear:
            return (NOTHING,)
        return tuple(f"{WORDS[row.rung].advice} ({row.gain:+.1f} points)" for row in clear)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.overall()), *("→ " + line for line in self.advice())])


def find(candidates: Sequence[str], told: Tensor, labels: Tensor, classes: int) -> Findings:
    """Compare each rung with the one below it.

    Args:
        candidates: R names, Frozen first.
        told: [S, R, N, C] log-probabilities out of fold.
        labels: [S, N], −1 where a node is not judged.
        classes: C.
    """
    right, likely = _scored(told, labels)
    rows = []
    for label in (None, *range(classes)):
        judged = labels >= 0 if label is None else labels == label
        if not bool(judged.any()):
            continue
        for number, rung in enumerate(candidates[1:], 1):
            below = WORDS[rung].above
            other = candidates.index(below) if below in candidates else 0
            over = mean_gain(right[:, number] - right[:, 0], judged)[0]
            gain, error, deviation = mean_gain(right[:, number] - right[:, other], judged)
            nats, nats_error, _ = mean_gain(likely[:, number] - likely[:, other], judged)
            sizes = 100 * gain, 100 * error, 100 * deviation, nats, nats_error, 100 * over
            nodes = float(judged.sum(1)[judged.any(1)].double().mean())
            rows.append(Finding(rung, candidates[other], label, *sizes, nodes))
    return Findings(tuple(rows))


def _scored(told: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Who is right, and log p of the label, [S, R, N] float64 each; zero where not judged."""
    right = torch.zeros(told.shape[:3], dtype=torch.float64, device=told.device)
    likely = torch.zeros_like(right)
    for member in range(told.shape[0]):
        judged = labels[member] >= 0
        own = labels[member][judged]
        for number in range(told.shape[1]):
            said = told[member, number][judged]
            right[member, number, judged] = (said.argmax(1) == own).double()
            likely[member, number, judged] = likelihoods(said, own)
    return right, likely


def mean_gain(differences: Tensor, judged: Tensor) -> tuple[float, float, float]:
    """Mean over members of the mean over judged nodes, its standard error, and its spread.

    Args:
        differences: [S, N], paired by node.
        judged: [S, N] bool.
    """
    some = judged.any(1)
    counts = judged.sum(1)[some].double()

    def mean(values: Tensor) -> Tensor:
        return torch.where(judged, values, 0.0).sum(1)[some] / counts

    gains = mean(differences)
    spread = (mean(differences.square()) - gains.square()).clamp(min=0)
    error = (spread / counts).sqrt()
    deviation = float(gains.std()) if gains.numel() > 1 else 0.0
    return float(gains.mean()), float(error.mean()), deviation
