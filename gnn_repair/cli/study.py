"""``gnn-repair study``: run a grid, see how far it is, set it beside the paper."""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_repair.cli import user_code
from gnn_repair.cli.options import (
    BackbonesOption,
    DatasetsOption,
    DigestOption,
    MethodsOption,
    ProtocolOption,
    SetOption,
    SplitsOption,
    StoreOption,
    chosen_protocol,
    numbers,
)
from gnn_repair.cli.output import Format, FormatOption, emit
from gnn_repair.cli.tables import tables
from gnn_repair.errors import InputError

if TYPE_CHECKING:
    from gnn_repair.results.runs import Run
    from gnn_repair.study.engine import Engine

app = typer.Typer(
    help="Run the paper's experiment or your own, resume it, and show its tables.",
    no_args_is_help=True,
)


class EngineName(enum.StrEnum):
    """Where cases run."""

    local = "local"
    ray = "ray"


class KeepModels(enum.StrEnum):
    """Splits whose models are kept."""

    all = "all"
    first = "first"
    none = "none"


@app.command()
def run(
    store: StoreOption = Path("results"),
    datasets: DatasetsOption = "paper",
    backbones: BackbonesOption = "paper",
    splits: SplitsOption = "0-9",
    methods: MethodsOption = "all",
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    root: Annotated[str | None, typer.Option(help="Folder of the raw datasets.")] = None,
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
    from gnn_repair.cli.progress import StudyProgress
    from gnn_repair.study.grid import run_study

    settings = chosen_protocol(protocol, set_)
    graphs = user_code.datasets(_names(datasets, "datasets"), root, settings.data.draw)
    with _interruptible(), StudyProgress() as progress:
        outcome = run_study(
            graphs,
            user_code.backbones(_names(backbones, "backbones")),
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
    cases = "case" if len(outcome.failures) == 1 else "cases"
    typer.echo(
        f"{outcome.stored} runs stored, {outcome.already} were there already, "
        f"{len(outcome.failures)} {cases} failed (protocol {outcome.protocol}, store {store})"
    )
    if outcome.stored:
        _say_source()
    if outcome.failures:
        raise typer.Exit(1)


@app.command()
def status(
    store: StoreOption = Path("results"),
    datasets: DatasetsOption = "paper",
    backbones: BackbonesOption = "paper",
    splits: SplitsOption = "0-9",
    methods: MethodsOption = "all",
    protocol: ProtocolOption = None,
    set_: SetOption = None,
    format: FormatOption = Format.table,
) -> None:
    """List how many runs of each case are done, failed or missing."""
    from gnn_repair.results.plan import make_plan
    from gnn_repair.results.runs import all_runs
    from gnn_repair.results.store import Store, open_results

    settings = chosen_protocol(protocol, set_)
    graphs = map(user_code.short_name, _names(datasets, "datasets"))
    models = map(user_code.short_name, _names(backbones, "backbones"))
    runs = all_runs(graphs, models, numbers(splits))
    # A store that is not there yet is an empty one: everything is missing.
    held = open_results(store) if _exists(store) else Store(store)
    plan = make_plan(held, settings, runs, _methods(methods))
    rows = _status_rows(plan.done, plan.failed, plan.missing)
    counts = f"{len(plan.done)} done, {len(plan.failed)} failed, {len(plan.missing)} missing"
    where = f"{store}, protocol" if _exists(store) else f"{store} (not there yet), protocol"
    emit(rows, format, title=f"{where} {settings.digest}: {counts} of {plan.total} runs")


app.command()(tables)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A name that ends in .csv or .parquet.")],
    store: StoreOption = Path("results"),
    digest: DigestOption = None,
) -> None:
    """Write every number in the store as one long table."""
    from gnn_repair.results.frame import export_results

    typer.echo(f"{export_results(store, file, digest)} rows written to {file}")


@app.command()
def pack(
    file: Annotated[Path, typer.Argument(help="The file to write, such as study.jsonl.")],
    store: StoreOption = Path("results"),
    digest: DigestOption = None,
) -> None:
    """Write a store's results as one file (JSON Lines) that every command reads like a store."""
    from gnn_repair.results.store import pack as write

    typer.echo(f"{write(store, file, digest)} runs packed into {file}")


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Stores and packed files.")],
    store: StoreOption = Path("results"),
) -> None:
    """Put the results of other stores and of packed files into a store.

    What the store has already stays.
    """
    from gnn_repair.results.store import merge as put

    merged = put(sources, store)
    typer.echo(
        f"{merged.added} runs added to {store}, {merged.united} got further methods, "
        f"{merged.same} were there already, {len(merged.kept)} differ from what was there and "
        "were left out"
    )


def _say_source() -> None:
    """Results of files that no revision holds cannot be made again; their records say so too."""
    from gnn_repair.study.case import source

    found = source()
    if found["source"] not in ("clean", "unknown"):
        typer.echo(
            f"gnn-repair: warning: {found['source']} {found['revision']}; the records say so",
            err=True,
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _names(text: str, kind: str) -> list[str]:
    """Names as typed; whether they exist is asked only when there is something to run."""
    from gnn_repair.results.plan import PAPER_BACKBONES, PAPER_DATASETS

    paper = PAPER_DATASETS if kind == "datasets" else PAPER_BACKBONES
    chosen: list[str] = []
    for part in text.split(","):
        chosen += paper if part.strip() == "paper" else (part.strip(),)
    return chosen


def _methods(text: str) -> list[str] | None:
    return None if text == "all" else [name.strip() for name in text.split(",")]


def _engine(
    name: EngineName,
    jobs: int,
    address: str | None,
    cpus: float,
    gpus: float | None,
    device: str,
) -> Engine | None:
    if name is EngineName.local:
        from gnn_repair.study.engine import ProcessEngine

        return ProcessEngine(jobs) if jobs > 1 else None
    if jobs > 1:
        raise InputError("--jobs is for the local engine; with Ray, --cpus and --gpus decide")
    from gnn_repair.study.ray_engine import RayEngine

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


def _status_rows(done: Sequence[Run], failed: Any, missing: Sequence[Run]) -> list[dict[str, Any]]:
    """A row a case."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, runs in (("done", done), ("failed", failed), ("missing", missing)):
        for one in runs:
            row = rows.setdefault(
                (one.dataset, one.backbone),
                {
                    "dataset": one.dataset,
                    "backbone": one.backbone,
                    **dict.fromkeys(("done", "failed", "missing"), 0),
                    "error": "",
                },
            )
            row[kind] += 1
            if kind == "failed":
                row["error"] = failed[one]
    return list(rows.values())
