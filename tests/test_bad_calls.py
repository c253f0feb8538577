"""Every public function with every argument wrong: a sentence of ours, never a raw error.

One good call of each function is written down; each bad call changes one argument of it. It must
raise a :class:`GnnRepairError` whose message is one sentence, or be one that ``ACCEPTED`` names
with the reason why it is no mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
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


def build(scratch: Any) -> dict[str, Good]:
    """Every call; the slow parts are made once."""
    torch.set_num_threads(1)
    data = tiny_graph(NODES, CLASSES)
    frozen = gr.train_backbone("sgc", data, [0, 1], device="cpu", budget=BUDGET)
    exposure = gr.expose(frozen)
    test, train, val = data.test_mask[:, :2], data.train_mask[:, :2], data.val_mask[:, :2]
    solution = gr.solve(exposure, data.y, test)
    evidence = gather(exposure, data.y, test)
    text, folder = scratch / "text", scratch / "folder"
    text.write_text("nothing of ours")
    folder.mkdir()
    saved = scratch / "frozen"
    frozen.save(saved)
    store = study.Store(scratch / "store")
    store.begin(study.PAPER)
    paths = junk("text", folder=folder, file=text, long="x" * 5000, nul="\0", absent=scratch / "no")
    targets = junk("text", folder=folder, long="x" * 5000, nul="\0", below=text / "x")
    pairs = torch.tensor([[0, 1, 2], [3, 4, 5]])
    several = replace(exposure, outputs="labels")
    truths = torch.nn.functional.one_hot(data.y, CLASSES).bool()
    usual = {
        "backbone": "sgc", "budget": BUDGET, "data": data, "device": "cpu", "evidence": evidence,
        "exposure": exposure, "links": pairs, "mask": test, "node": 0, "nodes": test,
        "protocol": study.PAPER, "solution": solution, "store": store.root, "target": data.y,
        "threads": 1, "train": train, "val": val, "y": data.y
    }  # fmt: skip
    calls: dict[str, Good] = {}

    def good(title: str, function: Callable[..., Any], /, *own: Any, **wrong: Any) -> None:
        """``own``: the arguments that are not the usual ones of their names."""
        known = {
            name: usual[name] for name in usual.keys() & inspect.signature(function).parameters
        }
        calls[title] = Good(function, {**known, **dict(*own)}, wrong)

    network, linear = LinkNetwork(data.x.shape[1]), torch.nn.Linear(3, 3)
    some, device = nodes("short", "empty mask"), junk(meta="meta", tpu="tpu", empty="")
    member, few = junk(two=2, half=0.5, true=True), junk("None", few=["a"])
    ends = junk("None", far=[CLASSES], half=[0.5], empty=[])
    masks = {**junk(), **TENSORS, **MASKS}
    good(
        "load_dataset",
        gr.load_dataset,
        {"name": "cora", "root": scratch},
        name=junk(empty="", path="../cora"),
        root=junk(
            "None",
            "text",
            "dict",
            file=text,
            empty="",
            long="x" * 5000,
            nul="\0",
            user="~nosuchuser",
        ),
    )
    good(
        "train_backbone",
        gr.train_backbone,
        {"splits": [0]},
        backbone=junk(empty="", module=linear),
        data=junk(tensor=data.x),
        splits=junk("None", far=[99], minus=[-1], half=[0.5], text=["0"], empty=[]),
        device=device,
        budget=junk("None"),
        seed=junk("int", "minus", half=1.5),
        on_progress=junk("None", "class"),
    )
    good(
        "Frozen.load",
        gr.Frozen.load,
        {"path": saved, "like": gr.BACKBONES["sgc"](), "seed": 0},
        path=paths,
        data=junk(),
        like=junk(),
        budget=junk(),
        seed=junk("int", half=1.5),
    )
    for kind in (gr.FittedRepair, gr.Exposure, Solution):
        good(f"{kind.__name__}.load", kind.load, path=paths)
    good(
        "expose",
        gr.expose,
        {"model": linear},
        model=junk(linear=linear),
        data=junk("None", tensor=data.x),
        hops=junk(),
        forward=junk("None", "class"),
        tolerance=junk("None", "int", zero=0.0),
        outputs=junk("None"),
    )
    good(
        "solve labels",
        gr.solve,
        {"exposure": several, "y": truths},
        exposure=junk(frozen=frozen, classes=exposure),
        y={**labels(), "two": torch.full((NODES, CLASSES), 2)},
        nodes=some,
        labels=ends,
        threshold=junk("int", "minus"),
        threads=COUNTS,
    )
    good(
        "value_range",
        gr.value_range,
        {"exposure": several},
        exposure=junk(frozen=frozen, classes=exposure),
        nodes=some,
        outputs=ends,
        threads=COUNTS,
    )
    odd = {"loop": [[0], [0]], "far": [[0], [10**6]], "minus": [[0], [-1]]}
    odd = {label: torch.tensor(link) for label, link in odd.items()}
    good(
        "expose_links",
        gr.expose_links,
        {"model": network},
        model=junk(linear=linear),
        data=junk(tensor=data.x),
        links={**junk("None"), **TENSORS, **odd, "none": torch.zeros(2, 0, dtype=torch.long)},
        decoder=junk("None", wide=lambda z, links: z[links[0]] * z[links[1]]),
        vary=junk(both="both"),
        forward=junk("None"),
        hops=junk(),
        tolerance={"zero": 0.0},
    )
    good("expose frozen", gr.expose, {"data": None}, model=junk())
    good(
        "solve",
        gr.solve,
        exposure=junk(frozen=frozen),
        y=labels(),
        nodes=some,
        method=junk(),
        effort={"none": None, "word": "max"},
        threads=COUNTS,
    )
    good("reach", gr.reach, exposure=junk(), y=labels(), mask=some)
    good("class_reach", gr.class_reach, exposure=junk(), nodes=some)
    good(
        "diagnose",
        gr.diagnose,
        {"model": exposure},
        model=junk(),
        y=labels("None"),
        nodes=nodes("short", "empty mask", "None"),
    )
    for ask in (gr.nearest_reweighting, gr.stable_evidence):
        good(ask.__name__, ask, exposure=junk(), target=labels(), nodes=some)
    good("solution.check", solution.check, exposure=junk())
    good("solution.for_node", solution.for_node, node=junk(far=10**6))
    good(
        "solve_oracle_sharded",
        study.solve_oracle_sharded,
        {"shards": 2},
        exposure=junk(),
        target=labels(),
        nodes=some,
        shards=junk("int", zero=0, half=1.5),
        engine=junk("None"),
        threads=junk("None", "int", zero=0),
    )
    settings = {
        "budget": junk(),
        "dropout": FRACTIONS,
        "seed": junk("int", half=1.5),
        "hidden": COUNTS,
    }
    for kind in (gr.Reweighting, gr.SetTranslation, gr.NodeTranslation, gr.RefitHead):
        own = settings.keys() & inspect.signature(kind).parameters
        good(kind.__name__, kind, **{name: settings[name] for name in own})
        good(
            f"{kind.__name__}.fit",
            kind(budget=BUDGET).fit,
            {"data": None},
            exposure=junk(),
            y=labels(),
            train=masks,
            val=masks,
            batch_size=COUNTS,
            device=device,
            on_progress=junk("None", "class"),
        )
    datasets = {"none": {"mine": None}, "tensor": {"mine": data.x}, "path": {"../x": data}}
    good(
        "run_study",
        gr.run_study,
        {"datasets": {"mine": data}, "backbones": ["sgc"], "splits": [0], "store": scratch / "new"},
        datasets=junk(empty={}, names=["corra"], **datasets),
        backbones=junk(names=["gaat"], module={"m": linear}, none={"m": None}, empty=[]),
        splits=junk(far=[99], half=[0.5], text=["0"], empty=[], endless=range(10**9)),
        store=junk("text", file=text, long="x" * 5000, nul="\0"),
        methods=junk("None", names=["magic"]),
        protocol=junk(),
        device=junk(meta="meta", empty=""),
        engine=junk("None"),
        stack=COUNTS,
        watcher=junk("None"),
    )
    digests = junk("None", digest="0" * 12)
    good("read_results", gr.read_results, {"protocol": None}, store=paths, protocol=digests)
    good(
        "export_results",
        study.export_results,
        {"path": scratch / "a.csv", "protocol": None},
        store=paths,
        path={**targets, "ending": "x.xls", "text": "x"},
        protocol=junk("None"),
    )
    jsonl = {"source": store.root, "path": scratch / "a.jsonl"}
    good("pack", pack, jsonl, source=paths, path=targets, digest=junk("None"))
    good(
        "merge",
        merge,
        {"sources": [store.root], "store": scratch / "merged"},
        sources=junk("dict", path="x", absent=[scratch / "no"], file=[text]),
        store=junk("text", file=text, nul="\0"),
    )
    good("Store", study.Store, root=junk("text", file=text, long="x" * 5000, nul="\0"))
    good(
        "override",
        study.override,
        {"assignments": []},
        protocol=junk(),
        assignments=junk("dict", one=["x"], number=[3], deep=["a." * 99 + "=1"]),
    )
    good("read_protocol", study.read_protocol, {"path": text}, path=paths, base=junk())
    good(
        "make_plan",
        study.make_plan,
        {"store": store, "runs": []},
        store=junk(),
        protocol=junk(),
        runs=junk(),
        methods=junk("None"),
        stack=COUNTS,
    )
    good("make_tables", study.make_tables, {"records": []}, records=junk(), names=junk("None"))
    good("ProcessEngine", study.ProcessEngine, jobs=COUNTS)
    good(
        "gather",
        gather,
        exposure=junk(),
        y=labels(),
        nodes=nodes("short"),
        member=member,
        answers=junk("None"),
        repairs=junk("None", none={"a": None}, name={3: data.x}, shape={"a": data.x}),
        edge_index=junk(
            "None", floats=torch.zeros(2, 3), far=torch.full((2, 3), 10**6), flat=data.y
        ),
    )
    good(
        "report",
        gr.report,
        {"path": scratch / "p.html"},
        path=targets,
        class_names=junk("None", "bytes", few=["a"]),
        node_names=few,
        results=junk("None"),
        **dict.fromkeys(("dataset", "backbone", "title", "selection"), junk("text", "None")),
    )
    good(
        "report_results",
        report_results,
        {"results": gr.read_results(store.root), "path": scratch / "q.html"},
        results=junk(),
        path=targets,
        title=junk("text", "None"),
    )
    good(
        "write_figures",
        write_figures,
        {"folder": scratch / "figures", "formats": ["svg"], "node": None},
        evidence=junk(),
        folder=junk("text", file=text, nul="\0"),
        node=junk("None", "int", far=10**6),
        class_names=few,
        formats=junk(unknown=["xyz"]),
    )
    baseline = scratch / "baseline.parquet"
    gr.save_baseline(solution, baseline)
    saving = {"path": scratch / "b.parquet"}
    good("save_baseline", gr.save_baseline, saving, solution=junk(exposure=exposure), path=targets)
    good(
        "compare",
        gr.compare,
        {"baseline": baseline},
        solution=junk(),
        baseline=paths,
        exposure=junk("None"),
    )
    answered = {"solution": junk(), "exposure": junk(frozen=frozen)}
    good("confusion_by_reach", gr.confusion_by_reach, **answered, y=labels())
    good("source_ranking", gr.source_ranking, **answered)
    good(
        "plots.node",
        gr.plots.node,
        exposure=junk(),
        node=junk("int", far=10**6),
        target=labels("None"),
        repairs=junk("None"),
        class_names=few,
        member=member,
        ax=junk("None"),
    )
    good(
        "plots.reach",
        gr.plots.reach,
        exposure=junk(),
        y=labels(),
        nodes=some,
        member=member,
        ax=junk("None"),
    )
    good("plots.rungs", gr.plots.rungs, fitted=junk(solution=solution))
    good("plots.changes", gr.plots.changes, changes=junk(solution=solution))
    good(
        "repaired",
        gr.repaired,
        {"model": linear, "fitted": None},
        model=junk(),
        fitted=junk(solution=solution),
    )
    good("check_data", check_data, data=junk(tensor=data.x))
    good(
        "stratified_splits",
        stratified_splits,
        y=labels("short", "far"),
        ratios=junk(two=(1, 2), negative=(1, 2, -1), zero=(0, 0, 0), floats=(0.5, 0.5, "x")),
        seeds=junk("dict", half=[0.5], minus=[-1]),
    )
    return calls


ACCEPTED: dict[str, str] = {
    "read_results(store=folder)": "an empty folder is a store without results",
    "export_results(store=folder)": "an empty folder is a store without results",
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


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    before = torch.get_num_threads()
    yield build(tmp_path_factory.mktemp("calls"))
    torch.set_num_threads(before)


NAMES = [
    "load_dataset", "train_backbone", "Frozen.load", "FittedRepair.load", "Exposure.load",
    "Solution.load", "expose", "expose frozen", "expose_links", "solve", "reach",
    "solve labels", "value_range",
    "nearest_reweighting", "stable_evidence", "solution.check", "solution.for_node",
    "solve_oracle_sharded", "Reweighting", "Reweighting.fit", "SetTranslation",
    "SetTranslation.fit", "NodeTranslation", "NodeTranslation.fit", "RefitHead", "RefitHead.fit",
    "run_study", "read_results", "export_results", "pack", "merge", "Store", "override",
    "read_protocol", "make_plan", "make_tables", "ProcessEngine", "gather", "report",
    "report_results", "write_figures", "check_data", "stratified_splits", "save_baseline",
    "compare", "confusion_by_reach", "source_ranking", "plots.node", "plots.reach", "plots.rungs",
    "repaired", "class_reach", "diagnose", "plots.changes"
]  # fmt: skip


def verdict(good: Good, name: str, argument: str, label: str) -> str:
    """What is wrong with the answer to one bad call; empty where nothing is."""
    place = f"{name}({argument}={label})"
    try:
        good.function(**{**good.arguments, argument: good.wrong[argument][label]})
    except GnnRepairError as error:
        text = str(error)
        fair = text and "\n" not in text.strip() and len(text) < 1500
        return "" if fair else f"{place}: not one sentence: {text[:200]!r}"
    except Exception as error:
        return f"{place}: {type(error).__name__}: {str(error)[:100]!r}"
    return "" if place in ACCEPTED else f"{place}: accepted"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_bad_call_is_answered_with_a_sentence(calls, name):
    good = calls[name]
    places = [(argument, label) for argument in good.wrong for label in good.wrong[argument]]
    faults = [verdict(good, name, argument, label) for argument, label in places]
    assert not any(faults), "\n" + "\n".join(filter(None, faults))


def test_the_table_is_large_and_whole(calls):
    assert set(calls) == set(NAMES)
    assert sum(len(values) for good in calls.values() for values in good.wrong.values()) > 500
    public = {name for name in gr.__all__ if inspect.isfunction(getattr(gr, name))}
    assert public <= set(NAMES)
