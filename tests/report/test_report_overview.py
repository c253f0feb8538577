"""Cases as the overview shows them, and the command that writes them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from gnn_repair.cli import app
from gnn_repair.errors import InputError
from gnn_repair.oracle import reach
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.writing import case_of_run, cases_of_results, chance_words
from gnn_repair.results.protocol import PAPER, override
from gnn_repair.results.records import RunRecord
from gnn_repair.results.store import Store
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.report.pages import payload_of
from tests.helpers.report.report_worlds import Tilted, make_exposure

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


def test_a_run_is_a_case_of_one_split():
    exposure, y = make_exposure()
    evidence = gather(exposure, y, repairs={"reweighting": Tilted()})
    case = case_of_run(evidence, "cora", "gcn")
    right = exposure.frozen_logits[0].argmax(1) == y
    tilted = Tilted().logits(exposure)[0].argmax(1) == y
    frozen, reweighted = case["methods"]
    assert frozen["values"] == [pytest.approx(100 * float(right.double().mean()))]
    assert reweighted["values"] == [pytest.approx(100 * float(tilted.double().mean()))]
    assert frozen["paper"] == 88.1 and case["paper"]["error_reach"] == 60.4
    wrong = ~evidence.right
    reach = 100 * np.mean(evidence.margin[wrong] > 1e-7)
    assert case["reach"]["error_reach"] == [pytest.approx(reach)]


def test_results_become_cases_in_percent():
    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    rows = [
        ["mine", "gcn", 1, "frozen", "test", "accuracy", 0.6],
        ["mine", "gcn", 0, "frozen", "test", "accuracy", 0.5],
        ["mine", "gcn", 0, "frozen", "val", "accuracy", 0.1],
        ["mine", "gcn", 0, "own", "test", "accuracy", 0.7],
        ["mine", "gcn", 0, "oracle", "test", "true_class_reach", 0.9],
        ["mine", "gcn", 0, "oracle", "test", "support", 2.5],
        ["mine", "gcn", 0, "oracle", "test", "error_reach", float("nan")],
    ]
    (case,) = cases_of_results(pd.DataFrame(rows, columns=columns))
    assert [(m["title"], m["values"]) for m in case["methods"]] == [
        ("Frozen", [50.0, 60.0]),
        ("own", [70.0]),
    ]
    assert case["reach"] == {"true_class_reach": [90.0], "support": [2.5]}
    assert case["paper"] == {}


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


def test_view_writes_the_page_of_a_store_and_opens_it(store, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    out = tmp_path / "seen.html"
    run = CliRunner().invoke(app, ["view", str(store), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert opened == [out.resolve().as_uri()]
    assert payload_of(out)["made"]["command"] == f"gnn-repair report --store {store}"
    run = CliRunner().invoke(app, ["view", str(store)])
    assert run.exit_code == 0 and opened[1].endswith("/report.html")
    assert str(store) not in opened[1]


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


@pytest.mark.parametrize("classes", [4, 2])
def test_a_page_has_chance_beside_reach(classes, tmp_path):
    """The numbers in the page's own data are those of reach; two classes have none."""
    rng = np.random.default_rng(3)
    lengths, count = np.full((20, 1), 3), 60
    numbers = (rng.random(count), rng.normal(size=(count, classes)), rng.normal(size=(20, classes)))
    exposure = exposure_of(Numbers(lengths, *numbers))
    y = torch.from_numpy(rng.integers(0, classes, 20))
    found = chance_words(gather(exposure, y, others=True))
    own = reach(exposure, y)
    assert (found is None) == (classes == 2)
    if found:
        assert (found["low"], found["high"]) == (100 * own.chance.low, 100 * own.chance.high)
        assert found["everyone"] == 100 * own.true_class_chance.low
        assert own.excess.words(100, sign="+", unit=" points") in found["words"]
    page = report(exposure, y, tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("Chance: a class that is neither" in page) == (classes == 4)
