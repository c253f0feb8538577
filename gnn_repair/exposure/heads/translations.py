"""Translations of PyTorch's operations (ATen) into those of a head, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnn_repair.exposure.heads.building import (
    MERGES,
    MIXES,
    Builder,
    Frame,
    Lost,
    Operand,
    Places,
    TracedTensor,
    Untranslatable,
    constant_in,
    frame_of,
    traced_in,
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

Translation = Callable[..., Any]
"""(builder, the real output, *arguments, **keywords) → what the output shows.

Arguments are those of the ATen operation with a :class:`TracedTensor` in place of every tensor that
messages reach. Raises :class:`Untranslatable` where it does not apply.
"""

aten = torch.ops.aten


def _tensors(*operands: Any) -> None:
    """Raise unless messages reach none of these."""
    if traced_in(operands):
        raise Untranslatable


# Elements that only move --------------------------------------------------------------------------


def same(builder: Builder, out: Any, source: Operand, *_: Any, **__: Any) -> TracedTensor:
    """clone, detach, contiguous: the tensor itself."""
    if not isinstance(source, TracedTensor) or not out.dtype.is_floating_point:
        raise Untranslatable
    return source


def restrided(builder: Builder, out: Tensor, source: TracedTensor, *_: Any) -> TracedTensor:
    """as_strided to the strides of a plain tensor of the same shape, as in adaptive_avg_pool1d."""
    if out.shape != source.nodes.shape or not out.is_contiguous():
        raise Untranslatable
    return source


def reshaped(builder: Builder, out: Tensor, source: TracedTensor, *_: Any) -> TracedTensor:
    """view, reshape, flatten."""
    return source.viewed(lambda index: index.reshape(out.shape))


def moved(operation: Callable[..., Any]) -> Translation:
    """The same operation on both index tensors."""

    def translate(builder: Builder, out: Any, source: Operand, *args: Any, **keys: Any) -> Any:
        _tensors(args, keys)
        if not isinstance(source, TracedTensor):
            raise Untranslatable
        nodes = operation(source.nodes, *args, **keys)
        channels = operation(source.channels, *args, **keys)
        if isinstance(nodes, Tensor):
            return TracedTensor(source.value, nodes, channels)
        pairs = zip(nodes, channels, strict=True)
        return tuple(TracedTensor(source.value, n, c) for n, c in pairs)

    return translate


def chosen(operation: Callable[..., Any]) -> Translation:
    """Elements picked by a constant index, unless every node picks its own."""
    move = moved(operation)

    def translate(builder: Builder, out: Any, source: Operand, *args: Any, **keys: Any) -> Any:
        picked = move(builder, out, source, *args, **keys)
        if isinstance(picked, TracedTensor) and frame_of(picked, builder.num_nodes) is None:
            raise Untranslatable("picks some of the nodes or mixes them")
        return picked

    return translate


def _seen(operand: Any, view: Callable[[Tensor], Tensor]) -> Any:
    """An operand after an operation that only moves or repeats elements."""
    return operand.viewed(view) if isinstance(operand, TracedTensor) else view(operand)


def cat(builder: Builder, out: Tensor, parts: Sequence[Any], dim: int = 0) -> TracedTensor:
    """Concatenation along channels; constants become branches of their own."""
    dim = dim % out.dim()
    # The old convention that an empty tensor of one axis may be concatenated with anything.
    parts = [part for part in parts if tuple(part.shape) != (0,)]
    _, like = builder.flat(next(part for part in parts if isinstance(part, TracedTensor)))
    if like.axis == dim and like.shape == like.outer:
        return _rows_joined(builder, out, parts, dim)
    if like.shape == (1, *like.outer):  # a single recipient, without an axis for it
        lifted = [_seen(part, lambda t: t.unsqueeze(0)) for part in parts]
        made = cat(builder, out.unsqueeze(0), lifted, dim + 1)
        return made.viewed(lambda t: t.squeeze(0))
    if like.shape != like.outer:
        raise Untranslatable(MIXES)
    numbers, indices, start = [], [], 0
    for part in parts:
        number, frame = _branch(builder, part, like)
        numbers.append(number)
        index = torch.arange(frame.width, device=builder.device).view(frame.rest) + start
        indices.append(index.unsqueeze(frame.axis))
        start += frame.width
    value = builder.emit(Concatenate(tuple(numbers)))
    channels = torch.cat(indices, dim).expand(out.shape)
    whole = builder.shown(value, Frame(tuple(out.shape), like.axis, tuple(out.shape), like.places))
    return TracedTensor(value, whole.nodes, channels)


def _branch(builder: Builder, part: Operand, like: Frame) -> tuple[int, Frame]:
    if isinstance(part, TracedTensor):
        number, frame = builder.flat(part)
        if frame.axis != like.axis or frame.shape != frame.outer or frame.places != like.places:
            raise Untranslatable(MIXES)
        return number, frame
    assert isinstance(part, Tensor)
    frame = Frame(tuple(part.shape), like.axis, tuple(part.shape), like.places)
    return builder.constant(constant_in(part, frame)), frame


def _rows_joined(builder: Builder, out: Tensor, parts: Sequence[Any], dim: int) -> TracedTensor:
    """Rows of different nodes one after another; rows that no message reaches are nobody's."""
    joined: TracedTensor | None = None
    start = 0
    for part in parts:
        places = torch.arange(start, start + part.shape[dim], device=builder.device)
        start += part.shape[dim]
        if isinstance(part, TracedTensor):
            joined = _put(builder, joined, part, dim, places, tuple(out.shape))
    assert joined is not None
    return joined


def _put(
    builder: Builder, base: TracedTensor | None, part: TracedTensor, dim: int, places: Tensor,
    shape: tuple[int, ...],
) -> TracedTensor:  # fmt: skip
    """A tensor with another's rows in some places, whose own nodes stand there."""
    value, frame, part_nodes = _rows_of(builder, part, dim, len(places))
    nodes = torch.full((shape[dim],), -1, device=builder.device)
    if base is not None:
        before, base_frame, nodes = _rows_of(builder, base, dim, shape[dim])
        if base_frame.width != frame.width:
            raise Untranslatable(MIXES)
        mask = torch.zeros(builder.num_nodes, 1, dtype=torch.float64, device=builder.device)
        mask[part_nodes[part_nodes >= 0]] = 1.0
        mask = mask.expand(-1, frame.width)
        if before != value:
            both = builder.scaled(before, 1 - mask, 0.0), builder.scaled(value, mask, 0.0)
            value = builder.emit(Add(both, (1.0, 1.0)))
    nodes[places] = part_nodes
    inside = nodes[nodes >= 0]
    if inside.unique().numel() < inside.numel():
        raise Untranslatable(MERGES)
    whole = torch.equal(nodes, torch.arange(builder.num_nodes, device=builder.device))
    some = None if whole else Places(nodes, builder.num_nodes)
    return builder.shown(value, Frame(shape, dim, shape, some))


def _rows_of(
    builder: Builder, part: TracedTensor, dim: int, count: int
) -> tuple[int, Frame, Tensor]:
    """A tensor whose rows are nodes: its value, its frame and the node of every row."""
    number, frame = builder.flat(part)
    if frame.shape != frame.outer or frame.axis != dim:
        raise Untranslatable(MIXES)
    if frame.places is None:
        return number, frame, torch.arange(count, device=builder.device)
    return number, frame, frame.places.nodes.clone()


def put_rows(
    builder: Builder, out: Tensor, base: Operand, dim: int, index: Tensor, values: Operand
) -> TracedTensor:
    """index_copy, and index_put along the nodes: rows written into a tensor."""
    dim, shape = dim % out.dim(), tuple(out.shape)
    if not isinstance(values, TracedTensor):
        return index_put(builder, out, base, [None] * dim + [index], values)
    if not isinstance(index, Tensor):
        raise Untranslatable
    if isinstance(base, Tensor):  # every node's own constant row, where rows are the nodes'
        if base.shape[dim] != builder.num_nodes:
            return _put(builder, None, values, dim, index, shape)
        frame = Frame(shape, dim, shape)
        # Memory that was not yet written may hold anything, and is overwritten.
        rows = constant_in(base.nan_to_num(0.0, 0.0, 0.0), frame)
        base = builder.shown(builder.constant(rows), frame)
    assert isinstance(base, TracedTensor)
    return _put(builder, base, values, dim, index, shape)


def index_put(
    builder: Builder, out: Tensor, base: Operand, indices: Sequence[Any], values: Operand,
    accumulate: bool = False,
) -> TracedTensor:  # fmt: skip
    """Rows written by one list of nodes, or constants."""
    if isinstance(values, Tensor) and not accumulate and not traced_in(indices):
        zeros = torch.zeros(out.shape, dtype=torch.float64, device=builder.device)
        written = (zeros.new_ones(()), values.double())
        mask, new = (aten.index_put(zeros, list(indices), value) for value in written)
        return where(builder, out, mask, new, base)
    used = [place for place, index in enumerate(indices) if index is not None]
    if accumulate or len(used) != 1 or not isinstance(values, TracedTensor):
        raise Untranslatable
    index = indices[used[0]]
    if not isinstance(index, Tensor) or index.dim() != 1 or len(values.shape) != out.dim():
        raise Untranslatable
    index = index.nonzero().view(-1) if index.dtype == torch.bool else index
    return put_rows(builder, out, base, used[0], index, values)


def copied(builder: Builder, out: Tensor, target: Operand, source: Operand = 0.0, *_: Any) -> Any:
    """copy_, fill_, zero_: the source takes the target's place."""
    if isinstance(source, TracedTensor):
        return source.viewed(lambda t: t.expand(out.shape))
    assert isinstance(target, TracedTensor)
    frame = builder.flat(target)[1]
    constant = torch.as_tensor(source, dtype=torch.float64, device=builder.device)
    return builder.shown(builder.constant(constant_in(constant, frame)), frame)


# Arithmetic ---------------------------------------------------------------------------------------


def each(make: Callable[..., int], count: int = 1) -> Translation:
    """A function (builder, *operands, *settings) → value of the elements of ``count`` operands, of
    which those that messages reach are values and the others flat tensors."""

    def translate(builder: Builder, out: Tensor, *args: Any, **keys: Any) -> TracedTensor:
        if not traced_in(args[:count]):
            raise Untranslatable
        frame, operands = builder.aligned(out.shape, *args[:count])
        return builder.shown(make(builder, *operands, *args[count:], **keys), frame)

    return translate


def _add(builder: Builder, left: int | Tensor, right: int | Tensor, alpha: float = 1) -> int:
    """left + α · right."""
    if isinstance(left, Tensor):
        assert isinstance(right, int)
        return builder.scaled(right, float(alpha), left)
    if isinstance(right, Tensor):
        return builder.scaled(left, 1.0, alpha * right)
    return builder.emit(Add((left, right), (1.0, float(alpha))))


def _multiply(builder: Builder, left: int | Tensor, right: int | Tensor) -> int:
    """left ⊙ right."""
    if isinstance(left, Tensor):
        assert isinstance(right, int)
        return builder.scaled(right, left, 0.0)
    if isinstance(right, Tensor):
        return builder.scaled(left, right, 0.0)
    return (
        builder.applied("square", left) if left == right else builder.emit(Multiply((left, right)))
    )


def _where(builder: Builder, mask: int | Tensor, left: int | Tensor, right: int | Tensor) -> int:
    """left where a constant mask is on, else right."""
    if isinstance(mask, int):
        raise Untranslatable
    parts = []
    for value, other, share in ((left, right, mask), (right, left, 1 - mask)):
        if isinstance(value, int):
            # Not a product: what a mask hides may be infinite.
            rest = torch.where(share > 0, 0.0, other) if isinstance(other, Tensor) else 0.0
            parts.append(builder.scaled(value, share, rest))
    return parts[0] if len(parts) == 1 else builder.emit(Add((parts[0], parts[1]), (1.0, 1.0)))


def _prelu(builder: Builder, value: int | Tensor, slope: int | Tensor) -> int:
    """Leaky ReLU with learned slopes."""
    if isinstance(value, Tensor) or isinstance(slope, int) or slope.dim() > 1:
        raise Untranslatable
    return builder.applied("leaky_relu", value, slope)


def _maximum(builder: Builder, *operands: int | Tensor) -> int:
    numbers = [part if isinstance(part, int) else builder.constant(part) for part in operands]
    return _largest(builder, numbers, 1.0)


add, mul, where = each(_add, 2), each(_multiply, 2), each(_where, 3)


def div(
    builder: Builder, out: Tensor, left: Any, right: Any, rounding_mode: str | None = None
) -> TracedTensor:
    """left / right; by the norm of left itself, ``normalize``."""
    if rounding_mode is not None:
        raise Untranslatable
    if not isinstance(right, TracedTensor):
        # Inverted before it is laid out over all nodes: those that are not divided have a zero.
        divisor = torch.as_tensor(right, dtype=torch.float64, device=builder.device)
        return mul(builder, out, left, 1 / divisor)
    if (
        isinstance(left, TracedTensor)
        and (normal := _normalized(builder, out, left, right)) is not None
    ):
        return normal
    return mul(builder, out, left, ELEMENTWISE["reciprocal"](builder, out, right))


def _normalized(
    builder: Builder, out: Tensor, left: TracedTensor, right: TracedTensor
) -> TracedTensor | None:
    norm = builder.norms.get(right.value)
    if norm is None or left.shape != out.shape:
        return None
    value, frame = builder.flat(left)
    order = _order(builder, value, norm.inputs[0])
    if order is None:
        return None
    # Where every channel's norm stands among the norms: that of the part the channel is in.
    layout = frame_of(right.viewed(lambda t: t.expand(out.shape)), builder.num_nodes)
    places = torch.arange(frame.width, device=builder.device) // norm.size
    if layout is None or layout[0] != frame or not torch.equal(layout[1][order], places):
        return None
    normal = builder.emit(norm)
    return builder.shown(builder.select(normal, order.argsort()), frame)


def _order(builder: Builder, value: int, source: int) -> Tensor | None:
    """How the channels of a value are permuted to make the source; None: it is made otherwise."""
    whole = torch.arange(builder.widths[value], device=builder.device)
    if source == value:
        return whole
    selection = builder.maker(source)
    if not isinstance(selection, Select) or selection.inputs != (value,):
        return None
    return selection.index if torch.equal(selection.index.sort().values, whole) else None


# Functions of elements ----------------------------------------------------------------------------


def _elu(
    builder: Builder, value: int, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> int:
    """ELU and SELU: scale · x, or scale · α (e^{s x} − 1) below 0."""
    if input_scale != 1:
        value = builder.scaled(value, float(input_scale), 0.0)
    value = builder.applied("elu", value, alpha * input_scale)
    return value if scale == input_scale else builder.scaled(value, scale / input_scale, 0.0)


def _softplus(builder: Builder, value: int, beta: float = 1, threshold: float = 20) -> int:
    """softplus(β x) / β, as PyTorch computes it."""
    if threshold != 20 or not beta > 0:
        raise Untranslatable
    if beta == 1:
        return builder.applied("softplus_linear", value)
    inner = builder.applied("softplus_linear", builder.scaled(value, float(beta), 0.0))
    return builder.scaled(inner, 1 / beta, 0.0)


def _clamp(builder: Builder, value: int, low: Any = None, high: Any = None, **keys: Any) -> int:
    """min(max(x, low), high) out of ReLUs; a norm bounded below stays one to divide by."""
    low, high = (
        limit.item() if isinstance(limit, Tensor) and limit.numel() == 1 else limit
        for limit in (keys.get("min", low), keys.get("max", high))
    )
    if isinstance(low, Tensor | TracedTensor) or isinstance(high, Tensor | TracedTensor):
        raise Untranslatable
    norm, clamped = builder.norms.get(value), value
    if low is not None:
        below = builder.applied("relu", builder.scaled(clamped, 1.0, -float(low)))
        clamped = builder.scaled(below, 1.0, float(low))
    if high is not None:
        above = builder.applied("relu", builder.scaled(clamped, -1.0, float(high)))
        clamped = builder.scaled(above, -1.0, float(high))
    if norm is not None and low is not None and high is None:
        builder.norms[clamped] = replace(norm, eps=max(norm.eps, float(low)))
    return clamped


def _root(builder: Builder, value: int) -> int:
    """√x; of a sum of squares, a norm that may be divided by."""
    root, total = builder.applied("sqrt", value), builder.maker(value)
    if not isinstance(total, Affine):
        return root
    squares, width = builder.maker(total.inputs[0]), builder.widths[total.inputs[0]]
    order = torch.arange(width, device=builder.device)
    if isinstance(squares, Select):  # the summed axes were not the last
        order = squares.index
        squares = builder.maker(squares.inputs[0])
    if isinstance(squares, Activation) and squares.name == "square":
        size = width // builder.widths[value]
        blocks = builder.eye(builder.widths[value]).repeat_interleave(size, 1)
        if torch.equal(total.weight, blocks) and not total.bias.any():
            source = builder.select(squares.inputs[0], order)
            builder.norms[root] = Normalize((source,), size, 0.0)
    return root


def _largest(builder: Builder, numbers: list[int], sign: float) -> int:
    """The elementwise maximum of values, or their minimum as −max(−x)."""
    if sign < 0:
        numbers = [builder.scaled(number, -1.0, 0.0) for number in numbers]
    value = builder.emit(Maximum(tuple(numbers)))
    return value if sign > 0 else builder.scaled(value, -1.0, 0.0)


# Sums and extremes over axes that are not the nodes' ----------------------------------------------


def parts_of(
    builder: Builder, source: TracedTensor, dims: int | Sequence[int] | None
) -> tuple[int, Frame, int]:
    """The value with the reduced axes last in every part, the kept frame and a part's size."""
    count = len(source.shape)
    dims = [dims] if isinstance(dims, int) else dims
    reduced = sorted(d % count for d in dims) if dims else list(range(count))
    kept = [axis for axis in range(count) if axis not in reduced]
    size = prod(source.shape[axis] for axis in reduced)
    shape = [source.shape[axis] for axis in kept]
    turned = source.viewed(lambda t: t.permute(*kept, *reduced).reshape(*shape, size))
    value, frame = builder.flat(turned)
    if frame.axis == len(frame.shape) - 1 or frame.shape[-1] != size:
        raise Untranslatable(MIXES)
    return value, Frame(frame.shape[:-1], frame.axis, tuple(shape), frame.places), size


def reduced(make: Callable[[Builder, int, int, int], int]) -> Translation:
    """What (builder, value, number of parts, their size) → value makes of every part."""

    def translate(
        builder: Builder, out: Any, source: TracedTensor, dims: Any = None, *_: Any, **__: Any
    ) -> Any:
        value, frame, size = parts_of(builder, source, dims)
        made = builder.shown(make(builder, value, frame.width, size), frame)
        first = out if isinstance(out, Tensor) else out[0]
        made = made.viewed(lambda t: t.reshape(first.shape))  # reduced axes may be kept as ones
        return made if isinstance(out, Tensor) else (made, Lost("it reads where a maximum stands"))

    return translate


def _total(builder: Builder, value: int, parts: int, size: int) -> int:
    return builder.affine(value, builder.eye(parts).repeat_interleave(size, 1))


def _places(builder: Builder, value: int, parts: int, size: int) -> list[int]:
    """The first channels of all parts, the second ones, and so on."""
    starts = torch.arange(parts, device=builder.device) * size
    return [builder.select(value, starts + place) for place in range(size)]


def _log_sum_exp(builder: Builder, value: int, parts: int, size: int) -> int:
    """log Σ exp x = x₁ − log softmax₁."""
    normal = builder.emit(Softmax((value,), size, True))
    starts = torch.arange(parts, device=builder.device) * size
    both = builder.select(value, starts), builder.select(normal, starts)
    return builder.emit(Add(both, (1.0, -1.0)))


def extreme(sign: float) -> Translation:
    """amax (sign 1) and amin (sign −1); max and min over one axis."""
    return reduced(lambda b, value, parts, size: _largest(b, _places(b, value, parts, size), sign))


def cumulated(
    builder: Builder, out: Tensor, source: TracedTensor, dim: int, **_: Any
) -> TracedTensor:
    """Sums of everything up to each place of an axis that is not the nodes'."""
    value, frame, size = parts_of(builder, source, dim)
    shape, triangle = (*frame.shape, size), torch.ones_like(builder.eye(size)).tril()
    sums = builder.affine(value, torch.kron(builder.eye(frame.width), triangle))
    return builder.shown(sums, Frame(shape, frame.axis, shape)).viewed(lambda t: t.movedim(-1, dim))


# Products with matrices ---------------------------------------------------------------------------

WIDEST = 1 << 24
"""Numbers in the matrix of a product repeated over heads, beyond which it is kept opaque: 128 MB of
mostly zeros."""


def mm(builder: Builder, out: Tensor, left: Operand, right: Operand) -> TracedTensor:
    """[N, d] × [d, k] by a constant, from either side."""
    if isinstance(left, TracedTensor) and isinstance(right, Tensor):
        return _from_right(builder, out, left, right)
    if isinstance(left, Tensor) and isinstance(right, TracedTensor):
        turned = _from_right(builder, out.t(), right.viewed(lambda t: t.t()), left.t())
        return turned.viewed(lambda t: t.t())
    raise Untranslatable(MIXES)


def _from_right(builder: Builder, out: Tensor, left: TracedTensor, right: Tensor) -> TracedTensor:
    value, frame = builder.flat(left)
    if frame.axis == len(frame.shape) - 1:
        raise Untranslatable(MIXES)
    repeats = frame.width // frame.shape[-1]
    if (frame.width * repeats * right.shape[1]) > WIDEST:
        raise Untranslatable
    weight = torch.kron(builder.eye(repeats), right.detach().double().t().contiguous())
    made = builder.affine(value, weight)
    return builder.shown(made, frame.last(right.shape[1], tuple(out.shape)))


def bmm(builder: Builder, out: Tensor, left: Any, right: Any) -> TracedTensor:
    """[B, m, d] × [B, d, k]: a product for every head, or for every node."""
    if isinstance(left, TracedTensor) and isinstance(right, Tensor):
        product = _by_head(builder, out, left, right)
        if product is not None:
            return product
    if isinstance(left, Tensor) and isinstance(right, TracedTensor):
        product = _by_head(builder, out.mT, right.viewed(lambda t: t.mT), left.mT)
        if product is not None:
            return product.viewed(lambda t: t.mT)
    # Nodes are the batch: products element by element, summed over d.
    wide = (*out.shape[:2], left.shape[2], out.shape[2])
    spread = [
        _seen(side, lambda t, a=axis: t.unsqueeze(a).expand(wide))  # type: ignore[misc]
        for side, axis in ((left, 3), (right, 1))
    ]
    terms = mul(builder, torch.empty(wide, device="meta"), *spread)
    made = reduced(_total)(builder, out, terms, [2])
    assert isinstance(made, TracedTensor)
    return made


def _by_head(
    builder: Builder, out: Tensor, left: TracedTensor, right: Tensor
) -> TracedTensor | None:
    """Nodes are the rows: one matrix for each of B heads, together block diagonal."""
    value, frame = builder.flat(left)
    if frame.shape != frame.outer or frame.axis != 1:
        return None
    made = builder.affine(value, torch.block_diag(*right.detach().double().mT))
    return builder.shown(made, Frame(tuple(out.shape), 1, tuple(out.shape), frame.places))


# Normalisations -----------------------------------------------------------------------------------


def _results(made: TracedTensor, out: Any) -> Any:
    """The normalised tensor, and statistics that hardly anything reads."""
    lost = Lost("it reads a normalisation's statistics")
    return made if isinstance(out, Tensor) else (made, *[lost] * (len(out) - 1))


def batch_norm(builder: Builder, out: Any, source: Operand, *args: Any) -> Any:
    """By running statistics: s ⊙ x + b."""
    weight, bias, mean, variance, *rest = args
    training = rest[0] if isinstance(rest[0], bool) else False
    eps = next(value for value in reversed(rest) if isinstance(value, float))
    if training or mean is None or not isinstance(source, TracedTensor):
        raise Untranslatable(MIXES)
    shape = [1, -1, *[1] * (len(source.shape) - 2)]
    scale = 1 / (variance.double() + eps).sqrt()
    factor = scale if weight is None else scale * weight.double()
    shift = -mean.double() * factor
    shift = shift if bias is None else shift + bias.double()
    number, frame = builder.flat(source)
    constants = [constant_in(constant.view(shape), frame) for constant in (factor, shift)]
    return _results(builder.shown(builder.scaled(number, *constants), frame), out)


def _normalised(
    builder: Builder, out: Any, place: tuple[int, Frame], size: int, constants: Sequence[Any],
    eps: float, repeat: int = 1,
) -> Any:  # fmt: skip
    """A layer norm over parts; ``constants`` are weight and bias or None, each ``repeat`` times."""
    (number, frame), parts = place, []
    for constant, empty in zip(constants, (1.0, 0.0), strict=True):
        full = builder.eye(1)[0] * empty if constant is None else constant.detach().double()
        flat = full.reshape(-1).repeat_interleave(repeat)
        parts.append(flat.repeat(frame.width // flat.numel()))
    operation = LayerNorm((number,), size, parts[0], parts[1], float(eps))
    return _results(builder.shown(builder.emit(operation), frame), out)


def layer_norm(
    builder: Builder, out: Any, source: Operand, shape: Sequence[int], weight: Any, bias: Any,
    eps: float,
) -> Any:  # fmt: skip
    """Over the last axes."""
    _tensors(weight, bias)
    assert isinstance(source, TracedTensor)
    number, frame = builder.flat(source)
    if frame.axis >= len(frame.shape) - len(shape):
        raise Untranslatable(MIXES)
    return _normalised(builder, out, (number, frame), prod(shape), (weight, bias), eps)


def group_norm(
    builder: Builder, out: Any, source: Operand, weight: Any, bias: Any, count: int, channels: int,
    places: int, groups: int, eps: float,
) -> Any:  # fmt: skip
    """Over groups of channels, each node for itself."""
    _tensors(weight, bias)
    assert isinstance(source, TracedTensor)
    number, frame = builder.flat(source)
    if frame.axis != 0 or frame.shape != frame.outer:
        raise Untranslatable(MIXES)
    size, constants = channels // groups * places, (weight, bias)
    return _normalised(builder, out, (number, frame), size, constants, eps, places)


def softmax(log: bool) -> Translation:
    """Softmax or its logarithm over one axis that is not the nodes'."""

    def translate(
        builder: Builder, out: Tensor, source: TracedTensor, dim: int, *_: Any
    ) -> TracedTensor:
        number, frame = builder.flat(source.viewed(lambda t: t.movedim(dim, -1)))
        if frame.axis == len(frame.shape) - 1:
            raise Untranslatable(MIXES)
        value = builder.emit(Softmax((number,), frame.shape[-1], log))
        return builder.shown(value, frame).viewed(lambda t: t.movedim(-1, dim))

    return translate


# The tables ---------------------------------------------------------------------------------------


def _power(x: Tensor, exponent: Any) -> Tensor:
    """x to the power of 2, ±½ or −1."""
    functions = {2: torch.square, 0.5: torch.sqrt, -0.5: torch.rsqrt, -1: torch.reciprocal}
    if isinstance(exponent, Tensor) or exponent not in functions:
        raise Untranslatable
    return functions[exponent](x)


def _threshold(x: Tensor, level: float, below: float) -> Tensor:
    """x above the level, else another number; continuous only where the two agree."""
    if level != below:
        raise Untranslatable
    return x.clamp(min=level)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    """x₁ ⊙ σ(x₂), the halves of one axis."""
    first, second = x.split(x.shape[dim] // 2, dim)
    return first * second.sigmoid()


def _rows_added(base: Tensor, dim: int, index: Tensor, rows: Tensor, *, alpha: float = 1) -> Tensor:
    """Rows added to others, to each at most once."""
    if index.unique().numel() < index.numel():
        raise Untranslatable(MIXES)
    return base + torch.zeros_like(base).index_copy(dim, index, alpha * rows)


WIDE = 512
"""Differences per node up to which distances are taken apart; bounds of more would take minutes."""


def _distance(left: Tensor, right: Tensor, p: float = 2.0, *_: Any) -> Tensor:
    """Distances of rows to constant rows."""
    if p not in (1, 2) or left.shape[-1] * right.shape[-2] > WIDE:
        raise Untranslatable
    between = left.unsqueeze(-2) - right.unsqueeze(-3)
    return between.abs().sum(-1) if p == 1 else between.square().sum(-1).sqrt()


def _mean(x: Tensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    total = x.sum(dims, keepdim)
    return total * (total.numel() / x.numel())


def _product(x: Tensor, dim: int | None = None, keepdim: bool = False, **_: Any) -> Tensor:
    """One after another."""
    if dim is None:  # over the nodes as well
        raise Untranslatable(MIXES)
    product = reduce(torch.mul, x.unbind(dim))
    return product.unsqueeze(dim) if keepdim else product


def _vector_norm(
    x: Tensor, order: float | None = 2, dims: Any = None, keepdim: bool = False, **_: Any
) -> Tensor:
    """The Euclidean norm of parts; what divides by it becomes a normalisation."""
    if order not in (2, None):
        raise Untranslatable
    return x.square().sum(dims, keepdim).sqrt()


def _bilinear(left: Tensor, weight: Tensor, right: Tensor, *_: Any) -> Tensor:
    """x W y of every row: nn.Bilinear."""
    mapped = torch.bmm(left.expand(len(weight), *left.shape), weight)
    return (mapped * right).sum(2).t()


def _with_base(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """β · base + α · product: addmm, addmv, baddbmm."""
    return lambda base, left, right, beta=1, alpha=1: (
        (base if beta == 1 else beta * base)
        + (product(left, right) if alpha == 1 else alpha * product(left, right))
    )


def _rrelu(
    x: Tensor, noise: Tensor, low: float = 1 / 8, high: float = 1 / 3, training: bool = False,
    *_: Any,
) -> Tensor:  # fmt: skip
    """In evaluation mode a leaky ReLU."""
    if training:
        raise Untranslatable
    return functional.leaky_relu(x, (low + high) / 2)


COMPOSED: dict[str, Callable[..., Tensor]] = {
    "index_add": _rows_added,
    "rrelu_with_noise": _rrelu,
    "stack": lambda parts, dim=0: torch.cat([part.unsqueeze(dim) for part in parts], dim),
    "neg": lambda x: x * -1.0,
    "addcmul": lambda base, x, y, value=1: base + value * (x * y),
    "lerp": lambda start, end, weight: start + weight * (end - start),
    "abs": lambda x: x.relu() + (-x).relu(),
    "rsqrt": lambda x: x.sqrt().reciprocal(),
    "pow": _power,
    "celu": lambda x, alpha=1.0: functional.elu(x / alpha) * alpha,
    "hardtanh": lambda x, low=-1.0, high=1.0: x.clamp(low, high),
    "threshold": _threshold,
    "hardsigmoid": lambda x: (x / 6 + 0.5).clamp(0.0, 1.0),
    "hardswish": lambda x: x * functional.hardsigmoid(x),
    "glu": _glu,
    "minimum": lambda x, y: -torch.maximum(-x, -y),
    "_euclidean_dist": _distance,
    "_cdist_forward": _distance,
    "mv": lambda matrix, vector: torch.mm(matrix, vector.unsqueeze(1)).squeeze(1),
    "addmv": _with_base(torch.mv),
    "addmm": _with_base(torch.mm),
    "baddbmm": _with_base(torch.bmm),
    "_trilinear": _bilinear,
    "mean": _mean,
    "prod": _product,
    **dict.fromkeys(("linalg_vector_norm", "norm"), _vector_norm),
}
"""Operations made of others, as PyTorch would write them: they are run once more, and followed
step by step. Only operations that PyTorch itself does not take apart (mm, not matmul) may stand
here."""

MOVING = (
    "permute transpose t unsqueeze squeeze slice select expand split split_with_sizes unbind flip "
    "repeat diagonal"
)
CHOOSING = "index_select index roll gather"
PLAIN = "relu silu mish tanh sigmoid square exp log reciprocal"
BATCH_NORMS = (
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm"
)

ELEMENTWISE: dict[str, Translation] = {
    **{name: each(lambda b, value, name=name: b.applied(name, value)) for name in PLAIN.split()},
    "gelu": each(
        lambda b, value, approximate="none": b.applied(
            "gelu" if approximate == "none" else "gelu_tanh", value
        )
    ),
    "leaky_relu": each(lambda b, value, slope=0.01: b.applied("leaky_relu", value, slope)),
    "elu": each(_elu),
    "softplus": each(_softplus),
    "clamp": each(_clamp),
    "clamp_min": each(_clamp),
    "clamp_max": each(lambda b, value, high: _clamp(b, value, None, high)),
    "sqrt": each(_root),
}

TRANSLATIONS: dict[str, Translation] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "_reshape_alias"), reshaped),
    "as_strided": restrided,
    **dict.fromkeys(("clone", "detach", "alias", "lift_fresh", "_to_copy", "contiguous"), same),
    **{name: moved(getattr(aten, name)) for name in MOVING.split()},
    **{name: chosen(getattr(aten, name)) for name in CHOOSING.split()},
    "unsafe_split": moved(aten.split),
    "unsafe_split_with_sizes": moved(aten.split_with_sizes),
    "cat": cat,
    "index_copy": put_rows,
    "index_put": index_put,
    **dict.fromkeys(("copy", "fill", "zero"), copied),
    "add": add,
    **dict.fromkeys(
        ("sub", "subtract"), each(lambda b, left, right, alpha=1: _add(b, left, right, -alpha), 2)
    ),
    "rsub": each(lambda b, left, right, alpha=1: _add(b, right, left, -alpha), 2),
    **dict.fromkeys(("mul", "multiply"), mul),
    **dict.fromkeys(("div", "true_divide"), div),
    "where": where,
    "masked_fill": lambda builder, out, x, mask, value: where(builder, out, mask, value, x),
    **ELEMENTWISE,
    **dict.fromkeys(("prelu", "_prelu_kernel"), each(_prelu, 2)),
    "maximum": each(_maximum, 2),
    "sum": reduced(_total),
    "logsumexp": reduced(_log_sum_exp),
    "cumsum": cumulated,
    **dict.fromkeys(("amax", "max"), extreme(1.0)),
    **dict.fromkeys(("amin", "min"), extreme(-1.0)),
    "mm": mm,
    "bmm": bmm,
    **dict.fromkeys(BATCH_NORMS.split(), batch_norm),
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "_softmax": softmax(log=False),
    "_log_softmax": softmax(log=True),
}
"""By the operation's name without namespace, overload and trailing underscore."""
