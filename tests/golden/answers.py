"""What is recorded beside exposures: LPs, heads, labels, diagnoses, repairs, the study's tables."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import gnn_repair as gr
from gnn_repair.cli import main as command_line
from gnn_repair.methods import METHODS
from gnn_repair.repair import REPAIRS
from gnn_repair.repair.baselines import LabelPropagation
from gnn_repair.study import PAPER, TABLES, Store, override
from tests.campaigns.lp_families import FAMILIES, draw
from tests.golden import galleries
from tests.golden.record import FEWER, numbers, of_frame, of_range, of_solution
from tests.helpers.oracle import head_cases, head_graph, label_cases
from tests.helpers.repair import contract_exposures, planted_graphs, repaired_models, toy_exposures
from tests.helpers.study import tiny

Entries = dict[str, Callable[[], Any]]
SEED, LPS = 20, 36
EXPANDED = 24
"""Nodes whose logits are recorded in full where there are many."""
RESULTS = galleries.TESTS.parent / "results"
FORMATS = ("markdown", "csv", "json", "latex")
SMALL = 20_000
"""Characters of a text that is recorded whole, beside its digest."""
FIRST = {"effort": "fast"}
Budget = type(gr.SetTranslation().budget)


def lps() -> Entries:
    """A few LPs of every family, by our solver; of some also by the reference."""
    found: Entries = {name: partial(_lps, name, "simplex") for name in FAMILIES}
    some = ("gaussian", "three groups", "planted ties", "integers")
    return found | {f"{name}, highs": partial(_lps, name, "highs") for name in some}


def _lps(name: str, method: Any) -> Any:
    exposure, _ = draw(name, SEED, LPS)
    solution = gr.solve(exposure, "all", method=method)
    record = of_solution(solution)
    return record | {"checked": bool(solution.check(exposure).ok)}


def heads() -> Entries:
    """Every kind of nonlinear head by hand, one and two groups; labels and ranges of some."""
    found: Entries = {}
    for kind in (*head_cases.KINDS, "opaque"):
        for groups in (1, 2):
            found[f"{kind}, {groups}"] = partial(_head, kind, groups, "fast")
    for kind in ("relu", "jk_max", "layer_norm", "normalize"):
        found[f"{kind}, cases"] = partial(_head, kind, 1, "full")
        for outputs in ("labels", "values"):
            found[f"{kind} as {outputs}"] = partial(_head_outputs, kind, outputs)
    return found


def _head(kind: str, groups: int, effort: str) -> Any:
    # Without its model, which computes in float32: that differs from processor to processor.
    exposure = replace(head_cases.tailed(kind, 4, groups), replay=None)
    solution = gr.solve(exposure, "all", torch.arange(0, 24, 3), effort=effort)
    return of_solution(solution) | {"checked": bool(solution.check(exposure).ok)}


def _head_outputs(kind: str, outputs: str) -> Any:
    exposure = head_cases.tailed(kind, 4)
    exposure = replace(exposure, outputs=outputs, replay=None)
    nodes = torch.arange(2, 8, 2)
    if outputs == "labels":
        return of_solution(gr.solve(exposure, "flip", nodes, **FIRST))
    return of_range(gr.value_range(exposure, nodes, **FIRST))


def labels() -> Entries:
    """Closed forms with several members, groups, thresholds and unknown truths."""
    return {
        f"{kind} {seed}": partial(_labels, kind, seed)
        for kind in ("labels", "values")
        for seed in range(6)
    }


def _labels(kind: str, seed: int) -> Any:
    exposure = label_cases.random_exposure(seed, groups=1 + seed % 3, kind=kind)
    truth = torch.randint(-1, 2, (7, 3), generator=torch.Generator().manual_seed(seed))
    solution = gr.solve(exposure, truth, threshold=0.3 * (seed % 2))
    found = of_solution(solution) | {"checked": bool(solution.check(exposure).ok)}
    found["skipped"] = solution.skipped
    if kind == "labels":
        found["reach"] = of_frame(gr.reach(exposure, truth).to_frame())
    return found | of_range(gr.value_range(exposure))


def diagnosis() -> Entries:
    """Reach, nearest reweightings, stable evidence, rankings and confusions of trained models."""
    found: Entries = {name: partial(_diagnosis, name) for name in ("gcn", "gat", "mixhop", "sage")}
    for kind in ("relu", "layer norm"):
        found[f"head: {kind}"] = partial(_head_diagnosis, kind)
    return found


def _diagnosis(backbone: str) -> Any:
    data, exposure = toy_exposures.toy_graph(), toy_exposures.toy_exposure(backbone)
    solution = gr.solve(exposure, data.y, data.test_mask)
    reach = gr.reach(exposure, data.y, data.test_mask)
    nearest = gr.nearest_reweighting(exposure, data.y, data.test_mask)
    stable = gr.stable_evidence(exposure, data.y, data.test_mask)
    return {
        "solution": of_solution(solution) | {"support": solution.support.tolist()},
        "reach": of_frame(reach.to_frame()),
        "nearest": {
            "status": [answer.status for answer in nearest],
            "moved": numbers([answer.moved for answer in nearest], FEWER),
            "least": numbers([answer.bound for answer in nearest], FEWER),
        },
        "stable": {
            "low": [numbers(sorted(answer.low.tolist()), 7) for answer in stable],
            "high": [numbers(sorted(answer.high.tolist()), 7) for answer in stable],
            "needed": [int(answer.indispensable.sum()) for answer in stable],
        },
        "confusion": gr.confusion_by_reach(solution, exposure, data.y).to_csv(),
        "ranking": gr.source_ranking(solution, exposure).to_csv(float_format="%.6g"),
        "precision": "float32",
        "words": [str(reach), str(solution), *map(str, nearest[:2]), str(solution[0])],
    }


def _head_diagnosis(kind: str) -> Any:
    data = head_graph.small_graph()
    exposure = gr.expose(head_graph.model_of(kind), data)
    nodes = torch.arange(0, 30, 6)
    solution = gr.solve(exposure, data.y, nodes, **FIRST)
    nearest = gr.nearest_reweighting(exposure, data.y, nodes)
    return {
        "solution": of_solution(solution),
        "nearest": [answer.status for answer in nearest],
        "confusion": gr.confusion_by_reach(solution, exposure, data.y).to_csv(),
        "precision": "float32",
    }


# What is trained ----------------------------------------------------------------------------------


def repairs() -> Entries:
    """Every repair on every kind of exposure, three epochs; repaired models on another graph."""
    found: Entries = {
        f"{name} on {kind}": partial(_repair, name, kind)
        for name in REPAIRS
        for kind in contract_exposures.KINDS
    }
    for name, method in REPAIRS.items():
        if method.takes_labels:
            found[f"{name} on labels"] = partial(_repair, name, "labels")
    for kind in repaired_models.KINDS:
        found[f"repaired {kind}"] = partial(_repaired, kind)
    return found


def small(repair: Any, epochs: int = 3) -> Any:
    """The repair with few epochs and few units, made to learn something."""
    names = {field for field in ("budget", "hidden", "dropout") if hasattr(repair, field)}
    if "budget" not in names:
        return repair
    budget = replace(repair.budget, epochs=epochs, learning_rate=0.03, epoch_zero=False)
    return replace(repair, budget=budget, **({"hidden": 5} if "hidden" in names else {}))


def _repair(name: str, kind: str) -> Any:
    exposure, y, *masks = contract_exposures.world("by-hand" if kind == "labels" else kind)
    if kind == "labels":  # some of them unknown
        exposure = replace(exposure, outputs="labels")
        y = (torch.arange(y.numel() * 4).view(-1, 4) * 5 % 7 < 3).double()
        y[::5, 1] = torch.nan
    fitted = small(REPAIRS[name]()).fit(exposure, y, *masks, device="cpu", batch_size=3)
    frame = {
        column: numbers(values, 7) for column, values in fitted.to_frame().astype(float).items()
    }
    return of_fitted(fitted, exposure) | {"frame": frame, "words": str(fitted).split("\n")}


def of_fitted(fitted: Any, exposure: Any) -> dict[str, Any]:
    """What a repair says, of some nodes in full and of all in sum."""
    logits = fitted.member_logits(exposure)
    weights = torch.cos(torch.arange(logits.shape[1] * logits.shape[2]).double())
    predicted = fitted.predict(exposure)
    predicted = predicted.unsqueeze(0) if len(logits) == 1 else predicted
    return {
        "precision": "float32",
        "logits": numbers(logits[:, :EXPANDED], 7),
        "all": numbers((logits.flatten(1) * weights).sum(1), 7),
        "best_epoch": fitted.best_epoch.tolist(),
        "predicted": ["".join(map(str, row)) for row in predicted.int().flatten(1).tolist()],
    }


def _repaired(kind: str) -> Any:
    torch.manual_seed(0)
    model, data = repaired_models.KINDS[kind]().eval(), repaired_models.graph(0, 40)
    fitted = repaired_models.fitted_on(model, data)
    other = repaired_models.graph(1, 25)
    served = gr.repaired(model, fitted)(other.x, other.edge_index)
    return {"precision": "float32", "served": numbers(served, 7)}


def ladder() -> Entries:
    """The ladder on planted graphs, and what else is fitted in folds."""
    brief = small(planted_graphs.LADDER, 5)
    in_folds = gr.CrossFitted(small(gr.SetTranslation()), folds=2)
    smoothing = gr.CorrectAndSmooth(layers=3)
    usual = gr.EvidenceLadder(hidden=5, folds=2, budget=small(gr.EvidenceLadder(), 2).budget)
    found: Entries = {
        told: partial(_ladder, brief, told) for told in ("features", "labels", "nothing")
    }
    return found | {
        "all rungs": partial(_ladder, usual, "labels"),
        "set translation in folds": partial(_ladder, in_folds, "labels"),
        "refit head in folds": partial(_ladder, gr.CrossFitted(small(gr.RefitHead()), 3), "labels"),
        "smoothing in folds": partial(_ladder, gr.CrossFitted(smoothing, folds=3), "labels"),
        "label propagation": partial(_ladder, LabelPropagation(layers=4), "labels"),
    }


def _ladder(method: Any, told: str) -> Any:
    data, exposure = planted_graphs.planted(told)[1], planted_graphs.planted_exposure(told)
    masks = data.train_mask, data.val_mask
    fitted = method.fit(exposure, data.y, *masks, data=data, device="cpu")
    record = of_fitted(fitted, exposure) | {"precision": "trained"}
    if hasattr(fitted, "weights"):
        record["weights"] = numbers(fitted.weights, 7)
        record["temperature"] = numbers(fitted.temperature, 7)
        record["chosen"] = list(fitted.chosen)
        record["out_of_fold"] = {n: numbers(v, 7) for n, v in fitted.out_of_fold.items()}
        record["words"] = [str(fitted), *fitted.findings().advice()]
    return record


# The study ----------------------------------------------------------------------------------------


def study() -> Entries:
    """Every table of the committed results in every form, and a small study run anew."""
    found: Entries = {
        f"{path.stem}, {form}": partial(_tables, path, form)
        for path in sorted(RESULTS.glob("*.jsonl"))
        for form in FORMATS
    }
    every = partial(_small_study, ("oracle", *METHODS), ["sage"], 1)
    return found | {"a small study": _small_study, "every method": every}


def _tables(path: Path, form: str) -> Any:
    text = printed("study", "tables", *TABLES, "--store", str(path), "--format", form)
    digest = hashlib.sha256(text.encode()).hexdigest()
    whole = form == "markdown" and len(text) < SMALL
    return {"sha256": digest, "text": text.split("\n") if whole else [text[:200]]}


def printed(*arguments: str) -> str:
    """What the command line prints."""
    out = io.StringIO()
    with patch.object(sys, "argv", ["gnn-repair", *arguments]), redirect_stdout(out):
        try:
            command_line()
        except SystemExit as end:
            out.write(f"exit code {end.code}\n" if end.code else "")
    return out.getvalue()


def _small_study(methods: Any = None, backbones: Any = ("gcn", "h2gcn"), last: int = 2) -> Any:
    """Splits trained together, of a graph whose masks differ in size."""
    graph = tiny.tiny_graph()
    graph.test_mask[:9, 0] = graph.val_mask[40:44, 2] = False
    with tempfile.TemporaryDirectory() as folder:
        gr.run_study({"mine": graph}, backbones, [0, last], store=folder, methods=methods,
                     protocol=override(PAPER, tiny.TINY), device="cpu")  # fmt: skip
        frame, held = gr.read_results(folder), Store(folder)
        (digest,) = held.digests()
        beside = {
            str(r.run): [r.graph, r.members, r.stack, sorted(held.models(digest, r.run))]
            for r in held.records(digest)
        }
    frame = frame[~frame["metric"].str.contains("seconds")]
    lines = frame.sort_values(list(frame.columns[:-1])).itertuples(index=False)
    named = {" ".join(map(str, (*row[:3], *row[4:7]))): float(row[7]) for row in lines}
    held_beside = {"records": json.dumps(beside, sort_keys=True)}
    return held_beside | {
        "precision": "trained",
        "values": {k: numbers([v], 7) for k, v in named.items()},
    }


PARTS: dict[str, Callable[[], Entries]] = {
    "lps": lps, "heads": heads, "labels": labels, "diagnosis": diagnosis, "repairs": repairs,
    "ladder": ladder, "study": study,
}  # fmt: skip
