"""Senders of other kinds than the recipients, behind the nodes that a page numbers.

They have no class and no prediction of their own; a page names them by kind and number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gnn_repair.exposure.names import NodeNames
    from gnn_repair.reporting.evidence import Evidence


def with_senders(evidence: Evidence, names: NodeNames) -> Evidence:
    """The evidence with senders of other kinds numbered on from the last node, those used alone."""
    nodes = len(evidence.labels)
    own = names.own(nodes)
    foreign = np.unique(evidence.sources[evidence.sources >= own])
    moved = nodes + np.searchsorted(foreign, evidence.sources)
    nobody = np.full(len(foreign), -1)
    return replace(
        evidence,
        labels=np.concatenate([evidence.labels, nobody]),
        predictions=np.concatenate([evidence.predictions, nobody]),
        sources=np.where(evidence.sources < own, evidence.sources, moved),
        senders=tuple(names.sender(source) for source in foreign),
    )
