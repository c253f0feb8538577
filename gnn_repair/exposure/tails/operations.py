"""The operations a tail is made of, each on one flat vector a node.

Every value of a tail is [n, width]: a row for each of n nodes. Views, permutations and slices
become :class:`Select`, sums over parts of a row :class:`Affine`, so an operation never has to know
about shapes. Constants are shared by all nodes or *by node*, with a leading axis of the graph's N
nodes (skip connections, gates that no message of the last aggregation enters); ``nodes`` says which
rows of those belong to the values at hand. All numbers are float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One step of a tail: from values made earlier to the next one."""

    inputs: tuple[int, ...]
    """Numbers of the values read; 0 is the aggregate, i + 1 what operation i made."""

    @abstractmethod
    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        """The operation's value [n, width] from those of its inputs.

        Args:
            values: one [n, width] for each of ``inputs``.
            nodes: [n] int64, the graph node of each row.
        """

    @property
    def title(self) -> str:
        """What the operation is called in sentences."""
        return type(self).__name__.lower()

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors it holds, by name."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield field.name, value

    def to(self, device: str | torch.device) -> Operation:
        """The operation with its constants on another device."""
        moved: dict[str, Any] = {name: value.to(device) for name, value in self.constants()}
        return replace(self, **moved)


def _at(constant: Tensor, nodes: Tensor, shared: int) -> Tensor:
    """A constant's rows for these nodes, or the constant itself where all nodes share it."""
    return constant if constant.dim() == shared else constant[nodes]


@dataclass(frozen=True, eq=False)
class Affine(Operation):
    """y = W x + b."""

    weight: Tensor
    """[k, d]."""
    bias: Tensor
    """[k], or [N, k] by node."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return values[0] @ self.weight.t() + _at(self.bias, nodes, 1)


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """y = s ⊙ x + b: batch norm, added skip connections, gates that are fixed."""

    factor: Tensor
    """[d], or [N, d] by node."""
    shift: Tensor
    """[d], or [N, d] by node."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return values[0] * _at(self.factor, nodes, 1) + _at(self.shift, nodes, 1)


@dataclass(frozen=True, eq=False)
class Select(Operation):
    """y_i = x_{index_i}: slices, permutations, repetitions."""

    index: Tensor
    """[k] int64."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return values[0][:, self.index]


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    """A value that no message of the last aggregation enters (a branch of a concatenation)."""

    value: Tensor
    """[d], or [N, d] by node."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return _at(self.value, nodes, 1).expand(nodes.numel(), -1)


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """y = Σ_i s_i x_i over all inputs."""

    factors: tuple[float, ...]

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        total = self.factors[0] * values[0]
        for factor, value in zip(self.factors[1:], values[1:], strict=True):
            total = total + factor * value
        return total


@dataclass(frozen=True, eq=False)
class Concatenate(Operation):
    """Inputs side by side."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return torch.cat(list(values), dim=1)


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    """y = x ⊙ x′, both of them reached by messages (a gate and what it lets through)."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return values[0] * values[1]


@dataclass(frozen=True, eq=False)
class Maximum(Operation):
    """Elementwise maximum of all inputs (jumping knowledge by max, maxout)."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return torch.stack(list(values)).amax(0)


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, _: x.relu(),
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "elu": lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0))),
    "gelu": lambda x, _: functional.gelu(x),
    "gelu_tanh": lambda x, _: functional.gelu(x, approximate="tanh"),
    "silu": lambda x, _: functional.silu(x),
    "tanh": lambda x, _: x.tanh(),
    "sigmoid": lambda x, _: x.sigmoid(),
    "softplus": lambda x, _: torch.logaddexp(x, torch.zeros_like(x)),
    "square": lambda x, _: x.square(),
    "sqrt": lambda x, _: x.sqrt(),
    "exp": lambda x, _: x.exp(),
    "log": lambda x, _: x.log(),
    "reciprocal": lambda x, _: x.reciprocal(),
}
"""Elementwise functions of x and a parameter (slope of leaky ReLU and PReLU, α of ELU)."""


@dataclass(frozen=True, eq=False)
class Activation(Operation):
    """y = f(x), element by element."""

    name: str
    """Key of :data:`ACTIVATIONS`."""
    parameter: Tensor
    """[] or [d] (PReLU by channel); unused where the function has none."""

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](values[0], self.parameter)

    @property
    def title(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class LayerNorm(Operation):
    """y = (x − μ) / √(σ² + ε) ⊙ w + b over consecutive parts of ``size`` channels."""

    size: int
    weight: Tensor
    """[d]: ones where the layer has no weight."""
    bias: Tensor
    """[d]."""
    eps: float

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        normal = functional.layer_norm(parts, (self.size,), eps=self.eps)
        return normal.flatten(1) * self.weight + self.bias

    @property
    def title(self) -> str:
        return "layer_norm"


@dataclass(frozen=True, eq=False)
class Normalize(Operation):
    """y = x / max(‖x‖₂, ε) over consecutive parts of ``size`` channels."""

    size: int
    eps: float

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts / parts.norm(dim=2, keepdim=True).clamp(min=self.eps)).flatten(1)


@dataclass(frozen=True, eq=False)
class Softmax(Operation):
    """Softmax, or its logarithm, over consecutive parts of ``size`` channels."""

    size: int
    log: bool

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts.log_softmax(2) if self.log else parts.softmax(2)).flatten(1)

    @property
    def title(self) -> str:
        return "log_softmax" if self.log else "softmax"


@dataclass(frozen=True, eq=False)
class TailGraph:
    """T_v: from the aggregate a_v [D] to the logits [C], as operations in order."""

    width: int
    """D, the width of the aggregate."""
    operations: tuple[Operation, ...]
    """The last one makes the logits; an empty tail hands the aggregate through."""

    INPUT: ClassVar[int] = 0
    """The number of the aggregate among the values."""

    def values(self, aggregate: Tensor, nodes: Tensor) -> list[Tensor]:
        """Every value in order, the aggregate first.

        Args:
            aggregate: [n, D] float64.
            nodes: [n] int64, the graph node of each row.
        """
        values = [aggregate]
        for operation in self.operations:
            values.append(operation.evaluate([values[i] for i in operation.inputs], nodes))
        return values

    def __call__(self, aggregate: Tensor, nodes: Tensor) -> Tensor:
        """The logits [n, C] that follow from aggregates [n, D] at these nodes."""
        return self.values(aggregate, nodes)[-1]

    def to(self, device: str | torch.device) -> TailGraph:
        """The tail with its constants on another device."""
        return TailGraph(self.width, tuple(operation.to(device) for operation in self.operations))
