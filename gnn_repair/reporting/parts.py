"""Large pages: the terms lie in files beside the page and are read when a node is opened.

Below SINGLE_BYTES a page is one file. Above, ``report.html`` keeps what the overview and the list
need, and ``report.parts/`` holds the contribution table and the terms of a range of nodes each. A
browser reads such files only from a server, which ``gnn-repair view`` is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gnn_repair.atomic import replacing

SINGLE_BYTES = 20 * 10**6
"""Above this a page opens slowly and mails badly."""
PART_BYTES = 4 * 10**6
"""Of one file of terms: a blink from a local server."""
STORED_BYTES = 2**30
"""Terms beside a page at most; further ones are left out from the end of the list."""
PART_NAME = re.compile(r"[0-9a-f]{12}-(table|\d+)\.json")


def encoded_bytes(content: Mapping[str, Any]) -> int:
    """About how large the page's data are."""
    return sum(len(entry["data"]) for entry in content.get("arrays", {}).values())


def parts_folder(page: Path) -> Path:
    """Where a page's parts lie."""
    return page.with_suffix(".parts")


def split_content(
    content: Mapping[str, Any], page: Path
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The page's content without its terms, and the parts by file name."""
    arrays = dict(content["arrays"])
    opened, lengths = len(_decoded(arrays["kept"])), _decoded(arrays["lengths"])
    counts = lengths.reshape(opened, -1).sum(1, dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    table = {"contributions": arrays.pop("contributions")}
    encoded = {name: arrays.pop(name) for name in _term_arrays(arrays)}
    digest = _digest([*table.values(), *encoded.values()])
    # One row a term: α has one number, the logits of a term alone have C.
    terms = {name: _decoded(entry).reshape(starts[-1], -1) for name, entry in encoded.items()}
    edges = _edges(starts, sum(rows.itemsize * rows.shape[1] for rows in terms.values()))
    parts: dict[str, dict[str, Any]] = {f"{digest}-table.json": table}
    for number, (low, high) in enumerate(pairwise(edges)):
        parts[f"{digest}-{number}.json"] = {
            name: _encoded(rows[starts[low] : starts[high]]) for name, rows in terms.items()
        }
    described = {"folder": parts_folder(page).name, "digest": digest, "edges": edges}
    return {**content, "arrays": arrays, "parts": described}, parts


def write_parts(parts: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write every part whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(json.dumps(part, separators=(",", ":")), encoding="ascii")


def forget_parts(folder: Path, kept: Mapping[str, Any]) -> None:
    """Remove parts of a page that is no more; files that are no parts stay."""
    for path in listed_parts(folder):
        if path.name not in kept:
            path.unlink(missing_ok=True)
    if not kept and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def listed_parts(folder: Path) -> Iterator[Path]:
    """The parts that are there."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if PART_NAME.fullmatch(path.name))


def _term_arrays(arrays: Mapping[str, Any]) -> list[str]:
    """Arrays with an entry, or a row, for every term."""
    per_term = re.compile(r"rows|coefficients|alone_logits|repair_\d+_coefficients")
    return [name for name in arrays if per_term.fullmatch(name)]


def _edges(starts: np.ndarray[Any, Any], each: int) -> list[int]:
    """Node ranges whose terms take about PART_BYTES; one node is never cut."""
    room = max(1, PART_BYTES // max(1, each))
    edges = [0]
    while edges[-1] < len(starts) - 1:
        fits = int(np.searchsorted(starts, starts[edges[-1]] + room, side="right")) - 1
        edges.append(max(edges[-1] + 1, fits))
    return edges


def _decoded(entry: Mapping[str, str]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(entry["data"]), np.dtype("<" + entry["type"]))


def _encoded(values: np.ndarray[Any, Any]) -> dict[str, str]:
    """In the type they have: a part's small numbers stay as wide as the whole's."""
    data = base64.b64encode(values.tobytes()).decode("ascii")
    return {"type": values.dtype.str.lstrip("<|"), "data": data}


def _digest(entries: Sequence[Mapping[str, str]]) -> str:
    """Twelve letters that stand for the parts, so that no page reads another one's."""
    made = hashlib.sha256()
    for entry in entries:
        made.update(entry["data"].encode("ascii"))
    return made.hexdigest()[:12]
