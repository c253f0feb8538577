"""Families of linear programs that are hard on a solver: ties, twins, scales and sizes.

A family is a shape, a way to draw numbers and a twist; ``FAMILIES`` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.exposure.value import Exposure, Group

Floats = NDArray[np.float64]
Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, int]], Floats]


@dataclass
class Numbers:
    """An exposure in the making: n recipients, T terms, C classes."""

    lengths: NDArray[np.int64]
    """[n, G]: terms of each recipient and group."""
    alpha: Floats
    """[T]."""
    table: Floats
    """[T, C]."""
    fixed: Floats
    """[n, C]."""
    known: Floats | None = None
    """[n]: γ of class 0, where it was planted."""

    @property
    def owner(self) -> NDArray[np.int64]:
        """[T]: the recipient of each term."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths.sum(1))

    @property
    def place(self) -> NDArray[np.int64]:
        """[T]: which term of its recipient it is, from 0 on."""
        counts = self.lengths.sum(1)
        return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


Twist = Callable[[Rng, Numbers], None]


@dataclass(frozen=True)
class Family:
    """How to draw LPs of one kind."""

    terms: tuple[int, int] = (1, 12)
    """Terms of a group, from and to (inclusive)."""
    classes: tuple[int, int] = (2, 7)
    groups: tuple[int, int] = (1, 1)
    numbers: Draw = lambda rng, shape: rng.normal(size=shape)
    twist: Twist = lambda rng, numbers: None


def normal(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Gaussian."""
    return rng.normal(size=shape)


def whole(top: int) -> Draw:
    """Integers from −top to top."""
    return lambda rng, shape: rng.integers(-top, top + 1, shape).astype(float)


def times(factor: float, inner: Draw = normal) -> Draw:
    """Another draw on another scale."""
    return lambda rng, shape: factor * inner(rng, shape)


def heavy(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Tails over six decades."""
    return rng.normal(size=shape) * np.exp(3 * rng.normal(size=shape))


def sparse(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Nine of ten are zero."""
    return rng.normal(size=shape) * (rng.random(shape) < 0.1)


def signs(rng: Rng, shape: tuple[int, int]) -> Floats:
    """−1 or 1."""
    return rng.choice([-1.0, 1.0], shape)


def low_rank(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Two directions only, so that most bases are singular."""
    return rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))


def powers(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Vandermonde rows: x, x², x³, … of nearly equal x."""
    base = 1 + 0.1 * rng.random((shape[0], 1))
    return base ** np.arange(1, shape[1] + 1)


def reciprocals(rng: Rng, shape: tuple[int, int]) -> Floats:
    """Hilbert rows 1 / (i + j)."""
    first = rng.integers(1, 12, (shape[0], 1)).astype(float)
    return 1 / (first + np.arange(shape[1]))


def decades(low: int, high: int, axis: int) -> Draw:
    """Rows (axis 0) or columns (axis 1) of very different size."""

    def numbers(rng: Rng, shape: tuple[int, int]) -> Floats:
        size = [1, 1]
        size[axis] = shape[axis]
        return rng.normal(size=shape) * 10.0 ** rng.integers(low, high + 1, size)

    return numbers


def huge_terms(size: float, sign: float = 0.0) -> Twist:
    """A few terms ``size`` times larger; with a sign, in the first class only, and so dominated
    (or dominating) where that class is the target."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        chosen = rng.random(len(numbers.table)) < 0.25
        if sign:
            numbers.table[chosen, 0] = sign * size
        else:
            numbers.table[chosen] *= size
        numbers.fixed *= rng.integers(0, 2, (len(numbers.fixed), 1))

    return twist


def outlier(size: float, place: int) -> Twist:
    """One term of every recipient is ``size`` times larger (or smaller)."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        counts = numbers.lengths.sum(1)
        numbers.table[numbers.place == (place % np.maximum(counts, 1))[numbers.owner]] *= size

    return twist


def twins(noise: float) -> Twist:
    """Every term stands beside its double, up to relative noise."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        odd = (numbers.place % 2 == 1) & (np.arange(len(numbers.table)) > 0)
        at = np.flatnonzero(odd)
        doubled = numbers.table[at - 1]
        numbers.table[at] = doubled * (1 + noise * rng.normal(size=doubled.shape))

    return twist


def equal_classes(noise: float) -> Twist:
    """The last class is the one before it, up to noise: two rivals that are always tight."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        for array in (numbers.table, numbers.fixed):
            array[:, -1] = array[:, -2] * (1 + noise * rng.normal(size=len(array)))

    return twist


def games(rng: Rng, numbers: Numbers) -> None:
    """Cyclic games: each term beats the next class and loses to the one after; γ is often 0."""
    classes, size = numbers.table.shape[1], rng.choice([0.5, 1.0, 3.0], len(numbers.fixed))
    numbers.table[:] = 0.0
    numbers.fixed[:] = 0.0
    index = np.arange(len(numbers.table))
    numbers.table[index, 1 + numbers.place % (classes - 1)] = size[numbers.owner]
    numbers.table[index, 1 + (numbers.place + 1) % (classes - 1)] -= size[numbers.owner]


def table_scaled(size: float) -> Twist:
    """Messages on another scale."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        numbers.table *= size

    return twist


def near_threshold(size: float) -> Twist:
    """One term a recipient, and its first class wins or loses by about ``size``."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        mass = np.bincount(numbers.owner, numbers.alpha, len(numbers.fixed))
        ends = numbers.fixed + mass[:, None] * numbers.table[np.cumsum(numbers.lengths[:, 0]) - 1]
        rest = ends[:, 1:].max(1)
        numbers.fixed[:, 0] += rest - ends[:, 0] + size * rng.uniform(-2, 2, len(rest))

    return twist


def masses(low: float, high: float) -> Twist:
    """Each recipient's α is scaled by a power of ten in between."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        factor = 10.0 ** rng.uniform(np.log10(low), np.log10(high), len(numbers.fixed))
        numbers.alpha *= factor[numbers.owner]
        numbers.fixed *= factor[:, None]

    return twist


def group_masses(low: float, high: float) -> Twist:
    """Each group's α is scaled by a power of ten in between."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        lengths = numbers.lengths.ravel()
        factor = 10.0 ** rng.uniform(np.log10(low), np.log10(high), len(lengths))
        numbers.alpha *= np.repeat(factor, lengths)

    return twist


def zero_coefficients(rng: Rng, numbers: Numbers) -> None:
    """α is zero for most terms; the first of a segment keeps its mass."""
    starts = np.cumsum(numbers.lengths.ravel()) - numbers.lengths.ravel()
    first = np.zeros(len(numbers.alpha), bool)
    first[starts[numbers.lengths.ravel() > 0]] = True
    numbers.alpha[~first & (rng.random(len(first)) < 0.8)] = 0.0


def zero_columns(rng: Rng, numbers: Numbers) -> None:
    """Half of the terms say nothing, some say the same of every class."""
    kind = rng.integers(0, 4, len(numbers.table))
    numbers.table[kind < 2] = 0.0
    numbers.table[kind == 2] = numbers.table[kind == 2][:, :1]


def tied(rng: Rng, numbers: Numbers) -> None:
    """Nothing anywhere."""
    numbers.table[:] = 0.0
    numbers.fixed[:] = 0.0


def fixed_only(rng: Rng, numbers: Numbers) -> None:
    """Messages that change nothing."""
    numbers.table[:] = numbers.table[:, :1]


def shifted(by: float) -> Twist:
    """A number added to all classes, which must not matter."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        numbers.table += by * rng.normal(size=(len(numbers.table), 1))

    return twist


def fixed_scaled(size: float, classes: slice = slice(None)) -> Twist:
    """Fixed logits on another scale, of all classes or of some."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        numbers.fixed[:, classes] *= size

    return twist


def both(*twists: Twist) -> Twist:
    """One after another."""

    def twist(rng: Rng, numbers: Numbers) -> None:
        for each in twists:
            each(rng, numbers)

    return twist


def planted(gamma: float) -> Twist:
    """γ of class 0 is known: λ and w are drawn, and the numbers made to fit them.

    Every active column scores the same under w, all others less, and under λ every rival ends at γ.
    Needs one group of at least C − 1 terms.
    """

    def twist(rng: Rng, numbers: Numbers) -> None:
        rivals, starts = numbers.table.shape[1] - 1, np.cumsum(numbers.lengths[:, 0])
        masses = np.bincount(numbers.owner, numbers.alpha, len(numbers.fixed))
        for i, end in enumerate(starts):
            own = slice(end - numbers.lengths[i, 0], end)
            gaps, w = numbers.table[own, 1:], rng.dirichlet(np.ones(rivals))
            below = rng.exponential(0.5, len(gaps)) + 0.01
            below[:rivals] = 0.0
            gaps += (0.7 - below - gaps @ w)[:, None]
            share = masses[i] * rng.dirichlet(np.ones(rivals))
            numbers.fixed[i] = np.append(0.0, share @ gaps[:rivals] - gamma)
            numbers.table[own] = np.concatenate([np.zeros((len(gaps), 1)), -gaps], axis=1)
        numbers.known = np.full(len(masses), gamma)

    return twist


def champions(rng: Rng, numbers: Numbers) -> None:
    """Whole numbers, masses that are powers of two, and one term that beats all others at every
    rival: it takes the whole mass, and γ is a whole number that floats hold exactly."""
    counts = numbers.lengths[:, 0]
    best = (np.cumsum(counts) - counts) + rng.integers(0, counts)
    numbers.alpha[:] = 0.0
    numbers.alpha[best] = 2.0 ** rng.integers(-3, 4, len(best))
    numbers.table[best] = numbers.table.min() - rng.integers(0, 5, (len(best), 1))
    numbers.table[best, 0] = numbers.table.max() + 1
    ends = numbers.fixed + numbers.alpha[best][:, None] * numbers.table[best]
    numbers.known = ends[:, 0] - ends[:, 1:].max(1)


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
