"""From what candidates said out of fold to weights, Frozen's right to stay, and a temperature.

Everything here works on one member: log-probabilities [R, m, C] of R candidates at its m
validation nodes, their labels [m] and folds [m].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CLEARLY = 1.0
"""Standard errors of likelihood by which the combination must beat Frozen, else Frozen stays."""
STANDS_OUT = 2.0
"""Standard errors that advice needs, in accuracy and in likelihood."""
HOTTEST = 3.0
"""Temperatures lie within e^±3, 0.05 to 20."""
HALVINGS = 20
"""Of the search for a temperature: to six digits, finer than validation nodes can tell."""
BINS = 15
"""Of confidence, for the calibration error; the usual number."""


def weigh(told: Tensor, labels: Tensor) -> Tensor:
    """Weights that grow with accuracy, [R] float64: a standard error of it is worth a factor e.

    So candidates that cannot be told apart are averaged, and one that stands out by a few standard
    errors is nearly alone.
    """
    accuracy = (told.argmax(2) == labels).double().mean(1)
    best = accuracy.max()
    # At least what one wrong node makes: nobody is certain to be always right.
    spread = (best * (1 - best)).clamp(min=1 / (len(labels) + 1))
    return (accuracy / (spread / len(labels)).sqrt()).softmax(0)


def mixed(told: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of log-probabilities [R, …, m, C], normalised; [… , m, C]."""
    return torch.einsum("r,r...->...", weights.to(told), told).log_softmax(-1)


def weights_without(told: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """The weights that all nodes but those of a fold give, [folds, R]."""
    kept = [folds != fold for fold in range(count)]
    return torch.stack([weigh(told[:, own], labels[own]) for own in kept])


def nested(told: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """What the combination says of each node when it is weighed without the node's fold, [m, C]."""
    by_node = weights_without(told, labels, folds, count)[folds]
    return torch.einsum("mr,rmc->mc", by_node.to(told), told).log_softmax(1)


def temperature(told: Tensor, labels: Tensor, used: Tensor | None = None) -> Tensor:
    """τ that makes the labels most likely given log-probabilities [..., m, C] / τ.

    ``used`` [B, m] says from which nodes, B times; the answer is then [..., B], else [...].
    The likelihood is concave in 1/τ, so halving finds where its slope is zero.
    """
    told = told.double()
    weight = torch.ones(1, len(labels)) if used is None else used
    weight = weight.to(told)
    index = labels.expand(told.shape[:-1]).unsqueeze(-1)
    own = told.gather(-1, index).squeeze(-1)
    low = told.new_full((*told.shape[:-2], len(weight)), -HOTTEST)
    high = -low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        cold = (-middle).exp()[..., None, None] * told.unsqueeze(-3)
        slope = own.unsqueeze(-2) - (cold.softmax(-1) * told.unsqueeze(-3)).sum(-1)
        # A positive slope in 1/τ asks for a lower temperature; one that is lost in rounding, too.
        cooler = (slope * weight).sum(-1) >= 0
        high, low = torch.where(cooler, middle, high), torch.where(cooler, low, middle)
    found = ((low + high) / 2).exp()
    return found.squeeze(-1) if used is None else found


def likelihoods(told: Tensor, labels: Tensor, folds: Tensor, count: int) -> Tensor:
    """log p of each node's label at the temperature that the other folds ask for, [R, m] float64.

    At the best temperature, so that being surer or less sure counts for nothing: what is left is
    how well classes are told apart. A frozen model's accuracy on validation nodes flatters it,
    since its epoch was chosen by that accuracy; its likelihood was chosen by nobody.
    """
    others = folds != torch.arange(count, device=folds.device).unsqueeze(1)
    index, out = labels.unsqueeze(1), []
    for said in told.double():  # one after the other: all at once would be gigabytes
        scaled = said / temperature(said, labels, others)[folds].unsqueeze(1)
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


def decide(told: Tensor, labels: Tensor, folds: Tensor, count: int) -> Decision:
    """Weigh the candidates of every member.

    Frozen keeps all the weight unless the combination of the others, weighed without a node's
    fold, makes the labels more likely by ``CLEARLY`` standard errors of the paired difference and
    is right about some node that Frozen is wrong about.
    Frozen needs nothing that could go wrong, so others must show more than chance. It has no part
    in the combination: its epoch was chosen by these very labels, so its accuracy flatters it
    beside theirs, and rungs that keep it bring it along.

    Args:
        told: [S, R, n, C] log-probabilities out of fold, Frozen first.
        labels: [n], read at validation nodes.
        folds: [S, n], −1 where a recipient is no validation node.
        count: how many folds there are.
    """
    rows = []
    for member, own in enumerate(folds):
        judged = own >= 0
        rows.append(_one(told[member][:, judged], labels[judged], own[judged], count))
    return Decision(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _one(told: Tensor, labels: Tensor, folds: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    together = nested(told[1:], labels, folds, count)
    both = torch.stack([together.double(), told[0].double()])
    mine, frozen = likelihoods(both, labels, folds, count)
    mends = (together.argmax(1) == labels) & (told[0].argmax(1) != labels)
    use = clearly(mine - frozen) and bool(mends.any())
    weights = torch.zeros(told.shape[0], dtype=torch.float64, device=told.device)
    if use:
        weights[1:] = weigh(told[1:], labels)
    else:
        weights[0] = 1
    right = (together.argmax(1) == labels).double().mean()
    return weights, temperature(both[0 if use else 1], labels), right


def clearly(difference: Tensor) -> bool:
    """Whether likelihoods differ for the better by ``CLEARLY`` standard errors."""
    gain, error = paired(difference)
    # More than rounding: two that say the same differ by nothing.
    return gain > max(CLEARLY * error, 1e-9)


def paired(difference: Tensor) -> tuple[float, float]:
    """Mean of paired differences [m] and its standard error."""
    spread = float(difference.double().var(correction=0))
    return float(difference.double().mean()), (spread / difference.numel()) ** 0.5


def calibration_error(log_probs: Tensor, labels: Tensor) -> float:
    """Expected calibration error of log-probabilities [m, C]: |confidence − accuracy| by bin."""
    sure, said = log_probs.double().exp().max(1)
    right = (said == labels).double()
    place = (sure * BINS).long().clamp(max=BINS - 1)
    zeros = torch.zeros(BINS, dtype=torch.float64, device=sure.device)
    gaps = zeros.index_add(0, place, sure - right)
    return float(gaps.abs().sum() / max(1, labels.numel()))
