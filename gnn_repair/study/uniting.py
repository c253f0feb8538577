"""Two records of one run as one: the same frozen model, other methods."""

from __future__ import annotations

from typing import Any

from gnn_repair.study.records import Record

SAME = ("format", "version", "protocol", "dataset", "backbone", "split", "graph", "frozen",
        "members", "stack")  # fmt: skip
"""What must be equal in two records of one frozen model."""
TABLES = ("methods", "stages")
"""Tables by method; what both hold must be equal."""


def unite(there: Record, other: Record) -> Record | None:
    """``there`` with the methods that only ``other`` has; None where the two disagree."""
    if any(there.get(name) != other.get(name) for name in SAME):
        return None
    if any(_disagree(there.get(name, {}), other.get(name, {})) for name in TABLES):
        return None
    oracles = [record["oracle"] for record in (there, other) if record.get("oracle") is not None]
    if len(oracles) == 2 and oracles[0] != oracles[1]:
        return None
    new = [name for name in other["methods"] if name not in there["methods"]]
    new += ["oracle"] * (there.get("oracle") is None and bool(oracles))
    whole = dict(there) | {"oracle": oracles[0] if oracles else None}
    for name in TABLES:
        whole[name] = dict(other.get(name, {})) | dict(there.get(name, {}))
    whole["seconds"] = _seconds(there.get("seconds", {}), other.get("seconds", {}), new)
    whole["environment"] = _environment(there["environment"], other["environment"], new)
    return whole


def _disagree(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return any(left[name] != right[name] for name in left.keys() & right.keys())


def _seconds(left: dict[str, Any], right: dict[str, Any], new: list[str]) -> dict[str, Any]:
    """What the new methods took is added; training and exposing are counted once."""
    added = {name: right[name] for name in new if name in right}
    total = left.get("total", 0.0) + sum(added.values())
    return {**left, **added, "total": round(total, 4)}


def _environment(left: dict[str, str], right: dict[str, str], new: list[str]) -> dict[str, str]:
    """The first record's, and for methods that were run elsewhere what differs there."""
    differing = [name for name in right if left.get(name) != right[name]]
    extra = {f"{name} of {method}": right[name] for method in new for name in differing}
    return {**left, **extra}
