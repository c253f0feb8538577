"""The study's tables on a terminal: our number above, the published one below it."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gnn_repair.study.figures import TITLES, Entry, Sheet, Table
from gnn_repair.study.rendering import (
    cases_text,
    own_text,
    paper_parts,
    remark,
    usual_count,
)


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables; the best is bold, what lies outside the tolerance yellow and marked with !."""
    console = Console(highlight=False)
    for table in tables:
        for sheet in table.sheets:
            grid = _grid(sheet)
            # A narrow terminal wraps lines; no figure is cut off.
            unbounded = console.options.update(width=10_000)
            console.width = max(console.width, console.measure(grid, options=unbounded).maximum)
            console.print(f"{table.title}: {sheet.title}", style="bold", soft_wrap=True)
            console.print(grid)
            note = remark(sheet, "below it")
            if note:
                console.print(note + "\n", soft_wrap=True)


def _grid(sheet: Sheet) -> Grid:
    usual = usual_count(sheet)
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    grid.add_column(sheet.corner, no_wrap=True)
    for place, column in enumerate(sheet.columns):
        words = any(isinstance(row[place], str) and row[place] for row in sheet.rows.values())
        grid.add_column(column, justify="left" if words else "right", no_wrap=True)
    for name, row in sheet.rows.items():
        if name == "average":
            grid.add_section()
        grid.add_row(TITLES.get(name, name), *(_text(entry, usual) for entry in row))
    return grid


def _text(entry: Entry, usual: int) -> Text:
    if isinstance(entry, str):
        return Text(entry)
    style = " ".join(["bold"] * entry.best + ["yellow"] * entry.outside)
    text = Text(own_text(entry, usual), style=style)
    if entry.outside:
        text.append(" !")
    for line in (" ".join(paper_parts(entry)), cases_text(entry)):
        if line:
            text.append(f"\n{line}", style="" if entry.outside else "dim")
    return text
