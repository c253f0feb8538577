"""The page's data as JSON that is safe inside a script block: arrays as base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.reporting.evidence import Evidence
from gnn_repair.reporting.inputs import check_drawable, check_names
from gnn_repair.reporting.nouns import plural
from gnn_repair.reporting.sample import cut, explored, within_budget
from gnn_repair.reporting.tail_evidence import VERDICTS, TailEvidence
from gnn_repair.thresholds import ACTIVE, REACHABLE


def encode_array(values: NDArray[Any], *, wide: bool = False) -> dict[str, str]:
    """Integers in the narrowest type that holds them, floats as float32 (float64 if ``wide``)."""
    if values.dtype.kind == "f":
        kind = "f8" if wide else "f4"
    else:
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        kind = next(
            name
            for name, least, most in _INTEGERS
            if low >= least and high <= most and (least == 0 or low < 0)
        )
    data = np.ascontiguousarray(values.ravel(), dtype=np.dtype("<" + kind)).tobytes()
    return {"type": kind, "data": base64.b64encode(data).decode("ascii")}


_INTEGERS = (
    ("u1", 0, 2**8 - 1),
    ("i1", -(2**7), 2**7 - 1),
    ("u2", 0, 2**16 - 1),
    ("i2", -(2**15), 2**15 - 1),
    ("u4", 0, 2**32 - 1),
    ("i4", -(2**31), 2**31 - 1),
)


def script_safe(content: Any) -> str:
    """JSON in which no text can end the script block or be read as markup."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def run_payload(
    evidence: Evidence,
    *,
    class_names: Sequence[str] | None = None,
    node_names: Sequence[str] | None = None,
    selection: str = "nodes",
    dataset: str = "",
    backbone: str = "",
    split: int | None = None,
    limit: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's words and its arrays; nodes that can be opened, within ``limit``, come first.

    ``noun`` and ``nouns`` are what recipients are called.
    """
    check_drawable(
        frozen_logits=evidence.frozen_logits,
        contributions=evidence.contributions,
        fixed_logits=evidence.fixed_logits,
        **{f"the logits of {item.title}": item.logits for item in evidence.corrections},
    )
    opened = explored(evidence, limit)
    part = evidence if len(opened) == len(evidence.nodes) else cut(evidence, opened)
    kept = within_budget(part, limit)
    words = {
        "classes": _names(class_names, evidence.num_classes, "class"),
        "groups": list(evidence.groups),
        "names": _node_names(evidence, node_names),
        "noun": evidence.noun,
        "nouns": plural(evidence.noun),
        "recipients": len(evidence.labels) - len(evidence.senders),
        "selection": selection,
        "dataset": dataset,
        "backbone": backbone,
        "split": split,
        "unlabelled": evidence.unlabelled,
        "thresholds": {"reachable": REACHABLE, "active": ACTIVE},
        "explored": len(opened),
        "left_out": int((~kept).sum()),
        "tail": _tail_words(part),
        "repairs": [
            {"key": item.name, "title": item.title, "kind": item.kind}
            for item in evidence.corrections
        ],
    }
    arrays = _arrays(part, kept)
    return words, arrays if part is evidence else arrays | _of_everyone(evidence, opened)


def _node_names(evidence: Evidence, given: Sequence[str] | None) -> list[str] | None:
    """The nodes' names and, behind them, those of senders of other kinds; None: by number.

    Of graphs these alone: the page numbers their nodes itself.
    """
    pooled = evidence.pooled
    nodes = len(evidence.labels) - len(evidence.senders)
    nodes = nodes if pooled is None else len(pooled.starts) - 1
    if given is not None:
        return [*_names(given, nodes, "node"), *evidence.senders]
    return [*map(str, range(nodes)), *evidence.senders] if evidence.senders else None


def _names(names: Sequence[str] | None, size: int, kind: str) -> list[str]:
    return check_names(names, size, kind) or [f"class {index}" for index in range(size)]


def _of_everyone(evidence: Evidence, opened: NDArray[np.int64]) -> dict[str, Any]:
    """What the overview counts, of all nodes: those that can be opened, then the others."""
    closed = np.ones(len(evidence.nodes), bool)
    closed[opened] = False
    order = np.concatenate([opened, np.flatnonzero(closed)])
    names = ("nodes", "degree", "homophily", "support")
    encoded = {name: encode_array(getattr(evidence, name)[order]) for name in names}
    encoded["margins"] = encode_array(evidence.margin[order], wide=True)
    for j, item in enumerate(evidence.corrections):
        encoded[f"repair_{j}_predictions"] = encode_array(item.predictions[order])
    if evidence.tail is not None:
        encoded |= _tail_answers(evidence.tail, order)
    return encoded


def _arrays(evidence: Evidence, kept: NDArray[np.bool_]) -> dict[str, Any]:
    groups, n = len(evidence.groups), len(evidence.nodes)
    lengths = np.diff(evidence.segments).reshape(n, groups) * kept[:, None]
    shown = np.repeat(kept, np.diff(evidence.starts))
    terms, values, counts = _witness(evidence, kept)
    # The table of contributions keeps only the rows that are still pointed at.
    used, rows = np.unique(evidence.rows[shown], return_inverse=True)
    arrays: Mapping[str, NDArray[Any]] = {
        "nodes": evidence.nodes,
        "labels": evidence.labels,
        "predictions": evidence.predictions,
        "degree": evidence.degree,
        "homophily": evidence.homophily,
        "frozen_logits": evidence.frozen_logits,
        "fixed_logits": evidence.fixed_logits,
        "kept": kept.astype(np.uint8),
        "lengths": lengths,
        "rows": rows,
        "coefficients": evidence.coefficients[shown],
        "contributions": evidence.contributions[used],
        "sources": evidence.sources[used],
        "rival_weights": evidence.rival_weights,
        "support": evidence.support,
        "witness_lengths": counts,
        "witness_terms": terms,
        "witness_coefficients": values,
    }
    encoded = {name: encode_array(values) for name, values in arrays.items()}
    # γ decides at a threshold that float32 would blur.
    encoded["margins"] = encode_array(evidence.margin, wide=True)
    for j, item in enumerate(evidence.corrections):
        encoded[f"repair_{j}_logits"] = encode_array(item.logits)
        encoded[f"repair_{j}_predictions"] = encode_array(item.predictions)
        if item.coefficients is not None:
            encoded[f"repair_{j}_coefficients"] = encode_array(item.coefficients[shown])
    if evidence.tail is not None:
        encoded |= _tail_arrays(evidence.tail, shown)
    if evidence.pooled is not None:
        encoded["graph_starts"] = encode_array(evidence.pooled.starts)
    if evidence.edges is not None:
        encoded["edge_sources"] = encode_array(evidence.edges[0])
        encoded["edge_recipients"] = encode_array(evidence.edges[1])
    return encoded


def _tail_words(evidence: Evidence) -> dict[str, Any] | None:
    """What a page says about a tail; None: there is none."""
    tail = evidence.tail
    if tail is None:
        return None
    reasons = {str(i): reason for i, reason in enumerate(tail.reasons) if reason}
    return {
        "words": tail.words,
        "scope": tail.scope,
        "replayed": tail.replayed,
        "verdicts": list(VERDICTS),
        "reasons": reasons,
    }


def _tail_arrays(tail: TailEvidence, shown: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        **_tail_answers(tail, np.arange(len(tail.verdict))),
        "oracle_logits": encode_array(tail.oracle_logits),
        "alone_logits": encode_array(tail.alone_logits[shown]),
    }


def _tail_answers(tail: TailEvidence, order: NDArray[np.int64]) -> dict[str, Any]:
    """Bounds in float64, like margins; an infinite one is none, which NaN says."""
    bound = np.where(np.isfinite(tail.bound), tail.bound, np.nan)
    return {
        "tail_verdict": encode_array(tail.verdict[order]),
        "tail_margin": encode_array(tail.margin[order], wide=True),
        "tail_bound": encode_array(bound[order], wide=True),
    }


def _witness(
    evidence: Evidence, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """The witness as (term within its node, λ, count per node)."""
    entries = np.flatnonzero(evidence.witness > 0)
    owner = np.searchsorted(evidence.starts, entries, side="right") - 1
    entries, owner = entries[kept[owner]], owner[kept[owner]]
    counts = np.bincount(owner, minlength=len(evidence.nodes))
    return entries - evidence.starts[owner], evidence.witness[entries], counts
