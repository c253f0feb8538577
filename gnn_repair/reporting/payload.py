"""The page's data: a run's words and arrays, small enough to be mailed and safe inside a script.

Arrays are base64 of little-endian numbers. What the overview counts takes some bytes per node and
is there for all of them; what the explorer needs of a node (terms, contributions, logits) takes
thousands, so that in a large single file a sample of the nodes can be opened. With files beside
the page every node can be opened: ``report.html`` keeps what the overview and the list need, and
``report.parts/`` holds the contribution table and the terms of a range of nodes each. A browser
reads such files only from a server, which ``gnn-repair view`` is.
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
"""Bytes of everything that is there for single nodes: 14 MB in base64, so that a page of 50,000
nodes of a graph of a million stays below 20 MB with answers, labels, edges and scripts."""
LARGEST = 8
"""A node whose terms take more than this part of all bytes is shown without them: one hub of a
large graph would leave no room for the others."""
SINGLE_BYTES = 20 * 10**6
"""Above this a page opens slowly and mails badly."""
PART_BYTES = 4 * 10**6
"""Of one file of terms: a blink from a local server."""
STORED_BYTES = 2**30
"""Terms beside a page at most; further ones are left out from the end of the list."""
PART_NAME = re.compile(r"[0-9a-f]{12}-(table|\d+)\.json")
PER_TERM = re.compile(r"rows|coefficients|alone_logits|repair_\d+_coefficients")
"""Arrays with an entry, or a row, for every term."""
LARGEST_LOGIT = 1e37
"""A page holds numbers as float32, which ends at 3e38, and draws products of two of them."""
PARTS = ("the training nodes", "the validation nodes", "no part", "the test nodes")
"""Where a node can belong in a run; the page says so where that is not the last."""
SHARED = ("labels", "edge_sources", "edge_recipients")
"""Arrays that are the same for all runs of a graph; the page's own run holds them."""


# Arrays and text ----------------------------------------------------------------------------------


def narrow(values: NDArray[Any], *, wide: bool = False) -> NDArray[Any]:
    """Integers in the narrowest type that holds them, floats as float32 (float64 if ``wide``)."""
    kind = np.dtype("f8" if wide else "f4")
    if values.dtype.kind != "f":
        ends = (int(values.min()), int(values.max())) if values.size else (0, 0)
        kind = np.result_type(*(np.min_scalar_type(end) for end in ends))
    return np.ascontiguousarray(values, dtype=kind.newbyteorder("<"))


def sparse(name: str, rows: int, row: Integers, column: Integers, values: NDArray[Any]) -> Arrays:
    """Rows of which few entries count: how many in each, their columns and their values."""
    lengths = np.bincount(row, minlength=rows)
    named = {"lengths": lengths, "columns": column, "values": values}
    return {f"{name}_{part}": narrow(numbers) for part, numbers in named.items()}


def entries(name: str, values: NDArray[Any], kept: Flags) -> Arrays:
    """The same of a matrix, of which these entries count."""
    row, column = np.nonzero(kept)
    return sparse(name, len(kept), row, column, values[kept])


def as_json(content: Any) -> str:
    """JSON in which arrays are base64 of their numbers."""
    return json.dumps(
        content, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_encoded
    )


def _encoded(values: NDArray[Any]) -> dict[str, str]:
    data = base64.b64encode(values.tobytes()).decode("ascii")
    return {"type": values.dtype.str.lstrip("<|"), "data": data}


def script_safe(content: Any) -> str:
    """JSON in which no text can end the script block or be read as markup."""
    text = as_json(content)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# A run --------------------------------------------------------------------------------------------


def run_payload(
    evidence: Evidence, class_names: Any = None, node_names: Any = None, limit: int | None = None
) -> tuple[dict[str, Any], Arrays]:
    """The run's words and its arrays; nodes that can be opened, within ``limit``, come first.

    ``noun`` and ``nouns`` are what recipients are called.
    """
    _check_drawable(evidence)
    opened = explored(evidence, limit)
    part = evidence if len(opened) == len(evidence.nodes) else evidence.cut(opened)
    kept = within_budget(part, limit)
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
        "left_out": int((~kept).sum()),
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
        said = {"words": part.head.words, "replayed": part.head.replayed}
        words["head"] = {**said, "verdicts": list(VERDICTS), "reasons": reasons}
    return words, _of_opened(part, kept) | _of_everyone(evidence, opened)


def _check_drawable(evidence: Evidence) -> None:
    """Logits are small enough to be drawn."""
    named = ("frozen_logits", "contributions", "fixed_logits")
    logits = {name.replace("_", " "): getattr(evidence, name) for name in named}
    logits |= {f"the logits of {item.title}": item.logits for item in evidence.corrections}
    for name, values in logits.items():
        most = float(np.abs(values).max()) if values.size else 0.0
        if most > LARGEST_LOGIT:
            raise InputError(
                f"{name} reach {most:.1e}, and a page draws up to {LARGEST_LOGIT:.0e}; divide the "
                "model's output by a constant, which changes no prediction"
            )


def _node_names(evidence: Evidence, given: Sequence[str] | None) -> list[str] | None:
    """The nodes' names and, behind them, those of senders of other kinds; None: by number.

    Of graphs these alone: the page numbers their nodes itself.
    """
    nodes = len(evidence.labels) - len(evidence.senders)
    if evidence.graph_starts is not None:
        nodes = len(evidence.graph_starts) - 1
    if given is not None:
        return [*check_names(given, nodes, "node"), *evidence.senders]
    return [*map(str, range(nodes)), *evidence.senders] if evidence.senders else None


def _of_everyone(evidence: Evidence, opened: Integers) -> Arrays:
    """What the overview counts, of all nodes: those that can be opened, then the others."""
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
        # An infinite bound is none, which NaN says.
        bound = np.where(np.isfinite(head.bound), head.bound, np.nan)
        arrays["head_bound"] = narrow(bound[order], wide=True)
    if evidence.classes is not None:
        arrays["chance"] = narrow(evidence.classes.chance[order])
        if evidence.head is not None:  # some classes may be undecided
            arrays["chance_possible"] = narrow(evidence.classes.possible[order])
    return arrays


def _of_opened(evidence: Evidence, kept: Flags) -> Arrays:
    """What the explorer needs of every node that can be opened, and what all of them share."""
    groups, n = len(evidence.groups), len(evidence.nodes)
    lengths = np.diff(evidence.segments).reshape(n, groups) * kept[:, None]
    shown = np.repeat(kept, np.diff(evidence.starts))
    # The table of contributions keeps only the rows that are still pointed at.
    used, rows = np.unique(evidence.rows[shown], return_inverse=True)
    plain: Arrays = {
        "labels": evidence.labels,
        "predictions": evidence.predictions,
        "frozen_logits": evidence.frozen_logits,
        "fixed_logits": evidence.fixed_logits,
        "kept": kept.astype(np.uint8),
        "lengths": lengths,
        "rows": rows,
        "coefficients": evidence.coefficients[shown],
        "contributions": evidence.contributions[used],
        "sources": evidence.sources[used],
    }
    for j, item in enumerate(evidence.corrections):
        plain[f"repair_{j}_logits"] = item.logits
        if item.coefficients is not None:
            plain[f"repair_{j}_coefficients"] = item.coefficients[shown]
    if evidence.head is not None:
        plain["oracle_logits"] = evidence.head.oracle_logits
        plain["alone_logits"] = evidence.head.alone_logits[shown]
    if evidence.graph_starts is not None:
        plain["graph_starts"] = evidence.graph_starts
    if evidence.edges is not None:
        plain["edge_sources"], plain["edge_recipients"] = evidence.edges
    return {
        **{name: narrow(values) for name, values in plain.items()},
        **entries("rival_weights", evidence.rival_weights, evidence.rival_weights > 0),
        **_term_arrays("witness", evidence, kept, evidence.witness, evidence.witness > 0),
        **_class_arrays(evidence, kept),
    }


def _class_arrays(evidence: Evidence, kept: Flags) -> Arrays:
    """Which classes could win at each node by what change, and λ of the true class's smallest."""
    found = evidence.classes
    if found is None:
        return {}
    # A class that was asked about and cannot win is left out, as is the predicted one.
    could = found.reachable.copy()
    could[np.arange(len(could)), evidence.predictions[evidence.nodes]] = False
    share = np.where(np.isfinite(found.share), found.share, np.nan)
    asked = np.asarray(found.decided.any(axis=1))
    moved = found.nearest != evidence.coefficients
    return {
        **entries("class_shares", share, could),
        "asked": narrow(np.asarray(asked, np.uint8)),
        "class_open": narrow(np.where(asked, (~found.decided).sum(1), 0)),
        **_term_arrays("nearest", evidence, kept, found.nearest, moved),
    }


def _term_arrays(
    name: str, evidence: Evidence, shown: Flags, values: NDArray[Any], kept: Flags
) -> Arrays:
    """Few of each node's terms, like :func:`sparse`; a term is counted within its node."""
    terms = np.flatnonzero(kept)
    owner = np.searchsorted(evidence.starts, terms, side="right") - 1
    terms, owner = terms[shown[owner]], owner[shown[owner]]
    place = terms - evidence.starts[owner]
    return sparse(name, len(evidence.nodes), owner, place, values[terms])


# Which nodes can be opened ------------------------------------------------------------------------


def within_budget(evidence: Evidence, limit: int | None) -> Flags:
    """[n]: nodes whose terms are few enough to be shown."""
    terms = np.diff(evidence.starts) * _bytes_a_term(evidence)
    used: Flags = terms <= (limit or EXPLORED_BYTES) // LARGEST
    return used


def explored(evidence: Evidence, limit: int | None) -> Integers:
    """Places in the list, ascending, of the nodes that can be opened; all where they fit.

    Where they do not, any number of them is spread evenly over the list, which is sorted by right
    and wrong and by γ: places are taken in the order of their reversed bits.
    """
    n = len(evidence.nodes)
    order = np.argsort(_reversed_bits(n), kind="stable")
    kept = within_budget(evidence, limit)
    used = np.cumsum(_bytes(evidence, order, kept)[order])
    count = int(np.searchsorted(used, limit or EXPLORED_BYTES, side="right"))
    return np.sort(order[: max(1, count)])


def _reversed_bits(n: int) -> Integers:
    numbers, out = np.arange(n), np.zeros(n, np.int64)
    for _ in range(max(1, (n - 1).bit_length())):
        out = 2 * out + numbers % 2
        numbers = numbers // 2
    return out


def _bytes_a_term(evidence: Evidence) -> int:
    """Row, α, the λ of every repair that reweights; with a head the logits of the term alone."""
    reweighted = sum(item.coefficients is not None for item in evidence.corrections)
    each = (2 if len(evidence.sources) < 2**16 else 4) + 4 * (1 + reweighted)
    return each + (4 * evidence.num_classes if evidence.head is not None else 0)


def _bytes(evidence: Evidence, order: Integers, kept: Flags) -> Integers:
    """[n]: what each node adds to the file when they are added in this order."""
    n, classes = len(evidence.nodes), evidence.num_classes
    logits = 3 + len(evidence.corrections) + (evidence.head is not None)
    lengths = np.diff(evidence.starts) * kept
    # A row of the table is written once, for the first node that points at it.
    turn = np.empty(n, np.int64)
    turn[order] = np.arange(n)
    owner = np.repeat(np.arange(n), np.diff(evidence.starts))
    first = np.full(len(evidence.sources), n)
    np.minimum.at(first, evidence.rows[kept[owner]], turn[owner][kept[owner]])
    rows = np.bincount(first, minlength=n + 1)[:n][turn]
    witness = np.bincount(owner[evidence.witness > 0], minlength=n) * kept
    total: Integers = (
        4 * classes * logits + lengths * _bytes_a_term(evidence) + rows * 4 * (classes + 1)
    ) + witness * 6
    return total


# Files beside the page ----------------------------------------------------------------------------


def parts_folder(page: Path) -> Path:
    """Where a page's parts lie."""
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
    key = digest.hexdigest()[:12]  # no page reads another one's parts
    edges = _edges(starts, sum(rows.nbytes for rows in terms.values()) // max(1, starts[-1]))
    parts: dict[str, dict[str, Any]] = {f"{key}-table.json": table}
    for number, (low, high) in enumerate(pairwise(edges)):
        cut = slice(starts[low], starts[high])
        parts[f"{key}-{number}.json"] = {name: rows[cut] for name, rows in terms.items()}
    described = {"folder": parts_folder(page).name, "digest": key, "edges": edges}
    return {**content, "arrays": arrays, "parts": described}, parts


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


def _edges(starts: np.ndarray[Any, Any], each: int) -> list[int]:
    """Node ranges whose terms take about PART_BYTES; one node is never cut."""
    room = max(1, PART_BYTES // max(1, each))
    edges = [0]
    while edges[-1] < len(starts) - 1:
        fits = int(np.searchsorted(starts, starts[edges[-1]] + room, side="right")) - 1
        edges.append(max(edges[-1] + 1, fits))
    return edges


# A server on this machine that knows a page's files and no others ---------------------------------


def needs_server(page: Path) -> bool:
    """Whether a page's terms lie in files beside it."""
    return any(listed_parts(parts_folder(page)))


class PageServer(ThreadingHTTPServer):
    """Serves one page at ``address`` until it is closed."""

    daemon_threads = True

    def __init__(self, page: Path, port: int = 0) -> None:
        if not page.is_file():
            raise InputError(f"{page} is no file; name a page that gnn-repair report wrote")
        super().__init__(("127.0.0.1", port), partial(_Handler, page))

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(SimpleHTTPRequestHandler):
    """Answers for the page itself and for its parts by name; nothing else is looked up."""

    def __init__(self, page: Path, *arguments: Any) -> None:
        self.page = page
        super().__init__(*arguments, directory=str(page.parent))

    def send_head(self) -> Any:
        # A foreign site that points its name at this machine is not answered.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        asked = unquote(urlsplit(self.path).path).removeprefix("/") or self.page.name
        folder, _, name = asked.rpartition("/")
        part = folder == parts_folder(self.page).name and PART_NAME.fullmatch(name)
        if host not in ("127.0.0.1", "localhost") or not (part or asked == self.page.name):
            self.send_error(404)
            return None
        self.path = f"/{quote(asked)}"
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet: the command has said where the page is."""


# Other runs, and a ladder's findings --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Beside:
    """Another run's evidence at the page's nodes."""

    evidence: Evidence
    parts: NDArray[np.int64] | None = None
    """[n]: what each of its nodes is for that run, as a place in PARTS; None: not known."""
    split: int | None = None


def beside_payload(
    others: Mapping[str, Beside | Evidence] | None, own: Evidence
) -> list[dict[str, Any]]:
    """What the page holds of the runs beside its own, by title."""
    named = {} if others is None else others
    check_type("beside", named, Mapping, "a mapping from titles to evidence")
    return [_one(str(title), other, own) for title, other in named.items()]


def _one(title: str, other: Any, own: Evidence) -> dict[str, Any]:
    other = Beside(other) if isinstance(other, Evidence) else other
    wanted = "what gnn_repair.reporting.gather returns"
    check_type(f"beside[{title!r}]", other, Beside, wanted)
    evidence = other.evidence
    if evidence.num_classes != own.num_classes or not np.array_equal(evidence.labels, own.labels):
        raise InputError(f"beside[{title!r}] has other labels; compare runs on the same graph")
    words, arrays = run_payload(evidence)
    words["split"] = other.split
    if other.parts is not None:
        words["parts"] = list(PARTS)
        arrays["node_parts"] = narrow(np.asarray(other.parts, np.int64))
    words = {name: value for name, value in words.items() if name not in ("classes", "names")}
    arrays = {name: values for name, values in arrays.items() if name not in SHARED}
    return {"title": title, "run": words, "arrays": arrays}


def lost_evidence(
    repairs: Mapping[str, RepairLike] | None, member: int, classes: int
) -> dict[str, Any] | None:
    """What the page shows of the first ladder among the repairs; None where there is none."""
    ladder: Any = next((r for r in (repairs or {}).values() if hasattr(r, "findings")), None)
    if ladder is None:
        return None
    # A ladder of one member speaks for whichever is shown, as other repairs do.
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
    bound = [rung_title(name) for name in ladder.candidates[1:] if not RUNGS[name].inductive]
    return {
        "rows": rows,
        "advice": list(findings.advice()),
        "chosen": rung_title(ladder.chosen[0]),
        "transductive": bound,
        "nodes": round(findings.overall()[0].nodes) if rows else 0,
    }
