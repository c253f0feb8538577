"""``gnn-repair data``: which datasets there are, and whether they are what they should be."""

from __future__ import annotations

from typing import Annotated

import typer

from gnn_repair.catalog import DATASETS, data_root, find_dataset, missing_files
from gnn_repair.cli import options
from gnn_repair.cli.options import Format, FormatOption, RootOption, emit

app = typer.Typer(help="List datasets and check their files.", no_args_is_help=True)


@app.command(name="list")
def list_datasets(root: RootOption = None, format: FormatOption = Format.table) -> None:
    """List every dataset with its published statistics and whether its files are here."""
    folder = data_root(root)
    sizes = ("nodes", "entries", "features", "classes")
    rows = [
        {"dataset": spec.name}
        | {name: getattr(spec.statistics, name) for name in sizes}
        | {"splits": spec.splits}
        | {"source": "generated" if spec.source is None else spec.source.collection}
        | {"files": _presence(len(spec.files), len(missing_files(spec, folder)))}
        for spec in DATASETS.values()
    ]
    emit(rows, format, title=f"Datasets (data root: {folder})")


def _presence(total: int, missing: int) -> str:
    if not total:
        return "none needed"
    if missing in (0, total):
        return "missing" if missing else "present"
    return f"{total - missing} of {total} present"


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Datasets to check; all of them if none is named.",
            autocompletion=options.offer_dataset,
        ),
    ] = None,
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Compare datasets with their published statistics and checksums.

    Exit code 1 if a dataset differs, 2 if one is damaged or was named and is missing.
    """
    from gnn_repair.datasets.loading import check_dataset

    folder = data_root(root)
    specs = [find_dataset(name) for name in names] if names else list(DATASETS.values())
    findings = [check_dataset(spec, folder, required=bool(names)) for spec in specs]
    emit([finding.row() for finding in findings], format, title=f"Data root: {folder}")
    for finding in findings:
        if finding.error is not None:
            raise finding.error
    if any(finding.status.startswith("differs") for finding in findings):
        raise typer.Exit(1)
