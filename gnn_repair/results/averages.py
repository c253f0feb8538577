"""The figures of tables: our averages over splits and cases beside the published ones; sheets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from math import isnan, nan
from typing import Any

from gnn_repair.published import TITLES, count_of, published_cell, published_numbers
from gnn_repair.results.records import ORACLE, RunRecord

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
    published: str = ""
    """The published table, if there is one."""
    tolerance: float = 0.0
    """For a case."""
    macro_tolerance: float = 0.0
    """For the average over all cases."""
    digits: int = 1
    read_upper: Read = lambda record: nan
    """The share not excluded in one run, where that may be larger than the value."""
    signed: bool = False


def ratio(part: float, total: float) -> float:
    """NaN where the total is zero."""
    return part / total if total else nan


def accuracy(method: str) -> Kind:
    """Test accuracy in per cent, of a method or of the frozen model."""
    return Kind(lambda record: 100 * record.number(method, "test"), method, 1.5, 0.5)


def oracle_on_test(
    metric: str, scale: float = 100.0, tolerance: float = 0.0, macro_tolerance: float = 0.0,
    *, published: bool = False, digits: int = 1, signed: bool = False,
) -> Kind:  # fmt: skip
    """A metric of the oracle on test nodes with its upper bound; in per cent unless scaled."""

    def read(record: RunRecord, name: str = metric) -> float:
        return scale * record.number(ORACLE, name)

    def read_upper(record: RunRecord) -> float:
        return read(record, f"{metric}_possible")

    table = metric if published else ""
    return Kind(read, table, tolerance, macro_tolerance, digits, read_upper, signed)


def share_of_errors_fixed(method: str) -> Kind:
    """The share of the frozen model's reachable test errors that a method predicts right (%).

    The paper has no such figure, and early records lack it.
    """

    def read(record: RunRecord) -> float:
        fixed = record.number(method, "reachable_errors_fixed")
        return ratio(100 * fixed, record.number(ORACLE, "reachable_errors"))

    return Kind(read)


def share_of_shifts(method: str, counted: str) -> Kind:
    """The share of a translation's shifts on test nodes that lie in D_v or are undecided (%).

    NaN where the frozen model was kept, which has no shift, and in early records.
    """
    return Kind(lambda r: ratio(100 * r.number(method, counted), r.number(method, "shifts")))


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
            tolerance=kind.tolerance,
            signed=kind.signed,
            upper=nan if values == uppers else _mean(uppers),
        )
    return figures


def case_order(address: Address) -> tuple[tuple[int, str], tuple[int, str]]:
    """Sorts datasets, then backbones."""
    backbone, dataset = address
    return dataset_order(dataset), backbone_order(backbone)


def dataset_order(name: str) -> tuple[int, str]:
    """Sorts published datasets as in the paper, the others behind them by name."""
    return _rank(name, published_numbers()["datasets"])


def backbone_order(name: str) -> tuple[int, str]:
    """Sorts published backbones as in the paper, the others behind them by name."""
    return _rank(name, TITLES)


def _rank(name: str, published: Iterable[str]) -> tuple[int, str]:
    names = list(published)
    return names.index(name) if name in names else len(names), name


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
    cases = comparable(winner, [address for address in winner if address in loser])
    pairs = [(winner[address], loser[address]) for address in cases]
    value = sum(round(w.value, w.digits) > round(lo.value, w.digits) for w, lo in pairs)
    published = nan
    if pairs and not any(isnan(w.published + lo.published) for w, lo in pairs):
        published = sum(
            round(w.published, w.digits) > round(lo.published, w.digits) for w, lo in pairs
        )
    return Figure(value, published, count=len(cases), counted="cases", digits=0)


def gain(winner: Cells, loser: Cells) -> Figure:
    """The mean difference over comparable cases."""
    cases = comparable(winner, [address for address in winner if address in loser])
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
    datasets = sorted({record.dataset for record in records}, key=dataset_order)
    backbones = sorted({record.backbone for record in records}, key=backbone_order)
    rows: Rows = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(nan, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    macro = replace(average(cells, chain(*columns), kind.digits, kind.macro_tolerance), best=best)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    figures = [figure for figure in cells.values() if not isnan(figure.difference)]
    within = f"{sum(not f.outside for f in figures)} of {count_of(len(figures), 'case')}"
    summary = f"{within} within {kind.tolerance:g} of the published value"
    return Sheet(title, "backbone", (*datasets, "average"), rows, summary if figures else "")


def without_published(table: Table) -> Table:
    """The table with our figures only."""
    sheets = []
    for sheet in _change_figures(table, published=nan).sheets:
        shown = [not column.startswith("published") for column in sheet.columns]
        rows = {name: tuple(compress(row, shown)) for name, row in sheet.rows.items()}
        columns = tuple(compress(sheet.columns, shown))
        sheets.append(replace(sheet, columns=columns, rows=rows, summary=""))
    return replace(table, sheets=tuple(sheets))


def without_spread(table: Table) -> Table:
    """The table without standard deviations."""
    return _change_figures(table, deviation=nan)


def _change_figures(table: Table, **changes: Any) -> Table:
    sheets = []
    for sheet in table.sheets:
        rows = {
            name: tuple(e if isinstance(e, str) else replace(e, **changes) for e in row)
            for name, row in sheet.rows.items()
        }
        sheets.append(replace(sheet, rows=rows))
    return replace(table, sheets=tuple(sheets))
