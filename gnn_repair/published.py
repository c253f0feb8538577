"""The paper's published numbers, its thresholds, and its words; how nouns are counted."""

from __future__ import annotations

import functools
import json
from importlib import resources
from math import nan
from typing import Any, NamedTuple


@functools.cache
def published_numbers() -> dict[str, Any]:
    """``["tables"][table]["cells"][backbone][dataset]`` and ``["datasets"][dataset]``."""
    text = resources.files("gnn_repair").joinpath("paper.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def published_cell(table: str, backbone: str, dataset: str) -> float:
    """A number of the paper; NaN where it has none."""
    cells = published_numbers()["tables"].get(table, {}).get("cells", {})
    return float(cells.get(backbone, {}).get(dataset, nan))


# When a class counts as within reach and a coefficient as active: said once, used everywhere.

REACHABLE = 1e-7
"""γ above this is a strict win, as in the paper: below it, rounding could have made the win."""
ACTIVE = 1e-7
"""λ above this is in use, as in the paper."""
REALIZABLE = 1e-6
"""A shift is one that reweighting can make when some λ makes it this nearly, relative to the size
of the node's contributions: shifts are float32 numbers, seven digits long."""

DATASET_TITLES = {"pubmed": "PubMed"}
"""As the paper writes them, where that takes more than a capital."""


class BackboneWords(NamedTuple):
    """What a backbone is called, and its row of the exposure table."""

    title: str
    coefficient: str
    """α."""
    fixed: str
    """What β holds."""
    term: str
    """What one adjustable term is."""
    groups: int = 1
    """G: how many masses are kept."""


_BIASES = "convolution and classifier biases"
_ROOT = "root transform, neighbour-branch bias and classifier bias"
_STREAMS = "concatenated-stream and classifier biases"
_ATTENDED = (
    "α = final attention",
    "layer bias and classifier bias",
    "entry of the last layer's one head",
)
_SUMMED = "neighbour or self-loop"

BACKBONE_WORDS: dict[str, BackboneWords] = {
    "gcn": BackboneWords("GCN", "α = Â, the normalised adjacency", _BIASES, _SUMMED),
    "gat": BackboneWords("GAT", *_ATTENDED),
    "sage": BackboneWords("SAGE", "α = 1/deg", _ROOT, _SUMMED),
    "gatv2": BackboneWords("GATv2", *_ATTENDED),
    "graphconv": BackboneWords("GraphConv", "α = 1", _ROOT, _SUMMED),
    "sgc": BackboneWords("SGC", "α = Â²", "linear and classifier biases", "nonzero of Â²"),
    "mixhop": BackboneWords("MixHop", "α = Âᵖ", _STREAMS, "nonzero of Âᵖ, p = 0, 1, 2", 3),
    "h2gcn": BackboneWords(
        "H2GCN", "α = Pᵖ, the mean without self-loops", _STREAMS, "nonzero of Pᵖ, p = 0, 1, 2", 3
    ),
}
"""By name, in the paper's order; the classes take theirs from here."""
TITLES = {name: words.title for name, words in BACKBONE_WORDS.items()}
"""What backbones are called, by name."""


# How many of something ----------------------------------------------------------------------------


def plural(noun: str) -> str:
    """More than one of them; a node type that is called ``users`` is one already."""
    low = noun.lower()
    if len(low) > 2 and low.endswith("y") and low[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if low.endswith(("ss", "us", "x", "z", "ch", "sh")):
        return f"{noun}es"
    return noun if low.endswith("s") else f"{noun}s"


def count_of(count: int, noun: str) -> str:
    """Such as ``1 node`` and ``1,041 nodes``."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"
