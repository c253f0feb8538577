"""The figures of tables: our averages over splits and cases beside the published ones; sheets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress
from math import isnan, nan
from typing import Any

from gnn_repair.published import TITLES, count_of, published_cell, published_numbers
from gnn_repair.results.records import RunRecord

Address = tuple[str, str]
"""(backbone, dataset): a case."""
Cells = Mapping[Address, "Figure"]
Read = Callable[[RunRecord], float]
"""The value of one run; NaN where it has none, as everywhere here."""


@dataclass(frozen=True)
class Figure:
    """One number of ours beside the published one."""

    value: float
    published: float = nan
    deviation: float = nan
    """Sample standard deviation over splits."""
    count: int = 0
    """The number of splits or cases in the mean."""
    counted: str = "splits"
    digits: int = 1
    tolerance: float = nan
    """The largest difference that is not marked."""
    signed: bool = False
    """Whether it is a change, printed with its sign."""
    upper: float = nan
    """The share not excluded, where ``value`` is only the proved share (nonlinear heads)."""
    best: bool = False
    """Whether it is printed in bold, as the best of its kind."""

    @property
    def difference(self) -> float:
        """Ours minus the published."""
        return self.value - self.published

    @property
    def outside(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        return abs(self.difference) > self.tolerance + 1e-9


@dataclass(frozen=True)
class Kind:
    """How a quantity is read from records and compared with the paper."""

    read: Read
    read_upper: Read = lambda record: nan
    """The share not excluded in one run, where that may be larger than the value."""
    published: str = ""
    """The published table, if there is one."""
    tolerances: tuple[float, float] = (0.0, 0.0)
    """For a case, and for the average over all cases."""
    digits: int = 1
    signed: bool = False


def quantity(
    owner: str, name: str, scale: float = 100.0, per: tuple[str, str] | None = None, **how: Any
) -> Kind:
    """A number of an owner in records, times ``scale``; as a share of another (``per``) if named.

    NaN where a record lacks one of them, as early ones may, and where the other is zero.
    """

    def read(record: RunRecord, name: str = name) -> float:
        value = scale * record.number(owner, name)
        return value if per is None else ratio(value, record.number(*per))

    return Kind(read, lambda record: read(record, f"{name}_possible"), **how)


def ratio(part: float, total: float) -> float:
    """NaN where the total is zero."""
    return part / total if total else nan


def accuracy(method: str) -> Kind:
    """Test accuracy in per cent, of a method or of the frozen model."""
    return quantity(method, "test", published=method, tolerances=(1.5, 0.5))


# Over splits, over cases --------------------------------------------------------------------------


def case_figures(records: Iterable[RunRecord], kind: Kind) -> dict[Address, Figure]:
    """Mean and deviation over splits per case that has the quantity, in the paper's order."""
    splits: dict[Address, list[tuple[float, float]]] = {}
    for record in records:
        value, upper = kind.read(record), kind.read_upper(record)
        if not isnan(value):
            pair = value, value if isnan(upper) else upper
            splits.setdefault((record.backbone, record.dataset), []).append(pair)
    figures = {}
    for address in sorted(splits, key=case_order):
        values, uppers = zip(*splits[address], strict=True)
        figures[address] = Figure(
            value=_mean(values),
            published=published_cell(kind.published, *address),
            deviation=statistics.stdev(values) if len(values) > 1 else nan,
            count=len(values),
            digits=kind.digits,
            tolerance=kind.tolerances[0],
            signed=kind.signed,
            upper=nan if values == uppers else _mean(uppers),
        )
    return figures


def case_order(address: Address) -> tuple[tuple[int, str], tuple[int, str]]:
    """Sorts datasets, then backbones: published ones as in the paper, others behind, by name."""
    backbone, dataset = address
    return _rank(dataset, published_numbers()["datasets"]), _rank(backbone, TITLES)


def _rank(name: str, published: Iterable[str]) -> tuple[int, str]:
    names = list(published)
    return names.index(name) if name in names else len(names), name


def datasets_of(records: Iterable[RunRecord]) -> list[str]:
    """The datasets of records, in the order of cases."""
    names = {record.dataset for record in records}
    return sorted(names, key=lambda name: _rank(name, published_numbers()["datasets"]))


def backbones_of(records: Iterable[RunRecord]) -> list[str]:
    """The backbones of records, in the order of cases."""
    return sorted({record.backbone for record in records}, key=lambda name: _rank(name, TITLES))


def in_paper(address: Address) -> bool:
    """Whether the paper has this case."""
    return not isnan(published_cell("frozen", *address))


def comparable(cells: Cells, addresses: Iterable[Address]) -> list[Address]:
    """The addresses in ``cells`` that the paper has; all of them where it has none.

    So a method that is not in the paper is averaged over the same cases as those that are.
    """
    available = [address for address in addresses if address in cells]
    return [address for address in available if in_paper(address)] or available


def average(
    cells: Cells,
    addresses: Iterable[Address] | None = None,
    digits: int = 1,
    tolerance: float = nan,
) -> Figure:
    """The macro average over comparable cases (all unless given), with equal weights."""
    cases = comparable(cells, cells if addresses is None else addresses)
    figures = [cells[address] for address in cases]
    uppers = [f.value if isnan(f.upper) else f.upper for f in figures]
    return Figure(
        value=_mean([figure.value for figure in figures]),
        published=_mean([figure.published for figure in figures]),
        count=len(figures),
        counted="cases",
        digits=digits,
        tolerance=tolerance,
        signed=any(figure.signed for figure in figures),
        upper=nan if all(isnan(figure.upper) for figure in figures) else _mean(uppers),
    )


def _mean(values: Sequence[float]) -> float:
    """NaN where a value is missing or there is none."""
    return statistics.fmean(values) if values else nan


def wins(winner: Cells, loser: Cells) -> Figure:
    """In how many comparable cases the winner's mean is larger in the printed digits."""
    pairs = [(winner[address], loser[address]) for address in comparable(loser, winner)]
    value = sum(round(w.value, w.digits) > round(lo.value, w.digits) for w, lo in pairs)
    published = nan
    if pairs and not any(isnan(w.published + lo.published) for w, lo in pairs):
        published = sum(
            round(w.published, w.digits) > round(lo.published, w.digits) for w, lo in pairs
        )
    return Figure(value, published, count=len(pairs), counted="cases", digits=0)


def gain(winner: Cells, loser: Cells) -> Figure:
    """The mean difference over comparable cases."""
    cases = comparable(loser, winner)
    high, low = average(winner, cases), average(loser, cases)
    values = high.value - low.value, high.published - low.published
    return Figure(*values, count=len(cases), counted="cases", digits=2, signed=True)


def best_of(values: Mapping[str, float], base: float) -> str | None:
    """The name of the largest value, the first of equal ones; None unless it is above ``base``."""
    above = {name: value for name, value in values.items() if value > base}
    return max(above, key=lambda name: above[name], default=None)


# Sheets -------------------------------------------------------------------------------------------

Entry = Figure | str
Rows = dict[str, tuple[Entry, ...]]
"""By name; one entry per column."""


@dataclass(frozen=True)
class Sheet:
    """Rows and columns of figures under one title."""

    title: str
    corner: str
    """The heading of the row names."""
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Entry, ...]]
    summary: str = ""
    """How many figures are within the tolerance."""

    @cached_property
    def figures(self) -> list[Figure]:
        """All entries that are no words."""
        return [e for row in self.rows.values() for e in row if isinstance(e, Figure)]

    @cached_property
    def splits(self) -> int:
        """The number of splits behind most of its cells: the largest."""
        return max((f.count for f in self.figures if f.counted == "splits"), default=0)


@dataclass(frozen=True)
class Table:
    """One table of the paper, or one of ours."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]


def panel(
    title: str,
    kind: Kind,
    records: Sequence[RunRecord],
    cells: Cells | None = None,
    best: bool = False,
) -> Sheet:
    """Backbones × datasets with averages at the right and below.

    The figures are read from the records unless ``cells`` are passed; ``best`` marks the average
    over all cases.
    """
    cells = case_figures(records, kind) if cells is None else cells
    datasets, backbones = datasets_of(records), backbones_of(records)
    rows: Rows = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(nan, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    macro = replace(average(cells, chain(*columns), kind.digits, kind.tolerances[1]), best=best)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    figures = [figure for figure in cells.values() if not isnan(figure.difference)]
    within = f"{sum(not f.outside for f in figures)} of {count_of(len(figures), 'case')}"
    summary = f"{within} within {kind.tolerances[0]:g} of the published value"
    return Sheet(title, "backbone", (*datasets, "average"), rows, summary if figures else "")


def trimmed(table: Table, published: bool, spread: bool) -> Table:
    """The table without published values, or without standard deviations, where that is asked."""
    changes: dict[str, Any] = {} if published else {"published": nan}
    changes |= {} if spread else {"deviation": nan}
    sheets = []
    for sheet in table.sheets:
        kept = [published or not column.startswith("published") for column in sheet.columns]
        rows = {
            name: tuple(e if isinstance(e, str) else replace(e, **changes) for e in row)
            for name, row in ((name, compress(row, kept)) for name, row in sheet.rows.items())
        }
        columns, summary = tuple(compress(sheet.columns, kept)), sheet.summary * published
        sheets.append(replace(sheet, columns=columns, rows=rows, summary=summary))
    return replace(table, sheets=tuple(sheets))
