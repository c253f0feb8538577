"""The campaign of linear programs: every family in turn, each answer judged.

python -c "from tests.campaigns.lps import campaign_of; print(campaign_of(0, 1_000_000))"

Where highspy is not installed, rational arithmetic answers what our own method gives up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from gnn_repair.oracle import fallback
from gnn_repair.oracle.problems import STATUS
from gnn_repair.oracle.solver import solve
from tests.campaigns import Search
from tests.campaigns.lp_families import FAMILIES, draw
from tests.campaigns.lp_judge import judge, judge_exactly

BATCH = 600
"""LPs of a family at a time: enough that drawing costs little, few enough to stop soon."""
TERMS = 90_000
"""Terms of a batch at most, about, so that large LPs do not take all the time."""
EXACT = 3
"""LPs of a batch that are judged in fractions too."""


class NoHighs:
    """Stands in for highspy and answers nothing."""

    def solve(self, problem: Any, *_: Any) -> fallback.Answer:
        """A failed answer."""
        return fallback.no_answer(problem, "highspy is not installed")


if find_spec("highspy") is None:
    fallback.Highs = NoHighs  # type: ignore[misc, assignment]


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


def attempt(name: str, seed: int) -> tuple[int, Counter[str], list[str]]:
    """A batch of a family."""
    family = FAMILIES[name]
    most = max(30, TERMS // (family.terms[1] * family.groups[1]))
    tried, found, statuses = try_family(name, seed, min(BATCH, most))
    return tried, statuses + Counter({name: tried}), found


def _sample(seed: int, status: np.ndarray[tuple[int], np.dtype[np.int8]]) -> Iterator[int]:
    """A few LPs with an answer, fallbacks among them."""
    rng = np.random.default_rng(seed)
    for codes in ((0, 2), (1, 4)):
        places = np.flatnonzero(np.isin(status, codes))
        yield from (int(i) for i in rng.permutation(places)[:EXACT])


SEARCH = Search("lps", "LPs", FAMILIES, attempt)
campaign, campaign_of = SEARCH.campaign, SEARCH.campaign_of
