"""What a record says: which sums are final, what else mixes nodes, what messages are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from math import inf, prod
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.record.recorder import (
    GATHERS,
    MOVES,
    SAME,
    VIEWS,
    Record,
    RecordedStep,
    Ref,
    Value,
    is_basis,
)
from gnn_repair.exposure.record.reductions import (
    NodeRows,
    Reduction,
    axes_of,
    distinct,
    is_in_place,
    is_stack,
    reshaped,
)
from gnn_repair.exposure.state import alike

ANY = (-inf, inf)
POSITIVE = (0.0, inf)
RANGES = {
    **dict.fromkeys(("_softmax", "sigmoid", "hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "sin", "cos", "erf"), (-1.0, 1.0)),
    **dict.fromkeys(("exp", "relu", "softplus", "abs", "square"), POSITIVE),
}
"""By operation: between what its results lie, whatever it is given. Roots are left out: rows are
divided by norms, which are no weights."""
PICKED = MOVES | SAME | GATHERS | {
    "repeat", "gather", "select", "slice", "split", "unbind", "mean", "amax", "amin",
}  # fmt: skip
"""Operations whose results lie where those lie that they are given."""
ADDED_UP = {"sum", "scatter_add", "index_add", "cumsum"}
FOLLOWED = PICKED | ADDED_UP | {
    "cat", "stack", "add", "sub", "rsub", "mul", "div", "pow", "elu", "reciprocal", "neg", "clamp",
    "clamp_min", "hardtanh", "maximum", "where", "masked_fill", "scatter", "index_put",
    "index_copy", "copy",
}  # fmt: skip
"""Operations whose results lie where what they are given says; behind others nothing is known."""
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor"}
ONES = {"ones", "ones_like", "new_ones"}
FILLED = {"full", "full_like", "new_full", "fill"}
JOINS = {"cat", "stack"}
MOVERS = GATHERS | JOINS | {"roll", "flip", "gather", "index_copy", "scatter", "sort", "index_put"}
"""Operations that may put a row where another was."""
FINITE = {"isnan", "isinf", "isfinite", "isneginf", "isposinf"}
GUARDS = {"add", "clamp", "clamp_min", "maximum", "where", "masked_fill", "index_put", "nan_to_num"}
"""Operations by which a divisor is kept from zero."""
LINEAR_ATTENTION = 1 << 25
"""Weights of linear attention, N² per head, up to which they are formed; beyond, it is held."""
JOINED = {"any", "all", "sum", "logical_not", "bitwise_not", "logical_or", "bitwise_or"}
"""Operations by which truth values become one."""


Push = Callable[[Tensor], Tensor]


class Analysis:
    """A record with what depends on what."""

    def __init__(
        self, record: Record, pooled: bool = False, whole: Collection[str] = frozenset()
    ) -> None:
        """Analyse a record.

        Args:
            record: the run.
            pooled: whether recipients are graphs.
            whole: names of modules whose messages are terms as they are, α = 1.
        """
        self.record, self.pooled, self.whole = record, pooled, whole
        self.linear = not pooled
        """Whether linear attention is read as sums over nodes."""
        self.attention: dict[int, bool] = {}
        """The operations of which that is true, and whether they mix nodes if it is not."""
        self.loops: dict[int, tuple[FinalSite, ...]] = {}
        """By operation: the sums of a loop over recipients, if it joins these."""
        self._ranges: dict[int, tuple[float, float]] = {}
        self.centres: Tensor | None = None
        """Of graphs that are classified by the row of one of their nodes: that node."""

    def is_whole(self, reduction: Reduction) -> bool:
        """Whether a sum's messages are not taken apart, because its module says so."""
        if not self.whole:
            return False
        at = next(step.module for step in self.record.steps if step.reduction is reduction)
        return any(at == name or at.startswith(f"{name}.") for name in self.whole)

    def value(self, number: int) -> Value:
        """A value by its number."""
        return self.record.values[number]

    def maker(self, number: int) -> RecordedStep | None:
        """The operation that made a value."""
        step = self.record.values[number].step
        return None if step < 0 else self.record.steps[step]

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """By value: the operations on the way to the output that read it."""
        readers: dict[int, list[int]] = {}
        for place in sorted(self.needed):
            for read in set(self.record.steps[place].inputs):
                readers.setdefault(read, []).append(place)
        return readers

    def only_reader(self, number: int) -> RecordedStep | None:
        """The operation that alone reads a value on the way to the output."""
        readers = self.readers.get(number, ())
        return self.record.steps[readers[0]] if len(readers) == 1 else None

    def line_of_readers(self, number: int) -> Iterator[RecordedStep]:
        """The operations that one after another alone read a value and what is made of it."""
        while (reader := self.only_reader(number)) is not None:
            yield reader
            number = reader.result

    @cached_property
    def canonical(self) -> dict[int, int]:
        """By value: the first that the same operations made of the same values."""
        canonical: dict[int, int] = {}
        first: dict[Any, tuple[int, ...]] = {}

        def frozen(tree: Any) -> Any:
            if isinstance(tree, Ref):
                return Ref(canonical.get(tree.number, tree.number))
            if isinstance(tree, list | tuple):
                return tuple(frozen(item) for item in tree)
            if isinstance(tree, dict):
                return tuple((name, frozen(item)) for name, item in sorted(tree.items()))
            return tree

        for step in self.record.steps:
            if (
                is_in_place(step.func)
                or not step.inputs
                or "rand" in step.name
                or "dropout" in step.name
            ):
                continue
            try:
                outs = first.setdefault(
                    (step.name, frozen(step.args), frozen(step.kwargs)), step.outs
                )
            except TypeError:
                continue  # an argument that cannot be compared
            canonical |= dict(zip(step.outs, outs, strict=False))
        return canonical

    def ancestors(self, values: Iterable[int]) -> set[int]:
        """All operations that some values depend on."""
        return {place for place in self.record.walk_back(values).values() if place >= 0}

    @cached_property
    def needed(self) -> set[int]:
        """The operations that the output depends on."""
        return self.ancestors([self.record.output])

    def find_final_sums(self, size: int, outputs: Sequence[int] = ()) -> tuple[list[int], set[int]]:
        """The sums that reach the output through no other sum's messages.

        Args:
            size: recipients.
            outputs: other values in the place of the output.

        Returns:
            Their places, and the values that the output follows from row by row.
        """
        sums = list[int]()
        if self.linear:
            self._associate(size)

        def follow(place: int) -> Iterable[int]:
            step = self.record.steps[place]
            if not self.is_of_recipients(place, size):
                return () if step.mixes else step.inputs
            if place not in sums:
                sums.append(place)
            return self._base(step)

        start = list(outputs) or [self.record.output]
        seen = set(self.record.walk_back(start, follow))
        if self.pooled and not sums:
            self.centres = self._centres(size)
            seen = set(self.record.walk_back(start, follow))
        feeds = self.ancestors(number for place in sums for number in self.feeding(place))
        return sorted(place for place in sums if place not in feeds), seen

    def _associate(self, size: int) -> None:
        """Note products q (kᵀ v), the inner one along nodes, as sums (q kᵀ) v over nodes."""
        for place in self.needed:
            step = self.record.steps[place]
            if step.name not in ("mm", "bmm"):
                continue
            in_basis = self._is_in_basis(step.args[0].number, size)
            reduction = self._linear_attention(step, size) if in_basis or not step.mixes else None
            if in_basis or reduction is not None:
                self.attention[place] = in_basis  # whose rows are no nodes, whatever their number
                step.reduction, step.mixes = reduction, True

    def _is_in_basis(self, number: int, size: int) -> bool:
        """Whether a matrix is an orthonormal basis of as many vectors as nodes, scaled or not."""
        root, _ = self.unmoved(number)
        step, value = self.maker(root), self.value(root)
        if step is not None:
            scaled = step.name in ("mul", "div")
            return scaled and self._is_in_basis(step.args[0].number, size)
        square = tuple(value.shape) == (size, size)
        return square and value.tensor is not None and is_basis(value.tensor)

    def forget_attention(self) -> bool:
        """Read no linear attention as sums any more; whether any was."""
        for place, mixes in self.attention.items():
            self.record.steps[place].reduction, self.record.steps[place].mixes = None, mixes
        was_read, self.linear, self.attention = bool(self.attention), False, {}
        return was_read

    def _linear_attention(self, step: RecordedStep, size: int) -> Reduction | None:
        left, right = (argument.number for argument in step.args)
        shape, factor = self.value(left).shape, 1.0
        if shape[-2] != size or prod(shape[:-2]) * size**2 > LINEAR_ATTENTION:
            return None
        root, places = self.seen_through(right, self.value(right).shape)
        inner, between = self.maker(root), None
        while inner is not None and inner.name in ("mul", "div"):
            product = inner.args[0].number
            if isinstance(inner.args[1], Ref):
                pair = self._by_row(inner) if between is None else None
                if pair is None or not torch.equal(places.view(-1), torch.arange(places.numel())):
                    return None
                product, between = pair
            else:
                number = float(inner.args[1])
                factor = factor * number if inner.name == "mul" else factor / number
            root, before = self.seen_through(product, self.value(root).shape)
            places, inner = before.reshape(-1)[places], self.maker(root)
        if inner is None or inner.name not in ("mm", "bmm") or inner.reduction is not None:
            return None
        plain = torch.arange(places.numel()).view(self.value(root).shape)
        turned = not torch.equal(places, plain)
        if turned and not torch.equal(places, plain.mT):
            return None
        first, second = (argument.number for argument in inner.args)
        senders, others = self.nodes_along(first, -1), self.nodes_along(second, -2)
        recipients = self.nodes_along(left, -2)
        if senders is None or others is None or recipients is None:
            return None
        everyone = torch.equal(recipients.sort().values, torch.arange(size))
        if not everyone or not torch.equal(senders, others):
            return None
        message, across = (first, second) if turned else (second, first)
        nodes = senders.unsqueeze(1).expand(*shape[:-2], len(senders), 1)
        return Reduction(
            message, matrix=left, across=across, between=between, turned=turned, size=size,
            factor=factor, sources=nodes, out_axis=len(shape) - 2,
            is_attention=self.is_learned(left) and self.is_learned(across),
        )  # fmt: skip

    def _by_row(self, step: RecordedStep) -> tuple[int, int] | None:
        """A table and the number per row that multiplies it, where an operation does so."""
        shape = self.value(step.result).shape
        for one, two in (step.args, step.args[::-1]):
            whole, sizes = self.value(one.number).shape == shape, self.value(two.number).shape
            if step.name == "mul" and whole and sizes[-1:] in ((), (1,)) and shape[-1] > 1:
                return one.number, two.number
        return None

    def is_learned(self, value: int) -> bool:
        """Whether a value depends on the model's parameters."""
        return any(isinstance(tensor, nn.Parameter) for tensor in self.leaves([value]))

    def is_spectral(self, reduction: Reduction) -> bool:
        """Whether it is a filter U f Uᵀ in a basis that is given, no attention."""
        value = None if reduction.across is None else self.value(self.root(reduction.across))
        tensor = None if value is None or value.step >= 0 else value.tensor
        if tensor is None or tensor.dim() != 2:
            return False
        return is_basis(tensor if tensor.shape[0] >= tensor.shape[1] else tensor.mT)

    def nodes_along(self, number: int, axis: int) -> Tensor | None:
        """[n] the nodes along an axis of a value, where one of those behind it changes there."""
        value = self.value(number)
        axis = axis % len(value.shape)
        varying = [rows for rows in value.rows if rows.varies(axis)]
        return varying[0].along(axis) if len(varying) == 1 else None

    @staticmethod
    def _base(step: RecordedStep) -> list[int]:
        """What a sum is added to."""
        base = None if step.reduction is None else step.reduction.base
        return [] if base is None else [base]

    def is_of_recipients(self, place: int, size: int) -> bool:
        """Whether a sum has a row for every recipient, alone or among others."""
        reduction = self.record.steps[place].reduction
        if reduction is None:
            if place not in self.loops:
                self.loops[place] = self._loop(place, size)
            return bool(self.loops[place])
        alone = reduction.size == size or self.recipient_rows(place, size) is not None
        return alone or (reduction.out_axis is not None and site_of(self, place, size).stack > 1)

    def recipient_rows(self, place: int, size: int) -> Tensor | None:
        """[n] of a sum over nodes of several types: the recipient in every row, −1 elsewhere."""
        step = self.record.steps[place]
        assert step.reduction is not None
        axis = step.reduction.out_axis
        return None if axis is None else self.rows_along(step.result, axis, size)

    def rows_along(self, number: int, axis: int, size: int) -> Tensor | None:
        """The same of any value's axis."""
        rows = self.value(number).rows
        if self.value(number).shape[axis] <= size or len(rows) != 1:
            return None
        nodes = rows[0].along(axis)
        if nodes is None or (self.pooled and self.centres is None):
            return None
        recipients = torch.where((nodes >= 0) & (nodes < size), nodes, -1)
        if self.centres is not None:
            graph = nodes.new_full((int(max(nodes.max(), self.centres.max())) + 1,), -1)
            graph[self.centres] = torch.arange(size)
            recipients = torch.where(nodes < 0, -1, graph[nodes])
        return recipients if int((recipients >= 0).sum()) == size else None

    def _centres(self, size: int) -> Tensor | None:
        """[B] the node whose row each graph's output is made of, where no rows are pooled."""
        rows = self.value(self.record.output).rows
        nodes = rows[0].along(0) if len(rows) == 1 else None
        return nodes if nodes is not None and nodes.unique().numel() == size else None

    def _loop(self, place: int, size: int) -> tuple[FinalSite, ...]:
        """The sums of single recipients that are stacked to one row for each, or of some of them
        that stand one after another; empty: none are."""
        step = self.record.steps[place]
        if step.name not in ("stack", "cat") or size < 2:
            return ()
        parts, single = step.args[0], len(step.args[0]) == size
        counts = [1 if single else (*self.value(p.number).shape, 0)[0] for p in parts]
        if sum(counts) != size or (not single and (step.name == "stack" or any(step.args[1:]))):
            return ()
        sums = [self._sum_of(p.number, count) for p, count in zip(parts, counts, strict=True)]
        sites = [site for site in sums if site is not None]
        return tuple(sites) if len(sites) == len(parts) else ()

    def _sum_of(self, number: int, recipients: int) -> FinalSite | None:
        """The sum over so many recipients that a value is, scaled or not."""
        number = self._row(number)
        place = self.value(number).step
        while place >= 0 and self._single(place) is None:
            step = self.record.steps[place]
            if step.name not in ("mul", "div"):
                return None
            place = self.value(self.root(step.args[0].number)).step
        reduction = self._single(place) if place >= 0 else None
        if reduction is None or reduction.size != recipients:
            return None
        site = site_of(self, place, recipients)
        return site if self.root(site.value) == number else None

    def _row(self, number: int) -> int:
        """The value before it was moved or copied, and before its only row was picked."""
        step = self.maker(number := self.root(number))
        if step is None or step.name != "select":
            return number
        source = step.args[0].number
        return self._row(source) if self.value(source).shape[step.args[1]] == 1 else number

    def _single(self, place: int) -> Reduction | None:
        """An operation's sum, also where it has no more than one message."""
        step = self.record.steps[place]
        if step.reduction is None and step.name in ("sum", "mean") and len(step.args) > 1:
            source = self.value(step.args[0].number)
            few = len(source.shape) == 2 and source.shape[0] < 2 and list(step.args[1]) == [0]
            if few:
                nodes = source.rows[0].along(0) if source.rows else None
                step.reduction = Reduction(
                    step.args[0].number, out_axis=None, mean=step.name == "mean",
                    recipients=torch.zeros(source.shape[0], dtype=torch.long), sources=nodes,
                    sender="row" if nodes is None else "node",
                )  # fmt: skip
        return step.reduction

    def feeding(self, place: int) -> list[int]:
        """The values that a sum's messages are made of."""
        reduction = self.record.steps[place].reduction
        if reduction is None:  # sums in a loop
            return [n for site in self.loops.get(place, ()) for n in self.feeding(site.step)]
        return reduction.operands

    def side_mixers(self, final: Collection[int]) -> list[int]:
        """Live operations that mix nodes on ways to the output that do not pass the final sums."""

        def follow(place: int) -> Iterable[int]:
            step = self.record.steps[place]
            return self._base(step) if place in final else step.inputs

        passed = set(self.record.walk_back([self.record.output], follow).values())
        return self._mixers(place for place in passed - set(final) if place >= 0)

    def _mixers(self, places: Iterable[int]) -> list[int]:
        """Of some operations the live ones that mix nodes."""
        steps = self.record.steps
        return sorted(
            place for place in places
            if steps[place].mixes and any(self.value(out).live for out in steps[place].outs)
        )  # fmt: skip

    def row_movers(self, final: Collection[int], nodes: int) -> list[int]:
        """Operations that put other nodes' rows, of so many, beside a recipient's own; no sums."""
        movers = set[int]()

        def count(number: int) -> int:
            rows = self.value(number).rows
            return sum(r.ids.numel() > 0 and int(distinct(r.ids).max()) < nodes for r in rows)

        def follow(place: int) -> Iterable[int]:
            step = self.record.steps[place]
            if place in final or step.mixes:
                return self._base(step)
            counts = [(count(out), len(self.value(out).rows)) for out in step.outs]
            alone = any(nodes == kinds > 0 for nodes, kinds in counts)
            if self.pooled and self.centres is None and alone:
                movers.add(place)  # a node's row beside the pooled ones
                return ()
            several = any(nodes > 1 for nodes, _ in counts)
            if several and all(count(read) < 2 for read in step.inputs):
                movers.add(self._last_mover(step.inputs, place))
            return step.inputs

        self.record.walk_back([self.record.output], follow)
        return sorted(movers)

    def inner_mixers(self, final: Collection[int], nodes: int) -> list[int]:
        """Live operations that mix nodes, of so many, before the final sums' messages, or move rows
        of others beside a node's own."""
        before = self.ancestors([number for place in final for number in self.feeding(place)])
        steps = self.record.steps
        joins = {
            place for place in before
            if any(self._joins_rows(number, nodes) for number in steps[place].outs)
            and not any(self._joins_rows(number, nodes) for number in steps[place].inputs)
        }  # fmt: skip
        movers = {self._last_mover(steps[place].inputs, place) for place in joins}
        return sorted(movers.union(self._mixers(before)))

    def _joins_rows(self, number: int, nodes: int) -> bool:
        """Whether more than one of the nodes, of so many, stands behind every row of a table of
        nodes, or more than two behind every entry of a list of edges."""
        value = self.value(number)
        rows = [r for r in value.rows if r.ids.numel() and int(distinct(r.ids).max()) < nodes]
        for axis, size in enumerate(value.shape) if len(rows) > 1 else ():
            several = [ids for r in rows if (ids := r.along(axis)) is not None]
            few = 1 if size in (*self.record.counts, nodes) else 2
            if len(several) > few:
                sums = [step.reduction for step in self.record.steps if step.reduction is not None]
                return not any(all(self._is_end(ids, one) for ids in several) for one in sums)
        return False

    @staticmethod
    def _is_end(nodes: Tensor, reduction: Reduction) -> bool:
        """Whether nodes are the senders or the recipients of a sum's entries."""
        ends = (reduction.recipients, reduction.sources)
        return any(alike(nodes, end.reshape(-1)) for end in ends if end is not None)

    def _last_mover(self, values: Iterable[int], default: int) -> int:
        """The last operation before some values that may put a row where another was."""
        steps = self.record.steps
        places = [p for p in self.ancestors(values) if steps[p].name in MOVERS]
        by_rows = (p for p in places if steps[p].name not in JOINS or not any(steps[p].args[1:]))
        return max(by_rows, default=default)

    def later_mixers(self, sites: Sequence[FinalSite], outputs: Sequence[int] = ()) -> list[int]:
        """Operations that mix what the final sums give: statistics over all nodes, and their like.

        What they give is held. ``outputs``: other values in the place of the output.
        """
        reached = self.descendants(sites) & (self.ancestors(outputs) if outputs else self.needed)
        sums = set().union(*(site.sums for site in sites))
        return sorted(p for p in reached - sums if self.record.steps[p].mixes)

    def leaves(self, values: Iterable[int]) -> list[Tensor | None]:
        """The tensors that were there before the run and that values depend on."""
        makers = self.record.walk_back(values).items()
        return [self.value(number).tensor for number, place in makers if place < 0]

    def is_gated(self, sites: Sequence[FinalSite]) -> bool:
        """Whether what follows the sums multiplies them by numbers that depend on features."""
        reached = self.descendants(sites) & self.needed
        moving = {out for p in reached for out in self.record.steps[p].outs}
        moving |= {site.value for site in sites}
        factors = [
            self.value(read) for p in reached if self.record.steps[p].name in ("mul", "div")
            for read in self.record.steps[p].inputs if read not in moving
        ]  # fmt: skip
        return any(value.live and value.rows for value in factors)

    def refuse_branches(self, sites: Sequence[FinalSite], where: Callable[[str], str]) -> None:
        """Raise where Python looks at a number that reweighted messages reach."""
        for place in sorted(self.descendants(sites)):
            step = self.record.steps[place]
            if step.looks and not self._only_finite(step):
                raise ExposureRefused(
                    f"{where(step.module)} looks at numbers that the messages reach (by `if`, "
                    f".item() or a shape: {step.name}), so it may go another way when they "
                    "change; write that choice with torch.where, and leave out what only prints"
                )

    def python_reads(self) -> list[int]:
        """Operations that show Python numbers of nodes; what it does with them is not recorded."""
        return [
            place for place, step in enumerate(self.record.steps)
            if step.looks and not self._only_finite(step) and not self._is_size(step)
            and any(self.value(number).rows for number in self.record.walk_back(step.inputs))
        ]  # fmt: skip

    def _is_size(self, step: RecordedStep) -> bool:
        """Whether Python sees how many rows were picked, as a pool that keeps some nodes does."""

        def follow(place: int) -> Iterable[int]:
            return [n for n in self.record.steps[place].inputs if not self.value(n).floating]

        whole = not any(self.value(number).floating for number in step.inputs)
        places = self.record.walk_back(step.inputs, follow).values()
        names = {self.record.steps[place].name for place in places if place >= 0}
        return whole and not names.isdisjoint(GATHERS | {"sort"})

    def _only_finite(self, step: RecordedStep) -> bool:
        """Whether Python only asks if numbers are finite: they are, whatever the weights."""
        steps = self.record.steps

        def follow(place: int) -> Iterable[int]:
            return steps[place].inputs if steps[place].name in JOINED else ()

        places = self.record.walk_back(step.inputs, follow).values()
        return all(place >= 0 and steps[place].name in FINITE | JOINED for place in places)

    def is_weight(self, number: int) -> bool:
        """Whether numbers are a weight by how they are made: nonnegative, or of the graph alone."""
        low, high = self.range_of(Ref(number))
        return low >= 0 or high <= 0

    def range_of(self, argument: Any) -> tuple[float, float]:
        """Between what numbers lie by how they are made; those of the graph alone are weights."""
        fixed = self.constant(argument)
        if fixed is not None or not isinstance(argument, Ref):
            return (fixed, fixed) if fixed is not None else ANY
        number = argument.number
        if number not in self._ranges:
            value, step, interval = self.value(number), self.maker(number), ANY
            if not value.live or not value.floating:
                interval = POSITIVE
            elif step is not None and (step.name in RANGES or step.name in FOLLOWED):
                interval = RANGES.get(step.name) or self._range(step)
            self._ranges[number] = interval
        return self._ranges[number]

    def _is_square(self, args: Sequence[Any]) -> bool:
        """Whether both are the same value."""
        numbers = [a.number if isinstance(a, Ref) else None for a in args]
        first, second = (n if n is None else self.canonical.get(n, n) for n in numbers)
        return first is not None and first == second

    def _range(self, step: RecordedStep) -> tuple[float, float]:
        args = step.args
        arguments = args[0] if isinstance(args[0], tuple) else args
        numbers = (n for n in arguments if not isinstance(n, bool))  # accumulate=True is none
        inner = [self.range_of(n) for n in numbers if isinstance(n, Ref | int | float)]
        (a, b), (c, d) = (*inner, ANY, ANY)[:2]
        joined = inner[step.name == "where" :]  # but for the mask
        hull = min(low for low, _ in joined), max(high for _, high in joined)
        match step.name:
            case name if name in PICKED:
                return a, b
            case "cat" | "stack" | "where":
                return hull
            case name if name in ADDED_UP:
                added = inner if name.endswith("add") else inner[:1]
                return POSITIVE if all(low >= 0 for low, high in added if high != low) else ANY
            case "add" | "sub" | "rsub":
                (a, b), (c, d) = ((c, d), (a, b)) if step.name == "rsub" else ((a, b), (c, d))
                factor = float(step.kwargs.get("alpha", 1)) * (1 if step.name == "add" else -1)
                c, d = sorted((factor * c, factor * d))
                return a + c, b + d
            case "mul" | "div" if min(a, c) >= 0 or self._is_square(args):
                return POSITIVE
            case "mul" | "div" if c == d and c and abs(c) < inf:
                low, high = sorted((a * c, b * c) if step.name == "mul" else (a / c, b / c))
                return low, high
            case "pow":
                whole = c == d and abs(c) < inf and (c % 2 == 0 or (c % 1 == 0 and a >= 0 < c))
                return POSITIVE if whole or a == b > 0 else ANY
            case "elu" if set(args[1:]) <= {1}:
                return max(a, -1.0), b
            case "reciprocal":
                return POSITIVE if a >= 0 else ANY
            case "neg":
                return -b, -a
            case "clamp" | "clamp_min" | "hardtanh":
                least = self.constant(args[1] if len(args) > 1 else step.kwargs.get("min"))
                most = self.constant(args[2] if len(args) > 2 else step.kwargs.get("max"))
                end = 1.0 if step.name == "hardtanh" else inf
                return max(a, -end if least is None else least), min(
                    b, end if most is None else most
                )
            case "maximum":
                return max(a, c), max(b, d)
            case "masked_fill" | "scatter" | "index_put" | "index_copy" | "copy":
                return min(a, inner[-1][0], 0.0), inf
        return ANY

    def is_layer(self, step: RecordedStep) -> bool:
        """Whether an operation multiplies by a matrix that the model has learned."""
        roots = [self.value(self.root(read)) for read in step.inputs]
        return step.name in ("mm", "addmm") and any(r.step < 0 and r.name and r.live for r in roots)

    def unmoved(self, number: int) -> tuple[int, list[int]]:
        """The value before it was moved, repeated or copied; and the values on the way there."""
        passed = list[int]()
        while True:
            step = self.maker(number)
            if step is None or step.name not in MOVES | SAME:
                return number, passed
            passed.append(number)
            number = step.args[0].number

    def root(self, number: int) -> int:
        """The value itself, before it was moved, repeated or copied."""
        return self.unmoved(number)[0]

    def is_filled(self, number: int | None, with_number: int) -> bool:
        """Whether numbers are all 0, or all 1, by how they are made; None: nothing, so zero."""
        step = None if number is None else self.maker(self.root(number))
        if step is None:
            return number is None and with_number == 0
        filled = [a for a in step.args if isinstance(a, int | float)][-1:]
        names = ONES if with_number else ZEROS
        return step.name in names or (step.name in FILLED and filled == [with_number])

    def constant(self, argument: Any) -> float | None:
        """The number that an argument is, where it is one that does not depend on the run."""
        if isinstance(argument, int | float):
            return float(argument)
        kept = self.value(argument.number).tensor if isinstance(argument, Ref) else None
        is_single = kept is not None and kept.numel() == 1 and kept.layout == torch.strided
        return float(kept) if is_single and kept is not None else None

    def linear_terms(self, step: RecordedStep) -> list[tuple[float, int]]:
        """The numbers and values of which an operation adds up the products; none: it does not."""
        match step.name, step.args:
            case name, (Ref() as value, *_) if name in SAME:
                return [(1.0, value.number)]
            case "neg", (Ref() as value,):
                return [(-1.0, value.number)]
            case "mul", (Ref() as value, number) if (factor := self.constant(number)) is not None:
                return [(factor, value.number)]
            case "mul", (number, Ref() as value) if (factor := self.constant(number)) is not None:
                return [(factor, value.number)]
            case "div", (Ref() as value, number) if factor := self.constant(number):
                return [(1 / factor, value.number)]
            case "lerp", (Ref() as start, Ref() as end, weight) if (
                share := self.constant(weight)
            ) is not None:
                return [(1 - share, start.number), (share, end.number)]
            case "add" | "sub", (Ref() as value, 0):  # as the sum of a list starts
                return [(1.0, value.number)]
            case "add", (Ref() as zeros, Ref() as value) if self.is_filled(zeros.number, 0):
                return [(1.0, value.number)]
            case "add" | "sub", (Ref() as left, Ref() as right):
                factor = float(step.kwargs.get("alpha", 1)) * (1 if step.name == "add" else -1)
                return [(1.0, left.number), (factor, right.number)]
            case "sum" | "mean", (Ref() as stacked, dims, *keeps) if not any(keeps[:1]):
                return self._stacked_terms(step, stacked.number, dims)
        return []

    def scaled(self, step: RecordedStep) -> tuple[float, int] | None:
        """The number by which an operation multiplies the only value that it reads, and that."""
        terms, count = self.linear_terms(step), sum(isinstance(a, Ref) for a in step.args)
        return terms[0] if len(terms) == count == 1 else None

    def _stacked_terms(self, step: RecordedStep, number: int, dims: Any) -> list[tuple[float, int]]:
        """The same of values that were stacked along an axis of their own for a sum or mean."""
        stack, count = self.maker(number), len(self.value(number).shape)
        if stack is None or stack.name != "stack" or self.only_reader(number) is None:
            return []
        axis = (stack.args[1] if len(stack.args) > 1 else 0) % count
        share = 1 / len(stack.args[0]) if step.name == "mean" else 1.0
        alone = axes_of(dims, count) == [axis]
        return [(share, part.number) for part in stack.args[0]] if alone else []

    def zeroed(self, step: RecordedStep) -> tuple[int, int, bool] | None:
        """(mask, rows, where the mask holds) of an operation that puts zeros in some rows."""

        def is_zero(argument: Any) -> bool:
            filled = isinstance(argument, Ref) and self.is_filled(argument.number, 0)
            return filled or self.constant(argument) == 0

        match step.name, step.args:
            case "masked_fill", (Ref() as rows, Ref() as mask, value) if is_zero(value):
                holds = True
            case "where", (Ref() as mask, Ref() as rows, value) if is_zero(value):
                holds = False
            case "where", (Ref() as mask, value, Ref() as rows) if is_zero(value):
                holds = True
            case "index_put", (Ref() as rows, (Ref() as mask,), value) if is_zero(value):
                holds = True
            case _:
                return None
        truth = self.value(mask.number).dtype == torch.bool
        return (mask.number, rows.number, holds) if truth else None

    def divisor(self, number: int, divides: bool) -> int | None:
        """The operation whose sum divides, but for guards against zero; None: there is none.

        ``divides``: whether the numbers themselves do, or else multiply.
        """
        while (step := self.maker(number := self.root(number))) is not None:
            if step.reduction is not None:
                return self.value(number).step if divides else None
            power = step.name == "pow" and step.args[1] == -1
            if step.name == "reciprocal" or power:
                divides = not divides
            elif step.name not in GUARDS and not (step.name == "mul" and 1 in step.args):
                return None
            numbers = [n for n in set(step.inputs) if self.value(n).live and self.value(n).floating]
            if len(numbers) != 1:
                return None
            number = numbers[0]
        return None

    def are_divided(self, one: FinalSite, two: FinalSite) -> bool:
        """Whether one sum is divided by the other, as by the sum of gates per channel."""
        pairs = [
            (self.root(step.args[0].number), self.divisor(step.args[1].number, True))
            for step in (self.record.steps[place] for place in self.needed)
            if step.name == "div" and len(step.inputs) == 2 and isinstance(step.args[1], Ref)
        ]
        return (one.value, two.step) in pairs or (two.value, one.step) in pairs

    def normalisers(self, site: FinalSite) -> set[int]:
        """The operations that mix nodes in what a site's sums are divided by, which is in α."""
        if site.reduction.across is None:
            sums = [self.divisor(after.value, after.inverse) for after in site.after]
            return {place for place in sums if place is not None}
        above = self.ancestors(after.value for after in site.after)
        above -= self.ancestors(self.feeding(site.step))
        return {place for place in above if self.record.steps[place].mixes}

    def seen_through(self, number: int, shape: Sequence[int]) -> tuple[int, Tensor]:
        """The value behind moves and repetitions, and which of its numbers stands where."""
        number, passed = self.unmoved(number)
        step = self.maker(number)
        if step is not None and step.name == "repeat":  # one number for all channels
            inner, before = self.unmoved(step.args[0].number)
            if self.value(step.args[0].number).shape[-1:] == (1,):
                number, passed = inner, [*passed, number, *before]
        steps = [(self.record.steps[self.value(n).step], self.value(n).shape) for n in passed[::-1]]
        pushes = [_mover(step, sizes) for step, sizes in steps if step.name not in SAME]
        sizes = self.value(number).shape
        places = torch.arange(prod(sizes)).view(sizes)
        return number, move_along(pushes, places).expand(tuple(shape))

    def descendants(self, sites: Sequence[FinalSite]) -> set[int]:
        """The operations that depend on what the operations behind some sites make."""
        makers = [self.value(site.value).step for site in sites]
        moving = {out for p in makers if p >= 0 for out in self.record.steps[p].outs}
        places = set[int]()
        for number, step in enumerate(self.record.steps):
            if not moving.isdisjoint(step.inputs):
                places.add(number)
                moving.update(step.outs)
        return places


# What messages are made of -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Factor:
    """Numbers that multiply every message, or what recipients have summed up."""

    value: int
    inverse: bool
    """Whether they divide."""
    place: Tensor
    """Which of the numbers multiplies each element, of the message's shape; of recipients' sums [n]
    which is each recipient's, or [n, d] of heads each channel's."""
    negated: bool = False
    """Whether messages are those where a mask does *not* hold."""


@dataclass(frozen=True, eq=False)
class Parts:
    """message = scale · Π factors · table[index], or · whole."""

    factors: tuple[Factor, ...]
    whole: int
    """The value that is left: the gathered rows, or the messages themselves."""
    table: int | None = None
    """The value that rows are gathered from."""
    index: int | None = None
    """The value with the row of every entry."""
    axis: int = 0
    """The table's axis that is gathered along."""
    channels: Tensor | None = None
    """Of the message's shape: which of the table's channels each element shows."""
    pushes: tuple[Push, ...] = ()
    """How ``whole`` is moved to the message's shape."""
    scale: float = 1.0
    kinds: int | None = None
    """The value with the relation of every entry, where each relation has a matrix of its own."""


def move_along(pushes: Sequence[Push], tensor: Tensor) -> Tensor:
    """A tensor moved as another one was."""
    for push in pushes:
        tensor = push(tensor)
    return tensor


def _mover(step: RecordedStep, shape: tuple[int, ...]) -> Push:
    if step.name in VIEWS:
        return lambda t: reshaped(t, shape)
    operation, rest = getattr(torch.ops.aten, step.name), step.args[1:]
    return lambda t: operation(
        t, *[list(a) if isinstance(a, tuple) else a for a in rest], **step.kwargs
    )


def parts_of(analysis: Analysis, reduction: Reduction) -> Parts:
    """Walk back from messages to what is gathered, collecting the numbers that multiply it."""
    parts = Parts((), reduction.message)
    if analysis.is_whole(reduction):
        return parts
    with suppress(ValueError, RuntimeError):  # numbers whose places are too many to follow
        while (further := _further_back(analysis, reduction, parts)) is not None:
            parts = further
    kinds = _relations(analysis, parts.whole) if parts.table is None else None
    return replace(parts, kinds=kinds)


def _further_back(analysis: Analysis, reduction: Reduction, parts: Parts) -> Parts | None:
    """What messages are made of, one operation further back; None: it is no product or lookup."""
    step, shape = analysis.maker(parts.whole), analysis.value(parts.whole).shape
    if step is None or parts.table is not None or prod(shape) == 0:
        return None
    scaled = analysis.scaled(step)
    if scaled is not None:
        return replace(parts, whole=scaled[1], scale=parts.scale * scaled[0])
    if step.name in MOVES:
        pushes = (_mover(step, shape), *parts.pushes)
        return replace(parts, whole=step.args[0].number, pushes=pushes)
    if step.name in GATHERS:
        return _looked_up(analysis, step, shape, parts)
    zeroed = analysis.zeroed(step)
    for numbers, rows in [zeroed[:2]] if zeroed else _sides(analysis, step):
        if step.name == "index_put":  # a mask of the first axes
            root, of_mask = numbers, analysis.value(numbers).shape
            place = torch.arange(prod(of_mask)).view(*of_mask, *[1] * (len(shape) - len(of_mask)))
            place = place.expand(shape)
        else:
            root, place = analysis.seen_through(numbers, shape)
        place = move_along(parts.pushes, place)
        nodes = (len(analysis.value(rows).rows), len(analysis.value(numbers).rows))
        gathered = not analysis.value(root).live if zeroed else nodes[0] == 1 != nodes[1]
        if not _is_per_entry(place, reduction.axes, gathered):
            continue
        if analysis.pooled and not analysis.is_weight(root):
            return None  # a gate that scales a node's row, up or down
        factor = Factor(root, step.name == "div", place, bool(zeroed and zeroed[2]))
        pushes = parts.pushes
        if analysis.value(rows).shape != shape:
            pushes = (lambda t: t.expand(shape), *pushes)
        return replace(parts, whole=rows, factors=(*parts.factors, factor), pushes=pushes)
    return None


def _is_per_entry(place: Tensor, axes: Sequence[int], gathered: bool) -> bool:
    """Whether one number stands for several of an entry's channels, or for its only one."""
    first = place[tuple(0 if axis in axes else slice(None) for axis in range(place.dim()))]
    return first.unique().numel() < first.numel() or (first.numel() == 1 and gathered)


def _sides(analysis: Analysis, step: RecordedStep) -> list[tuple[int, int]]:
    """What may be numbers per entry in a product, and the rows that they then multiply."""
    if step.name not in ("mul", "div") or not all(isinstance(a, Ref) for a in step.args):
        return []
    left, right = (argument.number for argument in step.args)

    def order(pair: tuple[int, int]) -> tuple[int, bool]:
        value = analysis.value(analysis.root(pair[0]))
        return prod(value.shape), len(value.rows) == 1

    sides = [(right, left), (left, right)]
    return sides[:1] if step.name == "div" else sorted(sides, key=order)


def _looked_up(
    analysis: Analysis, step: RecordedStep, shape: tuple[int, ...], parts: Parts
) -> Parts | None:
    """Messages whose rows an operation looks up in a table."""
    gathered = gather_parts(analysis, step)
    if gathered is None:
        return None
    table, axis, index = gathered
    table_shape = analysis.value(table).shape
    widths = [size for a, size in enumerate(table_shape) if a != axis]
    count = len(shape) - len(table_shape) + 1
    places = torch.arange(prod(widths)).view(*widths[:axis], *[1] * count, *widths[axis:])
    channels = move_along(parts.pushes, places.expand(shape))
    return replace(parts, table=table, index=index, axis=axis, channels=channels)


def _relations(analysis: Analysis, number: int) -> int | None:
    """The index by which a parameter's matrices are looked up, one for every entry."""
    step = analysis.maker(number)
    if step is None or step.name != "bmm":
        return None
    for argument in step.args:
        maker = analysis.maker(analysis.root(argument.number))
        gathered = (
            gather_parts(analysis, maker) if maker is not None and maker.name in GATHERS else None
        )
        if gathered is not None and gathered[1] == 0 and not analysis.value(gathered[0]).rows:
            return gathered[2]
    return None


def gather_parts(analysis: Analysis, step: RecordedStep) -> tuple[int, int, int] | None:
    """(table, axis, index) of an operation that looks rows up."""
    table = step.args[0].number
    if step.name == "embedding":
        return table, 0, step.args[1].number
    if step.name == "index_select":
        return table, step.args[1] % len(analysis.value(table).shape), step.args[2].number
    used = [(place, index) for place, index in enumerate(step.args[1]) if index is not None]
    index = analysis.value(used[0][1].number).tensor if len(used) == 1 else None
    if index is None or index.dtype == torch.bool:
        return None
    return table, used[0][0], used[0][1].number


# Where sums end ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Powers:
    """A filter: Σ_k γ_k Â^k base."""

    coefficients: tuple[float, ...]
    """γ₀, γ₁, …."""
    base: int
    hops: frozenset[int]
    """All of its sums."""
    readers: frozenset[int] = frozenset()
    """Of the base as it is (Â⁰): the operations that read it as such."""
    scale: float = 1.0
    """What the last sum's coefficients are times those of Â."""


@dataclass(frozen=True, eq=False)
class FinalSite:
    """A value that is replaced and followed to the output, and the sum (or filter) that it is."""

    value: int
    axis: int | None
    """The value's axis that counts recipients; None: there is one."""
    step: int
    """The sum; of a filter its last one."""
    reduction: Reduction
    parts: Parts | None = None
    """What its messages are made of; None: of a product, or of a loop."""
    after: tuple[Factor, ...] = ()
    """What recipients' sums are multiplied by before the value: a mean's count, D^-1/2, the sum of
    their messages' weights."""
    powers: Powers | None = None
    rows: Tensor | None = None
    """[n] the recipient in every row, −1: none; None: rows are the recipients."""
    members: tuple[FinalSite, ...] = ()
    """Of a loop: the sum of every recipient."""
    is_last_hop: bool = False
    """Whether it is a filter's last hop, and earlier hops stay inside h."""

    base: int | None = None
    """What the sum is added to, where that is not zero."""
    layout: Tensor | None = None
    """[D] of linear attention: which of the product's channels, head by head, each channel is."""
    stack: int = 1
    """Rows of the sum per recipient: all first ones come first where ``axis`` is 1, and those of
    a recipient lie together where it is 0."""

    def flat(self, value: Tensor) -> Tensor:
        """[rows, channels] of a tensor that is laid out as the sum."""
        moved = value.unsqueeze(0) if self.axis is None else value.movedim(self.axis, 0)
        return moved.reshape(len(moved), -1)

    def of_base(self, base: Tensor, shape: Sequence[int]) -> Tensor:
        """What the sum is added to, as it enters the value."""
        base = base.expand(tuple(shape)) * self.reduction.of_base
        if not self.reduction.more or self.axis is None:
            return base
        assert self.reduction.recipients is not None
        counts = self.reduction.counts(self.reduction.recipients).to(base)
        return base / counts.view([-1 if a == self.axis else 1 for a in range(base.dim())])

    def laid_out(self, flat: Tensor, shape: torch.Size) -> Tensor:
        """The tensor behind what :meth:`flat` gives."""
        if self.axis is None:
            return flat.reshape(shape)
        rest = [size for axis, size in enumerate(shape) if axis != self.axis]
        return flat.reshape(shape[self.axis], *rest).movedim(0, self.axis)

    @property
    def sums(self) -> set[int]:
        """All sums that it is made of."""
        hops = self.powers.hops if self.powers is not None else ()
        return {self.step, *hops, *(member.step for member in self.members)}

    @property
    def single(self) -> FinalSite:
        """Of a loop the sum of its first recipient; otherwise itself."""
        return self.members[0] if self.members else self

    @property
    def is_divided(self) -> bool:
        """Whether numbers of recipients, such as a mean's count, multiply their sums."""
        return bool(self.after) or self.reduction.mean

    @property
    def sender(self) -> str:
        """What sends: see :class:`Reduction`."""
        kinds = {one.reduction.sender for one in self.members or [self]}
        return kinds.pop() if not self.members or kinds == {"node"} else "row"

    @property
    def readers(self) -> frozenset[int]:
        """The operations that alone read its value as such; none: all of them."""
        return frozenset() if self.powers is None else self.powers.readers


def site_of(analysis: Analysis, place: int, size: int) -> FinalSite:
    """Take structural factors of recipients into the sum."""
    step = analysis.record.steps[place]
    reduction = step.reduction
    if reduction is None:
        members = analysis.loops[place]
        axis = int(step.args[1]) if len(step.args) > 1 else int(step.kwargs.get("dim", 0))
        return FinalSite(
            step.result, axis % len(analysis.value(step.result).shape), place,
            replace(members[0].reduction, size=size), members=members,
        )  # fmt: skip
    if reduction.across is not None:
        return _attention_site(analysis, place, reduction)
    number, after = step.result, list[Factor]()
    parts = parts_of(analysis, reduction) if reduction.matrix is None else None
    base = None if analysis.is_filled(reduction.base, 0) else reduction.base
    for reader in analysis.line_of_readers(number) if base is None else ():
        if _divides_by_count(reader, number, reduction):
            reduction = replace(reduction, mean=True)
        else:
            factor = _factor_of_recipients(analysis, reader, number, reduction, parts)
            if factor is None:
                break
            after.append(factor)
        number = reader.result
    rows = analysis.recipient_rows(place, size)
    site = FinalSite(
        number, reduction.out_axis, place, reduction, parts, tuple(after), rows=rows, base=base
    )
    plain = reduction.size == size or rows is not None or base is not None
    return site if plain else _stacked(analysis, site, size)


def _stacked(analysis: Analysis, site: FinalSite, size: int) -> FinalSite:
    """The site behind a view that lays out the rows of a recipient, if one alone reads the sum."""
    total, number, factor = site.reduction.size, site.value, site.reduction.factor
    shape = analysis.value(number).shape
    if site.axis is None or total < 2 * size or prod(shape[: site.axis]) > 1:
        return site
    for reader in analysis.line_of_readers(number):
        # Moved, as attention moves its results, but not into another order.
        if reader.args[:1] != (Ref(number),):
            return site
        number, before, shape = reader.result, shape, analysis.value(reader.result).shape
        if reader.name in MOVES:
            if not _mover(reader, shape)(torch.empty(before, device="meta")).is_contiguous():
                return site
        elif (scaled := analysis.scaled(reader)) is not None:
            factor *= scaled[0]
        else:
            return site
        for axis in (1, 0) if reader.name in VIEWS else ():
            rows = analysis.rows_along(number, axis, size) if len(shape) > axis else None
            if is_stack(shape, axis, total) and (shape[axis] == size or rows is not None):
                reduction, count = replace(site.reduction, factor=factor), total // shape[axis]
                return replace(
                    site, value=number, axis=axis, rows=rows, stack=count, reduction=reduction
                )
    return site


def _attention_site(analysis: Analysis, place: int, reduction: Reduction) -> FinalSite:
    """The sums of linear attention, divided by their normaliser where that is what follows them."""
    step = analysis.record.steps[place]
    assert reduction.matrix is not None
    rows = analysis.nodes_along(reduction.matrix, -2)
    rows = rows if rows is None or bool(rows.diff().ne(1).any()) else None
    site = FinalSite(step.result, reduction.out_axis, place, reduction, rows=rows)
    *heads, size, width = analysis.value(step.result).shape
    number, numbers = step.result, torch.arange(prod(heads) * size * width)
    numbers = numbers.view(*heads, size, width)
    for reader in analysis.line_of_readers(number):
        if reader.name not in MOVES | SAME:
            break
        number = reader.result  # moved, as einsum moves its results, and then divided
        if reader.name in MOVES:
            numbers = _mover(reader, analysis.value(number).shape)(numbers)
    else:
        return site
    if reader.name != "div" or reader.args[0] != Ref(number) or not isinstance(reader.args[1], Ref):
        return site
    other, shape = reader.args[1].number, analysis.value(number).shape
    if place in analysis.ancestors([other]) or analysis.value(reader.result).shape != shape:
        return site
    root, positions = analysis.seen_through(other, shape)
    unit = numbers // width  # heads one after another, recipients in each
    owner = NodeRows(unit % size)
    axes = [a for a in range(len(shape)) if shape[a] == size and owner.along(a) is not None]
    each = torch.empty(prod(heads) * size, dtype=torch.long)
    each[unit.reshape(-1)] = positions.reshape(-1)
    if not axes or not torch.equal(each[unit], positions):
        return site
    site = replace(site, value=reader.result, axis=axes[0])
    after, first = Factor(root, True, site.flat(positions)), site.flat(numbers)[0]
    return replace(site, after=(after,), layout=(first // width // size) * width + first % width)


def _divides_by_count(reader: RecordedStep, number: int, reduction: Reduction) -> bool:
    """Whether the sum of a single recipient is divided by how many messages it has: a mean."""
    alone = reduction.size == 1 and reduction.recipients is not None and not reduction.mean
    divides = alone and reader.name == "div" and reader.args[0] == Ref(number)
    divisor = reader.args[1] if divides else None
    count = reduction.recipients.numel() if reduction.recipients is not None else 0
    return isinstance(divisor, int | float) and divisor == count > 1


def _factor_of_recipients(
    analysis: Analysis, reader: RecordedStep, number: int, reduction: Reduction,
    parts: Parts | None,
) -> Factor | None:  # fmt: skip
    axis = reduction.out_axis
    if reader.name not in ("mul", "div") or len(reader.args) != 2:
        return None
    left, right = reader.args
    if not isinstance(right, Ref) or left == right:
        return None
    other = right.number if left.number == number else left.number
    shape = analysis.value(number).shape
    if reader.name == "div" and other != right.number:
        return None
    divides = reader.name == "div"
    if analysis.value(other).live and not _is_denominator(
        analysis, analysis.divisor(other, divides), reduction, parts
    ):
        return None
    if analysis.value(reader.result).shape != shape:
        return None
    root, place = analysis.seen_through(other, shape)
    if axis is None:
        return Factor(root, divides, place.reshape(-1)[:1]) if place.unique().numel() == 1 else None
    nodes, count = NodeRows(place).along(axis), shape[axis]
    if nodes is None and analysis.value(other).live:  # a denominator per head
        nodes = place.movedim(axis, 0).reshape(shape[axis], -1)
        count *= nodes[0].unique().numel()
    if nodes is None or prod(analysis.value(root).shape) != count:
        return None
    return Factor(root, divides, nodes)


def _is_denominator(
    analysis: Analysis, place: int | None, reduction: Reduction, parts: Parts | None
) -> bool:
    """Whether an operation adds up the messages' own weights: Σ e h / Σ e."""
    total = None if place is None else analysis.record.steps[place].reduction
    if total is not None and parts is None:
        return _sums_rows(analysis, total, reduction)
    if parts is None or total is None or total.recipients is None or reduction.recipients is None:
        return False
    same = total.recipients.shape == reduction.recipients.shape
    if not same or not torch.equal(total.recipients, reduction.recipients):
        return False
    weights = {analysis.root(f.value) for f in parts.factors}
    return analysis.root(total.message) in weights


def _sums_rows(analysis: Analysis, total: Reduction, product: Reduction) -> bool:
    """Whether a sum adds up every row of a product's matrix: S.sum(1), or S · 1."""
    if product.matrix is None or product.turned or product.batched or total.mean:
        return False
    matrix = total.message if total.matrix is None else total.matrix
    (one, moves), (two, others) = analysis.unmoved(matrix), analysis.unmoved(product.matrix)
    names = {analysis.record.steps[analysis.value(n).step].name for n in (*moves, *others)}
    shapes = {analysis.value(n).shape[-2:] for n in (one, matrix, product.matrix)}
    if one != two or len(shapes) > 1 or names & {"t", "transpose", "permute", "movedim"}:
        return False
    if total.matrix is not None:
        return not total.turned and analysis.is_filled(total.message, 1)
    last = len(analysis.value(matrix).shape) - 1
    return total.axes == (last - 1, last)


# Filters -----------------------------------------------------------------------------------------
#
# Several hops of one operator with nothing but numbers between them, Σ γ_k Â^k x. A value is a
# polynomial of Â applied to some base where it is a sum, over the same entries with the same
# numbers, of such a polynomial, or a linear combination, with numbers, of polynomials of one base.


@dataclass(frozen=True, eq=False)
class RecordedHop:
    """One application of Â."""

    site: FinalSite
    table: int
    between: frozenset[int]
    """The operations that make messages of the table."""
    scale: float = 1.0
    """Of a product: what the matrix is times Â, as in (2 Â) x."""


@dataclass(frozen=True, eq=False)
class Form:
    """Σ_k γ_k Â^k base."""

    base: int
    hop: RecordedHop | None
    powers: tuple[float, ...]


class Filters:
    """The polynomials in a record."""

    def __init__(self, analysis: Analysis, size: int, holder: Callable[[int], str]) -> None:
        """Find all hops of ``size`` recipients; ``holder``: an operation's convolution, by name."""
        self.analysis, self.size, self.holder = analysis, size, holder
        self.hops: dict[int, RecordedHop] = {}
        self._forms: dict[int, Form] = {}
        self.stacks = set[int]()
        """Operations that stack the terms of a polynomial before they are added up."""
        for place in sorted(analysis.needed):
            reduction = analysis.record.steps[place].reduction
            if reduction is not None and reduction.size == size:
                hop = self._hop(place)
                if hop is not None:
                    self.hops[hop.site.value] = hop

    def _hop(self, place: int) -> RecordedHop | None:
        site = site_of(self.analysis, place, self.size)
        reduction = site.reduction
        if reduction.batched or reduction.across is not None:
            return None
        if reduction.matrix is not None:
            if reduction.turned or len(self.analysis.value(reduction.message).shape) != 2:
                return None
            _, scale = self._unscaled(reduction.matrix)
            table = self._table(reduction.message)
            return RecordedHop(site, table, frozenset(), scale)
        parts = site.parts
        if parts is None or parts.table is None or len(reduction.axes) > 1 or parts.axis != 0:
            return None
        if any(self.analysis.value(factor.value).live for factor in parts.factors):
            return None
        between = self.analysis.ancestors([reduction.message]) - self.analysis.ancestors(
            [parts.table]
        )
        return RecordedHop(site, parts.table, frozenset(between))

    def _table(self, number: int) -> int:
        """The value itself before it was copied, or moved without another order or shape."""
        root, passed = self.analysis.unmoved(number)
        shape = self.analysis.value(root).shape
        table = torch.empty(shape, device="meta")
        for moved in passed[::-1]:
            step = self.analysis.record.steps[self.analysis.value(moved).step]
            if step.name in MOVES:
                table = _mover(step, self.analysis.value(moved).shape)(table)
            if not table.is_contiguous():
                return number
        return root if shape == self.analysis.value(number).shape else number

    def _unscaled(self, matrix: int | None) -> tuple[int | None, float]:
        """A matrix before it was multiplied by numbers, and by how much."""
        scale = 1.0
        while matrix is not None:
            matrix = self.analysis.root(matrix)
            step = self.analysis.maker(matrix)
            terms = [] if step is None else self.analysis.linear_terms(step)
            if len(terms) != 1 or not terms[0][0]:
                break
            scale, matrix = scale * terms[0][0], terms[0][1]
        return matrix, scale

    def form(self, number: int) -> Form:
        """A value as a polynomial; of itself where it is none."""
        if number not in self._forms:
            self._forms[number] = self._found(number)
        return self._forms[number]

    def _found(self, number: int) -> Form:
        hop, step = self.hops.get(number), self.analysis.maker(number)
        if hop is None:
            terms = [] if step is None else self.analysis.linear_terms(step)
            total = self._sum([(factor, self.form(value)) for factor, value in terms])
            if total is not None and step is not None and step.name in ("sum", "mean"):
                self.stacks.add(self.analysis.value(step.args[0].number).step)
            return total or self._itself(number)
        inner = self.form(hop.table)
        if inner.hop is not None and not self.same(inner.hop, hop):
            inner = self._itself(hop.table)
        applied = Form(inner.base, hop, (0.0, *(hop.scale * c for c in inner.powers)))
        base, reduction = hop.site.base, hop.site.reduction
        if base is None:
            return applied
        added = (reduction.of_base, self.form(base))
        total = None if reduction.more else self._sum([(1.0, applied), added])
        return total or self._itself(number)

    def _itself(self, number: int) -> Form:
        """A value as the polynomial 1 of itself."""
        return Form(self.analysis.canonical.get(number, number), None, (1.0,))

    def _sum(self, terms: Sequence[tuple[float, Form]]) -> Form | None:
        """Polynomials times numbers added up, where they are of one base and one operator."""
        bases = {form.base for _, form in terms}
        hops = [form.hop for _, form in terms if form.hop is not None]
        if len(bases) != 1 or not all(self.same(hops[0], hop) for hop in hops):
            return None
        by_power = zip_longest(*(form.powers for _, form in terms), fillvalue=0.0)
        factors = [factor for factor, _ in terms]
        powers = tuple(sum(map(mul, factors, numbers)) for numbers in by_power)
        return Form(bases.pop(), hops[0] if hops else None, powers)

    def same(self, left: RecordedHop, right: RecordedHop) -> bool:
        """Whether two hops send over the same entries with the same numbers."""
        if left is right:
            return True
        plain = [
            replace(h.site, reduction=replace(h.site.reduction, matrix=matrix))
            for h in (left, right)
            for matrix in self._unscaled(h.site.reduction.matrix)[:1]
        ]
        return same_entries(self.analysis, *plain)

    # Exits -------------------------------------------------------------------------------------

    def sites(self, final: Sequence[int], reached: set[int]) -> list[FinalSite]:
        """The sites of final sums, as :meth:`Analysis.final` gives them; of filters theirs."""
        sites: dict[int, FinalSite] = {}
        for place in final:
            site = site_of(self.analysis, place, self.size)
            form = self.form(site.value)
            exits = self._exits(form, reached, final) if form.hop is not None else []
            sites |= {exit.value: exit for exit in exits or [site]}
        return [sites[value] for value in sorted(sites)]

    def is_filter(self, site: FinalSite) -> bool:
        """Whether a sum is the last hop of several."""
        return len(self.form(site.value).powers) > 2

    def _exits(self, form: Form, reached: set[int], final: Collection[int]) -> list[FinalSite]:
        """The values of a filter that something else reads; none where there is only one hop."""
        assert form.hop is not None
        chain: dict[int, tuple[Form, RecordedHop]] = {}
        for value in sorted(
            {out for p in self.analysis.needed for out in self.analysis.record.steps[p].outs}
        ):
            other = self.form(value)
            if other.hop is not None and other.base == form.base and self.same(other.hop, form.hop):
                chain[value] = other, other.hop
        every = {self.hops[value].site.step for value in chain if value in self.hops}
        outer = [n for p in final if p not in every for n in self.analysis.feeding(p)]
        earlier = self.analysis.ancestors(outer)  # layers before another final sum: held
        chain = {
            v: convolution
            for v, convolution in chain.items()
            if self.analysis.value(v).step not in earlier
        }
        hops = [self.hops[value] for value in chain if value in self.hops]
        if len(hops) < 2 or all(len(other.powers) < 3 for other, _ in chain.values()):
            return []
        inside = set().union(*(hop.between for hop in hops)) | {hop.site.step for hop in hops}
        inside |= {self.analysis.value(value).step for value in chain} | self.stacks
        sums = frozenset(hop.site.step for hop in hops)
        exits = []
        for value, (other, hop) in chain.items():
            readers = self.analysis.readers.get(value, ())
            outside = not inside.issuperset(readers) or value == self.analysis.record.output
            if outside and value in reached:
                powers = Powers(other.powers, form.base, sums, scale=hop.scale)
                exits.append(replace(hop.site, value=value, powers=powers, base=None))
        convolution = self.holder(form.hop.site.step)
        first = {
            r for r in self.analysis.readers.get(form.base, ())
            if r not in inside and self.holder(r) == convolution
        }  # fmt: skip
        if first and convolution and form.base in reached:
            powers = Powers((1.0,), form.base, sums, frozenset(first))
            exits.insert(0, replace(form.hop.site, value=form.base, powers=powers, base=None))
        return exits


def same_entries(analysis: Analysis, one: FinalSite, two: FinalSite) -> bool:
    """Whether two sums go over the same entries with the same numbers, as the record says."""
    ours, theirs = one.parts, two.parts
    left, right = one.reduction, two.reduction
    if (ours is None) != (theirs is None) or left.factor != right.factor:
        return False
    marks = [[a.inverse for a in site.after] for site in (one, two)]
    if marks[0] != marks[1]:
        return False
    pairs: list[tuple[int | None, int | None]] = []
    for a, b in zip(one.after, two.after, strict=True):
        if not torch.equal(a.place, b.place):
            return False
        pairs.append((a.value, b.value))
    if ours is None or theirs is None:
        names = ("matrix", "across", "between")
        pairs += [(getattr(left, name), getattr(right, name)) for name in names]
    else:
        forms = [
            (p.scale, p.table is None, r.mean, r.more, [(f.inverse, f.negated) for f in p.factors])
            for p, r in ((ours, left), (theirs, right))
        ]
        if forms[0] != forms[1] or not alike(left.recipients, right.recipients):
            return False
        if ours.table is None and not alike(left.sources, right.sources):
            return False
        pairs += [(f.value, g.value) for f, g in zip(ours.factors, theirs.factors, strict=True)]
        pairs += [] if ours.table is None else [(ours.index, theirs.index)]
    return all(_equal(analysis, a, b) for a, b in pairs if a is not None and b is not None)


def _equal(analysis: Analysis, left: int, right: int) -> bool:
    one, two = analysis.root(left), analysis.root(right)
    if analysis.canonical.get(one, one) == analysis.canonical.get(two, two):
        return True
    return alike(analysis.value(one).tensor, analysis.value(two).tensor)
