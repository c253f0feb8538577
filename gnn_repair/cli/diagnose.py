"""``gnn-repair diagnose``: which errors of your own model could be undone, with chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    format: FormatOption = Format.table,
) -> None:
    """Say which errors of a trained model could be undone by weighing its messages differently.

    NAME is a function without arguments, or a tuple. Test nodes are those of data.test_mask; all
    labelled nodes where there is none.
    """
    check_outputs((csv, ROWS), (report, PAGE))
    diagnosis = run_diagnosis(factory)
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
    errors = frame[frame["verdict"] != "right"]
    if "mass_moved" in frame:
        errors = errors.sort_values("mass_moved", kind="stable")
    who = frame.columns[: frame.columns.get_loc("true")]
    columns = [*who, *(name for name in COLUMNS if name in frame)]
    shown: Any = errors[columns].head(SHOWN).astype(object)
    if len(shown):
        emit(shown.where(shown.notna(), None).to_dict("records"), format, "Errors, nearest first")
    if len(errors) > SHOWN:
        typer.echo(f"… and {len(errors) - SHOWN:,} more errors; --csv FILE has every node")


@printing_to_stderr()
def run_diagnosis(factory: str) -> Diagnosis:
    """The diagnosis of what the user's function gives, with progress on stderr."""
    from gnn_repair.diagnosis import diagnose as ask

    def tell(text: str) -> None:
        typer.echo(f"{text} …", err=True)

    tell(f"running {factory}")
    model, data, nodes = made_by(factory)
    return ask(model, data, nodes=nodes, tell=tell)
