"""``gnn-repair demo``: the whole way on the built-in graph, in about a minute."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console

from gnn_repair.catalog import DATASETS
from gnn_repair.cli.options import PAGE, Format, FormatOption, check_outputs, emit
from gnn_repair.methods import FROZEN, METHODS, title_of
from gnn_repair.results.protocol import PAPER, Protocol, override
from gnn_repair.results.records import RunRecord
from gnn_repair.results.rendering import as_json
from gnn_repair.results.store import Store, read_results
from gnn_repair.results.tables import make_tables

BACKBONE = "gcn"
SPLITS = (0, 1)
SETTINGS = (
    "backbones.short.epochs=120",
    "repairs.reweighting.epochs=60",
    "repairs.reweighting.learning_rate=2e-3",
    "repairs.set_translation.epochs=60",
    "repairs.set_translation.learning_rate=3e-3",
    "repairs.node_translation.epochs=60",
    "repairs.node_translation.learning_rate=3e-3",
    "repairs.refit_head.epochs=200",
)
"""A minute on two cores; the paper's own budgets are some ten times larger."""
ORIGIN = {True: "the paper", False: "a baseline not in the paper"}


def demo(
    format: FormatOption = Format.table,
    store: Annotated[
        Path | None, typer.Option("--store", help="Keep the results in this folder.")
    ] = None,
    page: Annotated[Path, typer.Option("--report", help="Where the report page goes.")] = Path(
        "gnn-repair-demo.html"
    ),
) -> None:
    """Train, expose, diagnose, repair and report on the built-in graph.

    It needs no file and no network.
    """
    from gnn_repair.reporting import report_run
    from gnn_repair.study.case import rerun

    check_outputs((page, PAGE), beside=(store,))
    if store is not None:
        Store(store)
    console = Console(stderr=True, highlight=False)
    start = time.perf_counter()
    protocol = override(PAPER, SETTINGS)
    if format is Format.table:
        _look(console)
    with tempfile.TemporaryDirectory() as scratch:
        folder = store or Path(scratch)
        _study(protocol, folder, format, console)
        with _step(console, "writing the report page"):
            run = rerun("builtin", BACKBONE, SPLITS[0], source=Store(folder), protocol=protocol)
            results = read_results(folder, protocol.digest)  # for the spread over splits
            written = report_run(run, page, results, command="gnn-repair demo")
    if format is Format.table:
        typer.echo(f"See the evidence of every test node of split 0: open {written}")
        typer.echo(f"All of it took {time.perf_counter() - start:.0f} s.")
        typer.echo("Budgets were cut to fit a minute; 'gnn-repair study run' uses the paper's.")


def _look(console: Console) -> None:
    """One trained model: what it is made of, and why it is wrong about some nodes."""
    from gnn_repair.backbones import BACKBONES, train_backbone
    from gnn_repair.datasets import load_dataset
    from gnn_repair.datasets.loading import describe
    from gnn_repair.diagnosis import diagnose

    data = load_dataset("builtin")
    summary = {"dataset": data.name, **describe(data), "protocol": DATASETS["builtin"].splits}
    emit([summary], Format.table, title="The built-in graph")
    budget = override(PAPER, SETTINGS).backbones.budget(BACKBONES[BACKBONE].budget)
    with _step(console, f"training {BACKBONES[BACKBONE].title} on split 0"):
        frozen = train_backbone(BACKBONE, data, [0], budget=budget)
    accuracy = 100 * float(frozen.accuracy(data.test_mask)[0])
    typer.echo(f"{BACKBONES[BACKBONE].title} is right about {accuracy:.1f} % of the test nodes.\n")
    with _step(console, "asking which of its mistakes could be undone"):
        diagnosis = diagnose(frozen)
    typer.echo(f"{diagnosis.exposure}\n\n{diagnosis}\n")


def _study(protocol: Protocol, store: Path, format: Format, console: Console) -> None:
    """The study's own machinery on a few splits, then what came of it."""
    from gnn_repair.study.grid import StudyProgress, run_study

    with StudyProgress() as progress:
        outcome = run_study(
            ["builtin"], [BACKBONE], SPLITS, store=store, protocol=protocol, watcher=progress
        )
    if outcome.failures:
        typer.echo(f"gnn-repair: {next(iter(outcome.failures.values()))}", err=True)
        raise typer.Exit(1)
    records = list(Store(store).records(outcome.protocol))
    if format is Format.json:
        typer.echo(as_json(make_tables(records)), nl=False)
        return
    typer.echo(_reach_line(records))
    rows = list(_repair_rows(records))
    emit(rows, Format.table, title=f"Repairs, mean over {len(records)} splits")


def _reach_line(records: list[RunRecord]) -> str:
    right, wrong, chance = (
        100 * fmean(record.number("oracle", name) for record in records)
        for name in ("true_class_reach", "error_reach", "chance_reach")
    )
    support = fmean(record.number("oracle", "support") for record in records)
    return (
        f"Over {len(records)} splits the true class is within reach of {right:.1f} % of the test "
        f"nodes, and of {wrong:.1f} % of those it gets wrong\n"
        f"(chance {chance:.1f} %); {support:.2f} messages suffice on average.\n"
    )


def _repair_rows(records: list[RunRecord]) -> Iterator[dict[str, Any]]:
    """Frozen and every repair: test accuracy, gain and size."""
    names = [FROZEN, *(name for name, method in METHODS.items() if method.by_default)]
    accuracies = {n: 100 * fmean(record.number(n, "test") for record in records) for n in names}
    for name, accuracy in accuracies.items():
        method = METHODS.get(name)
        yield {
            "method": title_of(name),
            "test accuracy (%)": f"{accuracy:.1f}",
            "gain": "–" if method is None else f"{accuracy - accuracies[FROZEN]:+.1f}",
            "parameters": records[0].number(name, "parameters"),
            "from": "–" if method is None else ORIGIN[method.from_paper],
        }


@contextmanager
def _step(console: Console, text: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if not console.is_terminal:
        console.print(f"{text} …", markup=False)
        yield
        return
    with console.status(text):
        yield
