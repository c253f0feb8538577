"""Keeping an operation without translation as it is, once it is seen to work node by node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from gnn_repair.exposure.tails.builder import Builder, Unfollowed
from gnn_repair.exposure.tails.layout import Frame, Traced
from gnn_repair.exposure.tails.opaque import Opaque, Slot

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Run on half of the nodes, an operation may round differently by this much of its size."""
MIXES = "mixes the values of different nodes"
TRUSTING = ("batch_norm", "group_norm", "instance_norm", "native_", "mkldnn", "cudnn", "miopen")
"""Operations whose kernels read past the end of statistics that are too short instead of raising,
so they are not tried on half of the nodes. In evaluation mode they have translations of their own;
what is left normalises over nodes."""
CUT = ("gather", "index_select", "take_along_dim", "bmm", "baddbmm", "where", "scatter")
"""Beside elementwise operations, those that check the sizes of what they are given, so that their
constants may be tried by node."""


@dataclass(eq=False)
class _Call:
    """An operation's arguments, flattened, and the node axis of each (None: shared)."""

    target: Any
    leaves: list[Any]
    spec: Any
    axes: list[int | None] = field(default_factory=list)

    def on(self, nodes: Tensor) -> Any:
        """The operation run for some nodes."""
        picked = [
            leaf if axis is None else leaf.index_select(axis, nodes)
            for leaf, axis in zip(self.leaves, self.axes, strict=True)
        ]
        arguments, keywords = tree_unflatten(picked, self.spec)
        return self.target(*arguments, **keywords)


def keep(
    builder: Builder, target: Any, real: tuple[Any, Any], shown: tuple[Any, Any], out: Any
) -> Any:
    """Every result of the operation as a :class:`Traced` made by an :class:`Opaque`.

    Args:
        builder: the tail so far.
        target: the ATen operation.
        real: its arguments and keywords, with the run's own tensors.
        shown: the same with a :class:`Traced` for every tensor that messages reach.
        out: what it returned.
    """
    if any(name in str(target) for name in TRUSTING):
        raise Unfollowed(MIXES)
    leaves, spec = tree_flatten(real)
    marks = tree_flatten(shown, is_leaf=lambda leaf: isinstance(leaf, Traced))[0]
    flats = [builder.flat(mark) if isinstance(mark, Traced) else None for mark in marks]
    if any(f is not None and (f[1].shape != f[1].outer or f[1].places) for f in flats):
        raise Unfollowed(MIXES)
    call = _Call(target, leaves, spec)
    results = [out] if isinstance(out, Tensor) else list(out)
    cut = torch.Tag.pointwise in target.tags or target._schema.name.partition("::")[2] in CUT
    for axes in _assignments(leaves, flats, builder.num_nodes, cut):
        call.axes = axes
        found = _node_axes(call, results, builder)
        if found is not None:
            made = [
                None if axis is None else _emit(builder, call, flats, i, result, axis)
                for i, (result, axis) in enumerate(zip(results, found, strict=True))
            ]
            return made[0] if isinstance(out, Tensor) else tuple(made)
    raise Unfollowed(MIXES)


def _assignments(
    leaves: Sequence[Any], flats: Sequence[Any], num_nodes: int, cut: bool
) -> Iterator[list[int | None]]:
    """Every way to say which axis of which argument runs over the nodes; constants if ``cut``."""
    choices: list[list[int | None]] = []
    for leaf, flat in zip(leaves, flats, strict=True):
        if flat is not None:
            choices.append([flat[1].axis])
        elif isinstance(leaf, Tensor):
            axes = [axis for axis, size in enumerate(leaf.shape) if size == num_nodes and cut]
            choices.append([*axes, None])
        else:
            choices.append([None])
    for assignment in product(*choices):
        yield list(assignment)


def _node_axes(call: _Call, results: list[Any], builder: Builder) -> list[int | None] | None:
    """The node axis of every result, if every other node alone gives the same rows."""
    nodes = torch.arange(0, builder.num_nodes, 2, device=builder.device)
    try:
        part = call.on(nodes)
    except (RuntimeError, IndexError, ValueError):  # shapes that do not fit: not this assignment
        return None
    parts = [part] if isinstance(part, Tensor) else list(part)
    axes: list[int | None] = []
    for whole, some in zip(results, parts, strict=True):
        axis = _same_rows(whole, some, nodes)
        if axis is None and whole.numel():
            return None
        axes.append(axis)
    return axes


def _same_rows(whole: Tensor, some: Tensor, nodes: Tensor) -> int | None:
    differing = [a for a in range(whole.dim()) if whole.shape[a] != some.shape[a : a + 1].numel()]
    if whole.dim() != some.dim() or len(differing) != 1:
        return None
    axis = differing[0]
    rows = whole.index_select(axis, nodes)
    if rows.shape != some.shape:
        return None
    if not whole.is_floating_point():
        return axis if torch.equal(rows, some) else None
    limit = CLOSE.get(whole.dtype, 1e-3)  # half precision has three decimals
    size = max(1.0, float(rows.abs().nan_to_num().max()) if rows.numel() else 1.0)
    same = torch.allclose(rows, some, rtol=limit, atol=limit * size, equal_nan=True)
    return axis if same else None


def _emit(
    builder: Builder, call: _Call, flats: Sequence[Any], output: int, result: Tensor, axis: int
) -> Traced:
    inputs: list[int] = []
    constants: list[Tensor] = []
    filled: list[Any] = []
    for leaf, flat, where in zip(call.leaves, flats, call.axes, strict=True):
        if flat is not None:
            filled.append(Slot(len(inputs), flat[1].rest, flat[1].axis, leaf.dtype))
            inputs.append(flat[0])
        elif isinstance(leaf, Tensor) and where is not None:
            rows = leaf.detach().movedim(where, 0)
            filled.append(Slot(len(constants), tuple(rows.shape[1:]), where, leaf.dtype, True))
            constants.append(rows.double().reshape(rows.shape[0], -1).clone())
        elif isinstance(leaf, Tensor):
            shared = leaf.detach()
            filled.append(shared.double() if leaf.is_floating_point() else shared.clone())
        else:
            filled.append(leaf)
    arguments, keywords = tree_unflatten(filled, call.spec)
    several = None if call.target._schema.returns.__len__() == 1 else output
    frame = Frame(tuple(result.shape), axis, tuple(result.shape))
    operation = Opaque(
        tuple(inputs),
        call.target,
        tuple(arguments),
        dict(keywords),
        tuple(constants),
        several,
        axis,
    )
    return builder.shown(builder.emit(operation, frame.width), frame)
