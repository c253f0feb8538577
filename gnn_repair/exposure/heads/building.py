"""A head while the model runs: where the elements of its tensors sit among the head's flat values.

A tensor of the run holds, element by element, some channel of some node. Both are kept as index
tensors of the tensor's own shape, stored without repetition (stride 0), so every view, slice or
permutation of the tensor is the same view of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gnn_repair.exposure.heads.operations import (
    Activation,
    Affine,
    Constant,
    Normalize,
    Operation,
    Scale,
    Select,
)

MIXES = "mixes the values of different nodes"
MERGES = (
    "reads nodes and something else along one axis (heads, relations), which cannot be followed; "
    "keep the nodes on an axis of their own, as torch.stack or [N, heads, tokens, channels] do"
)
AS_REAL = "keep real and imaginary parts as real tensors"


@dataclass(frozen=True, eq=False)
class TracedTensor:
    """A tensor of the run that messages reach: which value of the head it shows, and how."""

    value: int
    """Number of the value among the head's."""
    nodes: Tensor
    """int64, the tensor's shape: the node every element belongs to."""
    channels: Tensor
    """int64, the tensor's shape: the channel of the value every element shows."""

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.nodes.shape

    def viewed(self, view: Callable[[Tensor], Tensor]) -> TracedTensor:
        """The tensor after an operation that only moves or repeats elements."""
        return TracedTensor(self.value, view(self.nodes), view(self.channels))


@dataclass(frozen=True, eq=False)
class Lost:
    """A tensor that messages reach in a way that cannot be followed node by node."""

    reason: str


@dataclass(frozen=True, eq=False)
class Places:
    """The nodes along an axis, where they are not all of them in order."""

    nodes: Tensor
    """[n] the node at every place; −1: none that is followed."""
    count: int
    """N."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Places) or self.nodes.shape != other.nodes.shape:
            return False
        return torch.equal(self.nodes, other.nodes)

    def __hash__(self) -> int:
        return hash(self.nodes.shape)

    def spread(self, rows: Tensor) -> Tensor:
        """Rows [n, …] of these places as rows of all nodes; zero where there is none."""
        out = rows.new_zeros(self.count, *rows.shape[1:])
        kept = self.nodes >= 0
        out[self.nodes[kept]] = rows[kept]
        return out


@dataclass(frozen=True)
class Frame:
    """A shape with one axis over the N nodes; everything else is a node's own channels."""

    shape: tuple[int, ...]
    axis: int
    outer: tuple[int, ...]
    """The tensor's own shape, in which nodes and heads may be one axis."""
    places: Places | None = None
    """Which nodes stand along the axis; None: all in order."""

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of one node's part."""
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def width(self) -> int:
        """Channels of one node."""
        return prod(self.rest)

    def traced(self, value: int, device: torch.device, first: int = 0) -> TracedTensor:
        """A tensor of this shape that shows a value's channels in order, from one on."""
        sizes = [1] * len(self.shape)
        sizes[self.axis] = self.shape[self.axis]
        count = torch.arange(self.shape[self.axis], device=device)
        nodes = (count if self.places is None else self.places.nodes).view(sizes).expand(self.shape)
        channels = torch.arange(first, first + self.width, device=device).view(self.rest)
        channels = channels.unsqueeze(self.axis).expand(self.shape)
        whole = TracedTensor(value, nodes, channels)
        return whole if self.shape == self.outer else whole.viewed(lambda t: t.reshape(self.outer))

    def last(self, size: int, outer: tuple[int, ...]) -> Frame:
        """The frame with another last axis."""
        return Frame((*self.shape[:-1], size), self.axis, outer, self.places)


def frame_of(traced: TracedTensor, num_nodes: int) -> tuple[Frame, Tensor] | None:
    """The frame of a tensor and the channel at every place of a node's part, flat.

    None where no axis runs over nodes, each at most once, so that nodes were mixed or repeated.
    """
    outer = tuple(traced.shape)
    for shape in _candidates(outer, num_nodes):
        nodes, channels = traced.nodes, traced.channels
        if shape != outer:
            nodes, channels = nodes.reshape(shape), channels.reshape(shape)
        for axis, size in enumerate(shape):
            if size == num_nodes and _runs_along(nodes, axis) and _constant_along(channels, axis):
                return Frame(shape, axis, outer), channels.select(axis, 0).reshape(-1)
    for axis in range(len(outer)):
        frame_of_some = _some_nodes(traced, axis, num_nodes)
        if frame_of_some is not None:
            return frame_of_some
    return None


def _some_nodes(traced: TracedTensor, axis: int, num_nodes: int) -> tuple[Frame, Tensor] | None:
    """The frame of some of the nodes, or of all in another order, along an axis."""
    moved = _without_repetition(traced.nodes, keep=axis).movedim(axis, 0)
    if moved.numel() == 0:
        return None
    nodes = moved.reshape(len(moved), -1)
    if bool((nodes != nodes[:, :1]).any()):
        return None
    nodes, channels = nodes[:, 0], traced.channels
    kept = nodes >= 0
    used = nodes[kept]
    if used.unique().numel() < used.numel():
        return None
    if used.numel() and not bool(kept.all()):  # rows of nobody alone stay as they are
        channels = channels.index_select(axis, kept.nonzero().view(-1))
    if not _constant_along(channels, axis):
        return None
    shape = tuple(traced.shape)
    return Frame(shape, axis, shape, Places(nodes, num_nodes)), channels.select(axis, 0).reshape(-1)


def _candidates(outer: tuple[int, ...], num_nodes: int) -> Iterator[tuple[int, ...]]:
    """The shape itself, then shapes in which an axis is split into nodes and heads."""
    yield outer
    for axis, size in enumerate(outer):
        if size > num_nodes and size % num_nodes == 0:
            parts = size // num_nodes
            yield (*outer[:axis], num_nodes, parts, *outer[axis + 1 :])
            yield (*outer[:axis], parts, num_nodes, *outer[axis + 1 :])


def _runs_along(nodes: Tensor, axis: int) -> bool:
    """Whether the axis counts the nodes and the others repeat them."""
    moved = _without_repetition(nodes, keep=axis).movedim(axis, 0)
    expected = torch.arange(nodes.shape[axis], device=nodes.device)
    return bool((moved == expected.view(-1, *[1] * (moved.dim() - 1))).all())


def _constant_along(channels: Tensor, axis: int) -> bool:
    distinct = _without_repetition(channels)
    return distinct.shape[axis] == 1 or bool((distinct == distinct.narrow(axis, 0, 1)).all())


def _without_repetition(index: Tensor, keep: int | None = None) -> Tensor:
    """The index with every repeated axis (stride 0) cut to one, an axis to keep excepted."""
    for axis in range(index.dim()):
        if index.stride(axis) == 0 and axis != keep and index.shape[axis] > 1:
            index = index.narrow(axis, 0, 1)
    return index


def constant_in(constant: Tensor, frame: Frame) -> Tensor:
    """A constant broadcast to a frame's outer shape as [width], or [N, width] by node; float64."""
    whole = constant.detach().to(torch.float64, copy=True).expand(frame.outer)
    whole = whole if frame.shape == frame.outer else whole.reshape(frame.shape)
    if whole.stride(frame.axis) == 0 or whole.shape[frame.axis] == 1:
        return whole.select(frame.axis, 0).reshape(-1).contiguous()
    by_node = whole.movedim(frame.axis, 0)
    # One channel axis stays a view, so that a gate [N, 1] is not stored once a channel.
    by_node = by_node if by_node.dim() == 2 else by_node.reshape(by_node.shape[0], -1)
    if frame.places is not None:
        return frame.places.spread(by_node)
    same = bool((by_node == by_node[:1]).all())
    return by_node[0].clone() if same else by_node


Operand = TracedTensor | Tensor | float
"""What an operation reads: a tensor that messages reach, or a constant."""


def traced_in(values: Any) -> list[TracedTensor]:
    """The tensors among arguments that messages reach."""
    leaves = tree_leaves(values, is_leaf=lambda leaf: isinstance(leaf, TracedTensor))
    return [leaf for leaf in leaves if isinstance(leaf, TracedTensor)]


class Untranslatable(Exception):  # noqa: N818  (a question to be answered another way, not a fault)
    """No translation for this case; the operation may still be kept as it is."""


class Builder:
    """Operations in order, each with the width of what it makes."""

    def __init__(self, width: int, num_nodes: int, device: torch.device) -> None:
        self.num_nodes, self.device = num_nodes, device
        self.operations: list[Operation] = []
        self.widths = [width]
        self.norms: dict[int, Normalize] = {}
        """By a value that holds the Euclidean norms of another's parts: what divides by them."""

    def emit(self, operation: Operation, width: int | None = None) -> int:
        """Append an operation; the number of what it makes. How wide that is may be told of one
        that would be run to find out."""
        self.operations.append(operation)
        widths = [self.widths[i] for i in operation.inputs]
        self.widths.append(operation.width(widths) if width is None else width)
        return len(self.operations)

    def maker(self, value: int) -> Operation | None:
        """The operation that makes a value; None of the aggregate."""
        return self.operations[value - 1] if value else None

    def select(self, value: int, index: Tensor) -> int:
        """Some channels of a value; the value itself where all are taken in order."""
        whole = torch.arange(self.widths[value], device=self.device)
        if torch.equal(index, whole):
            return value
        for number, operation in enumerate(self.operations, start=1):
            same_value = isinstance(operation, Select) and operation.inputs == (value,)
            if same_value and torch.equal(operation.index, index):  # type: ignore[attr-defined]
                return number
        return self.emit(Select((value,), index.clone()))

    def flat(self, traced: TracedTensor) -> tuple[int, Frame]:
        """A value that holds the tensor's channels in order, and the frame they fill."""
        layout = frame_of(traced, self.num_nodes)
        if layout is None:
            raise Untranslatable(MIXES)
        frame, index = layout
        return self.select(traced.value, index), frame

    def aligned(self, shape: Sequence[int], *operands: Operand) -> tuple[Frame, list[int | Tensor]]:
        """Operands broadcast to one shape: values by number, constants as flat tensors."""
        broadcast = [
            operand.viewed(lambda t: t.expand(tuple(shape)))
            if isinstance(operand, TracedTensor)
            # Numbers are Python's own, so in double precision whatever the model computes in.
            else torch.as_tensor(operand, dtype=torch.float64, device=self.device)
            for operand in operands
        ]
        flats = [self.flat(part) if isinstance(part, TracedTensor) else None for part in broadcast]
        frames = [flat[1] for flat in flats if flat is not None]
        if any(frame != frames[0] for frame in frames):
            raise Untranslatable(MIXES)
        filled: list[int | Tensor] = []
        for flat, part in zip(flats, broadcast, strict=True):
            filled.append(constant_in(part, frames[0]) if flat is None else flat[0])  # type: ignore[arg-type]
        return frames[0], filled

    def shown(self, value: int, frame: Frame) -> TracedTensor:
        """The tensor of this frame that shows a value."""
        return frame.traced(value, self.device)

    def scaled(self, value: int, factor: Any, shift: Any) -> int:
        """s ⊙ x + b, constants given as numbers or flat tensors."""
        width = self.widths[value]

        def by_channel(constant: Any) -> Tensor:
            tensor = torch.as_tensor(constant, dtype=torch.float64, device=self.device)
            return tensor.expand(width).clone() if tensor.dim() == 0 else tensor

        return self.emit(Scale((value,), by_channel(factor), by_channel(shift)))

    def eye(self, size: int) -> Tensor:
        """The unit matrix."""
        return torch.eye(size, dtype=torch.float64, device=self.device)

    def affine(self, value: int, weight: Tensor) -> int:
        """W x."""
        bias = weight.new_zeros(weight.shape[0])
        return self.emit(Affine((value,), weight.contiguous(), bias))

    def applied(self, name: str, value: int, parameter: Any = 0.0) -> int:
        """An elementwise function of a value."""
        constant = torch.as_tensor(parameter, dtype=torch.float64, device=self.device)
        return self.emit(Activation((value,), name, constant))

    def constant(self, value: Tensor) -> int:
        """A value that no message reaches, [d] or [N, d] by node."""
        return self.emit(Constant((), value))
