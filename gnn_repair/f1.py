"""F1 of labels: what is found and right, what is missed, per label and over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class F1Counts:
    """True positives, false positives and false negatives of one label (or of all together)."""

    hits: int
    false: int
    missed: int

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); NaN where the label neither occurs nor is predicted."""
        total = 2 * self.hits + self.false + self.missed
        return 2 * self.hits / total if total else float("nan")


@dataclass(frozen=True)
class F1:
    """F1 of K labels."""

    labels: tuple[F1Counts, ...]

    @property
    def micro(self) -> float:
        """Of all pairs of node and label together."""
        counts = [(one.hits, one.false, one.missed) for one in self.labels]
        return F1Counts(*(sum(column) for column in zip(*counts, strict=True))).f1

    @property
    def macro(self) -> float:
        """The mean over labels that occur or are predicted; NaN where none does."""
        known = [one.f1 for one in self.labels if one.f1 == one.f1]
        return sum(known) / len(known) if known else float("nan")

    def __str__(self) -> str:
        return f"micro-F1 {100 * self.micro:.1f} %, macro-F1 {100 * self.macro:.1f} %"

    __repr__ = __str__


def f1_of(predicted: Tensor, truths: Tensor) -> F1:
    """F1 of predictions, bool [n, K], against truths [n, K] (NaN: unknown, left out)."""
    labelled = ~truths.isnan()
    true = truths == 1
    return f1_from(
        (predicted & true & labelled).sum(0).tolist(),
        (predicted & ~true & labelled).sum(0).tolist(),
        (~predicted & true & labelled).sum(0).tolist(),
    )


def f1_from(hits: Sequence[int], false: Sequence[int], missed: Sequence[int]) -> F1:
    """F1 of labels with these counts."""
    return F1(
        tuple(F1Counts(int(a), int(b), int(c)) for a, b, c in zip(hits, false, missed, strict=True))
    )


def micro_scores(predicted: Tensor, truths: Tensor, real: Tensor) -> Tensor:
    """Micro-F1 of every member, [S], on its own targets: predicted [S, L, K], truths, real [S, L].

    Where nothing is there and nothing is predicted all is right, so it is one.
    """
    labelled = real.unsqueeze(2) & ~truths.isnan()
    true = truths == 1
    hits = (predicted & true & labelled).sum((1, 2))
    wrong = ((predicted != true) & labelled).sum((1, 2))
    total = 2 * hits + wrong
    return torch.where(total > 0, 2 * hits / total.clamp(min=1), 1.0)
