"""Where the evidence was lost: what each kind of it is worth, overall and by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.repair.ladder.rungs import RUNGS

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
    over_frozen: float
    """Mean gain over Frozen."""
    nodes: float
    """Validation nodes behind it, mean over members."""

    @property
    def clear(self) -> bool:
        """Whether it exceeds its standard error, upwards or downwards."""
        return abs(self.gain) > self.error

    def __str__(self) -> str:
        what = RUNGS[self.rung].evidence
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

        columns = ("rung", "above", "label", "gain", "error", "deviation", "over_frozen", "nodes")
        table = [[getattr(row, name) for name in columns] for row in self.rows]
        frame = pd.DataFrame(table, columns=list(columns)).astype({"label": "Int64"})
        frame["advice"] = [
            RUNGS[row.rung].advice if row.clear and row.gain > 0 else "" for row in self.rows
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
            return ("nothing to gain: no evidence beside the model's own stands out",)
        return tuple(f"{RUNGS[row.rung].advice} ({row.gain:+.1f} points)" for row in clear)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.overall()), *("→ " + line for line in self.advice())])


def find(candidates: Sequence[str], right: Tensor, labels: Tensor, classes: int) -> Findings:
    """Compare each rung with the one below it.

    Args:
        candidates: R names, Frozen first.
        right: [S, R, N] bool, out of fold.
        labels: [S, N], −1 where a node is not judged.
        classes: C.
    """
    rows = []
    for label in (None, *range(classes)):
        judged = labels >= 0 if label is None else labels == label
        if not bool(judged.any()):
            continue
        for number, rung in enumerate(candidates[1:], 1):
            below = RUNGS[rung].above
            other = candidates.index(below) if below in candidates else 0
            rows.append(
                _finding(rung, candidates[other], label, right[:, [number, other, 0]], judged)
            )
    return Findings(tuple(rows))


def _finding(rung: str, above: str, label: int | None, right: Tensor, judged: Tensor) -> Finding:
    """From right [S, 3, N]: the rung, the one below, Frozen."""
    counts = judged.sum(1).clamp(min=1).double()
    mine, below, frozen = (right[:, i].double() for i in range(3))

    def mean(values: Tensor) -> Tensor:
        return torch.where(judged, values, 0.0).sum(1) / counts

    gains = mean(mine - below)
    error = (mean((mine - below).square()) - gains.square()).clamp(min=0).div(counts).sqrt()
    some = judged.any(1)
    return Finding(
        rung,
        above,
        label,
        100 * float(gains[some].mean()),
        100 * float(error[some].mean()),
        100 * float(gains[some].std()) if int(some.sum()) > 1 else 0.0,
        100 * float(mean(mine - frozen)[some].mean()),
        float(counts[some].mean()),
    )
