"""Every number of the paper's protocol, and how to change one.

A protocol is a frozen tree of plain values. Its digest is part of every result's address, so
results of different settings never mix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gnn_repair.budget import (
    BATCH,
    BATCHED,
    BATCHES,
    CONTROL,
    LONG,
    REFIT,
    REWEIGHTING,
    SHORT,
    TRANSLATION,
    Budget,
    paper_batch_size,
)


@dataclass(frozen=True)
class BackboneProtocol:
    """How backbones are built and trained."""

    hidden: int = 128
    heads: int = 8
    dropout: float = 0.5
    seed: int = 0
    """Of initialisation and dropout, the same on every split."""
    short: Budget = SHORT
    """GCN, GAT and GraphSAGE."""
    long: Budget = LONG
    """The five added backbones."""

    def budget(self, own: Budget) -> Budget:
        """The budget that stands for a backbone's ``own`` one; a budget of one's own is kept."""
        if own == SHORT:
            return self.short
        return self.long if own == LONG else own


@dataclass(frozen=True)
class RepairProtocol:
    """How repairs and controls are built and trained."""

    hidden: int = 128
    """H, the width of the encoders and heads, and of the pooled set."""
    dropout: float = 0.2
    seed: int = 0
    reweighting: Budget = REWEIGHTING
    set_translation: Budget = TRANSLATION
    node_translation: Budget = CONTROL
    refit_head: Budget = REFIT
    smoothing_layers: int = 50
    """Propagation steps of correct-and-smooth, which is not from the paper."""


@dataclass(frozen=True)
class BatchProtocol:
    """Target nodes an update of a repair sees; full batch for all other backbones."""

    backbones: tuple[str, ...] = BATCHED
    size: int = BATCH
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(BATCHES))
    """Datasets with a size of their own."""

    def of(self, dataset: str, backbone: str) -> int | None:
        """The batch size of a case; None: all targets at once."""
        return paper_batch_size(
            dataset, backbone, backbones=self.backbones, size=self.size, sizes=self.sizes
        )


@dataclass(frozen=True)
class OracleProtocol:
    """When a class counts as reachable and a coefficient as active."""

    reachable_above: float = 1e-7
    """γ."""
    active_above: float = 1e-7
    """λ."""


@dataclass(frozen=True)
class Protocol:
    """All settings of a study."""

    backbones: BackboneProtocol = BackboneProtocol()
    repairs: RepairProtocol = RepairProtocol()
    batches: BatchProtocol = field(default_factory=BatchProtocol)
    oracle: OracleProtocol = OracleProtocol()
    version: int = 1
    """Raised when the meaning of a result changes without any number here doing so."""

    def settings(self) -> dict[str, Any]:
        """The tree as plain JSON values."""
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return tree

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for these settings."""
        return digest_of(self.settings())


def digest_of(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``settings``, cut to twelve digits."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


PAPER = Protocol()
"""The paper's own settings."""
