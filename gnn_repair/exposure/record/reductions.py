"""Whose numbers a tensor holds, what operations do to that, and which of them are sums over nodes.

Every tensor that nodes stand behind carries one or more :class:`NodeRows`: an index tensor of its
own shape that says which node each element belongs to (−1: none). The index tensors are expanded
(stride 0) along channels, so they cost no more than the model's own edge lists. A gather by an edge
list gives the sender; a function of both ends of an edge carries two; a sum over messages gives the
recipient. One table, by the name of the operation, says which nodes stand behind its result, and,
where it adds up numbers of different nodes, who sends to whom (:class:`Reduction`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnn_repair.exposure.record.recorder import RecordedStep, Recorder


EXTENSIONS = ("torch_scatter", "torch_sparse", "pyg")
"""Namespaces of extensions with operations that read or write rows of nodes."""
MATERIALISED = 1 << 26
"""Elements of an index tensor that a reshape may write out: half a gigabyte."""


@dataclass(frozen=True, eq=False)
class NodeRows:
    """The node behind every element of a tensor."""

    ids: Tensor
    """int64, of the tensor's shape; −1: no node, as in padding."""

    def viewed(self, view: Callable[[Tensor], Tensor]) -> NodeRows:
        """After an operation that only moves or repeats elements."""
        return NodeRows(view(self.ids))

    def varies(self, axis: int) -> bool:
        """Whether different nodes stand along an axis."""
        if self.ids.stride(axis) == 0 or self.ids.shape[axis] < 2:
            return False
        ids = distinct(self.ids, keep=axis)
        return bool(((ids != ids.amax(axis, keepdim=True)) & (ids >= 0)).any())

    def along(self, axis: int) -> Tensor | None:
        """The nodes along one axis [n], where the other axes only repeat them; else None."""
        moved = distinct(self.ids, keep=axis).movedim(axis, 0)
        if moved.numel() == 0:
            return None if len(moved) else moved.new_empty(0)
        ids = moved.reshape(len(moved), -1)
        first = ids.amax(1)
        if ids.shape[1] != 1 and bool(((ids != first.unsqueeze(1)) & (ids >= 0)).any()):
            return None
        return first

    def spread(self, shape: Sequence[int], over: Iterable[int] = ()) -> NodeRows:
        """Repeated to a shape; along the axes ``over`` no more than one node stands."""
        ids = self.ids
        for axis in over:
            if ids.shape[axis] == 0:
                sizes = [1 if a == axis else size for a, size in enumerate(ids.shape)]
                ids = ids.new_full(sizes, -1)
            elif ids.stride(axis) == 0:
                ids = ids.narrow(axis, 0, 1)
            else:  # the node, also where it is not behind all of them
                ids = distinct(ids, keep=axis).amax(axis, keepdim=True)
        return NodeRows(ids.expand(tuple(shape)))

    def transposed(self) -> NodeRows:
        """The same of a transposed matrix, or batch of them."""
        return self.viewed(lambda ids: ids.mT)


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
    return bool((distinct(left) == distinct(right)).all())


def union(parts: Sequence[Sequence[NodeRows]]) -> tuple[NodeRows, ...]:
    """What stands behind a function of several tensors of one shape, element by element."""
    kept: list[NodeRows] = []
    for rows in (one for part in parts for one in part):
        for number, other in enumerate(kept):
            if same(rows.ids, other.ids):
                break
            joined = _filled(rows.ids, other.ids)
            if joined is not None:
                kept[number] = NodeRows(joined)
                break
        else:
            kept.append(rows)
    return tuple(kept)


def _filled(left: Tensor, right: Tensor) -> Tensor | None:
    """Both together where neither contradicts the other."""
    shape, left, right = left.shape, distinct(left), distinct(right)
    if bool(((left != right) & (left >= 0) & (right >= 0)).any()):
        return None
    return torch.where(left < 0, right, left).expand(shape)


def reshaped(ids: Tensor, shape: Sequence[int]) -> Tensor:
    """Another shape; ``ValueError`` where writing the index out would take too much memory."""
    try:
        return ids.view(tuple(shape))
    except RuntimeError:
        if ids.numel() > MATERIALISED:
            raise ValueError("too large to follow") from None
        return ids.reshape(tuple(shape))


def rows_after_write(
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
    for before, written in in_parallel([known, behind]):
        places = torch.full((count,), -1)
        if before is not None:
            places.as_strided(*geometry[0]).copy_(before.ids)
        if written is not None:
            places.as_strided(*geometry[1]).copy_(written.ids)
        made.append(compact(places.as_strided(*geometry[0])))
    return tuple(made)


def in_parallel(parts: Sequence[Sequence[NodeRows]]) -> Iterator[list[NodeRows | None]]:
    """What stands behind parts that become one tensor, one node of every element at a time; a part
    with fewer than others has its last one again."""
    for place in range(max(map(len, parts), default=0)):
        yield [rows[min(place, len(rows) - 1)] if rows else None for rows in parts]


def compact(ids: Tensor) -> NodeRows:
    """An index that is the same along the last axis, not written out."""
    last = ids.dim() - 1
    if last >= 1 and ids.numel() and bool((ids == ids.narrow(last, 0, 1)).all()):
        return NodeRows(ids.narrow(last, 0, 1).clone().expand(ids.shape))
    return NodeRows(ids.clone())


def axes_of(dims: Any, count: int) -> list[int]:
    """The axes that an operation's ``dim`` argument names; None or empty: all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(count))
    named = dims if isinstance(dims, list | tuple) else [dims]
    return sorted(d % count for d in named)


@cache
def is_in_place(func: Any) -> bool:
    """Whether an operation overwrites its first argument, such as ``relu_``."""
    name = func._schema.name
    return func._schema.is_mutable and name.endswith("_") and not name.endswith("__")


@cache
def plain_name(func: Any) -> str:
    """``scatter_add`` of ``aten::scatter_add_``."""
    name = str(func._schema.name.partition("::")[2])
    return name[:-1] if is_in_place(func) else name


Behind = tuple[NodeRows, ...]


@dataclass(frozen=True, eq=False)
class Reduction:
    """out[recipient] = base + Σ message, or out = base + matrix · table."""

    message: int
    """The value that is added up: messages, one per entry, or the table of a product."""
    base: int | None = None
    """What the sum is added to."""
    matrix: int | None = None
    """Of a product: the value with the coefficients."""
    across: int | None = None
    """Of linear attention, q (kᵀ v) read as (q kᵀ) v: the value kᵀ, by which ``matrix`` is
    multiplied; ``turned``: it is k, and the table is vᵀ."""
    is_attention: bool = False
    """Of linear attention: whether both factors are learned, so that all nodes send, some maybe
    with weight 0; otherwise one belongs to the graph."""
    between: int | None = None
    """Of a spectral filter, U f (Uᵀ h) read as (U f Uᵀ) h: the value f [K, 1]."""
    turned: bool = False
    """Of a product: whether it is written from the other side, outᵀ = matrixᵀ · tableᵀ."""
    batched: bool = False
    """Of products of a batch, [B, 1, n] · [B, n, d], or turned [B, d, n] · [B, n, 1]: whether each
    has a recipient of its own."""
    axes: tuple[int, ...] = (0,)
    """The message's axes that count entries, in order; the others are channels."""
    out_axis: int | None = 0
    """The result's axis that counts recipients; None: there is one."""
    recipients: Tensor | None = None
    """[T] the recipient's place along ``out_axis``, for every entry."""
    sources: Tensor | None = None
    """[T] the sender of every entry, numbered through all types; None: not known."""
    size: int = 1
    """Recipients."""
    mean: bool = False
    """Whether every recipient's sum is divided by its number of entries."""
    more: int = 0
    """Of a mean: what counts beside the entries, as the base may."""
    factor: float = 1.0
    """What the sum is multiplied by before it is added to ``base``."""
    of_base: float = 1.0
    """What ``base`` is multiplied by."""
    relations: Tensor | None = None
    """[T] the relation of every entry, −1: none, where the graph has several."""
    sender: str = "node"
    """What sends: a ``node``, a ``cluster`` of them, an ``edge``, or a ``row`` of which nothing is
    known. Where these are no nodes, ``sources`` numbers them."""

    @property
    def operands(self) -> list[int]:
        """The values that the sum is made of, but for its base."""
        values = (self.message, self.matrix, self.across, self.between)
        return [number for number in values if number is not None]

    def counts(self, recipients: Tensor) -> Tensor:
        """[n] what a mean divides every recipient's sum by; ``recipients``: [T] of all entries."""
        return torch.bincount(recipients.reshape(-1), minlength=self.size) + self.more


def rows_after(
    recorder: Recorder,
    step: RecordedStep,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outs: list[Tensor],
) -> list[Behind]:
    """The nodes behind everything that an operation made; notes on ``step`` what it mixes."""
    context = OpContext(recorder, step, args, kwargs, outs)
    handler = HANDLERS.get(step.name) if step.func.namespace in ("aten", *EXTENSIONS) else None
    if handler is None:
        handler = _pointwise if _is_pointwise(step, args, outs) else _unknown
    behind = handler(context)
    if step.reduction is not None and not (outs[0].is_floating_point() or outs[0].is_complex()):
        step.reduction = None  # a sum of whole numbers: no share of one can be told
    return behind


@dataclass(frozen=True, eq=False)
class OpContext:
    """One operation while it is recorded."""

    recorder: Recorder
    step: RecordedStep
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outs: list[Tensor]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def rows(self, tensor: Any) -> Behind:
        """The nodes behind a tensor."""
        return self.recorder.value(tensor).rows if isinstance(tensor, Tensor) else ()

    def number(self, tensor: Tensor) -> int:
        return self.recorder.number(tensor)

    def live(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self.recorder.value(tensor).live

    @property
    def out(self) -> Tensor:
        return self.outs[0]

    def each(self, behind: Behind) -> list[Behind]:
        """The same nodes behind every result of the first one's shape."""
        shape = self.out.shape
        return [behind if out.shape == shape else () for out in self.outs]

    def counted(self, shape: Sequence[int], axis: int, index: Any = None) -> NodeRows:
        """Recipients counted along an axis, of the type that an index numbers."""
        space = self.recorder.value(index).space if isinstance(index, Tensor) else None
        if space is not None and self.recorder.spaces.counts[space] != shape[axis]:
            space = None
        return self.recorder.rows(shape, axis, space)

    def clusters(self) -> NodeRows:
        """New sets of nodes behind a result [..., K, d], one for each of its rows."""
        shape = tuple(self.out.shape)
        first = self.recorder.others(prod(shape[:-1]))
        ids = torch.arange(first, first + prod(shape[:-1])).view(*shape[:-1], 1)
        return NodeRows(ids.expand(shape))

    def are_nodes(self, rows: NodeRows) -> bool:
        return rows.ids.numel() == 0 or int(distinct(rows.ids).max()) < self.recorder.spaces.total

    def varies(self, tensor: Tensor, axes: Iterable[int]) -> bool:
        """Whether different nodes stand along some axes."""
        return any(rows.varies(axis) for axis in axes for rows in self.rows(tensor))

    def is_count(self, size: int) -> bool:
        return size in self.recorder.spaces.counts


def _is_pointwise(step: RecordedStep, args: Sequence[Any], outs: list[Tensor]) -> bool:
    """Whether every number made is one of the numbers in its own place alone."""
    shapes = {arg.shape for arg in args if isinstance(arg, Tensor)}
    if not shapes or not outs or not (step.name in POINTWISE or _is_declared(step.func)):
        return False
    try:
        shape = torch.broadcast_shapes(*shapes) if len(shapes) > 1 else shapes.pop()
        return all(out.shape == shape for out in outs)
    except RuntimeError:
        return False


@cache
def _is_declared(func: Any) -> bool:
    """Whether PyTorch declares an operation, in one form at least, as pointwise."""
    packets = [getattr(torch.ops.aten, plain_name(func), None), func.overloadpacket]
    forms = [getattr(packet, form) for packet in packets if packet for form in packet.overloads()]
    return any(torch.Tag.pointwise in form.tags for form in forms)


def _pointwise(c: OpContext) -> list[Behind]:
    shape = c.out.shape
    operands = [a for a in (*c.args, *c.kwargs.values()) if isinstance(a, Tensor)]
    behind = union([[r.spread(shape) for r in c.rows(operand)] for operand in operands])
    if len(behind) > 1 and len(shape) == 1 < shape[0]:  # rows of two nodes, as in a loop over edges
        c.step.mixes = all(distinct(r.ids).numel() == 1 for r in behind)
    return c.each(behind if not c.step.mixes else c.rows(c.args[0]))


def _unknown(c: OpContext) -> list[Behind]:
    """Nothing is known: what different nodes stand behind is taken to be mixed."""
    c.step.mixes = any(c.recorder.record.values[number].rows for number in c.step.inputs)
    return [() for _ in c.outs]


def _same(c: OpContext) -> list[Behind]:
    return c.each(c.rows(c.args[0]))


def _view(apply: Callable[..., Any]) -> Callable[[OpContext], list[Behind]]:
    """An operation that moves or repeats elements."""

    def after(c: OpContext) -> list[Behind]:
        made: list[list[NodeRows]] = [[] for _ in c.outs]
        for rows in c.rows(c.args[0]):
            shown = apply(rows.ids, *c.args[1:], **c.kwargs)
            several = shown if isinstance(shown, list | tuple) else [shown]
            for place, ids in enumerate(several):
                made[place].append(NodeRows(ids))
        return [tuple(rows) for rows in made]

    return after


def _shaped(c: OpContext) -> list[Behind]:
    shape, behind = c.out.shape, c.rows(c.args[0])
    if len(behind) == 1 and behind[0].ids.numel() and not c.are_nodes(behind[0]):
        counted = _unstacked(c, behind[0])
        if counted is not None:
            return [(counted,)]
    return [tuple(r.viewed(lambda t: reshaped(t, shape)) for r in behind)]


def _is_plain(c: OpContext) -> bool:
    """Whether strides are set to those of a plain tensor of the same shape, as in
    ``adaptive_avg_pool1d``."""
    shapes = [rows.ids.shape for rows in c.rows(c.args[0])]
    return c.out.is_contiguous() and all(shape == c.out.shape for shape in shapes)


def _unstacked(c: OpContext, rows: NodeRows) -> NodeRows | None:
    """The nodes behind a view of sums into several rows per node, which were counted as things of
    their own."""
    first = next((axis for axis, size in enumerate(rows.ids.shape) if size > 1), 0)
    nodes, shape = rows.along(first), c.out.shape
    if nodes is None or bool(nodes.diff().ne(1).any()):
        return None
    for axis in (1, 0):
        if is_stack(shape, axis, len(nodes)):
            counted = c.counted(shape, axis)
            if c.are_nodes(counted):
                return counted
    return None


def is_stack(shape: Sequence[int], axis: int, total: int) -> bool:
    """Whether a view of so many rows is [K, n, …], axis 1 that of recipients, or [n, K …], 0."""
    if axis == 1:
        return len(shape) > 1 and min(shape[:2]) > 1 and shape[0] * shape[1] == total
    return len(shape) > 0 and 1 < shape[0] < total and total % shape[0] == 0


def _joined(join: Callable[..., Tensor]) -> Callable[[OpContext], list[Behind]]:
    """cat and stack."""

    def after(c: OpContext) -> list[Behind]:
        parts, dim = list(c.args[0]), c.argument(1, "dim", 0)
        made: list[NodeRows] = []
        for several in in_parallel([c.rows(part) for part in parts]):
            ids = [
                torch.full((1,), -1).expand(part.shape) if rows is None else rows.ids
                for part, rows in zip(parts, several, strict=True)
            ]
            made.append(NodeRows(_compact(ids, lambda some: join(some, dim), c.out.shape)))
        return [tuple(made)]

    return after


def _compact(
    ids: list[Tensor], join: Callable[[list[Tensor]], Tensor], shape: torch.Size
) -> Tensor:
    """Joined index tensors; what all parts repeat along the last axis is not written out."""
    last = ids[0].dim() - 1
    if last < 1 or any(part.stride(last) != 0 and part.shape[last] > 1 for part in ids):
        return join(ids)
    try:
        narrow = join([part.narrow(last, 0, 1) for part in ids])
    except RuntimeError:
        return join(ids)
    first = narrow[..., :1]  # joined along the channels: the same node in all of them, if it is
    same_node = narrow.dim() == len(shape) and bool((narrow == first).all())
    return first.expand(shape) if same_node else join(ids)


# Gathers -----------------------------------------------------------------------------------------


def _picked(c: OpContext, table: Tensor, dim: int, index: Tensor) -> list[Behind]:
    """table[…, index, …]: the node that every picked row is of, or that picks it."""
    dim = dim % table.dim()
    behind, shape, size = c.rows(table), c.out.shape, table.shape[dim]
    places = [1] * dim + list(index.shape) + [1] * (table.dim() - dim - 1)
    if table.is_floating_point() and not any(rows.ids.stride(dim) != 0 for rows in behind):
        space = c.recorder.value(index).space
        space = space if space is not None else c.recorder.spaces.only(size)
        counted = space is not None and c.recorder.spaces.counts[space] == size
        if space is not None and counted and index.dtype != torch.bool:
            first = c.recorder.spaces.first(space)
            ids = index if first == 0 else index + first
            return [(NodeRows(ids.reshape(places).expand(shape)),)]
    if not behind and index.dtype != torch.bool:
        return [tuple(r.viewed(lambda t: t.reshape(places).expand(shape)) for r in c.rows(index))]
    if (
        not behind and index.dim() == 1 and table.is_floating_point()
    ):  # which numbers there are hangs on the nodes of the mask
        places[dim] = -1
        chosen = [r.ids[index].reshape(places).expand(shape) for r in c.rows(index)]
        return [tuple(map(NodeRows, chosen))]
    return [tuple(_taken(rows, dim, index, shape) for rows in behind)]


def _taken(rows: NodeRows, dim: int, index: Tensor, shape: Sequence[int]) -> NodeRows:
    ids = rows.ids
    nodes = rows.along(dim) if ids.dim() > 1 else ids
    if nodes is not None and (index.dtype != torch.bool or index.dim() == 1):
        flat = nodes[index]
        places = [1] * dim + list(flat.shape) + [1] * (ids.dim() - dim - 1)
        return NodeRows(flat.reshape(places).expand(tuple(shape)))
    return NodeRows(ids[(slice(None),) * dim + (index,)])


def _index(c: OpContext) -> list[Behind]:
    table, indices = c.args[0], c.args[1]
    used = [place for place, index in enumerate(indices) if index is not None]
    if len(used) == 1:
        return _picked(c, table, used[0], indices[used[0]])
    picks = tuple(slice(None) if index is None else index for index in indices)
    picked = [rows.viewed(lambda ids: ids[picks]) for rows in c.rows(table)]
    if used == list(range(table.dim())):  # every number is also of the nodes that pick it
        chosen = [r.spread(c.out.shape) for p in used for r in c.rows(indices[p])]
        return [union([picked, chosen])]
    return [tuple(picked)]


def _gather(c: OpContext) -> list[Behind]:
    dim, index = c.args[1], c.args[2]
    gathered = [rows.viewed(lambda ids: ids.gather(dim, index)) for rows in c.rows(c.args[0])]
    return [union([gathered, c.rows(index)])]


# Writes ------------------------------------------------------------------------------------------


def _written(c: OpContext, write: Callable[[Tensor, Tensor], Tensor], values: Any) -> list[Behind]:
    """A tensor with other rows put into some of its places."""
    base, new = c.rows(c.args[0]), c.rows(values)
    if not new:
        return [base]
    made = []
    for before, rows in in_parallel([base, new]):
        assert rows is not None
        ids = torch.full(tuple(c.out.shape), -1) if before is None else before.ids.clone()
        made.append(NodeRows(write(ids.contiguous(), rows.ids)))
    return [tuple(made)]


def _copy(c: OpContext) -> list[Behind]:
    return [tuple(r.spread(c.out.shape) for r in c.rows(c.args[1]))]


def _index_put(c: OpContext) -> list[Behind]:
    base, indices, values = c.args[:3]
    accumulate = bool(c.argument(3, "accumulate", False))
    used = [place for place, index in enumerate(indices) if index is not None]
    first, *others = [indices[place] for place in used]
    is_list = not others and first.dim() == 1 and first.dtype == torch.long
    if accumulate and is_list and values.dim() == base.dim():
        return _entry_sum(c, values, used[0], first, base)
    square = base.dim() >= 2 and base.shape[0] == base.shape[1]
    node_counts = (*c.recorder.spaces.counts, *c.recorder.sets, c.recorder.spaces.total)
    if len(others) == 1 and square and base.shape[0] in node_counts:  # an adjacency
        return [(c.counted(base.shape, 0), c.counted(base.shape, 1))]
    c.step.mixes = any(
        r.ids.shape != first.shape or not torch.equal(r.ids, first)
        for index in others
        for r in c.rows(index)
    )  # a column that another node's value chooses, as in a histogram
    picks = tuple(slice(None) if index is None else index for index in indices)

    def write(ids: Tensor, rows: Tensor) -> Tensor:
        ids[picks] = rows
        return ids

    (written,) = _written(c, write, values)
    if others or used != [0] or first.dtype != torch.bool:
        return [written]
    wide = (*first.shape, *[1] * (base.dim() - first.dim()))  # numbers of the nodes of the mask
    chosen = [r.viewed(lambda ids: ids.reshape(wide).expand(c.out.shape)) for r in c.rows(first)]
    return [union([written, chosen])]


def _index_copy(c: OpContext) -> list[Behind]:
    dim, index, values = c.args[1:4]
    return _written(c, lambda ids, rows: ids.index_copy_(dim, index, rows.contiguous()), values)


def _scatter(c: OpContext) -> list[Behind]:
    base, dim, index, values = c.args[:4]
    if not isinstance(values, Tensor):
        return [c.rows(base) or _by_first_axis(c.rows(index), c.out)]
    if c.kwargs.get("reduce") == "add":
        return _scattered(c)
    return _written(c, lambda ids, rows: ids.scatter_(dim, index, rows.expand(index.shape)), values)


# Sums --------------------------------------------------------------------------------------------


def _entry_sum(
    c: OpContext,
    message: Tensor,
    dim: int,
    index: Tensor,
    base: Tensor | None = None,
    how: str = "sum",
    factor: float = 1.0,
) -> list[Behind]:
    """out[…, index_t, …] += message[…, t, …]; or a mean, or a maximum and its like: no sum."""
    dim = dim % message.dim()
    counted = c.counted(c.out.shape, dim, index)
    if c.live(base) and _are_own_rows(c, message, dim, index):
        return c.each((counted,))
    c.step.mixes = True
    sender, sources = "", None
    if how in ("sum", "mean"):
        sender, sources = _senders(c, message, (dim,), index, c.are_nodes(counted))
    if sender:
        c.step.reduction = Reduction(
            message=c.number(message),
            base=None if base is None else c.number(base),
            axes=(dim,),
            out_axis=dim,
            recipients=index,
            sources=sources,
            size=c.out.shape[dim],
            mean=how == "mean",
            more=int(how == "mean" and base is not None),
            factor=factor,
            relations=_relations(c, index),
            sender=sender,
        )
    return c.each((counted,))


def _are_own_rows(c: OpContext, message: Tensor, dim: int, index: Tensor) -> bool:
    """Whether some nodes' own rows are added to theirs, each once: no messages."""
    recipients, behind = index.reshape(-1), c.rows(message)
    is_same = bool(behind) and all(same(_entries(rows, (dim,)), recipients) for rows in behind)
    return is_same and recipients.unique().numel() == recipients.numel()


def _relations(c: OpContext, index: Tensor) -> Tensor | None:
    """The relation of every entry, where edges of several stand in one list."""
    relations = c.recorder.relations_of(index)
    if relations is None or relations.numel() != index.numel():
        return None
    relations = relations.reshape(-1)
    used = relations[relations >= 0].unique()
    # Loops that a convolution of one relation adds are that relation's.
    return used.expand(relations.shape) if used.numel() == 1 else relations


def _senders(
    c: OpContext, message: Tensor, axes: tuple[int, ...], recipients: Tensor, to_nodes: bool
) -> tuple[str, Tensor | None]:
    """What sends live messages, empty: the recipients themselves; and which.

    Of the nodes behind messages to nodes it is the one that is not the recipient, if there is
    another.
    """
    behind, targets = c.rows(message), recipients.reshape(-1)
    if not c.live(message):
        return "", None
    if message.numel() == 0:
        return "node", recipients.new_empty(0)
    nodes = [_entries(rows, axes) for rows in behind if c.are_nodes(rows)]
    sets = [_entries(rows, axes) for rows in behind if not c.are_nodes(rows)]
    if to_nodes or not behind:
        # Whole messages read both ends of an edge.
        others = [ids for ids in nodes if not same(ids, targets)]
        if to_nodes and sets and not others:  # sets of nodes send, such as hyperedges
            return "cluster", c.recorder.numbered(sets[0])
        if to_nodes and not behind:  # made of edges' own numbers
            ends = c.recorder.other_end(recipients)
            nodes = [ends] if ends is not None and ends.numel() == targets.numel() else []
        return "node" if to_nodes else "row", next(iter(others or nodes), None)
    sets = [ids for ids in sets if not bool((ids - targets == ids[0] - targets[0]).all())]
    doubtful = any(bool((ids < 0).any()) for ids in nodes)
    if sets and (doubtful or not nodes):
        return "cluster", c.recorder.numbered(sets[0])
    # A node that all rows of a graph read beside their own, as its root, is no end of an edge.
    nodes = [ids for ids in nodes if len(nodes) == 1 or not _is_shared(ids, targets)] or nodes
    if len(nodes) > 1:
        is_entry = torch.stack(nodes).amax(0) >= 0  # not so in the empty rows of a dense batch
        return "edge", torch.where(is_entry, is_entry.cumsum(0) - 1, -1)
    return ("node", nodes[0]) if nodes else ("", None)


def _is_shared(ids: Tensor, recipients: Tensor) -> bool:
    """Whether the entries of every recipient have the same node."""
    pairs = torch.stack([recipients, ids])[:, ids >= 0].unique(dim=1)
    return pairs.shape[1] == pairs[0].unique().numel()


def _entries(rows: NodeRows, axes: tuple[int, ...]) -> Tensor:
    """[T] what stands behind the first channel of every entry."""
    kept = [a for a in range(rows.ids.dim()) if a not in axes]
    ids = rows.ids.permute(*axes, *kept)
    first: Any = (..., *[slice(0, 1)] * len(kept))
    return ids[first].reshape(-1)


def _listed(c: OpContext, index: Tensor, dim: int) -> Tensor:
    """An index repeated over all other axes, as a list."""
    dim = dim % index.dim()
    numbers = NodeRows(index).along(dim) if index.dim() > 1 else index
    if numbers is None:
        raise ValueError("rows of one entry go to different places")
    if numbers is not index:
        c.recorder.alias(index, numbers, dim)
    return numbers


def _scattered(c: OpContext) -> list[Behind]:
    """index_add, scatter_add, and the same with other reductions."""
    base, dim, index, message = c.args[:4]
    how = c.argument(4, "reduce", "sum") if c.step.name.endswith("reduce") else "sum"
    index = index if c.step.name.startswith("index") else _listed(c, index, dim)
    included = c.kwargs.get("include_self", True)
    factor = float(c.kwargs.get("alpha", 1))
    return _entry_sum(c, message, dim, index, base if included else None, how, factor)


def _segment_reduce(c: OpContext) -> list[Behind]:
    data, how = c.args[0], c.args[1]
    lengths: Any = c.kwargs.get("lengths")
    lengths = c.kwargs["offsets"].diff() if lengths is None else lengths
    if c.kwargs.get("axis", 0) != 0:
        raise ValueError("segments of another axis")
    return _entry_sum(c, data, 0, torch.repeat_interleave(lengths), how=how)


# Extensions: torch_scatter, torch_sparse, pyg-lib ------------------------------------------------


def _segments(c: OpContext) -> tuple[int, Tensor]:
    """The axis that pointers cut into segments, and the segment of every entry."""
    pointers = c.args[1]
    dim = pointers.dim() - 1
    listed = pointers if dim == 0 else NodeRows(pointers).along(dim)
    if listed is None:
        raise ValueError("segments that differ from row to row")
    return dim, torch.repeat_interleave(listed.diff())


def _by_segments(c: OpContext) -> list[Behind]:
    """torch_scatter's sums, means and maxima, by pointers or by an index along an axis."""
    source, index, parts = c.args[0], c.args[1], c.step.name.split("_")
    if parts[-1] == "csr":
        dim, places = _segments(c)
        if len(places) != source.shape[dim] or int(index.min()):
            raise ValueError("segments that leave entries out")
        return _entry_sum(c, source, dim, places, how=parts[1])
    scattered = parts[0] == "scatter"
    dim = c.args[2] % source.dim() if scattered else index.dim() - 1
    base = c.argument(3 if scattered else 2, "out") if parts[1] == "sum" else None
    return _entry_sum(c, source, dim, _listed(c, index, min(dim, index.dim() - 1)), base, parts[1])


def _gather_segments(c: OpContext) -> list[Behind]:
    if c.step.name == "gather_csr":
        dim, index = _segments(c)
    else:
        dim = c.args[1].dim() - 1
        index = _listed(c, c.args[1], dim)
    return _picked(c, c.args[0], dim, index)


def _spmm(c: OpContext) -> list[Behind]:
    """torch_sparse's product: pointers, columns and values of a matrix, and a table."""
    pointers, columns, value, table = c.args[1], c.args[2], c.args[3], c.args[-1]
    how, rows = c.step.name.removeprefix("spmm_"), table.dim() - 2
    c.step.mixes = True
    if how in ("sum", "mean") and rows == 0:
        _matrix_sum(c, table, pointers, columns, value, how == "mean")
    return c.each((c.counted(c.out.shape, rows),))


def _bag(c: OpContext) -> list[Behind]:
    """embedding_bag: sums or means of rows of a table, some for every bag."""
    table, index, offsets, mode = *c.args[:3], c.argument(4, "mode", 0)
    weights, last = c.argument(6, "per_sample_weights"), c.argument(7, "include_last_offset", False)
    c.step.mixes = True
    if mode in (0, 1):
        ends = offsets if last else torch.cat([offsets, offsets.new_tensor([len(index)])])
        _matrix_sum(c, table, ends, index, weights, mode == 1)
    return [(c.counted(c.out.shape, 0),), *[()] * (len(c.outs) - 1)]


def _matrix_sum(
    c: OpContext, table: Tensor, ends: Tensor, columns: Tensor, value: Tensor | None, mean: bool
) -> None:
    """Note a product with a matrix that is given by the ends of its rows."""
    if not (c.live(table) or c.live(value)):
        return
    numbers = torch.ones(len(columns), dtype=table.dtype) if value is None else value.detach()
    size = (len(ends) - 1, len(table))
    places = torch.stack([torch.repeat_interleave(ends.diff()), columns])
    matrix = torch.sparse_coo_tensor(
        places, numbers, size, is_coalesced=True if c.step.name.startswith("spmm") else None
    )
    inner = [r for r in c.rows(table) if r.varies(0)]
    c.step.reduction = Reduction(
        message=c.number(table), matrix=c.recorder.made_of(matrix, value),
        sources=inner[0].ids if inner else None, size=size[0], mean=mean,
    )  # fmt: skip


def _rows_stay(c: OpContext) -> list[Behind]:
    """Products of some rows each with matrices of their own."""
    sources = c.args[0] if isinstance(c.args[0], list | tuple) else [c.args[0]]
    return [_by_first_axis(c.rows(s), out) for s, out in zip(sources, c.outs, strict=True)]


def _by_first_axis(behind: Iterable[NodeRows], out: Tensor) -> Behind:
    """The same nodes behind a result with as many rows, whatever its other axes are."""
    nodes = [rows.along(0) for rows in behind]
    return tuple(NodeRows(along_axis(ids, 0, out.shape)) for ids in nodes if ids is not None)


def _axis_sum(c: OpContext) -> list[Behind]:
    """Σ over axes: a sum over nodes where different nodes stand along them."""
    source, behind = c.args[0], c.rows(c.args[0])
    dims = axes_of(c.argument(1, "dim"), source.dim())
    if not c.varies(source, dims):
        return _kept(c, source, dims)
    joined = _side_by_side(behind) if dims == [source.dim() - 1] else None
    if joined is not None and 2 * len(joined) <= source.shape[-1]:  # scores of an edge's two ends
        ends = [r.ids if c.out.dim() == source.dim() else r.ids.squeeze(-1) for r in joined]
        return c.each(union([[NodeRows(ids) for ids in ends]]))
    c.step.mixes = True
    kept = [axis for axis in range(source.dim()) if axis not in dims]
    along = [axis for axis in kept if c.varies(source, [axis])]
    if not along and len(kept) > 1 and kept[0] == 0 and source.shape[0] == 1:
        along = [0]  # a batch of one graph
    if not along and dims == [1] and source.dim() == 3 and source.shape[0] == source.shape[1]:
        along = [0]  # an adjacency made in the model, times every row
    if len(along) > 1:
        return [() for _ in c.outs]
    axes, keepdim = (*along, *dims), c.out.dim() == source.dim()
    size = source.shape[along[0]] if along else 1
    places = torch.arange(size).repeat_interleave(prod(source.shape[axis] for axis in dims))
    out_axis = None if not along else along[0] - sum(d < along[0] for d in dims if not keepdim)
    sender, sources = _senders(c, source, axes, places, c.is_count(size))
    if sender:
        c.step.reduction = Reduction(
            message=c.number(source), axes=axes, out_axis=out_axis, recipients=places,
            sources=sources, size=size, mean=c.step.name == "mean", sender=sender,
        )  # fmt: skip
    if out_axis is None:
        return [() for _ in c.outs]
    if any(not any(r.varies(a) for a in dims) and r.varies(along[0]) for r in behind):
        return _kept(c, source, dims)
    return c.each((c.counted(c.out.shape, out_axis),))


def _kept(c: OpContext, source: Tensor, dims: Sequence[int]) -> list[Behind]:
    """NodeRows after axes along which no node changes are reduced."""
    shape = [1 if axis in dims else size for axis, size in enumerate(source.shape)]
    kept = [rows for rows in c.rows(source) if not any(rows.varies(axis) for axis in dims)]
    reduced = [rows.spread(shape, dims) for rows in kept]
    if c.out.dim() < source.dim():
        reduced = [rows.viewed(lambda ids: ids.squeeze(tuple(dims))) for rows in reduced]
    return c.each(tuple(reduced))


def _axis_extreme(c: OpContext) -> list[Behind]:
    """A maximum and its like over axes; no sum, where nodes change along them."""
    source = c.args[0]
    if len(c.args) > 1 and isinstance(c.args[1], Tensor):
        return _pointwise(c)
    argument = 2 if c.step.name in ("norm", "linalg_vector_norm") else 1
    dims = axes_of(c.argument(argument, "dim"), source.dim())
    c.step.mixes = c.varies(source, dims)
    return _kept(c, source, dims)


def _along(c: OpContext) -> list[Behind]:
    """Softmax, cumulated sums, sorting: along an axis, of the same shape."""
    source = c.args[0]
    argument = c.argument(2 if c.step.name == "topk" else 1, "dim", -1)
    dim = argument if isinstance(argument, int) and not isinstance(argument, bool) else -1
    axes = [dim % source.dim()]
    if c.step.name == "topk":
        return _read_whole(c, axes)
    c.step.mixes = c.varies(source, axes)
    return c.each(() if c.step.mixes and c.step.name == "sort" else c.rows(source))


def _distances(c: OpContext) -> list[Behind]:
    """cdist: a number for every row of one table with every row of another."""
    last, shape = c.args[0].dim() - 1, c.out.shape
    c.step.mixes = any(c.varies(table, [last]) for table in c.args[:2])
    left = [rows.spread(shape, [last]) for rows in c.rows(c.args[0])]
    right = [rows.transposed().spread(shape, [last - 1]) for rows in c.rows(c.args[1])]
    return [union([left, right])]


def _batch_norm(c: OpContext) -> list[Behind]:
    """By running statistics row by row; by those of the batch a mixture of a channel's rows."""
    flags = [a for a in c.args[5:] if isinstance(a, bool)]
    of_batch = bool(flags and flags[0]) and "no_training" not in c.step.name
    of_batch = of_batch or (len(c.args) > 3 and c.args[3] is None)
    over = [axis for axis in range(c.args[0].dim()) if axis != 1]
    c.step.mixes = of_batch and c.varies(c.args[0], over)
    return c.each(c.rows(c.args[0]))


def _read_whole(c: OpContext, axes: Sequence[int]) -> list[Behind]:
    """An operation that reads some axes as a whole: gates, Fourier transforms, convolutions."""
    c.step.mixes = c.varies(c.args[0], axes)
    behind = () if c.step.mixes else c.rows(c.args[0])
    return c.each(tuple(rows.spread(c.out.shape, axes) for rows in behind))


def _first_axis(c: OpContext) -> list[Behind]:
    """Convolutions, pools and bilinear maps of channels: nodes along the first axis only."""
    sources = [c.args[0], c.args[2]] if c.step.name == "_trilinear" else [c.args[0]]
    c.step.mixes = any(c.varies(source, range(1, source.dim())) for source in sources)
    behind = [rows for source in sources for rows in c.rows(source)]
    return c.each(union([_by_first_axis(behind, c.out)]))


def _convolution(c: OpContext) -> list[Behind]:
    """A convolution: it reads all channels, and several places along the axes that its kernel
    covers."""
    source, weight, _, stride, padding = c.args[:5]
    sizes = zip(weight.shape[2:], stride, padding, strict=True)
    covered = [1, *(axis for axis, size in enumerate(sizes, 2) if size != (1, 1, 0))]
    if not c.varies(source, covered):
        return _read_whole(c, covered)
    last = [r.viewed(lambda ids: ids.movedim(1, -1)) for r in c.rows(source)]
    beside = _side_by_side(last) if covered == [1] else None  # as a linear layer reads edges' ends
    if beside is None:
        return _first_axis(c)
    ends = [r.viewed(lambda ids: ids.movedim(-1, 1)).spread(c.out.shape) for r in beside]
    return c.each(union([ends]))


def _normed(c: OpContext) -> list[Behind]:
    """Normalisation over the last axes, or over groups of channels."""
    source = c.args[0]
    first = source.dim() - len(c.args[1]) if c.step.name == "native_layer_norm" else 1
    c.step.mixes = c.varies(source, range(first, source.dim()))
    return c.each(c.rows(source))


# Products ----------------------------------------------------------------------------------------


def _mm_reduce(c: OpContext) -> list[Behind]:
    """A sparse product whose rows are sums or means, or no sums at all."""
    if c.args[2] in ("sum", "mean"):
        behind = _product(c, *c.args[:2], mean=c.args[2] == "mean")
        return [behind[0], *[()] * (len(c.outs) - 1)]
    c.step.mixes = True
    return c.each((c.counted(c.out.shape, 0),))


def _added_product(c: OpContext) -> list[Behind]:
    """addmm and baddbmm: β base + α left · right."""
    beta = float(c.kwargs.get("beta", 1))
    base = None if beta == 0 else c.args[0]
    added = {} if base is None else {"base": c.number(base), "of_base": beta}
    behind = _product(c, c.args[1], c.args[2], factor=float(c.kwargs.get("alpha", 1)), **added)
    return [union([behind[0], [rows.spread(c.out.shape) for rows in c.rows(base)]])]


def _mv(c: OpContext) -> list[Behind]:
    matrix, vector = c.args
    if not any(rows.varies(0) for rows in c.rows(vector)):
        return [tuple(NodeRows(r.ids[:, 0]) for r in c.rows(matrix) if not r.varies(1))]
    c.step.mixes = True
    nodes = [rows for rows in c.rows(vector) if c.are_nodes(rows)]
    if nodes:
        column = [nodes[0].viewed(lambda ids: ids.unsqueeze(1))]
        _note_product(c, vector, matrix, column, len(matrix))
    return [(c.counted(c.out.shape, 0),)]


def _product(c: OpContext, left: Tensor, right: Tensor, **added: Any) -> list[Behind]:
    """left @ right, of matrices or of batches of them; added to something else as ``added`` says.

    The keywords are those of :class:`Reduction`.
    """
    rows, columns = left.dim() - 2, left.dim() - 1
    inner = _in_order(c, [r for r in c.rows(right) if r.varies(rows)], rows)
    outer = [r for r in c.rows(left) if r.varies(columns)]
    sparse = left.layout != torch.strided and not c.rows(left)  # else rows of features
    if outer and not inner and all(_are_own_clusters(c, r) for r in outer):
        return [(c.counted(c.out.shape, 0),)]  # a layer that reads a graph's clusters side by side
    if inner and any(c.are_nodes(r) and r.varies(rows) for r in c.rows(left)):
        inner = [r for r in inner if c.are_nodes(r)]  # clusters are given back to nodes
    matrix = sparse or (bool(outer) and not c.live(left))
    joined = outer and not inner and not sparse and left.dim() == 2
    side_by_side = _side_by_side(outer) if joined else None
    if side_by_side is not None or not (inner or outer or sparse):
        return _outer_rows(c, left, right, side_by_side or [])
    c.step.mixes = True
    across = [r for r in c.rows(right) if r.varies(columns)]
    down = [r for r in c.rows(left) if r.varies(rows)]
    turned_table = bool(outer) and c.live(left)  # whose rows are channels, however many
    counted = bool(down) or not c.live(left)
    counted = counted or (c.is_count(left.shape[rows]) and not turned_table)
    shape = c.out.shape

    def note(turned: bool = False, batched: bool = False) -> None:
        """Note left · right, or from the other side rightᵀ · leftᵀ."""
        table, matrix = (left, right) if turned else (right, left)
        behind = [r.transposed() for r in outer] if turned else inner
        out_axis = 0 if batched else columns if turned else rows
        form = {"turned": turned, "batched": batched, "out_axis": out_axis, **added}
        _note_product(c, table, matrix, behind, shape[out_axis], **form)

    if inner and not down and not across and not c.live(left) and _is_square(left):
        note()  # an adjacency: who receives is who sends
        return [tuple(r.spread(shape, [columns]) for r in inner)]
    if outer and not (inner or down or across) and _is_square(right):
        note(turned=True)  # the same from the other side
        return [tuple(r.spread(shape, [rows]) for r in outer)]
    single = (left.shape[0], right.shape[1]).count(1) == 1 and not (down or across)
    if inner and outer and left.dim() == 2 and single:
        note(turned=left.shape[0] > 1)  # one recipient, as each graph is in a loop over graphs
        return [()]
    alone = left.dim() == 3 and (left.shape[1] == 1 or not (down or across))
    recipients = [*inner, *(c.rows(left) if left.shape[-2] == 1 else ())]
    if alone and inner and any(r.varies(0) for r in recipients):
        # Row vectors times matrices, as attention over the nodes of each graph of a dense batch,
        # or of each node over all.
        note(batched=True)
        return [(c.counted(shape, 0) if left.shape[1] == 1 else c.clusters(),)]
    is_turned = any(r.varies(0) for r in outer) and right.shape[2:] == (1,) and not down
    if left.dim() == 3 and is_turned and c.live(left):  # the same from the other side
        note(turned=True, batched=True)
        return [(c.counted(shape, 0),)]
    if inner and across and not (outer and down) and not sparse:
        note(turned=True)
        return [tuple(r.spread(shape, [rows]) for r in across[:1])]
    if not (inner or matrix) or not counted:
        return [(c.clusters(),)] if inner and not across else _outer_rows(c, left, right)
    note()
    return [tuple(r.spread(shape, [columns]) for r in down[:1]) or (c.counted(shape, rows),)]


def _in_order(c: OpContext, several: list[NodeRows], axis: int) -> list[NodeRows]:
    """The nodes behind rows, those first that are numbered as the rows themselves are."""
    if len(several) < 2:
        return several
    counted = c.counted(several[0].ids.shape, axis)
    return sorted(several, key=lambda rows: not same(rows.ids, counted.ids))


def _is_square(matrix: Tensor) -> bool:
    return matrix.layout == torch.strided and matrix.shape[-1] == matrix.shape[-2]


def _note_product(
    c: OpContext, table: Tensor, matrix: Tensor, behind: Sequence[NodeRows], size: int, **form: Any
) -> None:
    """Note a product in which a matrix weighs the rows of a table, if either is live."""
    if c.live(table) or c.live(matrix):
        sender = "node" if c.is_count(table.shape[-2 if table.dim() > 1 else 0]) else "row"
        sender = sender if not behind else "node" if c.are_nodes(behind[0]) else "cluster"
        sources = behind[0].ids if behind else None
        sources = c.recorder.numbered(behind[0].ids) if sender == "cluster" else sources
        c.step.reduction = Reduction(
            c.number(table), matrix=c.number(matrix), sources=sources, size=size, sender=sender,
            **form,
        )  # fmt: skip


def _are_own_clusters(c: OpContext, rows: NodeRows) -> bool:
    """Whether the clusters along the last axis are others in every row."""
    if c.are_nodes(rows) or rows.ids.dim() != 2 or len(rows.ids) < 2:
        return False
    clusters = [ids.unique() for ids in rows.ids]
    return torch.cat(clusters).unique().numel() == sum(ids.numel() for ids in clusters)


SIDE_BY_SIDE = 4
"""Nodes whose channels are joined to one row: the ends of an edge, and a few more. Beyond that rows
are taken to be all nodes of something."""


def _side_by_side(outer: Sequence[NodeRows]) -> list[NodeRows] | None:
    """Every node of rows in which the channels of a few nodes stand side by side; else None."""
    columns: list[NodeRows] = []
    for rows in outer:
        ids = distinct(rows.ids, keep=rows.ids.dim() - 1)
        other = (ids[..., 1:] != ids[..., :-1]).reshape(-1, ids.shape[-1] - 1).any(0)
        starts = [0, *(other.nonzero().view(-1) + 1).tolist()]
        if len(starts) > SIDE_BY_SIDE or not any(map(rows.varies, range(rows.ids.dim() - 1))):
            return None
        columns += [NodeRows(rows.ids[..., start : start + 1]) for start in starts]
    return columns


def _outer_rows(
    c: OpContext, left: Tensor, right: Tensor, beside: Sequence[NodeRows] = ()
) -> list[Behind]:
    """NodeRows of the left operand stay rows, columns of the right one columns."""
    rows, columns = left.dim() - 2, left.dim() - 1
    shape = c.out.shape
    kept = [r for r in c.rows(left) if not r.varies(columns)]
    nodes = any(c.are_nodes(r) for r in kept)  # to whom clusters along columns are channels
    of_columns = [r for r in c.rows(right) if not r.varies(rows) and (not nodes or c.are_nodes(r))]
    of_rows = [r.spread(shape, [columns]) for r in (*kept, *beside)]
    return [union([of_rows, [r.spread(shape, [rows]) for r in of_columns]])]


def _pad(c: OpContext) -> list[Behind]:
    padding = list(c.args[1])
    behind = c.rows(c.args[0])
    return [tuple(r.viewed(lambda t: torch.constant_pad_nd(t, padding, -1)) for r in behind)]


def _into(c: OpContext) -> list[Behind]:
    """select_scatter and slice_scatter."""
    write = getattr(torch, c.step.name)
    return _written(c, lambda ids, rows: write(ids, rows, *c.args[2:], **c.kwargs), c.args[1])


def _positions(c: OpContext) -> list[Behind]:
    """nonzero: how many places there are, and which, hangs on all nodes along the axes."""
    source = c.args[0]
    c.step.mixes = c.live(source) and c.varies(source, range(source.dim()))
    return [() for _ in c.outs]


POINTWISE = {
    "alpha_dropout", "bernoulli", "binary_cross_entropy", "binomial", "cauchy", "complex",
    "_conj_physical", "exponential", "feature_dropout", "fill", "floor_divide", "geometric",
    "hardswish", "huber_loss", "imag", "l1_loss", "leaky_relu", "log_normal",
    "log_sigmoid_forward", "mse_loss", "normal", "poisson", "polar", "_prelu_kernel", "prelu",
    "random", "real", "rrelu_with_noise", "smooth_l1_loss", "soft_margin_loss", "tril", "triu",
    "uniform", "zero",
    "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
    *(f"{kind}_like" for kind in ("empty", "full", "ones", "rand", "randint", "randn", "zeros")),
}  # fmt: skip
"""Operations place by place that PyTorch, or the lowest version allowed, does not declare as such
(``torch.Tag.pointwise``)."""


HANDLERS: dict[str, Callable[[OpContext], list[Behind]]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _shaped),
    **dict.fromkeys(
        ("alias", "detach", "clone", "contiguous", "_to_copy", "lift_fresh", "lift_fresh_copy",
         "dropout", "native_dropout", "to", "_conj", "resolve_conj", "_neg_view", "resolve_neg",
         "_to_sparse", "_to_dense", "_coalesce"), _same),
    **{name: _view(getattr(torch.ops.aten, name)) for name in (
        "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "slice", "select", "split",
        "split_with_sizes", "unbind", "unfold", "diagonal", "flip", "roll", "repeat",
        "unsafe_split",
        "repeat_interleave", "narrow", "movedim")},
    "view_as_real": _view(lambda ids: ids.unsqueeze(-1).expand(*ids.shape, 2)),
    "as_strided": lambda c: _same(c) if _is_plain(c) else _unknown(c),
    "cat": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "index_select": lambda c: _picked(c, *c.args[:3]),
    "embedding": lambda c: _picked(c, c.args[0], 0, c.args[1]),
    "index": _index,
    "gather": _gather,
    "copy": _copy,
    "index_put": _index_put,
    "scatter": _scatter,
    "index_copy": _index_copy,
    "index_add": _scattered,
    "scatter_add": _scattered,
    "scatter_reduce": _scattered,
    "index_reduce": _scattered,
    "segment_reduce": _segment_reduce,
    "_segment_reduce": _segment_reduce,
    "sum": _axis_sum,
    "mean": _axis_sum,
    **dict.fromkeys(
        ("amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "std_mean", "logsumexp",
         "norm", "linalg_vector_norm", "argmax", "argmin", "any", "all", "median", "nanmean",
         "count_nonzero", "mode"), _axis_extreme),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "logcumsumexp",
         "cummax", "cummin", "sort", "topk"), _along),
    **dict.fromkeys(
        ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit",
         "_native_batch_norm_legit_no_training", "_batch_norm_no_update", "batch_norm"),
        _batch_norm),
    "glu": lambda c: _read_whole(c, [c.argument(1, "dim", -1) % c.args[0].dim()]),
    "convolution": _convolution,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"),
                    lambda c: _read_whole(c, axes_of(c.args[1], c.args[0].dim()))),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "avg_pool2d", "avg_pool1d", "max_pool1d",
         "_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest1d", "_trilinear"),
        _first_axis),
    "native_layer_norm": _normed,
    "native_group_norm": _normed,
    **dict.fromkeys(("mm", "bmm", "_sparse_mm", "matmul"), lambda c: _product(c, *c.args[:2])),
    "_sparse_mm_reduce_impl": _mm_reduce,
    **dict.fromkeys(("addmm", "_sparse_addmm", "baddbmm"), _added_product),
    "mv": _mv,
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), _distances),
    "bucketize": lambda c: _pointwise(c) if not c.rows(c.args[1]) else _unknown(c),
    "constant_pad_nd": _pad,
    **dict.fromkeys(("select_scatter", "slice_scatter"), _into),
    "nonzero": _positions,
    **dict.fromkeys(
        (f"{form}_{how}{end}" for how in ("sum", "mean", "max", "min", "mul")
         for form, end in (("segment", "_csr"), ("segment", "_coo"), ("scatter", ""))),
        _by_segments),
    **dict.fromkeys(("gather_csr", "gather_coo"), _gather_segments),
    **dict.fromkeys((f"spmm_{how}" for how in ("sum", "mean", "min", "max")), _spmm),
    **dict.fromkeys(("segment_matmul", "grouped_matmul"), _rows_stay),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bag),
}  # fmt: skip
"""By operation: the nodes behind its results. What is not listed is pointwise where PyTorch or
:data:`POINTWISE` says so, and otherwise taken to mix nodes."""
