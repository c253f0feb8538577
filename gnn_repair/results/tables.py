"""The paper's six tables from a store, ours beside the published numbers, and more of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any, NamedTuple

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
    best_of,
    case_figures,
    case_order,
    comparable,
    gain,
    in_paper,
    mark_best,
    oracle_on_test,
    ordered_datasets,
    panel,
    paper_order,
    ratio,
    share_of_errors_fixed,
    share_of_shifts,
    wins,
    with_best_macro,
)
from gnn_repair.results.records import GRAPH, PARTS, Numbers, RunRecord


def make_tables(records: Iterable[RunRecord], names: Iterable[str] | None = None) -> list[Table]:
    """The tables of these names from the records of one protocol; the paper's unless given."""
    held = as_list("records", records, "those of a Store")
    for record in held:
        check_type("a record", record, RunRecord, "those of a Store")
    wanted = [name for name in TABLES if name not in BEYOND] if names is None else names
    chosen = as_list("names", wanted, f"a list, of {', '.join(TABLES)}")
    for name in chosen:
        if name not in TABLES:
            hint = suggestion(str(name), TABLES)
            raise InputError(f"there is no table {name!r:.80}; {hint}")
    return [Table(name, TABLES[name][0], tuple(TABLES[name][1](held))) for name in chosen]


REPAIRS = ("reweighting", "set_translation")
"""The learned repairs among which the paper prints the best one in bold."""


def _exposure_oracle(records: Sequence[RunRecord]) -> list[Sheet]:
    panels = {
        "True-class reach (%)": oracle_on_test("true_class_reach", 100, 2.5, 2.0, published=True),
        "Error reach (%)": oracle_on_test("error_reach", 100, 2.5, 2.0, published=True),
        "Chance: classes neither true nor predicted, at errors (%)": oracle_on_test("chance_reach"),
        "Excess of error reach over chance (points)": oracle_on_test("excess", signed=True),
        "Classes that can win, per error": oracle_on_test("reachable_classes", 1, digits=2),
        "Active support": oracle_on_test("support", 1, 0.15, 0.15, published=True, digits=2),
    }
    return [panel(title, kind, records) for title, kind in panels.items()]


def _repair_accuracy(records: Sequence[RunRecord]) -> list[Sheet]:
    cells = {name: case_figures(records, accuracy(name)) for name in ("frozen", *REPAIRS)}
    marked = cells | mark_best({name: cells[name] for name in REPAIRS}, cells["frozen"])
    macro = {name: average(figures).value for name, figures in cells.items()}
    best = best_of({name: macro[name] for name in REPAIRS}, macro["frozen"])
    return [
        with_best_macro(sheet) if name == best else sheet
        for name in cells
        for sheet in [panel(title_of(name), accuracy(name), records, marked[name])]
    ]


def _full_controls(records: Sequence[RunRecord]) -> list[Sheet]:
    shown = [
        name
        for name, method in METHODS.items()
        if name in ("refit_head", "node_translation")
        or (not method.from_paper and any(name in record.methods for record in records))
    ]
    return [panel(_title(name), accuracy(name), records) for name in shown]


def _title(name: str) -> str:
    method = METHODS[name]
    return method.title + ("" if method.from_paper else " (not in the paper)")


def _controls(records: Sequence[RunRecord]) -> list[Sheet]:
    """Macro means over the paper's cases, and over others if there are any; who wins where."""
    inside = [record for record in records if in_paper((record.backbone, record.dataset))]
    others = [record for record in records if not in_paper((record.backbone, record.dataset))]
    elsewhere = ", not in the paper" if inside else ""
    return _macro_sheets(inside, "") + _macro_sheets(others, elsewhere)


COLUMNS = (
    *("learned output", "message set", "accuracy", "gain over Frozen", "wins over Frozen"),
    *("reachable errors fixed (%)", "shifts inside D_v (%)"),
)
"""Of the controls' table; the last two are not in the paper."""


def _macro_sheets(records: Sequence[RunRecord], where: str) -> list[Sheet]:
    by_name = {name: case_figures(records, accuracy(name)) for name in ("frozen", *METHODS)}
    present = {name: cells for name, cells in by_name.items() if cells}
    if not present:
        return []
    macros = {name: average(cells, None, 2, 0.5) for name, cells in present.items()}
    paper = {n: macros[n].value for n in macros if n in METHODS and METHODS[n].from_paper}
    best = best_of(paper, macros["frozen"].value)
    rows: Rows = {"Frozen": ("none", "no", macros["frozen"], "", "", "", "")}
    for name in [name for name in macros if name in METHODS]:
        change = gain(present[name], present["frozen"])
        fixed = case_figures(records, share_of_errors_fixed(name))
        inside = case_figures(records, share_of_shifts(name, "shifts_inside"))
        shifts = METHODS[name].output == "centred shift"
        rows[_title(name)] = (
            METHODS[name].output,
            "yes" if METHODS[name].message_set else "no",
            *(replace(figure, best=name == best) for figure in (macros[name], change)),
            wins(present[name], present["frozen"]),
            _macro(fixed),
            _macro(inside) if shifts else "",
        )
    sheets = [Sheet("Macro means" + where, "method", COLUMNS, rows)]
    if {"set_translation", "node_translation"} <= set(present):
        first, second = present["set_translation"], present["node_translation"]
        duel = {"Set over node translation": (gain(first, second), wins(first, second))}
        title = "Value of the message set" + where
        sheets.append(Sheet(title, "comparison", ("gain", "wins"), duel))
    return sheets


def _macro(cells: Cells) -> Figure:
    return average(cells) if cells else Figure(nan)


def _dataset_statistics(records: Sequence[RunRecord]) -> list[Sheet]:
    facts = {record.dataset: record.graph for record in records}
    rows: Rows = {}
    for name in ordered_datasets(records):
        graph, paper = facts[name], published_numbers()["datasets"].get(name, {})
        figures = [
            Figure(graph.get(key, nan), paper.get(key, nan), digits=0, tolerance=0.0, counted="")
            for key in ("nodes", "entries", "features", "classes")
        ]
        rows[name] = (*figures, _shares(graph), paper.get("splits", "–"))
    columns = ("nodes", "entries", "features", "classes", "train/val/test", "published splits")
    return [Sheet("Dataset statistics", "dataset", columns, rows)]


def _shares(graph: Numbers) -> str:
    """The sizes of the parts in per cent of the labelled nodes."""
    sizes = [int(graph.get(part) or 0) for part in PARTS]
    total = sum(sizes) or 1
    return "/".join(f"{100 * size / total:.0f}" for size in sizes)


def _readout_exposure(records: Sequence[RunRecord]) -> list[Sheet]:
    """What is adjustable in each backbone's last aggregation, and how much of it there is."""
    rows: Rows = {}
    for backbone in paper_order((record.backbone for record in records), TITLES):
        rows[backbone] = ("–", "–", "–", "–")
        if (words := BACKBONE_WORDS.get(backbone)) is not None:
            rows[backbone] = (words.term, words.coefficient, str(words.groups), words.fixed)
    columns = ("adjustable term", "frozen coefficient", "groups", "fixed logits")
    sheet = Sheet("What is adjustable", "backbone", columns, rows)
    terms = Kind(lambda r: ratio(r.number(FROZEN, "terms"), r.number(GRAPH, "nodes")))
    return [sheet, panel("Adjustable terms per node", terms, records)]


def _gains(records: Sequence[RunRecord]) -> list[Sheet]:
    """What each method gains over the frozen model, dataset by dataset."""
    cells = {name: case_figures(records, accuracy(name)) for name in ("frozen", *METHODS)}
    datasets = ordered_datasets(records)
    pairs = {title_of(name): (name, "frozen") for name in METHODS if cells[name]}
    if cells["set_translation"] and cells["node_translation"]:
        pairs["Set over node translation"] = ("set_translation", "node_translation")
    rows: Rows = {
        title: (
            *(gain(_on(cells[a], name), _on(cells[b], name)) for name in datasets),
            gain(cells[a], cells[b]),
        )
        for title, (a, b) in pairs.items()
    }
    return [Sheet("Gain in points of test accuracy", "method", (*datasets, "all"), rows)]


def _on(cells: Cells, dataset: str) -> Cells:
    return {address: figure for address, figure in cells.items() if address[1] == dataset}


def _evidence(records: Sequence[RunRecord]) -> list[Sheet]:
    """Two figures that the theory asks for and the paper does not print."""
    title = "Reachable errors that learned reweighting fixes (%)"
    fixed = panel(title, share_of_errors_fixed("reweighting"), records)
    title, method = "Learned set translations inside D_v (%)", "set_translation"
    inside = panel(title, share_of_shifts(method, "shifts_inside"), records)
    undecided = case_figures(records, share_of_shifts(method, "shifts_undecided"))
    if undecided:
        share = f"{average(undecided).value:.2g} %"
        inside = replace(inside, summary=f"{share} are undecided and count as outside")
    return [fixed, inside]


def _time(records: Sequence[RunRecord]) -> list[Sheet]:
    """Minutes by stage and dataset; cases that shared a machine each count their whole time."""
    datasets = ordered_datasets(records)
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
            rows[stage if stage == "frozen" else title_of(stage)] = tuple(minutes)
    return [Sheet("Minutes", "stage", (*datasets, "all"), rows)]


# Numbers of parameters ----------------------------------------------------------------------------

HIDDEN = 128
"""The width of the paper's backbones and adapters."""
WIDE = ("sgc", "mixhop", "h2gcn")
"""Backbones whose state is the raw feature vector; that of the others is 128 wide."""
PUBLISHED_RANGES = {
    "set_translation": (101_000, 1_930_000),
    "reweighting": (150_000, 3_360_000),
    "node_translation": (101_000, 1_930_000),
}
"""From the paper's text, which rounds to thousands and to ten thousands."""
HALF_DIGITS = (500.0, 5_000.0)
"""What that rounding may hide at either end."""
PUBLISHED_MISMATCH = 0.083


class Counts(NamedTuple):
    """Parameters of one case."""

    set_translation: int
    reweighting: int
    node_translation: int

    @property
    def mismatch(self) -> float:
        """Of node against set translation, in per cent of the latter."""
        return 100 * abs(self.node_translation - self.set_translation) / self.set_translation


def published_cases() -> list[Counts]:
    """The paper's 64 cases."""
    return [
        counts(graph["features"] if backbone in WIDE else HIDDEN, graph["classes"])
        for graph in published_numbers()["datasets"].values()
        for backbone in published_numbers()["tables"]["frozen"]["cells"]
    ]


def counts(state: int, classes: int) -> Counts:
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
    return Counts(translation, encoder + size(pair + context, 1), node)


def _parameters(records: Sequence[RunRecord]) -> list[Sheet]:
    """Ranges over the cases here, and over the paper's 64 by its own formulas."""
    paper = published_cases()
    sizes = {name: [r.number(name, "parameters") for r in records] for name in PUBLISHED_RANGES}
    rows: Rows = {}
    for name, (low, high) in PUBLISHED_RANGES.items():
        here = [size for size in sizes[name] if not isnan(size)]
        there = [getattr(case, name) for case in paper]
        rows[title_of(name)] = (
            _largest(here, choose=min),
            _largest(here),
            _largest(there, low, HALF_DIGITS[0], choose=min),
            _largest(there, high, HALF_DIGITS[1]),
        )
    columns = ("smallest", "largest", "smallest of the paper's 64", "largest of the paper's 64")
    ranges = Sheet("Numbers of parameters", "method", columns, rows)
    pairs = zip(sizes["node_translation"], sizes["set_translation"], strict=True)
    mismatches = [m for m in (ratio(100 * abs(a - b), b) for a, b in pairs) if not isnan(m)]
    theirs = [case.mismatch for case in paper]
    both = (
        _largest(mismatches, digits=3),
        _largest(theirs, PUBLISHED_MISMATCH, 0.0005, digits=3),
    )
    titles = ("largest mismatch (%)", "largest of the paper's 64 (%)")
    row = {"Node against set translation": both}
    return [ranges, Sheet("Matching of capacities", "comparison", titles, row)]


def _largest(
    values: Sequence[float], end: float = nan, half: float = nan, digits: int = 0, choose: Any = max
) -> Figure:
    """One of the values beside the published end of their range."""
    value = choose(values, default=nan)
    return Figure(value, end, digits=digits, tolerance=half, counted="")


# Beyond the paper: the ladder beside its controls, and where the evidence was lost ----------------

LADDER = "evidence_ladder"
CONTROLS = ("retrained_backbone", "feature_perceptron", "correct_and_smooth")
"""What a user could do instead with the same labels."""
MARGIN = 0.3
"""Points that count as behind."""


def _cases(records: Sequence[RunRecord], read: Read) -> Cells:
    return case_figures(records, Kind(read, signed=True))


def _gain(method: str, name: str = "test") -> Read:
    """A test accuracy less the frozen model's, in points."""
    return lambda record: 100 * (record.number(method, name) - record.number(FROZEN, "test"))


def _alone(rung: str) -> Read:
    return lambda record: 100 * (_of_rung(record, "test", rung) - record.number(FROZEN, "test"))


def _of_rung(record: RunRecord, what: str, rung: str, where: str = "") -> float:
    """A number of a candidate, whatever its name was when the record was written."""
    names = (rung, RUNGS[rung].formerly) if rung in RUNGS else (rung,)
    values = [record.number(LADDER, f"{what} {name}{where}") for name in names]
    return next((value for value in values if not isnan(value)), nan)


def _datasets(cells: Cells) -> list[str]:
    return list(dict.fromkeys(dataset for _, dataset in cells))


def _means(cells: Cells) -> list[Figure]:
    """Of every dataset, without the count of its cases."""
    parts = [[a for a in cells if a[1] == name] for name in _datasets(cells)]
    return [replace(average(cells, part, 2), counted="") for part in parts]


def _beyond(records: Sequence[RunRecord]) -> list[Sheet]:
    """Gains over Frozen, the ladder's on the same cases beside them; calibration; cases."""
    name = METHODS[LADDER].title
    rows = {name: _gain(LADDER)}
    rows[f"{name}, without similar nodes"] = _gain(LADDER, "test without similar")
    rows |= {f"only {rung.title}": _alone(key) for key, rung in RUNGS.items()}
    for key, method in METHODS.items():
        if key != LADDER and any(key in record.methods for record in records):
            rows[method.title] = _gain(key)
    rows["Retrained backbone, its single models"] = _gain("retrained_backbone", "test single")
    present = {title: cells for title, read in rows.items() if (cells := _cases(records, read))}
    if name not in present:
        return []
    ladder = present[name]
    controls = [present[METHODS[key].title] for key in CONTROLS if METHODS[key].title in present]
    against = [_against(ladder, controls)] if len(controls) == len(CONTROLS) else []
    return [_ladder_gains(present, ladder), *against, _calibration(records), _by_case(ladder)]


def _overall(cells: Cells) -> tuple[str, list[Address]]:
    """What totals are over, by name: the paper's cases, or all where none or all are of it."""
    inside = comparable(cells, cells)
    return ("the paper's", inside) if len(inside) < len(cells) else ("all", list(cells))


def _ladder_gains(present: Mapping[str, Cells], ladder: Cells) -> Sheet:
    datasets = _datasets(ladder)
    rows: Rows = {}
    for title, cells in present.items():
        chosen = comparable(cells, cells)
        above = sum(cells[a].value > 0 for a in chosen)
        means = dict(zip(_datasets(cells), _means(cells), strict=True))
        missing = Figure(nan, counted="", digits=2, signed=True)
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
    said = f"it covers {covered} of the paper's available cases (48), {each} splits each"
    return Sheet("Points of test accuracy over Frozen", "method", columns, rows, said)


def _against(ladder: Cells, controls: Sequence[Cells]) -> Sheet:
    """The ladder beside the best control of each case: what a user could do instead."""
    cases = [address for address in ladder if all(address in cells for cells in controls)]
    best = {a: max((cells[a] for cells in controls), key=lambda f: f.value) for a in cases}
    below = {a for a in cases if ladder[a].value < best[a].value - MARGIN}
    rows: Rows = {}
    parts = dict([_overall(best)])
    for address in cases:
        parts.setdefault(address[1], []).append(address)
    for dataset, chosen in parts.items():
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
        kind = Kind(lambda record, key=key: 100 * record.number(LADDER, key))  # type: ignore[misc]
        cells = case_figures(records, kind)
        total, chosen = _overall(cells)
        means = (average(cells, chosen, 2), *_means(cells))
        rows[title] = tuple(replace(mean, counted="", count=0) for mean in means)
        datasets = _datasets(cells)
    return Sheet("Calibration error on test nodes (%)", "probabilities", (total, *datasets), rows)


def _by_case(ladder: Cells) -> Sheet:
    datasets, backbones = _datasets(ladder), dict.fromkeys(backbone for backbone, _ in ladder)
    rows: Rows = {
        backbone: tuple(ladder.get((backbone, name), Figure(nan)) for name in datasets)
        for backbone in backbones
    }
    return Sheet("The ladder's gain by case (points)", "backbone", tuple(datasets), rows)


def _worth(rung: str, label: int | None = None) -> Read:
    """What a rung gains on held-out nodes over the candidate it is compared with."""
    above = RUNGS[rung].above

    def read(record: RunRecord) -> float:
        if label is None:
            mine, other = (_of_rung(record, "out-of-fold", name) for name in (rung, above))
        else:
            where = f" class {label}"
            mine = _of_rung(record, "out-of-fold gain", rung, where)
            # The stored gains are over Frozen, on the same nodes.
            other = 0.0 if above == FROZEN else _of_rung(record, "out-of-fold gain", above, where)
        return 100 * (mine - other)

    return read


def _advice(worth: Mapping[str, Figure]) -> str:
    """One line per gain larger than its spread over splits (unknown of one), the largest first."""
    clear = {r: f.value for r, f in worth.items() if f.value > max(f.deviation, 1e-9)}
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


def _lost_evidence(records: Sequence[RunRecord]) -> list[Sheet]:
    lost = _lost(records)
    return _lost_sheets({_named(a): worth for a, worth in lost.items()}, "case", advise=True)


def _lost_evidence_by_class(records: Sequence[RunRecord]) -> list[Sheet]:
    classes = max((record.graph.get("classes") or 0 for record in records), default=0)
    by_label = [_lost(records, label) for label in range(classes)]
    rows = {
        f"{_named(address)}, class {label}": lost[address]
        for address in (by_label[0] if by_label else ())
        for label, lost in enumerate(by_label)
        if address in lost
    }
    return _lost_sheets(rows, "case and class", advise=False)


def _lost_sheets(
    lost: Mapping[str, Mapping[str, Figure]], corner: str, advise: bool
) -> list[Sheet]:
    """Rungs as columns; with the advice behind them. None where nothing is known."""
    rungs = [rung for rung in RUNGS if any(rung in worth for worth in lost.values())]
    rows: Rows = {}
    for name, worth in lost.items():
        figures = tuple(worth.get(rung, Figure(nan)) for rung in rungs)
        rows[name] = (*figures, _advice(worth)) if advise else figures
    columns = tuple(f"{rung_title(rung)} over {rung_title(RUNGS[rung].above)}" for rung in rungs)
    title = "What each kind of evidence is worth on held-out nodes (points)"
    sheet = Sheet(title, corner, (*columns, "advice") if advise else columns, rows)
    return [sheet] if lost else []


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
"""By name the title and what makes the sheets: the paper's six tables, ours and those beyond it."""
BEYOND = ("beyond", "lost-evidence", "lost-evidence-by-class")
"""Tables that must be asked for."""
