"""``gnn-repair diagnose``: which errors of your own model could be undone, with chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gnn_repair.cli.options import (
    PAGE,
    ROWS,
    FactoryArgument,
    Format,
    FormatOption,
    check_outputs,
    emit,
)
from gnn_repair.cli.user_code import made_by, printing_to_stderr

if TYPE_CHECKING:
    from gnn_repair.diagnosis import Diagnosis

SHOWN = 20
"""Errors printed; --csv and --format json have every node."""
COLUMNS = ("true", "predicted", "low", "high", "verdict", "mass_moved", "chance", "smallest_change")


def diagnose(
    factory: FactoryArgument,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write a row per node here.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write the HTML page here.")
    ] = None,
    effort: Annotated[
        str,
        typer.Option(help="fast, normal, full, or seconds per question behind a nonlinear head."),
    ] = "normal",
    format: FormatOption = Format.table,
) -> None:
    """Say which errors of a trained model could be undone by weighing its messages differently.

    NAME is a function without arguments, or a tuple. Test nodes are those of data.test_mask; all
    labelled nodes where there is none.
    """
    from gnn_repair.oracle.heads.solve import budget_of
    from gnn_repair.oracle.witness import percent

    check_outputs((csv, ROWS), (report, PAGE))
    seconds = effort.replace(".", "", 1).isdigit()
    diagnosis = run_diagnosis(factory, budget_of(float(effort) if seconds else effort))
    for path, write in ((csv, diagnosis.to_csv), (report, diagnosis.report)):
        if path is not None:
            typer.echo(f"{write(path)}", err=True)
    frame = diagnosis.to_frame()
    if format is Format.json:
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        content = {"summary": diagnosis.summary(), "rows": rows}
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    typer.echo(str(diagnosis))
    # Labels have no smallest change, and values no margin either.
    by = [name for name in ("mass_moved", "gamma") if name in frame][:1]
    errors = frame[~frame["verdict"].isin(["right", ""])].sort_values(
        ["verdict", *by], ascending=[True, *("gamma" not in by for _ in by)], kind="stable"
    )
    title = f"Errors, {'nearest' if 'mass_moved' in by else 'those within reach'} first"
    who = frame.columns[: frame.columns.get_loc("true")]
    columns = [*who, *(name for name in COLUMNS if name in frame)]
    listed: Any = errors[columns].head(SHOWN).astype(object)
    for name in columns:  # numbers that are names, and shares
        if name in who or name in ("mass_moved", "chance"):
            listed[name] = listed[name].map(str if name in who else percent, na_action="ignore")
    if len(listed):
        cells = listed.astype(object).where(listed.notna(), None)
        emit(cells.to_dict("records"), format, title)
    if len(errors) > SHOWN:
        typer.echo(f"… and {len(errors) - SHOWN:,} more errors; --csv FILE has every node")


@printing_to_stderr()
def run_diagnosis(factory: str, effort: Any = "normal") -> Diagnosis:
    """The diagnosis of what the user's function gives, with progress on stderr."""
    from gnn_repair.diagnosis import diagnose as ask

    def tell(text: str) -> None:
        typer.echo(f"{text} …", err=True)

    tell(f"running {factory}")
    model, data, nodes = made_by(factory)
    with Console(stderr=True).status(""):  # which moves on a terminal, however long a step takes
        return ask(model, data, nodes=nodes, tell=tell, effort=effort)
