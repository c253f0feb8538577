"""``gnn-repair demo``: the whole way on the built-in graph."""

from __future__ import annotations

from gnn_repair.cli.output import Format, FormatOption, emit
from gnn_repair.datasets import DATASETS, load_dataset
from gnn_repair.datasets.checking import describe


def demo(format: FormatOption = Format.table) -> None:
    """Run the demonstration on the built-in graph; it needs no file and no network."""
    data = load_dataset("builtin")
    summary = {"dataset": data.name, **describe(data), "protocol": DATASETS["builtin"].splits}
    emit([summary], format, title="The built-in graph")
