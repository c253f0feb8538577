"""Every figure of every table, recomputed from the records' rows by code that shares nothing."""

from __future__ import annotations

import json
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
from gnn_repair.results.averages import (
    Figure,
    average,
    gain,
    wins,
)
from gnn_repair.results.rendering import facts
from gnn_repair.results.store import merge, pack
from gnn_repair.results.tables import TABLES
from gnn_repair.study import PAPER, RENDERERS, Store, export_results, make_tables, read_results
from tests.helpers.study.planted_records import make_record, random_records
from tests.helpers.study.tiny import tiny_graph

# Every figure of every table, recomputed from the records' rows by code that shares nothing.

ROOT = Path(gnn_repair.__file__).parent
PUBLISHED = json.loads((ROOT / "paper.json").read_text(encoding="utf-8"))["tables"]
TITLE = {name: method.title for name, method in METHODS.items()} | {"frozen": "Frozen"}
SEEDS = range(3)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values and None not in values else None


def known(case):
    return case[1] in PUBLISHED["frozen"]["cells"].get(case[0], {})


def by_case(rows, read):
    """The values of the splits that have one, by backbone and dataset."""
    out = {}
    for row in rows:
        value = read(row)
        if value is not None:
            out.setdefault((row["backbone"], row["dataset"]), []).append(value)
    return out


def chosen(cases, among):
    """Cases of the paper, or all where none is."""
    there = [case for case in among if case in cases]
    return [case for case in there if known(case)] or there


def times(factor, value):
    return None if value is None else factor * value


def accuracy_of(method, key="test"):
    def read(row):
        own = row["frozen"] if method == "frozen" else row["methods"].get(method, {})
        return times(100, own.get(key))

    return read


def oracle(name, factor=100):
    return lambda row: times(factor, ((row["oracle"] or {}).get("test") or {}).get(name))


def share(method, part):
    """Of a method's own count, or of the oracle's where errors are fixed."""

    def read(row):
        own, whole = row["methods"].get(method, {}), oracle("reachable_errors", 1)(row)
        whole = whole if part == "reachable_errors_fixed" else own.get("shifts")
        return None if own.get(part) is None or not whole else 100 * own[part] / whole

    return read


def agree(fact, value, **others):
    for name, expected in ({"value": value} | others).items():
        found = fact[name]
        assert (found is None) == (expected is None), (fact, name, expected)
        assert found is None or found == pytest.approx(expected, abs=1e-9), (fact, name, expected)


def agree_panel(found, rows, place, read, paper=None, tolerance=0.0, macro=0.0, upper=None):
    """A sheet of backbones × datasets: cells, averages, what stands out."""
    values, table = by_case(rows, read), PUBLISHED.get(paper, {}).get("cells", {})
    backbones, datasets = {r["backbone"] for r in rows}, {r["dataset"] for r in rows}
    tops = {}
    for case, own in values.items():
        mine = [r for r in rows if (r["backbone"], r["dataset"]) == case and read(r) is not None]
        highest = [read(r) if upper is None or upper(r) is None else upper(r) for r in mine]
        tops[case] = mean(highest) if highest != own else None
    published = {case: table.get(case[0], {}).get(case[1]) for case in values}

    def averaged(among, tolerance=None):
        used = chosen(values, among)
        own, theirs = mean(mean(values[c]) for c in used), mean(published[c] for c in used)
        above = None
        if any(tops[c] is not None for c in used):
            above = mean(mean(values[c]) if tops[c] is None else tops[c] for c in used)
        gap = None if own is None or theirs is None else own - theirs
        out = gap is not None and tolerance is not None and abs(gap) > tolerance + 1e-9
        return {"value": own, "published": theirs, "upper": above, "difference": gap,
                "count": len(used), "outside": out}  # fmt: skip

    for backbone, dataset in product(backbones, datasets):
        case = backbone, dataset
        own, theirs = values.get(case), published.get(case)
        fact = found[*place, backbone, dataset]
        if own is None:
            agree(fact, None, std=None, count=0)
            continue
        centre = mean(own)
        spread = (sum((v - centre) ** 2 for v in own) / (len(own) - 1)) ** 0.5 if own[1:] else None
        gap = None if theirs is None else centre - theirs
        agree(fact, centre, std=spread, count=len(own), published=theirs, upper=tops[case],
              difference=gap, outside=gap is not None and abs(gap) > tolerance + 1e-9)  # fmt: skip
    for backbone in backbones:
        agree(found[*place, backbone, "average"], **averaged([(backbone, d) for d in datasets]))
    for dataset in datasets:
        agree(found[*place, "average", dataset], **averaged([(b, dataset) for b in backbones]))
    everything = averaged(product(backbones, datasets), macro)
    agree(found[*place, "average", "average"], **everything)


def compared(first, second):
    """Gain and wins of one method over another, with the published ones."""
    used = chosen(first, [case for case in first if case in second])
    pairs = [(mean(first[c]), mean(second[c])) for c in used]
    won = sum(round(a, 1) > round(b, 1) for a, b in pairs)
    a, b = mean(x for x, _ in pairs), mean(y for _, y in pairs)
    return (None if a is None else a - b), won, len(used)


@pytest.fixture(params=SEEDS, scope="module")
def told(request):
    """Records as rows, and every entry of every table by its place."""
    records = random_records(request.param)
    made = {
        (f["table"], f["sheet"], f["row"], f["column"]): f
        for f in facts(make_tables(records, TABLES))
    }
    return [json.loads(json.dumps(r.as_json())) for r in records], made


def test_panels(told):
    rows, found = told
    for name, title in TITLE.items():
        main = name in ("frozen", "reweighting", "set_translation")
        table = "repair-accuracy" if main else "full-controls"
        method = METHODS.get(name)
        words = title if method is None or method.from_paper else f"{title} (not in the paper)"
        if by_case(rows, accuracy_of(name)):
            agree_panel(found, rows, (table, words), accuracy_of(name), name, 1.5, 0.5)
    place = "exposure-oracle"
    titles = {"true_class_reach": "True-class reach (%)", "error_reach": "Error reach (%)"}
    for name, title in titles.items():
        upper = oracle(f"{name}_possible")
        agree_panel(found, rows, (place, title), oracle(name), name, 2.5, 2.0, upper)
    title = "Chance: classes neither true nor predicted, at errors (%)"
    agree_panel(found, rows, (place, title), oracle("chance_reach"))
    title, upper = "Excess of error reach over chance (points)", oracle("excess_possible")
    agree_panel(found, rows, (place, title), oracle("excess"), upper=upper)
    title = "Classes that can win, per error"
    agree_panel(found, rows, (place, title), oracle("reachable_classes", 1))
    agree_panel(found, rows, (place, "Active support"), oracle("support", 1), "support", 0.15, 0.15)
    title = "Reachable errors that learned reweighting fixes (%)"
    agree_panel(found, rows, ("evidence", title), share("reweighting", "reachable_errors_fixed"))
    title = "Learned set translations inside D_v (%)"
    agree_panel(found, rows, ("evidence", title), share("set_translation", "shifts_inside"))
    terms = lambda r: times(1 / r["graph"]["nodes"], r["frozen"].get("terms"))  # noqa: E731
    agree_panel(found, rows, ("readout-exposure", "Adjustable terms per node"), terms)


def test_controls_and_gains(told):
    rows, found = told
    datasets = {r["dataset"] for r in rows}
    for inside in (True, False):
        part = [r for r in rows if known((r["backbone"], r["dataset"])) is inside]
        anywhere = any(known((r["backbone"], r["dataset"])) for r in rows)
        where = "" if inside or not anywhere else ", not in the paper"
        cells = {name: by_case(part, accuracy_of(name)) for name in TITLE}
        means = {n: mean(mean(v) for v in c.values()) for n, c in cells.items() if c}
        ours = {n: means[n] for n in METHODS if METHODS[n].from_paper and n in means}
        top = max(ours.values(), default=0)
        best = next((n for n in ours if ours[n] == top and top > means["frozen"]), None)
        for name in (name for name in METHODS if cells[name]):
            title = TITLE[name] + ("" if METHODS[name].from_paper else " (not in the paper)")
            place = ("controls", "Macro means" + where, title)
            change, won, count = compared(cells[name], cells["frozen"])
            agree(found[*place, "accuracy"], means[name], count=len(cells[name]), best=name == best)
            agree(found[*place, "gain over Frozen"], change, count=count, best=name == best)
            agree(found[*place, "wins over Frozen"], won, count=count)
            fixed = by_case(part, share(name, "reachable_errors_fixed"))
            expected = mean(mean(v) for v in fixed.values())
            agree(found[*place, "reachable errors fixed (%)"], expected, count=len(fixed))
    cells = {name: by_case(rows, accuracy_of(name)) for name in TITLE}
    for name in (name for name in METHODS if cells[name]):
        for dataset in datasets:
            first, second = (
                {c: v for c, v in cells[n].items() if c[1] == dataset} for n in (name, "frozen")
            )
            change, _, count = compared(first, second)
            fact = found["gains", "Gain in points of test accuracy", TITLE[name], dataset]
            agree(fact, change, count=count)
        fact = found["gains", "Gain in points of test accuracy", TITLE[name], "all"]
        agree(fact, compared(cells[name], cells["frozen"])[0])


def stored(records, folder):
    store = Store(folder)
    store.begin(PAPER)
    for record in records:
        store.put(record)
    return store


def test_order_packing_merging_and_repeating_change_nothing(tmp_path):
    records = random_records(0)
    held = stored(records, tmp_path / "whole")
    expected = RENDERERS["json"](make_tables(held.records(PAPER.digest), TABLES))
    for place, part in enumerate((records[::2], records[1::2] + records[:3])):  # three in both
        stored(part, tmp_path / f"half-{place}")
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
    store, path = stored(records, tmp_path / "store").root, tmp_path / f"results.{ending}"
    frame = read_results(store)
    keys = ["dataset", "backbone", "split", "method", "part", "metric"]
    assert not frame.duplicated(keys).any()
    accuracies = frame[(frame.metric == "accuracy") & (frame.part == "test")].dropna()
    expected = by_case([r.as_json() for r in records], accuracy_of("reweighting"))
    own = accuracies[accuracies.method == "reweighting"].groupby(["backbone", "dataset"]).value
    assert {case: sorted(100 * v) for case, v in own} == {
        case: pytest.approx(sorted(values)) for case, values in expected.items()
    }
    count = export_results(store, path)
    read = pd.read_csv(path, keep_default_na=False) if ending == "csv" else pd.read_parquet(path)
    assert len(read) == len(frame) == count
    values = pd.to_numeric(read.pop("value"), errors="coerce")
    assert values.tolist() == pytest.approx(frame.pop("value").tolist(), nan_ok=True)
    assert read.values.tolist() == frame.values.tolist()


def test_our_arithmetic_gives_the_published_averages_and_wins():
    """53 cases over Frozen and 40 over node translation, up to cells that round to a tie."""
    cells = {
        name: {
            (b, d): Figure(v, v)
            for b, row in table["cells"].items()
            for d, v in row.items()
            if d != "average"
        }
        for name, table in PUBLISHED.items()
    }
    for name, own in cells.items():
        macro = average(own, own)
        assert macro.count == 64
        assert macro.value == pytest.approx(PUBLISHED[name]["average"]["macro"], abs=0.06), name
    ours = cells["set_translation"]
    for other, won in (("frozen", 53), ("node_translation", 40)):
        assert abs(wins(ours, cells[other]).value - won) <= 5
        assert abs(wins(ours, cells[other]).published - won) <= 5
    assert gain(ours, cells["node_translation"]).value == pytest.approx(0.63, abs=0.05)


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
