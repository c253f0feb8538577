"""What ``expose`` and a repaired model cost beside one forward of the same model."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from benchmarks.scale import generated_graph, peak_gib
from gnn_repair.exposure import expose
from gnn_repair.repair import TemperatureScaling
from gnn_repair.repair.model import repaired

WIDTH, CLASSES, DEGREE = 64, 40, 20
MODELS = ("GCN", "GAT", "GIN", "SAGE", "sparse")
"""``sparse``: GCN, given a sparse adjacency; ``GIN``: with a nonlinear head."""
PHASES = {
    "forwards": "calling.py:__call__",
    "record": "recorder.py:record_run",
    "analyse": "from_model.py:_sites",
    "follow": "from_model.py:_captured",
    "build": "from_model.py:_assembled",
    "certify": "from_model.py:_certified",
}
"""Of ``expose``: the functions whose time is shown."""


class Plain(nn.Module):
    """Two convolutions and a linear layer, as most people write them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convolution(kind), _convolution(kind)
        self.head: nn.Module = nn.Linear(WIDTH, CLASSES)
        if kind == "GIN":
            self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        hidden = self.conv1(x, edge_index).relu()
        logits: Tensor = self.head(self.conv2(hidden, edge_index))
        return logits


def _convolution(kind: str) -> nn.Module:
    if kind == "GAT":
        return GATConv(WIDTH, 8, heads=8)
    if kind == "GIN":
        return GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    return SAGEConv(WIDTH, WIDTH) if kind == "SAGE" else GCNConv(WIDTH, WIDTH)


def bench_exposing(
    sizes: Sequence[int] = (10_000, 100_000), models: Sequence[str] = MODELS, repeats: int = 3
) -> list[dict[str, Any]]:
    """Measure models written plainly in PyG on generated graphs, each in processes of its own."""
    rows = []
    for nodes in sizes:
        for model in models:
            alone = _in_process(_peak, model, nodes, False)
            rows.append(_in_process(_times, model, nodes, repeats))
            peak = _in_process(_peak, model, nodes, True)
            rows[-1] |= {"peak of a forward (GiB)": alone, "peak / peak": round(peak / alone, 2)}
    return rows


def _in_process(function: Callable[..., Any], *case: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *case).result()


def _case(model: str, nodes: int) -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    data = generated_graph(nodes, nodes * DEGREE, WIDTH)
    adjacency = data.adj_t
    recipients = torch.repeat_interleave(adjacency.crow_indices().diff())
    edges = torch.stack([adjacency.col_indices(), recipients])
    if model == "sparse":
        return Plain("GCN").eval(), Data(x=data.x, edge_index=adjacency)
    return Plain(model).eval(), Data(x=data.x, edge_index=edges)


@torch.no_grad()
def _forward(model: nn.Module, data: Data) -> Tensor:
    logits: Tensor = model(data.x, data.edge_index)
    return logits


def _peak(name: str, nodes: int, exposing: bool) -> float:
    """GiB that the process has had at most, graph and model included."""
    expose(*_case(name, 100))
    model, data = _case(name, nodes)
    expose(model, data) if exposing else _forward(model, data)
    return round(peak_gib(), 2)


def _times(name: str, nodes: int, repeats: int) -> dict[str, Any]:
    """Seconds of the processor, the least of several runs: others may be at work beside."""
    expose(*_case(name, 100))
    model, data = _case(name, nodes)
    forward = min(_seconds(lambda: _forward(model, data)) for _ in range(repeats))
    exposing = min(_seconds(lambda: expose(model, data)) for _ in range(repeats))
    order = torch.arange(nodes)
    # This repair costs nothing itself, so what is left is what every repaired model pays.
    fitted = TemperatureScaling().fit(expose(model, data), order % CLASSES, order < 1, order >= 1)
    later = repaired(model, fitted)
    _forward(later, data)  # the first call exposes
    repairing = min(_seconds(lambda: _forward(later, data)) for _ in range(repeats))
    profile = cProfile.Profile(time.process_time)
    profile.runcall(expose, model, data)
    stats = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    spent = {  # of functions of one name in one file the one that takes longest
        f"{file.rpartition('/')[2]}:{function}": (calls, seconds)
        for (file, _, function), (_, calls, _, seconds, _) in sorted(stats, key=lambda s: s[1][3])
        if "/exposure/" in file
    }
    shares = {phase: spent.get(place, (0, 0.0)) for phase, place in PHASES.items()}
    return {
        "model": name,
        "nodes": nodes,
        "one forward (s)": round(forward, 4),
        "expose / forward": round(exposing / forward, 2),
        "repaired / forward": round(repairing / forward, 2),
        "runs": shares["forwards"][0],
        **{phase: round(seconds / forward, 2) for phase, (_, seconds) in shares.items()},
    }


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
