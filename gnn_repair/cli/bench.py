"""``gnn-repair bench``: measured, in one run, against a named peer."""

from __future__ import annotations

from typing import Annotated

import typer

from gnn_repair.cli.output import Format, FormatOption, emit
from gnn_repair.cli.parsing import names, numbers

app = typer.Typer(help="Measure speed and accuracy; every figure beside a peer's.")

RootOption = Annotated[str | None, typer.Option("--root", help="Folder of the raw datasets.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.command()
def training(
    dataset: Annotated[str, typer.Option(help="A dataset.")] = "builtin",
    backbones: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "all",
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
    datasets: Annotated[str, typer.Option(help="Comma-separated datasets.")] = "builtin",
    backbones: Annotated[str, typer.Option(help="Comma-separated, or all.")] = "all",
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
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of the generated graph.")] = 1_000_000,
    entries: Annotated[
        int, typer.Option(min=100, help="Entries, self-loops included.")
    ] = 20_000_000,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the GCN's layers.")] = 64,
    format: FormatOption = Format.table,
) -> None:
    """Seconds and peak memory of exposing a GCN on a large generated graph."""
    from gnn_repair.bench.scale import bench_scale

    measured = bench_scale(nodes, entries, hidden=hidden)
    rows = [
        {
            "nodes": row.nodes,
            "terms": row.terms,
            "threads": row.threads,
            "one forward (s)": round(row.forward_seconds, 1),
            "expose (s)": round(row.expose_seconds, 1),
            "peak memory (GiB)": round(row.peak_gib, 2),
            "residual": float(f"{row.residual:.1e}"),
        }
        for row in measured
    ]
    emit(rows, format, title="Exposing a two-layer GCN")
