"""The paper's five tables from a store, ours beside the published numbers, and the time spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gnn_repair.backbones.titles import TITLES as TITLES
from gnn_repair.errors import InputError
from gnn_repair.published import published
from gnn_repair.repair.methods import title_of
from gnn_repair.study.beyond import BEYOND
from gnn_repair.study.cells import (
    Cells,
    Figure,
    Kind,
    accuracy,
    average,
    case_figures,
    gain,
    in_paper,
    reach,
    support,
    wins,
)
from gnn_repair.study.methods import METHODS
from gnn_repair.study.records import Record
from gnn_repair.study.sheets import Entry as Entry
from gnn_repair.study.sheets import Sheet as Sheet
from gnn_repair.study.sheets import Table as Table


def make_tables(records: Iterable[Record], names: Iterable[str] | None = None) -> list[Table]:
    """The tables of these names from the records of one protocol; the paper's unless given."""
    if not isinstance(records, Iterable):
        raise InputError(f"records is {records!r:.60}; give those of a Store")
    held = list(records)
    for record in held:
        if not isinstance(record, Mapping) or not isinstance(record.get("methods"), Mapping):
            raise InputError(f"{record!r:.60} is not a record; give those of a Store")
    if isinstance(names, str) or not (names is None or isinstance(names, Iterable)):
        raise InputError(f"names is {names!r:.60}; give a list, of {', '.join(TABLES)}")
    chosen = list(_USUAL) if names is None else list(names)
    for name in chosen:
        if name not in TABLES:
            raise InputError(f"there is no table {name!r:.80}; choose from {', '.join(TABLES)}")
    return [TABLES[name](held) for name in chosen]


def _exposure_oracle(records: Sequence[Record]) -> Table:
    panels = (
        ("True-class reach (%)", reach("true_class_reach")),
        ("Error reach (%)", reach("error_reach")),
        ("Active support", support()),
    )
    sheets = tuple(_panel(title, kind, records) for title, kind in panels)
    return Table("exposure-oracle", "Exact-mass oracle on test nodes", sheets)


def _repair_accuracy(records: Sequence[Record]) -> Table:
    panels = ("frozen", "reweighting", "set_translation")
    sheets = tuple(_panel(title_of(name), accuracy(name), records) for name in panels)
    return Table("repair-accuracy", "Test accuracy (%) of frozen models and repairs", sheets)


def _full_controls(records: Sequence[Record]) -> Table:
    shown = [
        name
        for name, method in METHODS.items()
        if name in ("refit_head", "node_translation")
        or (not method.from_paper and any(name in record["methods"] for record in records))
    ]
    sheets = tuple(_panel(_title(name), accuracy(name), records) for name in shown)
    return Table("full-controls", "Test accuracy (%) of the controls", sheets)


def _title(name: str) -> str:
    method = METHODS[name]
    return method.title + ("" if method.from_paper else " (not in the paper)")


def _panel(title: str, kind: Kind, records: Sequence[Record]) -> Sheet:
    """Backbones × datasets with averages at the right and below."""
    cells = case_figures(records, kind)
    datasets = _ordered({record["dataset"] for record in records}, published()["datasets"])
    backbones = _ordered({record["backbone"] for record in records}, TITLES)
    rows: dict[str, tuple[Entry, ...]] = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(None, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    everything = [address for column in columns for address in column]
    macro = average(cells, everything, kind.digits, kind.macro_tolerance)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    return Sheet(title, "backbone", (*datasets, "average"), rows, _summary(cells, kind))


def _summary(cells: Cells, kind: Kind) -> str:
    judged = [figure for figure in cells.values() if figure.difference is not None]
    if not judged:
        return ""
    within = sum(not figure.outside for figure in judged)
    cases = "case" if len(judged) == 1 else "cases"
    return f"{within} of {len(judged)} {cases} within {kind.tolerance:g} of the published value"


def _ordered(names: set[str], first: Iterable[str]) -> list[str]:
    """Published names in the paper's order, then the others by name."""
    known = [name for name in first if name in names]
    return known + sorted(names - set(known))


def _controls(records: Sequence[Record]) -> Table:
    """Macro means over the paper's cases, and over others if there are any; who wins where."""
    parts: dict[bool, list[Record]] = {True: [], False: []}
    for record in records:
        parts[in_paper((record["backbone"], record["dataset"]))].append(record)
    elsewhere = ", not in the paper" if parts[True] else ""
    sheets = _macro_sheets(parts[True], "") + _macro_sheets(parts[False], elsewhere)
    return Table("controls", "Controls: test accuracy (%) over cases", tuple(sheets))


def _macro_sheets(records: Sequence[Record], where: str) -> list[Sheet]:
    by_name = {name: case_figures(records, accuracy(name)) for name in ("frozen", *METHODS)}
    present = {name: cells for name, cells in by_name.items() if cells}
    if not present:
        return []
    rows: dict[str, tuple[Entry, ...]] = {}
    for name, cells in present.items():
        macro = average(cells, cells, 2, 0.5)
        if name == "frozen":
            rows["Frozen"] = ("none", "no", macro, "", "")
            continue
        method, frozen = METHODS[name], present["frozen"]
        reads = "yes" if method.message_set else "no"
        changes = (gain(cells, frozen), wins(cells, frozen))
        rows[_title(name)] = (method.output, reads, macro, *changes)
    columns = ("learned output", "message set", "accuracy", "gain over Frozen", "wins over Frozen")
    sheets = [Sheet("Macro means" + where, "method", columns, rows)]
    if {"set_translation", "node_translation"} <= set(present):
        first, second = present["set_translation"], present["node_translation"]
        duel = {"Set over node translation": (gain(first, second), wins(first, second))}
        title = "Value of the message set" + where
        sheets.append(Sheet(title, "comparison", ("gain", "wins"), duel))
    return sheets


def _dataset_statistics(records: Sequence[Record]) -> Table:
    facts = {record["dataset"]: record for record in records}
    rows: dict[str, tuple[Entry, ...]] = {}
    for name in _ordered(set(facts), published()["datasets"]):
        graph, paper = facts[name]["graph"], published()["datasets"].get(name, {})
        figures = [
            Figure(graph.get(key), paper.get(key), digits=0, tolerance=0.0, counted="")
            for key in ("nodes", "entries", "features", "classes")
        ]
        rows[name] = (*figures, _shares(graph), paper.get("splits", "–"))
    columns = ("nodes", "entries", "features", "classes", "train/val/test", "published splits")
    sheet = Sheet("Dataset statistics", "dataset", columns, rows)
    return Table("dataset-statistics", "Datasets after preprocessing", (sheet,))


def _shares(graph: Mapping[str, Any]) -> str:
    """The sizes of the parts in per cent of the labelled nodes."""
    sizes = [int(graph.get(part) or 0) for part in ("train", "val", "test")]
    total = sum(sizes) or 1
    return "/".join(f"{100 * size / total:.0f}" for size in sizes)


def _time(records: Sequence[Record]) -> Table:
    """Minutes by stage and dataset; cases that shared a machine each count their whole time."""
    datasets = _ordered({record["dataset"] for record in records}, published()["datasets"])
    sums: dict[str, dict[str, float]] = {}
    for record in records:
        for stage, seconds in record.get("seconds", {}).items():
            seconds = seconds or 0.0
            line = sums.setdefault(stage, dict.fromkeys(datasets, 0.0))
            line[record["dataset"]] += seconds / 60
    sums["total"] = sums.pop("total", {})
    rows: dict[str, tuple[Entry, ...]] = {
        _stage(stage): tuple(f"{m:.2f}" for m in (*line.values(), sum(line.values())))
        for stage, line in sums.items()
        if line
    }
    sheet = Sheet("Minutes", "stage", (*datasets, "all"), rows)
    return Table("time", "Where the time went", (sheet,))


def _stage(name: str) -> str:
    return name if name == "frozen" else title_of(name)


_USUAL: dict[str, Callable[[Sequence[Record]], Table]] = {
    "exposure-oracle": _exposure_oracle,
    "repair-accuracy": _repair_accuracy,
    "controls": _controls,
    "full-controls": _full_controls,
    "dataset-statistics": _dataset_statistics,
    "time": _time,
}
"""The paper's five tables by name, and what they cost."""
TABLES: dict[str, Callable[[Sequence[Record]], Table]] = {**_USUAL, **BEYOND}
"""Those, and what goes beyond the paper, which must be asked for."""
