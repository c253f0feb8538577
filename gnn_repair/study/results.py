"""Results as a long-form data frame, and as files for other tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError
from gnn_repair.study.records import Record
from gnn_repair.study.results_source import ResultsSource, open_results

COLUMNS = ["dataset", "backbone", "split", "protocol", "method", "part", "metric", "value"]


def read_results(store: str | Path | ResultsSource, protocol: str | None = None) -> pd.DataFrame:
    """Everything a store holds, one number a row.

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
    rows = [row for digest in digests for record in held.records(digest) for row in _rows(record)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"split": "int64", "value": "float64"})


def _rows(record: Record) -> Iterator[list[Any]]:
    place = [record[name] for name in ("dataset", "backbone", "split", "protocol")]
    for method, held in (("frozen", record["frozen"]), *record["methods"].items()):
        for name, value in held.items():
            part = name if name in ("train", "val", "test") else ""
            yield [*place, method, part, "accuracy" if part else name, _number(value)]
    for name, value in (record.get("oracle") or {}).items():
        if name in ("val", "test"):
            for metric, share in value.items():
                yield [*place, "oracle", name, metric, _number(share)]
        elif name == "status":
            for status, count in value.items():
                yield [*place, "oracle", "", f"status: {status}", _number(count)]
        else:
            yield [*place, "oracle", "", name, _number(value)]
    for stage, value in record.get("seconds", {}).items():
        yield [*place, stage, "", "seconds", _number(value)]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def export_results(store: str | Path, path: str | Path, protocol: str | None = None) -> int:
    """Write the data frame as CSV or Parquet, by the file's ending; returns the number of rows."""
    target = check_target(path)
    if target.suffix not in (".csv", ".parquet"):
        raise InputError(f"{target.name} ends in neither .csv nor .parquet; choose one of them")
    frame = read_results(store, protocol)
    with replacing(target) as temporary:
        if target.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            _to_parquet(frame, temporary)
    return len(frame)


def _to_parquet(frame: pd.DataFrame, path: Path) -> None:
    try:
        frame.to_parquet(path, index=False, engine="pyarrow")
    except ImportError as error:
        raise InputError(
            "writing Parquet needs the package pyarrow in a version that fits NumPy's; install "
            "gnn-repair[parquet] or write .csv"
        ) from error
