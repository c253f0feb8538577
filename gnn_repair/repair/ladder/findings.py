"""Where the evidence was lost: what each kind of it is worth, overall and by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_repair.repair.ladder.decision import STANDS_OUT, likelihoods, nested
from gnn_repair.repair.rungs import FROZEN, NOTHING, RUNGS, TOGETHER, UNCLEAR, title_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """What one rung gains over the one it is compared with, out of fold, in points of accuracy."""

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

    overruled: bool = False
    """Whether a rival, which reads what this rung does without, does clearly better."""

    @property
    def clear(self) -> bool:
        """Whether accuracy and likelihood both change by two standard errors."""
        return any(
            sign * self.gain > STANDS_OUT * self.error
            and sign * self.nats > STANDS_OUT * self.nats_error
            for sign in (1, -1)
        )

    @property
    def advice(self) -> str:
        """What to do about it, a sentence; empty where nothing stands out."""
        if not self.clear or self.gain <= 0 or self.overruled:
            return ""
        rung = RUNGS[self.rung]
        return f"{rung.lead}{rung.evidence} are worth {self.gain:.1f} points more; {rung.advice}"

    def __str__(self) -> str:
        where = "" if self.label is None else f" on class {self.label}"
        size, what = f"± {self.error:.1f}", RUNGS[self.rung].evidence
        if not self.clear:
            return f"{what} bring nothing that stands out{where} ({self.gain:+.1f} {size})"
        more = "more" if self.gain > 0 else "less"
        other = title_of(self.above)
        return f"{what} are worth {abs(self.gain):.1f} {size} points {more} than {other}{where}"


@dataclass(frozen=True)
class Findings:
    """All of them: overall first, then by class."""

    rows: tuple[Finding, ...]
    stays: bool = False
    """Whether the frozen model stays as it is, for every member."""

    def to_frame(self) -> pd.DataFrame:
        """One finding a row."""
        import pandas as pd

        columns = [*(field.name for field in fields(Finding)), "advice"]
        table = [[getattr(row, name) for name in columns] for row in self.rows]
        return pd.DataFrame(table, columns=columns).astype({"label": "Int64"})

    def of(self, rung: str, label: int | None = None) -> Finding:
        """The finding of a rung, overall or on a class."""
        return next(row for row in self.rows if (row.rung, row.label) == (rung, label))

    def overall(self) -> tuple[Finding, ...]:
        """One a rung."""
        return tuple(row for row in self.rows if row.label is None)

    def advice(self) -> tuple[str, ...]:
        """One line a finding that stands out, the largest first; says so where none does."""
        if self.stays:
            return (NOTHING,)
        ordered = sorted(self.overall(), key=lambda row: -row.gain)
        return tuple(row.advice for row in ordered if row.advice) or (UNCLEAR,)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.overall()), *("→ " + line for line in self.advice())])


def find(
    candidates: Sequence[str],
    told: Tensor,
    labels: Tensor,
    folds: Tensor,
    *,
    classes: int,
    stays: bool,
) -> Findings:
    """Compare each rung with the one it is to be compared with.

    Args:
        candidates: R names, Frozen first.
        told: [S, R, N, C] log-probabilities out of fold.
        labels: [S, N], −1 where a node is not judged.
        folds: [S, N], likewise.
        classes: C.
        stays: whether the frozen model stays as it is.
    """
    names = [*candidates, TOGETHER]
    last = next((i for i, name in enumerate(candidates[1:], 1) if not RUNGS[name].reads), None)
    right, likely = _scored(told, labels, folds, last)
    rows = []
    for label in (None, *range(classes)):
        judged = labels >= 0 if label is None else labels == label
        if not bool(judged.any()):
            continue

        nodes = float(judged.sum(1)[judged.any(1)].double().mean())

        def compared(mine: str, other: str, judged: Tensor = judged) -> Finding:
            place, base = names.index(mine), names.index(other)
            gain, error, spread = mean_gain(right[:, place] - right[:, base], judged)
            nats, nats_error, _ = mean_gain(likely[:, place] - likely[:, base], judged)
            over, _, _ = mean_gain(right[:, place] - right[:, 0], judged)
            sizes = 100 * gain, 100 * error, 100 * spread, nats, nats_error, 100 * over
            return Finding(mine, other, label, *sizes, nodes)  # noqa: B023 - used in its turn

        for rung in candidates[1:]:
            above = RUNGS[rung].above
            row = compared(rung, above if above in names else FROZEN)
            rivals = (compared(name, rung) for name in RUNGS[rung].rivals if name in names)
            beaten = any(rival.clear and rival.gain > 0 for rival in rivals)
            rows.append(replace(row, overruled=beaten))
    return Findings(tuple(rows), stays)


def _scored(told: Tensor, labels: Tensor, folds: Tensor, last: int | None) -> tuple[Tensor, Tensor]:
    """Who is right, and log p of the label, [S, R + 1, N] float64 each; zero where not judged.

    Behind the candidates stands the combination of those before ``last``.
    """
    members, count, nodes, _ = told.shape
    right = torch.zeros(members, count + 1, nodes, dtype=torch.float64, device=told.device)
    likely = torch.zeros_like(right)
    dealt = int(folds.max()) + 1
    for member in range(members):
        judged = labels[member] >= 0
        own, cut = labels[member][judged], folds[member][judged]
        said = told[member][:, judged].double()
        together = nested(said[1:last], own, cut, dealt).unsqueeze(0)
        said = torch.cat([said, together])
        right[member][:, judged] = (said.argmax(2) == own).double()
        likely[member][:, judged] = likelihoods(said, own, cut, dealt)
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
