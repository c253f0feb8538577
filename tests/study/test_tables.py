"""Every figure of every table, recomputed from the records' rows by code that shares nothing."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

import gnn_repair
from gnn_repair.backbones import BACKBONES as ARCHITECTURES
from gnn_repair.backbones import Shape, train_backbone
from gnn_repair.budget import Budget
from gnn_repair.exposure import expose
from gnn_repair.methods import METHODS
from gnn_repair.published import BACKBONE_WORDS
from gnn_repair.results.rendering import facts
from gnn_repair.results.store import merge, pack
from gnn_repair.results.tables import TABLES
from gnn_repair.study import PAPER, RENDERERS, Store, export_results, make_tables, read_results
from tests.helpers.study.planted_records import make_record, random_records, stored
from tests.helpers.study.tiny import tiny_graph

# Every figure of every table, recomputed from the records' rows by code that shares nothing.

ROOT = Path(gnn_repair.__file__).parent
PUBLISHED = json.loads((ROOT / "paper.json").read_text(encoding="utf-8"))["tables"]
TITLE = {name: method.title for name, method in METHODS.items()} | {"frozen": "Frozen"}
PAPERS = {name for name, method in METHODS.items() if method.from_paper}
REPAIRS = ("reweighting", "set_translation")


def accuracy_of(method, key="test"):
    def read(row):
        own = row["frozen"] if method == "frozen" else row["methods"].get(method, {})
        return None if own.get(key) is None else 100 * own[key]

    return read


def oracle(name, factor=100):
    def read(row):
        value = ((row["oracle"] or {}).get("test") or {}).get(name)
        return None if value is None else factor * value

    return read


def share(method, part):
    """Of a method's own count, or of the oracle's where errors are fixed."""

    def read(row):
        own, whole = row["methods"].get(method, {}), oracle("reachable_errors", 1)(row)
        whole = whole if part == "reachable_errors_fixed" else own.get("shifts")
        return None if own.get(part) is None or not whole else 100 * own[part] / whole

    return read


def terms(row):
    held = row["frozen"].get("terms")
    return None if held is None else held / row["graph"]["nodes"]


def nothing(row):
    return None


def cells_of(rows, read, upper=nothing, paper=None):
    """A line per case that has a value, over its splits; what the paper has beside it."""
    table = PUBLISHED.get(paper, {}).get("cells", {})
    columns = ["backbone", "dataset", "value", "upper"]
    lines = [(r["backbone"], r["dataset"], read(r), upper(r)) for r in rows]
    frame = pd.DataFrame(lines, columns=columns).dropna(subset="value").set_index(columns[:2])
    frame = frame.astype(float)
    frame["upper"] = frame.upper.fillna(frame.value)
    cases = frame.groupby(level=[0, 1])
    cells = cases.mean()
    cells["std"], cells["count"] = cases.value.std(), cases.size()
    cells["upper"] = cells.upper.where((frame.upper != frame.value).groupby(level=[0, 1]).any())
    cells["published"] = [float(table.get(b, {}).get(d, "nan")) for b, d in cells.index]
    cells["known"] = [d in PUBLISHED["frozen"]["cells"].get(b, {}) for b, d in cells.index]
    return cells


def comparable(cells):
    """Cases of the paper, or all where none is."""
    return cells[cells.known] if cells.known.any() else cells


def averaged(cells):
    used = comparable(cells)
    upper = used.upper.fillna(used.value).mean() if used.upper.notna().any() else None
    published = used.published.mean(skipna=False)
    return {"value": used.value.mean(), "published": published, "upper": upper, "count": len(used)}


def agree(fact, tolerance=None, **expected):
    """A missing number is None in facts and NaN here."""
    if "published" in expected:
        gap = expected["difference"] = expected["value"] - expected["published"]
        expected["outside"] = tolerance is not None and bool(abs(gap) > tolerance + 1e-9)
    for name, value in expected.items():
        found = fact[name]
        assert (found is None) == (value is None or value != value), (fact, name, value)
        assert found is None or found == pytest.approx(value, abs=1e-9), (fact, name, value)


def agree_panel(told, place, read, paper=None, tolerance=0.0, macro=0.0, upper=nothing):
    """A sheet of backbones × datasets: cells, averages, what stands out."""
    rows, found = told
    cells = cells_of(rows, read, upper, paper)
    backbones, datasets = ({r[axis] for r in rows} for axis in ("backbone", "dataset"))
    for case in product(backbones, datasets):
        if case in cells.index:
            agree(found[*place, *case], tolerance, **cells.loc[case].drop("known"))
        else:
            agree(found[*place, *case], value=None, std=None, count=0)
    for name in backbones:
        line = cells[cells.index.get_level_values(0) == name]
        agree(found[*place, name, "average"], **averaged(line))
    for name in datasets:
        column = cells[cells.index.get_level_values(1) == name]
        agree(found[*place, "average", name], **averaged(column))
    agree(found[*place, "average", "average"], macro, **averaged(cells))


def compared(first, second):
    """Gain and wins of one method over another."""
    used = comparable(first[first.index.isin(second.index)]).value
    other = second.value.reindex(used.index)
    won = (used.round(1) > other.round(1)).sum()
    return used.mean() - other.mean(), won, len(used)


@pytest.fixture(params=range(3), scope="module")
def told(request):
    """Records as rows, and every entry of every table by its place."""
    records = random_records(request.param)
    made = {
        (f["table"], f["sheet"], f["row"], f["column"]): f
        for f in facts(make_tables(records, TABLES))
    }
    return [json.loads(json.dumps(r.as_json())) for r in records], made


def test_panels(told):
    for name, title in TITLE.items():
        table = "repair-accuracy" if name in (*REPAIRS, "frozen") else "full-controls"
        method, read = METHODS.get(name), accuracy_of(name)
        words = title if method is None or method.from_paper else f"{title} (not in the paper)"
        if len(cells_of(told[0], read)):
            agree_panel(told, (table, words), read, name, 1.5, 0.5)
    reaches = {"true_class_reach": "True-class reach (%)", "error_reach": "Error reach (%)"}
    for name, title in reaches.items():
        upper, place = oracle(f"{name}_possible"), ("exposure-oracle", title)
        agree_panel(told, place, oracle(name), name, 2.5, 2.0, upper)
    for table, title, *how in (
        ("exposure-oracle", "Chance: classes neither true nor predicted, at errors (%)",
         oracle("chance_reach")),
        ("exposure-oracle", "Excess of error reach over chance (points)", oracle("excess"),
         None, 0.0, 0.0, oracle("excess_possible")),
        ("exposure-oracle", "Classes that can win, per error", oracle("reachable_classes", 1)),
        ("exposure-oracle", "Active support", oracle("support", 1), "support", 0.15, 0.15),
        ("evidence", "Reachable errors that learned reweighting fixes (%)",
         share("reweighting", "reachable_errors_fixed")),
        ("evidence", "Learned set translations inside D_v (%)",
         share("set_translation", "shifts_inside")),
        ("readout-exposure", "Adjustable terms per node", terms),
    ):  # fmt: skip
        agree_panel(told, (table, title), *how)


def test_controls_and_gains(told):
    rows, found = told
    known = [r for r in rows if r["dataset"] in PUBLISHED["frozen"]["cells"].get(r["backbone"], {})]
    others = [r for r in rows if r not in known]
    for part, where in ((known, ""), (others, ", not in the paper" if known else "")):
        cells = {name: cells_of(part, accuracy_of(name)) for name in TITLE}
        means = {name: own.value.mean() for name, own in cells.items() if len(own)}
        ours = {name: means[name] for name in means if name in PAPERS}
        best = max(ours, key=ours.get) if max(ours.values()) > means["frozen"] else None
        for name in means.keys() & METHODS.keys():
            title = TITLE[name] + ("" if name in PAPERS else " (not in the paper)")
            place = ("controls", "Macro means" + where, title)
            change, won, count = compared(cells[name], cells["frozen"])
            bold = {"best": name == best, "count": count}
            agree(found[*place, "accuracy"], value=means[name], **bold)
            agree(found[*place, "gain over Frozen"], value=change, **bold)
            agree(found[*place, "wins over Frozen"], value=won, count=count)
            fixed = cells_of(part, share(name, "reachable_errors_fixed"))
            fact = found[*place, "reachable errors fixed (%)"]
            agree(fact, value=fixed.value.mean(), count=len(fixed))
    for name in TITLE.keys() & METHODS.keys():
        own, frozen = (cells_of(rows, accuracy_of(each)) for each in (name, "frozen"))
        for dataset in {r["dataset"] for r in rows} if len(own) else ():
            change, _, count = compared(own[own.index.get_level_values(1) == dataset], frozen)
            fact = found["gains", "Gain in points of test accuracy", TITLE[name], dataset]
            agree(fact, value=change, count=count)
        if len(own):
            fact = found["gains", "Gain in points of test accuracy", TITLE[name], "all"]
            agree(fact, value=compared(own, frozen)[0])


def test_advice_needs_a_gain_above_its_spread_over_splits(told):
    """Of one split the spread is not known."""
    cases = {}
    for (table, _, case, column), fact in told[1].items():
        if table == "lost-evidence":
            cases.setdefault(case, {})[column] = fact
    assert cases
    for facts_of in cases.values():
        advice = facts_of.pop("advice")["text"]
        known = [f for f in facts_of.values() if None not in (f["value"], f["std"])]
        gains = (f["value"] for f in known if f["value"] > max(f["std"], 1e-9))
        assert re.findall(r"\(([+-][\d.]+)\)", advice) == [
            f"{gain:+.1f}" for gain in sorted(gains, reverse=True)
        ]


def test_order_packing_merging_and_repeating_change_nothing(tmp_path):
    records = random_records(0)
    held = stored(tmp_path / "whole", *records)
    expected = RENDERERS["json"](make_tables(held.records(PAPER.digest), TABLES))
    for place, part in enumerate((records[::2], records[1::2] + records[:3])):  # three in both
        stored(tmp_path / f"half-{place}", *part)
    pack(tmp_path / "half-1", tmp_path / "half.jsonl")
    for order in (["half-0", "half.jsonl"], ["half.jsonl", "half-0", "whole", "half.jsonl"]):
        target = tmp_path / "-".join(order)
        merged = merge([tmp_path / name for name in order], target)
        assert (merged.added, merged.kept) == (len(records), ())
        again = Store(target).records(PAPER.digest)
        assert RENDERERS["json"](make_tables(again, TABLES)) == expected


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_frame_has_every_number_once_and_is_exported(tmp_path, ending):
    records = random_records(1)
    store, path = stored(tmp_path / "store", *records).root, tmp_path / f"results.{ending}"
    frame = read_results(store)
    keys = ["dataset", "backbone", "split", "method", "part", "metric"]
    assert not frame.duplicated(keys).any()
    accuracies = frame[(frame.metric == "accuracy") & (frame.part == "test")].dropna()
    expected = cells_of([r.as_json() for r in records], accuracy_of("reweighting"))
    own = accuracies[accuracies.method == "reweighting"].groupby(["backbone", "dataset"]).value
    pd.testing.assert_series_equal(100 * own.mean(), expected.value)
    assert (own.size() == expected["count"]).all()
    count = export_results(store, path)
    read = pd.read_csv(path, keep_default_na=False) if ending == "csv" else pd.read_parquet(path)
    assert len(read) == len(frame) == count
    values = pd.to_numeric(read.pop("value"), errors="coerce")
    assert values.tolist() == pytest.approx(frame.pop("value").tolist(), nan_ok=True)
    assert read.values.tolist() == frame.values.tolist()


# The exposure table's words.


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_exposure_tables_words_are_those_of_the_architecture(name):
    backbone = ARCHITECTURES[name](Shape(hidden=8, heads=2))
    frozen = train_backbone(
        backbone, tiny_graph(12), [0], device="cpu", budget=Budget(1, None, 1e-2, 0.0)
    )
    exposure, words = expose(frozen), BACKBONE_WORDS[name]
    assert exposure.num_groups == words.groups
    assert exposure.fixed == words.fixed
    assert words.coefficient == type(backbone).rule
    assert exposure.root is ("root" in words.fixed)
    both = [make_record("cora", backbone, 0) for backbone in (name, "mine")]
    told = {(f["row"], f["column"]): f for f in facts(make_tables(both, ["readout-exposure"]))}
    assert told[name, "groups"]["text"] == str(exposure.num_groups)
    assert told["mine", "groups"]["text"] == "–"
