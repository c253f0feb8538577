"""What a repair learns from, without the rest of a large graph."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_repair.exposure import Exposed, Exposure
from gnn_repair.exposure.focus import focused
from gnn_repair.repair.targets import Targets

LARGE = 1 << 20
"""Terms from which it pays to leave out those of other recipients; below, setting up is seconds at
most, and numbers stay the very same."""
SHARE = 0.5
"""Of all terms: where targets read more than this, numbering anew would cost what it saves."""


def around(exposure: Exposed, train: Targets, val: Targets) -> tuple[Exposed, Targets, Targets]:
    """The exposure of the targets alone where they read a small part of a large graph.

    A target's inputs are its own terms, so it sees the same as in the whole graph. Dropout goes by
    the numbers of terms, which are new ones: other channels are dropped, as with another seed.
    """
    if not isinstance(exposure, Exposure) or exposure.num_terms < LARGE:
        return exposure, train, val
    if train.truths is not None:  # labels by recipient, several of each
        return exposure, train, val
    asked = torch.zeros(exposure.num_recipients, dtype=torch.bool, device=train.positions.device)
    for targets in (train, val):
        asked[targets.positions] = True
    ends = exposure.segments[:: exposure.num_groups]
    if int(ends.diff()[asked].sum()) > SHARE * exposure.num_terms:
        return exposure, train, val
    chosen = asked.nonzero().view(-1)
    place = asked.cumsum(0) - 1

    def moved(targets: Targets) -> Targets:
        positions: Tensor = place[targets.positions]
        return targets._replace(positions=positions)

    return focused(exposure, chosen).exposure, moved(train), moved(val)
