"""``gnn-repair view``: the page of a study, or a page that is there, in the browser."""

from __future__ import annotations

import contextlib
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from gnn_repair.cli import options
from gnn_repair.cli.report import report


def view(
    what: Annotated[
        Path, typer.Argument(metavar="STORE", help="Results of a study, or a page (.html).")
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Whose nodes to show.", autocompletion=options.offer_dataset)
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Whose nodes to show.", autocompletion=options.offer_backbone)
    ] = None,
    split: Annotated[int, typer.Option(min=0, help="Whose test nodes to show.")] = 0,
    compare: Annotated[
        str | None, typer.Option(help="Another split's number or another backbone.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the page goes; a new folder of its own.")
    ] = None,
    digest: Annotated[str | None, typer.Option(help="Digest of one stored protocol.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    root: Annotated[str | None, typer.Option(help="Folder of the raw datasets.")] = None,
    browser: Annotated[bool, typer.Option(help="Open it; or only say where it is.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the server; 0: any.")] = 0,
) -> None:
    """Open the page of a study, or a page that was written before.

    A page that is one file is opened as it is. One with files beside it (above 20 MB) is served
    from this machine, to this machine alone, until Ctrl-C.
    """
    from gnn_repair.reporting.serving import PageServer, needs_server

    page = what
    if what.suffix != ".html":
        page = out or Path(tempfile.mkdtemp(prefix="gnn-repair-")) / "report.html"
        report(
            store=what, out=page, dataset=dataset, backbone=backbone, split=split,
            compare=compare, parts=True, digest=digest, device=device, root=root,
        )  # fmt: skip
    if page.is_file() and not needs_server(page):
        _tell(page.resolve().as_uri(), browser)
        return
    with PageServer(page, port) as server, contextlib.suppress(KeyboardInterrupt):
        _tell(server.address, browser)
        typer.echo("Ctrl-C ends it.", err=True)
        server.serve_forever()


def _tell(address: str, browser: bool) -> None:
    typer.echo(address)
    if browser and not webbrowser.open(address):
        typer.echo("No browser was found here; open the address above in one.", err=True)
