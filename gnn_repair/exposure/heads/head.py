"""Heads as wholes: checked, in files, in words, and in fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    Multiply,
    Opaque,
    Operation,
    Scale,
    Select,
    Softmax,
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
        known = all(0 <= i <= place for i in operation.inputs)
        _require(known, f"{title} reads values {list(operation.inputs)} that come later")
        if isinstance(operation, Activation):
            words = f"an activation of the head is none of {', '.join(FUNCTIONS)}"
            _require(operation.name in FUNCTIONS, words)
        for name, constant in operation.constants():
            _check_constant(name, f"{name} of {title}", constant, num_nodes)
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


def _check_constant(name: str, title: str, constant: Tensor, num_nodes: int) -> None:
    if not constant.is_floating_point():
        return
    _require(constant.dtype == torch.float64, f"{title} is {constant.dtype}, not float64")
    _require(bool(torch.isfinite(constant).all()), f"{title} holds NaN or infinite values")
    rows = constant.shape[0] if constant.dim() == 2 and name != "weight" else num_nodes
    _require(rows == num_nodes, f"{title} has {rows} rows for {num_nodes} nodes")


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

Operations = list[Operation]
Rule = Callable[[Operation, Operation], Operation | None]
"""(operation, producer of its only input) → the two in one, or None."""


def simplified(operations: Sequence[Operation], widths: Sequence[int], output: int) -> Operations:
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

    operations: Operations
    widths: list[int]
    output: int

    def drop_unneeded(self) -> None:
        """Keep what the output needs, renumbered."""
        wanted = self._needed()
        numbers = {old: new for new, old in enumerate(sorted(wanted | {0}))}
        kept = [self.operations[old - 1] for old in sorted(wanted - {0})]
        self.operations = [replace(op, inputs=tuple(numbers[i] for i in op.inputs)) for op in kept]
        self.widths = [self.widths[old] for old in sorted(wanted | {0})]
        self.output = numbers[self.output]

    def _needed(self) -> set[int]:
        """The numbers of the values that the output needs."""
        wanted = {self.output}
        for number in range(self.output, 0, -1):
            if number in wanted:
                wanted.update(self.operations[number - 1].inputs)
        return wanted

    def _readers(self, value: int) -> int:
        """How often a value is read on the way to the output."""
        needed = self._needed() - {0}
        return sum(self.operations[number - 1].inputs.count(value) for number in needed)

    def rewrite(self, number: int) -> bool:
        """Join an operation with its producer if a rule says how; whether it did."""
        operation = self.operations[number - 1]
        if isinstance(operation, Select) and self._is_whole(operation):
            self._read_instead(number, operation.inputs[0])
            return False
        joined: Operation | None
        if isinstance(operation, Add | Concatenate):
            joined = self._branches_of_one(operation) if self._any_matrix(operation) else None
        elif isinstance(operation, Multiply):
            joined = self._by_constant(operation)
        elif len(operation.inputs) != 1 or operation.inputs[0] == 0:
            joined = None
        elif isinstance(producer := self.operations[operation.inputs[0] - 1], Concatenate):
            joined = self._from_branch(operation, producer)
        else:
            joined = self._joined(operation, producer)
        if joined is not None:
            self.operations[number - 1] = joined
        return joined is not None

    def _by_constant(self, product: Multiply) -> Scale | None:
        """A product with a constant as a scale."""
        for number, other in (product.inputs, product.inputs[::-1]):
            producer = self.operations[number - 1] if number else None
            if isinstance(producer, Constant):
                return Scale((other,), producer.value, torch.zeros_like(producer.value))
        return None

    def _joined(self, operation: Operation, producer: Operation) -> Operation | None:
        if isinstance(operation, Affine) and isinstance(producer, Select):
            return self._affine_select(operation, producer)
        rule = RULES.get((type(operation), type(producer)))
        # Choosing channels costs nothing, so that may be done more than once.
        free = isinstance(producer, Select | Constant)
        if rule is None or not (free or self._readers(operation.inputs[0]) == 1):
            return None
        return rule(operation, producer)

    def _affine_select(self, affine: Affine, select: Select) -> Operation | None:
        """W on chosen channels as a matrix on all of them, where that is not much wider."""
        width = self.widths[select.inputs[0]]
        if width * affine.weight.shape[0] > WIDEST:
            return None
        weight = affine.weight.new_zeros(affine.weight.shape[0], width)
        weight.index_add_(1, select.index, affine.weight)
        return Affine(select.inputs, weight, affine.bias)

    def _branches_of_one(self, operation: Add | Concatenate) -> Affine | None:
        """A sum or concatenation of affine maps of one value, as a single affine map."""
        made = [self.operations[number - 1] if number else None for number in operation.inputs]
        parts = [
            None if isinstance(op, Constant) else self._as_affine(number)
            for op, number in zip(made, operation.inputs, strict=True)
        ]
        sources = {part.inputs[0] for part in parts if part is not None}
        fixed = [isinstance(op, Constant) for op in made]
        if len(sources) != 1 or any((p is None) != f for p, f in zip(parts, fixed, strict=True)):
            return None
        source = sources.pop()
        whole = [
            Affine((source,), self._nothing(source, op.value), op.value)
            if isinstance(op, Constant)
            else part
            for op, part in zip(made, parts, strict=True)
        ]
        factors = operation.factors if isinstance(operation, Add) else None
        return _together([part for part in whole if part is not None], factors)

    def _nothing(self, source: int, value: Tensor) -> Tensor:
        """The matrix that reads nothing from a value."""
        return value.new_zeros(value.shape[-1], self.widths[source])

    def _any_matrix(self, operation: Operation) -> bool:
        """Whether an input is a matrix; sums and choices of plain channels stay what they are."""
        return any(n > 0 and isinstance(self.operations[n - 1], Affine) for n in operation.inputs)

    def _as_affine(self, number: int) -> Affine | None:
        """A value that nothing else reads as W x + b of its producer's input; or of itself."""
        operation = self.operations[number - 1] if number else None
        alone = self._readers(number) == 1
        if isinstance(operation, Affine) and alone:
            return operation
        width = self.widths[number]
        if isinstance(operation, Scale) and _shared(operation.factor) and alone:
            return Affine(operation.inputs, torch.diag(operation.factor), operation.shift)
        if width > WIDEST:
            return None
        device = next((t.device for op in self.operations for _, t in op.constants()), None)
        eye = torch.eye(width, dtype=torch.float64, device=device)
        return Affine((number,), eye, eye.new_zeros(width))

    def _is_whole(self, select: Select) -> bool:
        order = torch.arange(self.widths[select.inputs[0]], device=select.index.device)
        return torch.equal(select.index, order)

    def _read_instead(self, number: int, other: int) -> None:
        self.operations = [
            replace(op, inputs=tuple(other if i == number else i for i in op.inputs))
            for op in self.operations
        ]
        self.output = other if self.output == number else self.output

    def _from_branch(self, operation: Operation, cat: Concatenate) -> Operation | None:
        sizes = [self.widths[i] for i in cat.inputs]
        if isinstance(operation, Select):
            return _select_branch(operation, cat, sizes)
        if isinstance(operation, Affine):
            whole = self._branches_of_one(cat)
            if whole is not None:
                bias = whole.bias @ operation.weight.t() + operation.bias
                return Affine(whole.inputs, operation.weight @ whole.weight, bias)
            made = [self.operations[i - 1] if i else None for i in cat.inputs]
            return _affine_branch(operation, cat, sizes, made)
        return None


def _together(parts: list[Affine], factors: Sequence[float] | None) -> Affine:
    """Affine maps of one value added up with factors, or side by side where there are none."""
    if factors is not None:
        weights = [factor * part.weight for factor, part in zip(factors, parts, strict=True)]
        biases = [factor * part.bias for factor, part in zip(factors, parts, strict=True)]
        return Affine(parts[0].inputs, sum(weights[1:], weights[0]), sum(biases[1:], biases[0]))
    nodes = max((part.bias.shape[0] for part in parts if part.bias.dim() == 2), default=None)
    biases = [part.bias if nodes is None else part.bias.expand(nodes, -1) for part in parts]
    weight = torch.cat([part.weight for part in parts])
    return Affine(parts[0].inputs, weight, torch.cat(biases, dim=-1))


def _shared(constant: Tensor) -> bool:
    return constant.dim() == 1


def _select_select(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Select) and isinstance(before, Select)
    return Select(before.inputs, before.index[after.index])


def _select_affine(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Select) and isinstance(before, Affine)
    if after.index.numel() > before.weight.shape[0]:  # repetition would only repeat work
        return None
    return Affine(before.inputs, before.weight[after.index], before.bias[..., after.index])


def _scale_scale(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Scale) and isinstance(before, Scale)
    factor, shift = after.factor * before.factor, after.factor * before.shift + after.shift
    return Scale(before.inputs, factor, shift)


def _scale_affine(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Scale) and isinstance(before, Affine)
    if not _shared(after.factor):
        return None
    bias = after.factor * before.bias + after.shift
    return Affine(before.inputs, after.factor.unsqueeze(1) * before.weight, bias)


def _affine_scale(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Affine) and isinstance(before, Scale)
    narrower = after.weight.shape[0] <= after.weight.shape[1]
    if not _shared(before.factor) or not (_shared(before.shift) or narrower):
        return None
    bias = before.shift @ after.weight.t() + after.bias
    return Affine(before.inputs, after.weight * before.factor, bias)


def _affine_affine(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Affine) and isinstance(before, Affine)
    outputs, inputs = after.weight.shape[0], before.weight.shape[1]
    # Through a bottleneck the two steps are cheaper than their product.
    if before.weight.shape[0] < min(outputs, inputs):
        return None
    if not _shared(before.bias) and outputs > before.weight.shape[0]:
        return None
    bias = before.bias @ after.weight.t() + after.bias
    return Affine(before.inputs, after.weight @ before.weight, bias)


def _select_constant(after: Operation, before: Operation) -> Operation | None:
    assert isinstance(after, Select) and isinstance(before, Constant)
    return Constant((), before.value[..., after.index])


def _select_branch(select: Select, cat: Concatenate, sizes: Sequence[int]) -> Operation | None:
    """A choice that stays within one branch of a concatenation."""
    start = 0
    for branch, size in zip(cat.inputs, sizes, strict=True):
        if bool(((select.index >= start) & (select.index < start + size)).all()):
            return Select((branch,), select.index - start)
        start += size
    return None


def _affine_branch(
    affine: Affine, cat: Concatenate, sizes: Sequence[int], made: Sequence[Operation | None]
) -> Operation | None:
    """W on a concatenation: the columns of constant branches go into the bias.

    What is left of the concatenation must be a single branch; otherwise it stays as it is.
    """
    moving = [k for k, op in enumerate(made) if not isinstance(op, Constant)]
    if len(moving) != 1:
        return None
    bias = affine.bias
    columns = affine.weight.split(list(sizes), dim=1)
    for weight, op in zip(columns, made, strict=True):
        if isinstance(op, Constant):
            bias = bias + op.value @ weight.t()
    return Affine((cat.inputs[moving[0]],), columns[moving[0]].contiguous(), bias)


RULES: dict[tuple[type[Operation], type[Operation]], Rule] = {
    (Select, Select): _select_select,
    (Select, Constant): _select_constant,
    (Select, Affine): _select_affine,
    (Scale, Scale): _scale_scale,
    (Scale, Affine): _scale_affine,
    (Affine, Scale): _affine_scale,
    (Affine, Affine): _affine_affine,
}


@dataclass(frozen=True, eq=False)
class Extracted:
    """logits_v = T_v(W x_v + b_v), where x_v are the final aggregates side by side."""

    head: HeadGraph
    weight: Tensor
    """W [D, Σ widths of the sites], float64: the affine start of what follows."""
    bias: Tensor
    """b, [D] or [N, D]."""

    def aggregate(self, values: Tensor) -> Tensor:
        """W x + b of all nodes, [N, D] float64."""
        return values.double() @ self.weight.t() + self.bias


def affine_start(operations: list[Operation], width: int, device: torch.device) -> Extracted:
    """Move the affine steps at the start of a head out of it, as long as they do not widen it.

    Contributions are then stored in as few channels as the first nonlinearity reads.
    """
    weight = torch.eye(width, dtype=torch.float64, device=device)
    bias = torch.zeros(width, dtype=torch.float64, device=device)
    while operations and sum(0 in operation.inputs for operation in operations) == 1:
        first = next(k for k, operation in enumerate(operations) if 0 in operation.inputs)
        step = _as_affine(operations[first], weight.shape[0])
        if step is None or not 2 <= step.weight.shape[0] <= weight.shape[0]:
            break
        weight, bias = step.weight @ weight, bias @ step.weight.t() + step.bias
        operations = without(operations, first)
    if weight.shape[0] < 2:  # an exposure has at least two channels: the second one stays zero
        weight = torch.cat([weight, torch.zeros_like(weight)])
        bias = torch.nn.functional.pad(bias, (0, 1))
        first_alone = Select((0,), torch.zeros(1, dtype=torch.long, device=device))
        operations = [first_alone, *_shifted(operations, 1)]
    return Extracted(HeadGraph(weight.shape[0], tuple(operations)), weight, bias)


def _as_affine(operation: Operation, width: int) -> Affine | None:
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


def _shifted(operations: list[Operation], by: int) -> list[Operation]:
    """The operations after ``by`` more have been put before them; 0 becomes the last of these."""
    return [replace(op, inputs=tuple(i + by for i in op.inputs)) for op in operations]
