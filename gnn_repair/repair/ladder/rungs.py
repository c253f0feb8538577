"""What the rungs of the evidence ladder come to: one decision, and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gnn_repair.methods import FROZEN, NOTHING, RUNGS, TOGETHER, UNCLEAR, rung_title

SURE = 1.645
"""Standard errors of likelihood by which the combination must beat Frozen, else Frozen stays: a
one-sided test at 5 %. It is made once, on a combination that was weighed without the node's fold,
so there is nothing to correct for the number of rungs."""
MORE_LABELS = 1.0
"""Standard errors of likelihood from which more labels are taken to help; whichever way that goes,
the rung is the same, so the better guess is enough."""
STANDS_OUT = 2.0
"""Standard errors that advice needs, in accuracy and in likelihood."""
HOTTEST = 3.0
"""Temperatures lie within e^±3, 0.05 to 20."""
HALVINGS = 20
"""Of the search for a temperature: to six digits, finer than validation nodes can tell."""
BINS = 15
"""Of confidence, for the calibration error; the usual number."""


# From candidates' held-out predictions to weights, Frozen's right to stay, and a temperature ------
#
# Everything here works on one member: log-probabilities [R, m, C] of R candidates at its m
# validation nodes, their labels [m] and folds [m].


def weigh(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Weights that grow with accuracy, [R] float64: a standard error of it is worth a factor e.

    So candidates that cannot be told apart are averaged, and one that stands out by a few standard
    errors is nearly alone.
    """
    accuracy = (log_probs.argmax(2) == labels).double().mean(1)
    best = accuracy.max()
    # At least what one wrong node makes: nobody is certain to be always right.
    spread = (best * (1 - best)).clamp(min=1 / (len(labels) + 1))
    return (accuracy / (spread / len(labels)).sqrt()).softmax(0)


def mix(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of log-probabilities [R, …, m, C], normalised; [… , m, C]."""
    return torch.einsum("r,r...->...", weights.to(log_probs), log_probs).log_softmax(-1)


def weights_without(log_probs: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """The weights that all nodes but those of a fold give, [folds, R]."""
    kept = [folds != fold for fold in range(count)]
    return torch.stack([weigh(log_probs[:, own], labels[own]) for own in kept])


def nested_mixture(log_probs: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """What the combination says of each node when it is weighed without the node's fold, [m, C]."""
    by_node = weights_without(log_probs, labels, folds, count)[folds]
    return torch.einsum("mr,rmc->mc", by_node.to(log_probs), log_probs).log_softmax(1)


def temperature(log_probs: Tensor, labels: Tensor, used: Tensor | None = None) -> Tensor:
    """τ that makes the labels most likely given log-probabilities [..., m, C] / τ.

    ``used`` [B, m] says from which nodes, B times; the answer is then [..., B], else [...].
    The likelihood is concave in 1/τ, so halving finds where its slope is zero.
    """
    log_probs = log_probs.double()
    weight = torch.ones(1, len(labels)) if used is None else used
    weight = weight.to(log_probs)
    index = labels.expand(log_probs.shape[:-1]).unsqueeze(-1)
    own = log_probs.gather(-1, index).squeeze(-1)
    low = log_probs.new_full((*log_probs.shape[:-2], len(weight)), -HOTTEST)
    high = -low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        cold = (-middle).exp()[..., None, None] * log_probs.unsqueeze(-3)
        slope = own.unsqueeze(-2) - (cold.softmax(-1) * log_probs.unsqueeze(-3)).sum(-1)
        # A positive slope in 1/τ asks for a lower temperature; one that is lost in rounding, too.
        cooler = (slope * weight).sum(-1) >= 0
        high, low = torch.where(cooler, middle, high), torch.where(cooler, low, middle)
    scale = ((low + high) / 2).exp()
    return scale.squeeze(-1) if used is None else scale


def likelihoods(log_probs: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """log p of each node's label at the temperature that the other folds ask for, [R, m] float64.

    At the best temperature, so that being surer or less sure counts for nothing: what is left is
    how well classes are told apart. A frozen model's accuracy on validation nodes flatters it,
    since its epoch was chosen by that accuracy; its likelihood was chosen by nobody.
    """
    others = folds != torch.arange(count, device=folds.device).unsqueeze(1)
    index, out = labels.unsqueeze(1), []
    for candidate in log_probs.double():  # one after the other: all at once would be gigabytes
        scaled = candidate / temperature(candidate, labels, others)[folds].unsqueeze(1)
        out.append(scaled.log_softmax(1).gather(1, index).squeeze(1))
    return torch.stack(out)


class Decision(NamedTuple):
    """What was decided for S members among R candidates, Frozen first."""

    weights: Tensor
    """[S, R] float64, summing to 1; all on Frozen where it stays, else none."""
    temperature: Tensor
    """[S] float64."""
    nested_accuracy: Tensor
    """[S] float64: of the combination, weighed without the node's fold."""


def decide(log_probs: Tensor, labels: Tensor, folds: Tensor, count: int) -> Decision:
    """Weigh the candidates of every member.

    Frozen keeps all the weight unless the combination of the others, weighed without a node's
    fold, makes the labels more likely by ``SURE`` standard errors of the paired difference and is
    right about some node that Frozen is wrong about.
    Frozen needs nothing that could go wrong, so others must show more than chance. It has no part
    in the combination: its epoch was chosen by these very labels, so its accuracy flatters it
    beside theirs, and rungs that keep it bring it along. Of held-out log-probabilities
    [S, R, n, C], Frozen first; labels [n]; folds [S, n], −1 at no validation node.
    """
    rows = []
    for member, own in enumerate(folds):
        judged = own >= 0
        rows.append(_one(log_probs[member][:, judged], labels[judged], own[judged], count))
    return Decision(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _one(
    log_probs: Tensor, labels: Tensor, folds: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    together = nested_mixture(log_probs[1:], labels, folds, count)
    both = torch.stack([together.double(), log_probs[0].double()])
    likely, frozen = likelihoods(both, labels, folds, count)
    mends = (together.argmax(1) == labels) & (log_probs[0].argmax(1) != labels)
    use = is_significant(likely - frozen, SURE) and bool(mends.any())
    weights = torch.zeros(log_probs.shape[0], dtype=torch.float64, device=log_probs.device)
    if use:
        weights[1:] = weigh(log_probs[1:], labels)
    else:
        weights[0] = 1
    right = (together.argmax(1) == labels).double().mean()
    return weights, temperature(both[0 if use else 1], labels), right


def is_significant(difference: Tensor, errors: float) -> bool:
    """Whether likelihoods differ for the better by so many standard errors."""
    gain, error = paired_mean(difference)
    # More than rounding: two that say the same differ by nothing.
    return gain > max(errors * error, 1e-9)


def paired_mean(difference: Tensor) -> tuple[float, float]:
    """Mean of paired differences [m] and its standard error."""
    spread = float(difference.double().var(correction=0))
    return float(difference.double().mean()), (spread / difference.numel()) ** 0.5


def calibration_error(log_probs: Tensor, labels: Tensor) -> float:
    """Expected calibration error of log-probabilities [m, C]: |confidence − accuracy| by bin."""
    sure, predicted = log_probs.double().exp().max(1)
    right = (predicted == labels).double()
    place = (sure * BINS).long().clamp(max=BINS - 1)
    zeros = torch.zeros(BINS, dtype=torch.float64, device=sure.device)
    gaps = zeros.index_add(0, place, sure - right)
    return float(gaps.abs().sum() / max(1, labels.numel()))


# Where the evidence was lost: what each kind of it is worth, overall and by class -----------------


@dataclass(frozen=True)
class Finding:
    """What one rung gains on held-out nodes over the one it is compared with, in points."""

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
    """Whether a rival, which reads what this rung leaves out, does clearly better."""

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
        other = rung_title(self.above)
        return f"{what} are worth {abs(self.gain):.1f} {size} points {more} than {other}{where}"


@dataclass(frozen=True)
class Findings:
    """All of them: overall first, then by class."""

    rows: tuple[Finding, ...]
    stays: bool = False
    """Whether the frozen model stays as it is, for every member."""

    def to_frame(self) -> pd.DataFrame:
        """One finding a row."""
        columns = [*(field.name for field in fields(Finding)), "advice"]
        table = [[getattr(row, name) for name in columns] for row in self.rows]
        return pd.DataFrame(table, columns=columns).astype({"label": "Int64"})

    def of(self, rung: str, label: int | None = None) -> Finding:
        """The finding of a rung, overall or on a class."""
        return next(row for row in self.rows if (row.rung, row.label) == (rung, label))

    def overall(self) -> tuple[Finding, ...]:
        """One per rung."""
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
    log_probs: Tensor,
    labels: Tensor,
    folds: Tensor,
    *,
    classes: int,
    stays: bool,
) -> Findings:
    """Compare each of the R candidates, Frozen first, with the one it is to be compared with.

    Of held-out log-probabilities [S, R, N, C]; labels and folds [S, N], −1 at nodes not judged.
    """
    names = [*candidates, TOGETHER]
    last = next((i for i, name in enumerate(candidates[1:], 1) if not RUNGS[name].blocks), None)
    count = int(folds.max()) + 1
    tables = zip(log_probs, labels, folds, strict=True)
    members = [_scored(*member, count, last) for member in tables]
    rows = []
    for label in (None, *range(classes)):
        masks = [own >= 0 if label is None else own == label for own, _, _ in members]
        scores = [
            (right[:, mask], likely[:, mask])
            for (_, right, likely), mask in zip(members, masks, strict=True)
            if bool(mask.any())
        ]
        if not scores:
            continue

        def compared(
            mine: str, other: str, label: int | None = label, scores: Any = scores
        ) -> Finding:
            place, base = names.index(mine), names.index(other)
            gain, error, spread = mean_gain([right[place] - right[base] for right, _ in scores])
            nats, nats_error, _ = mean_gain([likely[place] - likely[base] for _, likely in scores])
            over, _, _ = mean_gain([right[place] - right[0] for right, _ in scores])
            sizes = 100 * gain, 100 * error, 100 * spread, nats, nats_error, 100 * over
            nodes = sum(right.shape[1] for right, _ in scores) / len(scores)
            return Finding(mine, other, label, *sizes, nodes)

        for rung in candidates[1:]:
            above = RUNGS[rung].above
            row = compared(rung, above if above in names else FROZEN)
            rivals = (compared(name, rung) for name in RUNGS[rung].rivals if name in names)
            beaten = any(rival.clear and rival.gain > 0 for rival in rivals)
            rows.append(replace(row, overruled=beaten))
    return Findings(tuple(rows), stays)


def _scored(
    log_probs: Tensor, labels: Tensor, folds: Tensor, count: int, last: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A member's judged labels [m], who is right and log p of the label, [R + 1, m] float64 each.

    Behind the candidates stands the combination of those before ``last``.
    """
    judged = labels >= 0
    labels, folds, candidates = labels[judged], folds[judged], log_probs[:, judged].double()
    together = nested_mixture(candidates[1:last], labels, folds, count).unsqueeze(0)
    candidates = torch.cat([candidates, together])
    right = (candidates.argmax(2) == labels).double()
    return labels, right, likelihoods(candidates, labels, folds, count)


def mean_gain(differences: Sequence[Tensor]) -> tuple[float, float, float]:
    """Mean over members of the mean of paired differences, its standard error, and its spread."""
    gains, errors = zip(*map(paired_mean, differences), strict=True)
    # By NumPy: a likelihood may be zero, and its logarithm is no number that statistics takes.
    deviation = float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
    return fmean(gains), fmean(errors), deviation
