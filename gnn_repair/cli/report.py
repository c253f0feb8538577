"""``gnn-repair report``: one HTML file to look at, and figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_repair.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.study.protocol import Protocol


def report(
    store: Annotated[
        Path | None, typer.Option("--store", help="Folder of a study's results.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    dataset: Annotated[str | None, typer.Option(help="Whose nodes to show.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Whose nodes to show.")] = None,
    split: Annotated[int, typer.Option(min=0, help="Whose test nodes to show.")] = 0,
    methods: Annotated[
        str, typer.Option(help="Repairs to show, comma-separated; paper is its four.")
    ] = "paper",
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also draw SVG and PDF figures here.")
    ] = None,
    node: Annotated[int | None, typer.Option(help="Whose polytope the figures show.")] = None,
    digest: Annotated[str | None, typer.Option(help="Digest of one stored protocol.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    root: Annotated[str | None, typer.Option(help="Folder of the raw datasets.")] = None,
) -> None:
    """Write one self-contained HTML page: a study's overview and the nodes of one run.

    The run is trained again for its nodes: the named case, the store's only one, or without a
    store GCN on the built-in graph. A store of several cases gives the overview alone unless
    --dataset and --backbone name one.
    """
    from gnn_repair.reporting import report_results, write_figures
    from gnn_repair.reporting.rerun import rerun
    from gnn_repair.study.protocol import PAPER

    protocol, results = _stored(store, digest) if store else (PAPER, None)
    case = _case(results, dataset, backbone)
    if case is None:
        if figures:
            raise InputError("figures show one case; name it with --dataset and --backbone")
        assert results is not None
        typer.echo(f"{report_results(results, out, title=f'Study {store}')} (overview alone)")
        return
    chosen = None if methods == "paper" else [name.strip() for name in methods.split(",")]
    run = rerun(
        *case,
        split,
        protocol=protocol,
        methods=chosen,
        device=device,
        root=root,
        tell=lambda text: typer.echo(f"{text} …", err=True),
    )
    if figures:
        for path in write_figures(run.evidence(), figures, node=node, class_names=run.class_names):
            typer.echo(path)
    typer.echo(run.report(out, results))


def _stored(store: Path, digest: str | None) -> tuple[Protocol, pd.DataFrame]:
    from gnn_repair.reporting.rerun import stored_protocol
    from gnn_repair.study.results import read_results

    protocol = stored_protocol(store, digest)
    return protocol, read_results(store, protocol.digest)


def _case(
    results: pd.DataFrame | None, dataset: str | None, backbone: str | None
) -> tuple[str, str] | None:
    """The case whose nodes are shown; None: there are several and none was named."""
    if results is None:
        return dataset or "builtin", backbone or "gcn"
    rows = results[["dataset", "backbone"]].drop_duplicates()
    for column, name in (("dataset", dataset), ("backbone", backbone)):
        rows = rows if name is None else rows[rows[column] == name]
    cases = [(str(row.dataset), str(row.backbone)) for row in rows.itertuples()]
    if len(cases) == 1:
        return cases[0]
    if dataset and backbone:
        return dataset, backbone
    if not cases:
        raise InputError(f"the store holds no case of {dataset or backbone}; name one it has")
    return None
