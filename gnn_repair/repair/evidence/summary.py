"""A frozen description of every recipient's message set: numbers that no training changes.

A learned encoder reads every term in every step of every copy. What it can say of a set is mostly
in a few means, under the model's own coefficients and under weights that prefer what is alike or
what is far. These are computed once an exposure and shared by all rungs, folds and epochs.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gnn_repair.kernels import Pattern, mix
from gnn_repair.repair.inputs import RepairInputs

WIDEST = 160
"""Wider states are projected: they are raw features, which a rung of their own reads in full."""
PROJECTED = 128
"""Directions of the projection, as wide as the hidden states of the paper's backbones."""
SHARP = 6.0
"""Weights e^(6 cos): a message that points the same way counts e^6 times one at a right angle."""
NEAR = 3.0
"""Weights e^(∓3 d) of distances in units of the set's own mean: near counts e^3 times far."""
FARTHEST = 4.0
"""Distances beyond four means count as four, so that one outlier cannot take all the weight."""
SURE = -8.0
"""Log-probabilities below are cut: e⁻⁸ and less mean the same, never."""
CUT = 6.0
"""Standardised values beyond six deviations are cut, for sums over thousands of neighbours."""
KERNELS = 5
"""α, even, alike by angle, near, far."""


def summary_width(state: int, classes: int) -> int:
    """Numbers a recipient, for a state this wide."""
    return 3 * _kept(state) + (3 + KERNELS) * classes + 3


def _kept(state: int) -> int:
    return state if state <= WIDEST else PROJECTED


_SEEN: WeakKeyDictionary[RepairInputs, Tensor] = WeakKeyDictionary()


def set_summary(inputs: RepairInputs) -> Tensor:
    """[S, n, D]; computed once as long as the inputs live."""
    if inputs not in _SEEN:
        with torch.no_grad():
            members = range(inputs.num_members)
            _SEEN[inputs] = torch.stack([_of_member(inputs, s) for s in members])
    return _SEEN[inputs]


def statistics(inputs: RepairInputs) -> dict[str, Tensor]:
    """Mean and deviation of every number over the recipients, [S, D] each."""
    table = set_summary(inputs)
    deviation = table.std(1, correction=0)
    scale = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))
    return {"mean": table.mean(1), "scale": scale}


def standardised(table: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """A summary [S, n, D] in units of these deviations [S, D] from these means."""
    return ((table - mean.unsqueeze(1)) / scale.unsqueeze(1)).clamp(-CUT, CUT)


def _of_member(inputs: RepairInputs, member: int) -> Tensor:
    """[n, D]: the recipient itself, its mean message and its spread, classes under each weight."""
    here, there, sender = _states(inputs, member)
    told = inputs.frozen_logits[member].log_softmax(1)
    ends = inputs.sets.segments[:: inputs.groups].contiguous()
    pattern = Pattern(ends, inputs.sets.columns, there.shape[0])
    cosine, distance, alpha = (
        values[min(member, len(values) - 1)]
        for values in (inputs.sets.cosine, inputs.sets.distance, inputs.sets.coefficients)
    )
    said = told.exp()[sender]
    weights = _weights(pattern, alpha, cosine, distance)
    message, spread = _moments(pattern, weights[0], torch.cat([there, said], 1))
    own = told[inputs.nodes]
    return torch.cat(
        [
            here,
            own.clamp(min=SURE),
            own.exp(),
            inputs.total[member].unsqueeze(1),
            ends.diff().to(said.dtype).log1p().unsqueeze(1),
            _sums(pattern, weights[0] * cosine),
            message,
            spread,
            *(mix(pattern, others, said) for others in weights[1:]),
        ],
        1,
    )


def _states(inputs: RepairInputs, member: int) -> tuple[Tensor, Tensor, Tensor]:
    """States of the recipients and of the messages, projected where wide; who sent each."""
    nodes = inputs.frozen_logits.shape[1]
    distinct, _ = inputs._pairs
    state, messages = (
        values[min(member, len(values) - 1)] for values in (inputs._state, inputs._messages)
    )
    width = state.shape[1]
    if width > WIDEST:
        # Drawn on the CPU from a fixed seed: the same directions everywhere, nothing to keep.
        generator = torch.Generator().manual_seed(width)
        onto = torch.randn(width, PROJECTED, generator=generator) / PROJECTED**0.5
        state, messages = (values @ onto.to(values) for values in (state, messages))
    return state[inputs.nodes], messages[distinct // nodes], distinct % nodes


def _weights(pattern: Pattern, alpha: Tensor, cosine: Tensor, distance: Tensor) -> list[Tensor]:
    """Shares of the terms [T] under each of the kernels; they sum to 1 over a set."""
    even = torch.ones_like(alpha)
    counts = _sums(pattern, even).clamp(min=1)
    usual = _sums(pattern, distance) / counts
    apart = (distance / _spread(pattern, usual).clamp(min=1e-12)).clamp(max=FARTHEST)
    kernels = [
        alpha.abs(),
        even,
        (SHARP * cosine).exp(),
        (-NEAR * apart).exp(),
        (NEAR * apart).exp(),
    ]
    return [
        kernel / _spread(pattern, _sums(pattern, kernel)).clamp(min=1e-12) for kernel in kernels
    ]


def _sums(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number a term over every set, [n, 1]."""
    return mix(pattern, values, values.new_ones(pattern.num_columns, 1))


def _spread(pattern: Pattern, values: Tensor) -> Tensor:
    """Of a number a recipient [n, 1] to its terms, [T]."""
    return values.view(-1)[pattern.recipients.long()]


def _moments(pattern: Pattern, weights: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of table rows over every set."""
    mean = mix(pattern, weights, table)
    square = mix(pattern, weights, table.square())
    return mean, (square - mean.square()).clamp(min=0).sqrt()
