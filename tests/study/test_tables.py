"""Table arithmetic against values computed by hand, and the forms for machines."""

from __future__ import annotations

import csv
import io
import json
import statistics

import pandas as pd
import pytest
from planted_records import make_record

from gnn_repair.errors import InputError
from gnn_repair.published import published
from gnn_repair.results.averages import Figure, average, gain, wins
from gnn_repair.results.rendering import facts, number, plain, remark
from gnn_repair.study import PAPER, RENDERERS, Store, export_results, make_tables, read_results


def records():
    """Cora and PubMed (published) and one graph of our own, on GCN and SGC."""
    made = []
    for dataset, backbone, tests in [
        ("cora", "gcn", (0.86, 0.88, 0.90)),
        ("cora", "sgc", (0.70, 0.80, 0.90)),
        ("pubmed", "gcn", (0.89, 0.89, 0.89)),
        ("mine", "gcn", (0.10, 0.20)),
    ]:
        made += [make_record(dataset, backbone, k, test) for k, test in enumerate(tests)]
    return made


def entry(tables, table, sheet, row, column):
    (found,) = [
        fact
        for fact in facts(tables)
        if (fact["table"], fact["sheet"], fact["row"], fact["column"])
        == (table, sheet, row, column)
    ]
    return found


def test_a_cell_is_the_mean_over_splits_beside_the_published_value():
    cell = entry(make_tables(records()), "repair-accuracy", "Frozen", "gcn", "cora")
    assert cell["value"] == pytest.approx(88.0)
    assert cell["std"] == pytest.approx(2.0)
    assert cell["count"] == 3
    assert cell["published"] == 88.1
    assert cell["difference"] == pytest.approx(-0.1)
    assert cell["outside"] is False


def test_a_cell_outside_the_tolerance_stands_out():
    tables = make_tables(records())
    cell = entry(tables, "repair-accuracy", "Frozen", "sgc", "cora")
    assert (cell["published"], cell["outside"]) == (88.6, True)
    assert cell["difference"] == pytest.approx(80.0 - 88.6)
    text = RENDERERS["markdown"](tables)
    assert "| 80.0 ± 10.0 (88.6, −8.6) ! |" in text
    assert "| GCN | 88.0 ± 2.0 (88.1, −0.1) |" in text
    assert r"& 80.0 $\pm$ 10.0 (88.6)$^{!}$ &" in RENDERERS["latex"](tables)


@pytest.mark.parametrize(
    ("difference", "outside"), [(1.5, False), (-1.5, False), (1.51, True), (-1.51, True)]
)
def test_the_tolerance_is_inclusive(difference, outside):
    assert Figure(50 + difference, 50.0, tolerance=1.5).outside is outside


def test_averages_are_over_the_cases_that_exist_in_both():
    tables = make_tables(records())
    macro = entry(tables, "repair-accuracy", "Frozen", "average", "average")
    assert macro["value"] == pytest.approx((88 + 80 + 89) / 3)
    assert macro["published"] == pytest.approx((88.1 + 88.6 + 89.2) / 3)
    assert (macro["count"], macro["counted"]) == (3, "cases")
    row = entry(tables, "repair-accuracy", "Frozen", "gcn", "average")
    assert (row["value"], row["count"]) == (pytest.approx(88.5), 2)
    column = entry(tables, "repair-accuracy", "Frozen", "average", "cora")
    assert (column["value"], column["count"]) == (pytest.approx(84.0), 2)
    own = entry(tables, "repair-accuracy", "Frozen", "average", "mine")
    assert (own["value"], own["published"], own["count"]) == (pytest.approx(15.0), None, 1)
    assert "; 3 cases)" in RENDERERS["markdown"](tables)


def test_a_case_without_results_is_empty_and_counts_nowhere():
    cell = entry(make_tables(records()), "repair-accuracy", "Frozen", "sgc", "pubmed")
    assert (cell["value"], cell["published"], cell["outside"]) == (None, None, False)


def test_the_controls_add_up():
    tables = make_tables(records(), ["controls"])
    macro = entry(tables, "controls", "Macro means", "Set translation", "accuracy")
    assert macro["value"] == pytest.approx((91 + 83 + 92) / 3)
    assert macro["published"] == pytest.approx((88.1 + 88.3 + 89.4) / 3)
    change = entry(tables, "controls", "Macro means", "Set translation", "gain over Frozen")
    assert change["value"] == pytest.approx(3.0)
    assert change["published"] == pytest.approx((0.0 - 0.3 + 0.2) / 3)
    won = entry(tables, "controls", "Macro means", "Set translation", "wins over Frozen")
    assert (won["value"], won["published"], won["count"]) == (3, 1, 3)
    lost = entry(tables, "controls", "Macro means", "Refit head", "wins over Frozen")
    assert (lost["value"], lost["published"]) == (0, 0)
    tied = entry(tables, "controls", "Macro means", "Reweight", "wins over Frozen")
    assert tied["value"] == 0
    duel = entry(
        tables, "controls", "Value of the message set", "Set over node translation", "wins"
    )
    assert (duel["value"], duel["published"], duel["count"]) == (3, 1, 3)
    smooth = "Correct and smooth (not in the paper)"
    outside_paper = entry(tables, "controls", "Macro means", smooth, "accuracy")
    assert (outside_paper["published"], outside_paper["count"]) == (None, 3)
    change = entry(tables, "controls", "Macro means", smooth, "gain over Frozen")
    frozen = entry(tables, "controls", "Macro means", "Frozen", "accuracy")
    assert change["value"] == pytest.approx(outside_paper["value"] - frozen["value"])


def test_cases_that_are_not_in_the_paper_have_averages_of_their_own():
    tables = make_tables(records(), ["controls"])
    own = entry(tables, "controls", "Macro means, not in the paper", "Frozen", "accuracy")
    assert (own["value"], own["published"], own["count"]) == (pytest.approx(15.0), None, 1)
    only_theirs = [record for record in records() if record.dataset != "mine"]
    (table,) = make_tables(only_theirs, ["controls"])
    assert [sheet.title for sheet in table.sheets] == ["Macro means", "Value of the message set"]
    (table,) = make_tables([r for r in records() if r.dataset == "mine"], ["controls"])
    assert [sheet.title for sheet in table.sheets] == ["Macro means", "Value of the message set"]


def test_the_published_macro_averages_follow_from_the_published_cells():
    """Our arithmetic, applied to the published cells, gives the published averages."""
    for name, table in published()["tables"].items():
        cells = {
            (backbone, dataset): Figure(value, value)
            for backbone, row in table["cells"].items()
            for dataset, value in row.items()
            if dataset != "average"
        }
        macro = average(cells, cells)
        assert macro.count == 64
        assert macro.value == pytest.approx(table["average"]["macro"], abs=0.06), name


def test_the_published_wins_follow_from_the_published_cells():
    """53 cases over Frozen and 40 over node translation, up to cells that round to a tie."""
    tables = published()["tables"]
    figures = {
        name: {
            (b, d): Figure(v, v)
            for b, row in tables[name]["cells"].items()
            for d, v in row.items()
            if d != "average"
        }
        for name in ("frozen", "set_translation", "node_translation")
    }
    over_frozen = wins(figures["set_translation"], figures["frozen"])
    over_node = wins(figures["set_translation"], figures["node_translation"])
    assert over_frozen.count == over_node.count == 64
    assert abs(over_frozen.value - 53) <= 5
    assert abs(over_node.value - 40) <= 5
    advantage = gain(figures["set_translation"], figures["node_translation"])
    assert advantage.value == pytest.approx(0.63, abs=0.05)


def test_wins_count_in_the_digits_of_the_published_values():
    """88.04 against 88.00 is a tie once both are written as the paper writes them."""
    close = {("gcn", "cora"): Figure(88.04, 88.1), ("sgc", "cora"): Figure(88.06, 88.1)}
    frozen = {("gcn", "cora"): Figure(88.00, 88.1), ("sgc", "cora"): Figure(88.04, 88.0)}
    found = wins(close, frozen)
    assert (found.value, found.published, found.count) == (1, 1, 2)
    made = [make_record("cora", "gcn", 0, 0.8801), make_record("pubmed", "gcn", 0, 0.8801)]
    for record, shift in zip(made, (0.0002, 0.0010), strict=True):
        record.methods["set_translation"]["test"] = record.frozen["test"] + shift
    tables = make_tables(made, ["controls"])
    won = entry(tables, "controls", "Macro means", "Set translation", "wins over Frozen")
    assert (won["value"], won["count"]) == (1, 2)


def test_reach_and_support_come_from_the_test_nodes():
    tables = make_tables(records())
    reach = entry(tables, "exposure-oracle", "True-class reach (%)", "gcn", "cora")
    assert (reach["value"], reach["published"]) == (pytest.approx(90.0), 95.3)
    assert reach["outside"] is True
    support = entry(tables, "exposure-oracle", "Active support", "gcn", "cora")
    assert (support["value"], support["published"], support["outside"]) == (1.5, 1.12, True)


def test_chance_stands_beside_reach():
    made = [make_record("cora", "gcn", split) for split in (0, 1, 2)]
    for record, chance in zip(made, (0.1, 0.3), strict=False):  # the third is of version 0.2
        figures = {"chance_reach": chance, "excess": 0.5 - chance, "reachable_classes": 2.0}
        record.oracle["test"] = record.oracle["test"] | figures
    tables, sheet = make_tables(made), "exposure-oracle"
    chance = entry(
        tables, sheet, "Chance: classes neither true nor predicted, at errors (%)", "gcn", "cora"
    )
    assert (chance["value"], chance["count"]) == (pytest.approx(20.0), 2)
    excess = entry(tables, sheet, "Excess of error reach over chance (points)", "gcn", "cora")
    assert excess["value"] == pytest.approx(30.0)
    classes = entry(tables, sheet, "Classes that can win, per error", "gcn", "cora")
    assert classes["value"] == pytest.approx(2.0)


def test_dataset_statistics_are_compared_exactly():
    tables = make_tables(records(), ["dataset-statistics"])
    nodes = entry(tables, "dataset-statistics", "Dataset statistics", "cora", "nodes")
    assert (nodes["value"], nodes["published"], nodes["outside"]) == (20, 2708, True)
    own = entry(tables, "dataset-statistics", "Dataset statistics", "mine", "nodes")
    assert (own["value"], own["published"], own["outside"]) == (20, None, False)
    shares = entry(tables, "dataset-statistics", "Dataset statistics", "mine", "train/val/test")
    assert shares["text"] == "50/25/25"


def test_minutes_add_up_by_stage_and_dataset():
    spent = {"frozen": 30.0, "reweighting": 90.0, "total": 126.0}
    made = [make_record("cora", "gcn", k, seconds=spent) for k in range(2)]
    made.append(make_record("mine", "gcn", 0, seconds={"frozen": 6.0, "total": 12.0}))
    tables = make_tables(made, ["time"])
    for row, column, minutes in [
        ("frozen", "cora", "1.00"),
        ("frozen", "all", "1.10"),
        ("Reweight", "cora", "3.00"),
        ("Reweight", "mine", "0.00"),
        ("total", "all", "4.40"),
    ]:
        assert entry(tables, "time", "Minutes", row, column)["text"] == minutes
    assert list(tables[0].sheets[0].rows)[-1] == "total"


def test_fewer_splits_than_usual_are_said():
    sheet = make_tables(records(), ["repair-accuracy"])[0].sheets[0]
    text = RENDERERS["markdown"](make_tables(records(), ["repair-accuracy"]))
    assert "15.0 ± 7.1 [2 splits]" in text
    assert remark(sheet).startswith("Mean ± standard deviation over 3 splits")
    assert "2 of 3 cases within 1.5 of the published value" in remark(sheet)


def test_csv_and_json_hold_the_same_facts():
    tables = make_tables(records())
    rows = list(csv.DictReader(io.StringIO(RENDERERS["csv"](tables))))
    objects = json.loads(RENDERERS["json"](tables))
    assert len(rows) == len(objects) > 50
    for row, item in zip(rows, objects, strict=True):
        assert row == {key: "" if value is None else str(value) for key, value in item.items()}


def test_numbers_are_typeset():
    assert number(-0.04, 1) == "0.0"
    assert number(-0.06, 1, signed=True) == "−0.1"
    assert number(0.06, 1, signed=True) == "+0.1"
    assert number(10_740, 0) == "10,740"
    assert number(None, 1) == "–"
    assert plain(Figure(None, 3.0), 10) == "– (3.0)"


def test_an_unknown_table_is_named():
    with pytest.raises(InputError, match="there is no table 'nonsense'"):
        make_tables(records(), ["nonsense"])


@pytest.fixture
def store(tmp_path):
    held = Store(tmp_path / "store")
    held.begin(PAPER)
    for record in records():
        held.put(record)
    return held


def test_results_are_long(store):
    frame = read_results(store.root)
    chosen = frame.query(
        "dataset == 'cora' and backbone == 'gcn' and method == 'set_translation' "
        "and part == 'test' and metric == 'accuracy'"
    )
    assert chosen["value"].tolist() == pytest.approx([0.89, 0.91, 0.93])
    assert chosen["split"].tolist() == [0, 1, 2]
    assert set(frame["protocol"]) == {PAPER.digest}
    reach = frame.query("method == 'oracle' and part == 'test' and metric == 'error_reach'")
    assert statistics.fmean(reach["value"]) == 0.5
    assert len(reach) == len(records())
    assert frame.query("metric == 'status: optimal'")["value"].unique().tolist() == [20.0]
    with pytest.raises(InputError, match=f"no result of protocol 0+; it has {PAPER.digest}"):
        read_results(store.root, "0" * 12)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_results_are_exported(store, tmp_path, ending):
    path = tmp_path / f"results.{ending}"
    count = export_results(store.root, path)
    read = pd.read_csv(path, keep_default_na=False) if ending == "csv" else pd.read_parquet(path)
    assert len(read) == count
    expected = read_results(store.root)
    assert read["value"].astype(float).tolist() == pytest.approx(expected["value"].tolist())
    assert read["method"].tolist() == expected["method"].tolist()


def test_bad_exports_are_refused(store, tmp_path):
    with pytest.raises(InputError, match=r"neither .csv nor .parquet"):
        export_results(store.root, tmp_path / "results.xlsx")
    with pytest.raises(InputError, match="there is no store"):
        read_results(tmp_path / "absent")
