"""The interval of values that an output can take over all reweightings, with both its ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError, kind_of
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import as_table, require_outputs
from gnn_repair.exposure.value import Exposure
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors
from gnn_repair.notebook import ROWS, html_view
from gnn_repair.oracle.certificate import ROUNDING, Verification
from gnn_repair.oracle.heads.solve import to_cpu
from gnn_repair.oracle.lps import check_threads
from gnn_repair.oracle.problems import (
    Floats,
    Problems,
    pose_label_problems,
    require_exposure,
    whole_number,
)
from gnn_repair.oracle.solution import OutputPart, Solution, from_file, replace_answers, to_file
from gnn_repair.oracle.solver import join_parts, name_links, restore_order, solve_labels, solve_part
from gnn_repair.oracle.witness import about, within

if TYPE_CHECKING:
    import pandas as pd

KIND = "gnn-repair value range"
SHARES = (0.5, 0.5, 0.75, 0.9)
"""Where between what is attained and its bound an end is asked about again: what two halvings leave
open is mostly a bound that is loose, and closer to it the same lines prove more."""
CLOSE = 1e-4
"""A gap this small beside the values is left: twelve halvings further nobody would see it."""


@dataclass(frozen=True, eq=False)
class ValueRange:
    """[low, high] of L outputs, ordered by member, node and output.

    The prediction is a continuous function on a connected set of reweightings, so it takes every
    value between the two ends; of an affine model it takes no other. After a nonlinear head the
    ends that λ attain lie within the bounds that are proved. α is one of the reweightings: however
    sums are rounded, the prediction lies between the ends.
    """

    lower: Solution
    """The smallest values: how far below zero each output goes, and the λ that brings it there."""
    upper: Solution
    """The largest."""
    frozen: Floats
    """[L]: what the model says as it is."""

    def __len__(self) -> int:
        return len(self.frozen)

    @property
    def low(self) -> Floats:
        """[L]: the smallest value that a λ attains."""
        return np.minimum(self.lower.value, self.frozen)

    @property
    def high(self) -> Floats:
        """[L]: the largest value that a λ attains."""
        return np.maximum(self.upper.value, self.frozen)

    @property
    def low_bound(self) -> Floats:
        """[L]: no reweighting goes below; ``low`` itself in closed form."""
        return np.minimum(self.lower.threshold - self.lower.bound, self.frozen)

    @property
    def high_bound(self) -> Floats:
        """[L]: no reweighting goes above; ``high`` itself in closed form."""
        return np.maximum(self.upper.threshold + self.upper.bound, self.frozen)

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """[L], [L]: what other values are compared with, ``low`` and ``high`` less and more by the
        rounding of sums of their size."""
        slack = ROUNDING * np.maximum(np.abs(self.low), np.abs(self.high))
        return self.low - slack, self.high + slack

    @property
    def width(self) -> Floats:
        """[L]: high − low: how much the prediction hangs on how messages are weighed."""
        return self.high - self.low

    @property
    def exact(self) -> bool:
        """Whether the attained ends are the bounds."""
        return not self.lower.parts

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """[L]: whether some reweighting gives node v the value y, [N] or [N, K]."""
        (low, high), value = self.ends, self.true_values(y)
        return np.asarray((low <= value) & (value <= high))

    def distance(self, y: Any) -> Floats:
        """[L]: how far y is from what reweighting attains; zero inside, NaN where y is."""
        value = self.true_values(y)
        beyond = np.maximum(self.low - value, value - self.high)
        return np.where(self.contains(y), 0.0, beyond)

    def mixture_for(self, index: int, value: float) -> tuple[Any, Floats]:
        """Terms and λ that give output ``index`` exactly this value: the two ends mixed.

        In closed form only: between them a head need not be linear.
        """
        index = self._place(index)
        low, high = float(self.low[index]), float(self.high[index])
        if not self.exact or not self.ends[0][index] <= value <= self.ends[1][index]:
            why = "its head is not linear" if not self.exact else f"it lies in [{low:g}, {high:g}]"
            raise InputError(f"{self.lower.subject(index)} cannot be mixed to {value:g}: {why}")
        share = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0
        parts = [(self.lower[index], 1 - share), (self.upper[index], share)]
        terms = np.concatenate([end.terms for end, _ in parts])
        weight = np.concatenate([end.coefficients * part for end, part in parts])
        chosen, place = np.unique(terms, return_inverse=True)
        mixed: Floats = np.bincount(place, weight, len(chosen)).astype(np.float64)
        return chosen[mixed > 0], mixed[mixed > 0]

    def _place(self, index: Any) -> int:
        """The place of an output, counted from the end where negative."""
        place, count = whole_number(index, "an index of a range"), len(self)
        if not -count <= place < count:
            raise InputError(f"output {place} of the range does not exist; there are {count}")
        return place % count

    def true_values(self, y: Any) -> Floats:
        """y of every question, [L]."""
        try:
            table = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"y is {kind_of(y)}; give a tensor of values, [N, K]") from None
        nodes = int(self.lower.node.max(initial=-1)) + 1
        columns = int(self.lower.target.max(initial=0)) + 1
        wide = table.shape[1] if table.dim() == 2 else 1
        if not table.shape[:1] or table.shape[0] < nodes or wide < columns:
            noun = self.lower.names.recipient
            raise InputError(
                f"y has shape {list(table.shape)}; give a value for every {noun} and output, [N, K]"
            )
        held = as_table(table, (table.shape[0], wide)).cpu().numpy()
        values: Floats = held[self.lower.node, self.lower.target]
        return values

    def check(self, exposure: Any) -> tuple[Verification, Verification]:
        """Verify both ends from the exposure alone; both must be true."""
        return self.lower.check(exposure), self.upper.check(exposure)

    def save(self, path: str | Path) -> None:
        """Write the range as one safetensors file."""
        header: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for end, solution in (("low", self.lower), ("high", self.upper)):
            header[end], arrays = to_file(solution)
            arrays["frozen"] = torch.from_numpy(np.ascontiguousarray(self.frozen))
            tensors |= {f"{end}/{name}": array for name, array in arrays.items()}
        save_tensors(path, KIND, header, tensors)

    @classmethod
    def load(cls, path: str | Path) -> ValueRange:
        """Read what :meth:`save` wrote; everything that can be checked without the exposure is."""
        header, tensors = load_tensors(path, KIND)
        with contents_of(path):
            check_fields(header, {"low": dict, "high": dict}, "header")
            if any(name.partition("/")[0] not in header for name in tensors):
                raise InputError("it holds more than two ends")
            (low, frozen), (high, _) = (_read_end(header[e], tensors, e) for e in ("low", "high"))
            same = ("member", "node", "target")
            if any((getattr(low, n) != getattr(high, n)).any() for n in same):
                raise InputError("its two ends are not of the same outputs")
            return cls(low, high, frozen)

    def to_frame(self) -> pd.DataFrame:
        """One row per output of a node: value, ends, and who is listened to at each."""
        import pandas as pd

        lower, upper = self.lower, self.upper
        ends = {"value": self.frozen, "low": self.low, "high": self.high}
        if not self.exact:
            ends |= {"low_bound": self.low_bound, "high_bound": self.high_bound}
        messages = {"messages_low": lower.key_messages(), "messages_high": upper.key_messages()}
        return pd.DataFrame({**lower.subjects(), **ends, **messages})

    def __getitem__(self, index: slice) -> ValueRange:
        if not isinstance(index, slice):
            raise InputError("a range is cut by a slice; .lower[i] and .upper[i] are its ends")
        return ValueRange(self.lower[index], self.upper[index], self.frozen[index])

    def sentence(self, index: int) -> str:
        """One range in words."""
        index = self._place(index)
        low, high = self.lower[index], self.upper[index]
        if not len(low.terms):
            return str(low)
        text = (
            f"{within(low.subject, low.scope)} is {self.frozen[index]:.4g}; reweighting takes it "
            f"from {self.low[index]:.4g} using {low.senders()} to {self.high[index]:.4g} using "
            f"{high.senders()}"
        )
        if self.exact:
            return text
        return f"{text}, never beyond [{self.low_bound[index]:.4g}, {self.high_bound[index]:.4g}]"

    def _repr_html_(self) -> str:
        return html_view(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        if not len(self):
            return "ValueRange of nothing"
        width = self.width
        kind = "exact" if self.exact else "attained, within proved bounds"
        return (
            f"ValueRange of {len(self):,} outputs ({kind}): width {np.median(width):.4g} in the "
            f"median, {width.min():.4g} to {width.max():.4g}{about(self.lower.scope)}"
        )

    __repr__ = __str__


def _read_end(
    words: dict[str, Any], tensors: Mapping[str, torch.Tensor], end: str
) -> tuple[Solution, Floats]:
    """One end and the frozen values of a file."""
    start = f"{end}/"
    own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
    frozen = own.pop("frozen", torch.empty(0)).numpy()
    solution = from_file(words, own)
    fits = frozen.shape == solution.margin.shape and frozen.dtype == np.float64
    if not fits or not np.isfinite(frozen).all():
        raise InputError("frozen does not fit the ends")
    return solution, frozen


def value_range(
    exposure: Exposure | LinkExposure,
    nodes: Any = None,
    *,
    outputs: Any = None,
    threads: int | None = None,
    effort: str | float = "normal",
) -> ValueRange:
    """The values each output can take when the same messages are weighed differently.

        [ min z_k(λ), max z_k(λ) ]  over  λ ≥ 0,  Σ_{a∈g} λ_a = m_g for every group g

    Args:
        exposure: of a model with values or labels as outputs, or of links.
        nodes: a mask [N] or [N, S], node numbers, or None for all.
        outputs: numbers of the outputs asked about; all unless given.
        threads: worker threads; all cores unless given.
        effort: for models with a head only, as for :func:`solve`.
    """
    check_threads(threads)
    if isinstance(exposure, LinkExposure):
        numbers = exposure.numbers(nodes)
        ranges = value_range(exposure.mixture, numbers, threads=threads, effort=effort)
        low, high = (name_links(exposure, end) for end in (ranges.lower, ranges.upper))
        return ValueRange(low, high, ranges.frozen)
    require_exposure(exposure)
    require_outputs(exposure, "values", "labels")
    asked = [pose_label_problems(exposure, side, nodes, outputs, 0.0) for side in (False, True)]
    if exposure.head is None:
        low, high = (solve_labels(exposure, one, 0.0, threads) for one in asked)
    else:
        exposure = to_cpu(exposure)
        low, high = (_end(exposure, one, effort) for one in asked)
    frozen = exposure.frozen_logits.cpu().numpy()
    return ValueRange(low, high, frozen[low.member, low.node, low.target])


# Behind a head ------------------------------------------------------------------------------------

# Whether an output can exceed θ is a question that the solver of heads answers. Asked first at the
# frozen value, it gives an attained end and a bound; asked again between the two, it moves one of
# them there.


def _end(exposure: Exposure, asked: Problems, effort: str | float) -> Solution:
    """The best of several rounds, each asked at its own thresholds."""
    outputs = np.unique(asked.target).tolist()
    ends, parts = zip(*(_rounds(exposure, asked, k, effort) for k in outputs), strict=True)
    return replace(restore_order(asked, ends), parts=tuple(chain(*parts)))


def _rounds(
    exposure: Exposure, asked: Problems, output: int, effort: str | float
) -> tuple[Solution, list[OutputPart]]:
    asked = asked.taken(asked.target == output)
    assert asked.wanted is not None
    sign = 1.0 if asked.wanted[0] else -1.0
    limit = exposure.frozen_logits[0, :, output].clone()
    best: Solution | None = None
    parts: list[OutputPart] = []
    chosen = asked
    for share in (*SHARES, 1.0):
        part = solve_part(exposure, chosen, output, limit.clone(), effort)
        parts.append(part)
        solution = join_parts(exposure, [part], chosen, 0.0)
        moved = sign * limit.numpy()[solution.node]  # margins against zero, not against the limit
        solution = replace(solution, margin=solution.margin + moved, bound=solution.bound + moved)
        best = solution if best is None else _better(best, solution)
        wide = np.isfinite(best.bound) & (best.gap > CLOSE * (1 + np.abs(best.margin)))
        if not wide.any():
            break
        between = sign * (best.margin + share * best.gap)
        limit[torch.from_numpy(best.node[wide])] = torch.from_numpy(between[wide])
        chosen = asked.taken(np.isin(asked.position, best.recipient[wide]))
    assert best is not None
    return best, parts


def _better(old: Solution, new: Solution) -> Solution:
    """Of each question the larger margin with its λ, and the smaller bound; ``new`` are some of the
    same questions, in the same order."""
    place, bound = np.flatnonzero(np.isin(old.recipient, new.recipient)), old.bound.copy()
    bound[place] = np.minimum(bound[place], new.bound)
    larger = np.flatnonzero(new.margin > old.margin[place])
    kept = replace_answers(old, place[larger], new.taken(larger))
    # What was found may lie beyond what was proved by the rounding of the model itself.
    return replace(kept, bound=bound)
