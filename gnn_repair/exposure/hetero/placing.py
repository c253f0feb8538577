"""Which relation a propagate belongs to: who sends, who receives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HGTConv

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.hetero.graph import Relation, TypedGraph, in_words, listed
from gnn_repair.exposure.module_names import names_of
from gnn_repair.exposure.products import ProductCall
from gnn_repair.exposure.sites import Call, Part, Placement, endpoints


class Placing:
    """Tells of every propagate of a model which relations' messages it sends.

    By the edges themselves, or some of them (loops may be added); where they are others, by the
    relation's name in the module's; else the types are told by how many nodes send and receive.
    """

    def __init__(self, model: nn.Module, graph: TypedGraph) -> None:
        self.graph = graph
        # A module that several relations share is named after one of them only.
        shared = (names for names in names_of(model).values() if len(names) > 1)
        self._shared = {name for names in shared for name in names}

    def __call__(self, call: Call) -> Placement:
        """Where a propagate stands among the relations."""
        if isinstance(call.conv, HGTConv) and isinstance(call.graph, Mapping):
            return self._side_by_side(call)
        relation = self._relation(call)
        if relation is not None:
            return self._placed(relation)
        return self._in_one_set(call) or self._by_size(call)

    def _placed(self, relation: Relation) -> Placement:
        source, _, recipient = relation
        if recipient != self.graph.node_type:
            return Placement(recipient)
        return Placement(recipient, (self._part(in_words(relation), source),))

    def _part(self, name: str, source: str, **places: Any) -> Part:
        graph = self.graph
        return Part(name, source, graph.first(source), source == graph.node_type, **places)

    # One relation --------------------------------------------------------------------------------

    def _relation(self, call: Call) -> Relation | None:
        fitting = [relation for relation in self.graph.edges if self._fits(relation, call)]
        for test in (self._is_given, self._same_edges, self._some_edges, self._named):
            chosen = [relation for relation in fitting if test(relation, call)]
            if len(chosen) == 1:
                return chosen[0]
            fitting = chosen or fitting
        return None

    def _fits(self, relation: Relation, call: Call) -> bool:
        sizes = tuple(self.graph.counts[kind] for kind in (relation[0], relation[2]))
        return sizes == (senders_of(call), call.num_nodes)

    def _is_given(self, relation: Relation, call: Call) -> bool:
        edges = self.graph.edges[relation]
        given = (call.edge_index, call.graph)
        return any(edges is one or _same_memory(edges, one) for one in given)

    def _same_edges(self, relation: Relation, call: Call) -> bool:
        """Whether the propagate's first entries are the relation's edges; loops may follow."""
        mine, seen = endpoints(self.graph.edges[relation]), call.entries[:2]
        count = mine[0].numel()
        return all(torch.equal(a, b[:count]) for a, b in zip(mine, seen, strict=True))

    def _some_edges(self, relation: Relation, call: Call) -> bool:
        """Whether every entry but loops is an edge of the relation."""
        sources, recipients, _ = call.entries
        loops = (sources == recipients) & (relation[0] == relation[2])
        edges = endpoints(self.graph.edges[relation])
        size = call.num_nodes
        sent = sources[~loops], recipients[~loops]
        keys, known = (source * size + recipient for source, recipient in (sent, edges))
        return keys.numel() > 0 and bool(torch.isin(keys, known).all())

    def _named(self, relation: Relation, call: Call) -> bool:
        if call.site.name in self._shared:
            return False
        return _plain("_".join(relation)) in [_plain(part) for part in call.site.name.split(".")]

    def _by_size(self, call: Call) -> Placement:
        """Who sends where no relation is known, if how many they are leaves no doubt."""
        counts, senders = self.graph.counts, senders_of(call)
        receiving = [kind for kind, size in counts.items() if size == call.num_nodes]
        if self.graph.node_type not in receiving:
            return Placement(receiving[0] if receiving else "")
        sending = [kind for kind, size in counts.items() if size == senders]
        if isinstance(call.given, Tensor) and not isinstance(call, ProductCall):
            sending = [self.graph.node_type]  # one set of nodes, which hears itself
        if len(sending) != 1:
            of_size = f"{listed(sending)} have" if sending else "no type of node has"
            raise ExposureRefused(
                f"{call.title} hears {senders} nodes over edges that are no relation of the data, "
                f"and {of_size} as many, so it cannot be told who sends; pass data's own edges"
            )
        name = f"{sending[0]} to {self.graph.node_type}"
        return Placement(self.graph.node_type, (self._part(name, sending[0]),))

    # All relations in one propagate -----------------------------------------------------------

    def _side_by_side(self, call: Call) -> Placement:
        """HGTConv: a row of states for every relation and sender, a row for every recipient."""
        graph, edges = self.graph, call.graph
        parts: list[Part] = []
        first, rows = 0, None
        for relation, index in edges.items():
            source, _, recipient = relation
            states = slice(first, first + graph.counts[source])
            first = states.stop
            sources, recipients, _ = call.entries
            inside = (sources >= states.start) & (sources < states.stop)
            entries = inside.nonzero().view(-1)
            if recipient != graph.node_type or not entries.numel():
                continue
            # The recipients' rows start where this relation's smallest one lies.
            start = int(recipients[entries].min()) - int(endpoints(index)[1].min())
            rows = slice(start, start + graph.nodes)
            parts.append(self._part(in_words(relation), source, states=states, entries=entries))
        return Placement(graph.node_type if parts else "", tuple(parts), rows)

    def _in_one_set(self, call: Call) -> Placement | None:
        """All types' nodes one after another, as to_homogeneous makes them; None: they are not.

        Told by the edges: those of one or more relations in order, moved to their types' places;
        loops may follow.
        """
        counts, starts = self.graph.counts, dict[str, int]()
        for kind in counts:
            starts[kind] = sum(counts[before] for before in starts)
        if call.num_nodes != sum(counts.values()) or len(counts) < 2:
            return None
        sources, recipients, _ = call.entries
        parts: list[Part] = []
        done = 0
        for relation, index in self.graph.edges.items():
            ends = [e + starts[k] for e, k in zip(endpoints(index), relation[::2], strict=True)]
            found = slice(done, done + ends[0].numel())
            if not torch.equal(sources[found], ends[0]) or not torch.equal(
                recipients[found], ends[1]
            ):
                continue
            done = found.stop
            if relation[2] == self.graph.node_type and ends[0].numel():
                parts.append(self._part_of_set(in_words(relation), relation[0], found, starts))
        if not torch.equal(sources[done:], recipients[done:]) or not done:
            return None
        kind = self.graph.node_type
        rows = slice(starts[kind], starts[kind] + counts[kind])
        loops = (recipients >= rows.start) & (recipients < rows.stop)
        loops[:done] = False
        if bool(loops.any()):
            parts.append(self._part(f"{kind} to itself", kind, states=rows,
                                    entries=loops.nonzero().view(-1)))  # fmt: skip
        return Placement(kind if parts else "", tuple(parts), rows)

    def _part_of_set(self, name: str, source: str, found: slice, starts: dict[str, int]) -> Part:
        states = slice(starts[source], starts[source] + self.graph.counts[source])
        return self._part(
            name, source, states=states, entries=torch.arange(found.start, found.stop)
        )


def senders_of(call: Call) -> int:
    """How many nodes a propagate could hear."""
    if isinstance(call, ProductCall):
        return int(call.given.shape[0])
    given = [call.given, *call.arguments.values()] if _is_pair(call.given) else []
    for pair in given or call.arguments.values():
        if _is_pair(pair):
            return int(pair[0].shape[call.conv.node_dim if pair is not call.given else 0])
    if isinstance(call.size, tuple | list) and call.size[0] is not None:
        return int(call.size[0])
    return call.num_nodes


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], Tensor)


def unique_names(names: list[str], modules: list[str]) -> list[str]:
    """Names of groups, with the module's own where several share one."""
    often = Counter(names)
    return [
        f"{name} ({module})" if often[name] > 1 and module else name
        for name, module in zip(names, modules, strict=True)
    ]


def _plain(text: str) -> str:
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")


def _same_memory(edges: Any, other: Any) -> bool:
    strided = all(isinstance(it, Tensor) and it.layout == torch.strided for it in (edges, other))
    return strided and edges.data_ptr() == other.data_ptr() and edges.shape == other.shape
