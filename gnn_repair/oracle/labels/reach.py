"""How often the evidence for a label was there: per label, and over all of them.

A label has two sides, so a wrong one has no third that could be reached by chance. *Chance* is
here how often reweighting could turn over a label that the model has right: where that is as
frequent as error reach, reach says nothing about errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.outputs import require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.f1 import F1, F1Counts
from gnn_repair.notebook import shown
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.labels.solve import solve_labels
from gnn_repair.oracle.metrics import Mean, Rate, interval_of, resampled_sums

if TYPE_CHECKING:
    import pandas as pd

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class OneLabelReach:
    """One label's figures."""

    label: int
    reach: Rate
    """Nodes where some reweighting puts the label on its true side, among those decided."""
    error: Rate
    """The same among nodes where the frozen model has it wrong."""
    chance: Rate
    """Nodes where the frozen model has it right and some reweighting turns it over."""
    undecided: int
    frozen: F1Counts
    """Of the model as it is."""
    best: F1Counts
    """If every error that is not proved out of reach were undone: no reweighting does better."""


@dataclass(frozen=True)
class LabelReach:
    """Reach and error reach of every label; micro pools pairs, macro averages labels."""

    labels: tuple[OneLabelReach, ...]
    skipped: int
    """Pairs without a known truth."""
    excess: Mean
    """Error reach less chance over all pairs, by a bootstrap over nodes; of 1, not in points."""
    scope: str = ""

    @property
    def micro(self) -> Rate:
        """Pairs of node and label whose true side is within reach."""
        return _pooled([one.reach for one in self.labels])

    @property
    def micro_error(self) -> Rate:
        """The same among pairs that the frozen model has wrong."""
        return _pooled([one.error for one in self.labels])

    @property
    def chance(self) -> Rate:
        """Pairs that the frozen model has right and some reweighting turns over."""
        return _pooled([one.chance for one in self.labels])

    @property
    def macro(self) -> float:
        """The mean of the labels' reach."""
        return _mean([one.reach.value for one in self.labels])

    @property
    def macro_error(self) -> float:
        """The mean of the labels' error reach, where there are errors."""
        return _mean([one.error.value for one in self.labels])

    @property
    def frozen(self) -> F1:
        """F1 of the model as it is."""
        return F1(tuple(one.frozen for one in self.labels))

    @property
    def best(self) -> F1:
        """F1 if every error that is not proved out of reach were undone."""
        return F1(tuple(one.best for one in self.labels))

    @property
    def undecided(self) -> int:
        """Pairs that count nowhere (models with a tail)."""
        return sum(one.undecided for one in self.labels)

    def to_frame(self) -> pd.DataFrame:
        """One row a label."""
        from gnn_repair.oracle.labels.frames import reach_frame

        return reach_frame(self)

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __str__(self) -> str:
        lines = [
            f"label reach {self.micro}; macro {100 * self.macro:.1f} % over "
            f"{len(self.labels)} label{'s' * (len(self.labels) != 1)}",
            f"error reach {self.micro_error}; macro {100 * self.macro_error:.1f} %",
            f"chance      {self.chance} of the right ones could be turned over; excess "
            f"{self.excess.words(100, sign='+', unit=' points')}",
            f"F1          {self.frozen}; within reach: {self.best}",
        ]
        if self.undecided:
            lines.append(f"undecided   {self.undecided:,} pairs, which are in no reach above")
        if self.scope:
            lines.append(f"about       the {self.scope}")
        return "\n".join(lines)

    __repr__ = __str__


def _pooled(rates: list[Rate]) -> Rate:
    return Rate(sum(rate.hits for rate in rates), sum(rate.total for rate in rates))


def _mean(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return fmean(known) if known else float("nan")


def label_reach(
    exposure: Exposure | Any, y: Any, mask: Any = None, threads: int | None = None
) -> LabelReach:
    """How often an admissible reweighting puts a label on its true side."""
    if isinstance(y, str):
        raise InputError("y must hold the truths [N, K]; without them use solve_labels")
    if isinstance(exposure, Exposure):
        require_outputs(exposure, "labels")
    own = solve_labels(exposure, y, mask, threads=threads)
    turned = torch.as_tensor(y).double()
    turned = torch.where((turned == 0) | (turned == 1), 1 - turned, turned)
    other = solve_labels(exposure, turned, mask, threads=threads)
    return summarise_labels(exposure, own, other)


def summarise_labels(exposure: Any, own: LabelSolution, other: LabelSolution) -> LabelReach:
    """The figures of a solution whose wanted sides are the truths, and one of the other sides."""
    mixture = exposure.mixture if isinstance(exposure, LinkExposure) else exposure
    frozen = mixture.frozen_logits[:, mixture.recipients].cpu().numpy()
    wrong = (frozen[own.member, own.recipient, own.target] > own.threshold) != own.wanted
    labels = tuple(_one(int(k), own.target == k, own, other, wrong) for k in np.unique(own.target))
    return LabelReach(labels, own.skipped, _excess(own, other, wrong), own.scope)


def _one(
    label: int, rows: Flags, own: LabelSolution, other: LabelSolution, wrong: Flags
) -> OneLabelReach:
    can, decided, wanted = own.reachable[rows], own.decided[rows], own.wanted[rows]
    turns, known, wrong = other.reachable[rows], other.decided[rows], wrong[rows]
    return OneLabelReach(
        label,
        Rate(int((can & decided).sum()), int(decided.sum())),
        Rate(int((can & decided & wrong).sum()), int((decided & wrong).sum())),
        Rate(int((turns & known & ~wrong).sum()), int((known & ~wrong).sum())),
        int((~decided).sum()),
        _counts(wrong, wanted),
        _counts(wrong & ~can & decided, wanted),
    )


def _excess(own: LabelSolution, other: LabelSolution, wrong: Flags) -> Mean:
    """Of decided pairs, as the rates are."""
    errors, right = wrong & own.decided, ~wrong & other.decided
    columns = np.stack([errors & own.reachable, errors, right & other.reachable, right], 1)
    whole = columns.astype(float)
    drawn = resampled_sums(own.node, whole)[:, 0]
    with np.errstate(invalid="ignore"):
        (value,), spread = (
            x[:, 0] / x[:, 1] - x[:, 2] / x[:, 3] for x in (whole.sum(0, keepdims=True), drawn)
        )
    return Mean(float(value), float(value), interval_of(spread, spread))


def _counts(wrong: Flags, wanted: Flags) -> F1Counts:
    return F1Counts(
        int((wanted & ~wrong).sum()), int((~wanted & wrong).sum()), int((wanted & wrong).sum())
    )
