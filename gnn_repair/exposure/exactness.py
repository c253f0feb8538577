"""How far an exposure may be from its model, and what to say where it is further."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.errors import InputError

EXACT = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest deviation of an exposure from its model beside what moved, by the model's precision: a
hundred (float32) or some thousand (float64) roundings, as sums over a node's terms add up."""

WORST_ROUNDING = 100.0
"""How many times EXACT rounding can be where a model amplifies it (1e-3 in float32, 1e-10 in
float64): it then has lost all but three of its seven digits, and beyond that neither its logits nor
an answer about them mean anything. No larger tolerance is offered or taken."""


def residual_limit(tolerance: float | None, dtype: torch.dtype) -> float:
    """The largest residual that is accepted of a model in this precision."""
    if tolerance is None:
        return EXACT[dtype]
    most = WORST_ROUNDING * EXACT[dtype]
    if not isinstance(tolerance, int | float) or not 0 <= tolerance <= most:
        raise InputError(
            f"tolerance is {tolerance!r:.20}; rounding of {dtype} explains at most {most:.0e}, and "
            "an exposure that is further off is not one of this model: choose between 0 and that"
        )
    return tolerance


def excused(residual: float, dtype: torch.dtype) -> str:
    """What to do about a residual: rounding explains it, or nothing does."""
    enough = min(2 * residual, WORST_ROUNDING * EXACT[dtype])
    if not residual <= enough:
        return (
            "that is no rounding: what follows does something else with other messages, such as "
            "keeping values between runs; take that out of the forward"
        )
    double = "pass model.double() and double data"
    if dtype == torch.float64:
        double = "scale its features, or take out what divides by small numbers"
    return f"that is how {dtype} rounds in this model: {double}, or tolerance={enough:.0e}"


def centre(logits: Tensor) -> Tensor:
    """Logits without the shift common to all classes."""
    return logits - logits.mean(1, keepdim=True)
