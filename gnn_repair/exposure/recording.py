"""Running a model while watching, and replacing, what flows at its sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HANConv, MessagePassing

from gnn_repair.errors import ExposureRefused, InputError
from gnn_repair.exposure.module_names import followed
from gnn_repair.exposure.products import MatrixProduct, Product, ProductCall, Products
from gnn_repair.exposure.sites import (
    Call,
    Placement,
    Site,
    hooked,
    in_blocks,
    inputs_of,
    merged_heads,
    out_of_blocks,
    placed_into,
    plain_propagate,
    repeated_into,
)
from gnn_repair.exposure.steps import Step, first_broken, raising_line, recorded


@dataclass
class Trace:
    """What one run showed."""

    output: Tensor
    calls: list[Call] = field(default_factory=list)
    values: dict[Site, Tensor] = field(default_factory=dict)
    """What passed at each site, as blocks [N, B, D]."""


class Watch:
    """A model whose propagates, and whose convolutions' parts, can be recorded and replaced."""

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[], Tensor],
        parts_of: tuple[type, ...] = (),
        nodes: int = -1,
        is_feature_map: Callable[[Product], bool] = lambda _: False,
        placing: Callable[[Call], Placement] | None = None,
        senders: frozenset[int] = frozenset(),
    ) -> None:
        """Watch a model.

        Args:
            model: the model.
            forward: runs it.
            parts_of: the kinds of convolution whose parts (linear maps) are sites as well.
            nodes: the size N of the matrices whose products are aggregations.
            is_feature_map: tells those that are not.
            placing: in a graph of several node types, says whose messages a propagate sends.
            senders: how many nodes the other types have: sizes of matrices, too.
        """
        self.model = model
        self.forward = forward
        self._parts_of = parts_of
        # What a convolution adds up beside its propagates (attention's denominators) is its own.
        self._products = Products(
            nodes, self._product, lambda: bool(self._inside or self._open), senders,
            lambda: self._counts["propagate"],
        )  # fmt: skip
        self._placing = placing
        self._whole: dict[Site, tuple[Tensor, slice]] = {}
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._is_feature_map = is_feature_map
        self._inside = 0
        self._running: list[str] = []
        self._entries: Mapping[Site, Tensor] = {}
        self._seen: dict[Site, Mapping[str, Any]] | None = None
        self._inputs: set[str] = set()
        self._convs = {n: m for n, m in model.named_modules() if isinstance(m, MessagePassing)}
        self._counts: Counter[str] = Counter()
        self._open: list[tuple[str, int, Any, Any]] = []
        self._trace: Trace | None = None
        self._replaced: Mapping[Site, Tensor] = {}
        self._messages: Mapping[Site, Tensor] = {}
        self._shapes: dict[Site, torch.Size] = {}
        self._known: dict[Site, Tensor] = {}
        self._before: dict[Site, int] = {}
        self._reach = 0
        self.fills_by_repeating = False  # whether rows of other node types show recipients

    @property
    def running(self) -> list[str]:
        """The names of the modules that run now, the innermost last."""
        return self._running

    @property
    def unread_sum(self) -> str:
        """A sum over edges by hand that could not be read, in words; empty: there was none."""
        return self._products.unread

    @contextmanager
    def installed(self) -> Iterator[Watch]:
        """While open, the model's convolutions report here; afterwards they are as before."""
        saved: list[tuple[nn.Module, str, Any]] = []
        try:
            for name, conv in self._convs.items():
                self._wrap(saved, conv, "propagate", partial(self._propagate, name, conv))
                if isinstance(conv, HANConv):
                    keep = partial(self._keep, name, conv.k_lin.forward)
                    self._wrap(saved, conv.k_lin, "forward", keep)
                parts = dict(conv.named_modules(prefix=name)) if self._in_parts(conv) else {}
                for part, module in {name: conv, **parts}.items():
                    wrapper = partial(self._forward, part, module.forward, bool(parts))
                    self._wrap(saved, module, "forward", wrapper)
            with followed(self.model, self._running):
                yield self
        finally:
            for module, attribute, before in reversed(saved):
                module.__dict__.pop(attribute, None)
                if before is not None:
                    module.__dict__[attribute] = before

    @staticmethod
    def _wrap(saved: list[Any], module: nn.Module, attribute: str, wrapper: Any) -> None:
        saved.append((module, attribute, module.__dict__.get(attribute)))
        module.__dict__[attribute] = wrapper

    def _in_parts(self, conv: nn.Module) -> bool:
        return isinstance(conv, self._parts_of)

    # Runs --------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Run once and record every propagate."""
        trace = self._traced()
        by_hand = self._products.sums if isinstance(self._products, Products) else None
        if by_hand is not None and by_hand.read_last_whole(self._counts["propagate"]):
            trace = self._traced()
        self._known = {call.site: trace.values[call.site] for call in trace.calls}
        return trace

    def _traced(self) -> Trace:
        self._trace = trace = Trace(torch.empty(0))
        try:
            trace.output = self.run()
        finally:
            self._trace = None
        return trace

    def open_input(self, trace: Trace, name: str, order: int, value: Tensor, before: Site) -> Site:
        """Make a site of what a convolution reads in one of its runs."""
        site = Site("input", name, order)
        self._inputs.add(name)
        self._shapes[site] = value.shape
        self._before[site] = self._before[before] - 1
        trace.values[site] = in_blocks(value, 0)
        return site

    def run(
        self,
        replaced: Mapping[Site, Tensor] | None = None,
        messages: Mapping[Site, Tensor] | None = None,
        entries: Mapping[Site, Tensor] | None = None,
        seen: dict[Site, Mapping[str, Any]] | None = None,
    ) -> Tensor:
        """The model's output when the tensors at some sites (or some messages) are replaced.

        Propagates that come before every replaced site give what they gave in the trace and are
        not run again.

        Args:
            replaced: the tensor to use at a site, as blocks [N, B, D].
            messages: messages [T, B, D] to use in a propagate, keyed by its aggregate's site.
            entries: numbers [T] to use for the entries of a product's matrix, keyed likewise.
            seen: is filled with the arguments of every propagate.

        Raises:
            ExposureRefused: the model runs as it is and not on what is put in.
        """
        changed = [*(replaced or {}), *(messages or {}), *(entries or {})]
        try:
            return self._run(replaced, messages, entries, seen)
        except InputError as error:
            if error.__cause__ is None or not changed:
                raise
            told = self._told_of(error.__cause__, changed[-1], replaced or {})
            raise ExposureRefused(told) from error.__cause__

    def steps(self, replaced: Mapping[Site, Tensor] | None, nodes: int) -> list[Step]:
        """The operations of a run with the tensors at some sites replaced, as far as it comes."""
        return recorded(lambda: self._run(replaced), self._running, nodes)

    def told_of_numbers(self, site: Site, value: Tensor, other: Tensor) -> str:
        """What to say of logits that are not finite with another value at a site."""
        rows = value.shape[0]
        broken = first_broken(*(self.steps({site: v.clone()}, rows) for v in (value, other)))
        size = f"change by as much as they are large (up to {float(value.abs().max()):.1g})"
        if broken is not None and broken.undefined:
            return (
                f"`{broken.operation}` in {broken.place(self.model)} gives NaN when messages of "
                f"{_title(site)} {size}: it is not defined for all values; clamp what it reads, or "
                "expose what comes before it through forward="
            )
        what = "" if broken is None else f" (`{broken.operation}` in {broken.place(self.model)})"
        return (
            f"the model overflows {value.dtype}{what} when messages of {_title(site)} {size}; "
            "scale its features down, or pass model.double() and double data"
        )

    def _told_of(self, error: BaseException, site: Site, replaced: Mapping[Site, Tensor]) -> str:
        """What to say of a model that raises only where its messages are others."""
        where = f"`{self._running[-1]}`" if self._running and self._running[-1] else "its forward"
        said = " ".join(str(error).split())[:200] or raising_line(error)
        told = (
            f"{type(self.model).__name__} raises {type(error).__name__} ({said}) in {where} when "
            f"the messages of {_title(site)} are others than on this data"
        )
        values = {s: self._known[s].clone() for s in replaced if s in self._known}
        if values and len(values) == len(replaced):
            rows = next(iter(values.values())).shape[0]
            broken = first_broken(self.steps(values, rows), self.steps(replaced, rows))
            if broken is not None:
                told += f": `{broken.operation}` in {broken.place(self.model)} gives NaN there"
        return f"{told}; have its forward take any values there (a clamp, no check of values)"

    def _run(
        self,
        replaced: Mapping[Site, Tensor] | None = None,
        messages: Mapping[Site, Tensor] | None = None,
        entries: Mapping[Site, Tensor] | None = None,
        seen: dict[Site, Mapping[str, Any]] | None = None,
    ) -> Tensor:
        self._counts.clear()
        self._products.forget()
        self._open.clear()
        self._running.clear()
        self._inside = 0
        self._replaced, self._messages = replaced or {}, messages or {}
        self._entries, self._seen = entries or {}, seen
        changed = (*self._replaced, *self._messages, *self._entries)
        self._reach = min((self._before[site] for site in changed), default=0)
        try:
            with self._products:
                return self.forward()
        finally:
            self._replaced, self._messages, self._entries, self._seen = {}, {}, {}, None

    # What stands in for the model's own methods ------------------------------------------------

    def _forward(
        self, name: str, original: Callable[..., Any], sites: bool, *args: Any, **kwargs: Any
    ) -> Any:
        order = self._counts[name]
        self._counts[name] += 1
        if (sites or name in self._inputs) and args:
            args = (self._pass(Site("input", name, order), args[0]), *args[1:])
        noted = len(self._before)
        self._open.append((name, order, *inputs_of(args, kwargs)))
        out = original(*args, **kwargs)
        self._open.pop()
        if sites and name in self._convs:
            # These convolutions propagate their input alone, never what their parts gave.
            for site in [s for s in list(self._before)[noted:] if s.kind == "input"]:
                self._before[site] = self._counts["propagate"]
        return self._pass(Site("output", name, order), out) if sites else out

    def _pass(self, site: Site, value: Any) -> Any:
        if self._trace is not None and isinstance(value, Tensor) and value.dim() > 1:
            self._note(site, value, node_dim=0)
        if site in self._replaced:
            return out_of_blocks(self._replaced[site], self._shapes[site], node_dim=0)
        return value

    def _keep(self, name: str, original: Callable[[Tensor], Tensor], out: Tensor) -> Tensor:
        """HANConv's relations are weighed by what all nodes together gave in the trace."""
        key = name, self._counts[f"kept in {name}"]
        self._counts[f"kept in {name}"] += 1
        if self._trace is not None:
            self._kept[key] = original(out).detach().clone()
        return self._kept[key]

    def _note(self, site: Site, value: Tensor, node_dim: int, heads: int = 1) -> None:
        assert self._trace is not None
        self._shapes[site] = value.shape
        self._before[site] = self._counts["propagate"]
        self._trace.values[site] = in_blocks(value, node_dim, heads)

    def _next(self, name: str) -> Site:
        """The site of the aggregation that comes now."""
        site = Site("aggregate", name, self._counts["propagate"])
        self._counts["propagate"] += 1
        return site

    def _propagate(self, name: str, conv: Any, *args: Any, **kwargs: Any) -> Tensor:
        self._inside += 1  # the products that a propagate does are its own
        try:
            return self._propagated(name, conv, *args, **kwargs)
        finally:
            self._inside -= 1

    def _propagated(
        self, name: str, conv: Any, edge_index: Any, size: Any = None, **arguments: Any
    ) -> Tensor:
        site = self._next(name)
        if self._seen is not None:
            self._seen[site] = arguments
        if self._trace is not None:
            return self._record(site, conv, edge_index, size, arguments)
        run = partial(plain_propagate(conv), edge_index, size=size, **arguments)
        if site in self._messages:
            blocks = self._messages[site]
            return hooked(
                conv, "message", run, lambda out: out_of_blocks(blocks, out.shape, conv.node_dim)
            )
        if site in self._replaced:
            return self._instead(site, conv, run, self._replaced[site])
        if site.order < self._reach and site in self._known:
            # A copy, since what follows may change it in place.
            return self._instead(site, conv, run, self._known[site].clone())
        return run()

    def _product(self, product: Product) -> Tensor:
        if self._inside or self._is_feature_map(product):
            return product.finish(product.value())
        name = self._running[-1] if self._running else ""
        site = self._next(name)
        if self._seen is not None:
            self._seen[site] = {"x": product.table}
        if self._trace is not None:
            value = product.value()
            self._record_product(site, product, value.detach().clone())
        elif site in self._entries:
            value = product.value(self._entries[site])
        elif site in self._replaced:
            # A copy: a view could not be detached in place, as some models do.
            value = self._replaced[site][:, 0].clone()
        elif site.order < self._reach and site in self._known:
            value = self._known[site][:, 0].clone()
        else:
            value = product.value()
        return product.finish(value)

    def _record_product(self, site: Site, product: Product, value: Tensor) -> None:
        assert self._trace is not None
        conv, arguments = MatrixProduct(), {"x": product.table, "product": product}
        order = self._counts[f"products of {site.name}"]
        self._counts[f"products of {site.name}"] += 1
        call = ProductCall(
            site, conv, order, product.table, product.matrix, None, arguments, value, None
        )
        self._note(site, value, node_dim=0)
        self._trace.calls.append(self._placed(call))

    def _placed(self, call: Call) -> Call:
        """With its place among the relations; of its rows, the recipients' are kept."""
        if self._placing is None:
            return call
        assert self._trace is not None
        placement = self._placing(call)
        if placement.rows is not None:
            whole = self._trace.values[call.site]
            self._whole[call.site] = whole, placement.rows
            self._trace.values[call.site] = whole[placement.rows]
        return replace(call, placement=placement)

    def _instead(self, site: Site, conv: Any, run: Callable[[], Tensor], blocks: Tensor) -> Tensor:
        if site in self._whole:
            fill = repeated_into if self.fills_by_repeating else placed_into
            blocks = fill(blocks, *self._whole[site])
        value = out_of_blocks(blocks, self._shapes[site], conv.node_dim)
        plain = type(conv).update is MessagePassing.update
        return value if plain else hooked(conv, "aggregate", run, lambda _: value)

    def _record(
        self, site: Site, conv: Any, edge_index: Any, size: Any, arguments: dict[str, Any]
    ) -> Tensor:
        run = partial(plain_propagate(conv), edge_index, size=size, **dict(arguments))
        aggregates: list[Tensor] = []
        sent: list[Tensor] = []
        if conv._message_forward_hooks:  # which may need what the model sets for this run alone
            run = partial(hooked, conv, "message", run, sent.append)
        if type(conv).update is MessagePassing.update:
            aggregates.append(run())
            out = aggregates[0]
        else:
            out = hooked(conv, "aggregate", run, aggregates.append)
        _, invocation, given, graph = next(
            (entry for entry in reversed(self._open) if entry[0] == site.name),
            (site.name, 0, None, None),
        )
        assert self._trace is not None
        value = aggregates[0].detach().clone()
        attention = getattr(conv, "_alpha", None)
        call = Call(
            site, conv, invocation, given, edge_index, size, arguments, value, attention, graph,
            sent=next(iter(sent), None),
        )  # fmt: skip
        self._note(site, value, conv.node_dim, merged_heads(conv))
        self._trace.calls.append(self._placed(call))
        return out


def _title(site: Site) -> str:
    return f"`{site.name}`" if site.name else "its forward"
