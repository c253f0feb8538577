"""One way to print a listing: a table for people, JSON for machines."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Format(enum.StrEnum):
    """How a listing is printed."""

    table = "table"
    json = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", help="A table for people or JSON for machines.")
]


def emit(rows: Sequence[Mapping[str, Any]], format: Format, title: str = "") -> None:
    """Print ``rows``, one mapping a line, with the keys of the first as columns."""
    if format is Format.json:
        typer.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
        return
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    columns = list(rows[0]) if rows else []
    for column in columns:
        numeric = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(
            Text(column),
            justify="right" if numeric else "left",
            no_wrap=column != columns[-1],
            min_width=_width(column, rows, at_most=60 if column == columns[-1] else None),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    console = Console()
    # A cell is never cut off: a narrow terminal wraps lines instead.
    unbounded = console.options.update(width=10_000)
    console.width = max(console.width, console.measure(table, options=unbounded).minimum)
    console.print(table)


def _width(column: str, rows: Sequence[Mapping[str, Any]], at_most: int | None) -> int:
    widest = max(len(column), *(cell_len(_cell(row[column])) for row in rows))
    return widest if at_most is None else min(widest, at_most)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
