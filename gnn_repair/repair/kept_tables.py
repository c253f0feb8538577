"""Tables by node that are kept with a fitted repair, and the graph that they belong to."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.repair.fitted import FittedRepair


def signature(exposure: Exposed) -> Tensor:
    """One number a node and member that another graph or model would not share, [S, N]."""
    weights = torch.linspace(1, 2, exposure.num_classes, dtype=torch.float64)
    return (exposure.frozen_logits @ weights.to(exposure.frozen_logits.device)).float()


def same_graph(expected: Tensor, exposure: Exposed) -> bool:
    """Whether the exposure is of the graph and model that gave this signature."""
    found = signature(exposure).to(expected.device)
    # Frozen logits of one model repeat to rounding, also on another device.
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-3)


def check_graph(expected: Tensor, exposure: Exposed, title: str) -> None:
    """Refuse another graph than the one whose labels were read."""
    if not same_graph(expected, exposure):
        raise InputError(
            f"{title} reads known labels of the graph it was fitted on and this is another one; "
            "fit it again here, or use a repair that reads no labels"
        )


def kept_rows(log_probs: Tensor, exposure: Exposed, title: str) -> Tensor:
    """Of log-probabilities by node [S, …, N, C] those of the recipients, float64.

    Nodes that were no recipients then have rows of zeros, which are nobody's probabilities.
    """
    place = exposure.recipients
    kept = log_probs.to(place.device)[..., place, :].double()
    if not bool((kept.exp().sum(-1) < 1.5).all()):
        raise InputError(
            f"some of these recipients were not exposed when {title} was fitted; fit it on an "
            "exposure that holds them"
        )
    return kept


def check_table(
    fitted: FittedRepair, name: str, dtype: torch.dtype, *shape: int | None
) -> tuple[int, ...]:
    """The shape a member of a constant read from a file, once it is as asked for.

    Args:
        fitted: what was read.
        name: of the constant, which must be there.
        dtype: its type.
        shape: its axes after the members; None: any length.
    """
    if name not in fitted.constants:
        raise InputError(f"it is incomplete: it lacks {name}")
    value = fitted.constants[name]
    found = tuple(value.shape[1:])
    fits = len(found) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, found, strict=True)
    )
    if not fits or value.dtype != dtype or len(value) != fitted.num_members:
        wanted = tuple("any" if size is None else size for size in shape)
        raise InputError(f"{name} has shape {found} and type {value.dtype}, not {wanted}, {dtype}")
    return found
