"""Exposures of models whose last aggregation is followed by a nonlinear, node-wise tail.

    a_v(λ) = o_v + Σ_g Σ_{a ∈ A_{v,g}} λ_a h_{v,a},      z_v(λ) = T_v(a_v(λ))

The aggregate is itself a mixture, so it is held as an :class:`Exposure` whose channels are the D
entries of a_v instead of classes; the tail T is a :class:`TailGraph`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnn_repair.exposure.tails.operations import TailGraph
from gnn_repair.exposure.value import Exposure

Replay = Callable[[Tensor], Tensor]
"""λ [T] → the logits [N, C] of the user's own model run with its messages reweighted."""


@dataclass(frozen=True, eq=False)
class TailedExposure:
    """z⁰ = T(o + Σ_g A_g H_g) of one model."""

    aggregate: Exposure
    """The mixture before the tail: ``contributions`` [1, R, D] are h in the aggregate's channels,
    ``fixed_logits`` [1, N, D] are o, ``frozen_logits`` [1, N, D] are a⁰."""
    tail: TailGraph
    """T_v, with D inputs and C outputs."""
    frozen_logits: Tensor
    """[1, N, C] float64: z⁰, the model's own output."""
    residual: float | None = None
    """Largest |model − T(o + Σ λ h)| / max(1, |z⁰|) over certified random λ."""
    replay: Replay | None = None
    """Runs the user's own model with reweighted messages; None once read from a file."""

    def logits(self, coefficients: Tensor | None = None) -> Tensor:
        """z(λ) = T(a(λ)) at the recipients, [1, n, C] float64; λ = α unless given.

        Args:
            coefficients: λ, [1, T].
        """
        aggregate = self.aggregate.logits(coefficients)[0]
        return self.tail(aggregate, self.aggregate.recipients).unsqueeze(0)
