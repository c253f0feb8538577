"""A model that classifies graphs as an exposure: recipients are graphs, sources their nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import aggr, pool

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.assembly import Words, assemble
from gnn_repair.exposure.certification import certify
from gnn_repair.exposure.diagnosis import bends, reason, refuse_residual, why_rows
from gnn_repair.exposure.embedding import last_linear
from gnn_repair.exposure.final_aggregation import FinalAggregation
from gnn_repair.exposure.fingerprint import fingerprint_of_model
from gnn_repair.exposure.known_aggregation import UnplannedError
from gnn_repair.exposure.model_arguments import field
from gnn_repair.exposure.model_call import check_expected
from gnn_repair.exposure.model_on_data import ModelOnData
from gnn_repair.exposure.model_output import (
    check_numbers,
    count_classes,
    read_output,
    tensors_of,
)
from gnn_repair.exposure.model_state import changing, forget_propagations
from gnn_repair.exposure.names import NodeNames
from gnn_repair.exposure.outputs import Outputs
from gnn_repair.exposure.pooling.finding import KnownPoolFinder, PoolFinder, graph_starts
from gnn_repair.exposure.pooling.pool import PoolCall
from gnn_repair.exposure.pooling.watch import PoolWatch
from gnn_repair.exposure.probes import EXACT, deviation, residual_limit
from gnn_repair.exposure.recording import Trace
from gnn_repair.exposure.tails.from_model import expose_tailed
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure

CHOOSING = (pool.TopKPooling, pool.SAGPooling, pool.EdgePooling, pool.ASAPooling, pool.PANPooling)
"""Layers after which rows are not the graph's nodes any more."""
NO_SUMS: dict[tuple[type, ...], str] = {
    (aggr.SortAggregation,): "orders the nodes of a graph and keeps the first",
    (aggr.QuantileAggregation,): "takes a quantile of a graph's nodes",
    (aggr.LSTMAggregation, aggr.GRUAggregation): "reads the nodes of a graph one after another",
    (aggr.MLPAggregation,): "lays the nodes of a graph side by side",
    (aggr.SetTransformerAggregation, aggr.GraphMultisetTransformer,
     aggr.PatchTransformerAggregation): "lets the nodes of a graph attend to each other",
    (pool.MemPooling,): "puts the nodes of a graph into clusters",
}  # fmt: skip
"""Aggregations of graphs that are no sums, and what they do."""
ONLY = "only pools that are weighted sums of node vectors (sum, mean, attention) can be exposed"


def graphs_told(data: Any, output: Any, nodes: int | None) -> int | None:
    """How many graphs an output has rows for; None where it speaks of nodes.

    Where it speaks of both (logits of graphs beside embeddings of nodes), labels decide, and
    without labels the graphs that data says it has.
    """
    rows = [
        len(value)
        for _, value in tensors_of(output)
        if value.is_floating_point() and value.dim() in (1, 2)
    ]
    known, y = _graphs_of(data), field(data, "y")
    if nodes is not None and known in (None, 1) and _is_of_one(output, nodes):
        return 1
    if nodes is None or not rows:
        return None
    if nodes in rows:
        labelled = len(y) if isinstance(y, Tensor) and y.dim() else known
        told = labelled if labelled in rows and labelled in (known, 1) else None
        return None if told == nodes else told
    return known if known in rows else rows[0]


def _is_of_one(output: Any, nodes: int) -> bool:
    """Whether an output is the numbers of a single graph, without an axis for graphs."""
    numbers = isinstance(output, Tensor) and output.is_floating_point()
    return numbers and output.dim() < 2 and output.numel() not in (0, nodes)


def _graphs_of(data: Any) -> int | None:
    """How many graphs data says it has."""
    known, batch = field(data, "num_graphs"), field(data, "batch")
    if isinstance(known, int):
        return known
    return int(batch.max()) + 1 if isinstance(batch, Tensor) and batch.numel() else None


@dataclass(frozen=True)
class Wanted:
    """How a model is exposed."""

    hops: str
    tolerance: float | None = None
    expected: Any = None
    known: FinalAggregation | None = None
    """What was found on another batch, so that nothing is probed again."""
    certified: bool = True
    """Whether the model is run on reweighted nodes; otherwise nothing is claimed."""
    outputs: Outputs | None = None
    """What the model's outputs are; what ``y`` says where None."""


def expose_pooled(
    subject: ModelOnData, output: Any, wanted: Wanted
) -> tuple[Exposure | TailedExposure, FinalAggregation] | None:
    """The exposure over graphs; None where the model gives none, or pools no nodes at all."""
    model, data, call, nodes = subject.model, subject.data, subject.call, subject.nodes
    graphs = graphs_told(data, output, nodes)
    if graphs is None or nodes is None:
        return None
    why, classes = partial(why_rows, model, call), count_classes(data, graphs) or subject.classes
    read = read_output(output, graphs, why, classes, wanted.outputs, data)
    logits, called = read(output), call.text + read.text.replace("z a node", "z a graph")
    check_numbers(logits, model, data)
    forget_propagations(model)
    watch = PoolWatch(model, lambda: read(call()), (nodes, graphs))
    anchored = read.outputs != "classes"
    with watch.installed():
        with last_linear(model) as head:
            trace = watch.trace()
        _check_pools(watch, trace, logits)
        if not pools_of(trace):
            return None
        if wanted.expected is not None:
            told = logits[:, int(anchored) :]
            check_expected(wanted.expected, told, read.binary, called, noun="graph")
        finding = _found(watch, trace, wanted.known)
        words = Words(
            type(model).__name__, finding.fixed, False, head.embedding(logits, read.binary),
            called, fingerprint_of_model(model, wanted.hops, logits.shape[1] - anchored),
            NodeNames("graph", (("node", nodes),)), _starts(trace, finding, nodes, graphs),
        )  # fmt: skip
        exposure = _assembled(watch, trace, finding, words, wanted)
    return read.finished(exposure), finding


def _assembled(
    watch: PoolWatch, trace: Trace, finding: FinalAggregation, words: Words, wanted: Wanted
) -> Exposure | TailedExposure:
    """The groups of the final pools put together, certified where that is wanted."""
    logits, mixtures, certified = trace.output, finding.mixtures, wanted.certified
    if not mixtures:
        return expose_tailed(watch, trace, finding.nodewise, words, wanted.tolerance, certified)
    sites = {mixture.site for mixture in mixtures}
    trace.calls = [call for call in trace.calls if call.site in sites]
    exposure, order = assemble(mixtures, finding.tails, logits, words)
    if not certified:
        return exposure
    residual = certify(watch, exposure, order, mixtures, trace, finding.centred)
    if residual <= residual_limit(wanted.tolerance, logits.dtype):
        # Not yet seen by anybody, and validated a moment ago: no need to build it anew.
        object.__setattr__(exposure, "residual", residual)
        return exposure
    if len(sites) > 1 or bends(watch, trace, list(sites)):
        # Affine in every pool by itself and not in all together, as their product is; or as far
        # as probes went.
        finding.nodewise, finding.mixtures = mixtures, []
        finding.tails.clear()
        return expose_tailed(watch, trace, finding.nodewise, words, wanted.tolerance)
    refuse_residual(watch, trace, list(sites), "β + Σ λ ℓ", residual, wanted.tolerance)
    raise AssertionError("unreachable: the residual is over the limit")


def pools_of(trace: Trace) -> list[PoolCall]:
    """The pools of a run."""
    return [call for call in trace.calls if isinstance(call, PoolCall)]


def _starts(trace: Trace, finding: FinalAggregation, nodes: int, graphs: int) -> Tensor:
    sites = {mixture.site for mixture in finding.mixtures or finding.nodewise}
    final = [call for call in pools_of(trace) if call.site in sites]
    return graph_starts(final, nodes, graphs)


def expose_again(subject: ModelOnData, wanted: Wanted) -> Exposure | TailedExposure:
    """The exposure on another batch, by what was found on the first.

    Raises:
        UnplannedError: the model pools something else there.
    """
    pooled = expose_pooled(subject, subject.call(), wanted)
    if pooled is None:
        raise UnplannedError
    return pooled[0]


def _found(watch: PoolWatch, trace: Trace, known: FinalAggregation | None) -> FinalAggregation:
    finder = PoolFinder(watch, trace) if known is None else KnownPoolFinder(watch, trace, known)
    finding = finder.find()
    if not finding.mixtures and not finding.nodewise:
        raise ExposureRefused(_why_not(watch, trace, finding))
    return finding


def _check_pools(watch: PoolWatch, trace: Trace, logits: Tensor) -> None:
    if trace.output.shape == logits.shape:
        gap = float(deviation(trace.output, logits).max())
        if not gap <= 10 * EXACT[logits.dtype]:
            raise ExposureRefused(changing(watch.model, watch.forward, logits, gap))
    if pools_of(trace):
        return
    if watch.pools.extremes:
        how = watch.pools.extremes[-1]
        raise ExposureRefused(
            f"{type(watch.model).__name__} pools the nodes of a graph by {how}, which is no "
            f"weighted sum of their vectors; {ONLY}"
        )
    for kinds, what in NO_SUMS.items():
        if found := _module(watch.model, kinds):
            raise ExposureRefused(f"{found} {what}, which is no weighted sum of vectors; {ONLY}")
    if watch.pools.coarse:
        raise ExposureRefused(_coarse(watch))
    if watch.pools.elsewhere:
        raise ExposureRefused(_elsewhere(watch))


def _elsewhere(watch: PoolWatch) -> str:
    how = watch.pools.elsewhere[-1]
    return (
        f"{type(watch.model).__name__} pools {how}, where which node stands behind a row is not "
        "known; pool with global_mean_pool, global_add_pool or one of PyG's aggregations"
    )


def _coarse(watch: PoolWatch) -> str:
    who = _module(watch.model, CHOOSING) or "the model"
    rows = watch.pools.coarse[-1]
    return (
        f"{who} leaves {rows} of the {watch.pools.nodes} nodes before they are pooled, so which "
        f"node stands behind a pooled row is not known; {ONLY}, over all nodes"
    )


def _module(model: nn.Module, kinds: tuple[type, ...]) -> str:
    for name, module in model.named_modules():
        if isinstance(module, kinds):
            return f"`{name}` ({type(module).__name__})"
    return ""


def _why_not(watch: PoolWatch, trace: Trace, finding: FinalAggregation) -> str:
    pools = watch.pools
    if pools.coarse:
        return _coarse(watch)
    if finding.idle and pools.elsewhere:
        return _elsewhere(watch)
    if finding.idle:
        return f"the logits do not depend on what {finding.idle[0]} pools"
    if pools.extremes:
        how = pools.extremes[-1]
        return f"what reaches the logits is pooled by {how}, no weighted sum of nodes; {ONLY}"
    why = reason(watch, trace).replace("different nodes", "different graphs")
    return f"{why}, so the logits are no mixture of its graphs' nodes"
