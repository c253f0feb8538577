"""The tail as it grows while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.layout import Frame, Traced, constant_in, frame_of
from gnn_repair.exposure.tails.operations import Activation, Constant, Operation, Scale, Select

Operand = Traced | Tensor | float
"""What an operation reads: a tensor that messages reach, or a constant."""


class Unfollowed(Exception):  # noqa: N818  (a question to be answered another way, not a fault)
    """No translation for this case; the operation may still be kept as it is."""


@dataclass(frozen=True)
class Norm:
    """That a value holds the Euclidean norms of another's parts: what ``normalize`` divides by."""

    source: int
    size: int
    eps: float


class Builder:
    """Operations in order, each with the width of what it makes."""

    def __init__(self, width: int, num_nodes: int, device: torch.device) -> None:
        self.num_nodes, self.device = num_nodes, device
        self.operations: list[Operation] = []
        self.widths = [width]
        self.norms: dict[int, Norm] = {}

    def emit(self, operation: Operation, width: int) -> int:
        """Append an operation; the number of what it makes."""
        self.operations.append(operation)
        self.widths.append(width)
        return len(self.operations)

    def select(self, value: int, index: Tensor) -> int:
        """Some channels of a value; the value itself where all are taken in order."""
        whole = torch.arange(self.widths[value], device=self.device)
        if torch.equal(index, whole):
            return value
        for number, made in enumerate(self.operations, start=1):
            known = isinstance(made, Select) and made.inputs == (value,)
            if known and torch.equal(made.index, index):  # type: ignore[attr-defined]
                return number
        return self.emit(Select((value,), index.clone()), index.numel())

    def flat(self, traced: Traced) -> tuple[int, Frame]:
        """A value that holds the tensor's channels in order, and the frame they fill."""
        found = frame_of(traced, self.num_nodes)
        if found is None:
            raise Unfollowed("mixes the values of different nodes")
        frame, index = found
        return self.select(traced.value, index), frame

    def aligned(self, shape: Sequence[int], *operands: Operand) -> tuple[Frame, list[int | Tensor]]:
        """Operands broadcast to one shape: values by number, constants as flat tensors."""
        broadcast = [
            operand.viewed(lambda t: t.expand(tuple(shape)))
            if isinstance(operand, Traced)
            # Numbers are Python's own, so in double precision whatever the model computes in.
            else torch.as_tensor(operand, dtype=torch.float64, device=self.device)
            for operand in operands
        ]
        flats = [self.flat(part) if isinstance(part, Traced) else None for part in broadcast]
        frames = [flat[1] for flat in flats if flat is not None]
        if any(frame != frames[0] for frame in frames):
            raise Unfollowed("mixes the values of different nodes")
        filled: list[int | Tensor] = []
        for flat, part in zip(flats, broadcast, strict=True):
            filled.append(constant_in(part, frames[0]) if flat is None else flat[0])  # type: ignore[arg-type]
        return frames[0], filled

    def shown(self, value: int, frame: Frame) -> Traced:
        """The tensor of this frame that shows a value."""
        return frame.traced(value, self.device)

    def scaled(self, value: int, factor: Any, shift: Any) -> int:
        """s ⊙ x + b, constants given as numbers or flat tensors."""
        width = self.widths[value]
        factor, shift = (self._channels(constant, width) for constant in (factor, shift))
        return self.emit(Scale((value,), factor, shift), width)

    def applied(self, name: str, value: int, parameter: Any = 0.0) -> int:
        """An elementwise function of a value."""
        constant = torch.as_tensor(parameter, dtype=torch.float64, device=self.device)
        return self.emit(Activation((value,), name, constant), self.widths[value])

    def constant(self, value: Tensor, width: int) -> int:
        """A value that no message reaches."""
        return self.emit(Constant((), self._channels(value, width)), width)

    def _channels(self, constant: Any, width: int) -> Tensor:
        tensor = torch.as_tensor(constant, dtype=torch.float64, device=self.device)
        return tensor.expand(width).clone() if tensor.dim() == 0 else tensor
