"""The paper's six tables made from a store, beside the published numbers, and further tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, nan
from typing import Any

from gnn_repair.budget import as_list, check_type
from gnn_repair.errors import InputError, suggestion
from gnn_repair.methods import FROZEN, METHODS, NOTHING, RUNGS, rung_title, title_of
from gnn_repair.published import BACKBONE_WORDS, TITLES, published_numbers
from gnn_repair.results.averages import (
    Address,
    Cells,
    Figure,
    Kind,
    Read,
    Rows,
    Sheet,
    Table,
    accuracy,
    average,
    backbones_of,
    best_of,
    case_figures,
    case_order,
    comparable,
    datasets_of,
    gain,
    in_paper,
    panel,
    quantity,
    ratio,
    wins,
)
from gnn_repair.results.records import GRAPH, ORACLE, PARTS, RunRecord


def make_tables(records: Iterable[RunRecord], names: Iterable[str] | None = None) -> list[Table]:
    """Tables by name, from the records of one protocol; all but ``BEYOND`` unless given."""
    rows = as_list("records", records, "those of a Store")
    for record in rows:
        check_type("a record", record, RunRecord, "those of a Store")
    names = [name for name in TABLES if name not in BEYOND] if names is None else names
    names = as_list("names", names, f"a list, of {', '.join(TABLES)}")
    for name in names:
        if name not in TABLES:
            hint = suggestion(str(name), TABLES)
            raise InputError(f"there is no table {name!r:.80}; {hint}")
    return [Table(name, TABLES[name][0], tuple(TABLES[name][1](rows))) for name in names]


REPAIRS = ("reweighting", "set_translation")
"""The learned repairs, of which the paper prints the best one in bold."""


def _exposure_oracle(records: Sequence[RunRecord]) -> list[Sheet]:
    oracle = partial(quantity, ORACLE)
    reach = partial(oracle, tolerances=(2.5, 2.0))
    panels = {
        "True-class reach (%)": reach("true_class_reach", published="true_class_reach"),
        "Error reach (%)": reach("error_reach", published="error_reach"),
        "Chance: classes neither true nor predicted, at errors (%)": oracle("chance_reach"),
        "Excess of error reach over chance (points)": oracle("excess", signed=True),
        "Classes that can win, per error": oracle("reachable_classes", 1, digits=2),
        "Active support": oracle(
            "support", 1, published="support", tolerances=(0.15, 0.15), digits=2
        ),
    }
    return [panel(title, kind, records) for title, kind in panels.items()]


def _errors_fixed(method: str) -> Kind:
    """The share of the frozen model's reachable test errors that a method predicts right (%).

    The paper has no such figure.
    """
    return quantity(method, "reachable_errors_fixed", per=(ORACLE, "reachable_errors"))


def _shifts(method: str, counted: str) -> Kind:
    """The share of a translation's shifts on test nodes that lie in D_v or are undecided (%).

    The frozen model, where it was kept, has no shift.
    """
    return quantity(method, counted, per=(method, "shifts"))


def _repair_accuracy(records: Sequence[RunRecord]) -> list[Sheet]:
    cells = {name: case_figures(records, accuracy(name)) for name in (FROZEN, *REPAIRS)}
    # Means are compared unrounded, as in the paper: its 88.1 beside a frozen 88.1 is in bold.
    for address, base in cells[FROZEN].items():
        values = {n: cells[n][address].value for n in REPAIRS if address in cells[n]}
        if name := best_of(values, base.value):
            cells[name][address] = replace(cells[name][address], best=True)
    macros = {name: average(figures).value for name, figures in cells.items()}
    best = best_of({name: macros[name] for name in REPAIRS}, macros[FROZEN])
    return [
        panel(title_of(name), accuracy(name), records, figures, best=name == best)
        for name, figures in cells.items()
    ]


def _full_controls(records: Sequence[RunRecord]) -> list[Sheet]:
    return [
        panel(_title(name), accuracy(name), records)
        for name, method in METHODS.items()
        if name in ("refit_head", "node_translation")
        or (not method.from_paper and any(name in record.methods for record in records))
    ]


def _title(name: str) -> str:
    method = METHODS[name]
    return method.title + ("" if method.from_paper else " (not in the paper)")


def _controls(records: Sequence[RunRecord]) -> list[Sheet]:
    """Macro means and wins over the paper's cases, and over further cases if there are any."""
    parts: dict[bool, list[RunRecord]] = {True: [], False: []}
    for record in records:
        parts[in_paper((record.backbone, record.dataset))].append(record)
    further = ", not in the paper" if parts[True] else ""
    return _macro_sheets(parts[True], "") + _macro_sheets(parts[False], further)


COLUMNS = (
    *("learned output", "message set", "accuracy", "gain over Frozen", "wins over Frozen"),
    *("reachable errors fixed (%)", "shifts inside D_v (%)"),
)
"""Of the controls' table; the last two are not in the paper."""


def _accuracies(records: Sequence[RunRecord]) -> dict[str, Cells]:
    """Of the frozen model and of every method that any case has."""
    by_name = {name: case_figures(records, accuracy(name)) for name in (FROZEN, *METHODS)}
    return {name: cells for name, cells in by_name.items() if cells}


def _macro_sheets(records: Sequence[RunRecord], suffix: str) -> list[Sheet]:
    present = _accuracies(records)
    if not present:
        return []
    macros = {name: average(cells, None, 2, 0.5) for name, cells in present.items()}
    paper = {n: m.value for n, m in macros.items() if n != FROZEN and METHODS[n].from_paper}
    best = best_of(paper, macros[FROZEN].value)
    rows: Rows = {"Frozen": ("none", "no", macros.pop(FROZEN), "", "", "", "")}
    for name, macro in macros.items():
        method, change = METHODS[name], gain(present[name], present[FROZEN])
        shares = (_errors_fixed(name), _shifts(name, "shifts_inside"))
        fixed, inside = (
            average(cells) if (cells := case_figures(records, share)) else Figure(nan)
            for share in shares
        )
        rows[_title(name)] = (
            method.output,
            "yes" if method.message_set else "no",
            *(replace(figure, best=name == best) for figure in (macro, change)),
            wins(present[name], present[FROZEN]),
            fixed,
            inside if method.output == "centred shift" else "",
        )
    sheets = [Sheet("Macro means" + suffix, "method", COLUMNS, rows)]
    if {"set_translation", "node_translation"} <= set(present):
        pair = present["set_translation"], present["node_translation"]
        rows = {"Set over node translation": (gain(*pair), wins(*pair))}
        title = "Value of the message set" + suffix
        sheets.append(Sheet(title, "comparison", ("gain", "wins"), rows))
    return sheets


def _dataset_statistics(records: Sequence[RunRecord]) -> list[Sheet]:
    graphs = {record.dataset: record.graph for record in records}
    sizes = ("nodes", "entries", "features", "classes")
    rows: Rows = {}
    for name in datasets_of(records):
        graph, paper = graphs[name], published_numbers()["datasets"].get(name, {})
        figures = [
            Figure(graph.get(key, nan), paper.get(key, nan), digits=0, tolerance=0.0, counted="")
            for key in sizes
        ]
        parts = [int(graph.get(part) or 0) for part in PARTS]
        shares = "/".join(f"{100 * part / (sum(parts) or 1):.0f}" for part in parts)
        rows[name] = (*figures, shares, paper.get("splits", "–"))
    columns = (*sizes, "train/val/test", "published splits")
    return [Sheet("Dataset statistics", "dataset", columns, rows)]


def _readout_exposure(records: Sequence[RunRecord]) -> list[Sheet]:
    """The adjustable terms of each backbone's last aggregation, and their number per node."""
    rows: Rows = {}
    for backbone in backbones_of(records):
        rows[backbone] = ("–", "–", "–", "–")
        if (words := BACKBONE_WORDS.get(backbone)) is not None:
            rows[backbone] = (words.term, words.coefficient, str(words.groups), words.fixed)
    columns = ("adjustable term", "frozen coefficient", "groups", "fixed logits")
    sheet = Sheet("What is adjustable", "backbone", columns, rows)
    terms = quantity(FROZEN, "terms", 1, per=(GRAPH, "nodes"))
    return [sheet, panel("Adjustable terms per node", terms, records)]


def _gains(records: Sequence[RunRecord]) -> list[Sheet]:
    """Each method's gain over the frozen model, by dataset."""
    cells, datasets = _accuracies(records), datasets_of(records)
    pairs = {title_of(name): (name, FROZEN) for name in cells if name != FROZEN}
    if {"set_translation", "node_translation"} <= cells.keys():
        pairs["Set over node translation"] = ("set_translation", "node_translation")
    rows: Rows = {}
    for title, (winner, loser) in pairs.items():
        parts = [{a: f for a, f in cells[winner].items() if a[1] == name} for name in datasets]
        rows[title] = tuple(gain(part, cells[loser]) for part in (*parts, cells[winner]))
    return [Sheet("Gain in points of test accuracy", "method", (*datasets, "all"), rows)]


def _evidence(records: Sequence[RunRecord]) -> list[Sheet]:
    """Two shares from the theory that the paper does not print."""
    title = "Reachable errors that learned reweighting fixes (%)"
    fixed = panel(title, _errors_fixed("reweighting"), records)
    title, method = "Learned set translations inside D_v (%)", "set_translation"
    inside = panel(title, _shifts(method, "shifts_inside"), records)
    undecided = case_figures(records, _shifts(method, "shifts_undecided"))
    if undecided:
        share = f"{average(undecided).value:.2g} %"
        inside = replace(inside, summary=f"{share} are undecided and count as outside")
    return [fixed, inside]


def _time(records: Sequence[RunRecord]) -> list[Sheet]:
    """Minutes by stage and dataset; cases that ran at once each count their full time."""
    datasets = datasets_of(records)
    sums: dict[str, dict[str, float]] = {}
    for record in records:
        for stage, seconds in record.seconds.items():
            line = sums.setdefault(stage, dict.fromkeys(datasets, 0.0))
            line[record.dataset] += (seconds or 0.0) / 60
    sums["total"] = sums.pop("total", {})
    rows: Rows = {}
    for stage, line in sums.items():
        if line:
            minutes = (f"{value:.2f}" for value in (*line.values(), sum(line.values())))
            rows[title_of(stage) if stage != FROZEN else stage] = tuple(minutes)
    return [Sheet("Minutes", "stage", (*datasets, "all"), rows)]


# Numbers of parameters ----------------------------------------------------------------------------

HIDDEN = 128
"""The width of the paper's backbones and adapters."""
WIDE = ("sgc", "mixhop", "h2gcn")
"""Backbones whose state is the raw feature vector; other states are 128 wide."""
PUBLISHED_RANGES = {
    "set_translation": (101_000, 1_930_000),
    "reweighting": (150_000, 3_360_000),
    "node_translation": (101_000, 1_930_000),
}
"""From the paper's text, which rounds to thousands and to ten thousands."""
HALF_DIGITS = (500.0, 5_000.0)
"""The rounding error at the lower and the upper end."""
PUBLISHED_MISMATCH = 0.083


def counts(state: int, classes: int) -> dict[str, int]:
    """For a state d wide and C classes: F(i, o) = iH + H + Ho + o, H = 128, d_x = 3d + 3C + 2."""

    def size(inputs: int, outputs: int) -> int:
        return inputs * HIDDEN + HIDDEN + HIDDEN * outputs + outputs

    pair, context = 3 * state + 3 * classes + 2, state + classes + HIDDEN + 1
    encoder = size(pair, HIDDEN)
    translation = encoder + size(context, classes)
    step = state + 2 * classes + 1
    low = max(1, (translation - classes) // step)
    widths = [width * step + classes for width in (low, low + 1)]
    node = min(widths, key=lambda total: abs(total - translation))
    reweighting = encoder + size(pair + context, 1)
    return {"set_translation": translation, "reweighting": reweighting, "node_translation": node}


def _parameters(records: Sequence[RunRecord]) -> list[Sheet]:
    """Ranges over the stored cases, and over the paper's 64 by its formulas."""
    cases = [
        counts(graph["features"] if backbone in WIDE else HIDDEN, graph["classes"])
        for graph in published_numbers()["datasets"].values()
        for backbone in published_numbers()["tables"]["frozen"]["cells"]
    ]
    paper = {name: [case[name] for case in cases] for name in PUBLISHED_RANGES}
    ours = {name: [r.number(name, "parameters") for r in records] for name in PUBLISHED_RANGES}
    rows: Rows = {
        title_of(name): (
            _extreme(ours[name], choose=min),
            _extreme(ours[name]),
            _extreme(paper[name], low, HALF_DIGITS[0], choose=min),
            _extreme(paper[name], high, HALF_DIGITS[1]),
        )
        for name, (low, high) in PUBLISHED_RANGES.items()
    }
    columns = ("smallest", "largest", "smallest of the paper's 64", "largest of the paper's 64")
    ranges = Sheet("Numbers of parameters", "method", columns, rows)
    largest = (
        _extreme(_mismatches(ours), digits=3),
        _extreme(_mismatches(paper), PUBLISHED_MISMATCH, 0.0005, digits=3),
    )
    titles = ("largest mismatch (%)", "largest of the paper's 64 (%)")
    row = {"Node against set translation": largest}
    return [ranges, Sheet("Matching of capacities", "comparison", titles, row)]


def _mismatches(sizes: Mapping[str, Sequence[float]]) -> list[float]:
    """Between node and set translation, in per cent of the latter."""
    pairs = zip(sizes["node_translation"], sizes["set_translation"], strict=True)
    return [ratio(100 * abs(node - translation), translation) for node, translation in pairs]


def _extreme(
    values: Sequence[float], end: float = nan, half: float = nan, digits: int = 0, choose: Any = max
) -> Figure:
    """The largest or smallest value beside the published end of their range."""
    value = choose((value for value in values if not isnan(value)), default=nan)
    return Figure(value, end, digits=digits, tolerance=half, counted="")


# Beyond the paper: the ladder beside its controls, and where the evidence was lost ----------------

LADDER = "evidence_ladder"
CONTROLS = ("retrained_backbone", "feature_perceptron", "correct_and_smooth")
"""Alternatives to the ladder that use the same labels."""
MARGIN = 0.3
"""Points by which the ladder must be lower to count as behind."""


def _make_cells(records: Sequence[RunRecord], read: Read) -> Cells:
    return case_figures(records, Kind(read, signed=True))


def _read_gain(method: str, name: str = "test") -> Read:
    """Reads a test accuracy minus the frozen model's, in points."""
    return lambda record: 100 * (record.number(method, name) - record.number(FROZEN, "test"))


def _read_rung_gain(rung: str) -> Read:
    """Reads the gain of a rung used alone."""
    return lambda record: 100 * (_rung_number(record, "test", rung) - record.number(FROZEN, "test"))


def _rung_number(record: RunRecord, quantity: str, rung: str, suffix: str = "") -> float:
    """A number of a candidate, also under the name that it had in earlier records."""
    names = (rung, RUNGS[rung].formerly) if rung in RUNGS else (rung,)
    values = [record.number(LADDER, f"{quantity} {name}{suffix}") for name in names]
    return next((value for value in values if not isnan(value)), nan)


def _by_dataset(cells: Cells) -> dict[str, list[Address]]:
    addresses: dict[str, list[Address]] = {}
    for address in cells:
        addresses.setdefault(address[1], []).append(address)
    return addresses


def _mean(cells: Cells, cases: Sequence[Address]) -> Figure:
    """An average that is printed without the number of its cases."""
    return replace(average(cells, cases, 2), counted="")


def _beyond(records: Sequence[RunRecord]) -> list[Sheet]:
    """Gains over Frozen beside the ladder's on the same cases; controls; calibration; cases."""
    title = METHODS[LADDER].title
    reads = {title: _read_gain(LADDER)}
    reads[f"{title}, without similar nodes"] = _read_gain(LADDER, "test without similar")
    reads |= {f"only {rung.title}": _read_rung_gain(key) for key, rung in RUNGS.items()}
    reads |= {method.title: _read_gain(key) for key, method in METHODS.items() if key != LADDER}
    reads["Retrained backbone, its single models"] = _read_gain("retrained_backbone", "test single")
    gains = {name: cells for name, read in reads.items() if (cells := _make_cells(records, read))}
    if title not in gains:
        return []
    ladder = gains[title]
    controls = [gains[METHODS[key].title] for key in CONTROLS if METHODS[key].title in gains]
    against = [_against(ladder, controls)] if len(controls) == len(CONTROLS) else []
    datasets = tuple(_by_dataset(ladder))
    rows: Rows = {
        backbone: tuple(ladder.get((backbone, name), Figure(nan)) for name in datasets)
        for backbone, _ in ladder
    }
    by_case = Sheet("The ladder's gain by case (points)", "backbone", datasets, rows)
    return [_ladder_gains(gains, ladder), *against, _calibration(records), by_case]


def _overall(cells: Cells) -> tuple[str, list[Address]]:
    """The title and the cases of totals: the paper's, or all where none or all are the paper's."""
    cases = comparable(cells, cells)
    return ("the paper's", cases) if len(cases) < len(cells) else ("all", list(cells))


def _ladder_gains(gains: Mapping[str, Cells], ladder: Cells) -> Sheet:
    datasets = tuple(_by_dataset(ladder))
    missing = Figure(nan, counted="", digits=2, signed=True)
    rows: Rows = {}
    for title, cells in gains.items():
        cases, parts = comparable(cells, cells), _by_dataset(cells)
        rows[title] = (
            average(cells, cases, 2),
            f"{sum(cells[a].value > 0 for a in cases)} of {len(cases)}",
            average(ladder, cases, 2),
            *(_mean(cells, parts[name]) if name in parts else missing for name in datasets),
        )
    columns = ("gain over Frozen", "cases above Frozen", "the ladder there", *datasets)
    counts = sorted({figure.count for figure in ladder.values()})
    splits = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    covered = sum(in_paper(a) for a in ladder)
    summary = f"it covers {covered} of the paper's available cases (48), {splits} splits each"
    return Sheet("Points of test accuracy over Frozen", "method", columns, rows, summary)


def _against(ladder: Cells, controls: Sequence[Cells]) -> Sheet:
    """The ladder beside the best control of each case."""
    cases = [address for address in ladder if all(address in cells for cells in controls)]
    best = {a: max((cells[a] for cells in controls), key=lambda f: f.value) for a in cases}
    rows: Rows = {}
    for title, part in {**dict([_overall(best)]), **_by_dataset(best)}.items():
        behind = sum(ladder[a].value < best[a].value - MARGIN for a in part)
        rows[title] = (_mean(ladder, part), _mean(best, part), f"{behind} of {len(part)}")
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
        cells = case_figures(records, quantity(LADDER, key))
        total, cases = _overall(cells)
        parts = _by_dataset(cells)
        means = (_mean(cells, part) for part in (cases, *parts.values()))
        rows[title] = tuple(replace(mean, count=0) for mean in means)
    return Sheet("Calibration error on test nodes (%)", "probabilities", (total, *parts), rows)


def _read_worth(rung: str, label: int | None = None) -> Read:
    """Reads a rung's gain on held-out nodes over the candidate it is compared with."""
    base = RUNGS[rung].above
    name, suffix = ("out-of-fold", "") if label is None else ("out-of-fold gain", f" class {label}")

    def read(record: RunRecord) -> float:
        value = _rung_number(record, name, rung, suffix)
        if label is not None and base == FROZEN:
            return 100 * value  # gains per class are stored over Frozen
        return 100 * (value - _rung_number(record, name, base, suffix))

    return read


def _advise(worth: Mapping[str, Figure]) -> str:
    """Advice per gain that exceeds its deviation over splits, largest first."""
    clear = {r: f.value for r, f in worth.items() if f.value > f.deviation and f.value > 1e-9}
    rungs = sorted(clear, key=lambda rung: -clear[rung])
    return "; ".join(f"{RUNGS[rung].advice} ({clear[rung]:+.1f})" for rung in rungs) or NOTHING


def _measure_evidence(
    records: Sequence[RunRecord], label: int | None = None
) -> dict[str, dict[str, Figure]]:
    """By case, the worth of each rung."""
    cases: dict[Address, dict[str, Figure]] = {}
    for rung in RUNGS:
        for address, figure in _make_cells(records, _read_worth(rung, label)).items():
            cases.setdefault(address, {})[rung] = figure
    return {
        f"{dataset} × {TITLES.get(backbone, backbone)}": cases[backbone, dataset]
        for backbone, dataset in sorted(cases, key=case_order)
    }


def _lost_evidence(records: Sequence[RunRecord]) -> list[Sheet]:
    return _lost_sheets(_measure_evidence(records), "case", advise=True)


def _lost_evidence_by_class(records: Sequence[RunRecord]) -> list[Sheet]:
    classes = max((record.graph.get("classes") or 0 for record in records), default=0)
    by_label = [_measure_evidence(records, label) for label in range(classes)]
    rows = {
        f"{case}, class {label}": cases[case]
        for case in (by_label[0] if by_label else ())
        for label, cases in enumerate(by_label)
        if case in cases
    }
    return _lost_sheets(rows, "case and class", advise=False)


def _lost_sheets(
    cases: Mapping[str, Mapping[str, Figure]], corner: str, advise: bool
) -> list[Sheet]:
    """Rungs as columns, with the advice behind them; no sheet without a case."""
    rungs = [rung for rung in RUNGS if any(rung in worth for worth in cases.values())]
    rows: Rows = {}
    for name, worth in cases.items():
        figures = tuple(worth.get(rung, Figure(nan)) for rung in rungs)
        rows[name] = (*figures, _advise(worth)) if advise else figures
    columns = tuple(f"{rung_title(rung)} over {rung_title(RUNGS[rung].above)}" for rung in rungs)
    title = "What each kind of evidence is worth on held-out nodes (points)"
    sheet = Sheet(title, corner, (*columns, "advice") if advise else columns, rows)
    return [sheet] if cases else []


TABLES: dict[str, tuple[str, Callable[[Sequence[RunRecord]], list[Sheet]]]] = {
    "exposure-oracle": ("Exact-mass oracle on test nodes", _exposure_oracle),
    "repair-accuracy": ("Test accuracy (%) of frozen models and repairs", _repair_accuracy),
    "controls": ("Controls: test accuracy (%) over cases", _controls),
    "full-controls": ("Test accuracy (%) of the controls", _full_controls),
    "dataset-statistics": ("Datasets after preprocessing", _dataset_statistics),
    "readout-exposure": ("Exposure of the final aggregation", _readout_exposure),
    "gains": ("Gains over the frozen model, by dataset", _gains),
    "evidence": ("Use of reachable evidence, on test nodes", _evidence),
    "parameters": ("Parameters of the repairs", _parameters),
    "time": ("Where the time went", _time),
    "beyond": ("The ladder beside its controls", _beyond),
    "lost-evidence": ("Where the evidence was lost", _lost_evidence),
    "lost-evidence-by-class": ("Where the evidence was lost, by class", _lost_evidence_by_class),
}
"""By name the title and the function that makes the sheets; the paper's six tables come first."""
BEYOND = ("beyond", "lost-evidence", "lost-evidence-by-class")
"""Tables that are made only when named."""
