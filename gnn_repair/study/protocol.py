"""Every number of the paper's protocol, and how to change one.

A protocol is a frozen tree of plain values. Its digest stands for the *differences* from the
paper's protocol and is part of every result's address: results of different settings never mix,
and a further setting with its default leaves every address as it was.
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
    LADDER,
    LONG,
    REFIT,
    REWEIGHTING,
    SHORT,
    TRANSLATION,
    Budget,
    paper_batch_size,
)
from gnn_repair.study.limits import check_tree
from gnn_repair.thresholds import ACTIVE, REACHABLE


@dataclass(frozen=True)
class DataProtocol:
    """What the datasets' files leave open."""

    draw: str = "torch"
    """Whose generator draws the splits of Cora, Citeseer and PubMed: torch or numpy."""


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
    self_loops: str = "one"
    """Entries of a node with a self-loop of its own, where a convolution normalises or attends:
    one, or both that are listed."""
    zero_stream_biases: bool = True
    """Whether the biases of H2GCN's streams start at zero."""

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
    evidence_ladder: Budget = LADDER
    """Each rung of the evidence ladder, which is not from the paper."""
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

    reachable_above: float = REACHABLE
    """γ."""
    active_above: float = ACTIVE
    """λ."""


@dataclass(frozen=True)
class Protocol:
    """All settings of a study; checked when it is made."""

    data: DataProtocol = DataProtocol()
    backbones: BackboneProtocol = BackboneProtocol()
    repairs: RepairProtocol = RepairProtocol()
    batches: BatchProtocol = field(default_factory=BatchProtocol)
    oracle: OracleProtocol = OracleProtocol()
    version: int = 1
    """Raised when the meaning of all results changes without any number here doing so."""

    def __post_init__(self) -> None:
        check_tree(self)

    def settings(self) -> dict[str, Any]:
        """The tree as plain JSON values."""
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return tree

    def differences(self) -> dict[str, Any]:
        """What of the tree differs from the paper's."""
        return differences(self.settings())

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for the differences from the paper."""
        return digest_of(self.differences())


def differences(
    settings: Mapping[str, Any], paper: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part of a tree of settings that differs from the paper's.

    What the tree does not name is as in the paper; what the paper does not name is kept.
    """
    if paper is None:
        paper, settings = PAPER.settings(), _with_choices(settings)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        usual = paper.get(name)
        if isinstance(value, Mapping) and isinstance(usual, Mapping):
            below = differences(value, usual)
            # Only tables of names (batch sizes) may lack an entry that the paper has.
            gone = [key for key in usual if key not in value] if name == "sizes" else []
            below |= dict.fromkeys(gone)
            if below:
                found[name] = below
        elif name not in paper or value != usual:
            found[name] = value
    return found


def digest_of(tree: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``tree``, cut to twelve digits."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _with_choices(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tree with the choices it was run under before they could be made: the independent ones."""
    if "data" in settings:
        return settings
    independent = INDEPENDENT.settings()
    own = settings.get("backbones", {})
    chosen = {name: independent["backbones"][name] for name in ("self_loops", "zero_stream_biases")}
    backbones = {**chosen, **own} if isinstance(own, Mapping) else own
    return {**settings, "data": independent["data"], "backbones": backbones}


PAPER = Protocol()
"""The paper's own settings, as far as its text and its frozen models' figures identify them."""
INDEPENDENT = Protocol(
    data=DataProtocol(draw="numpy"),
    backbones=BackboneProtocol(self_loops="listed", zero_stream_biases=False),
)
"""The same with what the text leaves open chosen before any comparison with published figures."""
PROTOCOLS = {"paper": PAPER, "independent": INDEPENDENT}
"""Protocols with a name."""
