"""A large generated graph: exposing it, asking the oracle, learning a repair and using it."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from gnn_repair.backbones import BACKBONES, Frozen, Shape
from gnn_repair.backbones.base import stack_parameters
from gnn_repair.backbones.graph import Graph
from gnn_repair.budget import Budget
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure, expose
from gnn_repair.oracle import solve_oracle
from gnn_repair.repair import SetTranslation

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


@dataclass(frozen=True)
class ScaleRow:
    """One measured graph. Seconds are by the clock, so they mean something on an idle machine."""

    model: str
    """``GCNConv``: a user's PyG model; ``built-in``: our own GCN of the same width."""
    nodes: int
    terms: int
    threads: int
    expose_seconds: float
    expose_cpu_seconds: float
    """Processor seconds, which a busy machine changes less."""
    expose_peak_gib: float
    """The process's peak until then: graph, model and its first run included."""
    residual: float | None
    oracle_seconds: float
    """The true class of every node."""
    reach: float
    targets: int
    setup_seconds: float
    """Of set translation: everything before its first epoch."""
    epoch_seconds: float
    few_epoch_seconds: float
    """The same with FEW targets."""
    predict_seconds: float
    """The repair at every node."""
    peak_gib: float


def bench_scale(
    sizes: Sequence[int] = (10_000, 100_000, 1_000_000),
    *,
    models: Sequence[str] = MODELS,
    degree: int = 20,
    features: int = 64,
    hidden: int = 64,
    classes: int = 40,
    apart: bool = True,
) -> list[ScaleRow]:
    """Measure GCNs on generated graphs.

    Args:
        sizes: nodes of each graph.
        models: see :class:`ScaleRow`.
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


def _in_process(case: tuple[Any, ...]) -> ScaleRow:
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
) -> ScaleRow:
    """One model on one graph."""
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
    solution = solve_oracle(exposure, y)
    oracle, reach = watch.read()[0], float(solution.reachable.mean())
    del solution
    targets = max(2, nodes // TARGETS)
    setup, epoch, _ = _learn(exposure, y, targets)
    _, few, fitted = _learn(exposure, y, min(FEW, targets))
    watch = Stopwatch()
    fitted.predict(exposure)
    return ScaleRow(
        model, nodes, exposure.num_terms, torch.get_num_threads(), seconds, cpu, peak,
        exposure.residual, oracle, reach, targets, setup, epoch, few, watch.read()[0], peak_gib(),
    )  # fmt: skip


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


def _learn(exposure: Exposure, y: Tensor, targets: int) -> tuple[float, float, Any]:
    """Seconds before the first epoch and of an epoch, and the repair."""
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
    epoch = max(0.0, (spent[2] - spent[1]) / more)
    return max(0.0, spent[1] - epoch), epoch, fitted


def peak_gib() -> float:
    """The largest resident size this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
