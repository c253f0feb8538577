"""The figures of tables: ours over splits and cases beside the published, and sheets of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gnn_repair.published import TITLES, published
from gnn_repair.results.records import RunRecord

Address = tuple[str, str]
"""(backbone, dataset): a case."""
Cells = Mapping[Address, "Figure"]
Read = Callable[[RunRecord], float | None]
"""The value of one run."""


@dataclass(frozen=True)
class Figure:
    """One number of ours beside the published one."""

    value: float | None
    published: float | None = None
    deviation: float | None = None
    """Sample standard deviation over splits."""
    count: int = 0
    """How many splits or cases stand behind it."""
    counted: str = "splits"
    digits: int = 1
    tolerance: float | None = None
    """The largest difference that does not stand out."""
    signed: bool = False
    """Whether it is a change, written with its sign."""
    upper: float | None = None
    """What is not excluded, where ``value`` is only what is proved (nonlinear heads)."""
    best: bool = False
    """Whether it is the best of its kind and printed in bold."""

    @property
    def difference(self) -> float | None:
        """Ours minus the published."""
        return _minus(self.value, self.published)

    @property
    def outside(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        if self.difference is None or self.tolerance is None:
            return False
        return abs(self.difference) > self.tolerance + 1e-9


@dataclass(frozen=True)
class Kind:
    """How the figures of a quantity are read and judged."""

    read: Read
    published: str | None = None
    """The published table, if there is one."""
    tolerance: float = 0.0
    """For a case."""
    macro_tolerance: float = 0.0
    """For the average over all cases."""
    digits: int = 1
    read_upper: Read | None = None
    """What is not excluded in one run, where that may be more than the value."""
    signed: bool = False


def percent(part: float | None, whole: float | None = 1) -> float | None:
    """100 part / whole; None where one is missing or there is nothing to be a part of."""
    return None if part is None or not whole else 100 * float(part) / whole


def accuracy(method: str) -> Kind:
    """Test accuracy in per cent of a method, or of the frozen model."""
    return Kind(lambda record: percent(record.scores(method).get("test")), method, 1.5, 0.5)


def on_test(
    metric: str, scale: float = 100.0, tolerance: float = 0.0, macro_tolerance: float = 0.0,
    *, published: bool = False, digits: int = 1, signed: bool = False,
) -> Kind:  # fmt: skip
    """What the oracle says of the test nodes, and what is not excluded; in per cent unless said."""

    def read(record: RunRecord, name: str = metric) -> float | None:
        value = record.on_test(name)
        return None if value is None else scale * value

    def read_upper(record: RunRecord) -> float | None:
        return read(record, f"{metric}_possible")

    table = metric if published else None
    return Kind(read, table, tolerance, macro_tolerance, digits, read_upper, signed)


def share_of_errors_fixed(method: str) -> Kind:
    """Of the frozen model's reachable errors on test nodes, how many a method predicts right (%).

    The paper has no such figure, and records made before it was counted have none.
    """

    def read(record: RunRecord) -> float | None:
        fixed = record.scores(method).get("reachable_errors_fixed")
        return percent(fixed, record.on_test("reachable_errors"))

    return Kind(read)


def share_of_shifts(method: str, counted: str) -> Kind:
    """Of a translation's shifts on test nodes, how many lie in D_v or are undecided (%).

    None where the frozen rule was kept, which has learned no shift, and in earlier records.
    """

    def read(record: RunRecord) -> float | None:
        scores = record.scores(method)
        return percent(scores.get(counted), scores.get("shifts"))

    return Kind(read)


# Over splits, over cases --------------------------------------------------------------------------


def case_figures(records: Iterable[RunRecord], kind: Kind) -> dict[Address, Figure]:
    """Mean and deviation over splits of every case that has the quantity, in the paper's order."""
    values: dict[Address, list[float]] = {}
    uppers: dict[Address, list[float]] = {}
    for record in records:
        value, address = kind.read(record), (record.backbone, record.dataset)
        if value is not None:
            values.setdefault(address, []).append(value)
            upper = None if kind.read_upper is None else kind.read_upper(record)
            uppers.setdefault(address, []).append(value if upper is None else upper)
    cells = _published_cells(kind.published)
    return {
        address: Figure(
            value=statistics.fmean(values[address]),
            published=cells.get(address[0], {}).get(address[1]),
            deviation=statistics.stdev(values[address]) if len(values[address]) > 1 else None,
            count=len(values[address]),
            digits=kind.digits,
            tolerance=kind.tolerance,
            signed=kind.signed,
            # None where all is decided.
            upper=None if values[address] == above else statistics.fmean(above),
        )
        for address, above in sorted(uppers.items(), key=lambda item: case_order(item[0]))
    }


def case_order(address: Address) -> tuple[tuple[int, str], tuple[int, str]]:
    """As the paper lists datasets and backbones, others behind them by name."""
    backbone, dataset = address
    return _rank(dataset, published()["datasets"]), _rank(backbone, TITLES)


def _rank(name: str, first: Iterable[str]) -> tuple[int, str]:
    names = list(first)
    return names.index(name) if name in names else len(names), name


def ordered(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """Published names in the paper's order, then the others by name."""
    listed = list(first)
    return sorted(set(names), key=lambda name: _rank(name, listed))


def ordered_datasets(records: Iterable[RunRecord]) -> list[str]:
    """The records' datasets in the paper's order, then the others by name."""
    return ordered((record.dataset for record in records), published()["datasets"])


def _published_cells(table: str | None) -> Mapping[str, Mapping[str, float]]:
    cells: Mapping[str, Mapping[str, float]] = (
        published()["tables"].get(table or "", {}).get("cells", {})
    )
    return cells


def in_paper(address: Address) -> bool:
    """Whether the paper has this case."""
    backbone, dataset = address
    return dataset in _published_cells("frozen").get(backbone, {})


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
    tolerance: float | None = None,
) -> Figure:
    """The macro average over comparable cases (all unless given), each weighing the same."""
    chosen = [cells[one] for one in comparable(cells, cells if addresses is None else addresses)]
    upper = None
    if any(figure.upper is not None for figure in chosen):
        upper = _mean([f.value if f.upper is None else f.upper for f in chosen])
    return Figure(
        value=_mean([figure.value for figure in chosen]),
        published=_mean([figure.published for figure in chosen]),
        count=len(chosen),
        counted="cases",
        digits=digits,
        tolerance=tolerance,
        signed=any(figure.signed for figure in chosen),
        upper=upper,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing or there is none."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def wins(winner: Cells, loser: Cells) -> Figure:
    """In how many comparable cases the first mean is strictly larger; ties are no wins.

    Ours count in the digits of the published ones, which decide the published wins.
    """
    shared = comparable(winner, [address for address in winner if address in loser])
    both = [(winner[address], loser[address]) for address in shared]
    judged = all(w.published is not None and lo.published is not None for w, lo in both) and both
    return Figure(
        value=sum(_beats(w.value, lo.value, w.digits) for w, lo in both),
        published=(
            sum(_beats(w.published, lo.published, w.digits) for w, lo in both) if judged else None
        ),
        count=len(both),
        counted="cases",
        digits=0,
    )


def gain(winner: Cells, loser: Cells) -> Figure:
    """The mean advantage over comparable cases."""
    shared = comparable(winner, [address for address in winner if address in loser])
    first, second = average(winner, shared), average(loser, shared)
    return Figure(
        value=_minus(first.value, second.value),
        published=_minus(first.published, second.published),
        count=first.count,
        counted="cases",
        digits=2,
        signed=True,
    )


def _beats(first: float | None, second: float | None, digits: int) -> bool:
    return first is not None and second is not None and round(first, digits) > round(second, digits)


def _minus(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def mark_best(repairs: Mapping[str, Cells], frozen: Cells) -> dict[str, dict[Address, Figure]]:
    """Where a repair is the best of them and better than the frozen model, it is marked.

    Means count in full, as the paper has it: its 88.1 beside a frozen 88.1 is printed bold.
    """
    marked = {name: dict(cells) for name, cells in repairs.items()}
    for address, base in frozen.items():
        held = {name: cells[address] for name, cells in repairs.items() if address in cells}
        name = best_of({name: figure.value for name, figure in held.items()}, base.value)
        if name is not None:
            marked[name][address] = replace(held[name], best=True)
    return marked


def best_of(values: Mapping[str, float | None], base: float | None) -> str | None:
    """Whose value is the largest, the first of equal ones; None unless it is above the base."""
    present = {name: value for name, value in values.items() if value is not None}
    name = max(present, key=lambda name: present[name], default=None)
    return None if name is None or base is None or present[name] <= base else name


# Sheets -------------------------------------------------------------------------------------------

Entry = Figure | str
"""A figure, or words."""
Rows = dict[str, tuple[Entry, ...]]
"""By name; one entry a column."""


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

    Args:
        title: what it shows.
        kind: how the quantity is read and judged.
        records: of one protocol.
        cells: the figures, where some are marked; read from the records unless given.
    """
    cells = case_figures(records, kind) if cells is None else cells
    datasets = ordered_datasets(records)
    backbones = ordered((record.backbone for record in records), TITLES)
    rows: Rows = {}
    for backbone in backbones:
        line = [(backbone, dataset) for dataset in datasets]
        entries = [cells.get(address, Figure(None, digits=kind.digits)) for address in line]
        rows[backbone] = (*entries, average(cells, line, kind.digits))
    columns = [[(backbone, dataset) for backbone in backbones] for dataset in datasets]
    macro = average(cells, chain(*columns), kind.digits, kind.macro_tolerance)
    rows["average"] = (*(average(cells, column, kind.digits) for column in columns), macro)
    judged = [figure for figure in cells.values() if figure.difference is not None]
    within = sum(not figure.outside for figure in judged)
    summary = (
        f"{within} of {len(judged)} case{'s' * (len(judged) != 1)} within {kind.tolerance:g} of "
        "the published value"
    )
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
    nothing: dict[str, None] = {name: None}
    return {
        title: tuple(
            entry if isinstance(entry, str) else replace(entry, **nothing)  # type: ignore[arg-type]
            for entry in row
        )
        for title, row in rows.items()
    }
