"""What a repair did to the shown nodes, whatever kind of repair it is, and which one is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.methods import METHODS, title_of

RESERVED = ("frozen", "oracle", "nearest", "what_if", "unit")
"""What the page calls predictions that are not repairs."""

Kind = Literal["coefficients", "shift", "logits"]


class FittedLike(Protocol):
    """A fitted repair. One that reweights also has ``coefficients(exposure)``, one that
    translates ``shift(exposure)``."""

    def logits(self, exposure: Any) -> Tensor:
        """[n, C] or [S, n, C] at the recipients."""


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

    def cut(self, places: NDArray[np.int64], terms: NDArray[np.int64]) -> Correction:
        """Of some nodes and their terms."""
        kept = None if self.coefficients is None else self.coefficients[terms]
        return replace(self, logits=self.logits[places], coefficients=kept)


def correction_of(
    name: str, repair: RepairLike, exposure: Exposure, part: Exposure, member: int
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


def check_repairs(repairs: Any) -> None:
    """A mapping from names to fitted repairs or logits."""
    if repairs is None:
        return
    if not isinstance(repairs, Mapping):
        raise InputError(f"repairs is {repairs!r:.60}; give a mapping from names to fitted repairs")
    for name, repair in repairs.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a repair is called {name!r:.60}; give it a name")
        if not isinstance(repair, Tensor) and not callable(getattr(repair, "logits", None)):
            raise InputError(
                f"repair {name!r} is {repair!r:.60}; give a fitted repair (what fit returns), or "
                "logits [N, C]"
            )


def best_on(
    repairs: Mapping[str, RepairLike], exposure: Exposure, y: Tensor, nodes: Tensor, member: int
) -> str | None:
    """The repair that is right most often at the validation ``nodes``; None where none gains.

    What learned from these very labels is judged out of fold, or not at all.
    """
    part = exposure.to("cpu").restrict(nodes)
    truth = y.cpu()[part.recipients].numpy()
    frozen = part.frozen_logits[member, part.recipients].argmax(1).numpy()
    best, most = None, float((frozen == truth).mean())
    for name, repair in repairs.items():
        if hasattr(repair, "nested"):  # a ladder, weighed without each node's fold
            share = float(repair.nested[member if len(repair.nested) > 1 else 0])
        elif name in METHODS and not METHODS[name].by_default:
            continue  # what learns from validation labels, too
        else:
            answers = correction_of(name, repair, exposure.to("cpu"), part, member)
            share = float((answers.predictions == truth).mean())
        if share > most:
            best, most = _key(name), share
    return best


def _answers(
    key: str, name: str, repair: RepairLike, exposure: Exposure, part: Exposure, member: int
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
    if answers.dim() == 3:  # of several members, or of a method that keeps the axis of one
        answers = answers[member if len(answers) > 1 else 0]
    everywhere[exposure.recipients] = answers
    kind: Kind = "shift" if hasattr(repair, "shift") else "logits"
    return Correction(key, kind, everywhere[part.recipients].numpy())


def _key(name: str) -> str:
    """The name with which the page tells repairs apart; our own may be written with dashes."""
    key = name.replace("-", "_")
    if key in RESERVED:
        raise InputError(f"a repair cannot be called {name!r}, which means something else here")
    return key if key in METHODS else name


def _own_logits(name: str, logits: Tensor, part: Exposure) -> NDArray[np.float64]:
    expected = (part.num_nodes, part.num_classes)
    if tuple(logits.shape) != expected:
        raise InputError(
            f"the logits of {name!r} have shape {list(logits.shape)} instead of {list(expected)}"
        )
    own: NDArray[np.float64] = logits.detach().cpu().double()[part.recipients].numpy()
    return own
