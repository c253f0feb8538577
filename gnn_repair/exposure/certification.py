"""Comparing an exposure with its model, run on other admissible coefficients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnn_repair.exposure.exactness import EXACT, centre
from gnn_repair.exposure.value import Exposure

LARGE = 1 << 20
"""Terms beyond which one draw is enough: it gives every recipient random coefficients."""
ROUNDINGS = 16
"""Roundings of the largest logit that a certificate allows beside what moved."""


def mixture_in(exposure: Exposure) -> Exposure:
    """The mixture itself, without a tail."""
    return exposure.aggregate


def random_admissible(exposure: Exposure, seed: int) -> Tensor:
    """Random λ ≥ 0 [T] with every group's mass: m_g times shares drawn anew."""
    shape = (1, exposure.num_terms)
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # Powers spread the shares, so that single terms come to dominate some of the groups.
    # The smallest share is a thousandth of the largest: no term is left untried.
    draws = draws.pow_(3).add_(1e-3).to(exposure.coefficients.device)
    ratio = exposure.mass / exposure.masses(draws).clamp(min=torch.finfo(torch.float64).tiny)
    return draws.view(-1).mul_(torch.repeat_interleave(ratio.view(-1), exposure.segments.diff()))


def random_vertex(exposure: Exposure, seed: int) -> Tensor:
    """λ [T] that gives a group's whole mass to one of its terms, drawn for every group."""
    lengths = exposure.segments.diff()
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(lengths.numel(), generator=generator, dtype=torch.float64)
    offset = (shares.to(lengths.device) * lengths).long().clamp(max=lengths - 1)
    present = lengths > 0
    out = exposure.coefficients.new_zeros(exposure.num_terms, dtype=torch.float64)
    out[(exposure.segments[:-1] + offset)[present]] = exposure.mass.view(-1)[present]
    return out


def random_mixed(exposure: Exposure, seed: int) -> Tensor:
    """λ [T] that is inside the polytope in some groups and at a corner in the others."""
    generator = torch.Generator().manual_seed(seed)
    lengths = exposure.segments.diff()
    inside = torch.rand(lengths.numel(), generator=generator).to(lengths.device) < 0.5
    corner = random_vertex(exposure, seed)
    return torch.where(
        torch.repeat_interleave(inside, lengths), random_admissible(exposure, seed), corner
    )


def certify(
    exposure: Exposure,
    replay: Callable[[Tensor], Tensor],
    logits: Tensor,
    shifted: bool,
) -> float:
    """Largest difference of model and exposure over random λ and vertices, beside what moved."""
    mixture = mixture_in(exposure)
    draws = [random_mixed(mixture, seed) for seed in range(2 if mixture.num_terms < LARGE else 1)]
    worst, frozen = 0.0, logits.double()
    frozen = centre(frozen) if shifted else frozen
    for draw in draws:
        # The model sees λ in its own precision, and so must the prediction.
        coefficients = draw.to(mixture.coefficients.dtype)
        seen = replay(coefficients).double()
        expected = exposure.logits(coefficients.unsqueeze(0))[0]
        if shifted:
            seen, expected = centre(seen), centre(expected)
        ratio = relative_gap(seen, expected, frozen, logits.dtype)
        worst = ratio if not ratio <= worst else worst  # NaN wins
    return worst


def relative_gap(seen: Tensor, expected: Tensor, frozen: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of model and exposure, beside what moved since the frozen state."""
    kappa = ROUNDINGS * torch.finfo(dtype).eps / EXACT[dtype]
    moved = float((expected - frozen).abs().amax())
    size = max(moved, kappa * float(torch.maximum(expected.abs().amax(), frozen.abs().amax())))
    gap = float((seen - expected).abs().amax())
    return 0.0 if gap == 0 else gap / max(size, torch.finfo(torch.float64).tiny)
