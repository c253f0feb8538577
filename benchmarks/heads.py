"""Models with nonlinear heads: how much is decided about them, and how fast, by stage.

All figures are processor time of one thread. *Errors* are the test nodes of split 0 that a briefly
trained two-layer model gets wrong; each is asked whether reweighting could give it its true class.
A stage's time is a mean over the questions that reached it, the share decided is of all; since few
reach the third and a batch of few is slow, its time with all errors asked is given too. The peers
get the same questions, a sample of them: the triangle relaxation as one LP and the head itself as a
MILP, with a model built by arrays (heads with one layer of ReLUs only). Verdicts are compared with
a MILP's of another build (:mod:`head_solvers`), the questions that needed most work first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from benchmarks.head_solvers import compare_with_milp, peer_figures
from gnn_repair.atomic import replacing
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure import Exposure, Group
from gnn_repair.exposure.heads.operations import (
    Activation,
    Affine,
    Concatenate,
    Constant,
    HeadGraph,
    LayerNorm,
    Operation,
    Scale,
)
from gnn_repair.files import parse_json
from gnn_repair.oracle.heads.solve import (
    ASCENT,
    EffortLimit,
    Questions,
    relax_all,
    replay_margins,
    search_all,
    solve_head,
    split_all,
)
from gnn_repair.oracle.problems import Integers
from gnn_repair.published import REACHABLE

TITLES = ("relaxation", "search", "lines", "cases")
"""The stages in a table."""


@dataclass(frozen=True)
class Stage:
    """One stage: microseconds a question that reached it, and the share decided after it."""

    microseconds: float
    decided: float
    reached: int


def parse_widths(text: str) -> list[int]:
    """``"64,128"`` as numbers."""
    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r} is no list of hidden units such as 64,128") from error
    if min(widths) < 1:
        raise InputError(f"hidden units must be at least 1, not {min(widths)}")
    return widths


def bench_heads(
    datasets: Sequence[str],
    heads: Sequence[str],
    widths: Sequence[int],
    *,
    root: str | None = None,
    epochs: int = 150,
    sample: int = 40,
    milp: int = 0,
    folder: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """A row per dataset, head and width, read from the folder where it was measured before.

    Args:
        datasets, heads, widths: what is measured, in all combinations.
        root: where datasets lie.
        epochs: of training.
        sample: questions a model that general solvers are timed on.
        milp: questions a model whose verdicts a MILP is asked about too.
        folder: where rows are kept.
    """
    torch.set_num_threads(1)
    journal = Journal(folder)
    for name in datasets:
        data = load_dataset(name, root)
        for hidden in widths:
            for kind in heads:
                title = f"{name}-{kind}-{hidden}-{epochs}-{sample}-{milp}"
                row = journal.read(title)
                if row is None:
                    row = _row(name, data, kind, hidden, epochs, sample, milp)
                    journal.write(title, row)
                yield row


def _row(
    name: str, data: Any, kind: str, hidden: int, epochs: int, sample: int, milp: int
) -> dict[str, Any]:
    exposure = head_exposure(trained(data, kind, hidden, epochs), data)
    right = exposure.frozen_logits[0].argmax(1) == data.y
    test = data.test_mask[:, 0]
    wrong = (test & ~right).nonzero().view(-1).numpy()
    target = data.y.numpy()[wrong]
    time_stages(exposure, wrong[:64], target[:64])  # compiles, or loads what was compiled
    stages = time_stages(exposure, wrong, target)
    solution = solve_head(exposure, data.y, torch.from_numpy(wrong))
    begin = time.process_time()
    holds = solution.check(exposure).ok
    check = time.process_time() - begin
    hardest = np.argsort(-solution.status, kind="stable")[:milp]
    compared = compare_with_milp(exposure, solution, hardest) if milp else None
    peers = peer_figures(exposure, wrong, target, sample)
    named = list(zip(TITLES, stages, strict=True))
    return {
        "dataset": name,
        "head": kind,
        "units": hidden,
        "accuracy (%)": round(100 * float(right[test].float().mean()), 1),
        "errors": len(wrong),
        **{f"{title} (µs)": round(stage.microseconds) for title, stage in named},
        **{f"after {title} (%)": round(100 * stage.decided, 1) for title, stage in named},
        "can": int(solution.reachable.sum()),
        "cannot": int(solution.excluded.sum()),
        "undecided": int((~solution.decided).sum()),
        "all checked": holds,
        "check (ms)": round(1e3 * check / max(1, len(wrong)), 2),
        "lines, all errors (µs)": round(_lines_for_all(exposure, wrong, target)),
        "MILPs solved": compared and f"{compared.ended} of {compared.asked}",
        "compared": compared and compared.compared,
        "contradictions": compared and ("; ".join(compared.contradictions) or "0"),
        **{title: value if value is None else round(value, 2) for title, value in peers.items()},
    }


def time_stages(exposure: Exposure, position: Integers, target: Integers) -> tuple[Stage, ...]:
    """Each stage by itself, on the questions the one before left open."""
    begin = time.process_time()
    questions = Questions(exposure, position, target, EffortLimit(1))
    relax_all(questions)
    stages = [_stage(questions, begin, len(questions))]
    for work in ("search", "lines", "cases"):
        left = np.flatnonzero(questions.open())
        begin = time.process_time()
        if work == "search":
            search_all(questions, left, ASCENT)
        else:
            questions.budget = EffortLimit(1 if work == "lines" else 1000)
            split_all(questions, left)
        stages.append(_stage(questions, begin, len(left)))
    return tuple(stages)


def _lines_for_all(exposure: Exposure, position: Integers, target: Integers) -> float:
    """Microseconds a question of the third stage alone."""
    questions = Questions(exposure, position, target, EffortLimit(1))
    relax_all(questions)
    begin = time.process_time()
    split_all(questions, np.arange(len(questions)))
    return 1e6 * (time.process_time() - begin) / max(1, len(questions))


def _stage(questions: Questions, begin: float, reached: int) -> Stage:
    """The stage that began at ``begin``; wins count when the model confirms them."""
    seconds = time.process_time() - begin
    margins = replay_margins(
        questions.exposure, questions.position, questions.target, questions.shares
    )
    won = margins > REACHABLE
    decided = won | (questions.raw <= questions.threshold)
    return Stage(1e6 * seconds / max(1, reached), float(decided.mean()), reached)


HEADS = ("relu", "bn-residual", "jk-cat", "mlp", "layer-norm", "gelu")
"""What follows the last aggregation, before a linear layer: ReLU; batch norm, a residual and ReLU;
ReLU beside the first layer's output; ReLU, linear, ReLU; a residual, layer norm and ReLU; GELU."""


class HeadModel(nn.Module):
    """Two layers of Â h W + b, then one of the HEADS and a linear layer."""

    def __init__(self, features: int, hidden: int, classes: int, kind: str) -> None:
        super().__init__()
        if kind not in HEADS:
            raise InputError(f"there is no head {kind!r}; choose one of {', '.join(HEADS)}")
        self.kind = kind
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.batch_norm, self.layer_norm = nn.BatchNorm1d(hidden), nn.LayerNorm(hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden * (2 if kind == "jk-cat" else 1), classes)

    def messages(self, x: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's output, and what the last aggregation mixes."""
        early = torch.sparse.mm(adjacency, x @ self.first.weight.t()) + self.first.bias
        early = functional.dropout(early.relu(), 0.5, self.training)
        return early, early @ self.second.weight.t()

    def finish(self, aggregate: Tensor, early: Tensor) -> Tensor:
        """The logits from the last aggregation on."""
        a = aggregate + self.second.bias
        if self.kind == "bn-residual":
            a = self.batch_norm(a) + early
        if self.kind == "layer-norm":
            a = self.layer_norm(a + early)
        a = functional.gelu(a) if self.kind == "gelu" else a.relu()
        if self.kind == "mlp":
            a = self.middle(a).relu()
        return self.head(torch.cat([early, a], dim=1) if self.kind == "jk-cat" else a)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        early, messages = self.messages(x, adjacency)
        return self.finish(torch.sparse.mm(adjacency, messages), early)


def trained(data: Data, kind: str, hidden: int, epochs: int, seed: int = 0) -> HeadModel:
    """A model trained on split 0, with the parameters of its best validation accuracy."""
    torch.manual_seed(seed)
    model = HeadModel(data.x.shape[1], hidden, int(data.y.max()) + 1, kind)
    adjacency = matrix(data, weights(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    x, y = data.x.float(), data.y
    train, val = data.train_mask[:, 0], data.val_mask[:, 0]
    best, state = -1.0, model.state_dict()
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x, adjacency)[train], y[train]).backward()
        optimizer.step()
        if epoch % 5 == 4 or epoch == epochs - 1:
            model.eval()
            with torch.no_grad():
                right = float((model(x, adjacency).argmax(1) == y)[val].float().mean())
            if right > best:
                best, state = right, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


def entries(data: Data) -> tuple[Tensor, Tensor]:
    """Sources and recipients of the entries, sorted by recipient."""
    source, recipient = data.edge_index
    order = (recipient * data.num_nodes + source).argsort(stable=True)
    return source[order], recipient[order]


def weights(data: Data) -> Tensor:
    """Â of the entries: 1 / √(d d′)."""
    source, recipient = entries(data)
    degree = torch.bincount(recipient, minlength=data.num_nodes).double()
    return (degree[source] * degree[recipient]).rsqrt().float()


def matrix(data: Data, values: Tensor) -> Tensor:
    """A sparse N × N matrix with these values on the entries."""
    source, recipient = entries(data)
    index = torch.stack([recipient, source])
    size = (data.num_nodes, data.num_nodes)
    return torch.sparse_coo_tensor(index, values, size, is_coalesced=True, check_invariants=False)


def head_exposure(model: HeadModel, data: Data) -> Exposure:
    """The exposure by algebra; its replay runs the model's own modules in float32."""
    with torch.no_grad():
        early, messages = model.messages(data.x.float(), matrix(data, weights(data)))
        logits = model(data.x.float(), matrix(data, weights(data)))
    aggregate = _mixture(data, messages)
    return aggregate.with_head(
        _graph(model, early), logits.double()[None], replay=_replay(model, data)
    )


def _replay(model: HeadModel, data: Data) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def replay(coefficients: Tensor) -> Tensor:
        early, messages = model.messages(data.x.float(), matrix(data, weights(data)))
        mixed = torch.sparse.mm(matrix(data, coefficients.float()), messages)
        return model.finish(mixed, early)

    return replay


def _mixture(data: Data, messages: Tensor) -> Exposure:
    source, recipient = entries(data)
    alpha, table, nodes = weights(data), messages.double(), data.num_nodes
    counts = torch.bincount(recipient, minlength=nodes)
    mixed = torch.zeros_like(table).index_add(0, recipient, alpha.double()[:, None] * table[source])
    numbers = torch.arange(nodes, dtype=torch.int32)
    return Exposure(
        groups=(Group("Â", "α = Â, h = the source's vector", "normalised adjacency"),),
        recipients=torch.arange(nodes),
        segments=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        rows=source.int(),
        coefficients=alpha[None],
        contributions=table[None],
        fixed_logits=torch.zeros(1, nodes, table.shape[1], dtype=torch.float64),
        frozen_logits=mixed[None],
        state=messages[None],
        messages=messages[None],
        message_rows=numbers,
        sources=numbers,
        origin="HeadModel",
    )


def _graph(model: HeadModel, early: Tensor) -> HeadGraph:
    """The model's head as operations."""
    made: list[Operation] = []

    def add(operation: Operation) -> int:
        made.append(operation)
        return len(made)

    def number(tensor: Tensor) -> Tensor:
        return tensor.detach().double()

    def unit(value: int, name: str = "relu") -> int:
        return add(Activation((value,), name, torch.zeros((), dtype=torch.float64)))

    width, skip = model.second.out_features, number(early)
    ones, bias = torch.ones(width, dtype=torch.float64), number(model.second.bias)
    if model.kind == "bn-residual":
        norm = model.batch_norm
        assert norm.running_var is not None and norm.running_mean is not None
        factor = number(norm.weight) / (number(norm.running_var) + norm.eps).sqrt()
        shift = (bias - number(norm.running_mean)) * factor + number(norm.bias)
        last = unit(add(Scale((0,), factor, shift + skip)))
    elif model.kind == "layer-norm":
        start, norm_ = add(Scale((0,), ones, bias + skip)), model.layer_norm
        weight, shift = number(norm_.weight), number(norm_.bias)
        last = unit(add(LayerNorm((start,), width, weight, shift, norm_.eps)))
    else:
        last = unit(add(Scale((0,), ones, bias)), "gelu" if model.kind == "gelu" else "relu")
    if model.kind == "mlp":
        middle = Affine((last,), number(model.middle.weight), number(model.middle.bias))
        last = unit(add(middle))
    if model.kind == "jk-cat":
        last = add(Concatenate((add(Constant((), skip)), last)))
    add(Affine((last,), number(model.head.weight), number(model.head.bias)))
    return HeadGraph(width, tuple(made))


@dataclass(frozen=True)
class Journal:
    """One JSON file a row; without a folder nothing is kept."""

    folder: Path | None

    def read(self, name: str) -> dict[str, Any] | None:
        """The row that was written under this name."""
        path = None if self.folder is None else self.folder / f"{name}.json"
        if path is None or not path.exists():
            return None
        try:
            row = parse_json(path.read_bytes())
        except ValueError as error:
            raise FileFormatError(f"{path} is no row of a bench; delete it: {error}") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{path} is no row of a bench; delete it")
        return row

    def write(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row."""
        if self.folder is not None:
            with replacing(self.folder / f"{name}.json", folders=True) as draft:
                draft.write_text(json.dumps(row, ensure_ascii=False, indent=1) + "\n", "utf-8")
