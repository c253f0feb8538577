"""The figures of a table: ours, the published one, and how far apart they are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gnn_repair.published import published
from gnn_repair.study.records import Record

Address = tuple[str, str]
"""(backbone, dataset): a case."""

Cells = Mapping[Address, "Figure"]


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
    """What is not excluded, where ``value`` is only what is proved (models with a tail)."""
    best: bool = False
    """Whether it is the best of its kind and printed in bold."""

    @property
    def difference(self) -> float | None:
        """Ours minus the published."""
        if self.value is None or self.published is None:
            return None
        return self.value - self.published

    @property
    def outside(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        if self.difference is None or self.tolerance is None:
            return False
        return abs(self.difference) > self.tolerance + 1e-9


@dataclass(frozen=True)
class Kind:
    """How the figures of a quantity are read and judged."""

    read: Callable[[Record], float | None]
    """The value of one run."""
    published: str | None
    """The published table, if there is one."""
    tolerance: float
    """For a case."""
    macro_tolerance: float
    """For the average over all cases."""
    digits: int = 1
    read_upper: Callable[[Record], float | None] | None = None
    """What is not excluded in one run, where that may be more than the value."""


def accuracy(method: str) -> Kind:
    """Test accuracy in per cent of a method, or of the frozen model."""

    def read(record: Record) -> float | None:
        held = record["frozen"] if method == "frozen" else record["methods"].get(method)
        value = held and held.get("test")
        return None if value is None else 100 * float(value)

    return Kind(read, method, 1.5, 0.5)


def reach(metric: str) -> Kind:
    """True-class reach or error reach on test nodes, in per cent."""

    def read(record: Record) -> float | None:
        value = _on_test(record, metric)
        return None if value is None else 100 * value

    def read_upper(record: Record) -> float | None:
        value = _on_test(record, f"{metric}_possible")
        return None if value is None else 100 * value

    return Kind(read, metric, 2.5, 2.0, read_upper=read_upper)


def support() -> Kind:
    """Mean number of active coefficients of reachable test nodes."""
    return Kind(lambda record: _on_test(record, "support"), "support", 0.15, 0.15, digits=2)


def _on_test(record: Record, metric: str) -> float | None:
    value = ((record.get("oracle") or {}).get("test") or {}).get(metric)
    return None if value is None else float(value)


def errors_fixed(method: str) -> Kind:
    """Of the frozen model's reachable errors on test nodes, how many a method predicts right (%).

    The paper has no such figure, and records made before it was counted have none.
    """

    def read(record: Record) -> float | None:
        fixed = record["methods"].get(method, {}).get("reachable_errors_fixed")
        reachable = _on_test(record, "reachable_errors")
        return None if fixed is None or not reachable else 100 * float(fixed) / reachable

    return Kind(read, None, 0.0, 0.0)


def shifts_inside(method: str) -> Kind:
    """Of a translation's shifts on test nodes, how many lie in D_v (%); undecided ones do not.

    None where the frozen rule was kept, which has learned no shift, and in earlier records.
    """
    return _share_of_shifts(method, "shifts_inside")


def shifts_undecided(method: str) -> Kind:
    """Of a translation's shifts on test nodes, how many are neither proved in D_v nor outside."""
    return _share_of_shifts(method, "shifts_undecided")


def _share_of_shifts(method: str, counted: str) -> Kind:
    def read(record: Record) -> float | None:
        scores = record["methods"].get(method, {})
        total, found = scores.get("shifts"), scores.get(counted)
        return None if found is None or not total else 100 * float(found) / total

    return Kind(read, None, 0.0, 0.0)


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
    known = {name: value for name, value in values.items() if value is not None}
    name = max(known, key=lambda name: known[name], default=None)
    return None if name is None or base is None or known[name] <= base else name


def case_figures(records: Iterable[Record], kind: Kind) -> dict[Address, Figure]:
    """Mean and deviation over splits of every case that has the quantity."""
    values: dict[Address, list[float]] = {}
    uppers: dict[Address, list[float]] = {}
    for record in records:
        value, address = kind.read(record), (record["backbone"], record["dataset"])
        if value is not None:
            values.setdefault(address, []).append(value)
            upper = None if kind.read_upper is None else kind.read_upper(record)
            uppers.setdefault(address, []).append(value if upper is None else upper)
    cells = _published_cells(kind.published)
    return {
        (backbone, dataset): Figure(
            value=statistics.fmean(split),
            published=cells.get(backbone, {}).get(dataset),
            deviation=statistics.stdev(split) if len(split) > 1 else None,
            count=len(split),
            digits=kind.digits,
            tolerance=kind.tolerance,
            upper=_upper(split, uppers[backbone, dataset]),
        )
        for (backbone, dataset), split in values.items()
    }


def _upper(values: Sequence[float], uppers: Sequence[float]) -> float | None:
    """The mean of what is not excluded; None where all is decided."""
    return None if list(values) == list(uppers) else statistics.fmean(uppers)


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
    cells: Cells, addresses: Iterable[Address], digits: int = 1, tolerance: float | None = None
) -> Figure:
    """The macro average over comparable cases, each weighing the same."""
    chosen = [cells[address] for address in comparable(cells, addresses)]
    return Figure(
        value=_mean([figure.value for figure in chosen]),
        published=_mean([figure.published for figure in chosen]),
        count=len(chosen),
        counted="cases",
        digits=digits,
        tolerance=tolerance,
        upper=_upper_mean(chosen),
    )


def _upper_mean(figures: Sequence[Figure]) -> float | None:
    """The mean of what is not excluded; None where all figures are decided."""
    if all(figure.upper is None for figure in figures):
        return None
    return _mean([f.value if f.upper is None else f.upper for f in figures])


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
    known = all(w.published is not None and lo.published is not None for w, lo in both) and both
    return Figure(
        value=sum(_beats(w.value, lo.value, w.digits) for w, lo in both),
        published=(
            sum(_beats(w.published, lo.published, w.digits) for w, lo in both) if known else None
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
