"""The tables beyond the paper, from planted numbers; the page that prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnn_repair.methods import NOTHING, RUNGS
from gnn_repair.results.rendering import facts
from gnn_repair.results.store import pack
from gnn_repair.study import PAPER, Store, make_tables
from tests.helpers.study.planted_records import make_record
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


def test_what_no_split_confirms_is_no_advice():
    alone = make_tables([record("cora", "gcn", 0, 0.1)], ["lost-evidence"])
    assert next(f["text"] for f in facts(alone) if f["column"] == "advice") == NOTHING
    assert make_tables([make_record("cora", "gcn", 0, methods={})], TABLES)[1].sheets == ()


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
    assert "overs 1 of the paper's" in page
