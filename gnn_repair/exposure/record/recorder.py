"""Recording one run of a model at the level of PyTorch's own (ATen) operations.

Kept of every operation are its name, its module and the numbers of the values it reads and makes;
of values their shapes, whether they depend on features or parameters (*live*), and the nodes behind
their elements. Only index tensors outlive their use, so a recorded run needs about the time and
memory of a plain one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch_geometric import EdgeIndex
from torch_geometric.nn import Linear, MessagePassing

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.pieces import centre
from gnn_repair.exposure.record.reductions import (
    NodeRows,
    Reduction,
    along_axis,
    distinct,
    is_in_place,
    plain_name,
    rows_after,
    rows_after_write,
    same,
)
from gnn_repair.exposure.record.spelled import unfused


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every module's names: one that several parts share has one in each."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def select_name(names: Sequence[str], running: Sequence[str]) -> str:
    """Of a shared module's names the one inside the module that runs it now."""
    for outer in reversed(running):
        for name in names:
            if outer and name.startswith(f"{outer}."):
                return name
    return names[0]


@dataclass
class Head:
    """What the linear layer that ran last read and gave."""

    read: Tensor | None = None
    gave: Tensor | None = None

    def embedding(self, logits: Tensor, outputs: str) -> Tensor | None:
        """What it read, [N, k], if what it gave are the logits (of classes up to a shift per node).

        Asked once: what it gave is forgotten, for on a large graph it is large.
        """
        gave, self.gave = self.gave, None
        if gave is None or self.read is None or gave.numel() != logits.numel():
            return None
        gave = gave.reshape(logits.shape).to(logits.dtype)
        pair = (centre(gave), centre(logits)) if outputs == "classes" else (gave, logits)
        # The same numbers but for a few float32 operations (a log_softmax, a sum) between them.
        same = torch.allclose(*pair, rtol=1e-4, atol=1e-5)
        if outputs != "values" and not same:  # what may follow, and is taken off
            activated = gave.sigmoid() if outputs == "labels" else gave.softmax(1)
            same = torch.allclose(activated, logits, rtol=1e-4, atol=1e-5)
        return self.read if same and self.read.dim() == 2 else None


KEPT_ALWAYS = 1 << 22
"""Numbers of a value that is kept whatever the graph: 16 MB in float32."""
KEPT_PER_NODE = 256
"""Numbers per node of a value that is kept on a large graph: a table of nodes, attention of all
heads; not the messages."""
SHAPED = {f"{kind}_like" for kind in ("empty", "zeros", "ones", "full", "rand", "randn")}
SHAPED |= {f"new_{kind}" for kind in ("empty", "empty_strided", "zeros", "ones", "full")}
"""Operations that take a tensor's shape and none of its values."""


LINKS = 1 << 40
"""Behind numbers of a list of links [2, L]: this plus the place in it, beyond all nodes."""
UNCOUNTED = "detach"
"""Not counted: PyTorch adds it to some factories' results, depending on who else holds them."""
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
MOVES = VIEWS | {"unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "movedim"}
SAME = {"alias", "detach", "clone", "contiguous", "_to_copy", "lift_fresh", "dropout",
        "native_dropout"}  # fmt: skip
GATHERS = {"index_select", "index", "embedding"}


@dataclass(frozen=True)
class Ref:
    """A value where an operation's arguments had a tensor."""

    number: int


@dataclass(eq=False)
class Value:
    """One state of one tensor of the run."""

    shape: tuple[int, ...]
    step: int
    """The operation that made it; −1: it was there before."""
    live: bool
    """Whether it depends on features or parameters."""
    rows: tuple[NodeRows, ...] = ()
    space: int | None = None
    """Of whole numbers: the node type that they number, if known."""
    name: str = ""
    """Of what was there before: the parameter's or field's name, if known."""
    tensor: Tensor | None = None
    """Index tensors, and what was there before."""
    before: int | None = None
    """The same tensor's value before it was written in place."""
    dtype: torch.dtype = torch.float32

    @property
    def floating(self) -> bool:
        """Whether it holds real or complex numbers."""
        return self.dtype.is_floating_point or self.dtype.is_complex


@dataclass(eq=False)
class RecordedStep:
    """One operation of the run."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: str
    outs: tuple[int, ...] = ()
    reduction: Reduction | None = None
    func: Any = None
    mixes: bool = False
    """Whether it lets different nodes' numbers into one."""
    looks: bool = False
    """Whether Python sees the result (a branch, a shape)."""
    layer_input: Any = None
    """What the convolution around it was given first, values as :class:`Ref`."""

    @property
    def result(self) -> int:
        """The number of what it makes, or writes; of several results the first."""
        return self.outs[-1] if is_in_place(self.func) else self.outs[0]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the values it reads; of a tensor it may only take the shape."""
        return () if self.name in SHAPED else tuple(value_numbers((self.args, self.kwargs)))


def value_numbers(tree: Any) -> list[int]:
    """The values named in nested arguments."""
    return [leaf.number for leaf in tree_leaves(tree) if isinstance(leaf, Ref)]


def fill_values(tree: Any, kept: Mapping[int, Tensor]) -> Any:
    """Nested arguments with the values themselves."""
    return tree_map_only(Ref, lambda ref: kept[ref.number], tree)


@dataclass(frozen=True)
class Spaces:
    """The node types of a graph, numbered one after another."""

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Nodes of all types."""
        return sum(self.counts)

    def first(self, space: int) -> int:
        """The number of a type's first node."""
        return sum(self.counts[:space])

    def is_square(self, matrix: Tensor) -> bool:
        """Whether both axes of a matrix are nodes' by their sizes."""
        square = matrix.dim() == 2 and matrix.shape[0] == matrix.shape[1]
        return square and matrix.shape[0] in self.counts and not is_basis(matrix)

    def only(self, size: int) -> int | None:
        """The type of so many nodes, if there is just one."""
        spaces = [space for space, count in enumerate(self.counts) if count == size]
        return spaces[0] if len(spaces) == 1 else None


def is_basis(matrix: Tensor) -> bool:
    """Whether the columns of a matrix are orthonormal and have signs, as eigenvectors.

    They stand for no nodes, which a square matrix would let one think.
    """
    if (
        matrix.layout != torch.strided
        or not matrix.is_floating_point()
        or not bool((matrix < 0).any())
    ):
        return False
    probe = torch.arange(matrix.shape[1], device=matrix.device).to(matrix.dtype).mul(1.7).sin()
    return bool(((matrix.mT @ (matrix @ probe)) - probe).abs().amax() < 1e-3)


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """What is known of a tensor before the run."""

    name: str
    live: bool
    space: int | None = None
    """Of features: whose. Of an edge list: see ``ends``."""
    ends: tuple[int, int] | None = None
    """Of an edge list [2, E]: the types of its two rows."""
    is_square: bool = False
    """Whether both axes are nodes' (an adjacency matrix)."""
    relation: int | None = None
    """Of the edge list of one of several relations: which."""
    is_field: bool = False
    """Whether it is the user's data."""
    is_links: bool = False
    """Whether it lists the links that are predicted, [2, L]."""


@dataclass(eq=False)
class Record:
    """A run."""

    steps: list[RecordedStep] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    counts: tuple[int, ...] = ()
    """Nodes of every type."""
    output: int = -1
    embedding: int | None = None
    """What the linear layer that ran last read."""
    marks: tuple[int, ...] = ()
    """Values that the run itself pointed out: the embeddings between encoder and decoder."""

    def walk_back(
        self, values: Iterable[int], follow: Callable[[int], Iterable[int]] | None = None
    ) -> dict[int, int]:
        """Every value that some values depend on, they included, and the operation that made it.

        Args:
            values: where to start.
            follow: of an operation the values to go on with; unless given, all that it reads.
        """
        todo, makers = list(values), dict[int, int]()
        while todo:
            number = todo.pop()
            if number not in makers:
                place = makers[number] = self.values[number].step
                if place >= 0:
                    todo += follow(place) if follow else self.steps[place].inputs
        return makers

    def forget(self) -> None:
        """Let go of the tensors that the run made: a replay needs none of them."""
        for value in self.values:
            if value.step >= 0:
                value.tensor = None

    @property
    def repeats(self) -> bool:
        """Whether another run must give the same: nothing is drawn, nothing there before written.

        Numbers that come from outside are compared when the model is run again.
        """
        return not any(
            torch.Tag.nondeterministic_seeded in step.func.tags
            or (is_in_place(step.func) and self.values[step.args[0].number].step < 0)
            for step in self.steps
        )


def run_decomposed(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation run as its parts: a composite one, which inference mode hands over whole, and
    products with PyG's EdgeIndex or with a diagonal matrix, which is a number times each row."""
    if torch.is_inference_mode_enabled() and func._can_decompose():
        with mode:
            return func.decompose(*args, **kwargs)
    added = plain_name(func) == "_sparse_addmm" and kwargs.get("beta", 1) == 0
    if added or (plain_name(func) == "mm" and not kwargs):
        matrix, rows = args[-2:]
        if isinstance(matrix, EdgeIndex):
            with mode:
                return matrix.matmul(rows)
        if rows.layout == torch.strided and _is_diagonal(matrix):
            with mode:
                dense = matrix.layout == torch.strided
                numbers = matrix.diagonal() if dense else torch.mv(matrix, rows.new_ones(len(rows)))
                return numbers.unsqueeze(1) * rows * kwargs.get("alpha", 1)
    return NotImplemented


def _is_diagonal(matrix: Tensor) -> bool:
    """Whether a matrix is zero but on its diagonal, and not the identity, as features may be."""
    size = len(matrix)
    if tuple(matrix.shape) != (size, size) or size < 2:
        return False
    if matrix.layout == torch.strided:
        numbers = matrix.diagonal()
        alone = int(matrix.count_nonzero()) == int(numbers.count_nonzero())
    elif matrix._nnz() > size:
        return False
    else:
        coo = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse_coo()
        alone, numbers = torch.equal(*coo._indices()), coo._values()
    return alone and bool((numbers != 1).any())


class ValueStore:
    """Values that are kept while a run is recorded, so that no second run has to make them again.

    Messages are not kept, and of earlier layers only what the last sums' messages are made of, so
    that the peak of a plain run is not much exceeded. Where it would be, nothing is kept.
    """

    def __init__(self, record: Record, nodes: int) -> None:
        self.record, self.values, self.full = record, dict[int, Tensor](), False
        self.largest, self.copied = 0, 0
        self.limit = max(KEPT_ALWAYS, KEPT_PER_NODE * nodes)

    def keep(self, number: int, tensor: Tensor) -> None:
        """Keep a value, if it is small enough."""
        if tensor.layout != torch.strided:
            return
        self.largest = max(self.largest, tensor.numel())
        value, small = self.record.values[number], tensor.numel() <= self.limit
        if small and value.step >= 0 and value.tensor is None and not self.full:
            self.values.setdefault(number, tensor)

    def copy(self, number: int, tensor: Tensor) -> None:
        """A kept value is about to be overwritten."""
        value = self.record.values[number]
        if number in self.values:
            self.copied += tensor.numel()
            self.values[number] = tensor.clone()
            self.full = self.full or self.copied > 4 * max(KEPT_ALWAYS, self.largest)
        elif value.tensor is tensor and value.step >= 0:
            value.tensor = tensor.clone()

    def release(self, step: RecordedStep) -> None:
        """Forget what stands before a sum's messages, but for what these are made of."""
        assert step.reduction is not None
        parts = self._parts(step.reduction.operands) | set(value_numbers(step.layer_input))
        for number in set(self.record.walk_back(step.reduction.operands)) - parts:
            self.values.pop(number, None)
        sizes = {t.untyped_storage()._cdata: t.numel() for t in self.values.values()}
        excess = sum(sizes.values()) - max(KEPT_ALWAYS, self.largest // 2)
        for storage, size in sorted(sizes.items(), key=lambda pair: -pair[1]):
            if excess > 0 or self.full:
                excess -= size
                kept = self.values.items()
                self.values = {n: t for n, t in kept if t.untyped_storage()._cdata != storage}

    def _parts(self, operands: Iterable[int]) -> set[int]:
        """What messages are made of: numbers that multiply them, gathered tables, indices."""
        steps = self.record.steps

        def follow(place: int) -> Iterable[int]:
            passed = steps[place].name in MOVES | SAME | {"mul", "div", "neg"}
            return steps[place].inputs if passed else ()

        parts = set[int]()
        for number, place in self.record.walk_back(operands, follow).items():
            gathers = place >= 0 and steps[place].name in GATHERS
            parts.update({number}, steps[place].inputs if gathers else ())
        return parts


class Recorder(TorchDispatchMode):
    """While open, writes down every operation."""

    def __init__(
        self,
        spaces: Spaces,
        leaves: Mapping[int, KnownTensor],
        device: torch.device,
        pooled: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spaces, self.leaves = spaces, leaves
        self.running: list[str] = []
        self.record = Record(counts=spaces.counts)
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._storages: dict[int, dict[int, Any]] = {}
        self._others: dict[int, int] = {}
        self.inside: list[Any] = []
        """What the convolutions that run now were given."""
        self.pooled = pooled
        self.device = default_device(device)
        """Where index tensors are made."""
        self.sets: dict[int, Tensor] = {}
        """All nodes in one tensor, by how many rows it has; −1: none, as a virtual node."""
        self.store = ValueStore(self.record, spaces.total)

    # Values ------------------------------------------------------------------------------------

    def number(self, tensor: Tensor) -> int:
        """The number of what a tensor holds now."""
        number = self._known(tensor)
        return self._before(tensor) if number is None else number

    def _known(self, tensor: Tensor) -> int | None:
        entry = self._numbers.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def value(self, tensor: Tensor) -> Value:
        """What is known of a tensor."""
        return self.record.values[self.number(tensor)]

    def _before(self, tensor: Tensor) -> int:
        """A tensor that no recorded operation made."""
        shape, strided = tuple(tensor.shape), tensor.layout == torch.strided
        floating = tensor.is_floating_point() or tensor.is_complex()
        leaf = self.leaves.get(id(tensor))
        if leaf is None:
            square = self.spaces.is_square(tensor)
            # Nodes along the last axis alone: a pool's matrix, or a stack of adjacencies.
            matrix = len(shape) > 1 and shape[-1] in self.spaces.counts and shape[0] != shape[-1]
            numbers = floating and strided and not square and not matrix and bool(shape)
            space = self.spaces.only(shape[0]) if numbers else None
            leaf = KnownTensor("", numbers, space, is_square=square)
        rows, space = tuple[NodeRows, ...](), None
        if (strided or leaf.space is not None) and (floating or leaf.live) and shape:
            with self.device:
                if leaf.is_square:
                    rows = (self.rows(shape, 0), self.rows(shape, 1))
                elif leaf.space is not None and shape[0] == self.spaces.counts[leaf.space]:
                    rows = (self.rows(shape, 0, leaf.space),)
        elif leaf.ends is None and not floating:
            space = leaf.space
        if leaf.is_links:
            places = torch.arange(LINKS, LINKS + tensor.numel(), device=tensor.device)
            rows = (NodeRows(places.view(shape)),)
        if leaf.relation is not None and strided:
            rows = (NodeRows(torch.tensor(leaf.relation, device=tensor.device).expand(shape)),)
        return self._remember(
            tensor, -1, leaf.live, rows=rows, space=space, name=leaf.name, tensor=tensor
        )

    def _remember(self, tensor: Tensor, step: int, live: bool, /, **known: Any) -> int:
        """A new value: what a tensor holds from now on; ``known``: its other fields."""
        value = Value(tuple(tensor.shape), step, live, dtype=tensor.dtype, **known)
        self.record.values.append(value)
        return self._name(tensor, len(self.record.values) - 1)

    def _name(self, tensor: Tensor, number: int) -> int:
        self._numbers[id(tensor)] = (weakref.ref(tensor), number)
        if tensor.layout == torch.strided:
            key = tensor.untyped_storage()._cdata
            self._storages.setdefault(key, {})[id(tensor)] = weakref.ref(tensor)
        return number

    def rows(self, shape: Sequence[int], axis: int, space: int | None = None) -> NodeRows:
        """The rows of nodes counted along an axis."""
        size = shape[axis]
        if space is None:
            space = self.spaces.only(size)
        if space is None and size in self.sets:
            return NodeRows(along_axis(self.sets[size], axis, shape))
        first = self.spaces.first(space) if space is not None else self.others(size)
        return NodeRows(along_axis(torch.arange(first, first + size), axis, shape))

    def others(self, size: int) -> int:
        """The first number of so many things that are no nodes (graphs, clusters)."""
        start = self.spaces.total + sum(self._others)
        return self._others.setdefault(size, start)

    def numbered(self, ids: Tensor) -> Tensor:
        """Things that are no nodes by their numbers among their like; −1 stays."""
        first = max(start for start in self._others.values() if start <= int(ids.max()))
        return torch.where(ids < 0, ids, ids - first)

    def alias(self, index: Tensor, listed: Tensor, axis: int) -> None:
        """Note the list that an index repeats over its other axes."""
        value = self.value(index)
        lists = [rows.along(axis) for rows in value.rows]
        rows = tuple(NodeRows(ids) for ids in lists if ids is not None)
        self._remember(listed, value.step, False, rows=rows, space=value.space, tensor=listed)

    def made_of(self, tensor: Tensor, value: Tensor | None) -> int:
        """Note a matrix that an operation is given in parts; ``value``: its entries, or ones."""
        before = None if value is None else self.value(value)
        origin = (-1, False) if before is None else (before.step, before.live)
        return self._remember(tensor, *origin, tensor=tensor)

    def other_end(self, index: Tensor) -> Tensor | None:
        """Of a row of an edge list the other row, in which the other ends of the edges stand."""
        number = self._known(index)
        while number is not None:
            place = self.record.values[number].step
            step = self.record.steps[place] if place >= 0 else None
            if step is None or not step.inputs:
                return None
            listed = self.record.values[step.inputs[0]]
            leaf = self.leaves.get(id(listed.tensor))
            if leaf is not None and leaf.ends is not None and listed.tensor is not None:
                row = step.outs.index(number) if step.name == "unbind" else step.args[-1]
                rows = step.name in ("unbind", "select") and step.args[1:2] in ((), (0,))
                return listed.tensor[1 - row % 2] if rows else None
            number = step.inputs[0] if step.name in SAME | VIEWS | {"expand", "unsqueeze"} else None
        return None

    def relations_of(self, index: Tensor) -> Tensor | None:
        """The relation of every entry of an edge list; −1: none."""
        rows = self.value(index).rows
        if not rows or index.is_floating_point() or bool((rows[0].ids >= LINKS).any()):
            return None
        return rows[0].ids

    def mark(self, tensors: Any) -> None:
        """Point values out."""
        with _disable_current_modes():
            self.record.marks = tuple(map(self.number, tensors_in(tensors)))

    # Operations --------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        parts = run_decomposed(self, func, args, keywords)
        if parts is not NotImplemented:
            return parts
        name, in_place = plain_name(func), is_in_place(func)
        if name == UNCOUNTED:
            out = func(*args, **keywords)
            self._name(out, self.number(args[0]))
            return out
        if name == "lift_fresh" and self._known(args[0]) is None and args[0].dim() == 1:
            # A list of Python's numbers is no table of features.
            self._remember(args[0], -1, False, tensor=args[0])
        shown_args, shown_kwargs = self._shown(tuple(args)), self._shown(keywords)
        if in_place:
            self._refuse_writing(args[0], func)
            self._copy_kept(args[0])
        elif func._schema.is_mutable:  # running statistics
            for argument, tensor in zip(func._schema.arguments, args, strict=False):
                if argument.is_write and isinstance(tensor, Tensor):
                    self._copy_kept(tensor)
        out = func(*args, **keywords)
        step = RecordedStep(
            name, shown_args, shown_kwargs, self.running[-1] if self.running else "", func=func
        )
        step.layer_input = self.inside[-1] if self.inside else None
        number = len(self.record.steps)
        self.record.steps.append(step)
        results = [args[0]] if in_place else tensors_in(out)
        read = [self.record.values[number] for number in step.inputs]
        # Of graphs, which nodes a pool keeps may hang on features; what is counted of them then
        # does not, but for one-hot codes and histograms.
        counts = name == "scatter" or (name == "index_put" and len(args[1]) > 1)
        picked = [v for v in read if v.floating] if self.pooled and not counts else []
        live = any(v.live for v in picked or read)
        step.looks = live and not results and out is not None  # a check that raises shows none
        if live:
            self._keep_structure([*args[in_place:], *keywords.values()])
        rows: list[tuple[NodeRows, ...]] = [()] * len(results)
        if live or any(self.record.values[read].rows for read in step.inputs):
            try:
                with self.device:
                    rows = rows_after(self, step, args, keywords, results)
                for result, behind in zip(results, rows, strict=True):
                    self._note_set(tuple(result.shape), behind)
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
                step.mixes = True  # an unusual form: nothing is claimed about its rows
        numbers = []
        for result, behind in zip(results, rows, strict=True):
            whole = not (result.is_floating_point() or result.is_complex())
            small = result.numel() <= KEPT_ALWAYS
            kept = result if small and _is_kept(result, live) else None
            space = self._space(step) if whole else None
            if in_place:
                behind = self._own_row(result, behind, step)
                numbers += [*self._aliases(result, behind, number, live)]
            before = step.args[0].number if in_place else None
            numbers.append(
                self._remember(
                    result, number, live, rows=behind, space=space, tensor=kept, before=before
                )
            )
            self.store.keep(numbers[-1], result)
        step.outs = tuple(numbers)
        if step.reduction is not None:
            self.store.release(step)
        return out

    def _keep_structure(self, read: Sequence[Any]) -> None:
        """Keep what a live operation reads of the graph; small tensors are kept when they are made.

        On large graphs the rest, as what sorting an edge list leaves behind, would fill the memory.
        """
        for tensor in tensors_in(read):
            value = self.value(tensor)
            if value.tensor is None and not value.live and _is_kept(tensor, live=False):
                value.tensor = tensor

    def _refuse_writing(self, target: Tensor, func: Any) -> None:
        """Raise before the user's data is overwritten: every run would see other data."""
        for leaf in (self.leaves.get(id(tensor)) for tensor in self._sharing(target)):
            if leaf is not None and leaf.is_field:
                name = str(func._schema.name).partition("::")[2]
                raise ExposureRefused(
                    f"the model writes into data.{leaf.name} (by `{name}`), so each run would see "
                    "other data; write the result to a new tensor, as in x = x + 1"
                )

    def _copy_kept(self, target: Tensor) -> None:
        """Keep copies of the values that an operation in place is about to overwrite."""
        for alias in self._sharing(target):
            value = self.value(alias)
            step = self.record.steps[value.step] if value.step >= 0 else None
            if step is not None and step.name == "lift_fresh":
                value = self.record.values[step.inputs[0]]
            if value.step < 0 and id(alias) not in self.leaves:  # made anew in every run
                value.tensor = alias.clone()
            self.store.copy(self.number(alias), alias)

    def _sharing(self, target: Tensor) -> list[Tensor]:
        """The tensors that show a tensor's memory, itself among them."""
        if target.layout != torch.strided:
            return []
        key = target.untyped_storage()._cdata
        sharing = self._storages.get(key, {})
        alive = {
            number: alias
            for number, reference in sharing.items()
            if (alias := reference()) is not None
        }
        if len(alive) < len(sharing):
            self._storages[key] = {number: sharing[number] for number in alive}
        return list(alive.values())

    def _note_set(self, shape: tuple[int, ...], behind: tuple[NodeRows, ...]) -> None:
        """Notice all nodes in one tensor: of several types, or beside a virtual node."""
        counts, total = self.spaces.counts, self.spaces.total
        if len(behind) != 1 or not shape or shape[0] < total or shape[0] in (*counts, *self.sets):
            return
        nodes = behind[0].along(0)
        if nodes is None:
            return
        is_node = nodes >= 0
        if int(is_node.sum()) == total == len(nodes[is_node].unique()):
            self.sets[shape[0]] = nodes

    def _space(self, step: RecordedStep) -> int | None:
        """The node type that whole numbers count, through slices and concatenations."""
        spaces = {self.record.values[read].space for read in step.inputs}
        if step.name in ("select", "unbind") and len(step.args) > 1:
            leaf = self.leaves.get(id(self.record.values[step.args[0].number].tensor))
            if leaf is not None and leaf.ends is not None and step.args[1] == 0:
                return leaf.ends[step.args[2] % 2] if len(step.args) > 2 else None
        return spaces.pop() if len(spaces) == 1 else None

    def _aliases(
        self, target: Tensor, behind: tuple[NodeRows, ...], step: int, live: bool
    ) -> Iterator[int]:
        """New numbers for the other tensors that show what was written in place."""
        for alias in self._sharing(target):
            if alias is target:
                continue
            old = self.value(alias)
            with self.device:
                rows = rows_after_write(alias, old.rows, target, behind)
            before = self.number(alias)
            yield self._remember(alias, step, live or old.live, rows=rows, before=before)

    def _own_row(
        self, row: Tensor, behind: tuple[NodeRows, ...], step: RecordedStep
    ) -> tuple[NodeRows, ...]:
        """The node behind a row of a table to which other nodes' rows are added one by one."""
        single = row.dim() == 1 and behind and all(distinct(r.ids).numel() == 1 for r in behind)
        if not single or step.name not in ("add", "sub"):
            return behind
        for table in self._sharing(row):
            if table.dim() > 1 and len(table) in self.spaces.counts:
                rows = self.rows(table.shape, 0)
                self.value(table).rows = self.value(table).rows or (rows,)
                row_number = (row.storage_offset() - table.storage_offset()) // table.stride(0)
                own_ids = rows.ids[row_number].reshape(-1)[:1].expand(row.shape)
                step.mixes = step.mixes or any(not same(r.ids, own_ids) for r in behind)
                return (NodeRows(own_ids),)
        return behind

    def _shown(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            number = self.number(tree)
            self.store.keep(number, tree)
            return Ref(number)
        if isinstance(tree, list | tuple):
            return tuple(self._shown(item) for item in tree)
        if isinstance(tree, dict):
            return {key: self._shown(item) for key, item in tree.items()}
        return tree


def _is_kept(tensor: Tensor, live: bool) -> bool:
    """Index tensors, numbers per entry or per node that come from the graph alone, and scalars."""
    if tensor.layout != torch.strided:
        return not live
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.numel() == 1 or (not live and (whole or tensor.numel() == len(tensor)))


def tensors_in(out: Any) -> list[Tensor]:
    """The tensors that an operation returned."""
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]


def default_device(device: torch.device) -> Any:
    """While open, tensors are made on a device; on the CPU nothing changes."""
    return nullcontext() if device.type == "cpu" else device


def record_run(
    model: nn.Module, run: Callable[[Recorder], Tensor], recorder: Recorder
) -> tuple[Record, Tensor, Head]:
    """Run a model once and write down what it does."""
    names, head = names_of(model), Head()

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        recorder.running.append(select_name(names[module], recorder.running))
        if isinstance(module, MessagePassing):
            layer_input = args[0] if args else kwargs.get("x", kwargs.get("x_dict"))
            with _disable_current_modes():
                recorder.inside.append(recorder._shown(layer_input))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        recorder.running.pop()
        if isinstance(module, MessagePassing):
            recorder.inside.pop()
        linear = isinstance(module, nn.Linear | Linear) and isinstance(output, Tensor)
        linear = linear and not is_functorch_wrapped_tensor(output)  # inside torch.vmap
        if linear and args and isinstance(args[0], Tensor):
            head.read, head.gave = args[0], output

    handles = [m.register_forward_pre_hook(enter, with_kwargs=True) for m in names]
    handles += [module.register_forward_hook(leave) for module in names]
    try:
        with unfused(recorder.spaces.counts), recorder:
            output = run(recorder)
    finally:
        for handle in handles:
            handle.remove()
    recorder.record.output = recorder.number(output)
    if head.read is not None:
        recorder.record.embedding = recorder.number(head.read)
    return recorder.record, output, head
