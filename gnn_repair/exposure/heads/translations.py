"""Translations of PyTorch's operations (ATen) into those of a head, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.heads.building import (
    Builder,
    Frame,
    Lost,
    Norm,
    Operand,
    Places,
    Traced,
    Unfollowed,
    constant_in,
    frame_of,
)
from gnn_repair.exposure.heads.operations import (
    Activation,
    Add,
    Affine,
    Concatenate,
    LayerNorm,
    Maximum,
    Multiply,
    Normalize,
    Select,
    Softmax,
)

Result = Traced | tuple[Any, ...]
Translation = Callable[..., Result]
"""(builder, the real output, *arguments, **keywords) → what the output shows.

Arguments are those of the ATen operation with a :class:`Traced` in place of every tensor that
messages reach. Raises :class:`Unfollowed` where it does not apply.
"""


aten = torch.ops.aten


def same(builder: Builder, out: Any, source: Operand, *_: Any, **__: Any) -> Result:
    """clone, detach, contiguous: the tensor itself."""
    if not isinstance(source, Traced) or not out.dtype.is_floating_point:
        raise Unfollowed
    return source


def reshaped(builder: Builder, out: Tensor, source: Traced, *_: Any) -> Result:
    """view, reshape, flatten."""
    return source.viewed(lambda index: index.reshape(out.shape))


def moved(operation: Callable[..., Any]) -> Translation:
    """The same operation on both index tensors."""

    def translate(builder: Builder, out: Any, source: Operand, *args: Any, **keys: Any) -> Result:
        if not isinstance(source, Traced) or _any_traced((args, keys)):
            raise Unfollowed
        nodes = operation(source.nodes, *args, **keys)
        channels = operation(source.channels, *args, **keys)
        if isinstance(nodes, Tensor):
            return Traced(source.value, nodes, channels)
        pairs = zip(nodes, channels, strict=True)
        return tuple(Traced(source.value, n, c) for n, c in pairs)

    return translate


def chosen(operation: Callable[..., Any]) -> Translation:
    """Elements picked by a constant index, unless every node picks its own."""
    move = moved(operation)

    def translate(builder: Builder, out: Any, source: Operand, *args: Any, **keys: Any) -> Result:
        picked = move(builder, out, source, *args, **keys)
        if isinstance(picked, Traced) and frame_of(picked, builder.num_nodes) is None:
            raise Unfollowed("picks some of the nodes or mixes them")
        return picked

    return translate


def _any_traced(values: Any) -> bool:
    return any(isinstance(leaf, Traced) for leaf in torch.utils._pytree.tree_leaves(values))


def cat(builder: Builder, out: Tensor, parts: Sequence[Operand], dim: int = 0) -> Result:
    """Concatenation along channels; constants become branches of their own."""
    dim = dim % out.dim()
    # The old convention that an empty tensor of one axis may be concatenated with anything.
    parts = [part for part in parts if tuple(part.shape) != (0,)]  # type: ignore[union-attr]
    traced = next(part for part in parts if isinstance(part, Traced))
    _, like = builder.flat(traced)
    if like.axis == dim and like.shape == like.outer:
        return _rows_joined(builder, out, parts, dim)
    if like.shape == (1, *like.outer):  # a single recipient, without an axis for it
        lifted = [
            part.viewed(lambda index: index.unsqueeze(0))
            if isinstance(part, Traced)
            else part.unsqueeze(0)  # type: ignore[union-attr]
            for part in parts
        ]
        made = cat(builder, out.unsqueeze(0), lifted, dim + 1)
        assert isinstance(made, Traced)
        return made.viewed(lambda index: index.squeeze(0))
    if like.shape != like.outer:
        raise Unfollowed("mixes the values of different nodes")
    numbers, indices, start = [], [], 0
    for part in parts:
        number, frame = _branch(builder, part, like)
        numbers.append(number)
        index = torch.arange(frame.width, device=builder.device).view(frame.rest) + start
        indices.append(index.unsqueeze(frame.axis))
        start += frame.width
    value = builder.emit(Concatenate(tuple(numbers)), start)
    channels = torch.cat(indices, dim).expand(out.shape)
    whole = builder.shown(value, Frame(tuple(out.shape), like.axis, tuple(out.shape), like.places))
    return Traced(value, whole.nodes, channels)


def _rows_joined(builder: Builder, out: Tensor, parts: Sequence[Operand], dim: int) -> Result:
    """Rows of different nodes one after another; rows that no message reaches are nobody's."""
    made: Traced | None = None
    start = 0
    for part in parts:
        size = part.shape[dim]  # type: ignore[union-attr]
        places = torch.arange(start, start + size, device=builder.device)
        start += size
        if isinstance(part, Traced):
            made = _put(builder, made, part, dim, places, tuple(out.shape))
    assert made is not None
    return made


def _put(
    builder: Builder,
    base: Traced | None,
    part: Traced,
    dim: int,
    places: Tensor,
    shape: tuple[int, ...],
) -> Traced:
    """A tensor with another's rows in some places, whose own nodes stand there."""
    number, frame = builder.flat(part)
    if frame.shape != frame.outer or frame.axis != dim:
        raise Unfollowed("mixes the values of different nodes")
    own = (
        frame.places.nodes
        if frame.places is not None
        else torch.arange(len(places), device=builder.device)
    )
    nodes = torch.full((shape[dim],), -1, device=builder.device)
    value = number
    if base is not None:
        before, known = builder.flat(base)
        if known.shape != known.outer or known.axis != dim or known.width != frame.width:
            raise Unfollowed("mixes the values of different nodes")
        nodes = (
            known.places.nodes.clone()
            if known.places is not None
            else torch.arange(shape[dim], device=builder.device)
        )
        mask = torch.zeros(builder.num_nodes, 1, dtype=torch.float64, device=builder.device)
        mask[own[own >= 0]] = 1.0
        mask = mask.expand(-1, frame.width)
        if before != number:
            kept = builder.scaled(before, 1 - mask, 0.0)
            value = builder.emit(
                Add((kept, builder.scaled(number, mask, 0.0)), (1.0, 1.0)), frame.width
            )
    nodes[places] = own
    inside = nodes[nodes >= 0]
    if inside.unique().numel() < inside.numel():
        raise Unfollowed("mixes the values of different nodes")
    whole = torch.equal(nodes, torch.arange(builder.num_nodes, device=builder.device))
    return builder.shown(
        value, Frame(shape, dim, shape, None if whole else Places(nodes, builder.num_nodes))
    )


def put_rows(
    builder: Builder, out: Tensor, base: Operand, dim: int, index: Tensor, values: Operand
) -> Result:
    """index_copy, and index_put along the nodes: rows written into a tensor."""
    if not isinstance(values, Traced) or not isinstance(index, Tensor):
        raise Unfollowed
    dim = dim % out.dim()
    if isinstance(base, Traced):
        before = base
    else:  # every node's own constant row, where rows are the nodes'
        assert isinstance(base, Tensor)
        if base.shape[dim] != builder.num_nodes:
            return _put(builder, None, values, dim, index, tuple(out.shape))
        frame = Frame(tuple(out.shape), dim, tuple(out.shape))
        # Memory that was not yet written may hold anything, and is overwritten.
        known = constant_in(base.nan_to_num(0.0, 0.0, 0.0), frame)
        before = builder.shown(builder.constant(known, frame.width), frame)
    return _put(builder, before, values, dim, index, tuple(out.shape))


def index_put(
    builder: Builder, out: Tensor, base: Operand, indices: Sequence[Any], values: Operand,
    accumulate: bool = False,
) -> Result:  # fmt: skip
    """Rows written by one list of nodes."""
    used = [place for place, index in enumerate(indices) if index is not None]
    if accumulate or len(used) != 1 or not isinstance(values, Traced):
        raise Unfollowed
    index = indices[used[0]]
    if not isinstance(index, Tensor) or index.dim() != 1 or len(values.shape) != out.dim():
        raise Unfollowed
    index = index.nonzero().view(-1) if index.dtype == torch.bool else index
    return put_rows(builder, out, base, used[0], index, values)


def _branch(builder: Builder, part: Operand, like: Frame) -> tuple[int, Frame]:
    if isinstance(part, Traced):
        number, frame = builder.flat(part)
        if frame.axis != like.axis or frame.shape != frame.outer or frame.places != like.places:
            raise Unfollowed("mixes the values of different nodes")
        return number, frame
    assert isinstance(part, Tensor)
    frame = Frame(tuple(part.shape), like.axis, tuple(part.shape), like.places)
    return builder.constant(constant_in(part, frame), frame.width), frame


def stack(builder: Builder, out: Tensor, parts: Sequence[Operand], dim: int = 0) -> Result:
    """Concatenation along a new axis."""
    dim = dim % out.dim()
    lifted = [
        part.viewed(lambda t: t.unsqueeze(dim)) if isinstance(part, Traced)
        else part.unsqueeze(dim)  # type: ignore[union-attr]
        for part in parts
    ]  # fmt: skip
    return cat(builder, out, lifted, dim)


def copied(builder: Builder, out: Tensor, target: Operand, source: Operand, *_: Any) -> Result:
    """copy_, fill_: the source takes the target's place."""
    if isinstance(source, Traced):
        return source.viewed(lambda t: t.expand(out.shape))
    assert isinstance(target, Traced)
    frame = builder.flat(target)[1]
    constant = torch.as_tensor(source, dtype=torch.float64, device=builder.device)
    number = builder.constant(constant_in(constant, frame), frame.width)
    return builder.shown(number, frame)


def zeroed(builder: Builder, out: Tensor, target: Traced) -> Result:
    """zero_."""
    return copied(builder, out, target, 0.0)


MOVING = (
    "permute transpose t unsqueeze squeeze slice select expand split split_with_sizes unbind flip "
    "repeat diagonal"
)
CHOOSING = "index_select index roll gather"
RESHAPING = ("view", "reshape", "_unsafe_view", "_reshape_alias")
COPYING = ("clone", "detach", "alias", "lift_fresh", "_to_copy", "contiguous")

MOVES: dict[str, Translation] = {
    **dict.fromkeys(RESHAPING, reshaped),
    **dict.fromkeys(COPYING, same),
    **{name: moved(getattr(aten, name)) for name in MOVING.split()},
    **{name: chosen(getattr(aten, name)) for name in CHOOSING.split()},
    "unsafe_split": moved(aten.split),
    "unsafe_split_with_sizes": moved(aten.split_with_sizes),
    "cat": cat,
    "index_copy": put_rows,
    "index_put": index_put,
    "stack": stack,
    "copy": copied,
    "fill": copied,
    "zero": zeroed,
}


def add(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """left + α · right."""
    frame, (a, b) = builder.aligned(out.shape, left, right)
    if isinstance(a, int) and isinstance(b, int):
        value = builder.emit(Add((a, b), (1.0, float(alpha))), frame.width)
    elif isinstance(a, int):
        value = builder.scaled(a, 1.0, alpha * b)
    else:
        assert isinstance(b, int)
        value = builder.scaled(b, float(alpha), a)
    return builder.shown(value, frame)


def sub(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """left − α · right."""
    return add(builder, out, left, right, -alpha)


def rsub(builder: Builder, out: Tensor, left: Operand, right: Operand, alpha: float = 1) -> Result:
    """right − α · left."""
    return add(builder, out, right, left, -alpha)


def neg(builder: Builder, out: Tensor, source: Traced) -> Result:
    """−x."""
    return mul(builder, out, source, -1.0)


def mul(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """left ⊙ right."""
    frame, (a, b) = builder.aligned(out.shape, left, right)
    if isinstance(a, int) and isinstance(b, int):
        made = (
            builder.applied("square", a) if a == b else builder.emit(Multiply((a, b)), frame.width)
        )
        return builder.shown(made, frame)
    value, factor = (a, b) if isinstance(a, int) else (b, a)
    assert isinstance(value, int)
    return builder.shown(builder.scaled(value, factor, 0.0), frame)


def div(
    builder: Builder, out: Tensor, left: Operand, right: Operand, rounding_mode: str | None = None
) -> Result:
    """left / right; by the norm of left itself, ``normalize``."""
    if rounding_mode is not None:
        raise Unfollowed
    if not isinstance(right, Traced):
        frame, (value, divisor) = builder.aligned(out.shape, left, right)
        assert isinstance(value, int) and isinstance(divisor, Tensor)
        return builder.shown(builder.scaled(value, 1 / divisor, 0.0), frame)
    if isinstance(left, Traced) and (normal := _normalized(builder, out, left, right)) is not None:
        return normal
    value, frame = builder.flat(right)
    inverse = builder.shown(builder.applied("reciprocal", value), frame)
    return mul(builder, out, left, inverse)


def _normalized(builder: Builder, out: Tensor, left: Traced, right: Traced) -> Traced | None:
    norm = builder.norms.get(right.value)
    if norm is None or left.shape != out.shape:
        return None
    value, frame = builder.flat(left)
    order = _order(builder, value, norm.source)
    if order is None:
        return None
    # Where every channel's norm stands among the norms: that of the part the channel is in.
    found = frame_of(right.viewed(lambda t: t.expand(out.shape)), builder.num_nodes)
    places = torch.arange(frame.width, device=builder.device) // norm.size
    if found is None or found[0] != frame or not torch.equal(found[1][order], places):
        return None
    normal = builder.emit(Normalize((norm.source,), norm.size, norm.eps), frame.width)
    return builder.shown(builder.select(normal, order.argsort()), frame)


def _order(builder: Builder, value: int, source: int) -> Tensor | None:
    """How the channels of a value are permuted to make the source; None: it is made otherwise."""
    whole = torch.arange(builder.widths[value], device=builder.device)
    made = builder.operations[source - 1] if source else None
    if source == value:
        return whole
    permuted = isinstance(made, Select) and made.inputs == (value,)
    if not permuted or not torch.equal(made.index.sort().values, whole):  # type: ignore[union-attr]
        return None
    return made.index  # type: ignore[union-attr]


def addcmul(
    builder: Builder, out: Tensor, base: Operand, left: Operand, right: Operand, value: float = 1
) -> Result:
    """base + value · left ⊙ right."""
    if not isinstance(left, Traced) and not isinstance(right, Traced):
        return add(builder, out, base, left * right, value)
    return add(builder, out, base, mul(builder, out, left, right), value)  # type: ignore[arg-type]


def lerp(builder: Builder, out: Tensor, start: Operand, end: Operand, weight: Operand) -> Result:
    """start + weight ⊙ (end − start)."""
    if not isinstance(start, Traced) and not isinstance(end, Traced):
        gap: Any = end - start
    else:
        gap = sub(builder, out, end, start)
    step = mul(builder, out, gap, weight)
    return add(builder, out, start, step)  # type: ignore[arg-type]


def masked_fill(
    builder: Builder, out: Tensor, source: Operand, mask: Operand, value: Operand
) -> Result:
    """x where a constant mask is off."""
    if not isinstance(source, Traced) or isinstance(mask, Traced) or isinstance(value, Traced):
        raise Unfollowed
    frame, (number, marks) = builder.aligned(out.shape, source, mask)
    assert isinstance(number, int) and isinstance(marks, Tensor)
    return builder.shown(builder.scaled(number, 1 - marks, marks * float(value)), frame)


ARITHMETIC: dict[str, Translation] = {
    "add": add,
    "sub": sub,
    "subtract": sub,
    "rsub": rsub,
    "neg": neg,
    "mul": mul,
    "multiply": mul,
    "div": div,
    "true_divide": div,
    "addcmul": addcmul,
    "lerp": lerp,
    "masked_fill": masked_fill,
}


def plain(name: str) -> Translation:
    """An activation without settings."""

    def translate(builder: Builder, out: Tensor, source: Traced) -> Result:
        value, frame = builder.flat(source)
        return builder.shown(builder.applied(name, value), frame)

    return translate


def gelu(builder: Builder, out: Tensor, source: Traced, approximate: str = "none") -> Result:
    """GELU, exact or by its tanh form."""
    return plain("gelu" if approximate == "none" else "gelu_tanh")(builder, out, source)


def leaky_relu(
    builder: Builder, out: Tensor, source: Traced, negative_slope: float = 0.01
) -> Result:
    """x, or slope · x below 0."""
    value, frame = builder.flat(source)
    return builder.shown(builder.applied("leaky_relu", value, negative_slope), frame)


def prelu(builder: Builder, out: Tensor, source: Operand, weight: Operand) -> Result:
    """Leaky ReLU with learned slopes."""
    if not isinstance(source, Traced) or isinstance(weight, Traced):
        raise Unfollowed
    frame, (value, slope) = builder.aligned(out.shape, source, weight)
    assert isinstance(value, int) and isinstance(slope, Tensor)
    if slope.dim() > 1:
        raise Unfollowed
    return builder.shown(builder.applied("leaky_relu", value, slope), frame)


def elu(
    builder: Builder,
    out: Tensor,
    source: Traced,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Result:
    """ELU and SELU: scale · x, or scale · α (e^{s x} − 1) below 0."""
    value, frame = builder.flat(source)
    if input_scale != 1:
        value = builder.scaled(value, float(input_scale), 0.0)
    value = builder.applied("elu", value, alpha * input_scale)
    if scale != input_scale:
        value = builder.scaled(value, scale / input_scale, 0.0)
    return builder.shown(value, frame)


def celu(builder: Builder, out: Tensor, source: Traced, alpha: float = 1.0) -> Result:
    """α ELU(x / α)."""
    return elu(builder, out, source, alpha, 1.0, 1 / alpha)


def _between(builder: Builder, value: int, low: Any, high: Any) -> int:
    """min(max(x, low), high) out of ReLUs; bounds are numbers or None."""
    if low is not None:
        below = builder.applied("relu", builder.scaled(value, 1.0, -float(low)))
        value = builder.scaled(below, 1.0, float(low))
    if high is not None:
        above = builder.applied("relu", builder.scaled(value, -1.0, float(high)))
        value = builder.scaled(above, -1.0, float(high))
    return value


def clamp(
    builder: Builder, out: Tensor, source: Traced, low: Any = None, high: Any = None, **keys: Any
) -> Result:
    """clamp and hardtanh."""
    low, high = keys.get("min", low), keys.get("max", high)
    if isinstance(low, Tensor | Traced) or isinstance(high, Tensor | Traced):
        raise Unfollowed
    value, frame = builder.flat(source)
    bounded = _between(builder, value, low, high)
    norm = builder.norms.get(value)
    if norm is not None and low is not None and high is None:
        builder.norms[bounded] = Norm(norm.source, norm.size, max(norm.eps, float(low)))
    return builder.shown(bounded, frame)


def hardtanh(
    builder: Builder, out: Tensor, source: Traced, low: float = -1, high: float = 1
) -> Result:
    """hardtanh and ReLU6."""
    return clamp(builder, out, source, low, high)


def clamp_max(builder: Builder, out: Tensor, source: Traced, high: Any) -> Result:
    """min(x, high)."""
    return clamp(builder, out, source, None, high)


def threshold(builder: Builder, out: Tensor, source: Traced, level: float, value: float) -> Result:
    """x above the level, else the value; continuous only where the two agree."""
    if level != value:
        raise Unfollowed
    return clamp(builder, out, source, level)


def hardsigmoid(builder: Builder, out: Tensor, source: Traced) -> Result:
    """min(max(x / 6 + 1/2, 0), 1)."""
    value, frame = builder.flat(source)
    bounded = _between(builder, builder.scaled(value, 1 / 6, 0.5), 0.0, 1.0)
    return builder.shown(bounded, frame)


def hardswish(builder: Builder, out: Tensor, source: Traced) -> Result:
    """x · hardsigmoid(x)."""
    gate = hardsigmoid(builder, out, source)
    return mul(builder, out, source, gate)  # type: ignore[arg-type]


def absolute(builder: Builder, out: Tensor, source: Traced) -> Result:
    """|x| = relu(x) + relu(−x)."""
    value, frame = builder.flat(source)
    up = builder.applied("relu", value)
    down = builder.applied("relu", builder.scaled(value, -1.0, 0.0))
    return builder.shown(builder.emit(Add((up, down), (1.0, 1.0)), frame.width), frame)


def pairwise(sign: float) -> Translation:
    """maximum (sign 1) or minimum (sign −1) of two tensors."""

    def translate(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
        frame, operands = builder.aligned(out.shape, left, right)
        numbers = [
            part if isinstance(part, int) else builder.constant(part, frame.width)
            for part in operands
        ]
        return builder.shown(largest(builder, numbers, sign), frame)

    return translate


def largest(builder: Builder, numbers: list[int], sign: float) -> int:
    """The elementwise maximum of values, or their minimum as −max(−x)."""
    width = builder.widths[numbers[0]]
    if sign < 0:
        numbers = [builder.scaled(number, -1.0, 0.0) for number in numbers]
    value = builder.emit(Maximum(tuple(numbers)), width)
    return value if sign > 0 else builder.scaled(value, -1.0, 0.0)


def glu(builder: Builder, out: Tensor, source: Traced, dim: int = -1) -> Result:
    """x₁ ⊙ σ(x₂), the halves of one axis."""
    size = source.shape[dim] // 2
    halves = [source.viewed(lambda t, s=start: t.narrow(dim, s, size)) for start in (0, size)]  # type: ignore[misc]
    gate = plain("sigmoid")(builder, out, halves[1])
    return mul(builder, out, halves[0], gate)  # type: ignore[arg-type]


def power(builder: Builder, out: Tensor, source: Operand, exponent: Any) -> Result:
    """x to the power of 2, ±½ or −1."""
    if not isinstance(source, Traced) or isinstance(exponent, Traced | Tensor):
        raise Unfollowed
    steps = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if steps is None:
        raise Unfollowed
    return ELEMENTWISE[steps](builder, out, source)


def root(builder: Builder, out: Tensor, source: Traced) -> Result:
    """√x; of a sum of squares, a norm that may be divided by."""
    value, frame = builder.flat(source)
    made = builder.applied("sqrt", value)
    total = builder.operations[value - 1] if value else None
    squares = builder.operations[total.inputs[0] - 1] if isinstance(total, Affine) else None
    if isinstance(squares, Activation) and squares.name == "square":
        assert isinstance(total, Affine)
        size = builder.widths[total.inputs[0]] // builder.widths[value]
        eye = torch.eye(builder.widths[value], dtype=torch.float64, device=builder.device)
        if torch.equal(total.weight, eye.repeat_interleave(size, 1)) and not total.bias.any():
            builder.norms[made] = Norm(squares.inputs[0], size, 0.0)
    return builder.shown(made, frame)


def inverse_root(builder: Builder, out: Tensor, source: Traced) -> Result:
    """1 / √x."""
    return plain("reciprocal")(builder, out, plain("sqrt")(builder, out, source))


PLAIN = "relu silu tanh sigmoid square exp log reciprocal"

ELEMENTWISE: dict[str, Callable[..., Result]] = {
    **{name: plain(name) for name in PLAIN.split()},
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "_prelu_kernel": prelu,
    "prelu": prelu,
    "elu": elu,
    "celu": celu,
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": clamp_max,
    "hardtanh": hardtanh,
    "threshold": threshold,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "abs": absolute,
    "maximum": pairwise(1.0),
    "minimum": pairwise(-1.0),
    "glu": glu,
    "sqrt": root,
    "rsqrt": inverse_root,
    "pow": power,
}


MIXED = "mixes the values of different nodes"


def parts_of(
    builder: Builder, source: Traced, dims: Sequence[int] | None
) -> tuple[int, Frame, int]:
    """The value with the reduced axes last in every part, the kept frame and a part's size."""
    count = len(source.shape)
    reduced = sorted(d % count for d in dims) if dims else list(range(count))
    kept = [axis for axis in range(count) if axis not in reduced]
    size = int(torch.tensor([source.shape[axis] for axis in reduced]).prod())
    shape = [source.shape[axis] for axis in kept]
    turned = source.viewed(lambda t: t.permute(*kept, *reduced).reshape(*shape, size))
    value, frame = builder.flat(turned)
    if frame.axis == len(frame.shape) - 1 or frame.shape[-1] != size:
        raise Unfollowed(MIXED)
    return value, Frame(frame.shape[:-1], frame.axis, tuple(shape), frame.places), size


def _placed(made: Traced, out: Tensor) -> Traced:
    """With the reduced axes put back as ones where the operation keeps them."""
    return made.viewed(lambda t: t.reshape(out.shape))


def _totals(builder: Builder, value: int, frame: Frame, size: int, factor: float) -> int:
    """factor · Σ over every part."""
    row = torch.full((1, size), factor, dtype=torch.float64, device=builder.device)
    return _by_part(builder, value, frame, row)


def _by_part(builder: Builder, value: int, frame: Frame, matrix: Tensor) -> int:
    """A matrix on every part."""
    eye = torch.eye(frame.width, dtype=torch.float64, device=builder.device)
    weight = torch.kron(eye, matrix)
    return builder.emit(Affine((value,), weight, weight.new_zeros(len(weight))), len(weight))


def _sum(builder: Builder, out: Tensor, source: Traced, dims: Any, factor: float | None) -> Result:
    value, frame, size = parts_of(builder, source, dims)
    made = _totals(builder, value, frame, size, 1 / size if factor is None else factor)
    return _placed(builder.shown(made, frame), out)


def cumulated(builder: Builder, out: Tensor, source: Traced, dim: int, **_: Any) -> Result:
    """Sums of everything up to each place of an axis that is not the nodes'."""
    value, frame, size = parts_of(builder, source, [dim])
    lower = torch.ones(size, size, dtype=torch.float64, device=builder.device).tril()
    shape = (*frame.shape, size)
    made = builder.shown(_by_part(builder, value, frame, lower), Frame(shape, frame.axis, shape))
    return made.viewed(lambda t: t.movedim(-1, dim))


def log_sum_exp(
    builder: Builder, out: Tensor, source: Traced, dims: Any, *_: Any, **__: Any
) -> Result:
    """log Σ exp x = x₁ − log softmax₁."""
    value, frame, size = parts_of(builder, source, [dims] if isinstance(dims, int) else dims)
    normal = builder.emit(Softmax((value,), size, True), builder.widths[value])
    starts = torch.arange(frame.width, device=builder.device) * size
    parts = builder.select(value, starts), builder.select(normal, starts)
    made = builder.emit(Add(parts, (1.0, -1.0)), frame.width)
    return _placed(builder.shown(made, frame), out)


def summed(
    builder: Builder, out: Tensor, source: Traced, dims: Any = None, *_: Any, **__: Any
) -> Result:
    """Σ over axes that are not the nodes'."""
    return _sum(builder, out, source, dims, 1.0)


def mean(
    builder: Builder, out: Tensor, source: Traced, dims: Any = None, *_: Any, **__: Any
) -> Result:
    """The mean over axes that are not the nodes'."""
    return _sum(builder, out, source, dims, None)


def extreme(sign: float) -> Translation:
    """amax (sign 1) and amin (sign −1); also the values of max and min over one axis."""

    def translate(
        builder: Builder, out: Any, source: Traced, dims: Any = None, *_: Any, **__: Any
    ) -> Result:
        first = out if isinstance(out, Tensor) else out[0]
        if isinstance(dims, Traced | Tensor):  # of two tensors, not over an axis
            return pairwise(sign)(builder, out, source, dims)
        dims = [dims] if isinstance(dims, int) else dims
        value, frame, size = parts_of(builder, source, dims)
        starts = torch.arange(frame.width, device=builder.device) * size
        chosen = [builder.select(value, starts + place) for place in range(size)]
        made = _placed(builder.shown(largest(builder, chosen, sign), frame), first)
        return made if isinstance(out, Tensor) else (made, Lost("it reads where a maximum stands"))

    return translate


def vector_norm(
    builder: Builder,
    out: Tensor,
    source: Traced,
    order: float | None = 2,
    dims: Any = None,
    *_: Any,
    **__: Any,
) -> Result:
    """The Euclidean norm of parts; what divides by it becomes a normalisation."""
    if order not in (2, None):
        raise Unfollowed
    value, frame, size = parts_of(builder, source, dims)
    total = _totals(builder, builder.applied("square", value), frame, size, 1.0)
    made = builder.applied("sqrt", total)
    builder.norms[made] = Norm(value, size, 0.0)
    return _placed(builder.shown(made, frame), out)


def multiplied(
    builder: Builder, out: Tensor, source: Traced, dims: Any = None, *_: Any, **__: Any
) -> Result:
    """The product of everything along an axis: one after another."""
    value, frame, size = parts_of(builder, source, [dims] if isinstance(dims, int) else dims)
    starts = torch.arange(frame.width, device=builder.device) * size
    made = builder.select(value, starts)
    for place in range(1, size):
        factors = made, builder.select(value, starts + place)
        made = builder.emit(Multiply(factors), frame.width)
    return _placed(builder.shown(made, frame), out)


REDUCTIONS: dict[str, Translation] = {
    "sum": summed,
    "mean": mean,
    "prod": multiplied,
    "cumsum": cumulated,
    "logsumexp": log_sum_exp,
    "amax": extreme(1.0),
    "amin": extreme(-1.0),
    "max": extreme(1.0),
    "min": extreme(-1.0),
    "linalg_vector_norm": vector_norm,
    "norm": vector_norm,
}


WIDEST = 1 << 24
"""Numbers in the matrix of a product repeated over heads, beyond which it is kept opaque: 128 MB of
mostly zeros."""


def mm(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """[N, d] × [d, k] by a constant, from either side."""
    if isinstance(left, Traced) and isinstance(right, Tensor):
        return _from_right(builder, out, left, right)
    if isinstance(left, Tensor) and isinstance(right, Traced):
        turned = _from_right(builder, out.t(), right.viewed(lambda t: t.t()), left.t())
        assert isinstance(turned, Traced)
        return turned.viewed(lambda t: t.t())
    raise Unfollowed("mixes the values of different nodes")


def _from_right(builder: Builder, out: Tensor, left: Traced, right: Tensor) -> Result:
    value, frame = builder.flat(left)
    if frame.axis == len(frame.shape) - 1:
        raise Unfollowed("mixes the values of different nodes")
    repeats = frame.width // frame.shape[-1]
    if (frame.width * repeats * right.shape[1]) > WIDEST:
        raise Unfollowed
    weight = torch.kron(_identity(builder, repeats), right.detach().double().t().contiguous())
    return _affine(builder, value, weight, frame.last(right.shape[1], tuple(out.shape)))


def _identity(builder: Builder, size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64, device=builder.device)


def _affine(builder: Builder, value: int, weight: Tensor, frame: Frame) -> Result:
    bias = weight.new_zeros(weight.shape[0])
    return builder.shown(
        builder.emit(Affine((value,), weight.contiguous(), bias), frame.width), frame
    )


def mv(builder: Builder, out: Tensor, matrix: Operand, vector: Operand) -> Result:
    """[N, d] × [d]."""
    if not isinstance(matrix, Traced) or not isinstance(vector, Tensor):
        raise Unfollowed("mixes the values of different nodes")
    column = mm(builder, out.unsqueeze(1), matrix, vector.unsqueeze(1))
    assert isinstance(column, Traced)
    return column.viewed(lambda t: t.squeeze(1))


def bmm(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """[B, m, d] × [B, d, k]: a product for every head, or for every node."""
    if isinstance(left, Traced) and isinstance(right, Tensor):
        found = _by_head(builder, out, left, right)
        if found is not None:
            return found
    if isinstance(left, Tensor) and isinstance(right, Traced):
        turned = right.viewed(lambda t: t.mT)
        found = _by_head(builder, out.mT, turned, left.mT)
        if found is not None:
            return found.viewed(lambda t: t.mT)
    return _by_node(builder, out, left, right)


def _by_head(builder: Builder, out: Tensor, left: Traced, right: Tensor) -> Traced | None:
    """Nodes are the rows: one matrix for each of B heads, together block diagonal."""
    value, frame = builder.flat(left)
    if frame.shape != frame.outer or frame.axis != 1:
        return None
    weight = torch.block_diag(*right.detach().double().mT)
    made = _affine(
        builder, value, weight, Frame(tuple(out.shape), 1, tuple(out.shape), frame.places)
    )
    assert isinstance(made, Traced)
    return made


def _by_node(builder: Builder, out: Tensor, left: Operand, right: Operand) -> Result:
    """Nodes are the batch: products element by element, summed over d."""
    wide = (*out.shape[:2], left.shape[2], out.shape[2])  # type: ignore[union-attr]
    spread = [_expanded(side, axis, wide) for side, axis in ((left, 3), (right, 1))]
    terms = mul(builder, torch.empty(wide, device="meta"), *spread)
    assert isinstance(terms, Traced)
    return summed(builder, out, terms, [2])


def _expanded(side: Operand, axis: int, shape: tuple[int, ...]) -> Operand:
    if isinstance(side, Traced):
        return side.viewed(lambda t: t.unsqueeze(axis).expand(shape))
    assert isinstance(side, Tensor)
    return side.unsqueeze(axis).expand(shape)


def added(product: Translation) -> Translation:
    """β · base + α · product: addmm, addmv, baddbmm."""

    def translate(
        builder: Builder,
        out: Tensor,
        base: Operand,
        left: Operand,
        right: Operand,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> Result:
        if not isinstance(left, Traced) and not isinstance(right, Traced):
            raise Unfollowed
        made: Any = product(builder, out, left, right)
        if alpha != 1:
            made = mul(builder, out, made, float(alpha))
        if beta != 1 and not isinstance(base, Traced):
            base = base * beta
        elif beta != 1:
            base = mul(builder, out, base, float(beta))  # type: ignore[assignment]
        return add(builder, out, base, made)

    return translate


def bilinear(
    builder: Builder, out: Tensor, left: Operand, weight: Operand, right: Operand, *_: Any
) -> Result:
    """x W y of every node, where messages reach one of the two: nn.Bilinear."""
    traced, other = (left, right) if isinstance(left, Traced) else (right, left)
    constant = isinstance(other, Tensor) and isinstance(weight, Tensor)
    if not isinstance(traced, Traced) or not constant or traced.nodes.dim() != 2:
        raise Unfollowed
    assert isinstance(other, Tensor) and isinstance(weight, Tensor)
    value, frame = builder.flat(traced)
    if frame.axis != 0:
        raise Unfollowed
    wide, sides = len(weight), "oij,nj->noi" if traced is left else "oij,ni->noj"
    slopes = torch.einsum(sides, weight.double(), other.double()).flatten(1)
    factor = slopes if frame.places is None else frame.places.spread(slopes)
    each = torch.arange(frame.width, device=builder.device).repeat(wide)
    scaled = builder.scaled(builder.select(value, each), factor, 0.0)
    total = torch.kron(_identity(builder, wide), _identity(builder, 1).expand(1, frame.width))
    return _affine(builder, scaled, total, frame.last(wide, tuple(out.shape)))


PRODUCTS: dict[str, Translation] = {
    "mm": mm,
    "mv": mv,
    "bmm": bmm,
    "_trilinear": bilinear,
    "addmm": added(mm),
    "addmv": added(mv),
    "baddbmm": added(bmm),
}


STATISTICS = Lost("it reads a normalisation's statistics")


def _results(made: Traced, out: Any) -> Result:
    """The normalised tensor, and statistics that hardly anything reads."""
    return made if isinstance(out, Tensor) else (made, *[STATISTICS] * (len(out) - 1))


def batch_norm(builder: Builder, out: Any, source: Operand, *args: Any) -> Result:
    """By running statistics: s ⊙ x + b."""
    weight, bias, mean, variance, *rest = args
    training = rest[0] if isinstance(rest[0], bool) else False
    eps = next(value for value in reversed(rest) if isinstance(value, float))
    if training or mean is None or not isinstance(source, Traced):
        raise Unfollowed(MIXED)
    shape = [1, -1, *[1] * (len(source.shape) - 2)]
    scale = 1 / (variance.double() + eps).sqrt()
    factor = scale if weight is None else scale * weight.double()
    shift = -mean.double() * factor
    shift = shift if bias is None else shift + bias.double()
    number, frame = builder.flat(source)
    constants = [constant_in(constant.view(shape), frame) for constant in (factor, shift)]
    return _results(builder.shown(builder.scaled(number, *constants), frame), out)


def _affine_part(builder: Builder, constant: Tensor | None, width: int, empty: float) -> Tensor:
    if constant is None:
        return torch.full((width,), empty, dtype=torch.float64, device=builder.device)
    flat = constant.detach().double().reshape(-1)
    return flat.repeat(width // flat.numel())


def layer_norm(
    builder: Builder,
    out: Any,
    source: Operand,
    shape: Sequence[int],
    weight: Any,
    bias: Any,
    eps: float,
) -> Result:
    """Over the last axes."""
    if not isinstance(source, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        raise Unfollowed
    number, frame = builder.flat(source)
    if frame.axis >= len(frame.shape) - len(shape):
        raise Unfollowed(MIXED)
    weight = _affine_part(builder, weight, frame.width, 1.0)
    bias = _affine_part(builder, bias, frame.width, 0.0)
    operation = LayerNorm((number,), prod(shape), weight, bias, float(eps))
    return _results(builder.shown(builder.emit(operation, frame.width), frame), out)


def group_norm(
    builder: Builder,
    out: Any,
    source: Operand,
    weight: Any,
    bias: Any,
    count: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> Result:
    """Over groups of channels, each node for itself."""
    if not isinstance(source, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        raise Unfollowed
    number, frame = builder.flat(source)
    if frame.axis != 0 or frame.shape != frame.outer:
        raise Unfollowed(MIXED)
    parts = [
        _affine_part(builder, constant, channels, empty).repeat_interleave(places)
        for constant, empty in ((weight, 1.0), (bias, 0.0))
    ]
    operation = LayerNorm((number,), channels // groups * places, parts[0], parts[1], float(eps))
    return _results(builder.shown(builder.emit(operation, frame.width), frame), out)


def softmax(log: bool) -> Translation:
    """Softmax or its logarithm over one axis that is not the nodes'."""

    def translate(builder: Builder, out: Tensor, source: Traced, dim: int, *_: Any) -> Result:
        number, frame = builder.flat(source.viewed(lambda t: t.movedim(dim, -1)))
        if frame.axis == len(frame.shape) - 1:
            raise Unfollowed(MIXED)
        value = builder.emit(Softmax((number,), frame.shape[-1], log), frame.width)
        return builder.shown(value, frame).viewed(lambda t: t.movedim(-1, dim))

    return translate


BATCH_NORMS = (
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm"
)

NORMS: dict[str, Translation] = {
    **dict.fromkeys(BATCH_NORMS.split(), batch_norm),
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "_softmax": softmax(log=False),
    "_log_softmax": softmax(log=True),
}

TRANSLATIONS: dict[str, Translation] = {
    **MOVES,
    **ARITHMETIC,
    **ELEMENTWISE,
    **REDUCTIONS,
    **PRODUCTS,
    **NORMS,
}
"""By the operation's name without namespace, overload and trailing underscore."""
