"""``gnn-repair study tables``: the paper's tables in every form."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from gnn_repair.cli import completion
from gnn_repair.cli.study_options import (
    ProtocolOption,
    SetOption,
    StoreOption,
    chosen_protocol,
    only_digest,
)
from gnn_repair.errors import InputError

TABLE_NAMES = (
    *("exposure-oracle", "repair-accuracy", "controls", "full-controls", "dataset-statistics"),
    *("readout-exposure", "gains", "evidence", "parameters", "time"),
    *("beyond", "lost-evidence", "lost-evidence-by-class"),
)
"""Those of :data:`gnn_repair.study.tables.TABLES`, which takes longer to load than the help."""


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
            help=f"Which tables, of {', '.join(TABLE_NAMES)}; all but the last three unless named.",
            autocompletion=completion.one_of(lambda: TABLE_NAMES),
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
    from gnn_repair.study.figures import without_published, without_spread
    from gnn_repair.study.tables import make_tables

    made = make_tables(_records_to_show(store, protocol, set_, digest), names or None)
    if not published:
        made = [without_published(table) for table in made]
    if not (format is not TableFormat.latex if spread is None else spread):
        made = [without_spread(table) for table in made]
    if format is TableFormat.table:
        from gnn_repair.cli.sheets import print_tables

        print_tables(made)
        return
    from gnn_repair.study.rendering import RENDERERS

    typer.echo(RENDERERS[format.value](made), nl=False)


def _records_to_show(
    store: Path, protocol: str | None, set_: list[str] | None, digest: str | None
) -> list[Any]:
    """The store's records of the protocol that is meant."""
    from gnn_repair.study.store import open_results

    held = open_results(store)
    named = only_digest(held, chosen_protocol(protocol, set_), bool(protocol or set_))
    chosen = held.resolve(digest or named)
    records = list(held.records(chosen))
    if not records:
        raise InputError(f"{store} holds no result of protocol {chosen}; run a study first")
    return records
