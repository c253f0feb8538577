"""Finding the final pools: those that the logits answer to graph by graph, and nothing before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import aggr

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.final_aggregation import FinalAggregation, Finder
from gnn_repair.exposure.known_aggregation import UnplannedError, check_tail
from gnn_repair.exposure.mixtures import Context, Mixture, Terms, mixtures_of
from gnn_repair.exposure.pooling.pool import PoolCall
from gnn_repair.exposure.pooling.watch import PoolWatch
from gnn_repair.exposure.probes import deviation, find_tail, perturbation
from gnn_repair.exposure.recording import Trace
from gnn_repair.exposure.sites import Call, unmoved
from gnn_repair.exposure.value import Group

MOMENTS = (aggr.VarAggregation, aggr.StdAggregation)
"""Aggregations whose sums of x and x² belong together, so that neither is reweighted alone."""
RULES = {
    "sum pool": ("α = 1 per node", "the pool: 1"),
    "mean pool": ("α = 1 / nodes of the graph", "the pool: 1 / number of nodes"),
    "scaled pool": ("α = what the model divides the sum by, inverted", "the model's divisor"),
    "attention pool": ("α = attention", "the number that multiplies the node's vector"),
    "softmax pool": ("α = 1 per node, its softmax by channel within h", "the pool: 1"),
    "weighted pool": ("α = the node's weight", "the number that multiplies the node's vector"),
}
"""By kind of pool: what α is, and where it was read."""


class PoolFinder(Finder):
    """Looks at the pools of a run."""

    watch: PoolWatch

    def __init__(self, watch: PoolWatch, trace: Trace) -> None:
        super().__init__(watch, trace, "last")
        self.pools = [call for call in trace.calls if isinstance(call, PoolCall)]
        self._contexts: dict[tuple[Any, ...], Context] = {}
        self._modules = dict(watch.model.named_modules())
        self._seen_extremes = list(watch.pools.extremes)
        self._coarse = list(watch.pools.coarse)

    def find(self) -> FinalAggregation:
        """The groups of every final pool."""
        found: list[Mixture] = []
        final = [call for call in self.pools if self._is_final(call)]
        _refuse_squares(final)
        self._names = _names(final)
        for call in final:
            answer = self._probe(call.site, call)
            if answer.final:
                found += self._one_propagate([call], call, answer, several=False)
        self.finding.mixtures = found
        if not found:
            for call in final:
                if call.site in self._nonlinear:
                    self.finding.nodewise += self._split([call], call, several=False)
        if self.finding.mixtures or self.finding.nodewise:
            for how in dict.fromkeys(self._extremes()):
                self.finding.left_out.append(f"what is pooled by {how} is no weighted sum of nodes")
            for rows in dict.fromkeys(self._coarse):
                said = f"a sum of {rows:,} rows, which are not the {self.watch.pools.nodes:,} nodes"
                self.finding.left_out.append(said)
        return self.finding

    def _extremes(self) -> list[str]:
        """The pools by maximum and their like that the logits depend on (a softmax has some)."""
        pools, kept = self.watch.pools, []
        for number, how in enumerate(self._seen_extremes):
            pools.shifted = number
            try:
                moved = self.watch.run()
            finally:
                pools.shifted = None
            if not float(deviation(moved, self.trace.output).max()) <= self.limit:
                kept.append(how)
        return kept

    def _is_final(self, call: PoolCall) -> bool:
        """Whether nothing that is aggregated later reads what this pool gives."""
        if isinstance(self._modules.get(call.site.name), MOMENTS):
            return False
        later = [other for other in self.trace.calls if other.site.order > call.site.order]
        if not later:
            return True
        value = self.trace.values[call.site]
        seen: dict[Any, Mapping[str, Any]] = {}
        self.watch.run({call.site: value + perturbation(value, seed=3)}, seen=seen)
        return all(other.site in seen and _same(other, seen[other.site]) for other in later)

    def _split(self, calls: Sequence[Call], call: Call, several: bool) -> list[Mixture]:
        assert isinstance(call, PoolCall)
        what, origin = RULES[call.kind]
        sources, graphs, coefficients = call.entries
        context = self._context(call)
        kept = "" if call.pool.owner is None else ", of the nodes that are kept"
        rule = f"{call.kind}: {what}{kept}, h = the node's vector"
        group = Group(self._names[call.site], rule, origin)
        terms = Terms(graphs, sources, coefficients, call.pool.table, context)
        mixtures = mixtures_of(call.site, 0, group, terms)
        if not mixtures or self._split_error(mixtures, call.site) > self.limit:
            raise ExposureRefused(
                f"{call.title} gives something else than the sum of its nodes' vectors that it "
                "reads; does the model change these vectors in place?"
            )
        self.finding.splits[call.site] = 0
        return mixtures

    def _context(self, call: PoolCall) -> Context:
        """A graph's state is the mean of its nodes'; pools of one table share theirs."""
        table = call.pool.table
        key = (table.data_ptr(), tuple(table.shape), table.stride())
        if key not in self._contexts:
            sources, graphs, _ = call.entries
            total = table.new_zeros(call.num_nodes, table.shape[1])
            total.index_add_(0, graphs, table[sources])
            size = torch.bincount(graphs, minlength=call.num_nodes).clamp(min=1)
            self._contexts[key] = Context(table, total / size.unsqueeze(1))
        return self._contexts[key]


class KnownPoolFinder(PoolFinder):
    """The same on another run of the same model: what was probed then is taken as known."""

    def __init__(self, watch: PoolWatch, trace: Trace, known: FinalAggregation) -> None:
        super().__init__(watch, trace)
        self.known = known

    def find(self) -> FinalAggregation:
        """The groups of the pools that were final then.

        Raises:
            UnplannedError: the run does not go through the same pools.
        """
        known, finding = self.known, self.finding
        final = [call for call in self.pools if call.site in known.splits]
        if len(final) < len(known.splits):
            raise UnplannedError
        self._names = _names(final)
        finding.nonlinear, finding.left_out = known.nonlinear, known.left_out
        for call in final:
            mixtures = self._split([call], call, several=False)
            if not known.tails:
                finding.nodewise += mixtures
                continue
            tail = known.tails[call.site]
            if tail.by_node:
                value = self.trace.values[call.site]
                tail = find_tail(self.watch, call.site, value, tail.centred, by_node=True)
            else:
                check_tail(self, known, call.site, mixtures)
            finding.tails[call.site] = tail
            finding.mixtures += mixtures
        return finding


def _refuse_squares(final: Sequence[PoolCall]) -> None:
    for call in final:
        if call.pool.squares:
            raise ExposureRefused(
                f"{call.title} pools squares of the nodes' vectors, as a variance does; they "
                "belong to the mean of the vectors, and neither can be reweighted alone"
            )


def _same(call: Call, seen: Mapping[str, Any]) -> bool:
    known = call.arguments
    if isinstance(call, PoolCall):
        known = {"x": call.pool.table, "weight": call.pool.weight}
    return unmoved(known, seen)


def _names(final: Sequence[PoolCall]) -> dict[Any, str]:
    """A name a pool: its module's or its kind's, numbered where several have the same."""
    bare = [call.site.name or call.kind for call in final]
    counts, used = Counter(bare), Counter[str]()
    names = {}
    for call, name in zip(final, bare, strict=True):
        used[name] += 1
        names[call.site] = name if counts[name] == 1 else f"{name} {used[name]}"
    return names


def graph_starts(pools: Sequence[PoolCall], nodes: int, graphs: int) -> Tensor:
    """[B + 1]: where the nodes of each graph start, as all pools agree.

    Raises:
        ExposureRefused: the nodes of a graph do not lie together, or pools differ.
    """
    owners = [_owner(call, nodes) for call in pools]
    first = owners[0]
    if any(not torch.equal(first, other) for other in owners[1:]):
        raise ExposureRefused(
            "the model's pools put nodes into different graphs; only pools over one batch vector "
            "can be exposed together"
        )
    if not bool((first.diff() >= 0).all()):
        raise ExposureRefused(
            "the nodes of a graph do not lie together (the batch vector is not sorted); make the "
            "batch with torch_geometric.data.Batch.from_data_list"
        )
    counts = torch.bincount(first, minlength=graphs)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _owner(call: PoolCall, nodes: int) -> Tensor:
    if call.pool.owner is not None:
        return call.pool.owner
    source, graph, _ = call.entries
    owner = graph.new_full((nodes,), -1)
    owner[source] = graph
    again = graph.new_full((nodes,), -1)
    again[source.flip(0)] = graph.flip(0)
    if not torch.equal(owner, again):
        raise ExposureRefused(f"{call.title} puts a node into several graphs")
    # A node that nobody pools lies where its predecessor does.
    return torch.cummax(owner, 0).values.clamp(min=0)
