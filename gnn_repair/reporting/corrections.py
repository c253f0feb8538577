"""What a repair did to the shown nodes, whatever kind of repair it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import METHODS, title_of

RESERVED = ("frozen", "oracle", "what_if", "unit")
"""What the page calls predictions that are not repairs."""

Kind = Literal["coefficients", "shift", "logits"]


class FittedLike(Protocol):
    """A fitted repair. One that reweights also has ``coefficients(exposure)``, one that
    translates ``shift(exposure)``."""

    def logits(self, exposure: Any) -> Tensor:
        """[S, n, C] at the recipients."""


AnyExposure = Exposure
RepairLike = FittedLike | Tensor
"""A fitted repair, or the logits [N, C] of a method of one's own."""


@dataclass(frozen=True, eq=False)
class Correction:
    """One repair's answers at n nodes."""

    name: str
    kind: Kind
    logits: NDArray[np.float64]
    """[n, C]."""
    coefficients: NDArray[np.float64] | None = None
    """[T]: λ, where the repair reweights."""

    @property
    def title(self) -> str:
        """The name as people read it."""
        return title_of(self.name)

    @property
    def predictions(self) -> NDArray[np.int64]:
        """[n]."""
        return self.logits.argmax(1)


def correction_of(
    name: str, repair: RepairLike, exposure: AnyExposure, part: AnyExposure, member: int
) -> Correction:
    """The repair's answers at the recipients of ``part``, a cut of ``exposure``."""
    found = _answers(_key(name), name, repair, exposure, part, member)
    off = np.argwhere(~np.isfinite(found.logits))
    if len(off):
        node = part.names.node(int(part.recipients[off[0, 0]]))
        raise InputError(
            f"the logits of {name!r:.60} at {node} hold {found.logits[tuple(off[0])]}; give finite "
            "numbers, such as logits before a softmax"
        )
    return found


def _answers(
    key: str, name: str, repair: RepairLike, exposure: AnyExposure, part: AnyExposure, member: int
) -> Correction:
    if isinstance(repair, Tensor):
        return Correction(key, "logits", _own_logits(name, repair, part))
    asked: Any = repair
    if hasattr(repair, "coefficients"):
        coefficients = asked.coefficients(part).detach().cpu().double()
        logits = part.logits(coefficients)[member].numpy()
        return Correction(key, "coefficients", logits, coefficients[member].numpy())
    # A method may look at all recipients at once, so it sees the whole exposure.
    everywhere = torch.empty(part.num_nodes, part.num_classes, dtype=torch.float64)
    answers = repair.logits(exposure).detach().cpu().double()
    everywhere[exposure.recipients] = answers[member if answers.shape[0] > 1 else 0]
    kind: Kind = "shift" if hasattr(repair, "shift") else "logits"
    return Correction(key, kind, everywhere[part.recipients].numpy())


def _key(name: str) -> str:
    """The name with which the page tells repairs apart; our own may be written with dashes."""
    key = name.replace("-", "_")
    if key in RESERVED:
        raise InputError(f"a repair cannot be called {name!r}, which means something else here")
    return key if key in METHODS else name


def _own_logits(name: str, logits: Tensor, part: AnyExposure) -> NDArray[np.float64]:
    expected = (part.num_nodes, part.num_classes)
    if tuple(logits.shape) != expected:
        raise InputError(
            f"the logits of {name!r} have shape {list(logits.shape)} instead of {list(expected)}"
        )
    own: NDArray[np.float64] = logits.detach().cpu().double()[part.recipients].numpy()
    return own
