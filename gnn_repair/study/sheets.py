"""What a table is made of: sheets of figures, and the sheet of backbones × datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gnn_repair.backbones.titles import TITLES as TITLES
from gnn_repair.published import published
from gnn_repair.study.cells import Address, Cells, Figure, Kind, average, case_figures
from gnn_repair.study.records import Record

DATASET_TITLES = {
    "actor": "Actor",
    "amazon-ratings": "Amazon-ratings",
    "chameleon": "Chameleon",
    "citeseer": "Citeseer",
    "cora": "Cora",
    "pubmed": "PubMed",
    "roman-empire": "Roman-empire",
    "squirrel": "Squirrel",
}
"""As the paper writes them."""

Entry = Figure | str
"""A figure, or words."""


@dataclass(frozen=True)
class Sheet:
    """Rows and columns of figures under one title."""

    title: str
    corner: str
    """What the rows are."""
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Entry, ...]]
    """By name; one entry a column."""
    summary: str = ""
    """How much of it is within the tolerance."""


@dataclass(frozen=True)
class Table:
    """One table of the paper, or one of ours."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]


def panel(title: str, kind: Kind, records: Sequence[Record], cells: Cells | None = None) -> Sheet:
    """Backbones × datasets with averages at the right and below.

    Args:
        title: what it shows.
        kind: how the quantity is read and judged.
        records: of one protocol.
        cells: the figures, where some are marked; read from the records unless given.
    """
    cells = case_figures(records, kind) if cells is None else cells
    datasets = ordered_datasets(records)
    backbones = ordered({record["backbone"] for record in records}, TITLES)
    rows: dict[str, tuple[Entry, ...]] = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(None, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    macro = average(cells, all_addresses(columns), kind.digits, kind.macro_tolerance)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    return Sheet(title, "backbone", (*datasets, "average"), rows, _summary(cells, kind))


def without_published(table: Table) -> Table:
    """The same with our figures alone."""
    return replace(table, sheets=tuple(_own_figures(sheet) for sheet in table.sheets))


def _own_figures(sheet: Sheet) -> Sheet:
    kept = [k for k, column in enumerate(sheet.columns) if not column.startswith("published")]
    rows = {
        name: tuple(_changed(row[k], published=None) for k in kept)
        for name, row in sheet.rows.items()
    }
    return replace(sheet, columns=tuple(sheet.columns[k] for k in kept), rows=rows, summary="")


def without_spread(table: Table) -> Table:
    """The same without standard deviations."""
    sheets = [
        replace(
            sheet,
            rows={
                name: tuple(_changed(entry, deviation=None) for entry in row)
                for name, row in sheet.rows.items()
            },
        )
        for sheet in table.sheets
    ]
    return replace(table, sheets=tuple(sheets))


def _changed(entry: Entry, **changes: None) -> Entry:
    return entry if isinstance(entry, str) else replace(entry, **changes)  # type: ignore[arg-type]


def all_addresses(columns: Iterable[Iterable[Address]]) -> list[Address]:
    """The cases of all columns."""
    return [address for column in columns for address in column]


def with_best_macro(sheet: Sheet) -> Sheet:
    """The same with the average over all cases marked as the best."""
    *others, macro = sheet.rows["average"]
    assert isinstance(macro, Figure)
    return replace(sheet, rows={**sheet.rows, "average": (*others, replace(macro, best=True))})


def _summary(cells: Cells, kind: Kind) -> str:
    judged = [figure for figure in cells.values() if figure.difference is not None]
    if not judged:
        return ""
    within = sum(not figure.outside for figure in judged)
    cases = "case" if len(judged) == 1 else "cases"
    return f"{within} of {len(judged)} {cases} within {kind.tolerance:g} of the published value"


def ordered_datasets(records: Iterable[Record]) -> list[str]:
    """The records' datasets in the paper's order, then the others by name."""
    return ordered({record["dataset"] for record in records}, published()["datasets"])


def ordered(names: set[str], first: Iterable[str]) -> list[str]:
    """Published names in the paper's order, then the others by name."""
    known = [name for name in first if name in names]
    return known + sorted(names - set(known))
