"""How each backbone's last aggregation is exposed, plain text, so that tables load no architecture.

A test holds every line to the class that it speaks of.
"""

from __future__ import annotations

from typing import NamedTuple


class ReadoutWords(NamedTuple):
    """A row of the exposure table."""

    term: str
    """What one adjustable term is."""
    coefficient: str
    """α."""
    groups: int
    """G: how many masses are kept."""
    fixed: str
    """What β holds."""


_BIASES = "convolution and classifier biases"
_ROOT = "root transform, neighbour-branch bias and classifier bias"
_ATTENDED = ReadoutWords(
    "entry of the last layer's one head", "α = final attention", 1, "layer bias and classifier bias"
)
_SUMMED = "neighbour or self-loop"

READOUTS: dict[str, ReadoutWords] = {
    "gcn": ReadoutWords(_SUMMED, "α = Â, the normalised adjacency", 1, _BIASES),
    "gat": _ATTENDED,
    "sage": ReadoutWords(_SUMMED, "α = 1/deg", 1, _ROOT),
    "gatv2": _ATTENDED,
    "graphconv": ReadoutWords(_SUMMED, "α = 1", 1, _ROOT),
    "sgc": ReadoutWords("nonzero of Â²", "α = Â²", 1, "linear and classifier biases"),
    "mixhop": ReadoutWords(
        "nonzero of Âᵖ, p = 0, 1, 2", "α = Âᵖ", 3, "concatenated-stream and classifier biases"
    ),
    "h2gcn": ReadoutWords(
        "nonzero of Pᵖ, p = 0, 1, 2",
        "α = Pᵖ, the mean without self-loops",
        3,
        "concatenated-stream and classifier biases",
    ),
}
"""By the backbone's name."""
