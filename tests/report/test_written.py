"""Pages of runs and stores: what they hold, and the commands that write them."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

from gnn_repair.cli import app
from gnn_repair.errors import InputError
from gnn_repair.reporting import report, report_results, report_run, writing
from gnn_repair.reporting.payload import needs_server
from gnn_repair.reporting.writing import SCRIPTS
from gnn_repair.results.protocol import PAPER, override
from gnn_repair.results.records import RunRecord
from gnn_repair.results.store import Store
from gnn_repair.study import read_results, run_study
from gnn_repair.study.case import rerun, stack_of
from tests.helpers.report.pages import arrays_of, payload_of
from tests.helpers.report.report_worlds import Moved, make_exposure
from tools import lint_page

# The page's data: exact, small, and harmless inside a script block.

NASTY = ["</script><script>alert(1)</script>", "<!-- & -->", "@@PAYLOAD@@", "line\u2028end"]


def test_the_page_is_one_file_with_nothing_outside(tmp_path):
    exposure, y = make_exposure()
    title = "<img src=x onerror=alert(1)>@@STYLE@@"
    path = report(exposure, y, tmp_path / "r.html", class_names=NASTY, title=title)
    page = path.read_text(encoding="utf-8")
    assert payload_of(path)["run"]["classes"] == NASTY
    assert payload_of(path)["title"] == title
    assert "<title>&lt;img src=x onerror=alert(1)&gt;@@STYLE@@</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    outside = re.findall(r"https?://[^\"'\s)]+", page)
    assert set(outside) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_results_without_accuracies_are_refused(tmp_path):

    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    empty = pd.DataFrame(columns=columns)
    with pytest.raises(InputError, match="no test accuracy"):
        report_results(empty, tmp_path / "r.html")


# Cases as the overview shows them, and the command that writes them.

TINY = override(
    PAPER,
    [
        "backbones.hidden=8",
        "backbones.short.epochs=6",
        "repairs.hidden=8",
        "repairs.reweighting.epochs=2",
        "repairs.set_translation.epochs=2",
    ],
)


def record(dataset: str, backbone: str, split: int, frozen: float, reach: float) -> RunRecord:
    return RunRecord(
        protocol=TINY.digest,
        dataset=dataset,
        backbone=backbone,
        split=split,
        graph={},
        frozen={"train": 1.0, "val": 0.9, "test": frozen},
        oracle={"test": {"true_class_reach": reach, "error_reach": 0.5, "support": 1.5}},
        methods={"reweighting": {"test": frozen + 0.01}},
        environment={},
    )


@pytest.fixture
def store(tmp_path):
    held = Store(tmp_path / "store")
    held.begin(TINY)
    for split, frozen in enumerate([0.5, 0.6, 0.7]):
        held.put(record("cora", "gcn", split, frozen, 0.9))
        held.put(record("builtin", "gcn", split, frozen - 0.1, 0.8))
    return held.root


def test_the_stored_protocol_is_read_back(store, tmp_path):
    assert Store(store).protocol() == TINY
    with pytest.raises(InputError, match="holds no result of protocol"):
        Store(store).protocol("0" * 12)
    with pytest.raises(InputError, match="holds no result of protocol"):
        Store(tmp_path / "nowhere").protocol()


def test_a_store_of_several_cases_gives_the_overview(store, tmp_path):
    out = tmp_path / "r.html"
    run = CliRunner().invoke(app, ["report", "--store", str(store), "--out", str(out)])
    assert run.exit_code == 0 and "overview alone" in run.output
    found = payload_of(out)
    assert found["run"] is None
    cora = found["study"]["cases"][1]
    assert cora["methods"][0]["values"] == pytest.approx([50, 60, 70])
    assert cora["methods"][0]["paper"] == 88.1
    with pytest.raises(InputError, match="figures show one case"):
        CliRunner().invoke(
            app, ["report", "--store", str(store), "--figures", "x"], catch_exceptions=False
        )


def test_a_named_case_is_run_again_with_the_stored_protocol(store, tmp_path):
    out, figures = tmp_path / "r.html", tmp_path / "figures"
    options = ["--store", str(store), "--out", str(out), "--figures", str(figures)]
    options += ["--dataset", "builtin", "--methods", "reweighting,set_translation"]
    options += ["--compare", "1"]
    run = CliRunner().invoke(app, ["report", *options])
    assert run.exit_code == 0, run.output
    found = payload_of(out)
    assert [r["kind"] for r in found["run"]["repairs"]] == ["coefficients", "shift"]
    (other,) = found["beside"]
    assert other["title"] == "split 1" and other["run"]["split"] == 1
    assert found["run"]["split"] == 0 and found["run"]["selection"] == "test nodes"
    assert "--dataset builtin --backbone gcn --split 0" in found["made"]["command"]
    assert found["made"]["protocol"] == TINY.digest
    assert found["study"]["cases"][found["study"]["shown"]]["dataset"] == "builtin"
    assert found["study"]["cases"][0]["methods"][0]["values"] == pytest.approx([40, 50, 60])
    assert out.stat().st_size < 8e6
    assert len(list(figures.glob("*.svg"))) == 7


# One model a page: what is shown is the stored run, number by number, or the page says so.

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
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("study") / "store"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    options = {"store": root, "methods": METHODS, "protocol": SMALL, "device": "cpu"}
    assert run_study(["builtin"], ["gcn"], SPLITS, **options).stored == 3
    yield Store(root)
    torch.set_num_threads(before)


def test_the_run_is_made_again_in_its_stack_and_the_page_shows_its_numbers(runs, tmp_path):
    run = rerun("builtin", "gcn", 1, source=runs, protocol=SMALL, methods=METHODS, device="cpu")
    assert run.case.splits == SPLITS
    stored = runs.get(SMALL.digest, run.case.runs[1])
    assert run.record.stages.items() <= stored.stages.items()
    for part in ("graph", "frozen", "stack", "members"):
        assert getattr(run.record, part) == getattr(stored, part), part
    for name, scores in run.record.methods.items():  # the store's say more of the shifts
        assert scores.items() <= stored.methods[name].items(), name
    assert run.provenance() == (
        "split 1, trained with splits 0, 1, 3; the stored run, made again with the same accuracies"
    )
    page = report_run(run, tmp_path / "a.html", read_results(runs.root, SMALL.digest))
    content, arrays = payload_of(page), arrays_of(page)
    assert "Split 1, trained with splits 0, 1, 3; the stored run" in content["subtitle"]
    nodes = arrays["nodes"]
    labels = arrays["labels"][nodes]
    right = arrays["predictions"][nodes] == labels
    assert right.mean() == stored.frozen["test"]
    assert [item["key"] for item in content["run"]["repairs"]] == METHODS[1:]
    for j, name in enumerate(METHODS[1:]):
        share = (arrays[f"repair_{j}_predictions"] == labels).mean()
        assert share == stored.methods[name]["test"], name
    reached, oracle = arrays["margins"] > content["run"]["thresholds"]["reachable"], stored.oracle
    assert reached.mean() == oracle["test"]["true_class_reach"]
    assert reached[~right].mean() == oracle["test"]["error_reach"]
    assert arrays["support"][reached].mean() == pytest.approx(oracle["test"]["support"], rel=1e-12)
    # The overview's cells are those of all records.
    case = content["study"]["cases"][content["study"]["shown"]]
    records = list(runs.records(SMALL.digest))
    cells = {method["key"]: method["values"] for method in case["methods"]}
    assert cells.pop("frozen") == [100 * record.frozen["test"] for record in records]
    assert cells == {n: [100 * r.methods[n]["test"] for r in records] for n in METHODS[1:]}
    reach = [100 * record.oracle["test"]["error_reach"] for record in records]
    assert case["reach"]["error_reach"] == reach


def test_a_run_that_comes_out_differently_says_so(runs, tmp_path):
    copy = Store(tmp_path / "store")
    copy.begin(SMALL)
    for record in runs.records(SMALL.digest):
        record.frozen["test"] = 0.125
        copy.put(record)
    run = rerun("builtin", "gcn", 0, source=copy, protocol=SMALL, methods=[], device="cpu")
    assert not run.stored_models
    said = run.provenance()
    assert "made again for this page, where the frozen model is right about" in said
    assert "(stored 12.5 %): the nodes are of this model" in said


def test_without_a_store_it_is_made_for_the_page(runs):
    run = rerun("builtin", "gcn", 2, source=runs, protocol=SMALL, methods=[], device="cpu")
    assert run.case.splits == (2,)
    assert run.provenance() == "split 2, trained alone; made for this page"


def test_the_stack_of_earlier_records_is_found_where_it_can_be(runs):
    (first, *_) = runs.records(SMALL.digest)
    assert stack_of(runs, replace(first, stack=[])) == (0, 1, 3)
    assert stack_of(runs, replace(first, stack=[], members=2)) == (0,)
    assert stack_of(runs, replace(first, stack=[], members=1)) == (0,)


# The page's scripts are checked as one, and the check notices what is wrong.


def test_every_script_is_part_of_the_page_and_none_has_a_long_line():
    files = {path.name: path.read_text(encoding="utf-8") for path in lint_page.PAGE.glob("*.js")}
    assert set(files) == set(SCRIPTS)
    assert [name for name, text in files.items() if lint_page.long_lines(text)] == []
    assert lint_page.long_lines("a" * 100 + "\n" + "γ" * 101) == [2]


@pytest.mark.parametrize("fault", ["", "console.log(nothingOfThisName);"])
def test_the_linter_passes_the_page_and_notices_a_fault(monkeypatch, fault, capfd):
    whole = lint_page.joined_scripts()
    monkeypatch.setattr(lint_page, "joined_scripts", lambda: f"{whole}\n{fault}\n")
    assert lint_page.joined_is_sound() == (fault == "")


def test_a_run_beside_says_what_its_own_split_makes_of_each_node(monkeypatch):
    kinds = {0: [0, 1, 2, 3, 3, 3], 1: [3, 3, 0, 1, 2, 0]}

    def run(split):
        held = torch.tensor(kinds[split])
        places = {"train": 0, "val": 1, "test": 3}
        return SimpleNamespace(data=Data(y=held), split=split, mask=lambda n: held == places[n])

    seen = SimpleNamespace(nodes=np.array([5, 3, 4]))
    monkeypatch.setattr(writing, "evidence_of", lambda run, other: seen)
    for page, other in ((0, 1), (1, 0)):
        found = writing.gather_beside(run(page), run(other))
        assert found.parts.tolist() == [kinds[other][node] for node in seen.nodes]
        assert found.split == other


def test_a_page_that_is_one_file_again_has_none_beside_it(tmp_path):
    exposure, y = make_exposure(groups=2)
    path, folder = tmp_path / "r.html", tmp_path / "r.parts"
    for parts in (True, True, False, True, False):
        (tmp_path / "mine.txt").write_text("")
        report(exposure, y, path, repairs={"mine": Moved()}, single_file=not parts)
        assert needs_server(path) is folder.exists() is parts
        held = payload_of(path)
        assert ("parts" in held) is parts and ("rows" in held["arrays"]) is not parts
        told = {item.name for item in folder.iterdir()} if parts else set()
        assert {name.split("-")[0] for name in told} == (
            {held["parts"]["digest"]} if parts else set()
        )
        assert {item.name for item in tmp_path.iterdir()} - {"r.parts"} == {"r.html", "mine.txt"}
    report(exposure, y, path, single_file=False)
    (folder / "mine.txt").write_text("")
    report(exposure, y, path)
    assert [item.name for item in folder.iterdir()] == ["mine.txt"]
