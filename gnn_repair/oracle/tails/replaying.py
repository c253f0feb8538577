"""Margins of the model itself at many λ: few runs, since each node's logits hear only its own λ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.tables import Floats, Integers
from gnn_repair.oracle.tails.witness import worst


def replay_margins(
    exposure: Exposure, position: Integers, target: Integers, shares: Sequence[Floats]
) -> Floats:
    """[L]: the margin of ``target`` at recipient ``position`` with λ = shares[i] on its terms.

    The model runs as often as a recipient stands in ``position``; without a model its tail is
    evaluated instead.
    """
    aggregate = exposure.aggregate
    ends = aggregate.segments[:: aggregate.num_groups].cpu().numpy()
    alpha = aggregate.coefficients[0].double().cpu().numpy()
    found = np.empty(len(position))
    for chosen in _occurrences(position):
        full = alpha.copy()
        for i in chosen:
            full[ends[position[i]] : ends[position[i] + 1]] = shares[i]
        logits = model_logits(exposure, torch.from_numpy(full))
        rows = logits[torch.from_numpy(position[chosen])]
        found[chosen] = worst(rows, torch.from_numpy(target[chosen])).numpy()
    return found


def model_logits(exposure: Exposure, coefficients: Tensor) -> Tensor:
    """z(λ) at the recipients, [n, C] float64: the model's own, or its tail's without a model."""
    if exposure.replay is None:
        return exposure.logits(coefficients.unsqueeze(0))[0].cpu()
    with torch.no_grad():
        logits = exposure.replay(coefficients).detach().double().cpu()
    expected = (exposure.aggregate.num_nodes, exposure.frozen_logits.shape[2])
    if logits.shape != expected:
        raise InputError(
            f"replay returned logits of shape {list(logits.shape)} instead of {list(expected)}; "
            "expose the model again"
        )
    return logits[exposure.aggregate.recipients.cpu()]


def on_cpu(exposure: Exposure) -> Exposure:
    """The exposure where its bounds are computed; its replay runs wherever the model is."""
    if exposure.aggregate.recipients.device.type == "cpu":
        return exposure
    moved: Exposure = cast(Any, exposure).to("cpu")
    return moved


def _occurrences(position: Integers) -> list[Integers]:
    """LPs split so that no recipient stands twice in a part: first, second, … occurrences."""
    order = np.argsort(position, kind="stable")
    ordered = position[order]
    begin = np.append(True, ordered[1:] != ordered[:-1]) if len(order) else np.zeros(0, bool)
    starts = np.flatnonzero(begin)
    rank = np.empty(len(order), np.int64)
    counts = np.diff(np.append(starts, len(order)))
    rank[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return [np.flatnonzero(rank == k) for k in range(int(rank.max(initial=-1)) + 1)]
