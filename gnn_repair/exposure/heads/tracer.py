"""Following an aggregate through the rest of a model's run, operation by operation.

An operation without translation is kept as PyTorch's own once it is seen to work node by node; what
an operation in place does to tensors that share its memory is followed element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.heads.building import (
    AS_REAL,
    MERGES,
    MIXES,
    Builder,
    Frame,
    Lost,
    TracedTensor,
    Untranslatable,
    constant_in,
    frame_of,
    traced_in,
)
from gnn_repair.exposure.heads.operations import Affine, Concatenate, Opaque, Slot, name_of
from gnn_repair.exposure.heads.translations import COMPOSED, TRANSLATIONS

LARGEST = 1 << 27
"""Numbers of a shared storage beyond which its places are not compared one by one: a gigabyte of
places."""
UNKNOWN = Lost("a tensor is written in place through a view, which cannot be followed")

State = TracedTensor | Lost


def _rewritten(
    builder: Builder, target: Tensor, made: State, alias: Tensor, state: State | None
) -> State:
    """What a tensor shows that shares the memory of a target, once that shows what was made."""
    if isinstance(made, Lost) or isinstance(state, Lost):
        return made if isinstance(made, Lost) else UNKNOWN
    if _geometry(alias) == _geometry(target):
        return made
    count = target.untyped_storage().nbytes() // target.element_size()
    if count > LARGEST or alias.dtype != target.dtype:
        return UNKNOWN
    places = torch.arange(count, device=target.device)
    alias_places = places.as_strided(alias.size(), alias.stride(), alias.storage_offset())
    target_places = places.as_strided(target.size(), target.stride(), target.storage_offset())
    nodes, channels = places.new_full((count,), -1), places.new_zeros(count)
    nodes[target_places], channels[target_places] = made.nodes, made.channels
    return _merged(builder, made, alias, state, nodes[alias_places], channels[alias_places])


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()


def _merged(
    builder: Builder,
    made: TracedTensor,
    alias: Tensor,
    state: TracedTensor | None,
    nodes: Tensor,
    new: Tensor,
) -> State:
    """What the alias shows: the written value where it was written, else what it showed."""
    written = nodes >= 0
    if state is None:
        state = _constant(builder, alias, nodes)
        if state is None:
            return UNKNOWN
    width = builder.widths[state.value]
    both = builder.emit(Concatenate((state.value, made.value)))
    merged = TracedTensor(
        both,
        torch.where(written, nodes, state.nodes),
        torch.where(written, new + width, state.channels),
    )
    layout = frame_of(state, builder.num_nodes)
    if layout is None or frame_of(merged, builder.num_nodes) is not None:
        return merged
    # Some nodes' rows were written: both values for all nodes, and a mask.
    every = torch.where(written, new, 0).amax(layout[0].axis, keepdim=True).expand(new.shape)
    if bool((written & ((every != new) | (nodes != state.nodes))).any()):
        return merged
    new_rows = TracedTensor(made.value, state.nodes, every)
    try:
        return TRANSLATIONS["where"](builder, alias, written, new_rows, state)
    except Untranslatable:
        return merged


def _constant(builder: Builder, alias: Tensor, nodes: Tensor) -> TracedTensor | None:
    """A tensor that no message reached before; its node axis is that of what was written."""
    for axis, size in enumerate(alias.shape):
        if size != builder.num_nodes:
            continue
        sizes = [size if other == axis else 1 for other in range(alias.dim())]
        count = torch.arange(size, device=nodes.device).view(sizes)
        if bool(((nodes == count) | (nodes < 0)).all()):
            frame = Frame(tuple(alias.shape), axis, tuple(alias.shape))
            value = builder.constant(constant_in(alias, frame))
            return frame.traced(value, builder.device)
    return None


CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Run on half of the nodes, an operation may round differently by this much of its size."""
TRUSTING = ("batch_norm", "group_norm", "instance_norm", "native_", "mkldnn", "cudnn", "miopen")
"""Operations whose kernels read past the end of statistics that are too short instead of raising,
so they are not tried on half of the nodes. In evaluation mode they have translations of their own;
what is left normalises over nodes."""
CUT = ("gather", "index_select", "take_along_dim", "bmm", "baddbmm", "where", "scatter")
"""Beside elementwise operations, those that check the sizes of what they are given, so that their
constants may be tried by node."""


@dataclass(frozen=True, eq=False)
class _Call:
    """An operation's arguments, flattened, and the node axis of each (None: shared)."""

    target: Any
    leaves: list[Any]
    spec: Any
    axes: Sequence[int | None]

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
    """Every result of the operation as a :class:`TracedTensor` made by an :class:`Opaque`.

    Args:
        builder: the head so far.
        target: the ATen operation.
        real: its arguments and keywords, with the run's own tensors.
        shown: the same with a :class:`TracedTensor` for every tensor that messages reach.
        out: what it returned.
    """
    if any(name in str(target) for name in TRUSTING):
        raise Untranslatable(MIXES)
    leaves, spec = tree_flatten(real)
    marks = tree_leaves(shown, is_leaf=_is_traced)
    flats = [builder.flat(mark) if isinstance(mark, TracedTensor) else None for mark in marks]
    if any(f is not None and (f[1].shape != f[1].outer or f[1].places) for f in flats):
        raise Untranslatable(MIXES)
    results = [out] if isinstance(out, Tensor) else list(out)
    if any(result.is_complex() for result in results):
        raise Untranslatable(f"computes with complex numbers, which are not followed; {AS_REAL}")
    cut = torch.Tag.pointwise in target.tags or target._schema.name.partition("::")[2] in CUT
    for axes in _assignments(leaves, flats, builder.num_nodes, cut):
        call = _Call(target, leaves, spec, axes)
        result_axes = _node_axes(call, results, builder)
        if result_axes is not None:
            made = [
                None if axis is None else _emit(builder, call, flats, i, result, axis)
                for i, (result, axis) in enumerate(zip(results, result_axes, strict=True))
            ]
            return made[0] if isinstance(out, Tensor) else tuple(made)
    raise Untranslatable(MIXES)


def _assignments(
    leaves: Sequence[Any], flats: Sequence[Any], num_nodes: int, cut: bool
) -> Iterator[tuple[int | None, ...]]:
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
    return product(*choices)


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
) -> TracedTensor:
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
    which = None if len(call.target._schema.returns) == 1 else output
    frame = Frame(tuple(result.shape), axis, tuple(result.shape))
    operation = Opaque(
        tuple(inputs),
        call.target,
        tuple(arguments),
        dict(keywords),
        tuple(constants),
        which,
        axis,
    )
    if name_of(call.target) in LINEAR and len(inputs) == 1 and not constants:
        width = builder.widths[inputs[0]]
        rows = torch.eye(width + 1, width, dtype=torch.float64, device=builder.device)
        images = operation.evaluate([rows], torch.arange(width + 1, device=builder.device))
        affine = Affine(tuple(inputs), (images[:-1] - images[-1]).t().contiguous(), images[-1])
        return builder.shown(builder.emit(affine), frame)
    return builder.shown(builder.emit(operation, frame.width), frame)


LINEAR = ("convolution", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d", "cumsum")
"""Operations that are linear in what messages reach, with constants for everything else."""
SHAPED = {f"{kind}_like" for kind in ("empty", "zeros", "ones", "full")}
SHAPED |= {f"new_{kind}" for kind in ("empty", "empty_strided", "zeros", "ones", "full")}
"""Operations that take a tensor's shape and none of its values."""

BY_INDEX = ("index_select", "index", "embedding", "scatter_add", "index_add", "scatter_reduce",
            "index_reduce")  # fmt: skip
"""Operations that look up or write rows by number."""
CHOOSING = ("index", "masked_select")
"""Operations that pick entries of their first argument by the others."""
PICKS = (
    "picks entries by values that messages reach, as a boolean mask does; write that with "
    "torch.where"
)


class Tracer(TorchDispatchMode):
    """While open, remembers how every tensor that the aggregate reaches was made.

    What no message reaches is computed as usual and enters as a constant.
    """

    def __init__(self, aggregate: Tensor, where: Callable[[], str] = lambda: "the model") -> None:
        """Follow an aggregate.

        Args:
            aggregate: the [N, D] tensor to follow.
            where: the title of the module that runs now.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        nodes, width = aggregate.shape
        self.builder = Builder(width, nodes, aggregate.device)
        # The tensors themselves are kept as well, so that no other comes to bear their identity.
        self._known: dict[int, tuple[Tensor, State]] = {}
        shape = (nodes, width)
        self._remember(aggregate, Frame(shape, 0, shape).traced(0, aggregate.device))

    @classmethod
    def of_width(
        cls, width: int, nodes: int, device: torch.device, where: Callable[[], str]
    ) -> Tracer:
        """A tracer of aggregates that the run itself makes; see :meth:`adopt`."""
        return cls(torch.empty(1, 1, device=device).expand(nodes, width), where)

    def adopt(self, tensor: Tensor, place: tuple[Frame, int], base: Tensor | None = None) -> None:
        """From here on a tensor is part of the aggregate, its channels from a number on.

        ``base``: what messages reach as well, and the aggregate's part was added to.
        """
        frame, first = place
        state: Any = frame.traced(0, self.builder.device, first)
        if base is None:
            self._remember(tensor, state)
            return
        part = tensor - base
        self._remember(part, state)
        with self:
            state = self._state(base + part)
        self._overwrite(tensor, state)

    def flat_of(self, tensor: Tensor) -> int | None:
        """The head's value that holds a tensor of the run; None where no message reaches it."""
        state = self._state(tensor)
        if isinstance(state, Lost):
            raise ExposureRefused(f"after the last sum over messages {state.reason}")
        try:
            return None if state is None else self.builder.flat(state)[0]
        except Untranslatable as reason:
            raise ExposureRefused(
                f"after the last sum over messages {self._where()} {reason}"
            ) from reason

    def output(self, logits: Tensor) -> TracedTensor:
        """How the model's output was made."""
        state = self._state(logits)
        if state is None:
            raise ExposureRefused(
                "what follows the last sum over messages leaves PyTorch on the way to the logits "
                "(numpy, Python numbers), so it cannot be followed"
            )
        if isinstance(state, Lost):
            raise ExposureRefused(f"after the last sum over messages {state.reason}")
        layout = frame_of(state, self.builder.num_nodes)
        if layout is None:
            raise ExposureRefused(f"after the last sum over messages {self._where()} {MIXES}")
        if layout[0].places is not None:
            raise ExposureRefused(
                "after the last sum over messages rows of different nodes change places, or some "
                "are left out; return one row of logits for every node, in order"
            )
        return state

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        states = [self._state(leaf) for leaf in tree_leaves((args, kwargs))]
        if not any(states) or func._schema.name.partition("::")[2] in SHAPED:
            return func(*args, **kwargs)
        target = args[0] if _in_place(func) else None
        kept = None if target is None else target.clone()
        real = tree_map_only(Tensor, lambda t: kept if t is target else t, (args, kwargs))
        shown = tree_map_only(
            Tensor, lambda t: self._state(t) or (kept if t is target else t), (args, kwargs)
        )
        out = func(*args, **kwargs)
        lost = next((state for state in states if isinstance(state, Lost)), None)
        made = lost or self._translated(func, real, shown, out)
        if target is None:
            self._remember_all(out, made)
        else:
            self._overwrite(target, made)
        return out

    def _translated(
        self, func: Any, real: tuple[Any, Any], shown: tuple[Any, Any], out: Any
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        name = name[:-1] if _in_place(func) else name
        why = ""
        if torch.Tag.dynamic_output_shape in func.tags and traced_in(
            shown[0] if name not in CHOOSING else shown[0][1:]
        ):
            return Lost(f"{self._where()} {PICKS} (by `{name_of(func)}`)")
        try:
            if name in COMPOSED:
                return self._composed(COMPOSED[name], real, shown)
            if name in TRANSLATIONS:
                return TRANSLATIONS[name](self.builder, out, *shown[0], **shown[1])
        except Untranslatable as reason:
            why = str(reason)
        if name in BY_INDEX:
            # Never tried on fewer rows: on a GPU an index beyond them cannot be recovered from.
            looked_up = name in ("index_select", "index", "embedding")
            why = why or (PICKS if looked_up and not traced_in(shown[0][0]) else MIXES)
            return Lost(f"{self._where()} {why} (by `{name_of(func)}`)")
        try:
            functional = _functional(func, name)
            return keep(self.builder, functional, real, shown, out)
        except Untranslatable as reason:
            why = why or str(reason)
        frames = [frame_of(leaf, self.builder.num_nodes) for leaf in traced_in(shown)]
        merged = any(layout and layout[0].shape != layout[0].outer for layout in frames)
        return Lost(f"{self._where()} {MERGES if merged else why} (by `{name_of(func)}`)")

    def _composed(
        self, steps: Callable[..., Tensor], real: tuple[Any, Any], shown: tuple[Any, Any]
    ) -> TracedTensor:
        """What an operation's steps make of tensors, one after another."""
        leaves = (tree_leaves(part, is_leaf=_is_traced) for part in (real, shown))
        for leaf, state in zip(*leaves, strict=True):
            if isinstance(
                state, TracedTensor
            ):  # also of the copy of a tensor that is written in place
                self._remember(leaf, state)
        with self:
            made = self._state(steps(*real[0], **real[1]))
        if not isinstance(made, TracedTensor):
            raise Untranslatable
        return made

    def forget(self, tensor: Tensor) -> None:
        """From here on a tensor is a constant: what is held as it is."""
        self._known.pop(id(tensor), None)

    def is_lost(self, tensor: Tensor) -> bool:
        """Whether messages reach a tensor in a way that cannot be followed."""
        return isinstance(self._state(tensor), Lost)

    # What is known of tensors -------------------------------------------------------------------

    def _state(self, leaf: Any) -> State | None:
        entry = self._known.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return None if entry is None else entry[1]

    def _remember(self, tensor: Tensor, state: State) -> None:
        if tensor.numel():  # what holds no numbers is nobody's
            self._known[id(tensor)] = (tensor, state)

    def _remember_all(self, out: Any, made: Any) -> None:
        if isinstance(out, Tensor):
            if made is not None:
                self._remember(out, made)
        elif isinstance(out, tuple | list):
            states = made if isinstance(made, tuple) else [made] * len(out)
            for tensor, state in zip(out, states, strict=True):
                self._remember_all(tensor, state)

    def _overwrite(self, target: Tensor, made: Any) -> None:
        made, storage = made[0] if isinstance(made, tuple) else made, _storage(target)
        aliases: list[tuple[Tensor, State | None]] = [
            entry
            for entry in self._known.values()
            if entry[0] is not target and _storage(entry[0]) == storage
        ]
        base = target._base
        if base is not None and id(base) not in self._known:
            aliases.append((base, None))
        for alias, state in aliases:
            self._remember(alias, _rewritten(self.builder, target, made, alias, state))
        self._remember(target, made)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, TracedTensor)


def _in_place(func: Any) -> bool:
    """Whether an operation overwrites its first argument, such as ``relu_``."""
    name = func._schema.name
    return func._schema.is_mutable and name.endswith("_") and not name.endswith("__")


def _functional(func: Any, name: str) -> Any:
    """The form of an operation that writes nothing."""
    if not func._schema.is_mutable:
        return func
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, func._overloadname, None)
    if overload is None or overload._schema.is_mutable:
        raise Untranslatable("writes into another tensor, which cannot be followed")
    return overload
