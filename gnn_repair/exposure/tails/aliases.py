"""What an operation in place does to the other tensors that share its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gnn_repair.exposure.tails.builder import Builder
from gnn_repair.exposure.tails.layout import Frame, Lost, Traced, constant_in
from gnn_repair.exposure.tails.operations import Concatenate

LARGEST = 1 << 27
"""Numbers of a shared storage beyond which its places are not compared one by one: a gigabyte of
places."""
UNKNOWN = Lost("a tensor is written in place through a view, which cannot be followed")

State = Traced | Lost


def rewritten_aliases(
    builder: Builder, target: Tensor, made: State, known: Sequence[tuple[Tensor, State]]
) -> Iterator[tuple[Tensor, State]]:
    """The new state of every known tensor, and of the target's base, that sees the change.

    Args:
        builder: the tail so far.
        target: the tensor that was written.
        made: what it shows now.
        known: the other tensors that messages reach.
    """
    storage = target.untyped_storage().data_ptr()
    seen: dict[int, tuple[Tensor, State | None]] = {
        id(tensor): (tensor, state)
        for tensor, state in known
        if tensor.untyped_storage().data_ptr() == storage
    }
    base = target._base
    if base is not None and base is not target:
        seen.setdefault(id(base), (base, None))
    for alias, state in seen.values():
        yield alias, _rewritten(builder, target, made, alias, state)


def _rewritten(
    builder: Builder, target: Tensor, made: State, alias: Tensor, state: State | None
) -> State:
    if isinstance(made, Lost) or isinstance(state, Lost):
        return made if isinstance(made, Lost) else UNKNOWN
    if _geometry(alias) == _geometry(target):
        return made
    count = target.untyped_storage().nbytes() // target.element_size()
    if count > LARGEST or alias.dtype != target.dtype:
        return UNKNOWN
    places = torch.arange(count, device=target.device)
    mine = places.as_strided(alias.size(), alias.stride(), alias.storage_offset())
    theirs = places.as_strided(target.size(), target.stride(), target.storage_offset())
    nodes, channels = places.new_full((count,), -1), places.new_zeros(count)
    nodes[theirs], channels[theirs] = made.nodes, made.channels
    return _merged(builder, made, alias, state, nodes[mine], channels[mine])


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()


def _merged(
    builder: Builder, made: Traced, alias: Tensor, state: Traced | None, nodes: Tensor, new: Tensor
) -> State:
    """What the alias shows: the written value where it was written, else what it showed."""
    written = nodes >= 0
    if state is None:
        state = _constant(builder, alias, nodes)
        if state is None:
            return UNKNOWN
    width = builder.widths[state.value]
    both = builder.emit(Concatenate((state.value, made.value)), width + builder.widths[made.value])
    return Traced(
        both,
        torch.where(written, nodes, state.nodes),
        torch.where(written, new + width, state.channels),
    )


def _constant(builder: Builder, alias: Tensor, nodes: Tensor) -> Traced | None:
    """A tensor that no message reached before; its node axis is that of what was written."""
    for axis, size in enumerate(alias.shape):
        if size != builder.num_nodes:
            continue
        sizes = [size if other == axis else 1 for other in range(alias.dim())]
        count = torch.arange(size, device=nodes.device).view(sizes)
        if bool(((nodes == count) | (nodes < 0)).all()):
            frame = Frame(tuple(alias.shape), axis, tuple(alias.shape))
            value = builder.constant(constant_in(alias, frame), frame.width)
            return frame.traced(value, builder.device)
    return None
