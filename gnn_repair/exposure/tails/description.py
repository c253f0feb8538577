"""A tailed exposure in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gnn_repair.exposure.description import counted_outputs
from gnn_repair.exposure.description import describe as describe_mixture
from gnn_repair.exposure.tails.checks import reconstruction
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

if TYPE_CHECKING:
    from gnn_repair.exposure.tails.tailed import TailedExposure

PIECEWISE_LINEAR = ("relu", "leaky_relu")
ANSWERS = {
    "piecewise linear": "piecewise linear tail: whether a class can win is decided exactly, up to "
    "the time given",
    "bounded": "smooth tail: reweightings that let a class win are replayed on the model; that "
    "none does is proved by bounds where they suffice",
    "opaque": "a tail that is not understood completely: reweightings that let a class win are "
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


def describe(exposure: TailedExposure) -> str:
    """What was exposed, what follows it and which answers to expect."""
    first, *lines = describe_mixture(exposure.aggregate).split("\n")
    channels = counted_outputs(exposure.aggregate)
    outputs = counted_outputs(exposure.aggregate, exposure.num_classes)
    middle = [
        line.replace(channels, outputs).replace(
            "fixed logits:", f"aggregate of {exposure.tail.width} channels; fixed:"
        )
        for line in lines
        if "reconstruction " not in line
    ]
    certified = f"  reconstruction {reconstruction(exposure):.1e}"
    if exposure.residual is not None:
        certified += f"; residual {exposure.residual:.1e} on the model run with reweighted messages"
    certified += "" if exposure.replay else "; not bound to its model (use bind)"
    head = f"{first}, followed by: {followed_by(exposure.tail)}"
    return "\n".join([head, *middle, f"  {ANSWERS[kind_of(exposure.tail)]}", certified])
