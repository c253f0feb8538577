"""The paper's six tables from a store, ours beside the published numbers, and more of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnn_repair.errors import InputError
from gnn_repair.published import published
from gnn_repair.repair.methods import title_of
from gnn_repair.study.beyond import BEYOND
from gnn_repair.study.cells import (
    Cells,
    Figure,
    accuracy,
    average,
    best_of,
    case_figures,
    errors_fixed,
    gain,
    in_paper,
    mark_best,
    reach,
    shifts_inside,
    support,
    wins,
)
from gnn_repair.study.further_tables import evidence, gains, parameters, readout_exposure
from gnn_repair.study.methods import METHODS
from gnn_repair.study.records import Record
from gnn_repair.study.sheets import TITLES as TITLES
from gnn_repair.study.sheets import Entry as Entry
from gnn_repair.study.sheets import Sheet as Sheet
from gnn_repair.study.sheets import Table as Table
from gnn_repair.study.sheets import ordered_datasets, panel, with_best_macro
from gnn_repair.suggestion import suggestion


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
            hint = suggestion(str(name), TABLES)
            raise InputError(f"there is no table {name!r:.80}; {hint}")
    return [TABLES[name](held) for name in chosen]


REPAIRS = ("reweighting", "set_translation")
"""The learned repairs among which the paper prints the best one in bold."""


def _exposure_oracle(records: Sequence[Record]) -> Table:
    panels = (
        ("True-class reach (%)", reach("true_class_reach")),
        ("Error reach (%)", reach("error_reach")),
        ("Active support", support()),
    )
    sheets = tuple(panel(title, kind, records) for title, kind in panels)
    return Table("exposure-oracle", "Exact-mass oracle on test nodes", sheets)


def _repair_accuracy(records: Sequence[Record]) -> Table:
    cells = {name: case_figures(records, accuracy(name)) for name in ("frozen", *REPAIRS)}
    marked = cells | mark_best({name: cells[name] for name in REPAIRS}, cells["frozen"])
    macro = {name: average(found, found).value for name, found in cells.items()}
    best = best_of({name: macro[name] for name in REPAIRS}, macro["frozen"])
    sheets = tuple(
        with_best_macro(sheet) if name == best else sheet
        for name in cells
        for sheet in [panel(title_of(name), accuracy(name), records, marked[name])]
    )
    return Table("repair-accuracy", "Test accuracy (%) of frozen models and repairs", sheets)


def _full_controls(records: Sequence[Record]) -> Table:
    shown = [
        name
        for name, method in METHODS.items()
        if name in ("refit_head", "node_translation")
        or (not method.from_paper and any(name in record["methods"] for record in records))
    ]
    sheets = tuple(panel(_title(name), accuracy(name), records) for name in shown)
    return Table("full-controls", "Test accuracy (%) of the controls", sheets)


def _title(name: str) -> str:
    method = METHODS[name]
    return method.title + ("" if method.from_paper else " (not in the paper)")


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
    macros = {name: average(cells, cells, 2, 0.5) for name, cells in present.items()}
    ranked = {name: macros[name].value for name in macros if name in METHODS}
    best = best_of(
        {n: v for n, v in ranked.items() if METHODS[n].from_paper}, macros["frozen"].value
    )
    rows: dict[str, tuple[Entry, ...]] = {
        "Frozen": ("none", "no", macros["frozen"], "", "", "", "")
    }
    for name in ranked:
        change = gain(present[name], present["frozen"])
        rows[_title(name)] = (
            METHODS[name].output,
            "yes" if METHODS[name].message_set else "no",
            *(replace(figure, best=name == best) for figure in (macros[name], change)),
            wins(present[name], present["frozen"]),
            *_use_of_evidence(name, records),
        )
    sheets = [Sheet("Macro means" + where, "method", COLUMNS, rows)]
    if {"set_translation", "node_translation"} <= set(present):
        first, second = present["set_translation"], present["node_translation"]
        duel = {"Set over node translation": (gain(first, second), wins(first, second))}
        title = "Value of the message set" + where
        sheets.append(Sheet(title, "comparison", ("gain", "wins"), duel))
    return sheets


COLUMNS = (
    *("learned output", "message set", "accuracy", "gain over Frozen", "wins over Frozen"),
    *("reachable errors fixed (%)", "shifts inside D_v (%)"),
)
"""Of the controls' table; the last two are not in the paper."""


def _use_of_evidence(name: str, records: Sequence[Record]) -> tuple[Entry, Entry]:
    """How a method uses what reweighting could do; words where a method has no shifts at all."""
    fixed, inside = (
        _macro(case_figures(records, kind(name))) for kind in (errors_fixed, shifts_inside)
    )
    return fixed, inside if METHODS[name].output == "centred shift" else ""


def _macro(cells: Cells) -> Figure:
    return average(cells, cells) if cells else Figure(None)


def _dataset_statistics(records: Sequence[Record]) -> Table:
    facts = {record["dataset"]: record for record in records}
    rows: dict[str, tuple[Entry, ...]] = {}
    for name in ordered_datasets(records):
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
    datasets = ordered_datasets(records)
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
    "readout-exposure": readout_exposure,
    "gains": gains,
    "evidence": evidence,
    "parameters": parameters,
    "time": _time,
}
"""The paper's six tables by name; gains by dataset, the use made of reachable evidence, numbers of
parameters, and what it all cost."""
TABLES: dict[str, Callable[[Sequence[Record]], Table]] = {**_USUAL, **BEYOND}
"""Those, and what goes beyond the paper, which must be asked for."""
