"""A head in words."""

from __future__ import annotations

from itertools import groupby

from gnn_repair.exposure.tails.opaque import Opaque
from gnn_repair.exposure.tails.operations import (
    Activation,
    Constant,
    LayerNorm,
    Multiply,
    Normalize,
    Select,
    Softmax,
    TailGraph,
)

PIECEWISE_LINEAR = ("relu", "leaky_relu")
ANSWERS = {
    "piecewise linear": "piecewise linear head: whether a class can win is decided exactly, up to "
    "the time given",
    "bounded": "smooth head: reweightings that let a class win are replayed on the model; that "
    "none does is proved by bounds where they suffice",
    "opaque": "a head that is not understood completely: reweightings that let a class win are "
    "replayed on the model; that none does cannot be proved",
}
SHOWN = 12
"""Operations named before the rest is counted."""


def kind_of(tail: TailGraph) -> str:
    """Which answers to expect: ``piecewise linear``, ``bounded`` or ``opaque``."""
    if any(isinstance(operation, Opaque) for operation in tail.operations):
        return "opaque"
    smooth = any(
        isinstance(op, LayerNorm | Normalize | Multiply)
        or (isinstance(op, Activation) and op.name not in PIECEWISE_LINEAR)
        # A softmax at the very end keeps the order of the classes.
        or (isinstance(op, Softmax) and op is not tail.operations[-1])
        for op in tail.operations
    )
    return "bounded" if smooth else "piecewise linear"


def followed_by(tail: TailGraph) -> str:
    """The tail's operations in a line, such as ``layer_norm, relu, affine``."""
    titles = [op.title for op in tail.operations if not isinstance(op, Select | Constant)]
    counted = [(title, len(list(same))) for title, same in groupby(titles)]
    named = [title if count == 1 else f"{title} × {count}" for title, count in counted]
    more = len(named) - SHOWN
    return ", ".join(named[:SHOWN]) + (f" and {more} more steps" if more > 0 else "")
