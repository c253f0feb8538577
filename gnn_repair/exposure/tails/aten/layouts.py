"""Operations that only move, repeat or join elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_repair.exposure.tails.aten.registry import Result, Translation
from gnn_repair.exposure.tails.builder import Builder, Operand, Unfollowed
from gnn_repair.exposure.tails.layout import Frame, Places, Traced, constant_in, frame_of
from gnn_repair.exposure.tails.operations import Add, Concatenate

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

TRANSLATIONS: dict[str, Translation] = {
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
