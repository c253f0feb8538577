"""The tables beyond the paper, from planted numbers; the page that prints them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted_records import make_record

from gnn_repair.methods import NOTHING, RUNGS, rung_title
from gnn_repair.results.rendering import RENDERERS, facts
from gnn_repair.results.store import pack
from gnn_repair.study import PAPER, Store, make_tables
from tools.beyond import LINE, TABLES, gathered, written

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "results" / "ladder.jsonl", ROOT / "docs/results/beyond.md"


def ladder(test: float, gains: dict[str, float], classes: int = 2) -> dict[str, float]:
    """A ladder's record: out-of-fold accuracy 0.7 + gain by rung, class 0 gains twice that."""
    held = {"train": 0.9, "val": 0.8, "test": test, "calibration error": 0.03}
    held |= {"calibration error frozen": 0.09, "calibration error frozen scaled": 0.04}
    held["out-of-fold frozen"] = 0.7
    for name, gain in gains.items():
        held |= {f"out-of-fold {name}": 0.7 + gain, f"test {name}": test - 0.01}
        held |= {f"out-of-fold gain {name} class {c}": (2 - 2 * c) * gain for c in range(classes)}
    return held


def record(dataset: str, backbone: str, split: int, gain: float, retrained: float | None = None):
    """Of version 0.2 where the split is even: its names are read as today's."""
    wobble = 0.001 * (split - 0.5)
    rungs = {"messages": 0.01, "labels": 0.015 + wobble, "similar": 0.055}
    if split % 2 == 0:
        rungs = {RUNGS[name].formerly: value for name, value in rungs.items()}
    methods = {"evidence_ladder": ladder(0.8 + gain, rungs)}
    if retrained is not None:
        methods["retrained_backbone"] = {"test": 0.8 + retrained, "test single": 0.8}
    return make_record(dataset, backbone, split, methods=methods)


GRID = [
    *(record("cora", "gcn", split, 0.02, 0.03) for split in range(2)),
    *(record("cora", "sage", split, -0.01) for split in range(2)),
    *(record("squirrel", "gcn", split, 0.1 + 0.02 * split) for split in range(2)),
]


@pytest.fixture(scope="module")
def found():
    made = make_tables(GRID, TABLES)
    return {(f["sheet"], f["row"], f["column"]): f for f in facts(made)}


GAINS = "Points of test accuracy over Frozen"


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("Evidence ladder", "gain over Frozen", (2 - 1 + 11) / 3),
        ("Evidence ladder", "cora", 0.5),
        ("Evidence ladder", "squirrel", 11.0),
        (f"only {rung_title('similar')}", "gain over Frozen", (2 - 1 + 11) / 3 - 1),
        ("Retrained backbone", "gain over Frozen", 3.0),
        # Where the control was run, which is one case of three.
        ("Retrained backbone", "the ladder there", 2.0),
        ("Retrained backbone, its single models", "gain over Frozen", 0.0),
    ],
)
def test_gains_are_means_over_the_cases_there_are(found, row, column, value):
    assert found[GAINS, row, column]["value"] == pytest.approx(value)


def test_cases_above_frozen_are_counted_and_the_cover_is_said(found):
    assert found[GAINS, "Evidence ladder", "cases above Frozen"]["text"] == "2 of 3"
    assert found[GAINS, "Retrained backbone", "cases above Frozen"]["text"] == "1 of 1"
    text = RENDERERS["markdown"](make_tables(GRID, ["beyond"]))
    assert "It covers 3 of the paper's cases that can be had (48), 2 splits each." in text


def test_calibration_and_cases(found):
    sheet = "Calibration error on test nodes (%)"
    values = [found[sheet, row, "all"]["value"] for row in ("Evidence ladder", "Frozen")]
    assert values == [pytest.approx(3.0), pytest.approx(9.0)]
    cell = found["The ladder's gain by case (points)", "gcn", "squirrel"]
    assert (cell["value"], cell["std"]) == (pytest.approx(11), pytest.approx(math.sqrt(2)))


LOST = "What each kind of evidence is worth, out of fold (points)"


def test_evidence_is_compared_with_the_rung_below_and_advised_upon(found):
    row = "squirrel × GCN"
    worth = {
        name: found[LOST, row, f"{rung_title(name)} over {rung_title(RUNGS[name].above)}"]["value"]
        for name in ("messages", "labels", "similar")
    }
    assert worth == pytest.approx({"messages": 1.0, "labels": 0.5, "similar": 4.0})
    advice = found[LOST, row, "advice"]["text"].split("; ")
    assert advice == [
        "let nodes attend to similar ones, wherever they are (+4.0)",
        "give the classifier more labels: hold out fewer of them (+1.0)",
        "feed known labels of neighbours as input (+0.5)",
    ]


def test_by_class_the_gains_are_those_of_its_nodes(found):
    column = f"{rung_title('similar')} over {rung_title('labels')}"
    for label, value in ((0, 8.0), (1, 0.0)):
        cell = found[LOST, f"cora × GCN, class {label}", column]
        assert cell["value"] == pytest.approx(value)


def test_what_no_split_confirms_is_no_advice():
    alone = make_tables([record("cora", "gcn", 0, 0.1)], ["lost-evidence"])
    assert next(f["text"] for f in facts(alone) if f["column"] == "advice") == NOTHING
    assert make_tables([make_record("cora", "gcn", 0, methods={})], TABLES)[1].sheets == ()
    assert [table.name for table in make_tables(GRID)][-1] == "time"


def test_the_best_control_of_each_case_and_who_is_behind_it():
    """Three controls; two of three cases have them, and the ladder is behind in one."""

    def with_controls(dataset, gain, controls):
        one = record(dataset, "gcn", 0, gain)
        names = ("retrained_backbone", "feature_perceptron", "correct_and_smooth")
        one.methods.update({n: {"test": 0.8 + g} for n, g in zip(names, controls, strict=True)})
        return one

    records = [
        with_controls("cora", 0.02, (0.01, 0.024, -0.1)),
        with_controls("actor", 0.02, (0.0, 0.0, 0.022)),
        record("squirrel", "gcn", 0, 0.5),
    ]
    sheet = "The best control of each case (points over Frozen)"
    cells = {
        (f["row"], f["column"]): f
        for f in facts(make_tables(records, ["beyond"]))
        if f["sheet"] == sheet
    }
    assert cells["all", "best control"]["value"] == pytest.approx(2.3)
    assert cells["all", "Evidence ladder"]["value"] == pytest.approx(2.0)
    behind = {row: f["text"] for (row, column), f in cells.items() if "below" in column}
    assert behind == {"all": "1 of 2", "cora": "1 of 1", "actor": "0 of 1"}


@pytest.mark.skipif(not RECORDS.exists(), reason="the records are not in this checkout")
def test_the_page_prints_the_committed_records():
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text


def test_files_are_gathered_and_each_method_of_a_run_is_taken_once(tmp_path):
    first = [record("cora", "gcn", 0, 0.02)]
    second = [record("cora", "gcn", split, 0.1, 0.03) for split in range(2)]
    for name, records in (("ladder", first), ("retrained", second)):
        store = Store(tmp_path / name)
        store.begin(PAPER)
        for one in records:
            store.put(one)
        pack(tmp_path / name, tmp_path / f"{name}.jsonl")
    gained = {
        (r.split, key): round(value["test"] - 0.8, 9)
        for r in gathered(tmp_path)
        for key, value in r.methods.items()
    }
    assert gained == {
        (0, "evidence_ladder"): 0.02,
        (0, "retrained_backbone"): 0.03,
        (1, "evidence_ladder"): 0.1,
        (1, "retrained_backbone"): 0.03,
    }
    page = written(f"# A page\n\n{LINE}old tables", tmp_path)
    assert page.startswith(f"# A page\n\n{LINE}## The ladder beside its controls")
    assert "It covers 1 of the paper's cases" in page
