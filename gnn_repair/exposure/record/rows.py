"""Whose numbers a tensor holds: the node behind every element, followed through a model's run.

Every tensor that nodes stand behind carries one or more :class:`NodeRows`: an index tensor of its
own shape that says which node each element belongs to (−1: none). The index tensors are expanded
(stride 0) along channels, so they cost no more than the model's own edge lists. A gather by an edge
list gives the sender; a function of both ends of an edge carries two; a sum over messages gives the
recipient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MATERIALISED = 1 << 26
"""Elements of an index tensor that a reshape may write out: half a gigabyte."""


@dataclass(frozen=True, eq=False)
class NodeRows:
    """The node behind every element of a tensor."""

    ids: Tensor
    """int64, of the tensor's shape; −1: no node."""
    partial: bool = False
    """Whether some elements are no node's (padding, empty rows of a dense batch)."""

    def viewed(self, view: Callable[[Tensor], Tensor]) -> NodeRows:
        """After an operation that only moves or repeats elements."""
        return NodeRows(view(self.ids), self.partial)

    def varies(self, axis: int) -> bool:
        """Whether different nodes stand along an axis."""
        if self.ids.stride(axis) == 0 or self.ids.shape[axis] < 2:
            return False
        shown = distinct(self.ids, keep=axis)
        if not self.partial:
            return bool((shown != shown.narrow(axis, 0, 1)).any())
        return bool(((shown != shown.amax(axis, keepdim=True)) & (shown >= 0)).any())

    def along(self, axis: int) -> Tensor | None:
        """The nodes along one axis [n], where the other axes only repeat them; else None."""
        moved = distinct(self.ids, keep=axis).movedim(axis, 0)
        if moved.numel() == 0:
            return None if len(moved) else moved.new_empty(0)
        shown = moved.reshape(len(moved), -1)
        first = shown.amax(1) if self.partial else shown[:, 0]
        if shown.shape[1] != 1 and bool(((shown != first.unsqueeze(1)) & (shown >= 0)).any()):
            return None
        return first

    def narrowed(self, axis: int) -> Tensor:
        """One element of an axis along which no other node stands."""
        if self.ids.shape[axis] == 0:
            shape = [1 if a == axis else size for a, size in enumerate(self.ids.shape)]
            return self.ids.new_full(shape, -1)
        if self.partial:
            return self.ids.amax(axis, keepdim=True)
        return self.ids.narrow(axis, 0, 1)


def distinct(ids: Tensor, keep: int | None = None) -> Tensor:
    """The index with every repeated axis (stride 0) cut to one, an axis to keep excepted."""
    for axis in range(ids.dim()):
        if ids.stride(axis) == 0 and axis != keep and ids.shape[axis] > 1:
            ids = ids.narrow(axis, 0, 1)
    return ids


def along_axis(ids: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """A list of nodes [n] laid along one axis of a shape."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return ids.reshape(sizes).expand(tuple(shape))


def same(left: Tensor, right: Tensor) -> bool:
    """Whether two index tensors of one shape hold the same nodes."""
    if left.data_ptr() == right.data_ptr() and left.stride() == right.stride():
        return True
    for axis in range(left.dim()):
        if left.stride(axis) == 0 and right.stride(axis) == 0 and left.shape[axis] > 1:
            left, right = left.narrow(axis, 0, 1), right.narrow(axis, 0, 1)
    return bool((left == right).all())


def union(parts: Sequence[Sequence[NodeRows]]) -> tuple[NodeRows, ...]:
    """What stands behind a function of several tensors of one shape, element by element."""
    kept: list[NodeRows] = []
    for rows in (one for part in parts for one in part):
        for number, other in enumerate(kept):
            if same(rows.ids, other.ids):
                break
            if rows.partial or other.partial:
                joined = _filled(rows.ids, other.ids)
                if joined is not None:
                    kept[number] = NodeRows(joined, rows.partial and other.partial)
                    break
        else:
            kept.append(rows)
    return tuple(kept)


def _filled(left: Tensor, right: Tensor) -> Tensor | None:
    """Both together where neither contradicts the other."""
    if bool(((left != right) & (left >= 0) & (right >= 0)).any()):
        return None
    return torch.where(left < 0, right, left)


def reshaped(ids: Tensor, shape: Sequence[int]) -> Tensor:
    """Another shape; ``ValueError`` where writing the index out would take too much memory."""
    try:
        return ids.view(tuple(shape))
    except RuntimeError:
        if ids.numel() > MATERIALISED:
            raise ValueError("too large to follow") from None
        return ids.reshape(tuple(shape))


def rewritten(
    alias: Tensor, known: tuple[NodeRows, ...], target: Tensor, behind: tuple[NodeRows, ...]
) -> tuple[NodeRows, ...]:
    """The nodes behind a tensor after another one that shares its memory was written."""
    if not behind:
        return known
    geometry = [(t.size(), t.stride(), t.storage_offset()) for t in (alias, target)]
    if geometry[0] == geometry[1]:
        return behind
    count = target.untyped_storage().nbytes() // target.element_size()
    if count > MATERIALISED or alias.dtype != target.dtype:
        return ()
    made = []
    for rows in behind:
        places = torch.full((count,), -1)
        if known:
            places.as_strided(*geometry[0]).copy_(known[0].ids)
        places.as_strided(*geometry[1]).copy_(rows.ids)
        made.append(compact(places.as_strided(*geometry[0])))
    return tuple(made)


def compact(ids: Tensor) -> NodeRows:
    """An index that is the same along the last axis, not written out."""
    partial = bool((ids < 0).any())
    last = ids.dim() - 1
    if last >= 1 and ids.numel() and bool((ids == ids.narrow(last, 0, 1)).all()):
        return NodeRows(ids.narrow(last, 0, 1).clone().expand(ids.shape), partial)
    return NodeRows(ids.clone(), partial)


def axes_of(dims: Any, count: int) -> list[int]:
    """The axes that an operation's ``dim`` argument names; None or empty: all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(count))
    several = dims if isinstance(dims, list | tuple) else [dims]
    return sorted(d % count for d in several)
