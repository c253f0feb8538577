"""What a repair is before and after it is fitted."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from gnn_repair.backbones.base import stack_parameters
from gnn_repair.devices import choose_device, out_of_memory_hint
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.files import save_tensors
from gnn_repair.repair.fitting import RepairTrainee, Targets, find_targets
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import Noise, Parameters
from gnn_repair.training import Budget, Fitted, ProgressCallback, fit

KIND = "gnn-repair repair"


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedRepair(ABC):
    """A repair that has learned, for S members. Nothing in it changes."""

    repair: Repair[Any]
    """The method, with its settings."""
    width: int
    """d of the exposure it was fitted on."""
    num_classes: int
    """C."""
    parameters: Parameters
    """[S, …] trained."""
    constants: Parameters = field(default_factory=dict)
    """[S, …] fixed when it was fitted, such as means."""
    best_epoch: Tensor
    """[S]: the epoch whose state was kept (0: the frozen prediction)."""
    epochs_run: Tensor
    """[S]."""
    diverged: Tensor
    """[S] bool: training ended because the loss was not finite."""

    def __post_init__(self) -> None:
        for name in ("parameters", "constants"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

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

    @abstractmethod
    def logits(self, exposure: Exposure) -> Tensor:
        """Repaired logits at the exposure's recipients, [S, n, C] float64."""

    def predict(self, exposure: Exposure) -> Tensor:
        """The repaired class of every recipient, [S, n]."""
        return self.logits(exposure).argmax(2)

    def save(self, path: str | Path) -> None:
        """Write the repair as one safetensors file; :func:`load_repair` reads it back."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
        tensors |= {f"constants/{name}": value for name, value in self.constants.items()}
        tensors |= {name: getattr(self, name) for name in ("best_epoch", "epochs_run", "diverged")}
        header = {
            "repair": type(self.repair).__name__,
            "settings": self.repair.settings(),
            "width": self.width,
            "num_classes": self.num_classes,
        }
        save_tensors(path, KIND, header, tensors)

    def _matching(self, exposure: Exposure) -> Parameters:
        """Parameters and constants where the exposure is, once the two fit together."""
        found = (exposure.state.shape[2], exposure.num_classes, exposure.num_members)
        expected = (self.width, self.num_classes, self.num_members)
        for name, here, there in zip(
            ("state width", "classes", "members"), found, expected, strict=True
        ):
            if here != there:
                raise InputError(
                    f"the repair was fitted with {name} {there} but the exposure has {here}; "
                    "use an exposure of the same model"
                )
        place, dtype = exposure.recipients.device, exposure.state.dtype
        merged = {**self.parameters, **self.constants}
        return {name: value.to(place, dtype) for name, value in merged.items()}


F = TypeVar("F", bound=FittedRepair)


@dataclass(frozen=True)
class Repair(ABC, Generic[F]):
    """A way to correct a frozen model's logits. Settings are its fields."""

    title: ClassVar[str]
    """The name in tables."""
    from_paper: ClassVar[bool] = True
    """Whether it is one of the paper's repairs and controls."""

    @abstractmethod
    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> F:
        """Learn from training labels, select on validation labels."""

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Repair[F]:
        """The inverse of :meth:`settings`."""
        values = dict(settings)
        if isinstance(values.get("budget"), Mapping):
            values["budget"] = Budget(**values["budget"])
        return cls(**values)

    @abstractmethod
    def fitted(self, **values: Any) -> F:
        """The fitted value with these fields."""

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like."""
        return {}

    def check_constants(self, fitted: F) -> None:
        """Raise :class:`InputError` where constants read from a file could not have been fitted."""
        if fitted.constants:
            raise InputError(f"{self.title} has no constant {next(iter(fitted.constants))[:80]!r}")


@dataclass(frozen=True)
class TrainedRepair(Repair[F]):
    """A repair whose parameters the training loop finds, for all members at once."""

    budget: Budget
    dropout: float = 0.2
    seed: int = 0

    @abstractmethod
    def network(self, width: int, classes: int) -> nn.Module:
        """One member's parameters, initialised, for inputs as wide as :meth:`reads` says."""

    def reads(self, inputs: RepairInputs) -> int:
        """How wide the input is: d."""
        return inputs.width

    def constants(self, inputs: RepairInputs, train: Targets) -> dict[str, Tensor]:
        """What is fixed before training."""
        return {}

    def tables(self, p: Parameters, inputs: RepairInputs) -> Any:
        """What all targets read."""
        return None

    @abstractmethod
    def corrected(
        self, p: Parameters, inputs: RepairInputs, tables: Any, targets: Tensor, noise: Noise | None
    ) -> Tensor:
        """Repaired logits of targets [S, L], [S, L, C]."""

    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
    ) -> F:
        """Train on the masks' nodes; the best validation accuracy decides which epoch is kept.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read.
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it.
            batch_size: targets an update sees, each with its complete set; all unless given.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
        """
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be at least 1, or None for all")
        place = choose_device(device)
        with out_of_memory_hint(f"fitting {self.title} for {exposure.num_members} members"):
            placed = on_device(exposure, place)
            train, val = find_targets(placed, y, train_mask, val_mask)
            inputs = repair_inputs(placed)
            return self._train(inputs, train, val, batch_size, on_progress)

    def _train(
        self,
        inputs: RepairInputs,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        constants = self.constants(inputs, train)
        trainee = RepairTrainee(
            self.initial(inputs),
            lambda p: self.tables(p, inputs),
            lambda p, *rest: self.corrected({**p, **constants}, inputs, *rest),
            train,
            val,
            dropout=self.dropout,
            batch_size=batch_size,
            seed=self.seed,
        )
        devices = [inputs.device.index or 0] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self.seed)
            outcome = fit(trainee, self.budget, on_progress)
        self._warn_diverged(outcome)
        return self.fitted(
            width=inputs.width,
            num_classes=inputs.num_classes,
            parameters={name: value.detach() for name, value in outcome.parameters.items()},
            constants=constants,
            best_epoch=outcome.best_epoch,
            epochs_run=outcome.epochs_run,
            diverged=outcome.diverged,
        )

    def _warn_diverged(self, outcome: Fitted) -> None:
        for member in outcome.diverged.nonzero().view(-1).tolist():
            warnings.warn(
                f"{self.title} of member {member} diverged; "
                f"its state of epoch {int(outcome.best_epoch[member])} was kept",
                stacklevel=5,
            )

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, the same for every member, [S, …]."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            network = self.network(self.reads(inputs), inputs.num_classes)
        stacked = stack_parameters(network.to(inputs.dtype), inputs.num_members)
        return {name: value.to(inputs.device) for name, value in stacked.items()}

    def num_parameters(self, width: int, classes: int) -> int:
        """Trained numbers of one member."""
        return sum(value.numel() for value in self.network(width, classes).parameters())

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like."""
        with torch.device("meta"):  # nothing is allocated, whatever sizes a file claims
            network = self.network(fitted.reads, fitted.num_classes)
        return {
            name: tuple(value.t().shape if value.dim() == 2 else value.shape)
            for name, value in network.named_parameters()
        }


def on_device(exposure: Exposure, device: torch.device) -> Exposure:
    """The exposure on that device; itself where it is there already."""
    here = exposure.recipients.device
    same = here.type == device.type and (device.index is None or here.index == device.index)
    return exposure if same else exposure.to(device)
