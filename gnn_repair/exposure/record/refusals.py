"""Why a model is not exposed, in words: what is in the way, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr, pool

from gnn_repair.exposure.hetero.graph import TypedGraph
from gnn_repair.exposure.model_arguments import field, field_names
from gnn_repair.exposure.model_on_data import ModelOnData
from gnn_repair.exposure.record.analysis import Analysis
from gnn_repair.exposure.record.recorder import RecordedStep
from gnn_repair.exposure.record.words import titled

NO_SUMS: dict[tuple[type, ...], str] = {
    (aggr.SortAggregation,): "orders the nodes of a graph and keeps the first",
    (aggr.QuantileAggregation,): "takes a quantile of a graph's nodes",
    (aggr.LSTMAggregation, aggr.GRUAggregation): "reads the nodes of a graph one after another",
    (aggr.MLPAggregation,): "lays the nodes of a graph side by side",
    (aggr.SetTransformerAggregation, aggr.GraphMultisetTransformer,
     aggr.PatchTransformerAggregation): "lets the nodes of a graph attend to each other",
    (pool.MemPooling,): "puts the nodes of a graph into clusters",
}  # fmt: skip
"""PyG's aggregations of graphs that are no sums, and what they do."""
SUMS = "only sums, means and attention can be reweighted"


def why_nothing(
    analysis: Analysis, modules: Mapping[str, nn.Module], subject: ModelOnData, size: int
) -> str:
    """What stands in the way of a mixture."""
    name = type(subject.model).__name__
    mixing = analysis.beside([])
    noun = "node" if subject.graph is not None or size == subject.nodes else "graph"
    for told in no_sums(analysis, modules):
        return told
    if mixing:
        last = analysis.record.steps[mixing[-1]]
        what = f"{titled(modules, last.module).text} mixes nodes by {operation_of(last)}"
        if last.reduction is None:
            return f"{what}, no weighted sum of messages; {SUMS}"
        return (
            f"{what}, and the result has no row for every {noun}: it sums for one {noun} at a "
            "time, or rows that are no nodes; write it as one sum over messages"
        )
    graph = subject.graph
    if graph is not None:
        into = sorted(_types_reached(analysis, graph))
        where = f"; sums go to {', '.join(map(repr, into))}" if into else ""
        return f"{name} sends no messages to {graph.node_type!r} nodes{where}"
    if any(step.reduction is not None for step in analysis.record.steps):
        return (
            f"what {name} sums up leaves PyTorch on the way to the logits (numpy, Python numbers), "
            "or does not reach them, so it cannot be followed"
        )
    told = (
        f"no aggregation happens in {name}'s forward: none of its operations lets one {noun}'s "
        "numbers into another's"
    )
    for field_name in field_names(subject.data):
        if _holds_graph(field(subject.data, field_name), subject.data, size):
            return (
                f"{told}; the graph's adjacency matrix stands among the columns of "
                f"data.{field_name}, which it reads as features: multiply that part by itself, as "
                "a product with an N × N matrix, and add the rest"
            )
    return f"{told}; where features were propagated beforehand, pass a forward= that propagates"


def no_sums(analysis: Analysis, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """What to say of the aggregations that ran and are no sums."""
    if not analysis.pooled:
        return
    running = {step.module.split(".")[0] for step in analysis.record.steps}
    for kinds, what in NO_SUMS.items():
        for name, module in modules.items():
            if isinstance(module, kinds) and name.split(".")[0] in running:
                title = f"`{name}` ({type(module).__name__})"
                yield f"{title} {what}, no weighted sum of their vectors; {SUMS}"


def _types_reached(analysis: Analysis, graph: TypedGraph) -> set[str]:
    """The types of node that the model's sums go to."""
    rows = [
        rows for step in analysis.record.steps if step.reduction is not None
        for out in step.outs for rows in analysis.value(out).rows
    ]  # fmt: skip
    return {graph.kind_of(int(one.ids.min())) for one in rows if one.ids.numel()}


def operation_of(step: RecordedStep) -> str:
    """Such as ```scatter_reduce` (amax)``."""
    how = next((a for a in step.args if isinstance(a, str)), "")
    return f"`{step.name}`" + f" ({how})" * bool(how)


def broken_words(step: RecordedStep, where: Callable[[str], str], dtype: torch.dtype) -> str:
    """What to say of the first operation that gives NaN or infinite numbers."""
    return (
        f"{where(step.module)} leaves the numbers that `{step.name}` is made for, or overflows "
        f"{dtype}; clamp what it reads, or pass model.double() and double data"
    )


def _holds_graph(value: object, data: object, rows: int) -> bool:
    """Whether the first or the last N columns of a wider table are the graph's adjacency."""
    edges = field(data, "edge_index")
    if not isinstance(value, Tensor) or not isinstance(edges, Tensor) or edges.dim() != 2:
        return False
    wide = value.layout == torch.strided and value.dim() == 2 and value.shape[1] > rows
    if not wide or value.shape[0] != rows or not edges.numel():
        return False
    graph = torch.zeros(rows, rows, dtype=torch.bool, device=value.device)
    graph[edges[0], edges[1]] = True
    parts = (value[:, :rows] != 0, value[:, -rows:] != 0)
    return any(bool((part == one).all()) for part in parts for one in (graph, graph.t()))
