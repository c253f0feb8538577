"""``gnn-repair report`` and ``view``: one HTML file to look at, and figures for papers."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import webbrowser
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_repair.catalog import DATASETS
from gnn_repair.cli import options, user_code
from gnn_repair.cli.diagnose import run_diagnosis
from gnn_repair.errors import InputError, suggestion
from gnn_repair.methods import METHODS
from gnn_repair.published import TITLES
from gnn_repair.results.protocol import PAPER, Protocol
from gnn_repair.results.store import ResultsSource, open_results, read_results

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.study.case import Rerun


WHOSE = "Whose nodes to show; your own: FILE.py:NAME or module:NAME."
DatasetOption = Annotated[
    str | None, typer.Option(help=WHOSE, autocompletion=options.offer_dataset)
]
BackboneOption = Annotated[
    str | None, typer.Option(help=WHOSE, autocompletion=options.offer_backbone)
]
SplitOption = Annotated[int, typer.Option(min=0, help="Whose test nodes to show.")]
CompareOption = Annotated[
    str | None, typer.Option(help="Another split's number or another backbone, node beside node.")
]


def report(
    context: typer.Context,
    factory: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.py:NAME]", help=f"Your own model, or module:NAME. {options.GIVES}"
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Folder or packed file of a study's results.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="The page's heading; model and dataset unless given.")
    ] = None,
    dataset: DatasetOption = None,
    backbone: BackboneOption = None,
    split: SplitOption = 0,
    methods: Annotated[
        str,
        typer.Option(
            help="Repairs to show, comma-separated; stored: the run's own; paper: its four.",
            autocompletion=options.offer_methods,
        ),
    ] = "stored",
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also draw SVG and PDF figures here.")
    ] = None,
    node: Annotated[int | None, typer.Option(help="Whose polytope the figures show.")] = None,
    compare: CompareOption = None,
    parts: Annotated[
        bool,
        typer.Option("--parts", help="Above 20 MB: files beside the page, for gnn-repair view."),
    ] = False,
    digest: options.DigestOption = None,
    device: options.DeviceOption = "auto",
    root: options.RootOption = None,
) -> None:
    """Write one self-contained HTML page: of your own model, or of a study and one of its runs.

    The run's models are those that the store kept, or it is trained again as the study trained it:
    the named case, the store's only one, or without a store GCN on the built-in graph. A store of
    several cases gives the overview alone unless --dataset and --backbone name one.
    """
    from gnn_repair.backbones import find_backbone
    from gnn_repair.reporting import evidence_of, report_results, report_run, write_figures
    from gnn_repair.reporting.writing import footer_words
    from gnn_repair.study.case import rerun

    bare = {"no_store": store is None, "no_figures": figures is None}
    options.refuse_idle(context, own_model=factory is not None, **bare)
    options.check_outputs((out, options.PAGE), beside=(store, figures))
    single_file = None if parts else True
    if factory is not None:
        typer.echo(run_diagnosis(factory).report(out, title=title, single_file=single_file))
        return
    if figures and figures.is_file():
        raise InputError(f"{figures} is a file; name a folder for the figures")
    own, typed_names = None, (dataset, backbone)
    if backbone is not None:
        backbone, own = user_code.one_backbone(backbone)
    dataset = None if dataset is None else user_code.short_name(dataset)
    source, protocol, results = _stored(store, digest) if store else (None, PAPER, None)
    known = {"dataset": list(DATASETS), "backbone": list(TITLES)}
    for (column, names), name in zip(known.items(), typed_names, strict=True):
        held = [] if results is None else sorted(set(results[column]))
        if held and name and not user_code.is_place(name) and name not in [*names, *held]:
            raise InputError(f"the store holds no {column} {name!r}; {suggestion(name, held)}")
    if compare and not compare.isdecimal() and not user_code.is_place(compare):
        find_backbone(compare)
    case = _case(results, dataset, backbone)
    if case is None:
        options.refuse_idle(context, overview=True)
        assert results is not None
        command = typed(store=store, title=title, digest=digest)
        written = report_results(
            results, out, title=title or f"Study {store}", made=footer_words(protocol, command)
        )
        typer.echo(f"{written} (overview alone; --dataset and --backbone show a case's nodes)")
        return
    named = [given or name for given, name in zip(typed_names, case, strict=True)]
    for (option, names), name in zip(known.items(), named, strict=True):
        if source is not None and name in case and name not in names:
            raise InputError(f"{name!r} is your own; say where it is: --{option} FILE.py:{name}")
    graphs = user_code.datasets(named[:1], root, protocol.data.draw)
    paper = [name for name, method in METHODS.items() if method.from_paper]
    listed = paper if methods == "paper" else [name.strip() for name in methods.split(",")]
    again = partial(
        rerun,
        source=source,
        protocol=protocol,
        methods=None if methods == "stored" else listed,
        device=device,
        root=root,
        backbones=own,
        datasets=graphs if isinstance(graphs, dict) else None,
        tell=lambda text: typer.echo(f"{text} …", err=True),
    )
    run = again(*case, split)
    if figures:
        names = run.data.get("class_names")
        for path in write_figures(evidence_of(run), figures, node=node, class_names=names):
            typer.echo(path)
    command = typed(
        store=store, dataset=named[0], backbone=named[1], split=split,
        methods=methods, compare=compare, title=title, digest=digest, root=root,
    )  # fmt: skip
    beside = {} if compare is None else _beside(run, compare, again)
    written = report_run(
        run,
        out,
        results,
        command=command,
        title=title,
        beside=beside,
        single_file=single_file,
    )
    typer.echo(written)
    typer.echo(run.provenance(), err=True)


def _beside(run: Rerun, compare: str, again: Callable[..., Rerun]) -> dict[str, Rerun]:
    """The run to compare with, by what people call it: another split or another backbone."""
    dataset, backbone = run.case.dataset, run.case.backbone
    if compare.isdecimal():
        split = int(compare)
        if split == run.split:
            raise InputError(f"--compare {split} is the shown split itself; name another one")
        return {f"split {split}": run.select_split(split) or again(dataset, backbone, split)}
    name, own = user_code.one_backbone(compare)
    if name == backbone:
        raise InputError(f"--compare {name} is the shown backbone itself; name another one")
    return {name: again(dataset, name, run.split, backbones=own)}


def typed(**options: object) -> str:
    """The command with these options, as one would type it again."""
    given = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    return shlex.join(["gnn-repair", "report", *chain(*given)])


def _stored(store: Path, digest: str | None) -> tuple[ResultsSource, Protocol, pd.DataFrame]:
    source = open_results(store)
    protocol = source.protocol(digest)
    return source, protocol, read_results(source, protocol.digest)


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


# The page in the browser --------------------------------------------------------------------------


def view(
    context: typer.Context,
    what: Annotated[
        Path, typer.Argument(metavar="STORE", help="Results of a study, or a page (.html).")
    ],
    dataset: DatasetOption = None,
    backbone: BackboneOption = None,
    split: SplitOption = 0,
    compare: CompareOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the page goes; a new folder of its own.")
    ] = None,
    digest: options.DigestOption = None,
    device: options.DeviceOption = "auto",
    root: options.RootOption = None,
    browser: Annotated[bool, typer.Option(help="Open it; or only say where it is.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the server; 0: any.")] = 0,
) -> None:
    """Open the page of a study, or a page that was written before.

    A page that is one file is opened as it is. One with files beside it (above 20 MB) is served
    from this machine, to this machine alone, until Ctrl-C.
    """
    from gnn_repair.reporting.payload import PageServer, needs_server

    page = what
    options.refuse_idle(context, page=what.suffix == ".html")
    if what.suffix != ".html":
        page = out or Path(tempfile.mkdtemp(prefix="gnn-repair-")) / "report.html"
        report(
            context, store=what, out=page, dataset=dataset, backbone=backbone, split=split,
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
