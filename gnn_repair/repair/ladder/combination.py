"""Choosing among rungs, or weighing them, from what they said out of fold.

Everything here works on one member: log-probabilities [R, m, C] of R candidates at its m
validation nodes, Frozen first, and their labels [m].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SHARPNESS = 100.0
"""Weights are e^(this × accuracy): one point of accuracy is worth a factor e. A difference of one
point is about the standard error of an accuracy on a thousand nodes, so candidates that cannot be
told apart are averaged and one that stands out by a few points is nearly alone."""
BINS = 15
"""Of confidence, for the calibration error; the usual number."""
RIDGE = 1e-2
"""Pull of stacked weights towards each other, as a share of a nat per node: rungs that say nearly
the same would otherwise share their weight by chance."""

STEPS = 25
"""Of the search for stacked weights, a smooth problem in a handful of numbers."""


def accuracies(told: Tensor, labels: Tensor) -> Tensor:
    """Share of right predictions of every candidate, [R] float64."""
    return (told.argmax(2) == labels).double().mean(1)


def choose(told: Tensor, labels: Tensor) -> Tensor:
    """All weight on the best candidate; on the one that reads least where several are best."""
    weights = torch.zeros(told.shape[0], dtype=torch.float64, device=told.device)
    weights[accuracies(told, labels).argmax()] = 1
    return weights


def weigh(told: Tensor, labels: Tensor) -> Tensor:
    """Weights that grow with accuracy, [R]."""
    return (SHARPNESS * accuracies(told, labels)).softmax(0)


def average(told: Tensor, labels: Tensor) -> Tensor:
    """The same weight for all."""
    return torch.full_like(accuracies(told, labels), 1 / told.shape[0])


def stack(told: Tensor, labels: Tensor) -> Tensor:
    """Nonnegative weights of log-probabilities that make the labels most likely, sum 1.

    The sum is left free while fitting, since a common factor is a temperature; the likelihood is
    concave in the weights.
    """
    chosen = told.double()
    raw = torch.zeros(told.shape[0], dtype=torch.float64, device=told.device).requires_grad_()
    optimizer = torch.optim.LBFGS([raw], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        weights = raw.exp() / told.shape[0]
        likely = mixed(chosen, weights).gather(1, labels.unsqueeze(1))
        value = RIDGE * raw.var(correction=0) - likely.mean()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return raw.detach().softmax(0)


Rule = Callable[[Tensor, Tensor], Tensor]
RULES: dict[str, Rule] = {"chosen": choose, "weighted": weigh, "mean": average, "stacked": stack}
"""Ways to combine candidates, by name."""


def mixed(told: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of log-probabilities [R, m, C], normalised; [m, C]."""
    return torch.einsum("r,rmc->mc", weights.to(told), told).log_softmax(1)


def nested(rule: Rule, told: Tensor, labels: Tensor, folds: Tensor) -> Tensor:
    """What the rule's combination says of each node when it is fitted without the node's fold.

    Args:
        rule: gives weights.
        told: [R, m, C].
        labels: [m].
        folds: [m], 0..K−1.
    """
    out = torch.empty_like(told[0])
    for fold in folds.unique().tolist():
        held = folds == fold
        weights = rule(told[:, ~held], labels[~held])
        out[held] = mixed(told[:, held], weights)
    return out


class PairedGain(NamedTuple):
    """How much better one does than another on the same nodes."""

    gain: float
    """Mean difference."""
    error: float
    """Its standard error."""

    def clear(self, errors: float) -> bool:
        """Whether the gain exceeds this many standard errors."""
        # More than rounding: two that say the same differ by nothing.
        return self.gain > max(errors * self.error, 1e-9)


def compare(mine: Tensor, other: Tensor) -> PairedGain:
    """Paired over nodes: values [m] of each."""
    difference = mine.double() - other.double()
    spread = float(difference.var(correction=0)) if difference.numel() else 0.0
    mean = float(difference.mean()) if difference.numel() else 0.0
    return PairedGain(mean, (spread / max(1, difference.numel())) ** 0.5)


def likelihoods(told: Tensor, labels: Tensor) -> Tensor:
    """log p of each node's label at the best temperature, [m] float64.

    At the best temperature, so that being surer or less sure counts for nothing: what is left is
    how well classes are told apart. A frozen model's accuracy on validation nodes flatters it,
    since its epoch was chosen by that accuracy; its likelihood was chosen by nobody.
    """
    scaled = (told.double() / temperature(told, labels)).log_softmax(1)
    return scaled.gather(1, labels.unsqueeze(1)).squeeze(1)


TEMPERATURES = torch.logspace(-1.3, 1.3, 261, dtype=torch.float64)
"""Where τ is looked for: 0.05 to 20, steps of 2.3 %, finer than validation nodes can tell."""
AT_ONCE = 1 << 24
"""Log-probabilities formed at once, 128 MB: all temperatures of 50,000 nodes and forty classes are
four gigabytes."""


def temperature(told: Tensor, labels: Tensor) -> float:
    """τ that makes the labels most likely given log-probabilities [m, C] / τ."""
    likely = []
    for some in TEMPERATURES.to(told.device).split(max(1, AT_ONCE // max(1, told.numel()))):
        scaled = told.double().unsqueeze(0) / some.view(-1, 1, 1)
        chosen = scaled.log_softmax(2).gather(2, labels.view(1, -1, 1).expand(len(some), -1, 1))
        likely.append(chosen.sum((1, 2)))
    return float(TEMPERATURES[int(torch.cat(likely).argmax())])


def calibration_error(log_probs: Tensor, labels: Tensor) -> float:
    """Expected calibration error of log-probabilities [m, C]: |confidence − accuracy| by bin."""
    sure, said = log_probs.double().exp().max(1)
    right = (said == labels).double()
    place = (sure * BINS).long().clamp(max=BINS - 1)
    zeros = torch.zeros(BINS, dtype=torch.float64, device=sure.device)
    gaps = zeros.index_add(0, place, sure - right)
    return float(gaps.abs().sum() / max(1, labels.numel()))
