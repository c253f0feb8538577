"""The operations a nonlinear head is made of: everything about one stands in its class.

Every value of a head is [n, width]: a row for each of n nodes. Views, permutations and slices
become :class:`Select`, sums over parts of a row :class:`Affine`, so an operation never has to know
about shapes. Constants are shared by all nodes or *by node*, with a leading axis of the graph's N
nodes (skip connections, gates that no message of the last aggregation enters); ``nodes`` says which
rows of those belong to the values at hand. All numbers are float64.

An operation says how it is evaluated, what it holds (which is what files hold), what it must be
given and what it is called. Of a :class:`Linear` one the matrix gives everything else: intervals,
what the sums behind a value come to, and how coefficients of its value become those of its inputs.
A :class:`Curved` one knows lines above and below itself over a box. All others are rewritten in
terms of these by ``lowered``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from gnn_repair.errors import InputError
from gnn_repair.files import check_fields

ROUNDING = 2.0**-50
"""What an addition may be wrong by, relative to the magnitudes added: four times the unit roundoff
of float64, for the sums of a product and of masses on the way. Bounds are widened by this times the
number of terms of a sum times the magnitudes summed."""
TIE = 1e-9
"""Planes closer than this, relative to their values, count as equally tight."""
WIDEST_SOFTMAX = 16
"""A softmax over s channels becomes s² units: beyond this the bounds are slow and say little."""
DOUBLE, WHOLE = (torch.float64,), (torch.int64,)
Form = dict[str, Any]
"""What an operation holds beside its inputs, by name: axes and types of a tensor, the type of a
setting, or a list with the type of a list's entries."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Where a value lies, [B, k] each."""

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """The centre."""
        return (self.low + self.high) / 2

    @property
    def largest(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def holds_zero(self) -> Tensor:
        """Whether zero lies strictly inside."""
        return (self.low < 0) & (self.high > 0)

    def nearest(self, point: Tensor) -> Tensor:
        """The point inside that is nearest to another."""
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def take(self, index: Tensor) -> Interval:
        """The rows of some of the B."""
        return Interval(self.low[index], self.high[index])


class NotHomogeneousError(Exception):
    """What follows a normalisation cannot be multiplied through."""


class UnknownError(Exception):
    """An operation no bound is known for."""


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One step of a head: from values made earlier to the next one."""

    inputs: tuple[int, ...]
    """Numbers of the values read; 0 is the aggregate, i + 1 what operation i made."""

    FORM: ClassVar[Form] = {}
    READS: ClassVar[int | None] = 1
    """How many values it reads; None: at least one."""
    SMOOTH: ClassVar[bool] = False
    """Whether it is neither linear nor made of linear pieces."""

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

    @property
    def smooth(self) -> bool:
        """Whether it is neither linear nor made of linear pieces."""
        return self.SMOOTH

    @property
    def by_channel(self) -> bool:
        """Whether each channel depends on one input channel only, so that intervals stay exact."""
        return False

    def width(self, widths: Sequence[int]) -> int:
        """The width of its value, given those of its inputs."""
        return widths[0]

    def fits(self, widths: Sequence[int]) -> bool:
        """Whether it can read values so wide, with the constants that it holds."""
        return len(widths) >= 1 if self.READS is None else len(widths) == self.READS

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

    def by_node(self) -> dict[str, Tensor]:
        """Of these, those with a row for each of the graph's nodes."""
        return {n: t for n, t in self.constants() if t.dim() == 2 and self.FORM[n][0] == (1, 2)}

    def at(self, nodes: Tensor) -> Operation:
        """The operation for a graph whose node i is this one's ``nodes[i]``."""
        chosen: dict[str, Any] = {name: value[nodes] for name, value in self.by_node().items()}
        return replace(self, **chosen)

    def setting(self, name: str, prefix: str, tensors: dict[str, Tensor]) -> Any:
        """What a file's header holds of a setting; tensors go into ``tensors``."""
        return encode(getattr(self, name), prefix + name, tensors)

    @classmethod
    def of_settings(cls, values: dict[str, Any], tensors: dict[str, Tensor]) -> Operation:
        """The operation that a file holds, from fields that have their types."""
        plain = {name: decode(value, tensors) for name, value in values.items()}
        return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in plain.items()})

    def sign(self, signs: Sequence[int], widths: Sequence[int]) -> int:
        """2 where its value is known to be positive, 1 where it is not negative, else 0; given the
        same of its inputs, and their widths."""
        return 0

    def lowered(self, to: Lowering, scaled: bool) -> int:
        """Add operations that bounds are known for, and say where the value is among theirs.

        Args:
            to: the new head so far.
            scaled: whether an input, and so the value, is there times σ.
        """
        raise UnknownError(f"no bound is known for the operation {self.title}")


def at_nodes(constant: Tensor, nodes: Tensor) -> Tensor:
    """A constant's rows for these nodes, or the one row that all nodes share."""
    return constant.unsqueeze(0) if constant.dim() == 1 else constant[nodes]


# Linear operations --------------------------------------------------------------------------------


class Linear(Operation):
    """y = W x + b, whatever form W has; b may differ by node."""

    TERMS: ClassVar[int] = 0
    """Numbers summed up in an element of the value; 0: it is copied, without rounding."""
    SHIFT: ClassVar[str] = ""
    """The field that is b; empty where there is none."""

    @abstractmethod
    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        """W x, or with the ``abs``olute values, the ``up``per (positive) or the ``down`` part of
        W's entries."""

    @abstractmethod
    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Coefficients [B or 1, R, k] of the value as coefficients of each input."""

    def offset(self, nodes: Tensor) -> Tensor | None:
        """b, [n or 1, k]; None: there is none."""
        return at_nodes(getattr(self, self.SHIFT), nodes) if self.SHIFT else None

    @property
    def terms(self) -> int:
        """Numbers summed up in an element of the value."""
        return self.TERMS

    @property
    def by_channel(self) -> bool:
        return self.terms <= 1

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        offset, value = self.offset(nodes), self.linear(values, nodes)
        return value if offset is None else value + offset

    def size(self, sizes: Sequence[Tensor], nodes: Tensor) -> Tensor:
        """What the sums behind the value come to, given those behind its inputs."""
        offset, value = self.offset(nodes), self.linear(sizes, nodes, "abs")
        return value if offset is None else value + offset.abs()

    def interval(self, inputs: Sequence[Interval], nodes: Tensor) -> Interval:
        """Where the value lies, rounded outwards.

        Each end by what its own sum may be wrong by: a sum of positive numbers stays positive,
        however large the other end is.
        """
        lows, highs = [x.low for x in inputs], [x.high for x in inputs]
        if not self.terms:
            return Interval(self.evaluate(lows, nodes), self.evaluate(highs, nodes))
        ends, offset = [], self.offset(nodes)
        for near, far in ((lows, highs), (highs, lows)):
            value = self.linear(near, nodes, "up") + self.linear(far, nodes, "down")
            size = self.linear([x.abs() for x in near], nodes, "up") - self.linear(
                [x.abs() for x in far], nodes, "down"
            )
            if offset is not None:
                value, size = value + offset, size + offset.abs()
            ends.append((value, ROUNDING * (self.terms + 2) * size))
        (low, below), (high, above) = ends
        return Interval(low - below, high + above)

    def sign(self, signs: Sequence[int], widths: Sequence[int]) -> int:
        if 0 in signs:
            return 0
        # Of constants by node the smallest.
        least: dict[str, Any] = {name: rows.amin(0) for name, rows in self.by_node().items()}
        shared, node = replace(self, **least), torch.zeros(1, dtype=torch.int64)
        ones = [torch.ones(1, width, dtype=torch.float64) for width in widths]
        offset, falling = shared.offset(node), shared.linear(ones, node, "down")
        if bool((falling < 0).any()) or (offset is not None and bool((offset < 0).any())):
            return 0
        # What is left is a sum of numbers that are not negative: positive where one of them is.
        inputs = [one * (sign - 1) for one, sign in zip(ones, signs, strict=True)]
        return 2 if bool((shared.evaluate(inputs, node) > 0).all()) else 1

    def lowered(self, to: Lowering, scaled: bool) -> int:
        inputs = tuple(to.at_scale(i, scaled) for i in self.inputs)
        return to.add_linear(replace(self, inputs=inputs), scaled)


def _part(weight: Any, part: str) -> Any:
    """The absolute values, the positive or the negative part of a tensor or a number."""
    if part == "abs":
        return abs(weight)
    if not part:
        return weight
    if isinstance(weight, float):
        return max(weight, 0.0) if part == "up" else min(weight, 0.0)
    return weight.clamp(min=0) if part == "up" else weight.clamp(max=0)


@dataclass(frozen=True, eq=False)
class Affine(Linear):
    """y = W x + b."""

    weight: Tensor
    """[k, d]."""
    bias: Tensor
    """[k], or [N, k] by node."""

    FORM: ClassVar[Form] = {"weight": ((2,), DOUBLE), "bias": ((1, 2), DOUBLE)}
    SHIFT: ClassVar[str] = "bias"

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        return values[0] @ _part(self.weight, part).t()

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return [outer @ self.weight]

    @property
    def terms(self) -> int:
        return max(2, self.weight.shape[1])

    def width(self, widths: Sequence[int]) -> int:
        return self.weight.shape[0]

    def fits(self, widths: Sequence[int]) -> bool:
        rows = self.weight.shape[0]
        fitting = super().fits(widths) and self.weight.shape == (rows, widths[0])
        return fitting and self.bias.shape[-1] == rows


@dataclass(frozen=True, eq=False)
class Scale(Linear):
    """y = s ⊙ x + b: batch norm, added skip connections, gates that are fixed."""

    factor: Tensor
    """[d], or [N, d] by node."""
    shift: Tensor
    """[d], or [N, d] by node."""

    FORM: ClassVar[Form] = {"factor": ((1, 2), DOUBLE), "shift": ((1, 2), DOUBLE)}
    SHIFT: ClassVar[str] = "shift"
    TERMS: ClassVar[int] = 1

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        factor = _part(at_nodes(self.factor, nodes), part)
        # No product where a mask hides a number: that may be infinite.
        return (values[0] * factor).masked_fill(factor == 0, 0.0)

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return [outer * at_nodes(self.factor, nodes).unsqueeze(1)]

    def fits(self, widths: Sequence[int]) -> bool:
        fitting = super().fits(widths)
        return fitting and self.factor.shape[-1] == self.shift.shape[-1] == widths[0]


@dataclass(frozen=True, eq=False)
class Select(Linear):
    """y_i = x_{index_i}: slices, permutations, repetitions."""

    index: Tensor
    """[k] int64."""

    FORM: ClassVar[Form] = {"index": ((1,), WHOLE)}

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        return values[0][:, self.index]

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        inner = outer.new_zeros(*outer.shape[:2], widths[0])
        return [inner.index_add_(2, self.index, outer)]

    def width(self, widths: Sequence[int]) -> int:
        return self.index.numel()

    def fits(self, widths: Sequence[int]) -> bool:
        inside = (self.index >= 0) & (self.index < (widths or [0])[0])
        return super().fits(widths) and bool(inside.all())

    def lowered(self, to: Lowering, scaled: bool) -> int:
        fixed = to.constant_at(to.place[self.inputs[0]])
        if fixed is not None:
            return to.add(Constant((), fixed[..., self.index]))
        return super().lowered(to, scaled)


@dataclass(frozen=True, eq=False)
class Constant(Linear):
    """A value that no message of the last aggregation enters (a branch of a concatenation)."""

    value: Tensor
    """[d], or [N, d] by node."""

    FORM: ClassVar[Form] = {"value": ((1, 2), DOUBLE)}
    SHIFT: ClassVar[str] = "value"
    READS: ClassVar[int | None] = 0

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        return self.value.new_zeros(len(nodes), self.value.shape[-1])

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return []

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return at_nodes(self.value, nodes).expand(nodes.numel(), -1)

    def width(self, widths: Sequence[int]) -> int:
        return self.value.shape[-1]

    def lowered(self, to: Lowering, scaled: bool) -> int:
        return to.add(self)


@dataclass(frozen=True, eq=False)
class Add(Linear):
    """y = Σ_i s_i x_i over all inputs."""

    factors: tuple[float, ...]

    FORM: ClassVar[Form] = {"factors": [float]}
    READS: ClassVar[int | None] = None

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        terms = [
            _part(factor, part) * value for factor, value in zip(self.factors, values, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return [outer if factor == 1.0 else factor * outer for factor in self.factors]

    @property
    def terms(self) -> int:
        return max(2, len(self.factors))

    def fits(self, widths: Sequence[int]) -> bool:
        same = super().fits(widths) and set(widths) == {widths[0]}
        return same and len(self.factors) == len(widths)

    def lowered(self, to: Lowering, scaled: bool) -> int:
        """A sum; with one input that is not constant it is a Scale, which costs nothing."""
        places = [to.at_scale(i, scaled) for i in self.inputs]
        terms = [
            (place, factor, to.constant_at(place))
            for place, factor in zip(places, self.factors, strict=True)
        ]
        moving = [(place, factor) for place, factor, fixed in terms if fixed is None]
        if len(moving) != 1 or len(terms) == 1:
            return to.add(Add(tuple(places), self.factors))
        (place, factor), width = moving[0], to.widths[places[0]]
        shift = torch.zeros(width, dtype=torch.float64)
        for _, times, fixed in terms:
            shift = shift if fixed is None else shift + times * fixed
        return to.add(Scale((place,), torch.full((width,), factor, dtype=torch.float64), shift))


@dataclass(frozen=True, eq=False)
class Concatenate(Linear):
    """Inputs side by side."""

    READS: ClassVar[int | None] = None

    def linear(self, values: Sequence[Tensor], nodes: Tensor, part: str = "") -> Tensor:
        return torch.cat(list(values), dim=1)

    def pull(self, outer: Tensor, nodes: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return list(outer.split(list(widths), dim=2))

    def width(self, widths: Sequence[int]) -> int:
        return sum(widths)


# Elementwise functions ----------------------------------------------------------------------------
#
# For any slope s, the largest f(y) − s y over [l, u] is attained at an end or where f′(y) = s. So a
# line of slope s above f on [l, u] needs only the points where f′ = s; ``touching`` lists them.

Pointwise = Callable[[Tensor, Tensor], Tensor]
CELLS, BISECTIONS = 1 << 16, 18
"""Parts of an interval of length 60 at most, looked up, and halvings of a part: to 4e-9, which
enters in second order."""
SAFETY = 1e-13
"""Relative widening of a line's constant: values of f and of the touching point are good to a few
units in the last place, and the touching point enters in second order."""
ABSOLUTE = 4e-16
"""Of 1 + |y|: what sums like 1 + erf are good to where they nearly cancel."""
STEEPEST = 1e150
"""Slopes at most: a line's constant follows from its slope, and must not overflow."""
POINT = 1e-9
"""An interval shorter than this has no chord that float64 could tell; its slope is f′."""


@dataclass(frozen=True)
class Function:
    """One elementwise f with a parameter (slope of leaky ReLU and PReLU, α of ELU)."""

    value: Pointwise
    """f(y)."""
    slope: Pointwise
    """f′(y); one of the two at a kink."""
    touching: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    """All y with f′(y) = s, kinks included, given s and the parameter; elsewhere any number."""
    least: float = -math.inf
    """What f never falls below, however its values are rounded."""
    most: float = math.inf
    """What it never exceeds."""
    turn: tuple[float, float] | None = None
    """Where f attains ``least`` inside its domain, between these two; None where it is monotone."""
    off: float = 0.0
    """How far values may be from a function whose slope and touching points these are."""
    steep: bool = False
    """Whether slopes are unbounded, and values good to a relative error. Slopes of the others stay
    below 2 (or |α|), their values are good to 1e-16 of 1 + |y|."""
    defined: Callable[[Interval], Tensor] = lambda box: torch.ones_like(box.low, dtype=torch.bool)
    """Whether f has a value on all of an interval: no pole, no gap."""
    piecewise: bool = False
    """Whether f is linear on both sides of zero."""


def _kink(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (torch.zeros_like(slope),)


def _elu(slope: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
    inner = (slope / torch.where(alpha == 0, 1.0, alpha)).clamp(min=1e-300).log()
    return (torch.zeros_like(slope), inner.clamp(max=0.0))


def _tanh(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    point = torch.atanh((1.0 - slope).clamp(0.0, 1.0 - 1e-15).sqrt())
    return (point, -point)


def _sigmoid(slope: Tensor, parameter: Tensor) -> tuple[Tensor, ...]:
    """σ(y) = (1 + tanh(y / 2)) / 2."""
    return tuple(2.0 * point for point in _tanh(4.0 * slope, parameter))


def _backward(gradient: Callable[..., Tensor], **settings: Any) -> Pointwise:
    """f′ as PyTorch differentiates f."""
    return lambda y, _: gradient(torch.ones_like(y), y, **settings)


SIGNS = torch.tensor([[-1.0], [1.0], [-1.0]], dtype=torch.float64)
"""Of the three parts of f′: whether it rises."""


def _bisected(
    slope: Pointwise, turns: tuple[float, float], wanted: Tensor, parameter: Tensor
) -> tuple[Tensor, ...]:
    """f′ falls, rises between two ``turns`` and falls again: at most one point in each part."""
    (points, values), shape = _cells(slope, turns), wanted.shape
    wanted = SIGNS * wanted.reshape(1, -1)
    cell = torch.searchsorted(values, wanted).clamp(1, CELLS)
    low, high = points.gather(1, cell - 1), points.gather(1, cell)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = _rising(slope, middle) > wanted
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low.view(3, *shape).unbind(0)


def _rising(slope: Pointwise, points: Tensor) -> Tensor:
    """f′ at points of its three parts, [3, n], −f′ where it falls."""
    return slope(points, points) * SIGNS


@cache
def _cells(slope: Pointwise, turns: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The ends of the cells of the three parts, [3, CELLS + 1], and what rises there."""
    ends = ((-60.0, turns[0]), turns, (turns[1], 60.0))
    points = torch.stack([torch.linspace(*end, CELLS + 1, dtype=torch.float64) for end in ends])
    return points, _rising(slope, points).cummax(1).values


def _positive(y: Tensor) -> Tensor:
    return y.clamp(min=1e-300)


def _softplus(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (torch.logit(slope.clamp(1e-300, 1.0 - 1e-16)),)


def _reciprocal(slope: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    point = _positive(-slope).rsqrt()
    return (point, -point)


_gelu_slope, _gelu_tanh_slope = (
    _backward(torch.ops.aten.gelu_backward, approximate=name) for name in ("none", "tanh")
)
_silu_slope = _backward(torch.ops.aten.silu_backward)
_mish_slope = _backward(torch.ops.aten.mish_backward)

FUNCTIONS: dict[str, Function] = {
    "relu": Function(
        lambda x, _: x.relu(), lambda y, _: (y > 0).double(), _kink, 0.0, piecewise=True
    ),
    "leaky_relu": Function(
        lambda x, slope: torch.where(x > 0, x, slope * x),
        lambda y, slope: torch.where(y > 0, torch.ones_like(y), slope),
        _kink,
        piecewise=True,
    ),
    "elu": Function(
        lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0))),
        lambda y, alpha: torch.where(y > 0, torch.ones_like(y), alpha * y.clamp(max=0).exp()),
        _elu,
    ),
    "tanh": Function(lambda x, _: x.tanh(), lambda y, _: 1 - y.tanh() ** 2, _tanh, -1.0, 1.0),
    "sigmoid": Function(
        lambda x, _: x.sigmoid(), lambda y, _: y.sigmoid() * (1 - y.sigmoid()), _sigmoid, 0.0, 1.0
    ),
    # Turns of f′ are the zeros of f″: ±√2 for GELU, found numerically for the other two; smallest
    # values are rounded down.
    "gelu": Function(
        lambda x, _: functional.gelu(x),
        _gelu_slope,
        partial(_bisected, _gelu_slope, (-(2**0.5), 2**0.5)),
        -0.1700,
        turn=(-0.7618, -0.7418),
    ),
    "gelu_tanh": Function(
        lambda x, _: functional.gelu(x, approximate="tanh"),
        _gelu_tanh_slope,
        partial(_bisected, _gelu_tanh_slope, (-1.4185040087908284, 1.4185040087908284)),
        -0.1701,
        turn=(-0.7625, -0.7425),
    ),
    "silu": Function(
        lambda x, _: functional.silu(x),
        _silu_slope,
        partial(_bisected, _silu_slope, (-2.3993572805154677, 2.3993572805154677)),
        -0.2785,
        turn=(-1.2885, -1.2685),
    ),
    "mish": Function(
        lambda x, _: functional.mish(x),
        _mish_slope,
        partial(_bisected, _mish_slope, (-2.2563763963607931, 1.4905711794854284)),
        -0.3089,
        turn=(-1.2025, -1.1825),
    ),
    # PyTorch's softplus is x beyond 20, at most e⁻²⁰ less than log(1 + eˣ).
    "softplus_linear": Function(
        lambda x, _: functional.softplus(x), lambda y, _: y.sigmoid(), _softplus, 0.0, off=2.1e-9
    ),
    "softplus": Function(
        lambda x, _: torch.logaddexp(x, torch.zeros_like(x)),
        lambda y, _: y.sigmoid(),
        _softplus,
        0.0,
    ),
    "square": Function(
        lambda x, _: x.square(), lambda y, _: 2 * y, lambda s, _: (s / 2,), 0.0, turn=(0.0, 0.0),
        steep=True,
    ),
    "sqrt": Function(
        lambda x, _: x.sqrt(), lambda y, _: 0.5 * _positive(y).rsqrt(),
        lambda s, _: (0.25 / s.clamp(min=1e-150).square(),), 0.0, steep=True,
        defined=lambda box: box.low >= 0,
    ),
    "exp": Function(
        lambda x, _: x.exp(), lambda y, _: y.exp(), lambda s, _: (_positive(s).log(),), 0.0,
        steep=True,
    ),
    "log": Function(
        lambda x, _: x.log(), lambda y, _: 1 / y, lambda s, _: (1 / _positive(s),), steep=True,
        defined=lambda box: box.low > 0,
    ),
    "reciprocal": Function(
        lambda x, _: x.reciprocal(), lambda y, _: -1 / y**2, _reciprocal, steep=True,
        defined=lambda box: (box.low > 0) | (box.high < 0),
    ),
}  # fmt: skip


# Curved operations --------------------------------------------------------------------------------

Slopes = tuple[Tensor, ...]
"""One tensor [B, k] per input."""


class Curved(Operation):
    """An operation between lines: slopes are chosen, and their constants follow from the box.

    So no choice of slopes is ever unsound. A slope is better or worse at a point; there the
    candidates are compared.
    """

    @abstractmethod
    def interval(self, box: Sequence[Interval]) -> Interval:
        """Where the value lies for inputs in a box, rounded outwards."""

    @abstractmethod
    def lines(self, box: Sequence[Interval], at: Sequence[Tensor]) -> tuple[Slopes, Slopes]:
        """Slopes above and below that are tight at a point where there is a choice."""

    @abstractmethod
    def gaps(self, slopes: Slopes, box: Sequence[Interval]) -> tuple[Tensor, Tensor]:
        """The smallest and the largest f(x) − Σ s x over the box, rounded outwards, [B, k]."""

    def defined(self, box: Sequence[Interval]) -> Tensor:
        """[B, k]: whether the operation has a value in all of the box."""
        return torch.ones_like(box[0].low, dtype=torch.bool)

    def carried(self, up: Tensor, down: Tensor, above: Slopes, below: Slopes) -> list[Tensor]:
        """Coefficients [B or 1, R, k] of the value, the positive and the negative ones apart, as
        coefficients of each input along the lines."""
        return [
            up * s.unsqueeze(1) + down * t.unsqueeze(1) for s, t in zip(above, below, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Activation(Curved):
    """y = f(x), element by element."""

    name: str
    """Key of :data:`FUNCTIONS`."""
    parameter: Tensor
    """[] or [d] (PReLU by channel); unused where the function has none."""

    FORM: ClassVar[Form] = {"name": str, "parameter": ((0, 1), DOUBLE)}

    @property
    def function(self) -> Function:
        """f, which the parameter completes."""
        return FUNCTIONS[self.name]

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return self._at(values[0])

    @property
    def title(self) -> str:
        return self.name.removesuffix("_linear")

    @property
    def smooth(self) -> bool:
        return not self.function.piecewise

    @property
    def by_channel(self) -> bool:
        return True

    def fits(self, widths: Sequence[int]) -> bool:
        fitting = super().fits(widths) and self.name in FUNCTIONS
        return fitting and tuple(self.parameter.shape) in ((), (widths[0],))

    def _at(self, y: Tensor) -> Tensor:
        return self.function.value(y, self.parameter)

    def _slack(self, y: Tensor, *sizes: Tensor) -> Tensor:
        """What f(y), or its difference from a line, may be off by."""
        slack = SAFETY * sum((size.abs() for size in sizes), torch.zeros_like(y))
        if self.function.steep:
            return slack
        return slack + ABSOLUTE * (1 + y.abs()) + self.function.off

    def interval(self, box: Sequence[Interval]) -> Interval:
        (x,), f = box, self.function
        ends = []
        for y in (x.low, x.high):
            value = self._at(y)
            slack = self._slack(y, value)
            ends.append((value - slack, value + slack))
        (a, b), (c, d) = ends
        low, high = torch.minimum(a, c), torch.maximum(b, d)
        if f.turn is not None:
            low = torch.where((x.low <= f.turn[1]) & (x.high >= f.turn[0]), f.least, low)
        if self.name == "elu":  # the sign of α decides; between the ends lies 0 at most
            inside = x.holds_zero()
            low = torch.where(inside, low.clamp(max=0), low)
            high = torch.where(inside, high.clamp(min=0), high)
        return Interval(low.clamp(min=f.least), high.clamp(max=f.most))

    def gaps(self, slopes: Slopes, box: Sequence[Interval]) -> tuple[Tensor, Tensor]:
        (slope,), (x,) = slopes, box
        if self.function.piecewise:
            return self._gaps_of_two_lines(slope, x)
        low, high = torch.full_like(slope, torch.inf), torch.full_like(slope, -torch.inf)
        for point in (x.low, x.high, *self.function.touching(slope, self.parameter)):
            y = x.nearest(point)
            value, line = self._at(y), slope * y
            slack = self._slack(y, value, line)
            low = torch.minimum(low, value - line - slack)
            high = torch.maximum(high, value - line + slack)
        return low, high

    def _gaps_of_two_lines(self, slope: Tensor, x: Interval) -> tuple[Tensor, Tensor]:
        """The same at the ends and, where the interval holds it, at the kink."""
        first, last = (self._at(y) - slope * y for y in (x.low, x.high))
        slack = SAFETY * (first.abs() + last.abs() + slope.abs() * (x.high - x.low))
        kink = torch.where(x.holds_zero(), 0.0, first)
        low = torch.minimum(torch.minimum(first, last), kink) - slack
        return low, torch.maximum(torch.maximum(first, last), kink) + slack

    def lines(self, box: Sequence[Interval], at: Sequence[Tensor]) -> tuple[Slopes, Slopes]:
        """Of a ReLU the chord above, and below slope 1 where the point is positive, else 0; of
        others the tightest among the chord and the tangents at the point and at both ends."""
        (x,), (middle,) = box, at
        if self.function.piecewise:
            high, low = x.high.clamp(min=0.0), x.low.clamp(max=0.0)
            chord = high / (high - low).clamp(min=1e-300)
            below = torch.where((middle > 0) | (x.low >= 0), 1.0, 0.0).to(chord.dtype)
            return (chord,), (torch.where((x.low >= 0) | (x.high <= 0), chord, below),)
        middle, width = x.nearest(middle), x.high - x.low
        rise = self._at(x.high) - self._at(x.low)
        tangents = [self.function.slope(y, self.parameter) for y in (middle, x.low, x.high)]
        chord = torch.where(width > POINT, rise / width.clamp(min=POINT), tangents[0])
        slopes = torch.stack([chord, *tangents]).nan_to_num(0.0).clamp(-STEEPEST, STEEPEST)
        least, most = self.gaps((slopes,), box)
        above = slopes.gather(0, (slopes * middle + most).argmin(0, keepdim=True))[0]
        below = slopes.gather(0, (slopes * middle + least).argmax(0, keepdim=True))[0]
        return (above,), (below,)

    def defined(self, box: Sequence[Interval]) -> Tensor:
        return self.function.defined(box[0])

    def sign(self, signs: Sequence[int], widths: Sequence[int]) -> int:
        if self.name in ("exp", "sigmoid", "softplus", "softplus_linear"):
            return 2
        return 1 if self.function.least == 0.0 else 0

    def lowered(self, to: Lowering, scaled: bool) -> int:
        place = to.place[self.inputs[0]]
        if self.name == "leaky_relu":  # s x + (1 − s) relu(x)
            slope = self.parameter.expand(to.widths[place])
            below, above = to.times(place, slope), to.times(to.apply("relu", place), 1.0 - slope)
            return to.add(Add((below, above), (1.0, 1.0)))
        if scaled and self.name != "relu":
            raise NotHomogeneousError
        if to.through and self.name == "sqrt" and (root := to.as_length(place)) is not None:
            return to.add(root)
        if self.name == "reciprocal" and to.divides(place):
            to.root = place  # 1 / σ, times σ
            return to.add(Constant((), torch.ones(1, dtype=torch.float64)))
        return to.add(replace(self, inputs=(place,)))


@dataclass(frozen=True, eq=False)
class Multiply(Curved):
    """y = x ⊙ x′, both of them reached by messages (a gate and what it lets through)."""

    READS: ClassVar[int | None] = 2
    SMOOTH: ClassVar[bool] = True

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return values[0] * values[1]

    def fits(self, widths: Sequence[int]) -> bool:
        return super().fits(widths) and widths[0] == widths[1]

    def interval(self, box: Sequence[Interval]) -> Interval:
        x, y = box
        corners = torch.stack([a * b for a in (x.low, x.high) for b in (y.low, y.high)])
        low, high = corners.amin(0), corners.amax(0)
        return Interval(low - 3 * ROUNDING * low.abs(), high + 3 * ROUNDING * high.abs())

    def lines(self, box: Sequence[Interval], at: Sequence[Tensor]) -> tuple[Slopes, Slopes]:
        """McCormick's envelopes: x y ≤ u y + l′ x − u l′ and the like; the tighter at the point."""
        (x, y), (p, q) = box, at

        def better(options: list[tuple[Tensor, Tensor]], sign: float) -> Slopes:
            values = []
            for s, t in options:
                gaps = self._corners((s, t), box)
                limit = gaps.amax(0) if sign > 0 else gaps.amin(0)
                values.append(sign * (s * p + t * q + limit))
            # At the middle of a box both are the same: the first then, whatever rounding says.
            first = values[0] <= values[1] + TIE * (values[0].abs() + values[1].abs() + 1.0)
            (s0, t0), (s1, t1) = options
            return torch.where(first, s0, s1), torch.where(first, t0, t1)

        above = better([(y.low, x.high), (y.high, x.low)], 1.0)
        return above, better([(y.low, x.low), (y.high, x.high)], -1.0)

    def gaps(self, slopes: Slopes, box: Sequence[Interval]) -> tuple[Tensor, Tensor]:
        corners = self._corners(slopes, box)
        (s, t), (x, y) = slopes, box
        size = x.largest * y.largest + s.abs() * x.largest + t.abs() * y.largest
        slack = 3 * ROUNDING * size
        return corners.amin(0) - slack, corners.amax(0) + slack

    @staticmethod
    def _corners(slopes: Slopes, box: Sequence[Interval]) -> Tensor:
        """x y − s x − t y at the four corners: a bilinear function is extreme there, [4, B, k]."""
        (s, t), (first, second) = slopes, box
        corners = [(x, y) for x in (first.low, first.high) for y in (second.low, second.high)]
        return torch.stack([x * y - s * x - t * y for x, y in corners])

    def lowered(self, to: Lowering, scaled: bool) -> int:
        if all(to.scaled[i] for i in self.inputs):
            raise NotHomogeneousError
        places = [to.place[i] for i in self.inputs]
        for place, other in (places, places[::-1]):
            fixed = to.constant_at(other)
            if fixed is not None:
                return to.times(place, fixed)
        return to.add(replace(self, inputs=tuple(places)))


@dataclass(frozen=True, eq=False)
class Root(Curved):
    """σ = max(√(Σ x² + offset), floor) over consecutive parts of ``size`` channels."""

    size: int
    offset: float
    floor: float

    SMOOTH: ClassVar[bool] = True

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts.square().sum(2) + self.offset).sqrt().clamp(min=self.floor)

    def width(self, widths: Sequence[int]) -> int:
        return widths[0] // self.size

    def interval(self, box: Sequence[Interval]) -> Interval:
        (x,) = box
        inside = (x.low <= 0) & (x.high >= 0)
        least = torch.where(inside, 0.0, torch.minimum(x.low.abs(), x.high.abs()))
        low, high = (self.evaluate([end], end) for end in (least, x.largest))
        return Interval(low * (1 - 1e-12), high * (1 + 1e-12))

    def lines(self, box: Sequence[Interval], at: Sequence[Tensor]) -> tuple[Slopes, Slopes]:
        """The tangent; nothing but a constant, or more that the messages know, stands above."""
        parts = at[0].unflatten(1, (-1, self.size))
        length = (parts.square().sum(2, keepdim=True) + self.offset).sqrt()
        below = (self.within((parts / length.clamp(min=1e-300)).flatten(1)),)
        return below, below

    def gaps(self, slopes: Slopes, box: Sequence[Interval]) -> tuple[Tensor, Tensor]:
        """√(‖x‖² + e) ≥ q·x + √(1 − ‖q‖²) √e for ‖q‖ ≤ 1, by Cauchy and Schwarz; above, σ's own
        largest value."""
        parts = slopes[0].unflatten(1, (-1, self.size))
        rest = (1.0 - parts.square().sum(2)).clamp(min=0.0)
        return (rest * self.offset).sqrt() * (1 - 4 * SAFETY), self.interval(box).high

    def sign(self, signs: Sequence[int], widths: Sequence[int]) -> int:
        return 2  # where it is zero nothing can be divided by it

    def within(self, slopes: Tensor) -> Tensor:
        """q shrunk to ‖q‖ ≤ 1 where rounding or a solver left it outside."""
        parts = slopes.unflatten(1, (-1, self.size))
        length = parts.norm(dim=2, keepdim=True)
        return (parts / (length * (1 + 4 * SAFETY)).clamp(min=1.0)).flatten(1)

    def carried(self, up: Tensor, down: Tensor, above: Slopes, below: Slopes) -> list[Tensor]:
        q = below[0].unflatten(1, (-1, self.size)).unsqueeze(1)
        return [(down.unsqueeze(3) * q).flatten(2)]


# Operations made of others ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Maximum(Operation):
    """Elementwise maximum of all inputs (jumping knowledge by max, maxout)."""

    READS: ClassVar[int | None] = None

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        return torch.stack(list(values)).amax(0)

    def fits(self, widths: Sequence[int]) -> bool:
        return super().fits(widths) and set(widths) == {widths[0]}

    def lowered(self, to: Lowering, scaled: bool) -> int:
        """max(x, y) = x + relu(y − x), one input after another."""
        best, *others = (to.at_scale(i, scaled) for i in self.inputs)
        for other in others:
            gain = to.apply("relu", to.add(Add((other, best), (1.0, -1.0))))
            best = to.add(Add((best, gain), (1.0, 1.0)))
        return best


class _InParts(Operation):
    """An operation on consecutive parts of ``size`` channels."""

    size: int
    SMOOTH: ClassVar[bool] = True

    def fits(self, widths: Sequence[int]) -> bool:
        if not (super().fits(widths) and self.size >= 1 and widths[0] % self.size == 0):
            return False
        constants = [tensor.shape == (widths[0],) for _, tensor in self.constants()]
        return getattr(self, "eps", 0.0) >= 0 and all(constants)


@dataclass(frozen=True, eq=False)
class LayerNorm(_InParts):
    """y = (x − μ) / √(σ² + ε) ⊙ w + b over consecutive parts of ``size`` channels."""

    size: int
    weight: Tensor
    """[d]: ones where the layer has no weight."""
    bias: Tensor
    """[d]."""
    eps: float

    FORM: ClassVar[Form] = {
        "size": int, "weight": ((1,), DOUBLE), "bias": ((1,), DOUBLE), "eps": float,
    }  # fmt: skip

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        normal = functional.layer_norm(parts, (self.size,), eps=self.eps)
        return normal.flatten(1) * self.weight + self.bias

    @property
    def title(self) -> str:
        return "layer_norm"

    def lowered(self, to: Lowering, scaled: bool) -> int:
        start = to.place[self.inputs[0]]
        width = to.widths[start]
        part = torch.eye(self.size, dtype=torch.float64) - 1.0 / self.size
        centring = torch.block_diag(*[part / self.size**0.5] * (width // self.size))
        zero = torch.zeros(width, dtype=torch.float64)
        vector = to.add(Affine((start,), centring, zero))
        place = to.normalized(Root((vector,), self.size, self.eps, 0.0), scaled)
        factor = self.weight * self.size**0.5
        return to.add_linear(Scale((place,), factor, self.bias), to.through)


@dataclass(frozen=True, eq=False)
class Normalize(_InParts):
    """y = x / max(‖x‖₂, ε) over consecutive parts of ``size`` channels."""

    size: int
    eps: float

    FORM: ClassVar[Form] = {"size": int, "eps": float}

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts / parts.norm(dim=2, keepdim=True).clamp(min=self.eps)).flatten(1)

    def lowered(self, to: Lowering, scaled: bool) -> int:
        return to.normalized(Root((to.place[self.inputs[0]],), self.size, 0.0, self.eps), scaled)


@dataclass(frozen=True, eq=False)
class Softmax(_InParts):
    """Softmax, or its logarithm, over consecutive parts of ``size`` channels."""

    size: int
    log: bool

    FORM: ClassVar[Form] = {"size": int, "log": bool}

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        parts = values[0].unflatten(1, (-1, self.size))
        return (parts.log_softmax(2) if self.log else parts.softmax(2)).flatten(1)

    @property
    def title(self) -> str:
        return "log_softmax" if self.log else "softmax"

    def lowered(self, to: Lowering, scaled: bool) -> int:
        """log softmax_i = x_i − log Σ_j exp x_j, and softmax_i = sigmoid(x_i − log Σ_{j≠i} exp
        x_j): nothing overflows, and nothing is divided by."""
        if scaled:
            raise NotHomogeneousError
        if self.size > WIDEST_SOFTMAX:
            raise UnknownError(
                f"no bound is known for the operation {self.title} of {self.size} channels"
            )
        place, size = to.place[self.inputs[0]], self.size
        width = to.widths[place]
        if size == 1:
            value = torch.full((width,), 0.0 if self.log else 1.0, dtype=torch.float64)
            return to.add(Constant((), value))
        channel = torch.arange(width)
        if self.log:
            spread = to.add(Select((_log_sum(to, place, size, width // size),), channel // size))
            return to.add(Add((place, spread), (1.0, -1.0)))
        start = channel[:, None] // size * size
        others = (channel[:, None] % size + torch.arange(1, size)) % size + start
        rest = _log_sum(to, to.add(Select((place,), others.flatten())), size - 1, width)
        return to.apply("sigmoid", to.add(Add((place, rest), (1.0, -1.0))))


def _log_sum(to: Lowering, place: int, size: int, parts: int) -> int:
    """log Σ exp over consecutive parts, pair by pair: x + softplus(y − x)."""
    while size > 1:
        half, start = size // 2, torch.arange(parts)[:, None] * size
        first, second = (
            to.add(Select((place,), (start + begin + torch.arange(half)).flatten()))
            for begin in (0, half)
        )
        gain = to.apply("softplus", to.add(Add((second, first), (1.0, -1.0))))
        joined = to.add(Add((first, gain), (1.0, 1.0)))
        if size % 2:
            last = to.add(Select((place,), (start + size - 1).flatten()))
            pairs = torch.arange(parts * half).view(parts, half)
            index = torch.cat([pairs, parts * half + torch.arange(parts)[:, None]], dim=1)
            joined = to.add(Select((to.add(Concatenate((joined, last))),), index.flatten()))
        place, size = joined, half + size % 2
    return place


# PyTorch's own operations -------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """Stands in an operation's arguments for a tensor that differs by node."""

    position: int
    """Which of the inputs, or which of the constants by node."""
    rest: tuple[int, ...]
    """The shape of one node's part."""
    axis: int
    """Where the axis over nodes goes."""
    dtype: torch.dtype
    fixed: bool = False
    """Whether it is one of the constants."""

    def filled(self, rows: Tensor) -> Tensor:
        """The tensor with nodes [n, width] in their place."""
        tensor = rows.reshape(rows.shape[0], *self.rest).movedim(0, self.axis)
        if self.dtype == torch.bool:
            return tensor != 0
        return tensor if self.dtype.is_floating_point else tensor.to(self.dtype)


@dataclass(frozen=True, eq=False)
class Opaque(Operation):
    """Any node-wise operation of PyTorch; it can be run and differentiated but not bounded."""

    target: Callable[..., Any]
    """The ATen operation."""
    arguments: tuple[Any, ...]
    """Its arguments, with a :class:`Slot` for each tensor that differs by node."""
    keywords: dict[str, Any]
    fixed: tuple[Tensor, ...]
    """Constants by node, [N, width] each."""
    output: int | None
    """Which of several results; None where there is one."""
    axis: int
    """The axis of the result that runs over nodes."""

    FORM: ClassVar[Form] = {
        "target": str, "arguments": list, "keywords": dict, "fixed": list,
        "output": int | None, "axis": int,
    }  # fmt: skip
    READS: ClassVar[int | None] = None

    def evaluate(self, values: Sequence[Tensor], nodes: Tensor) -> Tensor:
        def fill(slot: Slot) -> Tensor:
            fixed = self.fixed[slot.position][nodes] if slot.fixed else None
            return slot.filled(values[slot.position] if fixed is None else fixed)

        arguments, keywords = tree_map_only(Slot, fill, (self.arguments, self.keywords))
        result = self.target(*arguments, **keywords)
        result = result if self.output is None else result[self.output]
        return result.double().movedim(self.axis, 0).reshape(nodes.numel(), -1)

    @property
    def title(self) -> str:
        return name_of(self.target)

    def width(self, widths: Sequence[int]) -> int:
        values = [torch.zeros(1, width, dtype=torch.float64) for width in widths]
        return self.evaluate(values, torch.zeros(1, dtype=torch.int64)).shape[1]

    def setting(self, name: str, prefix: str, tensors: dict[str, Tensor]) -> Any:
        if name != "target":
            return super().setting(name, prefix, tensors)
        if not restorable(self.target):
            raise InputError(
                f"the head holds {self.title}, which has no form in files; keep the model and "
                "expose it again instead"
            )
        return written_name(self.target)

    @classmethod
    def of_settings(cls, values: dict[str, Any], tensors: dict[str, Tensor]) -> Operation:
        return super().of_settings({**values, "target": find_target(values["target"])}, tensors)

    def at(self, nodes: Tensor) -> Opaque:
        return replace(self, fixed=tuple(constant[nodes] for constant in self.fixed))

    def to(self, device: str | torch.device) -> Opaque:
        """The operation with its constants on another device."""
        pieces = (self.arguments, self.keywords, self.fixed)
        arguments, keywords, fixed = tree_map_only(Tensor, lambda t: t.to(device), pieces)
        return replace(self, arguments=arguments, keywords=keywords, fixed=fixed)


def name_of(target: Any) -> str:
    """What an ATen operation is called in PyTorch, such as ``softplus``."""
    name = str(getattr(target, "_schema", target).name).partition("::")[2] or str(target)
    return name.strip("_")


def restorable(target: Any) -> bool:
    """Whether an operation may be read from a file: only elementwise ones, which touch nothing."""
    return torch.Tag.pointwise in getattr(target, "tags", ())


def find_target(name: str) -> Callable[..., Any]:
    """The elementwise ATen operation written as ``name.overload``."""
    packet, _, overload = name.partition(".")
    spelled = packet.isidentifier() and overload.isidentifier() and not packet.startswith("__")
    operation = getattr(getattr(torch.ops.aten, packet, None), overload, None) if spelled else None
    if operation is None or not restorable(operation):
        raise InputError(
            f"it names the operation {name[:60]!r}, which is no elementwise one of this PyTorch"
        )
    return operation


# In files ----------------------------------------------------------------------------------------

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)}
SLOT = {"position": int, "rest": list, "axis": int, "dtype": str, "fixed": bool}


def written_name(target: Any) -> str:
    """An ATen operation as ``name.overload``."""
    return f"{target._schema.name.partition('::')[2]}.{target._overloadname or 'default'}"


def encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON can hold it; tensors in it go into ``tensors`` under their name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Slot):
        held = {"position": value.position, "rest": list(value.rest), "axis": value.axis}
        return {"slot": {**held, "dtype": str(value.dtype), "fixed": value.fixed}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, tuple | list):
        return [encode(item, f"{name}.{k}", tensors) for k, item in enumerate(value)]
    if isinstance(value, dict):
        return {str(k): encode(item, f"{name}.{k}", tensors) for k, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"the head holds a {type(value).__name__}, which has no form in files")


def decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`encode`; what it reads is taken out of ``tensors``."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        if value["tensor"] not in tensors:
            raise InputError(f"it lacks {str(value['tensor'])[:80]!r}")
        return tensors.pop(value["tensor"])
    if value.keys() == {"slot"}:
        return _slot(check_fields(value["slot"], SLOT, "slot"))
    if value.keys() == {"dtype"}:
        return _dtype(value["dtype"])
    return {name: decode(item, tensors) for name, item in value.items()}


def _slot(held: dict[str, Any]) -> Slot:
    rest = held["rest"]
    if any(type(size) is not int or size < 0 for size in rest):
        raise InputError(f"a slot of its head has shape {str(rest)[:60]}")
    return Slot(held["position"], tuple(rest), held["axis"], _dtype(held["dtype"]), held["fixed"])


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in DTYPES:
        raise InputError(f"its head names the type {str(name)[:40]!r}, which is none known here")
    return DTYPES[name]


KINDS: tuple[type[Operation], ...] = (
    Affine, Scale, Select, Constant, Add, Concatenate, Multiply, Maximum, Activation, LayerNorm,
    Normalize, Softmax, Opaque,
)  # fmt: skip
"""The operations that heads are translated into; they go into files by their names."""


# Heads --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadGraph:
    """T_v: from the aggregate a_v [D] to the logits [C], as operations in order."""

    width: int
    """D, the width of the aggregate."""
    operations: tuple[Operation, ...]
    """The last one makes the logits; an empty head hands the aggregate through."""

    @property
    def curved(self) -> list[int]:
        """The places of its curved operations."""
        return [k for k, operation in enumerate(self.operations) if isinstance(operation, Curved)]

    def widths(self) -> list[int]:
        """The width of every value, the aggregate first."""
        widths = [self.width]
        for operation in self.operations:
            widths.append(operation.width([widths[i] for i in operation.inputs]))
        return widths

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

    def at(self, nodes: Tensor) -> HeadGraph:
        """The head for a graph whose node i is this one's ``nodes[i]``."""
        return HeadGraph(self.width, tuple(operation.at(nodes) for operation in self.operations))

    def to(self, device: str | torch.device) -> HeadGraph:
        """The head with its constants on another device."""
        return HeadGraph(self.width, tuple(operation.to(device) for operation in self.operations))


def needed_values(operations: Sequence[Operation], wanted: set[int]) -> set[int]:
    """The numbers of the values that some values need, themselves included."""
    wanted = set(wanted)
    for number in range(len(operations), 0, -1):
        if number in wanted:
            wanted.update(operations[number - 1].inputs)
    return wanted


def prune(
    operations: Sequence[Operation], wanted: set[int]
) -> tuple[list[Operation], dict[int, int]]:
    """What some values need, numbered anew, and the new number of every value that is left."""
    numbers = {old: new for new, old in enumerate(sorted(needed_values(operations, wanted) | {0}))}
    kept = [
        replace(operation, inputs=tuple(numbers[i] for i in operation.inputs))
        for number, operation in enumerate(operations, start=1)
        if number in numbers
    ]
    return kept, numbers


class Lowering:
    """A head rewritten in linear and curved operations, one after another.

    With ``through`` the one division by a length or by another positive number σ is taken out by
    multiplying all that follows with σ, where what follows is positively homogeneous (ReLU, affine
    maps): the sign of a margin is then that of σ times the margin.
    """

    def __init__(self, head: HeadGraph, through: bool) -> None:
        self.head, self.through = head, through
        self.made: list[Operation] = []
        self.signs = [0]
        """Of each new value: 2 where it is known to be positive, 1 where it is not negative."""
        self.place = [0]
        """Where each of the old values is among the new."""
        self.scaled = [False]
        """Whether it is there times σ."""
        self.root: int | None = None
        """The new value that is σ."""
        self.widths = [head.width]
        """Of the new values."""
        self.norms = sum(isinstance(op, LayerNorm | Normalize) for op in head.operations)

    def run(self) -> tuple[HeadGraph, int | None]:
        """The new head, and which of its values is σ where its outputs are σ times the logits."""
        for operation in self.head.operations:
            before = self.root
            scaled = any(self.scaled[i] for i in operation.inputs)
            self.place.append(operation.lowered(self, scaled))
            self.scaled.append(scaled or before != self.root)
        if self.place[-1] != len(self.made):  # the last value must be the output
            self.add(Select((self.place[-1],), torch.arange(self.widths[self.place[-1]])))
        scale = {self.root} if self.root is not None else set()
        kept, numbers = prune(self.made, {len(self.made)} | scale)
        graph = HeadGraph(self.head.width, tuple(kept))
        return graph, numbers[self.root] if self.root is not None and self.scaled[-1] else None

    def add(self, operation: Operation) -> int:
        """Append an operation; the number of what it makes."""
        self.made.append(operation)
        widths = [self.widths[i] for i in operation.inputs]
        self.widths.append(operation.width(widths))
        self.signs.append(operation.sign([self.signs[i] for i in operation.inputs], widths))
        return len(self.made)

    def divides(self, place: int) -> bool:
        """Whether a new value is what all is multiplied by."""
        free = self.through and not self.norms and self.root is None
        return free and self.widths[place] == 1 and self.signs[place] == 2

    def as_length(self, place: int) -> Root | None:
        """√ of a new value as a length, where the value is c Σ x² + e over parts of x."""
        total = self.made[place - 1] if place else None
        squares = self.made[total.inputs[0] - 1] if isinstance(total, Affine) else None
        if not (isinstance(squares, Activation) and squares.name == "square"):
            return None
        assert isinstance(total, Affine)
        parts, width = total.weight.shape
        factor, offset = total.weight[0, 0], total.bias.flatten()[0]
        blocks = torch.eye(parts, dtype=torch.float64).repeat_interleave(width // parts, 1)
        alike = width % parts == 0 and torch.equal(total.weight, factor * blocks)
        if not (alike and bool((total.bias == offset).all()) and factor > 0 and offset >= 0):
            return None
        vector = self.times(squares.inputs[0], factor.sqrt().expand(width))
        return Root((vector,), width // parts, float(offset), 0.0)

    def apply(self, name: str, place: int) -> int:
        """An elementwise function of a new value."""
        return self.add(Activation((place,), name, torch.zeros((), dtype=torch.float64)))

    def constant_at(self, place: int) -> Tensor | None:
        """The constant that a new value is; None where it is none."""
        source = self.made[place - 1] if place else None
        return source.value if isinstance(source, Constant) else None

    def normalized(self, root: Root, scaled: bool) -> int:
        """A new value divided by its length, or left as it is where all is multiplied by that."""
        (vector,) = root.inputs
        width = self.widths[vector]
        if scaled or (self.through and (width != root.size or self.root is not None)):
            raise NotHomogeneousError
        length = self.add(root)
        if self.through:
            self.root = length
            return vector
        spread = torch.arange(width) // root.size
        inverse = self.add(Select((self.apply("reciprocal", length),), spread))
        return self.add(Multiply((inverse, vector)))

    def times(self, place: int, factor: Tensor) -> int:
        """A new value times a factor [d] or [N, d]."""
        return self.add(Scale((place,), factor, factor.new_zeros(factor.shape[-1])))

    def add_linear(self, operation: Linear, scaled: bool) -> int:
        """A linear operation on new values, where those are there times σ if ``scaled``."""
        if not (scaled and operation.SHIFT):
            return self.add(operation)
        shift: Tensor = getattr(operation, operation.SHIFT)
        bare: dict[str, Any] = {operation.SHIFT: shift.new_zeros(shift.shape[-1])}
        place = self.add(replace(operation, **bare))
        if not bool(shift.any()):
            return place
        return self.add(Add((place, self._times_root(shift)), (1.0, 1.0)))

    def _times_root(self, factor: Tensor) -> int:
        """σ · factor, for a factor [d] or [N, d]."""
        return self.times(self._root_spread(factor.shape[-1]), factor)

    def _root_spread(self, width: int) -> int:
        assert self.root is not None
        return self.add(Select((self.root,), torch.zeros(width, dtype=torch.int64)))

    def at_scale(self, old: int, scaled: bool) -> int:
        """An old value, multiplied by σ where its fellow inputs are."""
        place = self.place[old]
        if self.scaled[old] or not scaled:
            return place
        fixed = self.constant_at(place)
        if fixed is not None:
            return self._times_root(fixed)
        return self.add(Multiply((self._root_spread(self.widths[place]), place)))


@dataclass(frozen=True, eq=False)
class LoweredHead:
    """T, or σ T, from the aggregate on."""

    graph: HeadGraph
    """Linear and curved operations only."""
    scale: int | None
    """The value that holds σ [n, 1] where the outputs are σ times the logits."""
    squashed: bool
    """Whether a softmax at the end was left out: margins of its inputs share only their sign."""
    reason: str
    """Why no bound is available, naming the operation; empty where all are known."""


def lower(head: HeadGraph) -> LoweredHead:
    """Rewrite a head in operations that bounds are known for.

    A softmax at the end keeps the order of the classes and is left out; several of them side by
    side do not.
    """
    operations, squashed, widths = head.operations, False, head.widths()
    while operations and isinstance(last := operations[-1], Softmax):
        if last.inputs != (len(operations) - 1,) or widths[len(operations)] != last.size:
            break
        squashed = squashed or not last.log
        operations = operations[:-1]
    plain = HeadGraph(head.width, operations)
    norms = sum(isinstance(op, LayerNorm | Normalize) for op in operations)
    for through in (True, False) if norms <= 1 else (False,):
        try:
            graph, scale = Lowering(plain, through).run()
            if norms or not through or scale is not None:
                return LoweredHead(graph, scale, squashed, "")
        except NotHomogeneousError:
            continue
        except UnknownError as error:
            return LoweredHead(plain, None, squashed, str(error))
    raise AssertionError("without multiplying through nothing needs to be homogeneous")
