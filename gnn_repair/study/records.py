"""What a record must be, and reading one without trusting it."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gnn_repair.study.cases import Run

FORMAT = "gnn-repair run"
VERSION = 1
LARGEST = 2**20
"""Bytes of a record. One takes two to three thousand; a larger file is something else."""
_MOST = 2**53
"""Whole numbers above this are not exact in the tables' floats."""

Record = dict[str, Any]
"""One run's result; see ``docs/study.md``."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ .:-]{0,99}")


class StoreWarning(UserWarning):
    """A file in a store was left out."""


def leave_out(where: str | Path, fault: str) -> None:
    """Say that something is not a result; nothing on disk is changed."""
    warnings.warn(f"{where}: {fault}; it is left out", StoreWarning, stacklevel=4)


def read_object(path: Path, largest: int = LARGEST) -> tuple[dict[str, Any], str]:
    """The JSON object in a file and what is wrong with it; one of the two is empty."""
    try:
        # Without blocking, since a named pipe would wait for somebody to write.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}, "it is not a file"
            text = file.read(largest + 1)
    except (OSError, ValueError) as error:
        return {}, f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    if len(text) > largest:
        return {}, f"it has more than {largest:,} bytes"
    return parse_object(text)


def parse_object(text: bytes) -> tuple[dict[str, Any], str]:
    """The JSON object in a text and what is wrong with it; one of the two is empty."""
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        said = "it holds NaN or infinity" if "constant" in str(error) else ""
        return {}, said or "it is truncated or not JSON"
    return (content, "") if isinstance(content, dict) else ({}, "it is truncated or not JSON")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the constant {name}")


def address_fault(record: Mapping[str, Any], digest: str, run: Run) -> str:
    """Why a record does not belong at its address; empty where it does."""
    expected = {
        "protocol": digest,
        "dataset": run.dataset,
        "backbone": run.backbone,
        "split": run.split,
    }
    for name, value in expected.items():
        found = record.get(name)
        if found != value or type(found) is not type(value):
            return f"its {name} is {found!r:.60}, not {value!r}"
    return ""


def record_fault(record: Mapping[str, Any]) -> str:
    """Why something is not a whole record of a run; empty where it is one."""
    if record.get("format") != FORMAT:
        return "it is not a result of this package"
    version = record.get("version")
    if is_newer(record):
        return f"its format version is {version}, newer than {VERSION}; update gnn-repair"
    if version != VERSION or type(version) is not int:
        return f"its format version is {version!r:.60}, not {VERSION}"
    for part in ("frozen", "methods", "graph", "environment"):
        if not isinstance(record.get(part), dict):
            return f"it has no {part}"
    return (
        _scores_fault("frozen", record["frozen"])
        or _methods_fault(record["methods"])
        or _oracle_fault(record.get("oracle"))
        or _numbers_fault("graph", record["graph"])
        or _numbers_fault("seconds", record.get("seconds", {}))
        or _texts_fault("environment", record["environment"])
        or _texts_fault("stages", record.get("stages", {}))
        or _members_fault(record)
    )


def is_newer(record: Mapping[str, Any]) -> bool:
    """Whether a later version of this package wrote it."""
    version = record.get("version")
    return record.get("format") == FORMAT and type(version) is int and version > VERSION


def _methods_fault(methods: Mapping[str, Any]) -> str:
    for name, scores in methods.items():
        if not _KEY.fullmatch(name):
            return f"it names a method {name!r:.60}"
        fault = _scores_fault(name, scores)
        if fault:
            return fault
    return ""


def _scores_fault(name: str, scores: Any) -> str:
    """Accuracies are shares; everything beside them is a number or missing."""
    fault = _numbers_fault(name, scores)
    if fault:
        return fault
    for part in ("train", "val", "test"):
        value = scores.get(part)
        if value is not None and (isinstance(value, bool) or not 0 <= value <= 1):
            return f"the {part} accuracy of {name} is {value!r:.60}, not a share"
    return ""


def _oracle_fault(oracle: Any) -> str:
    if oracle is None:
        return ""
    if not isinstance(oracle, dict):
        return f"its oracle is {oracle!r:.60}"
    for name, value in oracle.items():
        inner = value if name in ("val", "test", "status") else {name: value}
        fault = _numbers_fault(f"oracle {name}", inner)
        if fault:
            return fault
    for part in ("val", "test"):
        for metric in ("true_class_reach", "error_reach"):
            share = oracle.get(part, {}).get(metric)
            if share is not None and not 0 <= share <= 1:
                return f"the {metric} of {part} is {share!r:.60}, not a share"
    return ""


def _numbers_fault(name: str, values: Any) -> str:
    if not isinstance(values, dict):
        return f"its {name} is {values!r:.60}, not a table"
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            return f"its {name} names {key!r:.60}"
        if value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > _MOST:
            return f"{key} of {name} is {value!r:.60}, not a number"
    return ""


def _texts_fault(name: str, values: Any) -> str:
    fair = isinstance(values, dict) and all(isinstance(value, str) for value in values.values())
    return "" if fair else f"its {name} is not a table of texts"


def _members_fault(record: Mapping[str, Any]) -> str:
    members, stack = record.get("members", 1), record.get("stack", [])
    if type(members) is not int or members < 1:
        return f"its members are {members!r:.60}"
    if not isinstance(stack, list) or any(type(split) is not int for split in stack):
        return f"its stack is {stack!r:.60}"
    return ""
