"""A tail rewritten in the few operations that bounds are known for.

Linear ones stay as they are. Of the others only three kinds remain: elementwise functions
(:class:`Activation`), products, and :class:`Root`, the length of a vector. Leaky ReLU and maxima
become ReLUs, log-sum-exp becomes softplus, and a normalisation is taken out by multiplying all that
follows with its length σ > 0, where what follows is positively homogeneous (ReLU, affine maps): the
sign of a margin is then that of σ times the margin. A softmax at the end keeps the order of the
classes and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnn_repair.exposure.tails.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    Constant,
    LayerNorm,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    Scale,
    Select,
    Softmax,
    TailGraph,
)

LINEAR = (Affine, Scale, Select, Constant, Add, Concatenate)
WIDEST_SOFTMAX = 16
"""A softmax over s channels becomes s² units: beyond this the bounds are slow and say little."""


@dataclass(frozen=True, eq=False)
class Root(Operation):
    """σ = max(√(Σ x² + offset), floor) over consecutive parts of ``size`` channels."""

    size: int
    offset: float
    floor: float

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts.square().sum(2) + self.offset).sqrt().clamp(min=self.floor)


@dataclass(frozen=True, eq=False)
class Lowered:
    """T, or σ T, from the aggregate on."""

    graph: TailGraph
    """Linear operations, Activation, Multiply and Root only."""
    scale: int | None
    """The value that holds σ [n, 1] where the outputs are σ times the logits."""
    squashed: bool
    """Whether a softmax at the end was left out: margins of its inputs share only their sign."""
    reason: str
    """Why no bound can be had, naming the operation; empty where all are known."""


class _NotHomogeneousError(Exception):
    """What follows a normalisation cannot be multiplied through."""


class _UnknownError(Exception):
    """An operation no bound is known for."""


def lower(tail: TailGraph) -> Lowered:
    """Rewrite a tail."""
    operations, squashed = _without_softmax(tail)
    norms = [op for op in operations if isinstance(op, LayerNorm | Normalize)]
    plain = TailGraph(tail.width, operations)
    try:
        if len(norms) == 1:
            try:
                return replace(_Lowering(plain, through=True).run(), squashed=squashed)
            except _NotHomogeneousError:
                pass
        return replace(_Lowering(plain, through=False).run(), squashed=squashed)
    except _UnknownError as error:
        return Lowered(plain, None, squashed, str(error))


def _without_softmax(tail: TailGraph) -> tuple[tuple[Operation, ...], bool]:
    operations, squashed = tail.operations, False
    while operations and isinstance(operations[-1], Softmax):
        last = operations[-1]
        # Several softmaxes side by side do not keep the order of all classes.
        if last.inputs != (len(operations) - 1,) or _width(tail, len(operations)) != last.size:
            break
        squashed = squashed or not last.log
        operations = operations[:-1]
    return operations, squashed


def _width(tail: TailGraph, value: int) -> int:
    """The width of a value, found by evaluating one node."""
    zeros = torch.zeros(1, tail.width, dtype=torch.float64)
    return tail.values(zeros, torch.zeros(1, dtype=torch.int64))[value].shape[1]


class _Lowering:
    """One walk over the operations, building the new ones."""

    def __init__(self, tail: TailGraph, through: bool) -> None:
        self.tail, self.through = tail, through
        self.made: list[Operation] = []
        self.place = [0]
        """Where each of the old values is among the new."""
        self.scaled = [False]
        """Whether it is there times σ."""
        self.root: int | None = None
        probe = torch.zeros(1, tail.width, dtype=torch.float64)
        values = tail.values(probe, torch.zeros(1, dtype=torch.int64))
        self.widths = [value.shape[1] for value in values]

    def run(self) -> Lowered:
        for number, operation in enumerate(self.tail.operations):
            rule = _RULES.get(type(operation))
            if rule is None:
                raise _UnknownError(f"no bound is known for the operation {operation.title}")
            scaled = any(self.scaled[i] for i in operation.inputs)
            self.place.append(rule(self, operation, scaled, self.widths[number + 1]))
            norm = isinstance(operation, LayerNorm | Normalize)
            self.scaled.append(scaled or (norm and self.through))
        scale = self.root if self.scaled[-1] else None
        if self.place[-1] != len(self.made):  # the last value must be the output
            self.add(Select((self.place[-1],), torch.arange(self.widths[-1])))
        return Lowered(TailGraph(self.tail.width, tuple(self.made)), scale, False, "")

    def add(self, operation: Operation) -> int:
        self.made.append(operation)
        return len(self.made)

    def times_root(self, factor: Tensor, width: int) -> int:
        """σ · factor, for a factor [d] or [N, d]."""
        assert self.root is not None
        spread = self.add(Select((self.root,), torch.zeros(width, dtype=torch.int64)))
        return self.add(Scale((spread,), factor, torch.zeros(width, dtype=torch.float64)))

    def at_scale(self, old: int, scaled: bool) -> int:
        """An old value, multiplied by σ where its fellow inputs are."""
        place = self.place[old]
        if self.scaled[old] or not scaled:
            return place
        source = self.made[place - 1] if place else None
        if isinstance(source, Constant):
            return self.times_root(source.value, self.widths[old])
        assert self.root is not None
        index = torch.zeros(self.widths[old], dtype=torch.int64)
        return self.add(Multiply((self.add(Select((self.root,), index)), place)))

    def apply(self, name: str, place: int) -> int:
        """An elementwise function of a new value."""
        return self.add(Activation((place,), name, torch.zeros((), dtype=torch.float64)))


def _affine(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    assert isinstance(op, Affine)
    place = self.place[op.inputs[0]]
    if not scaled:
        return self.add(replace(op, inputs=(place,)))
    zero = torch.zeros(width, dtype=torch.float64)
    return _plus_root(self, self.add(Affine((place,), op.weight, zero)), op.bias, width)


def _scale(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    assert isinstance(op, Scale)
    place = self.place[op.inputs[0]]
    if not scaled:
        return self.add(replace(op, inputs=(place,)))
    zero = torch.zeros(width, dtype=torch.float64)
    return _plus_root(self, self.add(Scale((place,), op.factor, zero)), op.shift, width)


def _plus_root(self: _Lowering, place: int, bias: Tensor, width: int) -> int:
    if not bool(bias.any()):
        return place
    return self.add(Add((place, self.times_root(bias, width)), (1.0, 1.0)))


def _select(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    return self.add(replace(op, inputs=(self.place[op.inputs[0]],)))


def _constant(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    return self.add(op)


def _joined(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    return self.add(replace(op, inputs=tuple(self.at_scale(i, scaled) for i in op.inputs)))


def _add(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    """A sum; with one input that is not constant it is a Scale, which costs nothing."""
    assert isinstance(op, Add)
    places = [self.at_scale(i, scaled) for i in op.inputs]
    terms = list(zip(places, op.factors, strict=True))
    moving = [t for t in terms if not (t[0] and isinstance(self.made[t[0] - 1], Constant))]
    if len(moving) != 1 or len(terms) == 1:
        return self.add(Add(tuple(places), op.factors))
    shift = torch.zeros(width, dtype=torch.float64)
    for place, factor in terms:
        source = self.made[place - 1] if place else None
        if isinstance(source, Constant):
            shift = shift + factor * source.value
    place, factor = moving[0]
    return self.add(Scale((place,), torch.full((width,), factor, dtype=torch.float64), shift))


def _multiply(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    if all(self.scaled[i] for i in op.inputs):
        raise _NotHomogeneousError
    return self.add(replace(op, inputs=tuple(self.place[i] for i in op.inputs)))


def _maximum(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    """max(x, y) = x + relu(y − x), one input after another."""
    places = [self.at_scale(i, scaled) for i in op.inputs]
    best = places[0]
    for other in places[1:]:
        gain = self.apply("relu", self.add(Add((other, best), (1.0, -1.0))))
        best = self.add(Add((best, gain), (1.0, 1.0)))
    return best


def _activation(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    assert isinstance(op, Activation)
    place = self.place[op.inputs[0]]
    if op.name == "leaky_relu":  # s x + (1 − s) relu(x)
        slope, zero = op.parameter.expand(width), torch.zeros(width, dtype=torch.float64)
        below = self.add(Scale((place,), slope, zero))
        above = self.add(Scale((self.apply("relu", place),), 1.0 - slope, zero))
        return self.add(Add((below, above), (1.0, 1.0)))
    if scaled and op.name != "relu":
        raise _NotHomogeneousError
    return self.add(replace(op, inputs=(place,)))


def _norm(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    assert isinstance(op, LayerNorm | Normalize)
    if scaled:
        raise _NotHomogeneousError
    vector, root = _root(self, op, width)
    if self.through:
        if width != op.size:
            raise _NotHomogeneousError
        self.root = root
        place = vector
    else:
        inverse = self.apply("reciprocal", root)
        spread = torch.arange(width) // op.size
        place = self.add(Multiply((self.add(Select((inverse,), spread)), vector)))
    if isinstance(op, Normalize):
        return place
    zero = torch.zeros(width, dtype=torch.float64)
    factor = op.weight * op.size**0.5
    if not self.through:
        return self.add(Scale((place,), factor, op.bias))
    return _plus_root(self, self.add(Scale((place,), factor, zero)), op.bias, width)


def _root(self: _Lowering, op: LayerNorm | Normalize, width: int) -> tuple[int, int]:
    """The vector whose length a normalisation divides by, and that length."""
    place = self.place[op.inputs[0]]
    if isinstance(op, Normalize):
        return place, self.add(Root((place,), op.size, 0.0, op.eps))
    part = torch.eye(op.size, dtype=torch.float64) - 1.0 / op.size
    centring = torch.block_diag(*[part / op.size**0.5] * (width // op.size))
    vector = self.add(Affine((place,), centring, torch.zeros(width, dtype=torch.float64)))
    return vector, self.add(Root((vector,), op.size, op.eps, 0.0))


def _softmax(self: _Lowering, op: Operation, scaled: bool, width: int) -> int:
    """log softmax_i = x_i − log Σ_j exp x_j, and softmax_i = sigmoid(x_i − log Σ_{j≠i} exp x_j):
    nothing overflows, and nothing is divided by."""
    assert isinstance(op, Softmax)
    if scaled:
        raise _NotHomogeneousError
    if op.size > WIDEST_SOFTMAX:
        raise _UnknownError(f"no bound is known for the operation {op.title} of {op.size} channels")
    place, size = self.place[op.inputs[0]], op.size
    if size == 1:
        value = torch.full((width,), 0.0 if op.log else 1.0, dtype=torch.float64)
        return self.add(Constant((), value))
    channel = torch.arange(width)
    if op.log:
        total = _log_sum(self, place, size, width // size)
        spread = self.add(Select((total,), channel // size))
        return self.add(Add((place, spread), (1.0, -1.0)))
    others = (channel[:, None] % size + torch.arange(1, size)) % size + channel[
        :, None
    ] // size * size
    rest = _log_sum(self, self.add(Select((place,), others.flatten())), size - 1, width)
    return self.apply("sigmoid", self.add(Add((place, rest), (1.0, -1.0))))


def _log_sum(self: _Lowering, place: int, size: int, parts: int) -> int:
    """log Σ exp over consecutive parts, pair by pair: x + softplus(y − x)."""
    while size > 1:
        half, start = size // 2, torch.arange(parts)[:, None] * size
        first, second = (
            self.add(Select((place,), (start + begin + torch.arange(half)).flatten()))
            for begin in (0, half)
        )
        gain = self.apply("softplus", self.add(Add((second, first), (1.0, -1.0))))
        joined = self.add(Add((first, gain), (1.0, 1.0)))
        if size % 2:
            last = self.add(Select((place,), (start + size - 1).flatten()))
            index = torch.cat(
                [
                    torch.arange(parts * half).view(parts, half),
                    parts * half + torch.arange(parts)[:, None],
                ],
                dim=1,
            )
            joined = self.add(Select((self.add(Concatenate((joined, last))),), index.flatten()))
        place, size = joined, half + size % 2
    return place


_Rule = Callable[[_Lowering, Operation, bool, int], int]
_RULES: dict[type[Operation], _Rule] = {
    Affine: _affine,
    Scale: _scale,
    Select: _select,
    Constant: _constant,
    Add: _add,
    Concatenate: _joined,
    Multiply: _multiply,
    Maximum: _maximum,
    Activation: _activation,
    LayerNorm: _norm,
    Normalize: _norm,
    Softmax: _softmax,
}
