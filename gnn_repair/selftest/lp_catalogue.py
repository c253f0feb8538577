"""The families by name."""

from __future__ import annotations

import numpy as np
import torch

from gnn_repair.exposure.value import Exposure, Group
from gnn_repair.selftest.lp_families import (
    Family,
    Numbers,
    both,
    champions,
    decades,
    equal_classes,
    fixed_only,
    fixed_scaled,
    games,
    group_masses,
    heavy,
    huge_terms,
    low_rank,
    masses,
    near_threshold,
    outlier,
    planted,
    powers,
    reciprocals,
    shifted,
    signs,
    sparse,
    table_scaled,
    tied,
    times,
    twins,
    whole,
    zero_coefficients,
    zero_columns,
)

FAMILIES: dict[str, Family] = {
    # Ordinary and structured numbers.
    "gaussian": Family(),
    "three groups": Family(groups=(3, 3)),
    "heavy tails": Family(numbers=heavy),
    "sparse": Family(terms=(1, 30), numbers=sparse),
    "signs": Family(numbers=signs),
    "low rank": Family(terms=(3, 30), numbers=low_rank),
    "powers": Family(numbers=powers),
    "reciprocals": Family(terms=(2, 30), numbers=reciprocals),
    "shifted by a million": Family(twist=shifted(1e6)),
    # Ties and degenerate vertices.
    "small integers": Family(numbers=whole(1)),
    "integers": Family(numbers=whole(3), groups=(1, 3)),
    "many small integers": Family(terms=(20, 60), classes=(5, 9), numbers=whole(1)),
    "large integers": Family(numbers=whole(10**9)),
    "nothing anywhere": Family(twist=tied),
    "messages that change nothing": Family(twist=fixed_only),
    "zero columns": Family(twist=zero_columns),
    "cyclic games": Family(terms=(1, 9), classes=(3, 8), twist=games),
    "cyclic games of a billion": Family(
        terms=(2, 9), classes=(4, 8), twist=both(games, table_scaled(1e9))
    ),
    "twins": Family(terms=(2, 20), twist=twins(0.0)),
    "near twins": Family(terms=(2, 20), twist=twins(1e-13)),
    "distant twins": Family(terms=(2, 20), twist=twins(1e-9)),
    "equal classes": Family(classes=(3, 7), twist=equal_classes(0.0)),
    "nearly equal classes": Family(classes=(3, 7), twist=equal_classes(1e-13)),
    "near the threshold": Family(terms=(1, 1), twist=near_threshold(1e-7)),
    "near a tie": Family(terms=(1, 1), twist=near_threshold(1e-15)),
    # Optima that are known beforehand.
    "planted wins": Family(terms=(8, 40), classes=(3, 7), twist=planted(0.25)),
    "planted losses": Family(terms=(8, 40), classes=(3, 7), twist=planted(-2.0)),
    "planted ties": Family(terms=(8, 40), classes=(3, 7), twist=planted(0.0)),
    "planted among many": Family(terms=(140, 300), classes=(3, 7), twist=planted(0.25)),
    "champions": Family(terms=(1, 12), numbers=whole(9), twist=champions),
    # Shapes.
    "single terms": Family(terms=(1, 1), groups=(1, 5)),
    "two classes": Family(classes=(2, 2), groups=(1, 3)),
    "sixty classes": Family(terms=(20, 70), classes=(50, 60)),
    "sixty classes, integers": Family(terms=(20, 70), classes=(50, 60), numbers=whole(2)),
    "twelve groups": Family(terms=(1, 6), groups=(12, 12)),
    "absent groups": Family(terms=(0, 2), groups=(2, 4)),
    "at 128 terms": Family(terms=(126, 131)),
    "at 128 integers": Family(terms=(126, 131), numbers=whole(1)),
    "at 128 terms in three groups": Family(terms=(42, 44), groups=(3, 3)),
    "at 512 terms": Family(terms=(509, 515), classes=(3, 9)),
    "two thousand terms": Family(terms=(1900, 2100), classes=(3, 7)),
    "two thousand integers": Family(terms=(1900, 2100), classes=(3, 7), numbers=whole(2)),
    # Coefficients and masses.
    "zero coefficients": Family(terms=(2, 12), groups=(1, 3), twist=zero_coefficients),
    "small masses": Family(groups=(1, 2), twist=masses(1e-20, 1e-8)),
    "small masses of many terms": Family(terms=(130, 160), twist=masses(1e-20, 1e-8)),
    "smallest masses": Family(groups=(1, 2), twist=masses(1e-300, 1e-200)),
    "large masses": Family(groups=(1, 2), twist=masses(1e50, 1e200)),
    "groups of unlike mass": Family(groups=(2, 4), twist=group_masses(1e-9, 1e9)),
    "groups of most unlike mass": Family(groups=(2, 4), twist=group_masses(1e-120, 1e120)),
    # One scale, far from one.
    "scale 1e-300": Family(numbers=times(1e-300)),
    "scale 1e-150": Family(numbers=times(1e-150)),
    "scale 1e150": Family(numbers=times(1e150)),
    "scale 1e300": Family(numbers=times(1e300)),
    "integers at 1e300": Family(numbers=times(1e300, whole(2))),
    "subnormal": Family(numbers=times(1e-310)),
    "smallest floats": Family(numbers=times(5e-324, whole(9))),
    "many terms at 1e300": Family(terms=(130, 160), numbers=times(1e300)),
    # Several scales in one LP.
    "fixed logits of 1e12": Family(twist=fixed_scaled(1e12)),
    "one class 1e12 away": Family(classes=(3, 7), twist=fixed_scaled(1e12, slice(0, 1))),
    "fixed logits of 1e-12": Family(twist=fixed_scaled(1e-12)),
    "decades by term": Family(numbers=decades(-6, 6, 0)),
    "decades by class": Family(numbers=decades(-6, 6, 1)),
    "thirty decades": Family(numbers=decades(-15, 15, 0)),
    "first term 1e9": Family(terms=(2, 20), twist=outlier(1e9, 0)),
    "last term 1e9 of many": Family(terms=(140, 300), twist=outlier(1e9, -1)),
    "first term 1e-200": Family(terms=(2, 20), twist=outlier(1e-200, 0)),
    "dominated by 1e6": Family(terms=(2, 15), twist=huge_terms(1e6, -1)),
    "dominated by 1e9": Family(terms=(2, 15), twist=huge_terms(1e9, -1)),
    "dominated by 1e12": Family(terms=(2, 15), twist=huge_terms(1e12, -1)),
    "dominated by 1e15": Family(terms=(2, 15), twist=huge_terms(1e15, -1)),
    "dominated by 1e100": Family(terms=(2, 15), twist=huge_terms(1e100, -1)),
    "dominating by 1e12": Family(terms=(2, 15), twist=huge_terms(1e12, 1)),
    "terms of 1e6": Family(terms=(2, 15), twist=huge_terms(1e6)),
    "terms of 1e9": Family(terms=(2, 15), twist=huge_terms(1e9)),
    "terms of 1e12": Family(terms=(2, 15), twist=huge_terms(1e12)),
    "terms of 1e15": Family(terms=(2, 15), twist=huge_terms(1e15)),
    "integers of 1e12": Family(terms=(2, 8), numbers=whole(3), twist=huge_terms(1e12)),
    "many terms, some of 1e12": Family(terms=(130, 160), twist=huge_terms(1e12)),
}
"""What ``draw`` knows."""


def draw(name: str, seed: int, lps: int) -> tuple[Exposure, Numbers]:
    """About ``lps`` LPs of the family ``name``, one for every class of every recipient."""
    numbers = draw_numbers(FAMILIES[name], seed, lps)
    return exposure_of(numbers), numbers


def draw_numbers(family: Family, seed: int, lps: int) -> Numbers:
    """About ``lps`` LPs of a family."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(family.classes[0], family.classes[1] + 1))
    groups = int(rng.integers(family.groups[0], family.groups[1] + 1))
    count = max(1, lps // classes)
    lengths = rng.integers(family.terms[0], family.terms[1] + 1, (count, groups))
    terms = int(lengths.sum())
    numbers = Numbers(
        lengths,
        rng.random(terms) + 0.05,
        family.numbers(rng, (terms, classes)),
        family.numbers(rng, (count, classes)),
    )
    family.twist(rng, numbers)
    return numbers


def exposure_of(numbers: Numbers) -> Exposure:
    """Every term a table row of its own, every recipient a node."""
    count, groups = numbers.lengths.shape
    terms, classes = numbers.table.shape
    rows = torch.arange(terms, dtype=torch.int32)
    mixed = np.zeros((count, classes))
    np.add.at(mixed, numbers.owner, numbers.alpha[:, None] * numbers.table)
    return Exposure(
        groups=tuple(Group(f"group {g}", "drawn", "drawn") for g in range(groups)),
        recipients=torch.arange(count),
        segments=torch.from_numpy(np.append(0, np.cumsum(numbers.lengths.ravel()))),
        rows=rows,
        coefficients=torch.from_numpy(numbers.alpha)[None],
        contributions=torch.from_numpy(numbers.table.reshape(max(terms, 0), classes))[None],
        fixed_logits=torch.from_numpy(numbers.fixed)[None],
        frozen_logits=torch.from_numpy(numbers.fixed + mixed)[None],
        state=torch.zeros(1, count, 1),
        messages=torch.zeros(1, max(terms, 1), 1),
        message_rows=rows,
        sources=rows % count,
    )
