"""Reading one row of logits per node out of whatever a model returns, and comparing logits.

For labels and values a column of zeros is put before the outputs while the model is exposed, the
*anchor*: against it a shift common to all outputs shows, which for classes is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.checks import Outputs
from gnn_repair.exposure.data import field, field_names, infer_outputs
from gnn_repair.exposure.heads import logit_form as form
from gnn_repair.exposure.heads.head import simplified
from gnn_repair.exposure.heads.operations import Affine, HeadGraph, Select
from gnn_repair.exposure.state import dense_parts

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure, Replay


LOGITS = ("logits", "logit", "y_pred", "scores")
"""Names of an output that say what it is."""
TWO_CLASSES = "as the two classes (0, z)"
"""Said of a model's call where it gives one logit per row."""
NAMED = "pass forward=lambda model, data: ... that returns the logits"


@dataclass(frozen=True)
class Reading:
    """Where in a model's output the logits are, and in which form."""

    place: Any = None
    """The key of the output in a tuple or dict; None: the output itself."""
    binary: bool = False
    """Whether a zero stands before the outputs: one logit z a node as the two classes (0, z), or
    labels and values beside their anchor (:mod:`gnn_repair.exposure.checks`)."""
    outputs: Outputs = "classes"
    single: bool = False
    """Whether the numbers of the only row come without an axis for rows."""
    text: str = ""
    """What was read, in words that follow the call."""

    def __call__(self, output: Any) -> Tensor:
        """The logits [N, C]."""
        inner = output if isinstance(output, tuple | list) else _fields(output)
        tensor: Tensor = output if self.place is None else inner[self.place]
        tensor = tensor.reshape(1, -1) if self.single else tensor
        return two_classes(tensor) if self.binary else tensor

    def finished(self, exposure: Exposure) -> Exposure:
        """The exposure of what was read, from that of what this gives."""
        if self.outputs != "classes":
            return without_anchor(exposure, self.outputs)
        return two_classes_in_logits(exposure) if self.binary else exposure


def two_classes(logit: Tensor) -> Tensor:
    """(0, z) from z [N] or [N, K]: softmax of (0, z) gives the sigmoid of a single z."""
    columns = logit.reshape(len(logit), -1)
    return torch.cat([torch.zeros_like(columns[:, :1]), columns], dim=1)


def graphs_told(data: Any, output: Any, nodes: int | None) -> int | None:
    """How many graphs an output has rows for; None where it speaks of nodes.

    Where it speaks of both (logits of graphs beside embeddings of nodes), labels decide, and
    without labels the graphs that data says it has.
    """
    rows = [
        len(value)
        for _, value in tensors_of(output)
        if value.is_floating_point() and value.dim() in (1, 2)
    ]
    known, y = _graphs_of(data), field(data, "y")
    if nodes is not None and known in (None, 1) and _is_of_one(output, nodes):
        return 1
    if nodes is None or not rows:
        return None
    if nodes in rows:
        labelled = len(y) if isinstance(y, Tensor) and y.dim() else known
        told = labelled if labelled in rows and labelled in (known, 1) else None
        return None if told == nodes else told
    return known if known in rows else rows[0]


def _is_of_one(output: Any, nodes: int) -> bool:
    """Whether an output is the numbers of a single graph, without an axis for graphs."""
    numbers = isinstance(output, Tensor) and output.is_floating_point()
    return numbers and output.dim() < 2 and output.numel() not in (0, nodes)


def _graphs_of(data: Any) -> int | None:
    """How many graphs data says it has."""
    known, batch = field(data, "num_graphs"), field(data, "batch")
    if isinstance(known, int):
        return known
    return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else None


def read_output(
    output: Any,
    nodes: int | None,
    classes: int | None = None,
    outputs: Outputs | None = None,
    data: Any = None,
    noun: str = "node",
) -> Reading:
    """Find the logits in a model's output.

    Of several tensors with a row per node they are the one that is called so, else the only one
    with a column a class.

    Args:
        output: what the model returned.
        nodes: how many nodes there are, if known.
        classes: how many classes data has, if known.
        outputs: what they are; what the labels of ``data`` say where None.
        data: the graph.
        noun: what rows are of.
    """
    found = [(key, value) for key, value in tensors_of(output) if value.is_floating_point()]
    if not found:
        raise InputError(
            f"the model returns {_kind(output)} instead of a tensor of logits; {NAMED}"
        )
    nodes = nodes or (found[0][1].shape[0] if found[0][1].dim() else 0)
    single = nodes == 1 and isinstance(output, Tensor) and output.dim() < 2
    if single:
        found = [(None, found[0][1].reshape(1, -1))]
    rows = [(k, v) for k, v in found if v.dim() in (1, 2) and v.shape[0] == nodes]
    if not rows:
        shape = list(found[0][1].shape)
        raise ExposureRefused(
            f"the model returns a tensor of shape {shape} for {nodes} nodes, and an exposure needs "
            "one row of logits per node, or one per graph; where its forward keeps some of them, "
            "such as out[:batch_size] or out[mask], pass a forward= that returns all rows"
        )
    wide = [(k, v) for k, v in rows if v.dim() == 2 and v.shape[1] > 1]
    chosen = [(k, v) for k, v in wide if k in LOGITS] or wide or rows
    if len(chosen) > 1 and classes is not None:
        chosen = [(k, v) for k, v in chosen if v.shape[-1] == classes] or chosen
    chosen = _without_softmaxes(chosen)
    if len(chosen) > 1:
        listed = ", ".join(f"{_named(k)} {list(v.shape)}" for k, v in chosen)
        raise InputError(
            f"the model returns several tensors with a row per {noun}: {listed}; "
            "pass forward=lambda model, data: ... that returns the logits among them"
        )
    key, logits = chosen[0]
    columns = logits.shape[1] if logits.dim() == 2 else 1
    kind = outputs or infer_outputs(data, columns, nodes)
    anchored = not wide or kind != "classes"
    words = _words(output, key, not wide, kind, outputs is None)
    return Reading(key, anchored, kind, single, words)


SAME = 1e-4
"""How far a (log-)softmax may be from that of the logits beside it: above what float32 rounds,
below any other output by chance."""


def _without_softmaxes(found: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """Of logits and their own softmax or log_softmax, which say the same, the logits alone."""
    for key, logits in found:
        if logits.dim() != 2 or not bool(torch.isfinite(logits).all()):
            continue
        made = (logits.log_softmax(1), logits.softmax(1))
        others = [(k, v) for k, v in found if k != key]
        if others and all(any(_close(v, one) for one in made) for _, v in others):
            return [(key, logits)]
    return found


def _close(left: Tensor, right: Tensor) -> bool:
    same = left.shape == right.shape
    return same and torch.allclose(left.to(right.dtype), right, rtol=SAME, atol=SAME)


def tensors_of(output: Any) -> Iterator[tuple[Any, Tensor]]:
    """The tensors at the top of an output and their keys."""
    if isinstance(output, Tensor):
        yield None, output
    elif isinstance(output, tuple | list):
        yield from ((k, v) for k, v in enumerate(output) if isinstance(v, Tensor))
    else:
        yield from ((k, v) for k, v in _fields(output).items() if isinstance(v, Tensor))


def _fields(output: Any) -> Mapping[Any, Any]:
    """What a mapping or a dataclass holds by name; empty for anything else."""
    if isinstance(output, Mapping):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return {one.name: getattr(output, one.name) for one in fields(output)}
    return {}


def _kind(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{output.dtype} (predictions have no margins)"
    return type(output).__name__


def _named(key: Any) -> str:
    return f"output {key!r}"


def _words(output: Any, key: Any, binary: bool, kind: str, inferred: bool) -> str:
    count = len(output) if isinstance(output, tuple | list) else len(_fields(output))
    text = "" if key is None else f"; logits are {_named(key)} of its {count}"
    if kind != "classes":
        return f"{text}; its outputs are {kind}" + ", as data.y says" * inferred
    return text + (f"; its one logit z a node {TWO_CLASSES}" if binary else "")


def check_numbers(logits: Tensor, model: nn.Module, data: Any) -> None:
    """Raise unless the logits are finite and precise; the message names what is not."""
    if logits.dtype not in (torch.float32, torch.float64):
        held = {one.dtype for one in model.parameters() if one.is_floating_point()}
        if held <= {torch.float32, torch.float64} and held:
            raise InputError(
                f"the model's weights are {_dtypes(held)} but its logits {logits.dtype}, as under "
                "torch.autocast; take the autocast out of its forward to have it exposed"
            )
        raise InputError(
            f"the model computes in {logits.dtype}; convert it with model.float(), and its data "
            "with data.x = data.x.float()"
        )
    if bool(torch.isfinite(logits).all()):
        return
    what = "the model's logits hold NaN or infinite values"
    weights = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in weights:
        if _broken(tensor):
            raise InputError(f"{what}, and so does its weight `{name}`; train or load it again")
    for name in field_names(data):
        value = field(data, name)
        if isinstance(value, Tensor) and _broken(value):
            raise InputError(f"{what}, and so does data.{name}; mend the data")
    raise InputError(
        f"{what} though its weights and data are finite: it overflows {logits.dtype}, or divides "
        "by zero; try model.double() on double data, or scale the features"
    )


def _dtypes(held: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(one) for one in held))


def _broken(tensor: Tensor) -> bool:
    values = dense_parts(tensor)[-1]
    return values.is_floating_point() and not bool(torch.isfinite(values).all())


def without_anchor(exposure: Exposure, outputs: Outputs) -> Exposure:
    """The exposure of the outputs themselves, the first column left out."""
    if exposure.head is not None:
        return _head_without_anchor(exposure, outputs)
    cut = {
        name: getattr(exposure, name)[..., 1:].contiguous()
        for name in ("contributions", "fixed_logits", "frozen_logits")
    }
    return replace(exposure, outputs=outputs, **cut)


def _head_without_anchor(exposure: Exposure, outputs: Outputs) -> Exposure:
    assert exposure.head is not None
    columns = torch.arange(1, exposure.num_classes, device=exposure.frozen_logits.device)
    cut = replace(
        exposure,
        outputs=outputs,
        head=extended(exposure.head, columns),
        frozen_logits=exposure.frozen_logits[..., 1:].contiguous(),
        replay=_columns_of(exposure.replay, columns),
    )
    return form.in_logits(cut) if outputs == "labels" else cut


def two_classes_in_logits(exposure: Exposure) -> Exposure:
    """The two classes (0, z) where the model gives one probability σ(z) a row.

    Of (0, σ(z)) the second class would always win; its user predicts it where σ(z) exceeds ½. One
    column of a softmax of two is the sigmoid of their difference.
    """
    if exposure.head is None:
        return exposure
    second = torch.ones(1, dtype=torch.long, device=exposure.frozen_logits.device)
    logit = form.logit_head(extended(exposure.head, second))
    if logit is None:
        return exposure
    aggregate = replace(exposure.aggregate, called=exposure.called + form.TAKEN_OFF)
    weight = exposure.frozen_logits.new_tensor([[0.0], [1.0]])
    beside_zero = Affine((len(logit.operations),), weight, torch.zeros_like(weight[:, 0]))
    head = HeadGraph(logit.width, (*logit.operations, beside_zero))
    if form.is_affine(head):
        return form.folded(aggregate, head, exposure.residual)
    nodes = torch.arange(exposure.num_nodes, device=exposure.frozen_logits.device)
    logits = head(aggregate.frozen_logits[0], nodes).unsqueeze(0)
    replay = exposure.replay
    run = None if replay is None else _beside_zero(form.logit_of(replay))
    return aggregate.with_head(head, logits, exposure.residual, run)


def _beside_zero(replay: Replay) -> Replay:
    def run(coefficients: Tensor) -> Tensor:
        logit = replay(coefficients)[:, 1]
        return torch.stack([torch.zeros_like(logit), logit], dim=1)

    return run


def extended(head: HeadGraph, columns: Tensor) -> HeadGraph:
    """The head whose outputs are some columns of what it gives, in as few steps as possible."""
    last = Select((len(head.operations),), columns)
    operations = [*head.operations, last]
    one = torch.zeros(1, head.width, dtype=torch.float64, device=columns.device)
    shown = HeadGraph(head.width, tuple(operations))
    nodes = torch.zeros(1, dtype=torch.long, device=columns.device)
    widths = [value.shape[1] for value in shown.values(one, nodes)]
    return HeadGraph(head.width, tuple(simplified(operations, widths, len(operations))))


def _columns_of(replay: Replay | None, columns: Tensor) -> Replay | None:
    if replay is None:
        return None
    whole = replay
    return lambda coefficients: whole(coefficients)[:, columns]
