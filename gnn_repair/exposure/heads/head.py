"""Heads as wholes: checked, in files, in words, and in fewer operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.operations import (
    FUNCTIONS,
    KINDS,
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    HeadGraph,
    Linear,
    Multiply,
    Opaque,
    Operation,
    Scale,
    Select,
    Softmax,
    needed_values,
    prune,
)
from gnn_repair.files import check_fields, check_tensor

FAULTS = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)
"""What PyTorch raises when operations and their constants do not fit together."""
BY_NAME: dict[str, type[Operation]] = {kind.__name__: kind for kind in KINDS}
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


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def check_head(head: HeadGraph, num_nodes: int, device: torch.device) -> int:
    """Check every operation on what those before it make of one node; how wide the last is.

    Raises :class:`InputError` naming the first operation that does not fit.
    """
    values = [torch.zeros(1, head.width, dtype=torch.float64, device=device)]
    node = torch.zeros(1, dtype=torch.long, device=device)
    for place, operation in enumerate(head.operations):
        title = f"operation {place} ({operation.title}) of the head"
        earlier = all(0 <= i <= place for i in operation.inputs)
        _require(earlier, f"{title} reads values {list(operation.inputs)} that come later")
        if isinstance(operation, Activation):
            words = f"an activation of the head is none of {', '.join(FUNCTIONS)}"
            _require(operation.name in FUNCTIONS, words)
        for name, constant in operation.constants():
            _check_constant(f"{name} of {title}", constant)
        for name, constant in operation.by_node().items():
            rows, of = len(constant), f"{name} of {title}"
            _require(rows == num_nodes, f"{of} has {rows} rows for {num_nodes} nodes")
        read = [values[i] for i in operation.inputs]
        try:
            fitting = operation.fits([value.shape[1] for value in read])
            made = operation.evaluate(read, node) if fitting else None
        except FAULTS as error:
            first = str(error).partition("\n")[0]
            raise InputError(f"{title} does not fit what it reads: {first}") from error
        usable = made is not None and made.shape[:1] == (1,) and made.dim() == 2
        _require(usable, f"{title} does not fit what it reads")
        values.append(made)  # type: ignore[arg-type]
    return values[-1].shape[1]


def _check_constant(title: str, constant: Tensor) -> None:
    if constant.is_floating_point():
        _require(constant.dtype == torch.float64, f"{title} is {constant.dtype}, not float64")
        _require(bool(torch.isfinite(constant).all()), f"{title} holds NaN or infinite values")


# In files -----------------------------------------------------------------------------------------


def write_head(head: HeadGraph, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A head as JSON can hold it; its constants go into ``tensors``."""
    written = []
    for place, operation in enumerate(head.operations):
        entry: dict[str, Any] = {"kind": type(operation).__name__, "inputs": list(operation.inputs)}
        for name, form in operation.FORM.items():
            if isinstance(form, tuple):
                tensors[f"head/{place}/{name}"] = getattr(operation, name)
            else:
                entry[name] = operation.setting(name, f"head/{place}/", tensors)
        written.append(entry)
    return {"width": head.width, "operations": written}


def read_head(entry: Any, tensors: dict[str, Tensor]) -> HeadGraph:
    """What :func:`write_head` wrote; its constants are taken out of ``tensors``."""
    check_fields(entry, {"width": int, "operations": list}, "head")
    operations = [
        _read(operation, f"head/{place}/", tensors)
        for place, operation in enumerate(entry["operations"])
    ]
    return HeadGraph(entry["width"], tuple(operations))


def _read(entry: Any, prefix: str, tensors: dict[str, Tensor]) -> Operation:
    kind = BY_NAME.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if kind is None:
        raise InputError(f"an operation of its head is {str(entry)[:60]!r}, which is none known")
    settings = {name: form for name, form in kind.FORM.items() if not isinstance(form, tuple)}
    plain = {name: list if isinstance(form, list) else form for name, form in settings.items()}
    check_fields(entry, {"kind": str, "inputs": list, **plain}, "operation")
    values: dict[str, Any] = {name: entry[name] for name in settings}
    for name, form in settings.items():
        if isinstance(form, list):
            numbered = {str(k): item for k, item in enumerate(entry[name])}
            check_fields(numbered, dict.fromkeys(numbered, form[0]), name)
    values["inputs"] = tuple(_whole(number) for number in entry["inputs"])
    for name, form in kind.FORM.items():
        if isinstance(form, tuple):
            values[name] = _taken(prefix + name, tensors, form)
    return kind.of_settings(values, tensors)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise InputError(f"an operation of its head reads value {str(number)[:40]!r}")
    return number


def _taken(name: str, tensors: dict[str, Tensor], form: Any) -> Tensor:
    """A tensor taken out of those that were read, once it is what it must be."""
    if name not in tensors:
        raise InputError(f"it lacks {name}")
    axes, types = form
    tensor = tensors.pop(name)
    check_tensor(name, tensor, tensor.dim() if tensor.dim() in axes else axes[0], types)
    return tensor


# In words -----------------------------------------------------------------------------------------


def kind_of(head: HeadGraph) -> str:
    """Which answers to expect: ``piecewise linear``, ``bounded`` or ``opaque``."""
    if any(isinstance(operation, Opaque) for operation in head.operations):
        return "opaque"
    # A softmax at the very end keeps the order of the classes.
    last = head.operations[-1:]
    body = head.operations[:-1] if last and isinstance(last[0], Softmax) else head.operations
    return "bounded" if any(operation.smooth for operation in body) else "piecewise linear"


def followed_by(head: HeadGraph) -> str:
    """The head's operations in a line, such as ``layer_norm, relu, affine``."""
    titles = [op.title for op in head.operations if not isinstance(op, Select | Constant)]
    counted = [(title, len(list(same))) for title, same in groupby(titles)]
    named = [title if count == 1 else f"{title} × {count}" for title, count in counted]
    more = len(named) - SHOWN
    return ", ".join(named[:SHOWN]) + (f" and {more} more steps" if more > 0 else "")


# In fewer operations ------------------------------------------------------------------------------
#
# Affine steps are joined, constants folded, leftovers dropped. Every rule rewrites one operation in
# terms of its producer's inputs. A producer that something else reads as well is left alone, so
# nothing is ever computed twice.

WIDEST = 1 << 22
"""Numbers in a matrix that joining may make, 32 MB; larger steps stay apart, since two thin
matrices are quicker than their wide product."""


def simplify(
    operations: Sequence[Operation], widths: Sequence[int], output: int
) -> list[Operation]:
    """An equivalent list whose last operation makes value number ``output`` of the given one.

    Args:
        operations: in order; value i + 1 is what operation i makes.
        widths: of every value, the aggregate's first.
        output: the number of the wanted value.
    """
    head = _Steps(list(operations), list(widths), output)
    head.drop_unneeded()
    number = 1
    while number <= len(head.operations):
        number += 0 if head.rewrite(number) else 1
    head.drop_unneeded()
    return head.operations


@dataclass
class _Steps:
    """Operations while they are rewritten."""

    operations: list[Operation]
    widths: list[int]
    output: int

    def drop_unneeded(self) -> None:
        """Keep what the output needs, renumbered."""
        self.operations, numbers = prune(self.operations, {self.output})
        self.widths = [self.widths[old] for old in numbers]
        self.output = numbers[self.output]

    def _made(self, value: int) -> Operation | None:
        """What makes a value; None for the aggregate."""
        return self.operations[value - 1] if value else None

    def _readers(self, value: int) -> int:
        """How often a value is read on the way to the output."""
        used = needed_values(self.operations, {self.output}) - {0}
        return sum(self.operations[number - 1].inputs.count(value) for number in used)

    def rewrite(self, number: int) -> bool:
        """Join an operation with its producer if a rule says how; whether it did."""
        operation = self.operations[number - 1]
        if isinstance(operation, Select) and self._is_whole(operation):
            self._read_instead(number, operation.inputs[0])
            return False
        joined: Operation | None = None
        if isinstance(operation, Add | Concatenate):
            # Sums and choices of plain channels stay what they are.
            if any(isinstance(self._made(i), Affine) for i in operation.inputs):
                joined = self._branches_of_one(operation)
        elif isinstance(operation, Multiply):
            joined = self._by_constant(operation)
        elif len(operation.inputs) == 1 and isinstance(operation, Linear):
            producer = self._made(operation.inputs[0])
            if isinstance(producer, Concatenate):
                joined = self._from_branch(operation, producer)
            elif isinstance(producer, Linear):
                joined = self._joined(operation, producer)
        if joined is not None:
            self.operations[number - 1] = joined
        return joined is not None

    def _by_constant(self, product: Multiply) -> Scale | None:
        """A product with a constant as a scale."""
        for number, other in (product.inputs, product.inputs[::-1]):
            producer = self._made(number)
            if isinstance(producer, Constant):
                return Scale((other,), producer.value, torch.zeros_like(producer.value))
        return None

    def _joined(self, after: Linear, before: Linear) -> Operation | None:
        """Two steps as one, where that is no more work."""
        # Choosing channels costs nothing, so that may be done more than once.
        if not (isinstance(before, Select | Constant) or self._readers(after.inputs[0]) == 1):
            return None
        if isinstance(before, Constant):
            return Constant((), _constant_through(after, [before.value]))
        if isinstance(after, Select) and isinstance(before, Select):
            return Select(before.inputs, before.index[after.index])
        if isinstance(after, Scale) and isinstance(before, Scale):
            shift = after.factor * before.shift + after.shift
            return Scale(before.inputs, after.factor * before.factor, shift)
        width = self.widths[before.inputs[0]] if before.inputs else 0
        if isinstance(after, Affine):
            return _matrix_after(after, before, width)
        repeats = isinstance(after, Select) and after.index.numel() > self.widths[after.inputs[0]]
        by_node = isinstance(after, Scale) and not _shared(after.factor)
        if not isinstance(before, Affine) or repeats or by_node:
            return None
        weight = after.linear([before.weight.t()], ALL).t().contiguous()
        return Affine(before.inputs, weight, _constant_through(after, [before.bias]))

    def _branches_of_one(self, operation: Add | Concatenate) -> Affine | None:
        """A sum or concatenation of affine maps of one value, as a single affine map."""
        makers = [self._made(number) for number in operation.inputs]
        moving = [
            None if isinstance(op, Constant) else self._as_affine(number)
            for op, number in zip(makers, operation.inputs, strict=True)
        ]
        sources = {part.inputs[0] for part in moving if part is not None}
        if len(sources) != 1:
            return None
        source, weights, biases = sources.pop(), list[Tensor](), list[Tensor]()
        for op, part in zip(makers, moving, strict=True):
            if isinstance(op, Constant):
                weights.append(op.value.new_zeros(self.widths[source], op.value.shape[-1]))
                biases.append(op.value)
            elif part is None:
                return None
            else:
                weights.append(part.weight.t())
                biases.append(part.bias)
        weight = operation.linear(weights, ALL).t().contiguous()
        return Affine((source,), weight, _constant_through(operation, biases))

    def _as_affine(self, number: int) -> Affine | None:
        """A value that nothing else reads as W x + b of its producer's input; or of itself."""
        operation, width = self._made(number), self.widths[number]
        if isinstance(operation, Affine | Scale) and self._readers(number) == 1:
            form = affine_form(operation, width)
            if form is not None:
                return form
        device = next((t.device for op in self.operations for _, t in op.constants()), None)
        whole = Select((number,), torch.arange(width, device=device))
        return affine_form(whole, width) if width * width <= WIDEST else None

    def _is_whole(self, select: Select) -> bool:
        order = torch.arange(self.widths[select.inputs[0]], device=select.index.device)
        return torch.equal(select.index, order)

    def _read_instead(self, number: int, other: int) -> None:
        self.operations = [
            replace(op, inputs=tuple(other if i == number else i for i in op.inputs))
            for op in self.operations
        ]
        self.output = other if self.output == number else self.output

    def _from_branch(self, operation: Linear, cat: Concatenate) -> Operation | None:
        """A choice within one branch of a concatenation, or a matrix of one whose branches are
        constants and affine maps of a single value."""
        if isinstance(operation, Select):
            start = 0
            for branch in cat.inputs:
                end = start + self.widths[branch]
                if bool(((operation.index >= start) & (operation.index < end)).all()):
                    return Select((branch,), operation.index - start)
                start = end
        if not isinstance(operation, Affine) or (whole := self._branches_of_one(cat)) is None:
            return None
        bias = _constant_through(operation, [whole.bias])
        return Affine(whole.inputs, operation.weight @ whole.weight, bias)


ALL = torch.zeros(0, dtype=torch.int64)
"""Stands for nodes where an operation's constants are shared by all of them."""


def _shared(constant: Tensor) -> bool:
    return constant.dim() == 1


def _constant_through(after: Linear, values: Sequence[Tensor]) -> Tensor:
    """An operation's value for constants, [d] or [N, d] by node."""
    held = [*values, *after.by_node().values()]
    rows = max((t.shape[0] for t in held if not _shared(t)), default=1)
    spread = [value.expand(rows, -1) for value in values]
    made = after.evaluate(spread, torch.arange(rows, device=values[0].device))
    return made if any(not _shared(t) for t in held) else made[0]


def _matrix_after(after: Affine, before: Linear, width: int) -> Affine | None:
    """W on what another step makes of a value [n, width], where that is no more work."""
    outputs, inputs = after.weight.shape
    shared = not before.SHIFT or _shared(getattr(before, before.SHIFT))
    cheap = {
        Select: width * outputs <= WIDEST,
        Scale: "factor" not in before.by_node() and (shared or outputs <= inputs),
        # Through a bottleneck the two steps are cheaper than their product.
        Affine: inputs >= min(outputs, width) and (shared or outputs <= inputs),
    }
    if not cheap.get(type(before), False):
        return None
    weight = before.pull(after.weight.unsqueeze(0), ALL[:1], [width])[0][0]
    bias = _constant_through(after, [getattr(before, before.SHIFT)]) if before.SHIFT else after.bias
    return Affine(before.inputs, weight, bias)


@dataclass(frozen=True, eq=False)
class ExtractedHead:
    """logits_v = T_v(W x_v + b_v), where x_v are the final aggregates side by side."""

    head: HeadGraph
    weight: Tensor
    """W [D, Σ widths of the sites], float64: the affine start of what follows."""
    bias: Tensor
    """b, [D] or [N, D]."""

    def aggregate(self, values: Tensor) -> Tensor:
        """W x + b of all nodes, [N, D] float64."""
        return values.double() @ self.weight.t() + self.bias


def affine_start(operations: list[Operation], width: int, device: torch.device) -> ExtractedHead:
    """Move the affine steps at the start of a head out of it, as long as they do not widen it.

    Contributions are then stored in as few channels as the first nonlinearity reads.
    """
    weight = torch.eye(width, dtype=torch.float64, device=device)
    bias = torch.zeros(width, dtype=torch.float64, device=device)
    while operations and sum(0 in operation.inputs for operation in operations) == 1:
        first = next(k for k, operation in enumerate(operations) if 0 in operation.inputs)
        step = affine_form(operations[first], weight.shape[0])
        if step is None or not 2 <= step.weight.shape[0] <= weight.shape[0]:
            break
        weight, bias = step.weight @ weight, bias @ step.weight.t() + step.bias
        operations = without(operations, first)
    if weight.shape[0] < 2:  # an exposure has at least two channels: the second one stays zero
        weight = torch.cat([weight, torch.zeros_like(weight)])
        bias = torch.nn.functional.pad(bias, (0, 1))
        first_alone = Select((0,), torch.zeros(1, dtype=torch.long, device=device))
        rest = [replace(op, inputs=tuple(i + 1 for i in op.inputs)) for op in operations]
        operations = [first_alone, *rest]
    return ExtractedHead(HeadGraph(weight.shape[0], tuple(operations)), weight, bias)


def affine_form(operation: Operation, width: int) -> Affine | None:
    """An operation on a value so wide as W x + b; None where it is not that for all nodes."""
    if isinstance(operation, Affine):
        return operation
    if isinstance(operation, Scale) and operation.factor.dim() == 1:
        return Affine(operation.inputs, torch.diag(operation.factor), operation.shift)
    if isinstance(operation, Select):
        identity = torch.eye(width, dtype=torch.float64, device=operation.index.device)
        rows = identity[operation.index]
        return Affine(operation.inputs, rows, rows.new_zeros(rows.shape[0]))
    return None


def without(operations: list[Operation], removed: int) -> list[Operation]:
    """The head without the operation that starts it; its readers read the aggregate instead."""

    def number(old: int) -> int:
        if old == removed + 1:
            return 0
        return old if old <= removed else old - 1

    rest = operations[:removed] + operations[removed + 1 :]
    return [replace(op, inputs=tuple(number(i) for i in op.inputs)) for op in rest]
