"""What a page holds of a stored run is what the record says of it, counted from the page alone."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch

from gnn_repair.reporting import report_run
from gnn_repair.study import PAPER, Store, override, read_results, run_study
from gnn_repair.study.rerun import rerun

QUICK = override(
    PAPER,
    [
        "backbones.hidden=8",
        "backbones.short.epochs=8",
        "repairs.hidden=8",
        "repairs.reweighting.epochs=3",
        "repairs.reweighting.learning_rate=0.05",
        "repairs.set_translation.epochs=3",
        "repairs.set_translation.learning_rate=0.05",
    ],
)
METHODS = ["oracle", "reweighting", "set_translation"]
SPLITS = (0, 2, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "store"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    options = {"store": root, "methods": METHODS, "protocol": QUICK, "device": "cpu"}
    assert run_study(["builtin"], ["gcn"], SPLITS, **options).stored == len(SPLITS)
    yield Store(root)
    torch.set_num_threads(before)


def page_of(path):
    """The payload, its arrays decoded by the types they name."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(re.search(r'id="payload">(.*?)</script>', text, re.S)[1])
    arrays = {
        name: np.frombuffer(base64.b64decode(entry["data"]), "<" + entry["type"])
        for name, entry in content["arrays"].items()
    }
    return content, arrays


@pytest.mark.parametrize("split", [2, 3])
def test_the_page_s_nodes_are_those_of_the_record(store, tmp_path, split):
    run = rerun("builtin", "gcn", split, source=store, protocol=QUICK, methods=METHODS)
    results = read_results(store.root, QUICK.digest)
    content, arrays = page_of(report_run(run, tmp_path / "page.html", results))
    stored = store.get(QUICK.digest, run.case.runs[SPLITS.index(split)])

    nodes = arrays["nodes"]
    labels = arrays["labels"][nodes]
    right = arrays["predictions"][nodes] == labels
    assert right.mean() == stored.frozen["test"]
    assert [item["key"] for item in content["run"]["repairs"]] == METHODS[1:]
    for j, item in enumerate(content["run"]["repairs"]):
        share = (arrays[f"repair_{j}_predictions"] == labels).mean()
        assert share == stored.methods[item["key"]]["test"], item["key"]

    reached = arrays["margins"] > content["run"]["thresholds"]["reachable"]
    oracle = stored.oracle["test"]
    assert reached.mean() == oracle["true_class_reach"]
    assert reached[~right].mean() == oracle["error_reach"]
    assert arrays["support"][reached].mean() == pytest.approx(oracle["support"], rel=1e-12)


def test_the_overview_s_cells_are_those_of_the_records(store, tmp_path):
    run = rerun("builtin", "gcn", 0, source=store, protocol=QUICK, methods=METHODS)
    results = read_results(store.root, QUICK.digest)
    content, _ = page_of(report_run(run, tmp_path / "page.html", results))
    case = content["study"]["cases"][content["study"]["shown"]]
    records = list(store.records(QUICK.digest))
    cells = {method["key"]: method["values"] for method in case["methods"]}
    assert cells.pop("frozen") == [100 * record.frozen["test"] for record in records]
    assert cells == {
        name: [100 * record.methods[name]["test"] for record in records] for name in cells
    }
    assert set(cells) == set(METHODS[1:])
    reach = [100 * record.oracle["test"]["error_reach"] for record in records]
    assert case["reach"]["error_reach"] == reach
