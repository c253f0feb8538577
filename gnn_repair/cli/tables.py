"""``gnn-repair study tables``: the paper's tables in every form."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gnn_repair.cli import options
from gnn_repair.cli.options import (
    ProtocolOption,
    SetOption,
    StoreOption,
    chosen_protocol,
    only_digest,
)
from gnn_repair.errors import InputError
from gnn_repair.published import TITLES
from gnn_repair.results.averages import Entry, Sheet, Table, without_published, without_spread
from gnn_repair.results.rendering import (
    RENDERERS,
    cases_text,
    own_text,
    paper_parts,
    remark,
    usual_count,
)
from gnn_repair.results.store import open_results
from gnn_repair.results.tables import TABLES, make_tables


class TableFormat(enum.StrEnum):
    """How tables are printed."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    latex = "latex"


def tables(
    store: StoreOption = Path("results"),
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Which tables, of {', '.join(TABLES)}; all but the last three unless named.",
            autocompletion=options.one_of(lambda: TABLES),
        ),
    ] = None,
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    digest: Annotated[
        str | None, typer.Option(help="Digest of the protocol, as in the store's folder names.")
    ] = None,
    format: Annotated[
        TableFormat,
        typer.Option("--format", help="A table for people, or a form to paste or to read in."),
    ] = TableFormat.table,
    published: Annotated[
        bool, typer.Option(help="Published values beside ours, and what differs marked with !.")
    ] = True,
    spread: Annotated[
        bool | None,
        typer.Option(help="Standard deviations over splits; unless said, all forms but LaTeX."),
    ] = None,
) -> None:
    """Print the paper's six tables from the store, beside the published numbers, and more.

    The paper's are exposure-oracle, repair-accuracy, controls, full-controls, dataset-statistics
    and readout-exposure. LaTeX floats have captions and labels (tab:repair-accuracy) and need the
    package booktabs alone:

    gnn-repair study tables repair-accuracy --store results --format latex --no-published
    """
    made = make_tables(_records_to_show(store, protocol, set_, digest), names or None)
    if not published:
        made = [without_published(table) for table in made]
    if not (format is not TableFormat.latex if spread is None else spread):
        made = [without_spread(table) for table in made]
    if format is TableFormat.table:
        print_tables(made)
        return
    typer.echo(RENDERERS[format.value](made), nl=False)


def _records_to_show(
    store: Path, protocol: str | None, set_: list[str] | None, digest: str | None
) -> list[Any]:
    """The store's records of the protocol that is meant."""
    held = open_results(store)
    named = only_digest(held, chosen_protocol(protocol, set_), bool(protocol or set_))
    chosen = held.resolve(digest or named)
    records = list(held.records(chosen))
    if not records:
        raise InputError(f"{store} holds no result of protocol {chosen}; run a study first")
    return records


# On a terminal: our number above, the published one below it --------------------------------------


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
