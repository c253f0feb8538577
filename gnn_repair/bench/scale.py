"""Exposing a large generated graph: seconds and peak memory."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from gnn_repair.exposure import expose


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
    """One measured graph."""

    nodes: int
    terms: int
    threads: int
    forward_seconds: float
    """One run of the model, for comparison."""
    expose_seconds: float
    expose_cpu_seconds: float
    """Over all cores: what the work costs, however busy the machine is."""
    peak_gib: float
    """The process's peak: graph, model and its first run included."""
    residual: float


def bench_scale(
    nodes: int = 1_000_000,
    entries: int = 20_000_000,
    *,
    features: int = 32,
    hidden: int = 64,
    classes: int = 10,
) -> list[ScaleRow]:
    """Expose a GCN on a generated graph, in the same way as any user's model.

    The model has run before, as a trained one has, so that its graph is normalised and cached.
    """
    torch.manual_seed(0)
    data = generated_graph(nodes, entries, features)
    model = Net(features, hidden, classes).eval()
    with torch.no_grad():
        model(data.x, data.adj_t)
        start = time.perf_counter()
        model(data.x, data.adj_t)
    forward = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    exposure = expose(model, data)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert exposure.residual is not None
    return [
        ScaleRow(
            nodes=nodes,
            terms=exposure.num_terms,
            threads=torch.get_num_threads(),
            forward_seconds=forward,
            expose_seconds=seconds,
            expose_cpu_seconds=cpu,
            peak_gib=peak_gib(),
            residual=exposure.residual,
        )
    ]


def peak_gib() -> float:
    """The largest resident size this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
