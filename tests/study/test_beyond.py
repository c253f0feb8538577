"""The tables beyond the paper, from planted numbers; the page that prints them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted_records import make_record

from gnn_repair.repair.ladder.catalogue import RUNGS
from gnn_repair.repair.rung_words import NOTHING, WORDS
from gnn_repair.study import PAPER, Store, make_tables
from gnn_repair.study.formats import RENDERERS
from gnn_repair.study.packed import pack
from gnn_repair.study.rendering import facts
from tools.beyond import LINE, TABLES, gathered, written

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "results" / "ladder.jsonl", ROOT / "docs" / "beyond.md"


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
    wobble = 0.001 * (split - 0.5)
    rungs = {"summary": 0.01, "summary-labels": 0.015 + wobble, "summary-kin": 0.055}
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
        ("rung summary-kin alone", "gain over Frozen", (2 - 1 + 11) / 3 - 1),
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
        column: found[LOST, row, f"{column} over {WORDS[column].above}"]["value"]
        for column in ("summary", "summary-labels", "summary-kin")
    }
    assert worth == pytest.approx({"summary": 1.0, "summary-labels": 0.5, "summary-kin": 4.0})
    advice = found[LOST, row, "advice"]["text"].split("; ")
    assert advice == [
        "change the aggregator: let nodes attend to similar ones (+4.0)",
        "feed known labels of neighbours as input (+0.5)",
        "give the classifier more labels: hold out fewer of them (at most +1.0)",
    ]


def test_by_class_the_gains_are_those_of_its_nodes(found):
    column = "summary-kin over summary-labels"
    for label, value in ((0, 8.0), (1, 0.0)):
        cell = found[LOST, f"cora × GCN, class {label}", column]
        assert cell["value"] == pytest.approx(value)


def test_what_no_split_confirms_is_no_advice():
    alone = make_tables([record("cora", "gcn", 0, 0.1)], ["lost-evidence"])
    assert next(f["text"] for f in facts(alone) if f["column"] == "advice") == NOTHING
    assert make_tables([make_record("cora", "gcn", 0, methods={})], TABLES)[1].sheets == ()
    assert [table.name for table in make_tables(GRID)][-1] == "time"


def test_every_rung_has_words_and_stands_above_one_that_there_is():
    assert set(WORDS) == set(RUNGS)
    for name, words in WORDS.items():
        assert RUNGS[name].name == name
        assert words.above == "frozen" or list(WORDS).index(words.above) < list(WORDS).index(name)


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
        (r["split"], key): round(value["test"] - 0.8, 9)
        for r in gathered(tmp_path)
        for key, value in r["methods"].items()
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
