"""What is recorded of an exposure and of an answer, how it is written, and how two are compared.

A record is a tree of dicts, lists, numbers and texts. Nothing in it depends on the order of
groups, terms or table rows. Sentences stand in ``words``, which have files of their own: a change
of wording touches no number.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gnn_repair as gr

TOLERANCE = {"float64": 1e-9, "answers": 1e-7, "float32": 1e-5, "trained": 1e-3}
"""Relative, by the ``precision`` that a record states; ``answers`` are margins, bounds, ranges."""
ANSWERS = ("margin", "bound", "low", "high", "moved", "least")
DIGITS, FEWER = 11, 9
"""Significant digits, of answers fewer."""
ASKED = 2
"""Recipients of a model with a head that the oracle is asked about."""
MARKS = {"can": "+", "cannot": "-", "undecided": "?"}
NOISE = re.compile(r"\d(\.\d+)?e-1\d")
"""Numbers of a sentence that are rounding alone."""
ROUNDING = re.compile(r"\d(\.\d+)?e[-+]\d+")


def numbers(values: Any, digits: int = DIGITS) -> list[Any]:
    """An array as nested lists of rounded numbers."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind != "f":
        return array.tolist()
    rounded = [float(f"{x:.{digits}g}") + 0.0 for x in array.astype(np.float64).ravel().tolist()]
    return np.array(rounded, dtype=np.float64).reshape(array.shape).tolist()


# Exposures ----------------------------------------------------------------------------------------


def of_exposure(exposed: Any) -> dict[str, Any]:
    """What :func:`expose` or :func:`expose_links` gave, and the oracle's answers to it."""
    exposure = mixture_of(exposed)
    logits = exposure.logits()
    record: dict[str, Any] = {
        "precision": str(exposure.coefficients.dtype).split(".")[1],
        "tail": exposure.head is not None,
        "outputs": exposure.outputs,
        "recipients": " ".join(map(str, exposure.recipients.tolist())),
        "groups": groups_of(exposure),
        "logits": numbers(logits),
        "reweighted": numbers(exposure.logits(tilted(exposure))),
        "rebuilt": bool(
            torch.allclose(logits, exposure.frozen_logits[:, exposure.recipients], atol=1e-4)
        ),
        "oracle": answers_to(exposed),
        "words": words_of(exposed),
    }
    if not record["tail"]:
        record["root"] = exposure.root
    if exposure.graph_starts is not None:
        record["graph_starts"] = exposure.graph_starts.tolist()
    if exposure is not exposed:
        record |= {"links": exposed.links.tolist(), "vary": exposed.vary, "exact": exposed.exact}
    return record


def mixture_of(exposed: Any) -> Any:
    """The exposure itself, or that of links."""
    return exposed.mixture if hasattr(exposed, "links") else exposed


def places(exposure: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Recipient, group and sender of every term, [T] each."""
    lengths, groups = exposure.segments.diff(), len(exposure.groups)
    place = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sender = exposure.sources[exposure.rows.long()].long()
    return place // groups, place % groups, sender


def tilted(exposure: Any) -> Tensor:
    """α, more here and less there by recipient and sender, whatever the order of terms."""
    recipient, _, sender = places(exposure)
    tilt = 1 + 0.5 * torch.cos(1.0 + 1.7 * sender.double() + 0.9 * recipient.double())
    return (exposure.coefficients.double() * tilt).to(exposure.coefficients.dtype)


def groups_of(exposure: Any) -> list[dict[str, Any]]:
    """Per group and recipient: who sends, Σ α, Σ α u(sender) and Σ α u(sender) ℓ·w."""
    recipient, group, sender = places(exposure)
    alpha, weight = exposure.coefficients.double(), torch.cos(1.0 + sender.double())
    held = exposure.aggregate
    said = held.contributions[:, exposure.rows.long()]
    said = said @ torch.cos(torch.arange(said.shape[2]).double())
    found = []
    for number in range(len(exposure.groups)):
        own = group == number
        lists: list[list[int]] = [[] for _ in range(exposure.num_recipients)]
        for to, source in zip(recipient[own].tolist(), sender[own].tolist(), strict=True):
            lists[to].append(source)

        def total(values: Tensor, own: Tensor = own) -> list[Any]:
            out = torch.zeros(len(values), exposure.num_recipients, dtype=torch.float64)
            return numbers(out.index_add(1, recipient[own], values[:, own]))

        senders = "; ".join(" ".join(map(str, sorted(some))) for some in lists)
        entry = {
            "senders": f"{int(own.sum())} terms, {_short(senders)}",
            "mass": total(alpha),
            "by sender": total(alpha * weight),
        }
        if held is exposure:  # the channels before a head are a matter of choice
            entry["said"] = total(alpha * weight * said)
        found.append(entry)
    return sorted(found, key=lambda entry: json.dumps(_coarse(entry)))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _coarse(value: Any) -> Any:
    """Six digits are enough to sort by, and rounding does not change the order."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return {key: _coarse(part) for key, part in value.items()}
    return [_coarse(part) for part in value] if isinstance(value, list) else value


def words_of(exposed: Any) -> list[str]:
    """What an exposure says of itself, line by line, without rounding errors, sorted."""
    exposure = mixture_of(exposed)
    lines = {ROUNDING.sub("#", line).strip() for line in str(exposed).split("\n")}
    lines |= {f"{g.name}: {g.rule}; {g.coefficients_from}" for g in exposure.groups}
    frame = exposed.to_frame()
    if "source_type" in frame:
        pairs = frame[["group", "source_type"]].drop_duplicates().itertuples(index=False)
        lines |= {f"{group} from {kind}" for group, kind in pairs}
    held = exposure.aggregate
    lines |= {f"called: {held.called}", f"scope: {held.scope}", f"fixed: {held.fixed}"}
    return sorted(lines)


# Answers ------------------------------------------------------------------------------------------


def answers_to(exposed: Any) -> dict[str, Any]:
    """The oracle's answers; of a model with a head about a few recipients."""
    exposure = mixture_of(exposed)
    some: dict[str, Any] = {}
    if exposure.head is not None:
        count = exposure.num_recipients
        chosen = torch.arange(ASKED) * (count - 1) // (ASKED - 1)
        nodes = chosen if exposure is not exposed else exposure.recipients[chosen]
        some = {"nodes": nodes.unique(), "effort": "fast"}
    if exposed.outputs == "values":
        return of_range(gr.value_range(exposed, **some))
    if exposed.outputs == "classes":
        solution: Any = gr.solve(exposed, "all", **some)
    else:
        solution = gr.solve(exposed, "flip", **some)
    record = of_solution(solution)
    if not some:  # proofs behind heads are checked in the part "heads"; here that would take long
        record["checked"] = bool(solution.check(exposed).ok)
    return record


def of_solution(solution: Any) -> dict[str, Any]:
    """Verdicts, margins and bounds, ordered by member, node and class."""
    order = np.lexsort((solution.target, solution.node, solution.member))
    margin, bound = solution.margin[order], solution.bound[order]
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.abs(bound - margin) > 1e-8 * np.maximum(np.abs(margin), np.abs(bound))
    return {
        "asked": [len(solution), int(solution.node.sum()), int(solution.target.sum())],
        "verdict": "".join(MARKS[verdict] for verdict in solution.verdict[order]),
        "margin": numbers(margin, FEWER),
        "bound": numbers(bound, FEWER) if gap.any() else "the margin",
    }


def of_range(ranges: Any) -> dict[str, Any]:
    """Both ends, attained and proved."""
    return {
        "low": numbers([ranges.low, ranges.low_bound], FEWER),
        "high": numbers([ranges.high, ranges.high_bound], FEWER),
    }


def of_frame(frame: Any) -> dict[str, Any]:
    """A data frame by column, its rows sorted."""
    frame = frame.sort_values(list(frame.columns[:2])).reset_index(drop=True)
    return {str(name): numbers(frame[name].to_numpy()) for name in frame.columns}


def refusal(error: Exception) -> dict[str, Any]:
    """What is raised, and the sentence."""
    return {"refused": type(error).__name__, "words": [str(error)]}


# Files and comparison -----------------------------------------------------------------------------


def write(path: Path, tree: Any) -> None:
    """Sorted JSON, one line per array or text."""
    temporary = path.with_suffix(".new")
    temporary.write_text(_json(tree, 0) + "\n", encoding="utf-8")
    temporary.replace(path)


def _json(tree: Any, depth: int) -> str:
    nested = isinstance(tree, list) and tree and isinstance(tree[0], dict | str)
    if not (isinstance(tree, dict) or nested) or not tree:
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    inner, close = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(tree, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_json(tree[key], depth + 1)}"
            for key in sorted(tree)
        ]
        return "{" + inner + ("," + inner).join(parts) + close + "}"
    return "[" + inner + ("," + inner).join(_json(part, depth + 1) for part in tree) + close + "]"


def differences(
    expected: Any, found: Any, place: str = "", precision: str = "float64"
) -> Iterator[str]:
    """What differs, one sentence per place."""
    if isinstance(expected, dict) and isinstance(found, dict):
        precision = expected.get("precision", precision)
        for key in sorted({*expected, *found}):
            if key not in expected or key not in found:
                yield f"{place} / {key}: {'not recorded' if key in found else 'gone'}"
                continue
            coarse = "answers" if key in ANSWERS and precision == "float64" else precision
            yield from differences(expected[key], found[key], f"{place} / {key}", coarse)
    elif (one := _array(expected)) is not None and (other := _array(found)) is not None:
        yield from _unlike(one, other, place, TOLERANCE[precision])
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{place}: {len(found)} instead of {len(expected)}"
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(one, other, f"{place}[{number}]", precision)
    elif _without_noise(expected) != _without_noise(found):
        yield f"{place}: {found!r:.300} instead of {expected!r:.300}"


def _without_noise(value: Any) -> Any:
    """A sentence without its rounding errors, which differ between processors."""
    return NOISE.sub("#", value) if isinstance(value, str) else value


def _array(value: Any) -> Any:
    """Numbers of one shape as an array; None for anything else."""
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if not isinstance(first, float | int) or isinstance(first, bool):
        return None
    try:
        return np.array(value, dtype=float)
    except ValueError:  # rows of different lengths
        return None


def _unlike(one: Any, other: Any, place: str, tolerance: float) -> Iterator[str]:
    """Entries that differ relative to themselves and to the middle size of their array."""
    if one.shape != other.shape:
        yield f"{place}: shape {list(other.shape)} instead of {list(one.shape)}"
        return
    one, other = one.ravel(), other.ravel()
    sizes = np.abs(one[np.isfinite(one) & (one != 0)])
    middle = float(np.median(sizes)) if len(sizes) else 0.0
    floor = 1e-12 if tolerance == TOLERANCE["trained"] else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.abs(one - other) <= tolerance * np.maximum(np.abs(one), middle) + floor
    bad = np.flatnonzero(~(near | (one == other) | (np.isnan(one) & np.isnan(other))))
    if len(bad):
        some = ", ".join(f"[{i}] {other[i]:.10g} instead of {one[i]:.10g}" for i in bad[:3])
        worst = max((abs(one[i] - other[i]) for i in bad), default=math.nan)
        yield f"{place}: {len(bad)} of {len(one)} numbers, by up to {worst:.2g}: {some}"


def without_words(tree: Any) -> tuple[Any, Any]:
    """The record without its sentences, and these, by the same names."""
    plain = {
        name: {k: v for k, v in entry.items() if k != "words"} if isinstance(entry, dict) else entry
        for name, entry in tree.items()
    }
    words = {n: e["words"] for n, e in tree.items() if isinstance(e, dict) and "words" in e}
    return plain, words
