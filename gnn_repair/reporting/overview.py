"""Cases beside each other and beside the published numbers, as the overview shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_repair.methods import title_of
from gnn_repair.published import published
from gnn_repair.reporting.evidence import Evidence

if TYPE_CHECKING:
    import pandas as pd

REACH = ("true_class_reach", "error_reach", "support")


def case_of_run(
    evidence: Evidence,
    dataset: str,
    backbone: str,
    *,
    selection: str = "nodes",
    split: int | None = None,
) -> dict[str, Any]:
    """A run as a case of one split: accuracies and reach in percent, support in terms.

    Args:
        evidence: what was gathered of it.
        dataset, backbone: the case.
        selection: what its nodes are called.
        split: its number, where it has one.
    """
    truth, right = evidence.true_class, evidence.right
    counts = evidence.reach
    accuracy = {"frozen": [_percent(right)]}
    kinds = {}
    for item in evidence.corrections:
        accuracy[item.name] = [_percent(item.predictions == truth)]
        kinds[item.name] = item.kind
    reach = {
        "true_class_reach": [_known(100 * counts.true_class_reach)],
        "error_reach": [_known(100 * counts.error_reach)],
        "support": [_known(counts.support)],
    }
    splits = {name: [split] for name in accuracy}
    return _case(dataset, backbone, accuracy, splits, reach, kinds, on=selection)


def _percent(flags: np.ndarray[Any, Any]) -> float | None:
    return float(100 * flags.mean()) if flags.size else None


def _known(value: float) -> float | None:
    """None where there was nothing to count."""
    return None if np.isnan(value) else value


def cases_of_results(results: pd.DataFrame) -> list[dict[str, Any]]:
    """Every case of a study's long-form results."""
    cases = []
    test = results[results["part"] == "test"]
    for (dataset, backbone), rows in test.groupby(["dataset", "backbone"], sort=True):
        scores = rows[rows["metric"] == "accuracy"]
        accuracy = _by_name(scores, "method", 100.0)
        if "frozen" not in accuracy:
            continue
        ordered = {"frozen": accuracy.pop("frozen"), **accuracy}
        splits = {name: _splits(scores[scores["method"] == name]) for name in ordered}
        values = _by_name(rows[rows["metric"].isin(REACH)], "metric", 1.0)
        reach = {
            name: [value if name == "support" else 100 * value for value in found]
            for name, found in values.items()
        }
        cases.append(_case(str(dataset), str(backbone), ordered, splits, reach))
    return cases


def _splits(rows: pd.DataFrame) -> list[int]:
    """Whose values :func:`_by_name` gives, in the same order."""
    return [int(split) for split in rows.dropna(subset=["value"]).sort_values("split")["split"]]


def _by_name(rows: pd.DataFrame, column: str, scale: float) -> dict[str, list[float]]:
    """Values over splits by the name in ``column``, in order of appearance."""
    groups = rows.dropna(subset=["value"]).sort_values("split").groupby(column, sort=False)
    return {str(name): [scale * float(v) for v in part["value"]] for name, part in groups}


def _case(
    dataset: str,
    backbone: str,
    accuracy: Mapping[str, Sequence[float | None]],
    splits: Mapping[str, Sequence[int | None]],
    reach: Mapping[str, Sequence[float | None]],
    kinds: Mapping[str, str] | None = None,
    on: str = "test nodes",
) -> dict[str, Any]:
    methods = [
        {
            "key": name,
            "title": title_of(name),
            "kind": (kinds or {}).get(name),
            "values": list(values),
            "splits": list(splits[name]),
            "paper": published_value(name, dataset, backbone),
        }
        for name, values in accuracy.items()
        if None not in values
    ]
    paper = {name: published_value(name, dataset, backbone) for name in REACH}
    return {
        "dataset": dataset,
        "backbone": backbone,
        "on": on,
        "methods": methods,
        "reach": {name: list(values) for name, values in reach.items() if None not in values},
        "paper": {name: value for name, value in paper.items() if value is not None},
    }


def published_value(table: str, dataset: str, backbone: str) -> float | None:
    """The paper's cell, None where it has none."""
    cells = published()["tables"].get(table, {}).get("cells", {})
    value = cells.get(backbone, {}).get(dataset)
    return None if value is None else float(value)
