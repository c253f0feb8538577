"""What a repair has learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gnn_repair.devices import full_precision
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.files import save_tensors
from gnn_repair.immutable import FrozenDict
from gnn_repair.notebook import shown
from gnn_repair.repair.layers import Parameters
from gnn_repair.repair.targets import check_exposure_given

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.repair.base import Repair

KIND = "gnn-repair repair"
STATISTICS = ("best_epoch", "epochs_run", "diverged")
"""Fields [S] that say how training went."""
TRY = (
    "try the evidence ladder (EvidenceLadder), which reads labels and features as well, or more "
    "validation nodes, so that small gains can show"
)
Self = TypeVar("Self", bound="FittedRepair")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedRepair(ABC):
    """A repair that has learned, for S members. Nothing in it changes."""

    one_by_one: ClassVar[bool] = False
    """Whether a recipient's logits follow from its own terms, whoever else is there."""
    repair: Repair[Any]
    """The method, with its settings."""
    width: int
    """d of the exposure it was fitted on."""
    num_classes: int
    """C."""
    parameters: Parameters
    """[S, …] trained."""
    constants: Parameters = field(default_factory=dict)
    """[S, …] (or [1, …] for all) fixed when it was fitted, such as means."""
    best_epoch: Tensor
    """[S]: the epoch whose state was kept (0: the untrained one)."""
    epochs_run: Tensor
    """[S]."""
    diverged: Tensor
    """[S] bool: training ended because the loss was not finite."""
    fingerprint: tuple[str, ...] | None = ()
    """[S]: the members' models; empty: not known; None: any model will do."""
    outputs: str = "classes"
    """What the C outputs are: ``classes`` or ``labels``."""
    f1: tuple[tuple[float, float], ...] = ()
    """[S]: micro- and macro-F1 on the validation nodes; empty for classes."""

    def __post_init__(self) -> None:
        for name in ("parameters", "constants"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))

    @property
    def num_members(self) -> int:
        """S."""
        return self.best_epoch.numel()

    @property
    def num_parameters(self) -> int:
        """Trained numbers of one member."""
        return sum(value[0].numel() for value in self.parameters.values())

    @property
    def reads(self) -> int:
        """How wide its input is."""
        return self.width

    @property
    def unchanged(self) -> Tensor:
        """[S] bool: no epoch validated better than the frozen prediction, which was kept."""
        return self.repair.starts_frozen & (self.best_epoch == 0)

    @property
    def advice(self) -> str:
        """What to try where nothing was learned, a sentence; empty where something was."""
        kept = self.unchanged.nonzero().view(-1).tolist()
        if not kept:
            return ""
        return f"no epoch validated better than the frozen prediction for {_members(kept)}; {TRY}"

    @abstractmethod
    def logits(self, exposure: Exposed) -> Tensor:
        """Repaired logits at the exposure's recipients, [S, n, C] float64."""

    @staticmethod
    @contextmanager
    def gradients(exposure: Exposed) -> Iterator[None]:
        """While open, gradients are on if they are on outside and the exposure has some; numbers
        keep their precision."""
        check_exposure_given(exposure)
        wanted = torch.is_grad_enabled() and exposure.frozen_logits.requires_grad
        with torch.set_grad_enabled(wanted), full_precision(exposure.recipients.device):
            yield

    def predict(self, exposure: Exposed) -> Tensor:
        """The repaired class of every recipient, [S, n]; of labels whether each is there,
        bool [S, n, K]."""
        logits = self.logits(exposure)
        return logits > 0 if self.outputs == "labels" else logits.argmax(2)

    # Other views of the same value ------------------------------------------------------------

    def member(self: Self, index: int) -> Self:
        """The repair of one member alone, for ``exposure.member(index)``."""
        if not 0 <= index < self.num_members:
            raise InputError(f"member {index} does not exist; there are 0..{self.num_members - 1}")
        pick = slice(index, index + 1)
        return replace(
            self,
            parameters={name: value[pick] for name, value in self.parameters.items()},
            constants={
                name: value[pick] if value.shape[0] == self.num_members else value
                for name, value in self.constants.items()
            },
            fingerprint=self.fingerprint and self.fingerprint[pick],
            f1=self.f1[pick],
            **{name: getattr(self, name)[pick] for name in STATISTICS},
        )

    def unbound(self: Self) -> Self:
        """The same repair, accepted by any model of equal sizes, on your own responsibility."""
        return replace(self, fingerprint=None)

    # Files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the repair as one safetensors file; :func:`load_repair` reads it back."""
        save_tensors(path, KIND, self.header(), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Everything in it that is a tensor, by the names of its file."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
        tensors |= {f"constants/{name}": value for name, value in self.constants.items()}
        return tensors | {name: getattr(self, name) for name in STATISTICS}

    def header(self) -> dict[str, Any]:
        """Everything else."""
        return {
            "repair": type(self.repair).__name__,
            "settings": self.repair.settings(),
            "width": self.width,
            "num_classes": self.num_classes,
            "fingerprint": None if self.fingerprint is None else list(self.fingerprint),
            "outputs": self.outputs,
            "f1": [[None if f != f else f for f in pair] for pair in self.f1],
        }

    # Does it fit? -----------------------------------------------------------------------------

    def _matching(self, exposure: Exposed) -> Parameters:
        """Parameters and constants where the exposure is, once the two fit together."""
        check_exposure_given(exposure)
        self._check_sizes(exposure)
        self._check_model(exposure)
        place, dtype = exposure.recipients.device, exposure.state.dtype
        merged = {**self.parameters, **self.constants}
        return {
            name: value.to(place, dtype if value.is_floating_point() else value.dtype)
            for name, value in merged.items()
        }

    def _check_sizes(self, exposure: Exposed) -> None:
        found = (
            exposure.state.shape[2],
            exposure.num_classes,
            exposure.num_members,
            exposure.outputs,
        )
        expected = (self.width, self.num_classes, self.num_members, self.outputs)
        names = ("state width", "classes", "members", "outputs that are")
        for name, here, there in zip(names, found, expected, strict=True):
            if here != there:
                raise InputError(
                    f"the repair was fitted with {name} {there} but the exposure has {here}; "
                    "use an exposure of the same model"
                )

    def _check_model(self, exposure: Exposed) -> None:
        """Widths agree by accident; weights do not."""
        if self.fingerprint is None or self.fingerprint == exposure.fingerprint:
            return
        if not self.fingerprint or not exposure.fingerprint:
            which = "exposure" if self.fingerprint else "repair"
            reason = f"the {which} does not say which model it belongs to"
        else:
            pairs = zip(self.fingerprint, exposure.fingerprint, strict=True)
            member = next(s for s, (mine, other) in enumerate(pairs) if mine != other)
            reason = (
                f"the repair was fitted on a model with other weights (member {member}: "
                f"{self.fingerprint[member]}, not {exposure.fingerprint[member]})"
            )
        raise InputError(
            f"{reason}; use an exposure of that model, or .unbound() if you know that it fits"
        )

    # In words ---------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a member: the epoch that was kept, epochs run, whether anything was learned."""
        import pandas as pd

        columns = {name: getattr(self, name).tolist() for name in (*STATISTICS, "unchanged")}
        if self.f1:
            columns |= {"micro_f1": [f[0] for f in self.f1], "macro_f1": [f[1] for f in self.f1]}
        return pd.DataFrame({"member": range(self.num_members), **columns})

    def _repr_html_(self) -> str:
        return shown(self, self.to_frame())

    def __repr__(self) -> str:
        members = "1 member" if self.num_members == 1 else f"{self.num_members} members"
        lines = [
            f"{self.repair.title}, fitted: {members}, {self.num_parameters:,} parameters each, "
            f"state width {self.width}, {self.num_classes} {self.outputs}"
        ]
        if self.f1:
            means = [100 * sum(column) / len(self.f1) for column in zip(*self.f1, strict=True)]
            lines.append(f"  validation micro-F1 {means[0]:.1f} %, macro-F1 {means[1]:.1f} %")
        if bool((self.epochs_run > 0).any()):
            lines.append(f"  epochs kept: {_listed(self.best_epoch.tolist())}")
        kept = self.unchanged.nonzero().view(-1).tolist()
        wild = self.diverged.nonzero().view(-1).tolist()
        notes = [f"nothing learned for {_members(kept)} (frozen prediction kept)"] * bool(kept)
        notes += [f"{_members(wild)} diverged"] * bool(wild)
        notes += [TRY] * bool(kept)
        return "\n".join(lines + ["  " + "; ".join(notes)] * bool(notes))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _members(numbers: list[int]) -> str:
    return ("member " if len(numbers) == 1 else "members ") + _listed(numbers)


def about(exposure: Exposed) -> dict[str, Any]:
    """What a fitted repair notes of the exposure it was fitted on."""
    return {
        "width": exposure.state.shape[2],
        "num_classes": exposure.num_classes,
        "fingerprint": exposure.fingerprint,
        "outputs": exposure.outputs,
    }


def untrained(exposure: Exposed) -> dict[str, Tensor]:
    """The statistics of a repair that no training loop has seen."""
    zeros = torch.zeros(exposure.num_members, dtype=torch.long, device=exposure.recipients.device)
    return {"best_epoch": zeros, "epochs_run": zeros.clone(), "diverged": zeros.bool()}
