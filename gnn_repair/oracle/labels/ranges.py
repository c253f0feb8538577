"""The interval of values that an output can take over all reweightings, with both its ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnn_repair.errors import InputError
from gnn_repair.exposure.outputs import require_outputs
from gnn_repair.exposure.truths import as_table
from gnn_repair.exposure.value import Exposure
from gnn_repair.notebook import ROWS, shown
from gnn_repair.oracle.labels.questions import ask
from gnn_repair.oracle.labels.saving import read_range, write_range
from gnn_repair.oracle.labels.solution import LabelSolution
from gnn_repair.oracle.labels.solve import solve_asked
from gnn_repair.oracle.tables import Floats

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.oracle.labels.certificate import LabelVerification


@dataclass(frozen=True, eq=False)
class ValueRange:
    """[low, high] of L outputs, ordered by member, node and output.

    The prediction is a continuous function on a connected set of reweightings, so it takes every
    value between the two ends; of an affine model it takes no other. After a nonlinear tail the
    ends that λ attain lie within the bounds that are proved.
    """

    lower: LabelSolution
    """The smallest values: how far below zero each output goes, and the λ that brings it there."""
    upper: LabelSolution
    """The largest."""
    frozen: Floats
    """[L]: what the model says as it is."""

    def __len__(self) -> int:
        return len(self.frozen)

    @property
    def low(self) -> Floats:
        """[L]: the smallest value that a λ attains."""
        return self.lower.value

    @property
    def high(self) -> Floats:
        """[L]: the largest value that a λ attains."""
        return self.upper.value

    @property
    def low_bound(self) -> Floats:
        """[L]: no reweighting goes below; ``low`` itself in closed form."""
        return self.lower.threshold - self.lower.bound

    @property
    def high_bound(self) -> Floats:
        """[L]: no reweighting goes above; ``high`` itself in closed form."""
        return self.upper.threshold + self.upper.bound

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
        value = self._values(y)
        inside: NDArray[np.bool_] = (self.low <= value) & (value <= self.high)
        return inside

    def distance(self, y: Any) -> Floats:
        """[L]: how far y is from what reweighting attains; zero inside, NaN where y is."""
        value = self._values(y)
        return np.maximum(np.maximum(self.low - value, value - self.high), 0.0)

    def mixture_for(self, index: int, value: float) -> tuple[Any, Floats]:
        """Terms and λ that give output ``index`` exactly this value: the two ends mixed.

        In closed form only: between them a tail need not be linear.
        """
        low, high = float(self.low[index]), float(self.high[index])
        if not self.exact or not low <= value <= high:
            why = "its tail is not linear" if not self.exact else f"it lies in [{low:g}, {high:g}]"
            raise InputError(f"{self.lower.subject(index)} cannot be mixed to {value:g}: {why}")
        share = (value - low) / (high - low) if high > low else 0.0
        parts = [(self.lower[index], 1 - share), (self.upper[index], share)]
        terms = np.concatenate([end.terms for end, _ in parts])
        weight = np.concatenate([end.coefficients * part for end, part in parts])
        chosen, place = np.unique(terms, return_inverse=True)
        mixed: Floats = np.bincount(place, weight, len(chosen)).astype(np.float64)
        return chosen[mixed > 0], mixed[mixed > 0]

    def _values(self, y: Any) -> Floats:
        """y of every question, [L]."""
        table = torch.as_tensor(y)
        nodes = int(self.lower.node.max(initial=-1)) + 1
        columns = int(self.lower.target.max(initial=0)) + 1
        wide = table.shape[1] if table.dim() == 2 else 1
        if not table.shape[:1] or table.shape[0] < nodes or wide < columns:
            raise InputError(f"y has shape {list(table.shape)}; give a value for every node")
        held = as_table(table, (table.shape[0], wide)).cpu().numpy()
        values: Floats = held[self.lower.node, self.lower.target]
        return values

    def check(self, exposure: Any) -> tuple[LabelVerification, LabelVerification]:
        """Verify both ends from the exposure alone; both must be true."""
        return self.lower.check(exposure), self.upper.check(exposure)

    def save(self, path: str | Path) -> None:
        """Write the range as one safetensors file."""
        ends = {}
        for name, end in (("low", self.lower), ("high", self.upper)):
            arrays, header = end.written()
            ends[name] = ({**arrays, "frozen": self.frozen}, header)
        write_range(path, ends)

    @classmethod
    def load(cls, path: str | Path) -> ValueRange:
        """Read what :meth:`save` wrote; everything that can be checked without the exposure is."""
        ends = read_range(path)
        frozen = [end.pop("frozen") for end in ends.values()]
        return cls(LabelSolution(**ends["low"]), LabelSolution(**ends["high"]), frozen[0])

    def to_frame(self) -> pd.DataFrame:
        """One row an output of a node: value, ends, and who is listened to at each."""
        from gnn_repair.oracle.labels.frames import range_frame

        return range_frame(self)

    def __getitem__(self, index: slice) -> ValueRange:
        if not isinstance(index, slice):
            raise InputError("a range is cut by a slice; .lower[i] and .upper[i] are its ends")
        return ValueRange(self.lower[index], self.upper[index], self.frozen[index])

    def sentence(self, index: int) -> str:
        """One range in words."""
        low, high = self.lower[index], self.upper[index]
        if not len(low.terms):
            return str(low)
        text = (
            f"{low.subject} is {self.frozen[index]:.4g}; reweighting takes it from "
            f"{self.low[index]:.4g} using {low.senders()} to {self.high[index]:.4g} using "
            f"{high.senders()}"
        )
        if self.exact:
            return text
        return f"{text}, never beyond [{self.low_bound[index]:.4g}, {self.high_bound[index]:.4g}]"

    def _repr_html_(self) -> str:
        return shown(self, self[:ROWS].to_frame(), len(self))

    def __str__(self) -> str:
        if not len(self):
            return "ValueRange of nothing"
        width = self.width
        kind = "exact" if self.exact else "attained, within proved bounds"
        return (
            f"ValueRange of {len(self):,} outputs ({kind}): width {np.median(width):.4g} in the "
            f"median, {width.min():.4g} to {width.max():.4g}"
        )

    __repr__ = __str__


def value_range(
    exposure: Exposure | Any,
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
        effort: for models with a tail only, as for :func:`solve_oracle`.
    """
    if not isinstance(exposure, Exposure):
        from gnn_repair.oracle.labels.links import link_range

        return link_range(exposure, nodes, threads=threads, effort=effort)
    require_outputs(exposure, "values", "labels")
    return range_of(exposure, nodes, outputs, threads, effort)


def range_of(
    exposure: Exposure,
    nodes: Any,
    outputs: Any,
    threads: int | None,
    effort: str | float,
) -> ValueRange:
    """The same once the exposure is known to be of single outputs."""
    if exposure.head is not None:
        from gnn_repair.oracle.labels.tail_ranges import tail_range

        return tail_range(exposure, nodes, outputs, effort)
    low, high = (
        solve_asked(exposure, ask(exposure, side, nodes, outputs, 0.0), 0.0, threads)
        for side in (False, True)
    )
    frozen = exposure.frozen_logits.cpu().numpy()
    return ValueRange(low, high, frozen[low.member, low.node, low.target])
