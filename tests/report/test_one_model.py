"""One model a page: what is shown is the stored run, number by number, or the page says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.reporting import evidence_of, report_run
from gnn_repair.study import PAPER, Store, override, read_results, run_study
from gnn_repair.study.case import rerun, stack_of
from tests.helpers.report.pages import arrays_of, payload_of

SMALL = override(
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
SPLITS = (0, 1, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "store"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    options = {"store": root, "methods": METHODS, "protocol": SMALL, "device": "cpu"}
    assert run_study(["builtin"], ["gcn"], SPLITS, **options).stored == 3
    yield Store(root)
    torch.set_num_threads(before)


def test_the_run_is_made_again_in_its_stack_and_comes_out_the_same(store, tmp_path):
    run = rerun("builtin", "gcn", 1, source=store, protocol=SMALL, methods=METHODS, device="cpu")
    assert run.case.splits == (0, 1, 3)
    stored = store.get(SMALL.digest, run.case.runs[1])
    assert run.record.stages.items() <= stored.stages.items()
    for part in ("graph", "frozen", "stack", "members"):
        assert getattr(run.record, part) == getattr(stored, part), part
    for name, scores in run.record.methods.items():  # the store's say more of the shifts
        assert scores.items() <= stored.methods[name].items(), name
    assert run.provenance() == (
        "split 1, trained with splits 0, 1, 3; the stored run, made again with the same accuracies"
    )
    evidence = evidence_of(run)
    assert evidence.right.mean() == pytest.approx(stored.frozen["test"])
    for item in evidence.corrections:
        share = (item.predictions == evidence.true_class).mean()
        assert share == pytest.approx(stored.methods[item.name]["test"])
    page = payload_of(report_run(run, tmp_path / "a.html", read_results(store.root, SMALL.digest)))
    assert "Split 1, trained with splits 0, 1, 3; the stored run" in page["subtitle"]
    shown = page["study"]["cases"][page["study"]["shown"]]["methods"][0]["values"]
    assert shown[1] == pytest.approx(100 * evidence.right.mean())


def test_a_run_that_comes_out_differently_says_so(store, tmp_path):
    copy = Store(tmp_path / "store")
    copy.begin(SMALL)
    for record in store.records(SMALL.digest):
        record.frozen["test"] = 0.125
        copy.put(record)
    run = rerun("builtin", "gcn", 0, source=copy, protocol=SMALL, methods=[], device="cpu")
    assert not run.kept
    said = run.provenance()
    assert "made again for this page, where the frozen model is right about" in said
    assert "(stored 12.5 %): the nodes are of this model" in said


def test_without_a_store_it_is_made_for_the_page(store):
    run = rerun("builtin", "gcn", 2, source=store, protocol=SMALL, methods=[], device="cpu")
    assert run.case.splits == (2,)
    assert run.provenance() == "split 2, trained alone; made for this page"


def test_the_stack_of_earlier_records_is_found_where_it_can_be(store):
    (first, *_) = store.records(SMALL.digest)
    assert stack_of(store, replace(first, stack=[])) == (0, 1, 3)
    assert stack_of(store, replace(first, stack=[], members=2)) == (0,)
    assert stack_of(store, replace(first, stack=[], members=1)) == (0,)


@pytest.mark.parametrize("split", [1, 3])
def test_the_page_s_nodes_are_those_of_the_record(store, tmp_path, split):
    run = rerun("builtin", "gcn", split, source=store, protocol=SMALL, methods=METHODS)
    results = read_results(store.root, SMALL.digest)
    page = report_run(run, tmp_path / "page.html", results)
    content, arrays = payload_of(page), arrays_of(page)
    stored = store.get(SMALL.digest, run.case.runs[SPLITS.index(split)])

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
    run = rerun("builtin", "gcn", 0, source=store, protocol=SMALL, methods=METHODS)
    results = read_results(store.root, SMALL.digest)
    content = payload_of(report_run(run, tmp_path / "page.html", results))
    case = content["study"]["cases"][content["study"]["shown"]]
    records = list(store.records(SMALL.digest))
    cells = {method["key"]: method["values"] for method in case["methods"]}
    assert cells.pop("frozen") == [100 * record.frozen["test"] for record in records]
    assert cells == {
        name: [100 * record.methods[name]["test"] for record in records] for name in cells
    }
    assert set(cells) == set(METHODS[1:])
    reach = [100 * record.oracle["test"]["error_reach"] for record in records]
    assert case["reach"]["error_reach"] == reach
