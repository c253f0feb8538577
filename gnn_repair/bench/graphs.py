"""Exposing and solving many generated graphs: seconds beside one run of the model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_mean_pool

from gnn_repair.bench.scale import peak_gib
from gnn_repair.datasets import motif_graphs
from gnn_repair.exposure import expose
from gnn_repair.oracle import solve_oracle

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


@dataclass(frozen=True)
class GraphsRow:
    """One measured model."""

    head: str
    graphs: int
    terms: int
    threads: int
    forward_seconds: float
    """Batching the graphs and one run of the model, for comparison."""
    expose_seconds: float
    solve_seconds: float
    """The oracle of every graph's class."""
    cpu_seconds: float
    """Exposing and solving, over all cores: what it costs, however busy the machine is."""
    decided: int
    """Graphs of which it is proved that their class can win, or that it cannot."""
    peak_gib: float
    residual: float


def bench_graphs(
    graphs: int = 10_000, nodes: int = 30, *, layers: int = 3, hidden: int = 64
) -> list[GraphsRow]:
    """Expose a GIN on generated graphs and solve every one, with both kinds of head."""
    data = motif_graphs(graphs, nodes)
    y = torch.cat([graph.y for graph in data])
    few = data[:8]  # what is compiled or loaded once is not what is measured
    solve_oracle(expose(_model(layers, hidden, False), few), y[:8])
    return [_measured(_model(layers, hidden, nonlinear), data, y) for nonlinear in (False, True)]


def _measured(model: GraphNet, data: list[Data], y: Tensor) -> GraphsRow:
    clock = [time.perf_counter()]
    _run(model, data)
    clock.append(time.perf_counter())
    cpu = time.process_time()
    exposure = expose(model, data)
    clock.append(time.perf_counter())
    solution = solve_oracle(exposure, y)
    clock.append(time.perf_counter())
    forward, exposing, solving = (after - before for before, after in pairwise(clock))
    return GraphsRow(
        head="linear" if isinstance(model.head, nn.Linear) else "one hidden layer",
        graphs=len(data),
        terms=exposure.num_terms,
        threads=torch.get_num_threads(),
        forward_seconds=forward,
        expose_seconds=exposing,
        solve_seconds=solving,
        cpu_seconds=time.process_time() - cpu,
        decided=int(solution.decided.sum()),
        peak_gib=peak_gib(),
        residual=float(exposure.residual or 0.0),
    )


def _model(layers: int, hidden: int, nonlinear: bool) -> GraphNet:
    torch.manual_seed(0)
    return GraphNet(layers, hidden, nonlinear).eval()


@torch.no_grad()
def _run(model: nn.Module, data: list[Data]) -> Tensor:
    batch = Batch.from_data_list(data)
    logits: Tensor = model(batch.x, batch.edge_index, batch.batch)
    return logits
