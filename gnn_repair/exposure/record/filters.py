"""Filters: several hops of one operator with nothing but numbers between them, Σ γ_k Â^k x.

Read off the record: a value is a polynomial of Â applied to some base where it is a sum, over the
same entries with the same numbers, of such a polynomial, or a linear combination, with numbers, of
polynomials of one base.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.record.analysis import Analysis, FinalSite, Powers, site_of
from gnn_repair.exposure.record.recorder import SAME, RecordedStep, Ref

NOISE = 1e-15
"""Entries this small beside the largest are rounding left over by cancelling paths."""


@dataclass(frozen=True, eq=False)
class RecordedHop:
    """One application of Â."""

    site: FinalSite
    table: int
    between: frozenset[int]
    """The operations that make messages of the table."""


@dataclass(frozen=True, eq=False)
class Form:
    """Σ_k γ_k Â^k base."""

    base: int
    hop: RecordedHop | None
    powers: tuple[float, ...]


class Filters:
    """The polynomials in a record."""

    def __init__(self, analysis: Analysis, size: int, holder: Callable[[int], str]) -> None:
        """Find all hops.

        Args:
            analysis: the record.
            size: recipients.
            holder: the name of the convolution in which an operation happens.
        """
        self.analysis, self.size, self.holder = analysis, size, holder
        self.hops: dict[int, RecordedHop] = {}
        self._forms: dict[int, Form] = {}
        for place in sorted(analysis.needed):
            reduction = analysis.record.steps[place].reduction
            if reduction is not None and reduction.size == size:
                hop = self._hop(place)
                if hop is not None:
                    self.hops[hop.site.value] = hop

    def _hop(self, place: int) -> RecordedHop | None:
        site = site_of(self.analysis, place, self.size)
        reduction = site.reduction
        if reduction.batched:
            return None
        if reduction.matrix is not None:
            if reduction.turned or len(self.analysis.value(reduction.message).shape) != 2:
                return None
            return RecordedHop(site, self.analysis.root(reduction.message), frozenset())
        parts = site.parts
        if parts is None or parts.table is None or len(reduction.axes) > 1 or parts.axis != 0:
            return None
        if any(self.analysis.value(factor.value).live for factor in parts.factors):
            return None
        between = self.analysis.above([reduction.message]) - self.analysis.above([parts.table])
        return RecordedHop(site, parts.table, frozenset(between))

    def form(self, number: int) -> Form:
        """A value as a polynomial; of itself where it is none."""
        if number not in self._forms:
            self._forms[number] = self._found(number)
        return self._forms[number]

    def _found(self, number: int) -> Form:
        alone = Form(self.analysis.canonical.get(number, number), None, (1.0,))
        hop = self.hops.get(number)
        if hop is not None:
            inner = self.form(hop.table)
            if inner.hop is not None and not self.same(inner.hop, hop):
                inner = Form(self.analysis.canonical.get(hop.table, hop.table), None, (1.0,))
            return Form(inner.base, hop, (0.0, *inner.powers))
        step = self.analysis.maker(number)
        if step is None or not step.args or not isinstance(step.args[0], Ref):
            return alone
        if step.name in SAME:
            return self.form(step.args[0].number)
        if step.name in ("add", "sub") and len(step.args) == 2 and isinstance(step.args[1], Ref):
            second = -1.0 if step.name == "sub" else 1.0
            second *= float(step.kwargs.get("alpha", 1))
            left, right = (self.form(argument.number) for argument in step.args)
            return self._sum(left, right, second) or alone
        if step.name in ("mul", "div") and len(step.args) == 2:
            return self._scaled(step) or alone
        if step.name == "neg":
            inner = self.form(step.args[0].number)
            return replace(inner, powers=tuple(-c for c in inner.powers))
        return alone

    def _sum(self, left: Form, right: Form, factor: float) -> Form | None:
        if left.base != right.base:
            return None
        if left.hop and right.hop and not self.same(left.hop, right.hop):
            return None
        size = max(len(left.powers), len(right.powers))
        padded = [f.powers + (0.0,) * (size - len(f.powers)) for f in (left, right)]
        powers = tuple(a + factor * b for a, b in zip(*padded, strict=True))
        return Form(left.base, left.hop or right.hop, powers)

    def _scaled(self, step: RecordedStep) -> Form | None:
        values = [self._number(argument) for argument in step.args]
        if values[1] is not None and isinstance(step.args[0], Ref):
            inner, number = self.form(step.args[0].number), values[1]
            factor = 1 / number if step.name == "div" else number
        elif values[0] is not None and isinstance(step.args[1], Ref) and step.name == "mul":
            inner, factor = self.form(step.args[1].number), values[0]
        else:
            return None
        return replace(inner, powers=tuple(factor * c for c in inner.powers))

    def _number(self, argument: Any) -> float | None:
        if isinstance(argument, int | float):
            return float(argument)
        kept = self.analysis.value(argument.number).kept if isinstance(argument, Ref) else None
        one = kept is not None and kept.numel() == 1 and kept.layout == torch.strided
        return float(kept) if one and kept is not None else None

    def same(self, left: RecordedHop, right: RecordedHop) -> bool:
        """Whether two hops send over the same entries with the same numbers."""
        return left is right or same_entries(self.analysis, left.site, right.site)

    # Exits -------------------------------------------------------------------------------------

    def sites(self, final: Sequence[int], reached: set[int]) -> list[FinalSite]:
        """The sites of final sums; where these end filters, the filters' instead.

        Args:
            final: the final sums.
            reached: the values that the output follows from row by row.
        """
        found: dict[int, FinalSite] = {}
        for place in final:
            site = site_of(self.analysis, place, self.size)
            form = self.form(site.value)
            exits = self._exits(site, form, reached) if form.hop is not None else []
            found |= {exit.value: exit for exit in exits or [site]}
        return [found[value] for value in sorted(found)]

    def is_filter(self, site: FinalSite) -> bool:
        """Whether a sum is the last hop of several."""
        return len(self.form(site.value).powers) > 2

    def _exits(self, site: FinalSite, form: Form, reached: set[int]) -> list[FinalSite]:
        """The values of a filter that something else reads; none where there is only one hop."""
        assert form.hop is not None
        chain = {}
        for value in sorted(
            {out for p in self.analysis.needed for out in self.analysis.record.steps[p].outs}
        ):
            other = self.form(value)
            if other.hop is not None and other.base == form.base and self.same(other.hop, form.hop):
                chain[value] = other
        hops = [self.hops[value] for value in chain if value in self.hops]
        if len(hops) < 2 or all(len(other.powers) < 3 for other in chain.values()):
            return []
        inside = set().union(*(hop.between for hop in hops)) | {hop.site.step for hop in hops}
        inside |= {self.analysis.value(value).step for value in chain}
        sums = frozenset(hop.site.step for hop in hops)
        exits = []
        for value, other in chain.items():
            readers = [r for r in self.analysis.readers.get(value, ()) if r in self.analysis.needed]
            outside = any(r not in inside for r in readers) or value == self.analysis.record.output
            if outside and value in reached:
                powers = Powers(other.powers, form.base, sums)
                exits.append(replace(site, value=value, powers=powers))
        own = self.holder(form.hop.site.step)
        first = {
            r for r in self.analysis.readers.get(form.base, ())
            if r in self.analysis.needed and r not in inside and self.holder(r) == own
        }  # fmt: skip
        if first and own and form.base in reached:
            powers = Powers((1.0,), form.base, sums, frozenset(first))
            exits.insert(0, replace(site, value=form.base, powers=powers))
        return exits


def same_entries(analysis: Analysis, one: FinalSite, two: FinalSite) -> bool:
    """Whether two sums go over the same entries with the same numbers, as the record says."""
    mine, theirs = one.parts, two.parts
    left, right = one.reduction, two.reduction
    if (mine is None) != (theirs is None) or left.factor != right.factor:
        return False
    marks = [[a.inverse for a in site.after] for site in (one, two)]
    if marks[0] != marks[1]:
        return False
    pairs: list[tuple[int | None, int | None]] = []
    for a, b in zip(one.after, two.after, strict=True):
        if not torch.equal(a.place, b.place):
            return False
        pairs.append((a.value, b.value))
    if mine is None or theirs is None:
        pairs.append((left.matrix, right.matrix))
    else:
        forms = [
            (p.scale, p.table is None, r.mean, [f.inverse for f in p.factors])
            for p, r in ((mine, left), (theirs, right))
        ]
        if forms[0] != forms[1] or not _equal_tensors(left.recipients, right.recipients):
            return False
        if mine.table is None and not _equal_tensors(left.sources, right.sources):
            return False
        pairs += [(f.value, g.value) for f, g in zip(mine.factors, theirs.factors, strict=True)]
        pairs += [] if mine.table is None else [(mine.index, theirs.index)]
    return all(_equal(analysis, a, b) for a, b in pairs if a is not None and b is not None)


def _equal(analysis: Analysis, left: int, right: int) -> bool:
    one, two = analysis.root(left), analysis.root(right)
    if analysis.canonical.get(one, one) == analysis.canonical.get(two, two):
        return True
    return _equal_tensors(analysis.value(one).kept, analysis.value(two).kept)


def _equal_tensors(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None or left.layout != right.layout or left.shape != right.shape:
        return False
    if left.layout == torch.sparse_coo:
        return torch.equal(left._indices(), right._indices()) and torch.equal(
            left._values(), right._values()
        )
    if left.layout != torch.strided:
        return left is right
    return torch.equal(left, right)


def polynomial(
    recipients: Tensor, rows: Tensor, coefficients: Tensor, size: int, powers: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Recipients, sources and entries of Σ γ_k Â^k."""
    place = (recipients.cpu().numpy(), rows.cpu().numpy())
    hop = sparse.coo_matrix(
        (coefficients.double().cpu().numpy(), place), shape=(size, size)
    ).tocsr()

    def applied(start: Any) -> Iterator[Any]:
        power, total = start, powers[0] * start
        for coefficient in powers[1:]:
            power = power @ hop
            if coefficient:
                total = total + coefficient * power
        yield total.tocsr()

    if len(powers) > 2:
        refuse_too_large(estimated_terms(applied, size), size)
    (total,) = applied(sparse.identity(size, format="csr"))
    total.sum_duplicates()
    values = total.data.copy()
    values[np.abs(values) <= NOISE * np.abs(values).max(initial=0)] = 0
    kept = values != 0
    counted = np.repeat(np.arange(size), np.diff(total.indptr))
    return (
        torch.from_numpy(counted[kept]).to(coefficients.device),
        torch.from_numpy(total.indices.astype(np.int64)[kept]).to(coefficients.device),
        torch.from_numpy(values[kept]).to(coefficients),
    )


LARGEST = 1 << 30
"""Terms beyond which to refuse in any case: places of terms are 32-bit numbers."""
BYTES_PER_TERM = 80
"""Peak memory while exposing a product of hops, measured: 44 to 65 bytes, rounded up."""
SHARE = 0.8
"""Of the memory that is available; the rest is for the model and for what follows."""
NOTEWORTHY = 1 << 25
"""Terms from which on the size is told before the work begins: it will take a while."""
SAMPLED_ENTRIES = 1 << 24
"""Numbers that a sample of rows may form: about 200 MB, a second's work."""
FEWEST, MOST = 8, 256
"""Rows in a sample."""


def estimated_terms(operators: Callable[[Any], Iterable[Any]], nodes: int) -> int:
    """How many nonzeros a filter's operators have together, from some of their rows.

    Args:
        operators: from a matrix S [m, N] the products S P(Â) for the filter's polynomials P.
        nodes: N.
    """
    count = min(nodes, max(FEWEST, min(MOST, SAMPLED_ENTRIES // max(nodes, 1))))
    rows = np.random.default_rng(0).choice(nodes, size=count, replace=False)
    sample = sparse.identity(nodes, format="csr")[np.sort(rows)]
    found = sum(int(operator.nnz) for operator in operators(sample))
    return round(found * nodes / count)


def refuse_too_large(terms: int, nodes: int) -> None:
    """Raise where the terms do not fit the machine; say it where they are many."""
    needed, free = terms * BYTES_PER_TERM, available_memory()
    size = (
        f"the paths of several hops between {nodes:,} nodes make about {terms:,} terms "
        f"({needed / 2**30:.1f} GiB while exposing"
    )
    last = "use hops='last' to expose the last hop alone"
    if free is not None and needed > SHARE * free:
        raise ExposureRefused(f"{size}, of {free / 2**30:.1f} GiB available); {last}")
    if terms > LARGEST:
        raise ExposureRefused(f"{size}), more than {LARGEST:,}; {last}")
    if terms > NOTEWORTHY:
        warnings.warn(f"{size}); {last}", stacklevel=2)


def available_memory() -> int | None:
    """Bytes that a process may still take; None where the system does not tell."""
    limits = [_meminfo(), _control_group()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _control_group() -> int | None:
    """What a container's limit leaves."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        return limit - int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
