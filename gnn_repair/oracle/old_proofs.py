"""Proofs of an earlier model's answers, tried on today's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gnn_repair.oracle.flat_arrays import numbered
from gnn_repair.oracle.tables import Instance, Tables, instance
from gnn_repair.thresholds import REACHABLE

if TYPE_CHECKING:
    from gnn_repair.exposure import Exposure

SHOWN = ["member", "node", "class", "verdict"]


def broken_proofs(before: pd.DataFrame, exposure: Exposure) -> pd.DataFrame:
    """Answers whose witness no longer wins, or whose rival mixture no longer excludes."""
    tables = Tables.of(exposure)
    n_id = None if exposure.n_id is None else exposure.n_id.cpu().numpy()
    tables = replace(tables, sources=numbered(tables.sources, n_id))
    nodes = numbered(exposure.recipients.cpu().numpy(), n_id)
    place = {int(node): i for i, node in enumerate(nodes.tolist())}
    holds = [_holds(row, tables, place) for row in before.to_dict("records")]
    return before[~np.array(holds, bool)][SHOWN].reset_index(drop=True)


def _holds(row: Mapping[Any, Any], tables: Tables, place: dict[int, int]) -> bool:
    if row["verdict"] == "undecided":
        return True
    recipient, classes = place.get(row["node"]), tables.num_classes
    members = len(tables.contributions)
    if recipient is None or row["class"] >= classes or row["member"] >= members:
        return False
    problem = instance(tables, row["member"], recipient, row["class"])
    if row["verdict"] == "can":
        return _wins(problem, row["witness"], _senders(problem, tables, recipient))
    return _excludes(problem, row["rivals"], classes)


def _senders(problem: Instance, tables: Tables, recipient: int) -> dict[tuple[int, int], int]:
    """Where in the LP the term of each (group, source) is; the first of several."""
    groups = tables.num_groups
    ends = tables.segments[recipient * groups : (recipient + 1) * groups + 1]
    group = np.searchsorted(ends, problem.terms, side="right") - 1
    source = tables.sources[tables.rows[problem.terms]]
    pairs = list(zip(group.tolist(), source.tolist(), strict=True))
    return {pair: i for i, pair in reversed(list(enumerate(pairs)))}


def _wins(problem: Instance, witness: list[list[Any]], senders: dict[tuple[int, int], int]) -> bool:
    """Whether the old λ, brought to today's masses, still makes the class win."""
    share = np.zeros(len(problem.terms))
    for group, source, weight in witness:
        if (group, source) not in senders or weight < 0:
            return False
        share[senders[group, source]] += weight
    total = np.bincount(problem.group, share, len(problem.mass))
    if ((total == 0) & (problem.mass > 0)).any():
        return False
    share *= (problem.mass / np.where(total == 0, 1, total))[problem.group]
    return bool((problem.fixed + share @ problem.gaps).min() > REACHABLE)


def _excludes(problem: Instance, rivals: list[list[Any]], classes: int) -> bool:
    """Whether the old rival mixture still proves that no reweighting wins."""
    weights = np.zeros(classes)
    for rival, weight in rivals:
        if rival >= classes or weight < 0:
            return False
        weights[rival] = weight
    weights = weights[problem.rivals]
    if not weights.sum() > 0:
        return False
    weights /= weights.sum()
    values = problem.gaps @ weights
    best = sum(
        mass * values[problem.group == group].max(initial=-np.inf)
        for group, mass in enumerate(problem.mass)
        if mass > 0
    )
    return bool(problem.fixed @ weights + best <= REACHABLE)
