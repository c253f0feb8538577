"""Beyond the paper: the evidence ladder beside its controls, and where the evidence was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gnn_repair.repair.ladder.rungs import FROZEN, NOTHING, RUNGS, title_of
from gnn_repair.repair.methods import METHODS
from gnn_repair.study.figures import (
    TITLES,
    Address,
    Cells,
    Figure,
    Kind,
    Read,
    Rows,
    Sheet,
    Table,
    average,
    case_figures,
    case_order,
    comparable,
    in_paper,
    percent,
)
from gnn_repair.study.records import RunRecord

LADDER = "evidence_ladder"
CONTROLS = ("retrained_backbone", "feature_perceptron", "correct_and_smooth")
"""What a user could do instead with the same labels."""
MARGIN = 0.3
"""Points that count as behind."""


def _cases(records: Sequence[RunRecord], read: Read) -> Cells:
    return case_figures(records, Kind(read, signed=True))


def _over_frozen(value: Read) -> Read:
    """A test accuracy less the frozen model's, in points."""

    def read(record: RunRecord) -> float | None:
        own, frozen = value(record), record.frozen.get("test")
        return None if own is None or frozen is None else 100 * (own - frozen)

    return read


def _score(method: str, key: str = "test") -> Read:
    return _over_frozen(lambda record: record.scores(method).get(key))


def _alone(rung: str) -> Read:
    return _over_frozen(lambda record: _of_rung(record, "test", rung))


def _of_rung(record: RunRecord, what: str, rung: str, where: str = "") -> float | None:
    """A number of a candidate, whatever its name was when the record was written."""
    names = (rung, RUNGS[rung].formerly) if rung in RUNGS else (rung,)
    found = (record.scores(LADDER).get(f"{what} {name}{where}") for name in names)
    return next((value for value in found if value is not None), None)


def _datasets(cells: Cells) -> list[str]:
    return list(dict.fromkeys(dataset for _, dataset in cells))


def _means(cells: Cells) -> list[Figure]:
    """Of every dataset, without the count of its cases."""
    parts = [[a for a in cells if a[1] == name] for name in _datasets(cells)]
    return [replace(average(cells, part, 2), counted="") for part in parts]


# The ladder and its controls ----------------------------------------------------------------------


def _beyond(records: Sequence[RunRecord]) -> Table:
    """Gains over Frozen, the ladder's on the same cases beside them; calibration; cases."""
    name = METHODS[LADDER].title
    rows = {name: _score(LADDER)}
    rows[f"{name}, without similar nodes"] = _score(LADDER, "test without similar")
    rows |= {f"only {rung.title}": _alone(key) for key, rung in RUNGS.items()}
    for key, method in METHODS.items():
        if key != LADDER and any(key in record.methods for record in records):
            rows[method.title] = _score(key)
    rows["Retrained backbone, its single models"] = _score("retrained_backbone", "test single")
    found = {title: _cases(records, read) for title, read in rows.items()}
    present = {title: cells for title, cells in found.items() if cells}
    if name not in present:
        return Table("beyond", "The ladder beside its controls", ())
    ladder = present[name]
    controls = [present[METHODS[key].title] for key in CONTROLS if METHODS[key].title in present]
    against = (_against(ladder, controls),) if len(controls) == len(CONTROLS) else ()
    sheets = (_gains(present, ladder), *against, _calibration(records), _by_case(ladder))
    return Table("beyond", "The ladder beside its controls", sheets)


def _gains(present: Mapping[str, Cells], ladder: Cells) -> Sheet:
    datasets = _datasets(ladder)
    rows: Rows = {}
    for title, cells in present.items():
        chosen = comparable(cells, cells)
        above = sum((cells[a].value or 0.0) > 0 for a in chosen)
        means = dict(zip(_datasets(cells), _means(cells), strict=True))
        missing = Figure(None, counted="", digits=2, signed=True)
        rows[title] = (
            average(cells, chosen, 2),
            f"{above} of {len(chosen)}",
            average(ladder, chosen, 2),
            *(means.get(name, missing) for name in datasets),
        )
    columns = ("gain over Frozen", "cases above Frozen", "the ladder there", *datasets)
    splits = sorted({figure.count for figure in ladder.values()})
    each = f"{splits[0]}" if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"
    covered = sum(in_paper(a) for a in ladder)
    said = f"it covers {covered} of the paper's cases that can be had (48), {each} splits each"
    return Sheet("Points of test accuracy over Frozen", "method", columns, rows, said)


def _against(ladder: Cells, controls: Sequence[Cells]) -> Sheet:
    """The ladder beside the best control of each case: what a user could do instead."""
    cases = [address for address in ladder if all(address in cells for cells in controls)]
    best = {a: max((cells[a] for cells in controls), key=lambda f: f.value or 0.0) for a in cases}
    below = {a for a in cases if (ladder[a].value or 0.0) < (best[a].value or 0.0) - MARGIN}
    rows: Rows = {}
    for dataset in ("all", *_datasets(best)):
        chosen = [a for a in cases if dataset in ("all", a[1])]
        behind = f"{sum(a in below for a in chosen)} of {len(chosen)}"
        means = (average(cells, chosen, 2) for cells in (ladder, best))
        rows[dataset] = (*(replace(mean, counted="") for mean in means), behind)
    columns = ("Evidence ladder", "best control", f"ladder more than {MARGIN} below it")
    return Sheet("The best control of each case (points over Frozen)", "dataset", columns, rows)


def _calibration(records: Sequence[RunRecord]) -> Sheet:
    keys = {
        "Evidence ladder": "calibration error",
        "Frozen": "calibration error frozen",
        "Frozen, temperature-scaled": "calibration error frozen scaled",
    }
    rows: Rows = {}
    for title, key in keys.items():
        kind = Kind(lambda record, key=key: percent(record.scores(LADDER).get(key)))  # type: ignore[misc]
        cells = case_figures(records, kind)
        means = (average(cells, None, 2), *_means(cells))
        rows[title] = tuple(replace(mean, counted="", count=0) for mean in means)
        datasets = _datasets(cells)
    return Sheet("Calibration error on test nodes (%)", "probabilities", ("all", *datasets), rows)


def _by_case(ladder: Cells) -> Sheet:
    datasets, backbones = _datasets(ladder), dict.fromkeys(backbone for backbone, _ in ladder)
    rows: Rows = {
        backbone: tuple(ladder.get((backbone, name), Figure(None)) for name in datasets)
        for backbone in backbones
    }
    return Sheet("The ladder's gain by case (points)", "backbone", tuple(datasets), rows)


# Where the evidence was lost ----------------------------------------------------------------------


def _worth(rung: str, label: int | None = None) -> Read:
    """What a rung gains out of fold over the candidate it is compared with."""
    above = RUNGS[rung].above

    def read(record: RunRecord) -> float | None:
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
    largest_first = sorted(clear, key=lambda rung: -clear[rung])
    said = "; ".join(f"{RUNGS[rung].advice} ({clear[rung]:+.1f})" for rung in largest_first)
    return said or NOTHING


def _lost(
    records: Sequence[RunRecord], label: int | None = None
) -> dict[Address, dict[str, Figure]]:
    """By case, what each rung is worth."""
    out: dict[Address, dict[str, Figure]] = {}
    for rung in RUNGS:
        for address, figure in _cases(records, _worth(rung, label)).items():
            out.setdefault(address, {})[rung] = figure
    return {address: out[address] for address in sorted(out, key=case_order)}


def _named(address: Address) -> str:
    backbone, dataset = address
    return f"{dataset} × {TITLES.get(backbone, backbone)}"


def _evidence(records: Sequence[RunRecord]) -> Table:
    lost = _lost(records)
    sheet = _lost_sheet({_named(a): worth for a, worth in lost.items()}, "case", advise=True)
    title = "Where the evidence was lost"
    return Table("lost-evidence", title, (sheet,) if lost else ())


def _evidence_by_class(records: Sequence[RunRecord]) -> Table:
    classes = max((record.graph.get("classes") or 0 for record in records), default=0)
    by_label = [_lost(records, label) for label in range(classes)]
    rows = {
        f"{_named(address)}, class {label}": lost[address]
        for address in (by_label[0] if by_label else ())
        for label, lost in enumerate(by_label)
        if address in lost
    }
    sheet = _lost_sheet(rows, "case and class", advise=False)
    title = "Where the evidence was lost, by class"
    return Table("lost-evidence-by-class", title, (sheet,) if rows else ())


def _lost_sheet(lost: Mapping[str, Mapping[str, Figure]], corner: str, advise: bool) -> Sheet:
    """Rungs as columns; with the advice behind them."""
    rungs = [rung for rung in RUNGS if any(rung in worth for worth in lost.values())]
    rows: Rows = {}
    for name, worth in lost.items():
        figures = tuple(worth.get(rung, Figure(None)) for rung in rungs)
        rows[name] = (*figures, _advice(worth)) if advise else figures
    columns = tuple(f"{title_of(rung)} over {title_of(RUNGS[rung].above)}" for rung in rungs)
    title = "What each kind of evidence is worth, out of fold (points)"
    return Sheet(title, corner, (*columns, "advice") if advise else columns, rows)


BEYOND: dict[str, Callable[[Sequence[RunRecord]], Table]] = {
    "beyond": _beyond,
    "lost-evidence": _evidence,
    "lost-evidence-by-class": _evidence_by_class,
}
"""By name."""
