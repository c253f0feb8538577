"""``python -m benchmarks``, or ``make bench ARGS="…"``: measured, in one run, against a peer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.explainers import bench_explainers
from benchmarks.exposing import MODELS as PLAIN_MODELS
from benchmarks.exposing import bench_exposing
from benchmarks.heads import HEADS, bench_heads, parse_widths
from benchmarks.oracle import bench_labels, bench_oracle, parse_cases, parse_shapes
from benchmarks.repair import LITERAL, REPAIRS, bench_minibatch, bench_repair
from benchmarks.scale import MODELS, bench_graphs, bench_scale
from benchmarks.training import bench_accuracy, bench_training
from gnn_repair.backbones import BACKBONES
from gnn_repair.catalog import DATASETS
from gnn_repair.cli.options import Format, FormatOption, emit, numbers
from gnn_repair.datasets import load_dataset
from gnn_repair.errors import GnnRepairError, InputError
from tools import names

app = typer.Typer(
    help="Measure speed and accuracy; every figure beside a peer's.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
DatasetsOption = Annotated[str, typer.Option(help="Comma-separated datasets.")]
NamesOption = Annotated[str, typer.Option(help="Comma-separated, or all.")]
RootOption = Annotated[str | None, typer.Option("--root", help="Folder of the raw datasets.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
MembersOption = Annotated[int, typer.Option(min=1, help="Splits trained or fitted as one.")]


@app.command()
def training(
    dataset: Annotated[str, typer.Option(help="A dataset.")] = "builtin",
    backbones: NamesOption = "all",
    members: MembersOption = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs timed.")] = 60,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Milliseconds per split-epoch: a plain PyG loop, one member, and stacked members."""
    data = load_dataset(dataset, root)
    chosen = names(backbones, BACKBONES, "backbone")
    rows = list(bench_training(data, chosen, device=device, members=members, epochs=epochs))
    emit(rows, format, title=f"Milliseconds per split-epoch on {dataset}")


@app.command()
def accuracy(
    datasets: DatasetsOption = "builtin",
    backbones: NamesOption = "all",
    splits: Annotated[str, typer.Option(help="Such as 0-9 or 0,3; all unless given.")] = "",
    seed: Annotated[int, typer.Option(help="Of initialisation and dropout.")] = 0,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Frozen test accuracy over splits, beside the published value."""
    rows = bench_accuracy(
        names(datasets, DATASETS, "dataset"),
        names(backbones, BACKBONES, "backbone"),
        root=root,
        splits=numbers(splits) if splits else None,
        seed=seed,
        device=device,
    )
    emit(list(rows), format, title="Frozen test accuracy (%)")


@app.command()
def scale(
    nodes: Annotated[
        str, typer.Option(help="Comma-separated: nodes of each generated graph.")
    ] = "10000,100000,1000000",
    degree: Annotated[int, typer.Option(min=1, help="Entries per node, self-loop included.")] = 20,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the GCN's layers.")] = 64,
    features: Annotated[int, typer.Option(min=1, help="Features of a node.")] = 64,
    classes: Annotated[int, typer.Option(min=2, help="Classes.")] = 40,
    models: Annotated[
        str, typer.Option(help="Comma-separated: GCNConv (a PyG model), built-in (our own).")
    ] = "GCNConv,built-in",
    format: FormatOption = Format.table,
) -> None:
    """Large generated graphs: expose, ask the oracle about every node, learn and use a repair."""
    sizes, least = numbers(nodes), max(100, 2 * degree)
    if min(sizes) < least:  # every node has its own sources
        raise InputError(f"--nodes names {min(sizes)}; with {degree} entries per node give {least}")
    rows = bench_scale(
        sizes,
        models=names(models, MODELS, "model"),
        degree=degree,
        features=features,
        hidden=hidden,
        classes=classes,
    )
    emit(rows, format, title="A two-layer GCN on generated graphs")


@app.command()
def exposing(
    nodes: Annotated[
        str, typer.Option(help="Comma-separated: nodes of each generated graph.")
    ] = "10000,100000",
    models: NamesOption = "all",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, the least counts.")] = 3,
    format: FormatOption = Format.table,
) -> None:
    """What expose and a repaired model cost beside one forward of the same plain PyG model."""
    chosen = names(models, PLAIN_MODELS, "model")
    rows = bench_exposing(numbers(nodes), chosen, repeats)
    emit(rows, format, title="expose and a repaired model, in forwards of the same model")


@app.command()
def labels(
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of the random graph.")] = 5_000,
    labels: Annotated[int, typer.Option(min=1, help="Labels per node.")] = 121,
    neighbours: Annotated[int, typer.Option(min=1, help="Messages per node and head.")] = 28,
    heads: Annotated[int, typer.Option(min=1, help="Groups of messages.")] = 2,
    format: FormatOption = Format.table,
) -> None:
    """Pairs of node and label answered per second, beside the simplex on the same questions."""
    emit([bench_labels(nodes, labels, neighbours, heads)], format, title="Labels in closed form")


@app.command()
def graphs(
    graphs: Annotated[int, typer.Option(min=10, help="How many graphs are generated.")] = 10_000,
    nodes: Annotated[int, typer.Option(min=12, help="Nodes of each, on average.")] = 30,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the GIN's layers.")] = 64,
    format: FormatOption = Format.table,
) -> None:
    """Seconds of exposing a GIN that classifies many graphs, and of solving every one."""
    rows = bench_graphs(graphs, nodes, hidden=hidden)
    emit(rows, format, title="Exposing and solving a three-layer GIN on graphs")


@app.command()
def repair(
    cases: Annotated[
        str, typer.Option(help="Comma-separated dataset:backbone; the dataset may be generated.")
    ] = "builtin:gcn,generated:sgc",
    repairs: NamesOption = "all",
    members: MembersOption = 10,
    epochs: Annotated[int, typer.Option(min=10, help="Epochs timed, a multiple of ten.")] = 20,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Time and peak memory per epoch: x built literally, factorised, and with fused kernels."""
    rows = bench_repair(
        cases.split(","),
        root=root,
        device=device,
        members=members,
        epochs=epochs,
        repairs=names(repairs, LITERAL, "repair"),
    )
    emit(list(rows), format, title="Milliseconds per epoch and member")


@app.command()
def minibatch(
    cases: Annotated[
        str, typer.Option(help="Comma-separated dataset:backbone, of sgc, mixhop and h2gcn.")
    ] = "pubmed:sgc,squirrel:sgc,tolokers:sgc",
    repairs: NamesOption = "all",
    members: MembersOption = 10,
    steps: Annotated[int, typer.Option(min=2, help="Steps of an epoch.")] = 60,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs timed; the best counts.")] = 3,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Milliseconds per step of minibatch training: before and after work was removed."""
    rows = bench_minibatch(
        cases.split(","),
        root=root,
        device=device,
        members=members,
        steps=steps,
        epochs=epochs,
        repairs=names(repairs, REPAIRS, "repair"),
    )
    emit(list(rows), format, title="Milliseconds per step, all members")


@app.command()
def oracle(
    shapes: Annotated[
        str, typer.Option(help="Synthetic LPs, K:C:B comma-separated; empty for none.")
    ] = "5:3:1,20:7:1,100:18:3,1900:7:1,3000:18:1",
    cases: Annotated[
        str, typer.Option(help="Real ones, dataset:backbone comma-separated; empty for none.")
    ] = "builtin:gcn",
    splits: Annotated[int, typer.Option(min=1, help="Members of the real cases.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs of the real cases.")] = 50,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of which the best counts.")] = 5,
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Microseconds per LP on one thread: ours, highspy, gurobipy, scipy and one read."""
    chosen, real = parse_shapes(shapes), parse_cases(cases)
    rows = bench_oracle(chosen, real, root, splits, epochs, repeats)
    emit(rows, format, title="Microseconds per LP, one thread")


@app.command()
def heads(
    datasets: DatasetsOption = "builtin",
    heads: NamesOption = "all",
    hidden: Annotated[str, typer.Option(help="Hidden units, comma-separated.")] = "64",
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs.")] = 150,
    sample: Annotated[int, typer.Option(min=0, help="Questions general solvers get.")] = 40,
    milp: Annotated[int, typer.Option(min=0, help="Verdicts per model compared with a MILP.")] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="Keep rows here; a second run goes on from them.")
    ] = None,
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Nonlinear heads: time and share decided by stage, beside highspy's LP and MILP."""
    rows = []
    for row in bench_heads(
        names(datasets, DATASETS, "dataset"),
        names(heads, HEADS, "head"),
        parse_widths(hidden),
        root=root,
        epochs=epochs,
        sample=sample,
        milp=milp,
        folder=folder,
    ):
        rows.append(row)
        counts = ", ".join(f"{key} {row[key]}" for key in ("can", "cannot", "undecided"))
        typer.echo(f"{row['dataset']} {row['head']} {row['units']}: {counts}", err=True)
    emit(rows, format, title="Errors of two-layer models with a nonlinear head, one thread")


@app.command()
def explainers(
    datasets: DatasetsOption = "cora,chameleon",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes per dataset and question.")] = 40,
    most: Annotated[int, typer.Option(min=1, help="Edges that may be removed.")] = 20,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs.")] = 100,
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """What must change to change a prediction: ours beside edge removal and explainers."""
    rows = []
    chosen = names(datasets, DATASETS, "dataset")
    for row in bench_explainers(list(chosen), nodes, most, epochs, root):
        rows.append(row)
        typer.echo(f"{row['question']}, {row['method']}: {row['changed (%)']} %", err=True)
    emit(rows, format, title="Changing a prediction, one thread")


def main() -> None:
    """Run the command; an expected error is one sentence and exit code 2."""
    try:
        app()
    except GnnRepairError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
