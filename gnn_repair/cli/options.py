"""What commands share: lists as people type them, what the shell offers, options, and listings."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gnn_repair.atomic import as_path, check_target
from gnn_repair.catalog import DATASETS
from gnn_repair.errors import InputError
from gnn_repair.methods import METHODS
from gnn_repair.published import TITLES
from gnn_repair.results.protocol import PAPER, PROTOCOLS, Protocol, override, read_protocol

# Lists as people type them ------------------------------------------------------------------------


MOST = 10_000
"""Numbers in a list; more are a typing error."""
_NUMBER = re.compile(r"\d+|[\d.e-]+ %")
"""A name that is a number, or a share: a column of them stands to the right."""
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def numbers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]."""
    chosen: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{text[:80]!r} is not a list of numbers such as 0-3,7")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise InputError(f"{part.strip()} runs backwards; write {last}-{first}")
        if len(chosen) + last - first >= MOST:
            raise InputError(f"{text[:80]!r} names more than {MOST:,} numbers; name fewer")
        chosen.extend(range(first, last + 1))
    return chosen


# What the shell offers when Tab is pressed (gnn-repair --install-completion) ----------------------


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offers the names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def list_of(names: Iterable[str], *words: str) -> Callable[[str], list[str]]:
    """The same for the last name of a comma-separated list, or a word that stands for several."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        offered = names if comma else (*names, *words)
        fresh = [name for name in offered if name not in before.split(",")]
        return [f"{before}{comma}{name}" for name in fresh if name.startswith(last)]

    return offer


offer_dataset = one_of(DATASETS)
offer_backbone = one_of(TITLES)
offer_datasets = list_of(DATASETS, "paper")
offer_backbones = list_of(TITLES, "paper")
offer_protocol = one_of(PROTOCOLS)
offer_methods = list_of(("oracle", *METHODS), "all")


# Options of several commands ----------------------------------------------------------------------

GIVES = (
    "Gives (model, data), or (model, data, nodes) with a mask or node numbers; an exposure may "
    "stand for the model."
)
FactoryArgument = Annotated[
    str, typer.Argument(metavar="FILE.py:NAME", help=f"Or module:NAME. {GIVES}")
]
StoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of results; where only read, also a packed file.")
]
DigestOption = Annotated[str | None, typer.Option(help="Digest of one stored protocol.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RootOption = Annotated[
    str | None,
    typer.Option(
        help="Folder of the raw datasets; else GNN_REPAIR_DATA, else the user's cache folder."
    ),
]
NAMES = "Comma-separated; 'paper' is the paper's eight; your own: FILE.py:NAME or module:NAME."
DatasetsOption = Annotated[str, typer.Option(help=NAMES, autocompletion=offer_datasets)]
BackbonesOption = Annotated[str, typer.Option(help=NAMES, autocompletion=offer_backbones)]
SplitsOption = Annotated[str, typer.Option(help="Such as 0-9 or 0,3.")]
MethodsOption = Annotated[
    str,
    typer.Option(
        help="Comma-separated, of oracle and the repairs; all leaves out the ladder and its "
        "controls.",
        autocompletion=offer_methods,
    ),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help="paper, independent, or a TOML file of settings that differ.",
        autocompletion=offer_protocol,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, such as backbones.hidden=64; may be repeated."),
]


def chosen_protocol(named: str | None, assignments: Sequence[str] | None) -> Protocol:
    """The protocol of that name or file, with single settings changed."""
    base = PAPER if named is None else PROTOCOLS.get(named) or read_protocol(named)
    return override(base, assignments or ())


# Options that would do nothing --------------------------------------------------------------------

RUN = ("split", "methods", "figures", "node", "compare", "device", "root")
IDLE: dict[str, tuple[str, tuple[str, ...]]] = {
    "own_model": ("with a model of your own", (*RUN, "store", "dataset", "backbone", "digest")),
    "overview": ("unless --dataset and --backbone name one case", (*RUN, "parts")),
    "page": ("with a page that is written", (*RUN, "dataset", "backbone", "digest", "out")),
    "no_figures": ("without --figures", ("node",)),
    "no_store": ("without --store", ("digest",)),
    "saving": ("with --save", ("tolerance", "format")),
    "digest": ("with --digest", ("protocol", "set_")),
    "no_ray": ("without --engine ray", ("address", "cpus", "gpus")),
}
"""By circumstance its words, and the options that have no effect in it."""


def typed(context: typer.Context, *names: str) -> bool:
    """Whether one of these options was typed."""
    sources = (context.get_parameter_source(name) for name in names)
    return any(source is not None and source.name != "DEFAULT" for source in sources)


def refuse_idle(context: typer.Context, **circumstances: bool) -> None:
    """Raise where an option was typed that has no effect in a circumstance that holds."""
    for words, names in (IDLE[name] for name, holds in circumstances.items() if holds):
        for option in context.command.params:
            if option.name in names and typed(context, option.name):
                raise InputError(f"{option.opts[0]} has no effect {words}; leave it out")


# Files that commands write ------------------------------------------------------------------------

ROWS, PAGE, PACKED = b",true,predicted,", b"<!DOCTYPE html>", b'{"format":"gnn-repair study"'
BASELINE, TABLE = b'{"kind": "gnn-repair baseline"', b"dataset,backbone,split,"
"""What stands at the beginning of each."""


def check_outputs(*outputs: tuple[Path | None, bytes], beside: Sequence[Path | None] = ()) -> None:
    """Before any work: each file can be written and takes the place of nothing but its like.

    Args:
        outputs: path and what the first line of such a file holds.
        beside: what else the command reads or writes, such as its store.
    """
    taken = {as_path(path).resolve() for path in beside if path is not None}
    for path, beginning in outputs:
        if path is None:
            continue
        if str(path) == "-":
            raise InputError("- would be a file of that name and not the output; name a file")
        target = check_target(path).resolve()
        if target in taken:
            raise InputError(f"{path} is named twice; choose another name for one of them")
        taken.add(target)
        if target.exists():
            with target.open("rb") as file:
                line = file.readline(1000)
            if line and beginning not in line:
                raise InputError(
                    f"{path} is there and holds something else than what would be written; choose "
                    "another name or remove it"
                )


# Listings -----------------------------------------------------------------------------------------


class Format(enum.StrEnum):
    """How a listing is printed."""

    table = "table"
    json = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", help="A table for people or JSON for machines.")
]


def emit(rows: Sequence[Mapping[str, Any]], format: Format, title: str = "") -> None:
    """Print ``rows``, one mapping per line, with the keys of the first as columns."""
    if format is Format.json:
        typer.echo(json.dumps(list(rows), indent=2, ensure_ascii=False))
        return
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    columns = list(rows[0]) if rows else []
    for column in columns:
        last, cells = column == columns[-1], [row[column] for row in rows]
        widest = max(cell_len(text) for text in (column, *map(_cell, cells)))
        numeric = all(
            isinstance(cell, int | float | None) or _NUMBER.fullmatch(str(cell)) for cell in cells
        )
        table.add_column(
            Text(column),
            justify="right" if numeric else "left",
            no_wrap=not last,
            min_width=min(widest, 60) if last else widest,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    console = Console()
    console.width = max(console.width, full_width(console, table).minimum)
    console.print(table)


def full_width(console: Console, table: Table) -> Measurement:
    """How wide a table is: no cell is ever cut off, a narrow terminal wraps lines instead."""
    return console.measure(table, options=console.options.update(width=10_000))


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
