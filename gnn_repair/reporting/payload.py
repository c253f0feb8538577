"""The page's data: a run's words and arrays, small enough to be mailed and safe inside a script.

Arrays are base64 of little-endian numbers. The overview needs a few bytes per node and counts all
nodes; the explorer needs thousands of bytes per node (terms, contributions, logits), so that in a
large single file only a sample of the nodes can be opened. With files beside the page every node
can be opened: ``report.html`` has the data of the overview and the list, ``report.parts/`` the
contribution table and the terms of ranges of nodes. Browsers read such files only from a server,
such as ``gnn-repair view``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gnn_repair.budget import check_type
from gnn_repair.errors import InputError
from gnn_repair.methods import RUNGS, rung_title
from gnn_repair.published import ACTIVE, REACHABLE, plural
from gnn_repair.reporting.evidence import (
    VERDICTS,
    Evidence,
    Flags,
    Integers,
    RepairLike,
    check_names,
)

Arrays = dict[str, NDArray[Any]]
EXPLORED_BYTES = 10 * 2**20
"""Bytes of all data of single nodes: 14 MB in base64, so that a page of 50,000 nodes of a graph of
a million stays below 20 MB with answers, labels, edges and scripts."""
LARGEST = 8
"""A node whose terms take more than 1 / LARGEST of all bytes is shown without them: one hub of a
large graph would leave no room for other nodes."""
SINGLE_BYTES = 20 * 10**6
"""Above this size a page opens slowly and is hard to mail."""
PART_BYTES = 4 * 10**6
"""Bytes of one file of terms, which a local server sends at once."""
STORED_BYTES = 2**30
"""Most bytes of terms beside a page; further ones are dropped from the end of the list."""
PART_NAME = re.compile(r"[0-9a-f]{12}-(table|\d+)\.json")
PER_TERM = re.compile(r"rows|coefficients|alone_logits|repair_\d+_coefficients")
"""Arrays with an entry, or a row, per term."""
LARGEST_LOGIT = 1e37
"""A page stores float32 (at most 3e38) and draws products of two numbers."""
PARTS = ("the training nodes", "the validation nodes", "no part", "the test nodes")
"""Parts of a run that a node can be in; the page says so where it is not in the last."""
SHARED = ("labels", "edge_sources", "edge_recipients")
"""Arrays that all runs of a graph share; only the page's main run holds them."""


# Arrays and text ----------------------------------------------------------------------------------


def narrow(values: NDArray[Any], *, wide: bool = False) -> NDArray[Any]:
    """Integers in the narrowest type that holds them, floats as float32 (float64 if ``wide``)."""
    kind = np.dtype("f8" if wide else "f4")
    if values.dtype.kind != "f":
        ends = (int(values.min()), int(values.max())) if values.size else (0, 0)
        kind = np.result_type(*(np.min_scalar_type(end) for end in ends))
    return np.ascontiguousarray(values, dtype=kind.newbyteorder("<"))


def sparse(name: str, rows: int, row: Integers, column: Integers, values: NDArray[Any]) -> Arrays:
    """A sparse matrix, row by row: numbers of entries per row, their columns and their values."""
    lengths = np.bincount(row, minlength=rows)
    arrays = {"lengths": lengths, "columns": column, "values": values}
    return {f"{name}_{part}": narrow(numbers) for part, numbers in arrays.items()}


def entries(name: str, values: NDArray[Any], mask: Flags) -> Arrays:
    """The entries of a matrix where ``mask`` holds, as by :func:`sparse`."""
    row, column = np.nonzero(mask)
    return sparse(name, len(mask), row, column, values[mask])


def as_json(content: Any) -> str:
    """JSON in which arrays are base64 of their numbers."""

    def encode(values: NDArray[Any]) -> dict[str, str]:
        data = base64.b64encode(values.tobytes()).decode("ascii")
        return {"type": values.dtype.str.lstrip("<|"), "data": data}

    return json.dumps(
        content, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=encode
    )


def script_safe(content: Any) -> str:
    """JSON in which no text can end the script block or be read as markup."""
    text = as_json(content)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# A run --------------------------------------------------------------------------------------------


def run_payload(
    evidence: Evidence, class_names: Any = None, node_names: Any = None, limit: int | None = None
) -> tuple[dict[str, Any], Arrays]:
    """The run's words and its arrays; nodes that can be opened, within ``limit``, come first.

    ``noun`` and ``nouns`` are the words for recipients.
    """
    _check_drawable(evidence)
    opened = explored(evidence, limit)
    part = evidence if len(opened) == len(evidence.nodes) else evidence.cut(opened)
    has_terms = within_budget(part, limit)
    words: dict[str, Any] = {
        "classes": check_names(class_names, evidence.num_classes, "class"),
        "groups": list(evidence.groups),
        "names": _node_names(evidence, node_names),
        "noun": evidence.noun,
        "nouns": plural(evidence.noun),
        "recipients": len(evidence.labels) - len(evidence.senders),
        "unlabelled": evidence.unlabelled,
        "thresholds": {"reachable": REACHABLE, "active": ACTIVE},
        "explored": len(opened),
        "left_out": int((~has_terms).sum()),
        "head": None,
        "scope": evidence.scope[0],
        "held": evidence.scope[1],
        "repairs": [
            {"key": item.name, "title": item.title, "kind": item.kind}
            for item in evidence.corrections
        ],
    }
    if part.head is not None:
        reasons = {str(i): reason for i, reason in enumerate(part.head.reasons) if reason}
        words["head"] = {
            "words": part.head.words,
            "replayed": part.head.replayed,
            "verdicts": list(VERDICTS),
            "reasons": reasons,
        }
    return words, _explorer_arrays(part, has_terms) | _overview_arrays(evidence, opened)


def _check_drawable(evidence: Evidence) -> None:
    """Reject logits that are too large to be drawn."""
    fields = ("frozen_logits", "contributions", "fixed_logits")
    logits = {name.replace("_", " "): getattr(evidence, name) for name in fields}
    logits |= {f"the logits of {item.title}": item.logits for item in evidence.corrections}
    for name, values in logits.items():
        most = float(np.abs(values).max()) if values.size else 0.0
        if most > LARGEST_LOGIT:
            raise InputError(
                f"{name} reach {most:.1e}, and a page draws up to {LARGEST_LOGIT:.0e}; divide the "
                "model's output by a constant, which changes no prediction"
            )


def _node_names(evidence: Evidence, names: Sequence[str] | None) -> list[str] | None:
    """The names of nodes (or graphs), then of senders of other types; None: numbers suffice.

    The page itself numbers the nodes of graphs.
    """
    nodes = len(evidence.labels) - len(evidence.senders)
    if evidence.graph_starts is not None:
        nodes = len(evidence.graph_starts) - 1
    if names is not None:
        return [*check_names(names, nodes, "node"), *evidence.senders]
    return [*map(str, range(nodes)), *evidence.senders] if evidence.senders else None


def _overview_arrays(evidence: Evidence, opened: Integers) -> Arrays:
    """The overview's data of all nodes: first those that can be opened, then the rest."""
    closed = np.ones(len(evidence.nodes), bool)
    closed[opened] = False
    order = np.concatenate([opened, np.flatnonzero(closed)])
    names = ("nodes", "degree", "homophily", "support")
    arrays = {name: narrow(getattr(evidence, name)[order]) for name in names}
    # γ decides at a threshold that float32 would blur.
    arrays["margins"] = narrow(evidence.margin[order], wide=True)
    for j, item in enumerate(evidence.corrections):
        arrays[f"repair_{j}_predictions"] = narrow(item.predictions[order])
    if (head := evidence.head) is not None:
        arrays["head_verdict"] = narrow(head.verdict[order])
        arrays["head_margin"] = narrow(head.margin[order], wide=True)
        # NaN stands for no bound.
        bound = np.where(np.isfinite(head.bound), head.bound, np.nan)
        arrays["head_bound"] = narrow(bound[order], wide=True)
    if evidence.classes is not None:
        arrays["chance"] = narrow(evidence.classes.chance[order])
        if evidence.head is not None:  # some classes may be undecided
            arrays["chance_possible"] = narrow(evidence.classes.possible[order])
    return arrays


def _explorer_arrays(evidence: Evidence, has_terms: Flags) -> Arrays:
    """The explorer's data of every node that can be opened, and the data that they share."""
    groups, n = len(evidence.groups), len(evidence.nodes)
    lengths = np.diff(evidence.segments).reshape(n, groups) * has_terms[:, None]
    shown = np.repeat(has_terms, np.diff(evidence.starts))
    # The table of contributions keeps only the rows that terms still refer to.
    table_rows, rows = np.unique(evidence.rows[shown], return_inverse=True)
    arrays: Arrays = {
        "labels": evidence.labels,
        "predictions": evidence.predictions,
        "frozen_logits": evidence.frozen_logits,
        "fixed_logits": evidence.fixed_logits,
        "kept": has_terms.astype(np.uint8),
        "lengths": lengths,
        "rows": rows,
        "coefficients": evidence.coefficients[shown],
        "contributions": evidence.contributions[table_rows],
        "sources": evidence.sources[table_rows],
    }
    for j, item in enumerate(evidence.corrections):
        arrays[f"repair_{j}_logits"] = item.logits
        if item.coefficients is not None:
            arrays[f"repair_{j}_coefficients"] = item.coefficients[shown]
    if evidence.head is not None:
        arrays["oracle_logits"] = evidence.head.oracle_logits
        arrays["alone_logits"] = evidence.head.alone_logits[shown]
    if evidence.graph_starts is not None:
        arrays["graph_starts"] = evidence.graph_starts
    if evidence.edges is not None:
        arrays["edge_sources"], arrays["edge_recipients"] = evidence.edges

    def sparse_terms(name: str, values: NDArray[Any], mask: Flags) -> Arrays:
        terms = np.flatnonzero(mask & shown)
        node = np.searchsorted(evidence.starts, terms, side="right") - 1
        return sparse(name, n, node, terms - evidence.starts[node], values[terms])

    arrays = {name: narrow(values) for name, values in arrays.items()}
    arrays |= entries("rival_weights", evidence.rival_weights, evidence.rival_weights > 0)
    arrays |= sparse_terms("witness", evidence.witness, evidence.witness > 0)
    if (classes := evidence.classes) is not None:
        # Other classes than the predicted one that could win, by what change.
        could_win = classes.reachable.copy()
        could_win[np.arange(n), evidence.predictions[evidence.nodes]] = False
        share = np.where(np.isfinite(classes.share), classes.share, np.nan)
        answered = np.asarray(classes.decided.any(axis=1))
        changed = classes.nearest != evidence.coefficients
        arrays |= entries("class_shares", share, could_win)
        arrays["asked"] = narrow(np.asarray(answered, np.uint8))
        arrays["class_open"] = narrow(np.where(answered, (~classes.decided).sum(1), 0))
        arrays |= sparse_terms("nearest", classes.nearest, changed)
    return arrays


# Which nodes can be opened ------------------------------------------------------------------------


def within_budget(evidence: Evidence, limit: int | None) -> Flags:
    """[n]: nodes whose terms are few enough to be shown."""
    size = np.diff(evidence.starts) * _bytes_per_term(evidence)
    return np.asarray(size <= (limit or EXPLORED_BYTES) // LARGEST)


def explored(evidence: Evidence, limit: int | None) -> Integers:
    """Places in the list, ascending, of the nodes that can be opened; all where they fit.

    Otherwise a sample spread evenly over the list, which is sorted by right and wrong and by γ:
    places are added in the order of their reversed bits.
    """
    n = len(evidence.nodes)
    numbers, reversed_bits = np.arange(n), np.zeros(n, np.int64)
    for _ in range(max(1, (n - 1).bit_length())):
        reversed_bits = 2 * reversed_bits + numbers % 2
        numbers = numbers // 2
    order = np.argsort(reversed_bits, kind="stable")
    sizes = _bytes_per_node(evidence, order, within_budget(evidence, limit))
    total = np.cumsum(sizes[order])
    count = int(np.searchsorted(total, limit or EXPLORED_BYTES, side="right"))
    return np.sort(order[: max(1, count)])


def _bytes_per_term(evidence: Evidence) -> int:
    """Row, α, the λ of every repair that reweights; with a head the logits of the term alone."""
    reweighted = sum(item.coefficients is not None for item in evidence.corrections)
    size = (2 if len(evidence.sources) < 2**16 else 4) + 4 * (1 + reweighted)
    return size + (4 * evidence.num_classes if evidence.head is not None else 0)


def _bytes_per_node(evidence: Evidence, order: Integers, has_terms: Flags) -> Integers:
    """[n]: the bytes that each node adds to the file when nodes are added in this order."""
    n, classes = len(evidence.nodes), evidence.num_classes
    logits = 3 + len(evidence.corrections) + (evidence.head is not None)
    lengths = np.diff(evidence.starts) * has_terms
    # A row of the table is written once, for the first node with a term that refers to it.
    turn = np.empty(n, np.int64)
    turn[order] = np.arange(n)
    node = np.repeat(np.arange(n), np.diff(evidence.starts))
    first = np.full(len(evidence.sources), n)
    shown = has_terms[node]
    np.minimum.at(first, evidence.rows[shown], turn[node[shown]])
    rows = np.bincount(first, minlength=n + 1)[:n][turn]
    witness = np.bincount(node[evidence.witness > 0], minlength=n) * has_terms
    sizes = 4 * classes * logits + lengths * _bytes_per_term(evidence)
    return np.asarray(sizes + rows * 4 * (classes + 1) + witness * 6)


# Files beside the page ----------------------------------------------------------------------------


def parts_folder(page: Path) -> Path:
    """The folder of a page's parts."""
    return page.with_suffix(".parts")


def split_content(
    content: Mapping[str, Any], page: Path
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The page's content without its terms, and the parts by file name."""
    arrays = dict(content["arrays"])
    lengths = arrays["lengths"].reshape(len(arrays["kept"]), -1)
    starts = np.append(0, np.cumsum(lengths.sum(1, dtype=np.int64)))
    table = {"contributions": arrays.pop("contributions")}
    terms = {name: arrays.pop(name) for name in list(arrays) if PER_TERM.fullmatch(name)}
    digest = hashlib.sha256(b"".join(a.tobytes() for a in (*table.values(), *terms.values())))
    key = digest.hexdigest()[:12]  # so that no page reads another page's parts
    # Ranges of nodes whose terms take about PART_BYTES; one node is never split.
    size = max(1, sum(rows.nbytes for rows in terms.values()) // max(1, starts[-1]))
    limit = max(1, PART_BYTES // size)
    edges = [0]
    while edges[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[edges[-1]] + limit, side="right")) - 1
        edges.append(max(edges[-1] + 1, end))
    parts: dict[str, dict[str, Any]] = {f"{key}-table.json": table}
    for number, (low, high) in enumerate(pairwise(edges)):
        terms_range = slice(starts[low], starts[high])
        parts[f"{key}-{number}.json"] = {name: rows[terms_range] for name, rows in terms.items()}
    description = {"folder": parts_folder(page).name, "digest": key, "edges": edges}
    return {**content, "arrays": arrays, "parts": description}, parts


def forget_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Remove parts of earlier pages than the one with these parts; other files stay."""
    for path in find_parts(folder):
        if path.name not in parts:
            path.unlink(missing_ok=True)
    if not parts and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def find_parts(folder: Path) -> Iterator[Path]:
    """The files of parts in a folder, if it exists."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if PART_NAME.fullmatch(path.name))


# A server on this machine that serves a page's files only -----------------------------------------


def needs_server(page: Path) -> bool:
    """Whether a page's terms lie in files beside it."""
    return any(find_parts(parts_folder(page)))


class PageServer(ThreadingHTTPServer):
    """Serves one page at ``address`` until it is closed."""

    daemon_threads = True

    def __init__(self, page: Path, port: int = 0) -> None:
        if not page.is_file():
            raise InputError(f"{page} is no file; name a page that gnn-repair report wrote")
        super().__init__(("127.0.0.1", port), partial(_Handler, page))

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(SimpleHTTPRequestHandler):
    """Serves the page and its parts by name; every other path is an error 404."""

    def __init__(self, page: Path, *arguments: Any) -> None:
        self.page = page
        super().__init__(*arguments, directory=str(page.parent))

    def send_head(self) -> Any:
        # A foreign site whose name resolves to this machine gets no answer.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        path = unquote(urlsplit(self.path).path).removeprefix("/") or self.page.name
        folder, _, name = path.rpartition("/")
        is_part = folder == parts_folder(self.page).name and PART_NAME.fullmatch(name)
        if host not in ("127.0.0.1", "localhost") or not (is_part or path == self.page.name):
            self.send_error(404)
            return None
        self.path = f"/{quote(path)}"
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the command prints the page's address."""


# Other runs, and a ladder's findings --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Beside:
    """Another run's evidence at the page's nodes."""

    evidence: Evidence
    parts: NDArray[np.int64] | None = None
    """[n]: the part of each node in that run, as a place in PARTS; None: unknown."""
    split: int | None = None


def beside_payload(
    runs: Mapping[str, Beside | Evidence] | None, shown: Evidence
) -> list[dict[str, Any]]:
    """The page's data of the runs beside the shown one, by title."""
    runs = {} if runs is None else runs
    check_type("beside", runs, Mapping, "a mapping from titles to evidence")
    payload = []
    for title, run in runs.items():
        run = Beside(run) if isinstance(run, Evidence) else run
        hint = "what gnn_repair.reporting.gather returns"
        check_type(f"beside[{str(title)!r}]", run, Beside, hint)
        same_size = run.evidence.num_classes == shown.num_classes
        if not same_size or not np.array_equal(run.evidence.labels, shown.labels):
            raise InputError(
                f"beside[{str(title)!r}] has other labels; compare runs on the same graph"
            )
        words, arrays = run_payload(run.evidence)
        words["split"] = run.split
        if run.parts is not None:
            words["parts"] = list(PARTS)
            arrays["node_parts"] = narrow(np.asarray(run.parts, np.int64))
        words = {name: value for name, value in words.items() if name not in ("classes", "names")}
        arrays = {name: values for name, values in arrays.items() if name not in SHARED}
        payload.append({"title": str(title), "run": words, "arrays": arrays})
    return payload


def lost_evidence(
    repairs: Mapping[str, RepairLike] | None, member: int, classes: int
) -> dict[str, Any] | None:
    """The page's data of the first ladder among the repairs; None where there is none."""
    ladder: Any = next((r for r in (repairs or {}).values() if hasattr(r, "findings")), None)
    if ladder is None:
        return None
    # A ladder of one member is shown for every member, as other repairs are.
    ladder = ladder.member(member if ladder.num_members > 1 else 0)
    findings = ladder.findings()
    gains = {(row.rung, row.label): row.gain for row in findings.rows}
    rows = [
        {
            "rung": rung_title(row.rung),
            "above": rung_title(row.above),
            "words": str(row),
            **{name: getattr(row, name) for name in ("gain", "error", "clear")},
            "classes": [gains.get((row.rung, label)) for label in range(classes)],
        }
        for row in findings.overall()
    ]
    transductive = [rung_title(n) for n in ladder.candidates[1:] if not RUNGS[n].inductive]
    return {
        "rows": rows,
        "advice": list(findings.advice()),
        "chosen": rung_title(ladder.chosen[0]),
        "transductive": transductive,
        "nodes": round(findings.overall()[0].nodes) if rows else 0,
    }
