"""The figures of tables: ours over splits and cases beside the published, and sheets of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import nan
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
    """How many splits or cases stand behind it."""
    counted: str = "splits"
    digits: int = 1
    tolerance: float = nan
    """The largest difference that does not stand out."""
    signed: bool = False
    """Whether it is a change, written with its sign."""
    upper: float = nan
    """What is not excluded, where ``value`` is only what is proved (nonlinear heads)."""
    best: bool = False
    """Whether it is the best of its kind and printed in bold."""

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
    """How the figures of a quantity are read and judged."""

    read: Read
    published: str = ""
    """The published table, if there is one."""
    tolerance: float = 0.0
    """For a case."""
    macro_tolerance: float = 0.0
    """For the average over all cases."""
    digits: int = 1
    read_upper: Read = lambda record: nan
    """What is not excluded in one run, where that may be more than the value."""
    signed: bool = False


def ratio(part: float, whole: float) -> float:
    """NaN where there is nothing to be a part of."""
    return part / whole if whole else nan


def accuracy(method: str) -> Kind:
    """Test accuracy in per cent of a method, or of the frozen model."""
    return Kind(lambda record: 100 * record.number(method, "test"), method, 1.5, 0.5)


def oracle_on_test(
    metric: str, scale: float = 100.0, tolerance: float = 0.0, macro_tolerance: float = 0.0,
    *, published: bool = False, digits: int = 1, signed: bool = False,
) -> Kind:  # fmt: skip
    """What the oracle says of the test nodes, and what is not excluded; in per cent unless said."""

    def read(record: RunRecord, name: str = metric) -> float:
        return scale * record.number(ORACLE, name)

    def read_upper(record: RunRecord) -> float:
        return read(record, f"{metric}_possible")

    table = metric if published else ""
    return Kind(read, table, tolerance, macro_tolerance, digits, read_upper, signed)


def share_of_errors_fixed(method: str) -> Kind:
    """Of the frozen model's reachable errors on test nodes, how many a method predicts right (%).

    The paper has no such figure, and records made before it was counted have none.
    """

    def read(record: RunRecord) -> float:
        fixed = record.number(method, "reachable_errors_fixed")
        return ratio(100 * fixed, record.number(ORACLE, "reachable_errors"))

    return Kind(read)


def share_of_shifts(method: str, counted: str) -> Kind:
    """Of a translation's shifts on test nodes, how many lie in D_v or are undecided (%).

    None where the frozen rule was kept, which has learned no shift, and in earlier records.
    """
    return Kind(lambda r: ratio(100 * r.number(method, counted), r.number(method, "shifts")))


# Over splits, over cases --------------------------------------------------------------------------


def case_figures(records: Iterable[RunRecord], kind: Kind) -> dict[Address, Figure]:
    """Mean and deviation over splits of every case that has the quantity, in the paper's order."""
    splits: dict[Address, list[tuple[float, float]]] = {}
    for record in records:
        value, upper = kind.read(record), kind.read_upper(record)
        if not math.isnan(value):
            pair = value, value if math.isnan(upper) else upper
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
            upper=nan if values == uppers else _mean(uppers),  # NaN where all is decided
        )
    return figures


def case_order(address: Address) -> tuple[tuple[int, str], tuple[int, str]]:
    """As the paper lists datasets and backbones, others behind them by name."""
    backbone, dataset = address
    return _rank(dataset, published_numbers()["datasets"]), _rank(backbone, TITLES)


def _rank(name: str, first: Iterable[str]) -> tuple[int, str]:
    names = list(first)
    return names.index(name) if name in names else len(names), name


def paper_order(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """Published names in the paper's order, then the others by name."""
    return sorted(set(names), key=lambda name: _rank(name, first))


def ordered_datasets(records: Iterable[RunRecord]) -> list[str]:
    """The records' datasets in the paper's order, then the others by name."""
    return paper_order((record.dataset for record in records), published_numbers()["datasets"])


def in_paper(address: Address) -> bool:
    """Whether the paper has this case."""
    return not math.isnan(published_cell("frozen", *address))


def comparable(cells: Cells, addresses: Iterable[Address]) -> list[Address]:
    """The cases of ours that the paper has; all of ours where it has none.

    A method that is not in the paper is averaged over the same cases as those that are.
    """
    ours = [address for address in addresses if address in cells]
    return [address for address in ours if in_paper(address)] or ours


def average(
    cells: Cells,
    addresses: Iterable[Address] | None = None,
    digits: int = 1,
    tolerance: float = nan,
) -> Figure:
    """The macro average over comparable cases (all unless given), each weighing the same."""
    chosen = [cells[one] for one in comparable(cells, cells if addresses is None else addresses)]
    uppers = [f.value if math.isnan(f.upper) else f.upper for f in chosen]
    return Figure(
        value=_mean([figure.value for figure in chosen]),
        published=_mean([figure.published for figure in chosen]),
        count=len(chosen),
        counted="cases",
        digits=digits,
        tolerance=tolerance,
        signed=any(figure.signed for figure in chosen),
        upper=nan if all(math.isnan(figure.upper) for figure in chosen) else _mean(uppers),
    )


def _mean(values: Sequence[float]) -> float:
    """NaN where a value is missing or there is none."""
    return statistics.fmean(values) if values else nan


def wins(winner: Cells, loser: Cells) -> Figure:
    """In how many comparable cases the first mean is strictly larger; ties are no wins.

    Ours count in the digits of the published ones, which decide the published wins.
    """
    shared = comparable(winner, [address for address in winner if address in loser])
    both = [(winner[address], loser[address]) for address in shared]
    published = [(w.published, lo.published, w.digits) for w, lo in both]
    judged = both and not any(math.isnan(one + other) for one, other, _ in published)
    ours = _wins((w.value, lo.value, w.digits) for w, lo in both)
    theirs = _wins(published) if judged else nan
    return Figure(ours, theirs, count=len(both), counted="cases", digits=0)


def _wins(pairs: Iterable[tuple[float, float, int]]) -> int:
    return sum(round(first, digits) > round(second, digits) for first, second, digits in pairs)


def gain(winner: Cells, loser: Cells) -> Figure:
    """The mean advantage over comparable cases."""
    shared = comparable(winner, [address for address in winner if address in loser])
    first, second = average(winner, shared), average(loser, shared)
    both = first.value - second.value, first.published - second.published
    return Figure(*both, count=first.count, counted="cases", digits=2, signed=True)


def mark_best(repairs: Mapping[str, Cells], frozen: Cells) -> dict[str, dict[Address, Figure]]:
    """Where a repair is the best of them and better than the frozen model, it is marked.

    Means count in full, as the paper has it: its 88.1 beside a frozen 88.1 is printed bold.
    """
    marked = {name: dict(cells) for name, cells in repairs.items()}
    for address, base in frozen.items():
        values = {name: cells[address].value for name, cells in repairs.items() if address in cells}
        name = best_of(values, base.value)
        if name is not None:
            marked[name][address] = replace(marked[name][address], best=True)
    return marked


def best_of(values: Mapping[str, float], base: float) -> str | None:
    """Whose value is the largest, the first of equal ones; None unless it is above the base."""
    above = {name: value for name, value in values.items() if value > base}
    return max(above, key=lambda name: above[name], default=None)


# Sheets -------------------------------------------------------------------------------------------

Entry = Figure | str
"""A figure, or words."""
Rows = dict[str, tuple[Entry, ...]]
"""By name; one entry per column."""


@dataclass(frozen=True)
class Sheet:
    """Rows and columns of figures under one title."""

    title: str
    corner: str
    """What the rows are."""
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Entry, ...]]
    summary: str = ""
    """How much of it is within the tolerance."""


@dataclass(frozen=True)
class Table:
    """One table of the paper, or one of ours."""

    name: str
    title: str
    sheets: tuple[Sheet, ...]


def panel(
    title: str, kind: Kind, records: Sequence[RunRecord], cells: Cells | None = None
) -> Sheet:
    """Backbones × datasets with averages at the right and below.

    The figures are read from the records unless ``cells`` gives them, some of them marked.
    """
    cells = case_figures(records, kind) if cells is None else cells
    datasets = ordered_datasets(records)
    backbones = paper_order((record.backbone for record in records), TITLES)
    rows: Rows = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(nan, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    macro = average(cells, chain(*columns), kind.digits, kind.macro_tolerance)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    judged = [figure for figure in cells.values() if not math.isnan(figure.difference)]
    within = f"{sum(not figure.outside for figure in judged)} of {count_of(len(judged), 'case')}"
    summary = f"{within} within {kind.tolerance:g} of the published value"
    return Sheet(title, "backbone", (*datasets, "average"), rows, summary if judged else "")


def with_best_macro(sheet: Sheet) -> Sheet:
    """The same with the average over all cases marked as the best."""
    *others, macro = sheet.rows["average"]
    assert isinstance(macro, Figure)
    return replace(sheet, rows={**sheet.rows, "average": (*others, replace(macro, best=True))})


def without_published(table: Table) -> Table:
    """The same with our figures alone."""
    sheets = []
    for sheet in table.sheets:
        kept = [k for k, column in enumerate(sheet.columns) if not column.startswith("published")]
        rows = {name: tuple(row[k] for k in kept) for name, row in sheet.rows.items()}
        columns = tuple(sheet.columns[k] for k in kept)
        sheets.append(replace(sheet, columns=columns, rows=_without("published", rows), summary=""))
    return replace(table, sheets=tuple(sheets))


def without_spread(table: Table) -> Table:
    """The same without standard deviations."""
    sheets = [replace(sheet, rows=_without("deviation", sheet.rows)) for sheet in table.sheets]
    return replace(table, sheets=tuple(sheets))


def _without(name: str, rows: Mapping[str, tuple[Entry, ...]]) -> Rows:
    nothing: dict[str, Any] = {name: nan}
    return {
        title: tuple(e if isinstance(e, str) else replace(e, **nothing) for e in row)
        for title, row in rows.items()
    }
