"""Every public function with every argument wrong: a sentence of ours, never a raw error.

One good call of each function is written down; each bad call changes one argument of it. It must
raise a :class:`GnnRepairError` whose message is one sentence, or be one that ``ACCEPTED`` names
with the reason why it is no mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import gnn_repair as gr
from gnn_repair import study
from gnn_repair.budget import Budget
from gnn_repair.checks import check_data
from gnn_repair.datasets import stratified_splits
from gnn_repair.errors import GnnRepairError
from gnn_repair.oracle.solution import Solution
from gnn_repair.reporting import gather, report_results, write_figures
from gnn_repair.results.store import merge, pack
from tests.helpers.study.planted_records import make_record, stored
from tests.helpers.study.tiny import tiny_graph

NODES, CLASSES, MEMBERS = 60, 3, 2
JUNK: dict[str, Any] = {
    "None": None,
    "int": 3,
    "minus": -1,
    "nan": float("nan"),
    "text": "no such thing",
    "bytes": b"x",
    "list": [object()],
    "dict": {"a": 1},
    "object": object(),
    "class": dict,
}
"""What is wrong for almost everything."""
TENSORS: dict[str, Any] = {
    "empty": torch.empty(0),
    "scalar": torch.tensor(1.5),
    "floats": torch.full((NODES,), 0.5),
    "nans": torch.full((NODES,), float("nan")),
    "short": torch.zeros(NODES - 1, dtype=torch.long),
    "cube": torch.zeros(2, 2, 2, dtype=torch.long),
    "complex": torch.zeros(NODES, dtype=torch.complex64),
    "far": torch.full((NODES,), 10**6),
    "array": np.zeros(3),
}
"""What is wrong for most tensors."""
MASKS: dict[str, Any] = {
    "short mask": torch.ones(NODES - 1, dtype=torch.bool),
    "wide mask": torch.ones(NODES, MEMBERS + 3, dtype=torch.bool),
    "empty mask": torch.zeros(NODES, dtype=torch.bool),
}


@dataclass(frozen=True)
class Good:
    """A call that works, and for each argument what is wrong for it."""

    title: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    wrong: dict[str, dict[str, Any]]


def junk(*fine: str, **more: Any) -> dict[str, Any]:
    """``JUNK`` but for what is fine here, and more."""
    return {label: value for label, value in JUNK.items() if label not in fine} | more


def labels(*fine: str) -> dict[str, Any]:
    return {k: v for k, v in {**junk(), **TENSORS}.items() if k not in fine}


def nodes(*fine: str) -> dict[str, Any]:
    every = {**junk("None", "int"), **TENSORS, **MASKS}  # a number is one node
    return {label: value for label, value in every.items() if label not in fine}


FRACTIONS = junk("minus", one=1.0, minus=-0.1, infinite=float("inf"))
COUNTS = junk("None", "int", zero=0, half=1.5, minus=-1, true=True)
BUDGET = Budget(epochs=1, patience=None, learning_rate=1e-2, weight_decay=0.0)


class LinkNetwork(torch.nn.Module):
    """Dot products of embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = GCNConv(width, 4)

    def encode(self, x: Any, edge_index: Any) -> Any:
        return self.conv(x, edge_index)

    def decode(self, z: Any, links: Any) -> Any:
        return (z[links[0]] * z[links[1]]).sum(1)


def calls_in(scratch: Any) -> Iterator[Good]:
    """Every call; what is slow to make is made once."""
    data = tiny_graph(NODES, CLASSES)
    frozen = gr.train_backbone("sgc", data, [0, 1], device="cpu", budget=BUDGET)
    exposure = gr.expose(frozen)
    test, train, val = data.test_mask[:, :2], data.train_mask[:, :2], data.val_mask[:, :2]
    solution = gr.solve(exposure, data.y, test)
    evidence = gather(exposure, data.y, test)
    text, folder, saved = scratch / "text", scratch / "folder", scratch / "frozen"
    text.write_text("nothing of ours")
    folder.mkdir()
    frozen.save(saved)
    store, baseline = study.Store(scratch / "store"), scratch / "baseline.parquet"
    store.begin(study.PAPER)
    gr.save_baseline(solution, baseline)
    pairs = torch.tensor([[0, 1, 2], [3, 4, 5]])
    several = replace(exposure, outputs="labels")
    truths = torch.nn.functional.one_hot(data.y, CLASSES).bool()
    network, linear = LinkNetwork(data.x.shape[1]), torch.nn.Linear(3, 3)
    usual = {
        "backbone": "sgc", "baseline": baseline, "budget": BUDGET, "data": data, "device": "cpu",
        "evidence": evidence, "exposure": exposure, "links": pairs, "mask": test, "node": 0,
        "nodes": test, "protocol": study.PAPER, "solution": solution, "store": store.root,
        "target": data.y, "threads": 1, "train": train, "val": val, "y": data.y,
    }  # fmt: skip
    paths = junk("text", folder=folder, file=text, long="x" * 5000, nul="\0", absent=scratch / "no")
    targets = junk("text", folder=folder, long="x" * 5000, nul="\0", below=text / "x")
    masks = {**junk(), **TENSORS, **MASKS}
    some, few = nodes("short", "empty mask"), junk("None", few=["a"])
    numbered, whole = junk("int", half=1.5), junk("None", "class")
    wrong_for: dict[str, dict[str, Any]] = {
        "ax": junk("None"), "backbone": junk("text", "None"), "batch_size": COUNTS,
        "budget": junk(), "class_names": few, "data": junk(tensor=data.x),
        "dataset": junk("text", "None"), "device": junk(meta="meta", tpu="tpu", empty=""),
        "dropout": FRACTIONS, "engine": junk("None"), "evidence": junk(), "exposure": junk(),
        "forward": whole, "hidden": COUNTS, "hops": junk(),
        "labels": junk("None", far=[CLASSES], half=[0.5], empty=[]), "like": junk(),
        "mask": some, "member": junk(two=2, half=0.5, true=True), "node_names": few,
        "nodes": some, "on_progress": whole, "path": targets, "protocol": junk(),
        "results": junk("None"), "seed": numbered, "selection": junk("text", "None"),
        "solution": junk(), "stack": COUNTS, "target": labels(), "threads": COUNTS,
        "title": junk("text", "None"), "train": masks, "val": masks, "y": labels(),
    }  # fmt: skip
    wrong_for |= {"outputs": wrong_for["labels"]}

    def good(
        function: Callable[..., Any], wrong: str = "", given: Any = (), title: str = "", **more: Any
    ) -> Good:
        """``wrong``: arguments with the usual faults of their names; ``more``: with others.

        ``given``: arguments that are not the usual ones of their names.
        """
        names = inspect.signature(function).parameters
        known = {name: usual[name] for name in usual.keys() & names}
        faults = {name: wrong_for[name] for name in wrong.split()} | more
        return Good(title or function.__name__, function, known | dict(given), faults)

    yield good(
        gr.load_dataset,
        given={"name": "cora", "root": scratch},
        name=junk(empty="", path="../cora"),
        root={
            **junk("None", "text", "dict", file=text, empty="", long="x" * 5000, nul="\0"),
            "user": "~nosuchuser",
        },
    )
    yield good(
        gr.train_backbone,
        "data device on_progress",
        {"splits": [0]},
        backbone=junk(empty="", module=linear),
        splits=junk("None", far=[99], minus=[-1], half=[0.5], text=["0"], empty=[]),
        budget=junk("None"),
        seed=junk("int", "minus", half=1.5),
    )
    loading = {"path": saved, "like": gr.BACKBONES["sgc"](), "seed": 0}
    yield good(gr.Frozen.load, "like budget seed", loading, "Frozen.load", path=paths, data=junk())
    for kind in (gr.FittedRepair, gr.Exposure, Solution):
        yield good(kind.load, title=f"{kind.__name__}.load", path=paths)
    yield good(
        gr.expose,
        "hops forward",
        {"model": linear},
        model=junk(linear=linear),
        data=junk("None", tensor=data.x),
        tolerance=junk("None", "int", zero=0.0),
        outputs=junk("None"),
    )
    yield good(gr.expose, title="expose frozen", given={"data": None}, model=junk())
    no_labels = junk(frozen=frozen, classes=exposure)
    yield good(
        gr.solve,
        "nodes labels threads",
        {"exposure": several, "y": truths},
        "solve labels",
        exposure=no_labels,
        y={**labels(), "two": torch.full((NODES, CLASSES), 2)},
        threshold=junk("int", "minus"),
    )
    yield good(gr.value_range, "nodes outputs threads", {"exposure": several}, exposure=no_labels)
    odd = {"loop": [[0], [0]], "far": [[0], [10**6]], "minus": [[0], [-1]]}
    odd = {label: torch.tensor(link) for label, link in odd.items()}
    yield good(
        gr.expose_links,
        "data hops",
        {"model": network},
        model=junk(linear=linear),
        links={**junk("None"), **TENSORS, **odd, "none": torch.zeros(2, 0, dtype=torch.long)},
        decoder=junk("None", wide=lambda z, links: z[links[0]] * z[links[1]]),
        vary=junk(both="both"),
        forward=junk("None"),
        tolerance={"zero": 0.0},
    )
    effort = {"none": None, "word": "max"}
    yield good(
        gr.solve, "y nodes threads", exposure=junk(frozen=frozen), method=junk(), effort=effort
    )
    yield good(gr.reach, "exposure y mask")
    yield good(gr.class_reach, "exposure nodes")
    either = nodes("short", "empty mask", "None")
    yield good(gr.diagnose, given={"model": exposure}, model=junk(), y=labels("None"), nodes=either)
    for ask in (gr.nearest_reweighting, gr.stable_evidence):
        yield good(ask, "exposure target nodes")
    yield good(solution.check, "exposure")
    yield good(solution.for_node, node=junk(far=10**6))
    yield good(
        study.solve_oracle_sharded,
        "exposure target nodes engine",
        {"shards": 2},
        shards=junk("int", zero=0, half=1.5),
        threads=junk("None", "int", zero=0),
    )
    for kind in (gr.Reweighting, gr.SetTranslation, gr.NodeTranslation, gr.RefitHead):
        own = {"budget", "dropout", "seed", "hidden"} & inspect.signature(kind).parameters.keys()
        yield good(kind, " ".join(own))
        fit, name = kind(budget=BUDGET).fit, f"{kind.__name__}.fit"
        arguments = "exposure y train val batch_size device on_progress"
        yield good(fit, arguments, {"data": None}, name)
    grid = {"datasets": {"mine": data}, "backbones": ["sgc"], "splits": [0], "store": scratch / "n"}
    datasets = {"none": {"mine": None}, "tensor": {"mine": data.x}, "path": {"../x": data}}
    broken = Data(**{**data.to_dict(), "x": torch.full_like(data.x, torch.nan)})
    datasets |= {"nan": {"mine": data, "broken": broken}, "bare": {"mine": Data(x=data.x)}}
    models = {"module": {"m": linear}, "none": {"m": None}, "abstract": {"m": gr.Backbone}}
    yield good(
        gr.run_study,
        "protocol engine stack",
        grid,
        datasets=junk(empty={}, names=["corra"], **datasets),
        backbones=junk(names=["gaat"], empty=[], **models),
        splits=junk(far=[99], half=[0.5], text=["0"], empty=[], endless=range(10**9)),
        store=junk("text", file=text, long="x" * 5000, nul="\0"),
        methods=junk("None", names=["magic"]),
        device=junk(meta="meta", empty=""),
        watcher=junk("None"),
    )
    digests = junk("None", digest="0" * 12)
    yield good(gr.read_results, given={"protocol": None}, store=paths, protocol=digests)
    exported = {"path": scratch / "a.csv", "protocol": None}
    endings = {**targets, "ending": "x.xls", "text": "x"}
    yield good(study.export_results, "", exported, store=paths, path=endings, protocol=junk("None"))
    jsonl = {"source": store.root, "path": scratch / "a.jsonl"}
    yield good(pack, "path", jsonl, source=paths, digest=junk("None"))
    yield good(
        merge,
        given={"sources": [store.root], "store": scratch / "merged"},
        sources=junk("dict", path="x", absent=[scratch / "no"], file=[text]),
        store=junk("text", file=text, nul="\0"),
    )
    yield good(study.Store, root=junk("text", file=text, long="x" * 5000, nul="\0"))
    settings = junk("dict", one=["x"], number=[3], deep=["a." * 99 + "=1"])
    yield good(study.override, "protocol", {"assignments": []}, assignments=settings)
    yield good(study.read_protocol, given={"path": text}, path=paths, base=junk())
    planned = {"store": store, "runs": []}
    optional = junk("None")
    yield good(
        study.make_plan, "protocol stack", planned, store=junk(), runs=junk(), methods=optional
    )
    yield good(study.make_tables, given={"records": []}, records=junk(), names=optional)
    yield good(study.ProcessEngine, jobs=COUNTS)
    edges = {"floats": torch.zeros(2, 3), "far": torch.full((2, 3), 10**6), "flat": data.y}
    yield good(
        gather,
        "exposure y member",
        nodes=nodes("short"),
        answers=optional,
        repairs=junk("None", none={"a": None}, name={3: data.x}, shape={"a": data.x}),
        edge_index=junk("None", **edges),
    )
    yield good(
        gr.report,
        "path node_names results dataset backbone title selection",
        {"path": scratch / "p.html"},
        class_names=junk("None", "bytes", few=["a"]),
    )
    held = stored(scratch / "held", make_record("cora", "gcn", 0))
    overview = {"results": gr.read_results(held.root), "path": scratch / "q.html"}
    yield good(report_results, "path title", overview, results=junk())
    yield good(
        write_figures,
        "evidence class_names",
        {"folder": scratch / "figures", "formats": ["svg"], "node": None},
        folder=junk("text", file=text, nul="\0"),
        node=junk("None", "int", far=10**6),
        formats=junk(unknown=["xyz"]),
    )
    yield good(gr.save_baseline, "path", {"path": scratch / "b"}, solution=junk(exposure=exposure))
    yield good(gr.compare, "solution", baseline=paths, exposure=optional)
    yield good(gr.confusion_by_reach, "solution y", exposure=junk(frozen=frozen))
    yield good(gr.source_ranking, "solution", exposure=junk(frozen=frozen))
    yield good(
        gr.plots.node,
        "exposure class_names member ax",
        title="plots.node",
        node=junk("int", far=10**6),
        target=labels("None"),
        repairs=optional,
    )
    yield good(gr.plots.reach, "exposure y nodes member ax", title="plots.reach")
    foreign = junk(solution=solution)
    yield good(gr.plots.rungs, title="plots.rungs", fitted=foreign)
    yield good(gr.plots.changes, title="plots.changes", changes=foreign)
    yield good(gr.repaired, given={"model": linear, "fitted": None}, model=junk(), fitted=foreign)
    yield good(check_data, "data")
    yield good(
        stratified_splits,
        y=labels("short", "far"),
        ratios=junk(two=(1, 2), negative=(1, 2, -1), zero=(0, 0, 0), floats=(0.5, 0.5, "x")),
        seeds=junk("dict", half=[0.5], minus=[-1]),
    )


ACCEPTED: dict[str, str] = {
    "gather(nodes=int)": "one node",
    "plots.reach(nodes=int)": "one node",
    **{
        f"{name}(member=minus)": "counted from the end, as in any sequence"
        for name in ("gather", "plots.node", "plots.reach")
    },
    **{
        f"{name}.fit(val=short)": "node numbers"
        for name in ("Reweighting", "SetTranslation", "NodeTranslation", "RefitHead")
    },
}
"""Calls that look wrong and are not, with the reason."""


def verdict(good: Good, argument: str, label: str) -> str:
    """What is wrong with the answer to one bad call; empty where nothing is."""
    place = f"{good.title}({argument}={label})"
    try:
        good.function(**{**good.arguments, argument: good.wrong[argument][label]})
    except GnnRepairError as error:
        text = str(error)
        fair = text and "\n" not in text.strip() and len(text) < 1500
        return "" if fair else f"{place}: not one sentence: {text[:200]!r}"
    except Exception as error:
        return f"{place}: {type(error).__name__}: {str(error)[:100]!r}"
    return "" if place in ACCEPTED else f"{place}: accepted"


@pytest.mark.filterwarnings("ignore")
def test_a_bad_call_is_answered_with_a_sentence(tmp_path):
    torch.set_num_threads(1)
    calls = list(calls_in(tmp_path))
    faults = [
        verdict(good, argument, label)
        for good in calls
        for argument in good.wrong
        for label in good.wrong[argument]
    ]
    assert len(faults) > 900
    assert not any(faults), "\n" + "\n".join(filter(None, faults))
    public = {name for name in gr.__all__ if inspect.isfunction(getattr(gr, name))}
    assert public <= {good.title for good in calls}
