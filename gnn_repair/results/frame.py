"""Everything a store holds as one data frame, and as a file of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError
from gnn_repair.results.records import FROZEN, PARTS, RunRecord
from gnn_repair.results.store import ResultsSource, open_results

COLUMNS = ["dataset", "backbone", "split", "protocol", "method", "part", "metric", "value"]


def read_results(store: str | Path | ResultsSource, protocol: str | None = None) -> pd.DataFrame:
    """Everything a store holds, one number per row.

    Args:
        store: the folder of results, or a packed file of them.
        protocol: digest of the settings; all of them unless given.

    Returns:
        Columns ``dataset``, ``backbone``, ``split``, ``protocol``, ``method`` (``frozen``,
        ``oracle`` or a repair), ``part`` (train, val, test, or empty), ``metric`` and ``value``.
        Accuracies and reaches are shares, not per cent.
    """
    held = store if isinstance(store, ResultsSource) else open_results(store)
    digests = held.digests() if protocol is None else [held.resolve(protocol)]
    rows = [
        [record.dataset, record.backbone, record.split, record.protocol, *row]
        for digest in digests
        for record in held.records(digest)
        for row in _numbers(record)
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"split": "int64", "value": "float64"})


def _numbers(record: RunRecord) -> Iterator[tuple[str, str, str, Any]]:
    """Method, part, metric and value of everything in a record; None becomes NaN in the frame."""
    for method, scores in {FROZEN: record.frozen, **record.methods}.items():
        for name, value in scores.items():
            part = name if name in PARTS else ""
            yield method, part, "accuracy" if part else name, value
    for name, value in (record.oracle or {}).items():
        if isinstance(value, dict):
            part, before = (name, "") if name in PARTS else ("", f"{name}: ")
            for metric, inner in value.items():
                yield "oracle", part, before + metric, inner
        else:
            yield "oracle", "", name, value
    for stage, value in record.seconds.items():
        yield stage, "", "seconds", value


def export_results(store: str | Path, path: str | Path, protocol: str | None = None) -> int:
    """Write the data frame as CSV or Parquet, by the file's ending; returns the number of rows."""
    target = check_target(path)
    if target.suffix not in (".csv", ".parquet"):
        raise InputError(f"{target.name} ends in neither .csv nor .parquet; choose one of them")
    frame = read_results(store, protocol)
    with replacing(target) as temporary:
        if target.suffix == ".csv":
            frame.to_csv(temporary, index=False)
            return len(frame)
        try:
            frame.to_parquet(temporary, index=False, engine="pyarrow")
        except ImportError as error:
            raise InputError(
                "writing Parquet needs the package pyarrow in a version that fits NumPy's; install "
                "gnn-repair[parquet] or write .csv"
            ) from error
    return len(frame)
