"""Beyond the paper: the evidence ladder beside its controls, and where the evidence was lost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gnn_repair.backbones.titles import TITLES
from gnn_repair.published import published
from gnn_repair.repair.methods import METHODS
from gnn_repair.repair.rungs import FROZEN, NOTHING, RUNGS, title_of
from gnn_repair.study.cells import Address, Figure, in_paper
from gnn_repair.study.records import Record
from gnn_repair.study.sheets import Entry, Sheet, Table

LADDER = "evidence_ladder"
CONTROLS = ("retrained_backbone", "feature_perceptron", "correct_and_smooth")
"""What a user could do instead with the same labels."""
MARGIN = 0.3
"""Points that count as behind."""
Read = Callable[[Record], float | None]
"""The value of one run, in points."""
Spread = Mapping[Address, Figure]


def _score(method: str, key: str = "test") -> Read:
    """A method's test accuracy less the frozen model's."""

    def read(record: Record) -> float | None:
        value = record["methods"].get(method, {}).get(key)
        frozen = record["frozen"].get("test")
        return None if value is None or frozen is None else 100 * (value - frozen)

    return read


def _held(key: str, scale: float = 100.0) -> Read:
    """A number of the ladder's own."""

    def read(record: Record) -> float | None:
        value = record["methods"].get(LADDER, {}).get(key)
        return None if value is None else scale * value

    return read


def _of_rung(record: Record, what: str, rung: str, where: str = "") -> float | None:
    """A number of a candidate, whatever its name was when the record was written."""
    held = record["methods"].get(LADDER, {})
    names = (rung, RUNGS[rung].formerly) if rung in RUNGS else (rung,)
    found = (held.get(f"{what} {name}{where}") for name in names)
    return next((value for value in found if value is not None), None)


def _alone(rung: str) -> Read:
    """A rung's own test accuracy less the frozen model's."""

    def read(record: Record) -> float | None:
        value, frozen = _of_rung(record, "test", rung), record["frozen"].get("test")
        return None if value is None or frozen is None else 100 * (value - frozen)

    return read


def _cases(records: Sequence[Record], read: Read, digits: int = 1, signed: bool = True) -> Spread:
    """Mean and deviation over splits of every case that has the number."""
    values: dict[Address, list[float]] = {}
    for record in records:
        value = read(record)
        if value is not None:
            values.setdefault((record["backbone"], record["dataset"]), []).append(value)
    return {
        address: Figure(
            statistics.fmean(split),
            deviation=statistics.stdev(split) if len(split) > 1 else None,
            count=len(split),
            digits=digits,
            signed=signed,
        )
        for address, split in sorted(values.items(), key=_order)
    }


def _order(item: tuple[Address, object]) -> tuple[int, str, int, str]:
    """As the paper lists datasets and backbones, others behind them by name."""
    (backbone, dataset), _ = item
    datasets, backbones = list(published()["datasets"]), list(TITLES)
    place = datasets.index(dataset) if dataset in datasets else len(datasets)
    other = backbones.index(backbone) if backbone in backbones else len(backbones)
    return place, dataset, other, backbone


def _overall(cases: Iterable[Address]) -> tuple[str, list[Address]]:
    """What totals are over, by name: the paper's cases, or all where none or all are of it."""
    every = list(cases)
    own = [address for address in every if in_paper(address)]
    return ("the paper's", own) if 0 < len(own) < len(every) else ("all", every)


def _mean(cells: Spread, chosen: Sequence[Address], digits: int = 2) -> Figure:
    """The macro mean over those of the cases that there are."""
    values = [cells[address].value for address in chosen if address in cells]
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    return Figure(mean, count=len(known), counted="cases", digits=digits, signed=True)


# The ladder and its controls ----------------------------------------------------------------------


def _rows(records: Sequence[Record]) -> dict[str, Read]:
    """What is compared, by title."""
    rows = {METHODS[LADDER].title: _score(LADDER)}
    rows[f"{METHODS[LADDER].title}, without similar nodes"] = _score(LADDER, "test without similar")
    rows |= {f"only {rung.title}": _alone(name) for name, rung in RUNGS.items()}
    for name, method in METHODS.items():
        if name != LADDER and any(name in record["methods"] for record in records):
            rows[method.title] = _score(name)
    rows["Retrained backbone, its single models"] = _score("retrained_backbone", "test single")
    return rows


def _beyond(records: Sequence[Record]) -> Table:
    """Gains over Frozen, the ladder's on the same cases beside them; calibration; cases."""
    found = {title: _cases(records, read) for title, read in _rows(records).items()}
    present = {title: cells for title, cells in found.items() if cells}
    ladder = present.get(METHODS[LADDER].title)
    if ladder is None:
        return Table("beyond", "The ladder beside its controls", ())
    controls = [present[METHODS[name].title] for name in CONTROLS if METHODS[name].title in present]
    against = (_against(ladder, controls),) if len(controls) == len(CONTROLS) else ()
    sheets = (_gains(present, ladder), *against, _calibration(records), _by_case(ladder))
    return Table("beyond", "The ladder beside its controls", sheets)


def _gains(present: Mapping[str, Spread], ladder: Spread) -> Sheet:
    datasets = list(dict.fromkeys(dataset for _, dataset in ladder))
    rows: dict[str, tuple[Entry, ...]] = {}
    for title, cells in present.items():
        _, chosen = _overall(cells)
        above = sum((cells[a].value or 0.0) > 0 for a in chosen)
        means = [_mean(cells, [a for a in cells if a[1] == name]) for name in datasets]
        rows[title] = (
            _mean(cells, chosen),
            f"{above} of {len(chosen)}",
            _mean(ladder, chosen),
            *(Figure(m.value, count=m.count, counted="", digits=2, signed=True) for m in means),
        )
    columns = ("gain over Frozen", "cases above Frozen", "the ladder there", *datasets)
    splits = sorted({figure.count for figure in ladder.values()})
    each = f"{splits[0]}" if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"
    covered = sum(in_paper(a) for a in ladder)
    said = f"it covers {covered} of the paper's cases that can be had (48), {each} splits each"
    return Sheet("Points of test accuracy over Frozen", "method", columns, rows, said)


def _against(ladder: Spread, controls: Sequence[Spread]) -> Sheet:
    """The ladder beside the best control of each case: what a user could do instead."""
    cases = [address for address in ladder if all(address in cells for cells in controls)]
    best = {a: max((cells[a] for cells in controls), key=lambda f: f.value or 0.0) for a in cases}
    below = {a for a in cases if (ladder[a].value or 0.0) < (best[a].value or 0.0) - MARGIN}
    rows: dict[str, tuple[Entry, ...]] = {}
    parts = dict([_overall(cases)])
    for address in cases:
        parts.setdefault(address[1], []).append(address)
    for dataset, chosen in parts.items():
        behind = f"{sum(a in below for a in chosen)} of {len(chosen)}"
        means = (_mean(cells, chosen) for cells in (ladder, best))
        rows[dataset] = (*(replace(m, counted="") for m in means), behind)
    columns = ("Evidence ladder", "best control", f"ladder more than {MARGIN} below it")
    return Sheet("The best control of each case (points over Frozen)", "dataset", columns, rows)


def _calibration(records: Sequence[Record]) -> Sheet:
    keys = {
        "Evidence ladder": "calibration error",
        "Frozen": "calibration error frozen",
        "Frozen, temperature-scaled": "calibration error frozen scaled",
    }
    rows: dict[str, tuple[Entry, ...]] = {}
    for title, key in keys.items():
        cells = _cases(records, _held(key))
        datasets = list(dict.fromkeys(dataset for _, dataset in cells))
        total, chosen = _overall(cells)
        parts = [chosen, *([a for a in cells if a[1] == name] for name in datasets)]
        means = [_mean(cells, part) for part in parts]
        rows[title] = tuple(Figure(m.value, counted="", digits=2) for m in means)
    return Sheet("Calibration error on test nodes (%)", "probabilities", (total, *datasets), rows)


def _by_case(ladder: Spread) -> Sheet:
    datasets = list(dict.fromkeys(dataset for _, dataset in ladder))
    backbones = list(dict.fromkeys(backbone for backbone, _ in ladder))
    rows: dict[str, tuple[Entry, ...]] = {
        backbone: tuple(
            ladder.get((backbone, dataset), Figure(None, digits=1)) for dataset in datasets
        )
        for backbone in backbones
    }
    return Sheet("The ladder's gain by case (points)", "backbone", tuple(datasets), rows)


# Where the evidence was lost ----------------------------------------------------------------------


def _worth(rung: str, label: int | None = None) -> Read:
    """What a rung gains out of fold over the candidate it is compared with."""
    above = RUNGS[rung].above

    def read(record: Record) -> float | None:
        if label is None:
            mine, other = (_of_rung(record, "out-of-fold", name) for name in (rung, above))
        else:
            where = f" class {label}"
            mine = _of_rung(record, "out-of-fold gain", rung, where)
            # The stored gains are over Frozen, on the same nodes.
            other = 0.0 if above == FROZEN else _of_rung(record, "out-of-fold gain", above, where)
        return None if mine is None or other is None else 100 * (mine - other)

    return read


def stands_out(figure: Figure) -> bool:
    """Whether a gain is larger than its spread over splits; nobody knows from one split."""
    return (
        figure.value is not None
        and figure.deviation is not None
        and figure.value > max(figure.deviation, 1e-9)
    )


def _advice(worth: Mapping[str, Figure]) -> str:
    """One line a finding that stands out, the largest first."""
    clear = {rung: f.value or 0.0 for rung, f in worth.items() if stands_out(f)}
    ordered = sorted(clear, key=lambda rung: -clear[rung])
    return "; ".join(f"{RUNGS[rung].advice} ({clear[rung]:+.1f})" for rung in ordered) or NOTHING


def _lost(records: Sequence[Record], label: int | None = None) -> dict[Address, dict[str, Figure]]:
    """By case, what each rung is worth."""
    out: dict[Address, dict[str, Figure]] = {}
    for rung in RUNGS:
        for address, figure in _cases(records, _worth(rung, label)).items():
            out.setdefault(address, {})[rung] = figure
    return dict(sorted(out.items(), key=_order))


def _named(address: Address) -> str:
    backbone, dataset = address
    return f"{dataset} × {TITLES.get(backbone, backbone)}"


def _evidence(records: Sequence[Record]) -> Table:
    lost = _lost(records)
    sheet = _lost_sheet({_named(a): worth for a, worth in lost.items()}, "case", advise=True)
    title = "Where the evidence was lost"
    return Table("lost-evidence", title, (sheet,) if lost else ())


def _evidence_by_class(records: Sequence[Record]) -> Table:
    classes = max((record["graph"].get("classes") or 0 for record in records), default=0)
    by_label = [_lost(records, label) for label in range(classes)]
    rows: dict[str, dict[str, Figure]] = {}
    for address in by_label[0] if by_label else ():
        for label, lost in enumerate(by_label):
            if address in lost:
                rows[f"{_named(address)}, class {label}"] = lost[address]
    sheet = _lost_sheet(rows, "case and class", advise=False)
    title = "Where the evidence was lost, by class"
    return Table("lost-evidence-by-class", title, (sheet,) if rows else ())


def _lost_sheet(lost: Mapping[str, Mapping[str, Figure]], corner: str, advise: bool) -> Sheet:
    """Rungs as columns; with the advice behind them."""
    rungs = [rung for rung in RUNGS if any(rung in worth for worth in lost.values())]
    rows: dict[str, tuple[Entry, ...]] = {}
    for name, worth in lost.items():
        figures = tuple(worth.get(rung, Figure(None)) for rung in rungs)
        rows[name] = (*figures, _advice(worth)) if advise else figures
    columns = tuple(f"{title_of(rung)} over {title_of(RUNGS[rung].above)}" for rung in rungs)
    title = "What each kind of evidence is worth, out of fold (points)"
    return Sheet(title, corner, (*columns, "advice") if advise else columns, rows)


BEYOND: dict[str, Callable[[Sequence[Record]], Table]] = {
    "beyond": _beyond,
    "lost-evidence": _evidence,
    "lost-evidence-by-class": _evidence_by_class,
}
"""By name."""
