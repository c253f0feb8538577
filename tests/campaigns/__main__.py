"""``python -m tests.campaigns``, or ``make campaign ARGS="…"``: search for faults for a while."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated, Any

import typer

from gnn_repair.cli.options import Format, FormatOption, emit
from gnn_repair.errors import GnnRepairError, InputError
from tests.campaigns import CampaignResult, file_mutations, heads, kinds, lps, store_kills, wild
from tools import names

CAMPAIGNS = {
    "lps": lps,
    "heads": heads,
    "kinds": kinds,
    "wild": wild,
    "files": file_mutations,
    "store": store_kills,
}
"""Modules with a ``campaign``, by the name one types."""
SHOWN = 10
"""Faults printed of a campaign; a fault that comes once comes often."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def campaigns(
    minutes: Annotated[float, typer.Option(help="How long all campaigns take together.")] = 3.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of everything random; drawn unless given.")
    ] = None,
    only: Annotated[
        str, typer.Option(help=f"Comma-separated, of {', '.join(CAMPAIGNS)}; or all.")
    ] = "all",
    format: FormatOption = Format.table,
) -> None:
    """Search for faults: linear programs, nonlinear heads, models, altered files, killed writers.

    Exit code 1 if one is found; the seed that is printed finds it again.
    """
    # A week; more is a slip of the finger.
    if not 0 < minutes <= 10_000:
        raise InputError(f"--minutes is {minutes}; give a positive number up to 10,000")
    chosen = names(only, CAMPAIGNS, "campaign")
    drawn = secrets.randbelow(2**31) if seed is None else seed
    typer.echo(f"seed {drawn}", err=format is Format.json)
    results = [_run(name, drawn, 60 * minutes / len(chosen)) for name in chosen]
    for result in results:
        for fault in result.faults[:SHOWN]:
            typer.echo(f"{result.name}: {fault}", err=True)
    emit([_row(result, drawn, format) for result in results], format, title="Campaigns")
    if any(result.faults for result in results):
        raise typer.Exit(1)


def _run(name: str, seed: int, seconds: float) -> CampaignResult:
    def tell(text: str) -> None:
        typer.echo(f"{name}: {text}", err=True)

    return CAMPAIGNS[name].campaign(seed, seconds, tell)


def _row(result: CampaignResult, seed: int, format: Format) -> dict[str, Any]:
    row: dict[str, Any] = {
        "campaign": result.name,
        "tried": result.tried,
        "faults": len(result.faults),
    }
    if format is Format.json:
        return {**row, "seed": seed, "details": result.details, "sentences": list(result.faults)}
    seen = ", ".join(f"{name} {count:,}" for name, count in result.details.items())
    return {**row, "seen": seen}


def main() -> None:
    """Run the command; an expected error is one sentence and exit code 2."""
    try:
        app()
    except GnnRepairError as error:
        typer.echo(f"campaigns: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
