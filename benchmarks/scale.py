"""Large generated graphs, and many small ones: exposing them, asking the oracle, repairing."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

from gnn_repair.backbones import BACKBONES, Frozen, Shape
from gnn_repair.backbones.graph import Graph
from gnn_repair.budget import Budget
from gnn_repair.datasets import motif_graphs
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.oracle import solve
from gnn_repair.repair import SetTranslation
from gnn_repair.training import stack_parameters

TARGETS = 20
"""One node in so many is a training target: 50,000 of a million."""
FEW = 500
"""Targets of the second measurement, the same on every graph: its cost should not grow."""
MODELS = ("GCNConv", "built-in")


class Net(nn.Module):
    """Two GCN layers and a linear head."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1 = GCNConv(features, hidden, cached=True)
        self.conv2 = GCNConv(hidden, hidden, cached=True)
        self.lin = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        """Logits [N, C]."""
        hidden = self.conv1(x, adj_t).relu()
        logits: Tensor = self.lin(self.conv2(hidden, adj_t))
        return logits


def generated_graph(nodes: int, entries: int, features: int, seed: int = 0) -> Data:
    """A random directed graph in the sparse form PyG uses for large graphs (``adj_t``).

    Every node receives from ``entries / nodes`` nodes, itself included.
    """
    generator = torch.Generator().manual_seed(seed)
    degree = max(1, entries // nodes)
    # Random gaps that never add up to a full turn give every node distinct sources.
    gaps = torch.randint(1, nodes // degree + 1, (nodes, degree), generator=generator)
    gaps[:, 0] = torch.arange(nodes)
    columns = (gaps.cumsum_(1) % nodes).sort(dim=1).values.view(-1)
    starts = torch.arange(0, nodes * degree + 1, degree)
    values = torch.ones(nodes * degree)
    adjacency = torch.sparse_csr_tensor(starts, columns, values, size=(nodes, nodes))
    x = torch.randn(nodes, features, generator=generator)
    return Data(x=x, adj_t=adjacency, num_nodes=nodes)


def bench_scale(
    sizes: Sequence[int] = (10_000, 100_000, 1_000_000),
    *,
    models: Sequence[str] = MODELS,
    degree: int = 20,
    features: int = 64,
    hidden: int = 64,
    classes: int = 40,
    apart: bool = True,
) -> list[dict[str, Any]]:
    """Measure GCNs on generated graphs.

    Args:
        sizes: nodes of each graph.
        models: ``GCNConv``, a user's PyG model; ``built-in``, our own GCN of the same width.
        degree: entries a node, self-loop included.
        features: of a node.
        hidden: width of both layers.
        classes: of the nodes.
        apart: whether each is measured in a process of its own, so that peaks are its own.
    """
    for model in models:
        if model not in MODELS:
            raise InputError(f"{model!r} is not measured here; choose from {', '.join(MODELS)}")
    cases = [(m, n, degree, features, hidden, classes) for n in sizes for m in models]
    if not apart:
        return [measure(*case) for case in cases]
    return [_in_process(case) for case in cases]


def _in_process(case: tuple[Any, ...]) -> dict[str, Any]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *case).result()


class Stopwatch:
    """Seconds by the clock and of the processor."""

    def __init__(self) -> None:
        self.clock, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Since it was made."""
        return time.perf_counter() - self.clock, time.process_time() - self.cpu


def measure(
    model: str, nodes: int, degree: int, features: int, hidden: int, classes: int
) -> dict[str, Any]:
    """One model on one graph.

    Seconds are by the clock, so they mean something on an idle machine. The peak of exposing is the
    process's until then: graph, model and its first run included.
    """
    torch.manual_seed(0)
    make = _pyg_model if model == "GCNConv" else _built_in
    make(generated_graph(100, 500, features), hidden, classes)()  # loads kernels
    data = generated_graph(nodes, nodes * degree, features)
    run = make(data, hidden, classes)
    del data
    watch = Stopwatch()
    exposure = run()
    seconds, cpu = watch.read()
    peak = peak_gib()
    del run
    y = exposure.frozen_logits[0].argmax(1)
    y[::3] = torch.randint(classes, y[::3].shape)  # a third of the model's answers are wrong
    watch = Stopwatch()
    solution = solve(exposure, y)
    oracle, reach = watch.read()[0], float(solution.reachable.mean())
    del solution
    targets = max(2, nodes // TARGETS)
    epoch, _ = _learn(exposure, y, targets)
    few, fitted = _learn(exposure, y, min(FEW, targets))
    watch = Stopwatch()
    fitted.predict(exposure)
    return {
        "model": model,
        "nodes": nodes,
        "terms": exposure.num_terms,
        "residual": exposure.residual,
        "expose (s)": round(seconds, 2),
        "its CPU (s)": round(cpu, 1),
        "peak (GiB)": round(peak, 2),
        "oracle, all nodes (s)": round(oracle, 2),
        "reach": round(reach, 3),
        "targets": targets,
        "an epoch (s)": round(epoch, 3),
        f"{FEW} targets, an epoch (s)": round(few, 3),
        "repair all nodes (s)": round(watch.read()[0], 2),
        "peak at the end (GiB)": round(peak_gib(), 2),
        "threads": torch.get_num_threads(),
    }


def _pyg_model(data: Data, hidden: int, classes: int) -> Callable[[], Exposure]:
    """A user's model. It has run before, as a trained one has: its graph is normalised by now."""
    model = Net(data.x.shape[1], hidden, classes).eval()
    with torch.no_grad():
        model(data.x, data.adj_t)

    def run() -> Exposure:
        exposure = expose(model, data)
        assert isinstance(exposure, Exposure)
        return exposure

    return run


def _built_in(data: Data, hidden: int, classes: int) -> Callable[[], Exposure]:
    """Our own GCN with the numbers it starts from, as if it had been trained."""
    starts, nodes = data.adj_t.crow_indices(), data.num_nodes
    recipients = torch.repeat_interleave(torch.arange(nodes), starts.diff())
    entries = torch.stack([data.adj_t.col_indices(), recipients])
    listed = Data(x=data.x, edge_index=entries)
    backbone = BACKBONES["gcn"](Shape(hidden=hidden))
    parameters = stack_parameters(backbone.network(data.x.shape[1], classes), 1)
    graph = Graph(listed)
    with torch.no_grad():
        logits = backbone.logits(parameters, graph, backbone.trunk(parameters, graph))
    none = torch.zeros(1, dtype=torch.long)
    frozen = Frozen(
        backbone, listed, (0,), 0, backbone.budget, parameters,
        logits.transpose(0, 1).contiguous(), none, none, none.bool(),
    )  # fmt: skip
    return lambda: expose(frozen)


def _learn(exposure: Exposure, y: Tensor, targets: int) -> tuple[float, Any]:
    """Seconds of an epoch, and the repair."""
    order = torch.randperm(exposure.num_nodes)
    train, val = torch.zeros(2, exposure.num_nodes, dtype=torch.bool)
    train[order[:targets]] = True
    val[order[targets : targets + max(1, targets // 10)]] = True
    spent, more = [], max(3, min(40, 50_000 // targets))
    for epochs in (1, 1, 1 + more):  # the first loads kernels
        budget = Budget(epochs=epochs, patience=None, learning_rate=1e-3, weight_decay=0.0)
        watch = Stopwatch()
        fitted = SetTranslation(budget).fit(exposure, y, train, val, device="cpu")
        spent.append(watch.read()[0])
    return max(0.0, (spent[2] - spent[1]) / more), fitted


def peak_gib() -> float:
    """The largest resident size this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


CLASSES, FEATURES = 3, 8


class GraphNet(nn.Module):
    """GIN layers, a mean over the nodes and a head, linear or with one hidden layer."""

    def __init__(self, layers: int, hidden: int, nonlinear: bool) -> None:
        super().__init__()
        widths = [FEATURES, *[hidden] * layers]
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
            for wide in widths[:-1]
        )
        deep = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        self.head = deep if nonlinear else nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Logits [B, C]."""
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        logits: Tensor = self.head(global_mean_pool(x, batch))
        return logits


def bench_graphs(
    graphs: int = 10_000, nodes: int = 30, *, layers: int = 3, hidden: int = 64
) -> list[dict[str, Any]]:
    """Expose a GIN on generated graphs and solve every one, with both kinds of head."""
    data = motif_graphs(graphs, nodes)
    y = torch.cat([graph.y for graph in data])
    few = data[:8]  # what is compiled or loaded once is not what is measured
    solve(expose(_model(layers, hidden, False), few), y[:8])
    return [_measured(_model(layers, hidden, nonlinear), data, y) for nonlinear in (False, True)]


def _measured(model: GraphNet, data: list[Data], y: Tensor) -> dict[str, Any]:
    clock = [time.perf_counter()]
    _run(model, data)
    clock.append(time.perf_counter())
    cpu = time.process_time()
    exposure = expose(model, data)
    clock.append(time.perf_counter())
    solution = solve(exposure, y)
    clock.append(time.perf_counter())
    forward, exposing, solving = (after - before for before, after in pairwise(clock))
    return {
        "head": "linear" if isinstance(model.head, nn.Linear) else "one hidden layer",
        "graphs": len(data),
        "terms": exposure.num_terms,
        "threads": torch.get_num_threads(),
        "one forward (s)": round(forward, 1),  # batching included
        "expose (s)": round(exposing, 1),
        "solve (s)": round(solving, 2),
        "CPU (s)": round(time.process_time() - cpu, 1),  # of exposing and solving, all cores
        "decided": int(solution.decided.sum()),
        "peak memory (GiB)": round(peak_gib(), 2),
        "residual": float(f"{exposure.residual or 0.0:.1e}"),
    }


def _model(layers: int, hidden: int, nonlinear: bool) -> GraphNet:
    torch.manual_seed(0)
    return GraphNet(layers, hidden, nonlinear).eval()


@torch.no_grad()
def _run(model: nn.Module, data: list[Data]) -> Tensor:
    batch = Batch.from_data_list(data)
    logits: Tensor = model(batch.x, batch.edge_index, batch.batch)
    return logits
