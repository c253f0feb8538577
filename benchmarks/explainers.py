"""How much must change to change a prediction: smallest reweighting beside other explainers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GATConv
from torch_geometric.utils import k_hop_subgraph

from gnn_repair.datasets import load_dataset
from gnn_repair.exposure import Exposure, expose
from gnn_repair.oracle import nearest_reweighting

TRIED = 40
"""Edges that greedy removal tries in a step: those with the most attention."""
EPOCHS = 100
"""Of GNNExplainer, as in PyG's example."""
CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
SLACK = 1e-4
"""A smallest change leads to a tie within rounding; float32 may leave the lead this far above."""


class GAT(nn.Module):
    """Two layers of attention; the graph holds its own self-loops."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv1 = GATConv(features, 8, heads=8, add_self_loops=False, dropout=0.5)
        self.conv2 = GATConv(64, classes, add_self_loops=False, dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return logits


def trained(data: Data, epochs: int) -> GAT:
    """A GAT trained on the first split."""
    torch.manual_seed(0)
    model, train = GAT(data.num_features, int(data.y.max()) + 1), data.train_mask[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        nn.functional.cross_entropy(logits[train], data.y[train]).backward()
        optimizer.step()
    return model.eval()


@dataclass(frozen=True)
class Question:
    """One node with all that its prediction depends on: its two-hop subgraph."""

    model: GAT
    x: Tensor
    edge_index: Tensor
    nodes: Tensor
    """The graph's numbers of the subgraph's nodes."""
    place: int
    predicted: int
    wanted: int | None
    """The class that must win; None: any but the predicted one."""

    @classmethod
    def of(cls, model: GAT, data: Data, node: int, predicted: int, wanted: int | None) -> Question:
        """The question about a node of the graph."""
        nodes, edges, place, _ = k_hop_subgraph(node, 2, data.edge_index, relabel_nodes=True)
        return cls(model, data.x[nodes], edges, nodes, int(place), predicted, wanted)

    def logits(self, kept: Tensor | None = None) -> Tensor:
        """The node's logits [C] from the model itself, on the edges that are kept."""
        edges = self.edge_index if kept is None else self.edge_index[:, kept]
        out: Tensor = self.model(self.x, edges)[self.place]
        return out

    def lead(self, logits: Tensor) -> Tensor:
        """Below zero the prediction has changed, or the wanted class wins."""
        one = self.predicted if self.wanted is None else self.wanted
        others = logits.clone()
        others[one] = -torch.inf
        lead = logits[one] - others.max()
        return lead if self.wanted is None else -lead

    def attention(self) -> Tensor:
        """The last layer's attention on every edge [E]."""
        hidden = self.model.conv1(self.x, self.edge_index).relu()
        _, (_, alpha) = self.model.conv2(hidden, self.edge_index, return_attention_weights=True)
        return alpha.mean(1)

    @property
    def incoming(self) -> Tensor:
        """Edges into the node."""
        return (self.edge_index[1] == self.place).nonzero().view(-1)


@dataclass(frozen=True)
class Change:
    """What a method found for a node."""

    edges: int
    """Edges removed, or edges whose weight changes."""
    moved: float | None = None
    """Share of the last layer's weight that moves, where weights change."""


def smallest_reweighting(question: Question, exposure: Exposure) -> Any:
    """Ours: the change of the last layer's weights that moves least, if there is one."""
    classes = range(exposure.num_classes) if question.wanted is None else (question.wanted,)
    node = int(question.nodes[question.place])
    found = []
    for target in classes:
        if target != question.predicted:
            y = torch.full((len(exposure.recipients),), target)
            (answer,) = nearest_reweighting(exposure, y, torch.tensor([node]), threads=1)
            found += [answer] if answer.status == "moved" else []
    return min(found, key=lambda answer: answer.moved, default=None)


def replayed(question: Question, exposure: Exposure, answer: Any) -> bool:
    """Whether the model itself, its messages scaled by λ/α, changes its prediction."""
    ratio = torch.ones(question.edge_index.shape[1])
    alpha = exposure.coefficients[0, torch.as_tensor(answer.terms)].double()
    factors: dict[int, list[float]] = {}
    for sender, change, old in zip(answer.sources, answer.change, alpha, strict=True):
        factors.setdefault(int(sender), []).append(1 + float(change / old))
    for edge in question.incoming.tolist():
        if rest := factors.get(int(question.nodes[question.edge_index[0, edge]])):
            ratio[edge] = rest.pop(0)
    handle = question.model.conv2.register_message_forward_hook(
        lambda module, inputs, output: output * ratio[:, None, None]
    )
    try:
        return bool(question.lead(question.logits()) < SLACK)
    finally:
        handle.remove()


def removed_in_order(question: Question, order: Tensor, most: int) -> Change | None:
    """Remove edges in an explainer's order until the prediction changes."""
    kept = torch.ones(question.edge_index.shape[1], dtype=torch.bool)
    for count, edge in enumerate(order[:most].tolist(), 1):
        kept[edge] = False
        if question.lead(question.logits(kept)) < 0:
            return Change(count)
    return None


def by_attention(question: Question, most: int) -> Change | None:
    """Edges into the node, the most attended first."""
    incoming = question.incoming
    order = incoming[question.attention()[incoming].argsort(descending=True)]
    return removed_in_order(question, order, most)


def by_gradient(question: Question, most: int) -> Change | None:
    """Edges by the gradient of the lead with respect to a factor on their messages."""
    factor = torch.ones(question.edge_index.shape[1], requires_grad=True)
    handles = [
        conv.register_message_forward_hook(lambda module, inputs, out: out * factor[:, None, None])
        for conv in (question.model.conv1, question.model.conv2)
    ]
    try:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(question.lead(question.logits()), factor)
    finally:
        for handle in handles:
            handle.remove()
    return removed_in_order(question, gradient.argsort(descending=True), most)


def by_gnn_explainer(question: Question, most: int) -> Change | None:
    """Edges by the mask that GNNExplainer learns for the prediction."""
    explainer = Explainer(
        question.model,
        GNNExplainer(epochs=EPOCHS),
        explanation_type="model",
        edge_mask_type="object",
        model_config=CONFIG,
    )
    with torch.enable_grad():
        mask = explainer(question.x, question.edge_index, index=question.place).edge_mask
    return removed_in_order(question, mask.argsort(descending=True), most)


def greedy_removal(question: Question, most: int) -> Change | None:
    """Remove, step by step, the edge into the node that lowers the lead most."""
    kept = torch.ones(question.edge_index.shape[1], dtype=torch.bool)
    attention = question.attention()
    for count in range(1, most + 1):
        candidates = question.incoming[kept[question.incoming]]
        candidates = candidates[attention[candidates].argsort(descending=True)][:TRIED]
        if not len(candidates):
            return None
        leads = {}
        for edge in candidates.tolist():
            kept[edge] = False
            leads[edge] = float(question.lead(question.logits(kept)))
            kept[edge] = True
        best = min(leads, key=leads.__getitem__)
        kept[best] = False
        if leads[best] < 0:
            return Change(count)
    return None


RANKERS: dict[str, Callable[[Question, int], Change | None]] = {
    "greedy edge removal": greedy_removal,
    "gradient of edges": by_gradient,
    "attention": by_attention,
    "GNNExplainer": by_gnn_explainer,
}


def bench_explainers(
    datasets: list[str], nodes: int, most: int, epochs: int, root: str | None
) -> Iterator[dict[str, object]]:
    """A row per dataset, question and method."""
    for name in datasets:
        data = load_dataset(name, root)
        model = trained(data, epochs)
        exposure = expose(model, data)
        for about, asked in _questions(model, data, exposure, nodes):
            yield _row(f"{name}: {about}", "smallest reweighting", *_ours(asked, exposure))
            for method, function in RANKERS.items():
                began = time.process_time()
                with torch.no_grad():
                    found = [function(question, most) for question in asked]
                yield _row(f"{name}: {about}", method, found, time.process_time() - began)


def _questions(
    model: GAT, data: Data, exposure: Exposure, nodes: int
) -> Iterator[tuple[str, list[Question]]]:
    """Errors and their true class, the same errors and a wrong class by lot, right nodes."""
    predicted = exposure.frozen_logits[0].argmax(1)
    lot = torch.Generator().manual_seed(0)
    test = data.test_mask[:, 0]

    def drawn(mask: Tensor) -> list[int]:
        pool = mask.nonzero().view(-1)
        return [int(v) for v in pool[torch.randperm(len(pool), generator=lot)[:nodes]]]

    def asked(chosen: list[int], wanted: Callable[[int], int | None]) -> list[Question]:
        return [Question.of(model, data, v, int(predicted[v]), wanted(v)) for v in chosen]

    def neither(v: int) -> int:
        taken = {int(data.y[v]), int(predicted[v])}
        others = [c for c in range(exposure.num_classes) if c not in taken]
        return others[int(torch.randint(len(others), (), generator=lot))]

    wrong = drawn(test & (predicted != data.y))
    yield "errors, true class", asked(wrong, lambda v: int(data.y[v]))
    yield "errors, another wrong class (chance)", asked(wrong, neither)
    yield "right nodes, any other class", asked(drawn(test & (predicted == data.y)), lambda v: None)


def _ours(asked: list[Question], exposure: Exposure) -> tuple[list[Change | None], float]:
    began = time.process_time()
    answers = [smallest_reweighting(question, exposure) for question in asked]
    seconds = time.process_time() - began
    with torch.no_grad():
        found = [
            Change(len(answer.terms), answer.share)
            if answer is not None and replayed(question, exposure, answer)
            else None
            for question, answer in zip(asked, answers, strict=True)
        ]
    return found, seconds


def _row(about: str, method: str, found: list[Change | None], seconds: float) -> dict[str, object]:
    changes = [change for change in found if change is not None]
    moved = [change.moved for change in changes if change.moved is not None]
    return {
        "question": about,
        "method": method,
        "nodes": len(found),
        "changed (%)": round(100 * len(changes) / len(found), 1),
        "edges (median)": statistics.median(c.edges for c in changes) if changes else None,
        "weight moved (median, %)": round(100 * statistics.median(moved), 1) if moved else None,
        "ms per node": round(1000 * seconds / len(found), 1),
    }
