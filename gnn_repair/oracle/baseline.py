"""A model's reach kept as a baseline, and what became of it: a regression check.

A baseline is a small JSON file: for every node and class that was asked about, whether the class
could win, by how much, and the witness that showed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnn_repair.atomic import as_path, replacing
from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.exposure.value import Exposure
from gnn_repair.files import parse_json
from gnn_repair.oracle.fallback import weigh
from gnn_repair.oracle.problems import Instance, Integers, Tables, build_lp, require_no_head
from gnn_repair.oracle.solution import Solution, require_class_answers
from gnn_repair.published import REACHABLE, count_of

KIND = "gnn-repair baseline"
VERSION = 1
KEY = ("member", "node", "class")
SIDES = ("before", "after")
ROUNDING = 1e-12
"""Above what the difference of two shares rounds by, below one answer in any baseline."""
LARGEST = 1 << 30
"""Bytes of a baseline that is read; ten million answers are smaller."""
TRIED = 1000
"""Choices of messages for a witness at most; with one message per sender there is one."""


@dataclass(frozen=True, eq=False)
class BaselineComparison:
    """What changed between a baseline and a solution, answer by answer."""

    changes: pd.DataFrame
    """Answers of both whose verdict differs: member, node, class, before, after, and margins."""
    compared: int
    """Answers of both."""
    missing: int
    """Answers of the baseline that were not asked again."""
    new: int
    """Answers that the baseline does not have."""
    reach_before: float
    """Share of compared answers that could win."""
    reach_after: float
    chance_before: float | None = None
    """How often a class that is neither true nor predicted could win at the nodes asked about;
    None where it was not asked, with two classes, and in baselines of version 0.2."""
    chance_after: float | None = None
    broken: pd.DataFrame | None = None
    """Answers of the baseline whose own proof does not hold for the exposure that was given."""

    @property
    def lost(self) -> pd.DataFrame:
        """Answers that could win and no longer can, or are undecided now."""
        return self.changes[self.changes["before"] == "can"]

    @property
    def gained(self) -> pd.DataFrame:
        """Answers that can win and could not."""
        return self.changes[self.changes["after"] == "can"]

    @property
    def drop(self) -> float:
        """By how much the share fell; negative where it rose."""
        return self.reach_before - self.reach_after

    def ok(self, tolerance: float = 0.0) -> bool:
        """Whether nothing is missing and reach fell by no more than ``tolerance`` (a share)."""
        # A drop of just the tolerance is allowed, though the difference of two shares rounds.
        return not self.missing and self.drop <= tolerance + ROUNDING

    def __str__(self) -> str:
        compared, missing, new = (
            count_of(count, "answer") for count in (self.compared, self.missing, self.new)
        )
        shares = " → ".join(f"{100 * one:.2f} %" for one in (self.reach_before, self.reach_after))
        lines = [
            f"reach {shares} of {compared}: {len(self.lost):,} lost, {len(self.gained):,} gained"
            if self.compared
            else "nothing to compare: the baseline is of other nodes or classes"
        ]
        if self.chance_before is not None or self.chance_after is not None:
            sizes = self.compared + self.missing, self.compared + self.new
            of = ["", ""] if sizes == (self.compared,) * 2 else [f" of {size:,}" for size in sizes]
            chances = zip((self.chance_before, self.chance_after), of, strict=True)
            words = ("–" if one is None else f"{100 * one:.2f} %{size}" for one, size in chances)
            lines.append(f"chance {' → '.join(words)}")
        lines += [f"not asked again: {missing} of the baseline"] * bool(self.missing)
        lines += [f"not in the baseline: {new}"] * bool(self.new)
        if self.broken is not None:
            lines.append(f"{len(self.broken):,} of the baseline's own proofs no longer hold")
        return "\n".join(lines)

    __repr__ = __str__


def save_baseline(solution: Solution, path: str | Path, chance: float | None = None) -> None:
    """Write a solution's verdicts, margins and proofs as a baseline, and its ``chance``."""
    columns = _answers(solution)
    body = {name: columns[name].tolist() for name in columns}
    head = {"kind": KIND, "version": VERSION, "chance": chance}
    content = json.dumps({**head, "answers": body}, allow_nan=False)
    with replacing(as_path(path)) as temporary:
        temporary.write_text(content + "\n", encoding="utf-8")


def load_baseline(path: str | Path) -> pd.DataFrame:
    """What :func:`save_baseline` wrote, one row per answer."""
    file = as_path(path)
    try:
        if file.stat().st_size > LARGEST:
            raise FileFormatError(f"{file} is too large for a baseline")
        content = parse_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{str(file)!r:.200} cannot be read: {error.strerror}; write a baseline first, with "
            "save_baseline or gnn-repair check --save"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file} is not a baseline: {str(error)[:100]}") from error
    return _checked(content, file)


def _checked(content: Any, file: Path) -> pd.DataFrame:
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FileFormatError(f"{file} is not a baseline; write one with --save")
    if content.get("version") != VERSION:
        raise FileFormatError(
            f"{file} is a baseline of version {content.get('version')!r:.20}, and {VERSION} is "
            "read here; install the gnn-repair that wrote it, or write it anew with --save"
        )
    answers = content.get("answers")
    if not isinstance(answers, dict) or set(answers) != set(_COLUMNS):
        raise FileFormatError(f"{file} lacks columns of a baseline")
    lengths = {len(column) if isinstance(column, list) else -1 for column in answers.values()}
    if len(lengths) != 1 or -1 in lengths:
        raise FileFormatError(f"{file} has columns of different length")
    for name, fits in _COLUMNS.items():
        wrong = [value for value in answers[name] if not fits(value)][:1]
        if wrong:
            raise FileFormatError(f"{file} is no baseline: {name} holds {wrong[0]!r:.40}")
    chance = content.get("chance")
    if chance is not None and not (_number(chance) and 0 <= chance <= 1):
        raise FileFormatError(f"{file} is no baseline: chance is {chance!r:.40}")
    frame = pd.DataFrame(answers)
    frame.attrs["chance"] = chance
    if frame.duplicated(list(KEY)).any():
        raise FileFormatError(f"{file} answers a question twice")
    return frame


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _weights(value: Any, length: int) -> bool:
    """A list of lists of whole numbers and, last, a weight."""
    return isinstance(value, list) and all(
        isinstance(p, list) and len(p) == length and all(map(_whole, p[:-1])) and _number(p[-1])
        for p in value
    )


_COLUMNS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(KEY, _whole),
    "verdict": lambda value: value in ("can", "cannot", "undecided"),
    "margin": lambda value: _number(value) or value == "none",
    "witness": lambda value: _weights(value, 3),
    "rivals": lambda value: _weights(value, 2),
}
"""What each column of a baseline may hold."""


def compare(
    solution: Solution,
    baseline: str | Path | pd.DataFrame | Solution,
    exposure: Exposure | None = None,
    *,
    chance: float | None = None,
) -> BaselineComparison:
    """Which answers changed since a baseline.

    Args:
        solution: the answers of today.
        baseline: a file that :func:`save_baseline` wrote, its frame, or another solution.
        exposure: where given, the baseline's own proofs are tried on it, too; without a head only.
        chance: of today's nodes, such as ``reach(…).true_class_chance.value``.
    """
    after = _answers(solution)
    if exposure is not None:
        require_no_head(exposure, "a baseline holds no proofs of such models, so leave it out")
    if isinstance(baseline, str | Path):
        before = load_baseline(baseline)
    else:
        before = baseline if isinstance(baseline, pd.DataFrame) else _answers(baseline)
        if absent := [name for name in _COLUMNS if name not in before]:
            raise InputError(f"the baseline has no column {absent[0]!r}; load it by load_baseline")
    shown = [*KEY, "verdict", "margin"]
    both = before[shown].merge(after[shown], on=list(KEY), suffixes=("_before", "_after"))
    both = both.rename(columns={"verdict_before": "before", "verdict_after": "after"})
    changed = both[both["before"] != both["after"]].reset_index(drop=True)
    earlier, later = (float((both[n] == "can").mean()) if len(both) else 0.0 for n in SIDES)
    missing, new = len(before) - len(both), len(after) - len(both)
    broken = None if exposure is None else broken_proofs(before, exposure)
    chances = before.attrs.get("chance"), chance
    return BaselineComparison(changed, len(both), missing, new, earlier, later, *chances, broken)


def _answers(solution: Solution) -> pd.DataFrame:
    require_class_answers(solution)
    count = range(len(solution))
    frame = pd.DataFrame(
        {
            "member": solution.member,
            "node": solution.named(solution.node),
            "class": solution.target,
            "verdict": solution.verdict,
            "margin": [m if np.isfinite(m) else "none" for m in solution.margin.tolist()],
            "witness": [_witness(solution, i) for i in count],
            "rivals": [_rivals(solution, i) for i in count],
        }
    )
    twice = frame.duplicated(list(KEY))
    if twice.any():
        node = int(frame["node"][twice].iloc[0])
        raise InputError(
            f"node {node} is answered for several times, as in several samples; a baseline holds "
            "one answer per node, so keep one of them with restrict"
        )
    return frame


def _rivals(solution: Solution, i: int) -> list[list[float]]:
    weights = np.zeros(0) if solution.rival_weights is None else solution.rival_weights[i]
    return [[int(r), float(weights[r])] for r in weights.nonzero()[0]]


def _witness(solution: Solution, i: int) -> list[list[float]]:
    part = slice(solution.indptr[i], solution.indptr[i + 1])
    columns = (solution.groups, solution.named(solution.sources), solution.coefficients)
    return [list(triple) for triple in zip(*(c[part].tolist() for c in columns), strict=True)]


# Proofs of an earlier model's answers, tried on today's -------------------------------------------


def broken_proofs(before: pd.DataFrame, exposure: Exposure) -> pd.DataFrame:
    """Answers whose witness no longer wins, or whose rival mixture no longer excludes."""
    tables = Tables.from_exposure(exposure)
    nodes, sources = exposure.recipients.cpu().numpy(), tables.sources
    if exposure.n_id is not None:  # a baseline calls nodes as the graph does
        n_id = exposure.n_id.cpu().numpy()
        nodes, sources = n_id[nodes], np.where(sources < 0, sources, n_id[sources])
    tables = replace(tables, sources=sources)
    place = {int(node): i for i, node in enumerate(nodes.tolist())}
    holds = [_holds(row, tables, place) for row in before.to_dict("records")]
    return before[~np.array(holds, bool)][[*KEY, "verdict"]].reset_index(drop=True)


def _holds(row: Mapping[Any, Any], tables: Tables, place: dict[int, int]) -> bool:
    if row["verdict"] == "undecided":
        return True
    recipient, classes = place.get(row["node"]), tables.num_classes
    members = len(tables.contributions)
    if recipient is None or row["class"] >= classes or row["member"] >= members:
        return False
    problem = build_lp(tables, row["member"], recipient, row["class"])
    if row["verdict"] == "can":
        source, group = tables.origin(np.full(len(problem.terms), recipient), problem.terms)
        return _wins(problem, row["witness"], source, group)
    return _excludes(problem, row["rivals"], classes)


def _wins(problem: Instance, witness: list[list[Any]], source: Integers, group: Integers) -> bool:
    """Whether the old λ, brought to today's masses, still makes the class win.

    A witness names senders: of several messages that one sends any may be meant, so all are tried.
    """
    weights = np.array([weight for *_, weight in witness])
    if (weights < 0).any():
        return False
    choices = (np.flatnonzero((group == g) & (source == s)) for g, s, _ in witness)
    for places in islice(product(*choices), TRIED):
        share = np.zeros(len(problem.terms))
        np.add.at(share, np.array(places, np.int64), weights)
        total = np.bincount(problem.group, share, len(problem.mass))
        share *= (problem.mass / np.where(total == 0, 1, total))[problem.group]
        full = (total > 0) | (problem.mass <= 0)
        if full.all() and (problem.fixed + share @ problem.gaps).min() > REACHABLE:
            return True
    return False


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
    unused = np.zeros(len(problem.terms))
    return weigh(problem, unused, weights / weights.sum()).bound <= REACHABLE
