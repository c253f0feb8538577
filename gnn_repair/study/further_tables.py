"""The exposure table, gains by dataset, the use made of reachable evidence, and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gnn_repair.backbones.readouts import READOUTS
from gnn_repair.repair.methods import title_of
from gnn_repair.study.cells import (
    Cells,
    Figure,
    Kind,
    accuracy,
    average,
    case_figures,
    errors_fixed,
    gain,
    shifts_inside,
    shifts_undecided,
)
from gnn_repair.study.methods import METHODS
from gnn_repair.study.parameter_counts import Counts, published_cases
from gnn_repair.study.records import Record
from gnn_repair.study.sheets import (
    TITLES,
    Entry,
    Sheet,
    Table,
    ordered,
    ordered_datasets,
    panel,
)


def readout_exposure(records: Sequence[Record]) -> Table:
    """What is adjustable in each backbone's last aggregation, and how much of it there is."""
    rows: dict[str, tuple[Entry, ...]] = {}
    for backbone in ordered({record["backbone"] for record in records}, TITLES):
        words = READOUTS.get(backbone)
        rows[backbone] = (
            ("–", "–", "–", "–")
            if words is None
            else (words.term, words.coefficient, str(words.groups), words.fixed)
        )
    columns = ("adjustable term", "frozen coefficient", "groups", "fixed logits")
    sheet = Sheet("What is adjustable", "backbone", columns, rows)
    terms = panel("Adjustable terms a node", Kind(_terms_a_node, None, 0.0, 0.0), records)
    return Table("readout-exposure", "Exposure of the final aggregation", (sheet, terms))


def _terms_a_node(record: Record) -> float | None:
    terms, nodes = record["frozen"].get("terms"), record["graph"].get("nodes")
    return None if terms is None or not nodes else terms / nodes


def gains(records: Sequence[Record]) -> Table:
    """What each method gains over the frozen model, dataset by dataset."""
    cells = {name: case_figures(records, accuracy(name)) for name in ("frozen", *METHODS)}
    datasets = ordered_datasets(records)
    pairs = {title_of(name): (name, "frozen") for name in METHODS if cells[name]}
    if cells["set_translation"] and cells["node_translation"]:
        pairs["Set over node translation"] = ("set_translation", "node_translation")
    rows: dict[str, tuple[Entry, ...]] = {
        title: (
            *(gain(_on(cells[a], name), _on(cells[b], name)) for name in datasets),
            gain(cells[a], cells[b]),
        )
        for title, (a, b) in pairs.items()
    }
    sheet = Sheet("Gain in points of test accuracy", "method", (*datasets, "all"), rows)
    return Table("gains", "Gains over the frozen model, by dataset", (sheet,))


def _on(cells: Cells, dataset: str) -> Cells:
    return {address: figure for address, figure in cells.items() if address[1] == dataset}


def evidence(records: Sequence[Record]) -> Table:
    """Two figures that the theory asks for and the paper does not print."""
    fixed = panel(
        "Reachable errors that learned reweighting fixes (%)", errors_fixed("reweighting"), records
    )
    inside = panel(
        "Learned set translations inside D_v (%)", shifts_inside("set_translation"), records
    )
    undecided = case_figures(records, shifts_undecided("set_translation"))
    if undecided:
        share = average(undecided, undecided).value or 0.0
        inside = replace(inside, summary=f"{share:.2g} % are undecided and count as outside")
    return Table("evidence", "Use of reachable evidence, on test nodes", (fixed, inside))


PUBLISHED_RANGES = {
    "set_translation": (101_000, 1_930_000),
    "reweighting": (150_000, 3_360_000),
    "node_translation": (101_000, 1_930_000),
}
"""From the paper's text, which rounds to thousands and to ten thousands."""
HALF_DIGITS = (500.0, 5_000.0)
"""What that rounding may hide at either end."""
PUBLISHED_MISMATCH = 0.083


def parameters(records: Sequence[Record]) -> Table:
    """Ranges over the cases here, and over the paper's 64 by its own formulas."""
    paper = published_cases()
    rows: dict[str, tuple[Entry, ...]] = {}
    for name, ends in PUBLISHED_RANGES.items():
        here = _of_records(records, name)
        all_cases = [getattr(counts, name) for counts in paper]
        rows[title_of(name)] = (
            *(_count(value) for value in (min(here, default=None), max(here, default=None))),
            *(
                _count(value, end, half)
                for value, end, half in zip(
                    (min(all_cases), max(all_cases)), ends, HALF_DIGITS, strict=True
                )
            ),
        )
    columns = ("smallest", "largest", "smallest of the paper's 64", "largest of the paper's 64")
    ranges = Sheet("Numbers of parameters", "method", columns, rows)
    return Table("parameters", "Parameters of the repairs", (ranges, _matching(records, paper)))


def _matching(records: Sequence[Record], paper: Sequence[Counts]) -> Sheet:
    pairs = [
        (sizes["node_translation"], sizes["set_translation"])
        for record in records
        for sizes in [{name: _parameters(record, name) for name in PUBLISHED_RANGES}]
    ]
    here = [100 * abs(a - b) / b for a, b in pairs if a is not None and b]
    largest = max(counts.mismatch for counts in paper)
    figures = (
        Figure(max(here, default=None), digits=3, counted=""),
        Figure(largest, PUBLISHED_MISMATCH, digits=3, tolerance=0.0005, counted=""),
    )
    row = {"Node against set translation": figures}
    columns = ("largest mismatch (%)", "largest of the paper's 64 (%)")
    return Sheet("Matching of capacities", "comparison", columns, row)


def _count(value: int | None, paper: int | None = None, half: float | None = None) -> Figure:
    return Figure(value, paper, digits=0, tolerance=half, counted="")


def _of_records(records: Sequence[Record], method: str) -> list[int]:
    found = (_parameters(record, method) for record in records)
    return [size for size in found if size is not None]


def _parameters(record: Record, method: str) -> int | None:
    size = record["methods"].get(method, {}).get("parameters")
    return None if size is None else int(size)
