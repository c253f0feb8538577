"""γ by brute force in exact rational arithmetic: every vertex of the LP is visited."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from gnn_repair.oracle.problems import Instance


def exact_margin(problem: Instance) -> Fraction:
    """The largest γ over all bases of γ + s_r − Σ λ_a gap = d_r, Σ_g λ = m_g."""
    rivals, groups, count = len(problem.rivals), len(problem.mass), len(problem.terms)
    columns = []
    for a in range(count):
        mass_row = [Fraction(int(g == problem.group[a])) for g in range(groups)]
        columns.append([-Fraction(x) for x in problem.gaps[a].tolist()] + mass_row)
    columns += [[Fraction(int(i == r)) for i in range(rivals + groups)] for r in range(rivals)]
    gamma = [Fraction(1)] * rivals + [Fraction(0)] * groups
    right = [Fraction(x) for x in problem.fixed.tolist() + problem.mass.tolist()]
    best = None
    for chosen in combinations(range(len(columns)), rivals + groups - 1):
        values = _solve([gamma, *(columns[i] for i in chosen)], right)
        if values is not None and min(values[1:], default=Fraction(0)) >= 0:
            best = values[0] if best is None else max(best, values[0])
    assert best is not None
    return best


def _solve(columns: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Gauss–Jordan elimination; None when singular."""
    size = len(right)
    rows = [[column[i] for column in columns] + [right[i]] for i in range(size)]
    for i in range(size):
        pivot = next((k for k in range(i, size) if rows[k][i] != 0), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(size):
            if k != i and rows[k][i] != 0:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[-1] for row in rows]
