"""The campaign of linear programs: every family in turn, each answer judged.

python -c "from tests.campaigns.lps import campaign_of; print(campaign_of(0, 1_000_000))"

Where highspy is not installed, rational arithmetic answers what our own method gives up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from gnn_repair.oracle import fallback
from gnn_repair.oracle.problems import STATUS
from gnn_repair.oracle.solver import solve
from tests.campaigns import CampaignResult
from tests.campaigns.lp_families import FAMILIES, draw
from tests.campaigns.lp_judge import judge, judge_exactly

BATCH = 600
"""LPs of a family at a time: enough that drawing costs little, few enough to stop soon."""
TERMS = 90_000
"""Terms of a batch at most, about, so that large LPs do not take all the time."""
EXACT = 3
"""LPs of a batch that are judged in fractions too."""
SHOWN = 50
"""Faults that are told in words; the others are counted."""

Progress = Callable[[str], None]


class NoHighs:
    """Stands in for highspy and answers nothing."""

    def solve(self, problem: Any, *_: Any) -> fallback.Answer:
        """A failed answer."""
        return fallback.no_answer(problem, "highspy is not installed")


if find_spec("highspy") is None:
    fallback.Highs = NoHighs  # type: ignore[misc, assignment]


def campaign(seed: int, seconds: float, on_progress: Progress | None = None) -> CampaignResult:
    """Hostile LPs for about ``seconds``; every family has its turn at least once.

    Args:
        seed: of the first batch; the same seed draws the same LPs.
        seconds: when to stop, after the first round.
        on_progress: told a sentence after every round.
    """
    end = time.monotonic() + seconds
    return _run(seed, lambda tried: time.monotonic() >= end, on_progress)


def campaign_of(seed: int, count: int, on_progress: Progress | None = None) -> CampaignResult:
    """The same until ``count`` LPs have been tried."""
    return _run(seed, lambda tried: tried >= count, on_progress)


def _run(seed: int, done: Callable[[int], bool], tell: Progress | None) -> CampaignResult:
    details: Counter[str] = Counter()
    faults: list[str] = []
    tried, turn = 0, 0
    while turn < len(FAMILIES) or not done(tried):
        name = list(FAMILIES)[turn % len(FAMILIES)]
        own = seed + turn
        family = FAMILIES[name]
        most = max(30, TERMS // (family.terms[1] * family.groups[1]))
        lps, found, statuses = try_family(name, own, min(BATCH, most))
        tried += lps
        details[name] += lps
        details.update(statuses)
        details["faults"] += len(found)
        faults += [f"{name}, seed {own}: {fault}" for fault in found][: SHOWN - len(faults)]
        turn += 1
        if tell is not None and turn % len(FAMILIES) == 0:
            tell(f"{tried:,} LPs, {details['faults']:,} faults")
    return CampaignResult("lps", tried, tuple(faults), dict(details))


def try_family(name: str, seed: int, lps: int) -> tuple[int, list[str], Counter[str]]:
    """Draw, solve and judge: how many LPs, the faults in words, and how many of each status."""
    exposure, numbers = draw(name, seed, lps)
    try:
        solution = solve(exposure, "all")
    except Exception as error:  # whatever it is, it is a fault of the oracle
        return 1, [f"solve({lps} LPs) raised {type(error).__name__}: {error}"], Counter()
    found = [f"LP {i} ({solution[i]}): {text}" for i, text in judge(numbers, solution)]
    for i in _sample(seed, solution.status):
        text = judge_exactly(numbers, solution, i)
        found += [f"LP {i} ({solution[i]}): {text}"] if text else []
    if not found and not solution.check(exposure).ok and (solution.status < 3).all():
        found.append(f"the check refuses what the judge accepts: {solution.check(exposure)}")
    codes, counts = np.unique(solution.status, return_counts=True)
    statuses = {f"status: {STATUS[int(c)]}": int(n) for c, n in zip(codes, counts, strict=True)}
    return len(solution), found, Counter(statuses)


def _sample(seed: int, status: np.ndarray[tuple[int], np.dtype[np.int8]]) -> Iterator[int]:
    """A few LPs with an answer, fallbacks among them."""
    rng = np.random.default_rng(seed)
    for codes in ((0, 2), (1, 4)):
        places = np.flatnonzero(np.isin(status, codes))
        yield from (int(i) for i in rng.permutation(places)[:EXACT])
