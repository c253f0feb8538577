"""``gnn-repair study``: run a grid, see how far it is, set it beside the paper."""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gnn_repair.atomic import as_path
from gnn_repair.cli import user_code
from gnn_repair.cli.options import (
    PACKED,
    TABLE,
    BackbonesOption,
    DatasetsOption,
    DeviceOption,
    DigestOption,
    Format,
    FormatOption,
    MethodsOption,
    ProtocolOption,
    RootOption,
    SetOption,
    SplitsOption,
    StoreOption,
    check_outputs,
    chosen_protocol,
    emit,
    full_width,
    numbers,
    one_of,
    refuse_idle,
    typed,
)
from gnn_repair.errors import InputError
from gnn_repair.published import TITLES, count_of
from gnn_repair.results import store as stores
from gnn_repair.results.averages import Entry, Sheet, Table, trimmed
from gnn_repair.results.records import all_runs
from gnn_repair.results.rendering import (
    RENDERERS,
    cases_text,
    own_text,
    paper_parts,
    remark,
)
from gnn_repair.results.store import (
    PAPER_BACKBONES,
    PAPER_DATASETS,
    Store,
    held_methods,
    make_plan,
    open_results,
)
from gnn_repair.results.tables import TABLES, make_tables

if TYPE_CHECKING:
    from gnn_repair.study.engine import Engine

app = typer.Typer(
    help="Run the paper's experiment or your own, resume it, and show its tables.",
    no_args_is_help=True,
)


EngineName = enum.StrEnum("EngineName", ["local", "ray"])
KeepModels = enum.StrEnum("KeepModels", ["all", "first", "none"])
TableFormat = enum.StrEnum("TableFormat", ["table", "markdown", "csv", "json", "latex"])


@app.command()
def run(
    context: typer.Context,
    store: StoreOption = Path("results"),
    datasets: DatasetsOption = "paper",
    backbones: BackbonesOption = "paper",
    splits: SplitsOption = "0-9",
    methods: MethodsOption = "all",
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    device: DeviceOption = "auto",
    root: RootOption = None,
    stack: Annotated[
        int | None, typer.Option(min=1, help="Most splits trained as one; all unless given.")
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Where cases run.")] = EngineName.local,
    jobs: Annotated[
        int, typer.Option(min=1, help="Local: cases at once, each in a process of its own.")
    ] = 1,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; one is started here unless given.")
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="Ray: cores a case needs.")] = 1,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="Ray: GPUs a case needs, such as 0.5; one with --device cuda."),
    ] = None,
    keep_models: Annotated[
        KeepModels, typer.Option(help="Splits whose trained models the store keeps, for report.")
    ] = KeepModels.first,
) -> None:
    """Run what the store lacks; what is stored is skipped, what failed is tried again.

    Exit code 1 if a case failed, 130 after Ctrl-C and 143 after SIGTERM; whatever is stored stays.
    """
    from gnn_repair.study.case import source_revision
    from gnn_repair.study.grid import StudyProgress, run_study

    refuse_idle(context, no_ray=engine is EngineName.local)
    settings = chosen_protocol(protocol, set_)
    graphs = user_code.datasets(_names(datasets, PAPER_DATASETS), root, settings.data.draw)
    with _interruptible(), StudyProgress() as progress:
        outcome = run_study(
            graphs,
            user_code.backbones(_names(backbones, PAPER_BACKBONES)),
            numbers(splits),
            store=store,
            methods=_methods(methods),
            protocol=settings,
            device=device,
            root=root,
            engine=_engine(engine, jobs, address, cpus, gpus, device),
            stack=stack,
            watcher=progress,
            keep_models=keep_models.value,
        )
    counts = {
        f"{count_of(outcome.stored, 'run')} stored": outcome.stored,
        f"{count_of(outcome.already, 'run')} already there": outcome.already,
        f"{count_of(len(outcome.failures), 'case')} failed": len(outcome.failures),
    }
    told = ", ".join(words for words, count in counts.items() if count)
    typer.echo(f"{told} (protocol {outcome.protocol}, store {store})")
    revision = source_revision()
    if outcome.stored and revision["source"] not in ("clean", "unknown"):
        # Results of files that no revision holds cannot be made again.
        source = f"{revision['source']} {revision['revision']}; the records say so"
        typer.echo(f"gnn-repair: warning: {source}", err=True)
    if outcome.failures:
        raise typer.Exit(1)


@app.command()
def status(
    context: typer.Context,
    store: StoreOption = Path("results"),
    datasets: DatasetsOption = "paper",
    backbones: BackbonesOption = "paper",
    splits: SplitsOption = "0-9",
    methods: MethodsOption = "all",
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    format: FormatOption = Format.table,
) -> None:
    """List how many runs of each case are done, failed or missing.

    Unless --datasets, --backbones or --splits are named, of the cases that the store holds, and
    unless --methods is, with the methods that it holds of them; --datasets paper names the paper's.
    """
    settings = chosen_protocol(protocol, set_)
    graphs = map(user_code.short_name, _names(datasets, PAPER_DATASETS))
    models = map(user_code.short_name, _names(backbones, PAPER_BACKBONES))
    runs = all_runs(graphs, models, numbers(splits))
    # A store that is not there yet is an empty one: everything is missing.
    exists = as_path(store).exists()
    held = open_results(store) if exists else Store(store)
    if not (protocol or set_) and len(held.digests()) == 1:
        settings = held.protocol()
    wanted, attempted = _methods(methods), held.attempted(settings.digest)
    if attempted and not typed(context, "datasets", "backbones", "splits"):
        runs = attempted
        if not typed(context, "methods"):
            wanted = held_methods(held.records(settings.digest), settings) or wanted
    plan = make_plan(held, settings, runs, wanted)
    missing = set(plan.missing)
    empty = {"done": 0, "failed": 0, "missing": 0, "error": ""}
    rows: dict[Any, dict[str, Any]] = {}
    for run in runs:
        names = {"dataset": run.dataset, "backbone": run.backbone}
        row = rows.setdefault((run.dataset, run.backbone), names | empty)
        kind = "failed" if run in plan.failed else "missing" if run in missing else "done"
        row[kind] += 1
        row["error"] = plan.failed.get(run, row["error"])
    counts = f"{len(plan.done)} done, {len(plan.failed)} failed, {len(plan.missing)} missing"
    where = f"{store}, protocol" if exists else f"{store} (not there yet), protocol"
    title = f"{where} {settings.digest}: {counts} of {count_of(plan.total, 'run')}"
    if (others := held.digests()) and settings.digest not in others:
        title += f"; it holds other settings only: protocol {', '.join(others)}"
    emit(list(rows.values()), format, title)


@app.command()
def tables(
    context: typer.Context,
    store: StoreOption = Path("results"),
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Which tables, of {', '.join(TABLES)}; all but the last three unless named.",
            autocompletion=one_of(TABLES),
        ),
    ] = None,
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    digest: DigestOption = None,
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
    refuse_idle(context, digest=digest is not None)
    held, settings = open_results(store), chosen_protocol(protocol, set_)
    chosen = held.resolve(digest or (settings.digest if protocol or set_ else None))
    records = list(held.records(chosen))
    if not records:
        raise InputError(f"{store} holds no result of protocol {chosen}; run a study first")
    tables = make_tables(records, names or None)
    spread = format is not TableFormat.latex if spread is None else spread
    tables = [trimmed(table, published, spread) for table in tables]
    if format is TableFormat.table:
        print_tables(tables)
    else:
        typer.echo(RENDERERS[format.value](tables), nl=False)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A name that ends in .csv or .parquet.")],
    store: StoreOption = Path("results"),
    digest: DigestOption = None,
) -> None:
    """Write every number in the store as one long table."""
    check_outputs((file, TABLE if file.suffix == ".csv" else b"PAR1"), beside=(store,))
    typer.echo(f"{stores.export_results(store, file, digest)} rows written to {file}")


@app.command()
def pack(
    file: Annotated[Path, typer.Argument(help="The file to write, such as study.jsonl.")],
    store: StoreOption = Path("results"),
    digest: DigestOption = None,
) -> None:
    """Write a store's results as one file (JSON Lines) that every command reads like a store."""
    check_outputs((file, PACKED), beside=(store,))
    typer.echo(f"{stores.pack(store, file, digest)} runs packed into {file}")


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Stores and packed files.")],
    store: StoreOption = Path("results"),
) -> None:
    """Put the results of other stores and of packed files into a store.

    What the store has already stays.
    """
    merged = stores.merge(sources, store)
    typer.echo(
        f"{merged.added} runs added to {store}, {merged.united} got further methods, "
        f"{merged.same} were there already, {len(merged.kept)} differ from what was there and "
        "were left out"
    )


def _names(text: str, paper: Iterable[str]) -> list[str]:
    """Names as typed; whether they exist is asked only when there is something to run."""
    parts = [part.strip() for part in text.split(",")]
    return [name for part in parts for name in (paper if part == "paper" else (part,))]


def _methods(text: str) -> list[str] | None:
    return None if text == "all" else [name.strip() for name in text.split(",")]


def _engine(
    name: EngineName, jobs: int, address: str | None, cpus: float, gpus: float | None, device: str
) -> Engine | None:
    from gnn_repair.study.engine import ProcessEngine, RayEngine

    if name is EngineName.local:
        return ProcessEngine(jobs) if jobs > 1 else None
    if jobs > 1:
        raise InputError("--jobs is for the local engine; with Ray, --cpus and --gpus decide")
    if gpus is None:
        gpus = 1.0 if device.startswith("cuda") else 0.0
    return RayEngine(address, cpus=cpus, gpus=gpus)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the study between two instructions, with their own exit codes."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as error:
        terminated = error.args == (signal.SIGTERM,)
        name = "SIGTERM" if terminated else "Ctrl-C"
        typer.echo(f"gnn-repair: stopped by {name}; run again to continue", err=True)
        raise typer.Exit(143 if terminated else 130) from error
    finally:
        signal.signal(signal.SIGTERM, before)


# On a terminal: our number above, the published one below it --------------------------------------


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables; the best is bold, what lies outside the tolerance yellow and marked with !."""
    console = Console(highlight=False)
    for table in tables:
        for sheet in table.sheets:
            grid = _grid(sheet)
            console.width = max(console.width, full_width(console, grid).maximum)
            console.print(f"{table.title}: {sheet.title}", style="bold", soft_wrap=True)
            console.print(grid)
            note = remark(sheet, "below it")
            if note:
                console.print(note + "\n", soft_wrap=True)


def _grid(sheet: Sheet) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    grid.add_column(sheet.corner, no_wrap=True)
    for position, column in enumerate(sheet.columns):
        words = any(isinstance(row[position], str) and row[position] for row in sheet.rows.values())
        grid.add_column(column, justify="left" if words else "right", no_wrap=True)
    for name, row in sheet.rows.items():
        if name == "average":
            grid.add_section()
        grid.add_row(TITLES.get(name, name), *(_text(entry, sheet.splits) for entry in row))
    return grid


def _text(entry: Entry, usual: int) -> Text:
    if isinstance(entry, str):
        return Text(entry)
    style = " ".join(["bold"] * entry.best + ["yellow"] * entry.outside)
    text = Text(own_text(entry, usual), style=style)
    if entry.outside:
        text.append(" !")
    for line in (" ".join(paper_parts(entry)), cases_text(entry)):
        if line:
            text.append(f"\n{line}", style="" if entry.outside else "dim")
    return text
