"""Files that version 0.2 wrote, and what loading each of them gives.

The files are committed and stay as they are: a file is written only where it is missing, so that
later versions go on reading what this one wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from gnn_repair.oracle import Solution, ValueRange
from gnn_repair.repair import REPAIRS
from tests.golden import galleries  # which puts the galleries' folders on the path
from tests.golden.answers import of_fitted, small
from tests.golden.record import FEWER, numbers, of_exposure, of_range, of_solution

FOLDER = Path(__file__).parent / "files"
NODES = torch.arange(0, 30, 5)


@cache
def trained() -> tuple[Any, Any, Any, Any]:
    """Data, backbone, budget and the frozen model, of two members."""
    data = galleries.toy_exposures.toy_graph()
    like = galleries.toy_exposures.BACKBONES["sage"](galleries.toy_exposures.Shape(4, 2))
    budget = replace(like.budget, epochs=3)
    if (FOLDER / "frozen").exists():  # not trained anew: repairs know the very weights
        return data, like, budget, gr.Frozen.load(FOLDER / "frozen", data, like, budget, 0)
    return data, like, budget, gr.train_backbone(like, data, (0, 1), device="cpu", budget=budget)


@cache
def exposure() -> Any:
    kept = FOLDER / "exposure"
    return gr.Exposure.load(kept) if kept.exists() else gr.expose(trained()[3])


class Bent(nn.Module):
    """A ReLU after the last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.lin = GCNConv(9, 5), GCNConv(5, 5), nn.Linear(5, 3)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.lin(self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu())


@cache
def bent() -> Any:
    torch.manual_seed(6)
    return Bent().double().eval()


@cache
def tailed() -> Any:
    kept = FOLDER / "tailed-exposure"
    if kept.exists():
        return gr.Exposure.load(kept).bind(bent(), trained()[0])
    return gr.expose(bent(), trained()[0])


def pooled() -> Any:
    torch.manual_seed(6)
    model = galleries.pool_models.Pooled(galleries.pool_models.global_mean_pool)
    return gr.expose(model.eval(), Batch.from_data_list(galleries.pool_models.GRAPHS[:5]))


def typed() -> Any:
    torch.manual_seed(1)
    return gr.expose(*galleries.typed_models.build("HeteroConv by sum"))


def several(kind: str) -> Any:
    return replace(exposure(), outputs=kind)


@cache
def fitted(name: str) -> Any:
    """A repair of the two members; ``ladder`` reads the graph as well."""
    data = trained()[0]
    given = (exposure(), data.y, data.train_mask, data.val_mask)
    if name == "ladder":
        method = small(gr.EvidenceLadder(rungs=("summary", "labels"), folds=2), 2)
        return method.fit(*given, data=data, device="cpu")
    if name == "folds":
        return gr.CrossFitted(small(gr.SetTranslation()), folds=2).fit(*given, device="cpu")
    return small(REPAIRS[name]()).fit(*given, device="cpu")


def repaired() -> Any:
    data = trained()[0]
    half = torch.arange(30) % 2 == 0
    repair = small(gr.SetTranslation()).fit(tailed(), data.y, half, ~half, device="cpu")
    return gr.repaired(bent(), repair)


def served(model: Any) -> dict[str, Any]:
    data = trained()[0]
    return {"precision": "float32", "served": numbers(model(data.x, data.edge_index), 7)}


def of_frozen(frozen: Any) -> dict[str, Any]:
    return {"precision": "float32", "logits": numbers(gr.expose(frozen).frozen_logits, 7)}


def of_checked(against: Callable[[], Any], solution: Any) -> dict[str, Any]:
    """A solution with what its own check says of it."""
    found = of_solution(solution) | {"checked": bool(solution.check(against()).ok)}
    sums = numbers([float(solution.coefficients.sum())], FEWER)
    return found | {"terms": [int(solution.terms.sum()), len(solution.terms)], "lambda": sums}


def solved() -> Any:
    return gr.solve(exposure(), "all", NODES)


def head_solved() -> Any:
    return gr.solve(tailed(), "all", NODES[:3], effort="fast")


def saved(make: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda path: make().save(path)


def flipped() -> Any:
    return gr.solve(several("labels"), "flip", NODES)


def ranged() -> Any:
    return gr.value_range(several("values"), NODES)


Kept = tuple[Callable[[Path], None], Callable[[Path], Any]]
"""How a file is written, and what is recorded of it once it is read."""

KEPT: dict[str, Kept] = {
    "exposure": (saved(exposure), lambda path: of_exposure(gr.Exposure.load(path))),
    "labels-exposure": (
        saved(lambda: several("labels")), lambda path: of_exposure(gr.Exposure.load(path)),
    ),
    "pooled-exposure": (saved(pooled), lambda path: of_exposure(gr.Exposure.load(path))),
    "typed-exposure": (saved(typed), lambda path: of_exposure(gr.Exposure.load(path))),
    "tailed-exposure": (saved(tailed), lambda path: of_exposure(gr.Exposure.load(path))),
    "frozen": (saved(lambda: trained()[3]), lambda path: of_frozen(trained()[3])),
    **{
        f"repair-{name}": (
            saved(partial(fitted, name)), lambda p: of_fitted(gr.FittedRepair.load(p), exposure()),
        )
        for name in (*REPAIRS, "folds", "ladder")
    },
    "solution": (
        saved(solved), lambda path: of_checked(exposure, gr.Solution.load(path)),
    ),
    "head-solution": (
        saved(head_solved), lambda path: of_checked(tailed, type(head_solved()).load(path)),
    ),
    "label-solution": (
        saved(flipped),
        lambda path: of_checked(partial(several, "labels"), Solution.load(path)),
    ),
    "value-range": (saved(ranged), lambda path: of_range(ValueRange.load(path))),
    "baseline": (
        lambda path: gr.save_baseline(solved(), path),
        lambda path: {"words": [str(gr.compare(solved(), path, exposure()))]},
    ),
    "head-baseline": (
        lambda path: gr.save_baseline(head_solved(), path),
        lambda path: {"words": [str(gr.compare(head_solved(), path))]},
    ),
    "repaired-model": (
        saved(repaired), lambda path: served(gr.RepairedModel.load(path, Bent().double())),
    ),
}  # fmt: skip


def of_files() -> dict[str, Callable[[], Any]]:
    """What each file gives; a file that is missing is written first."""
    return {name: partial(_read, name) for name in KEPT}


def _read(name: str) -> Any:
    write, read = KEPT[name]
    path = FOLDER / name
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        write(path)
    try:
        return read(path)
    except gr.errors.GnnRepairError as refusal:  # what a version no longer has, in one sentence
        return {"refused": type(refusal).__name__}
