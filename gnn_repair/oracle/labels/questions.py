"""Which outputs are asked about, and on which side of the threshold each is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.truths import truths_for
from gnn_repair.exposure.value import Exposure
from gnn_repair.oracle.tables import Integers, as_whole, selection

FLIP = "flip"


@dataclass(frozen=True)
class Asked:
    """Members and recipients one by one, with the wanted side of every output of each."""

    member: Integers
    """[P]."""
    position: Integers
    """[P]: the recipient, as a position in ``exposure.recipients``."""
    outputs: Integers
    """[K']: the columns asked about, ascending."""
    wanted: NDArray[np.bool_]
    """[P, K']: above the threshold, or below."""
    known: NDArray[np.bool_]
    """[P, K']: where False nothing is asked."""

    @property
    def skipped(self) -> int:
        """Pairs of a recipient and an output without a known truth."""
        return int(self.known.size - np.count_nonzero(self.known))


def ask(exposure: Exposure, y: Any, nodes: Any, outputs: Any, threshold: float) -> Asked:
    """The questions that y asks.

    Args:
        exposure: S members, N nodes, K outputs.
        y: [N, K] the truth of every output, ``"flip"`` for the other side of what the model says,
            or one truth value for all.
        nodes: a mask [N] or [N, S], node numbers, or None for all.
        outputs: numbers of the outputs asked about, or None for all.
        threshold: what an output that is there exceeds.
    """
    member, position = selection(exposure, nodes)
    columns = columns_for(exposure.num_classes, outputs)
    node = exposure.recipients.cpu().numpy()[position]
    if isinstance(y, bool):
        wanted = np.full((len(node), len(columns)), y)
        return Asked(member, position, columns, wanted, np.ones_like(wanted))
    if isinstance(y, str):
        if y != FLIP:
            raise InputError(f'y is {y!r}; give truths [N, K] or "flip"')
        frozen = exposure.frozen_logits.cpu().numpy()[member, node]
        wanted = ~(frozen[:, columns] > threshold)
        return Asked(member, position, columns, wanted, np.ones_like(wanted))
    truths = truths_for(exposure, y).cpu().numpy()[node][:, columns]
    known = ~np.isnan(truths)
    if not known.any():
        raise InputError(f"no truth is known of the {len(node)} selected nodes; give them a label")
    return Asked(member, position, columns, truths == 1, known)


def columns_for(count: int, outputs: Any) -> Integers:
    """The numbers of some outputs of ``count``, ascending, each once."""
    if outputs is None:
        return np.arange(count)
    if isinstance(outputs, torch.Tensor | np.ndarray):
        outputs = outputs.tolist()
    one = outputs if isinstance(outputs, list | tuple | range | set) else [outputs]
    chosen = np.unique([as_whole(number, "an output's number") for number in one])
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= count:
        raise InputError(f"outputs are numbered 0..{count - 1}; {outputs!r:.60} is not among them")
    return chosen.astype(np.int64)
