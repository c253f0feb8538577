"""``gnn-repair bench``: measured, in one run, against a named peer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnn_repair.cli import completion
from gnn_repair.cli.output import Format, FormatOption, emit
from gnn_repair.cli.parsing import names, numbers
from gnn_repair.errors import InputError

app = typer.Typer(help="Measure speed and accuracy; every figure beside a peer's.")

DatasetOption = Annotated[str, typer.Option(help="A dataset.", autocompletion=completion.dataset)]
DatasetsOption = Annotated[
    str, typer.Option(help="Comma-separated datasets.", autocompletion=completion.measured_datasets)
]
BackbonesOption = Annotated[
    str, typer.Option(help="Comma-separated, or all.", autocompletion=completion.measured_backbones)
]
RootOption = Annotated[str | None, typer.Option("--root", help="Folder of the raw datasets.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.command()
def training(
    dataset: DatasetOption = "builtin",
    backbones: BackbonesOption = "all",
    members: Annotated[int, typer.Option(min=1, help="Splits trained as one.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs timed.")] = 60,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Milliseconds per split-epoch: a plain PyG loop, one member, and stacked members."""
    from gnn_repair.backbones import BACKBONES
    from gnn_repair.bench.training import bench_training
    from gnn_repair.datasets import load_dataset

    data = load_dataset(dataset, root)
    chosen = names(backbones, BACKBONES, "backbone")
    measured = bench_training(data, chosen, device=device, members=members, epochs=epochs)
    rows = [
        {
            "backbone": row.backbone,
            "plain PyG (ms)": round(row.plain_pyg, 3),
            "one member (ms)": round(row.one_member, 3),
            f"{row.members} members (ms each)": round(row.stacked, 3),
            "plain / one": round(row.plain_pyg / row.one_member, 1),
            f"plain / {row.members}": round(row.ratio, 1),
        }
        for row in measured
    ]
    emit(rows, format, title=f"Milliseconds per split-epoch on {dataset}")


@app.command()
def accuracy(
    datasets: DatasetsOption = "builtin",
    backbones: BackbonesOption = "all",
    splits: Annotated[str, typer.Option(help="Such as 0-9 or 0,3; all unless given.")] = "",
    seed: Annotated[int, typer.Option(help="Of initialisation and dropout.")] = 0,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Frozen test accuracy over splits, beside the published value."""
    from gnn_repair.backbones import BACKBONES
    from gnn_repair.bench.accuracy import bench_accuracy
    from gnn_repair.datasets import DATASETS

    measured = bench_accuracy(
        names(datasets, DATASETS, "dataset"),
        names(backbones, BACKBONES, "backbone"),
        root=root,
        splits=numbers(splits) if splits else None,
        seed=seed,
        device=device,
    )
    rows = [
        {
            "dataset": row.dataset,
            "backbone": row.backbone,
            "accuracy": round(row.accuracy, 2),
            "std": round(row.deviation, 2),
            "paper": row.paper,
            "difference": None if row.difference is None else round(row.difference, 2),
            "epochs": row.epochs,
            "seconds": round(row.seconds, 1),
        }
        for row in measured
    ]
    emit(rows, format, title="Frozen test accuracy (%)")


@app.command()
def scale(
    nodes: Annotated[
        str, typer.Option(help="Comma-separated: nodes of each generated graph.")
    ] = "10000,100000,1000000",
    degree: Annotated[int, typer.Option(min=1, help="Entries a node, self-loop included.")] = 20,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the GCN's layers.")] = 64,
    features: Annotated[int, typer.Option(min=1, help="Features of a node.")] = 64,
    classes: Annotated[int, typer.Option(min=2, help="Classes.")] = 40,
    models: Annotated[
        str, typer.Option(help="Comma-separated: GCNConv (a PyG model), built-in (our own).")
    ] = "GCNConv,built-in",
    format: FormatOption = Format.table,
) -> None:
    """Large generated graphs: expose, ask the oracle about every node, learn a repair and use it.

    Seconds are processor seconds over threads: what an idle machine with as many cores takes.
    """
    from gnn_repair.bench.scale import MODELS, bench_scale

    measured = bench_scale(
        _sizes(nodes, degree),
        models=names(models, MODELS, "model"),
        degree=degree,
        features=features,
        hidden=hidden,
        classes=classes,
    )
    rows = [
        {
            "model": row.model,
            "nodes": row.nodes,
            "terms": row.terms,
            "expose (s)": round(row.expose_seconds, 2),
            "its CPU (s)": round(row.expose_cpu_seconds, 1),
            "peak (GiB)": round(row.expose_peak_gib, 2),
            "oracle, all nodes (s)": round(row.oracle_seconds, 2),
            "targets": row.targets,
            "an epoch (s)": round(row.epoch_seconds, 3),
            "500 targets, an epoch (s)": round(row.few_epoch_seconds, 3),
            "repair all nodes (s)": round(row.predict_seconds, 2),
            "peak at the end (GiB)": round(row.peak_gib, 2),
            "threads": row.threads,
        }
        for row in measured
    ]
    emit(rows, format, title="A two-layer GCN on generated graphs")


def _sizes(text: str, degree: int) -> list[int]:
    """Numbers of nodes from a comma-separated text; every node has its own sources."""
    sizes, least = numbers(text), max(100, 2 * degree)
    if min(sizes) < least:
        raise InputError(f"--nodes names {min(sizes)}; with {degree} entries a node give {least}")
    return sizes


@app.command()
def labels(
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of the random graph.")] = 5_000,
    labels: Annotated[int, typer.Option(min=1, help="Labels a node.")] = 121,
    neighbours: Annotated[int, typer.Option(min=1, help="Messages a node and head.")] = 28,
    heads: Annotated[int, typer.Option(min=1, help="Groups of messages.")] = 2,
    format: FormatOption = Format.table,
) -> None:
    """Pairs of node and label answered a second, beside the simplex on the same questions."""
    from gnn_repair.bench.labels import bench_labels

    row = bench_labels(nodes, labels, neighbours, heads)
    shown = {
        "nodes": row.nodes,
        "labels": row.labels,
        "terms": row.terms,
        "pairs a CPU second": round(row.pairs_per_second),
        "simplex": round(row.simplex_per_second),
        "certificates": round(row.check_per_second),
        "largest difference": float(f"{row.difference:.1e}"),
    }
    emit([shown], format, title="Labels in closed form")


@app.command()
def graphs(
    graphs: Annotated[int, typer.Option(min=10, help="How many graphs are generated.")] = 10_000,
    nodes: Annotated[int, typer.Option(min=12, help="Nodes of each, on average.")] = 30,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the GIN's layers.")] = 64,
    format: FormatOption = Format.table,
) -> None:
    """Seconds of exposing a GIN that classifies many graphs, and of solving every one."""
    from gnn_repair.bench.graphs import bench_graphs

    rows = [
        {
            "head": row.head,
            "graphs": row.graphs,
            "terms": row.terms,
            "threads": row.threads,
            "one forward (s)": round(row.forward_seconds, 1),
            "expose (s)": round(row.expose_seconds, 1),
            "solve (s)": round(row.solve_seconds, 2),
            "CPU (s)": round(row.cpu_seconds, 1),
            "decided": row.decided,
            "peak memory (GiB)": round(row.peak_gib, 2),
            "residual": float(f"{row.residual:.1e}"),
        }
        for row in bench_graphs(graphs, nodes, hidden=hidden)
    ]
    emit(rows, format, title="Exposing and solving a three-layer GIN on graphs")


@app.command()
def repair(
    cases: Annotated[
        str, typer.Option(help="Comma-separated dataset:backbone; the dataset may be generated.")
    ] = "builtin:gcn,generated:sgc",
    repairs: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "all",
    members: Annotated[int, typer.Option(min=1, help="Splits fitted as one.")] = 10,
    epochs: Annotated[int, typer.Option(min=10, help="Epochs timed, a multiple of ten.")] = 20,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Time and peak memory per epoch: x built literally, factorised, and with fused kernels."""
    from gnn_repair.bench.repair import REPAIRS, bench_repair, with_ratios

    measured = bench_repair(
        cases.split(","),
        root=root,
        device=device,
        members=members,
        epochs=epochs,
        repairs=names(repairs, REPAIRS, "repair"),
    )
    emit(with_ratios(measured), format, title="Milliseconds per epoch and member")


@app.command()
def minibatch(
    cases: Annotated[
        str, typer.Option(help="Comma-separated dataset:backbone, of sgc, mixhop and h2gcn.")
    ] = "pubmed:sgc,squirrel:sgc,tolokers:sgc",
    repairs: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "all",
    members: Annotated[int, typer.Option(min=1, help="Splits fitted as one.")] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Steps of an epoch.")] = 60,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs timed; the best counts.")] = 3,
    device: DeviceOption = "auto",
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Milliseconds a step of minibatch training: before and after work was removed."""
    from gnn_repair.bench.minibatch import REPAIRS, bench_minibatch

    measured = bench_minibatch(
        cases.split(","),
        root=root,
        device=device,
        members=members,
        steps=steps,
        epochs=epochs,
        repairs=names(repairs, REPAIRS, "repair"),
    )
    rows = [
        {
            "case": row.case,
            "repair": row.repair,
            "batch": row.batch,
            "members": row.members,
            "before (ms)": round(row.before, 3),
            "after (ms)": round(row.after, 3),
            "before / after": round(row.before / row.after, 2),
        }
        for row in measured
    ]
    emit(rows, format, title="Milliseconds a step, all members")


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
    from gnn_repair.bench import oracle as bench

    chosen, real = bench.parse_shapes(shapes), bench.parse_cases(cases)
    measured = [
        *bench.bench_synthetic(chosen, repeats),
        *bench.bench_real(real, root, splits, epochs, repeats),
    ]
    emit(bench.rows_for_print(measured), format, title="Microseconds per LP, one thread")


@app.command()
def tails(
    datasets: DatasetsOption = "builtin",
    tails: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "all",
    hidden: Annotated[str, typer.Option(help="Hidden units, comma-separated.")] = "64",
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs.")] = 150,
    sample: Annotated[int, typer.Option(min=0, help="Questions general solvers get.")] = 40,
    milp: Annotated[int, typer.Option(min=0, help="Verdicts a model compared with a MILP.")] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="Keep rows here; a second run goes on from them.")
    ] = None,
    root: RootOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Models with tails: time and share decided by stage, beside highspy's LP and MILP."""
    from gnn_repair.bench import tails as bench
    from gnn_repair.bench.tail_models import TAILS
    from gnn_repair.datasets import DATASETS

    measured = bench.bench_tails(
        names(datasets, DATASETS, "dataset"),
        names(tails, TAILS, "tail"),
        bench.parse_widths(hidden),
        root=root,
        epochs=epochs,
        sample=sample,
        milp=milp,
        folder=folder,
    )
    rows = []
    for row in measured:
        rows.append(row)
        told = ", ".join(f"{key} {row[key]}" for key in ("can", "cannot", "undecided"))
        typer.echo(f"{row['dataset']} {row['tail']} {row['units']}: {told}", err=True)
    emit(rows, format, title="Errors of two-layer models with a tail, one thread")
