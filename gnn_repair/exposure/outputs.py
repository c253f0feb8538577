"""What a model's outputs are: rival classes, labels of their own, or plain values.

Of classes the largest logit wins, and only differences count. A label is there where its own logit
is positive; a value is what it is. For the last two a column of zeros is put before the outputs
while the model is exposed, the *anchor*: against it a shift common to all outputs shows, which for
classes is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.tails.operations import Affine, Select, TailGraph

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure, Replay

Outputs = Literal["classes", "labels", "values"]
OUTPUTS = ("classes", "labels", "values")
NOUNS = {"classes": "class", "labels": "label", "values": "value"}


def check_outputs(outputs: Any) -> None:
    """Raise InputError unless it names what outputs can be, or is None."""
    if outputs is not None and outputs not in OUTPUTS:
        raise InputError(f"outputs is {outputs!r}; choose 'classes', 'labels' or 'values'")


def infer_outputs(data: Any, columns: int, nodes: int) -> Outputs:
    """What the labels of data say that the outputs are; classes where they say nothing.

    Zeros and ones (and −1 for unknown), one column an output and not one of them a row, are labels;
    other real numbers are values.

    Args:
        data: the graph.
        columns: how many outputs the model has a node.
        nodes: N.
    """
    from gnn_repair.exposure.model_arguments import field  # needs PyG, which loads slowly

    y = field(data, "y")
    if not isinstance(y, Tensor) or y.is_complex() or y.shape[:1] != (nodes,) or not nodes:
        return "classes"
    known = y[~torch.isnan(y)] if y.is_floating_point() else y
    if y.dim() <= 2 and y.numel() == nodes:
        return _inferred_of_one(known, columns)
    if y.dim() != 2 or y.numel() != nodes * columns:
        return "classes"
    flags = bool(((known == 0) | (known == 1)).all())
    if not flags and bool((known == 0).any()) and bool((known == 1).any()):
        flags = bool(((known == 0) | (known == 1) | (known == -1)).all())  # −1: unknown
    if not flags:
        return "values" if y.is_floating_point() else "classes"
    return "classes" if bool((y.sum(1) == 1).all()) else "labels"


def _inferred_of_one(known: Tensor, columns: int) -> Outputs:
    """What one number a node says, of a model with so many outputs."""
    if known.is_floating_point() and bool((known != known.round()).any()):
        return "values"  # no class is called so
    # Whole numbers in a whole type are classes, even of a single logit: one against the rest.
    classes = columns > 1 or not known.is_floating_point()
    return "classes" if classes or bool(((known == 0) | (known == 1)).all()) else "values"


def require_outputs(exposure: Any, *wanted: str) -> None:
    """Raise InputError where the exposure's outputs are none of ``wanted``."""
    found = exposure.outputs
    if found in wanted:
        return
    advice = {
        "labels": "use solve, reach(exposure, y [N, K]) or value_range",
        "values": "use value_range",
        "classes": "expose the model with outputs='labels' or outputs='values'",
    }
    raise InputError(
        f"the exposure's outputs are {found}, and this is about {' or '.join(wanted)}; "
        + advice[found]
    )


def without_anchor(exposure: Exposure, outputs: Outputs) -> Exposure:
    """The exposure of the outputs themselves, the first column left out."""
    if exposure.head is not None:
        return _tail_without_anchor(exposure, outputs)
    cut = {
        name: getattr(exposure, name)[..., 1:].contiguous()
        for name in ("contributions", "fixed_logits", "frozen_logits")
    }
    return replace(exposure, outputs=outputs, **cut)


def _tail_without_anchor(exposure: Exposure, outputs: Outputs) -> Exposure:
    from gnn_repair.exposure.tails.logit_form import in_logits

    assert exposure.head is not None
    columns = torch.arange(1, exposure.num_classes, device=exposure.frozen_logits.device)
    cut = replace(
        exposure,
        outputs=outputs,
        head=extended(exposure.head, columns),
        frozen_logits=exposure.frozen_logits[..., 1:].contiguous(),
        replay=_columns_of(exposure.replay, columns),
    )
    return in_logits(cut) if outputs == "labels" else cut


def two_classes_in_logits(exposure: Exposure) -> Exposure:
    """The two classes (0, z) where the model gives one probability σ(z) a row.

    Of (0, σ(z)) the second class would always win; its user predicts it where σ(z) exceeds ½. One
    column of a softmax of two is the sigmoid of their difference.
    """
    from gnn_repair.exposure.tails import logit_form as form

    if exposure.head is None:
        return exposure
    second = torch.ones(1, dtype=torch.long, device=exposure.frozen_logits.device)
    logit = form.logit_tail(extended(exposure.head, second))
    if logit is None:
        return exposure
    aggregate = replace(exposure.aggregate, called=exposure.called + form.TAKEN_OFF)
    weight = exposure.frozen_logits.new_tensor([[0.0], [1.0]])
    beside_zero = Affine((len(logit.operations),), weight, torch.zeros_like(weight[:, 0]))
    tail = TailGraph(logit.width, (*logit.operations, beside_zero))
    if form.is_affine(tail):
        return form.folded(aggregate, tail, exposure.residual)
    nodes = torch.arange(exposure.num_nodes, device=exposure.frozen_logits.device)
    logits = tail(aggregate.frozen_logits[0], nodes).unsqueeze(0)
    replay = exposure.replay
    run = None if replay is None else _beside_zero(form.logit_of(replay))
    return aggregate.with_head(tail, logits, exposure.residual, run)


def _beside_zero(replay: Replay) -> Replay:
    def run(coefficients: Tensor) -> Tensor:
        logit = replay(coefficients)[:, 1]
        return torch.stack([torch.zeros_like(logit), logit], dim=1)

    return run


def extended(tail: TailGraph, columns: Tensor) -> TailGraph:
    """The tail whose outputs are some columns of what it gives, in as few steps as possible."""
    from gnn_repair.exposure.tails.simplify import simplified

    last = Select((len(tail.operations),), columns)
    operations = [*tail.operations, last]
    one = torch.zeros(1, tail.width, dtype=torch.float64, device=columns.device)
    shown = TailGraph(tail.width, tuple(operations))
    nodes = torch.zeros(1, dtype=torch.long, device=columns.device)
    widths = [value.shape[1] for value in shown.values(one, nodes)]
    return TailGraph(tail.width, tuple(simplified(operations, widths, len(operations))))


def _columns_of(replay: Replay | None, columns: Tensor) -> Replay | None:
    if replay is None:
        return None
    whole = replay
    return lambda coefficients: whole(coefficients)[:, columns]
