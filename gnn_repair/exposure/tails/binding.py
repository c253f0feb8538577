"""Attaching a model again to an exposure that was read from a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure.exactness import EXACT

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


def bound(exposure: Exposure, model: Any, data: Any, settings: dict[str, Any]) -> Exposure:
    """The exposure with the replay of a model that gives the same mixture and the same logits."""
    from gnn_repair.exposure.from_model import expose

    fresh = expose(model, data, **{"outputs": exposure.outputs, **settings})
    if fresh.head is None:
        raise InputError("the model has no nonlinear head; bind the model that was exposed")
    device = exposure.recipients.device
    known = fresh.num_nodes == exposure.num_nodes
    here = fresh.restrict(exposure.recipients.to(fresh.recipients.device)) if known else None
    if here is None or not (
        torch.equal(here.segments.to(device), exposure.segments)
        and torch.equal(here.rows.to(device), exposure.rows)
    ):
        raise InputError(
            "the model sends other messages than the exposure holds; bind the model and the data "
            "that were exposed"
        )
    _check_logits(exposure, fresh, settings.get("tolerance"))
    return replace(exposure, replay=here.replay)


def _check_logits(exposure: Exposure, fresh: Exposure, tolerance: float | None) -> None:
    frozen = fresh.frozen_logits.to(exposure.frozen_logits.device)
    limit = tolerance or EXACT[fresh.coefficients.dtype]
    gap = (frozen - exposure.frozen_logits).abs() / frozen.abs().amax(2, keepdim=True).clamp(min=1)
    if frozen.shape != exposure.frozen_logits.shape or not float(gap.max()) <= limit:
        raise InputError(
            "the model's logits are not those of the exposure; bind the model that was exposed, "
            "with the parameters it had"
        )
