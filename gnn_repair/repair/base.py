"""What a repair is before it is fitted."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from gnn_repair.backbones.base import stack_parameters
from gnn_repair.budget import check_real, check_whole
from gnn_repair.devices import choose_device, full_precision, out_of_memory_hint, seeded
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposed
from gnn_repair.f1 import f1_of
from gnn_repair.files.headers import dataclass_hints
from gnn_repair.repair.fitted import FittedRepair, about
from gnn_repair.repair.fitting import RepairTrainee
from gnn_repair.repair.focus import around
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import Noise, Parameters
from gnn_repair.repair.methods import METHODS, method_of
from gnn_repair.repair.progress import Listener
from gnn_repair.repair.targets import Targets, check_exposure_given, find_targets
from gnn_repair.training import Budget, Fitted, ProgressCallback, fit

if TYPE_CHECKING:
    from torch_geometric.data import Data

F = TypeVar("F", bound=FittedRepair)


@dataclass(frozen=True)
class Repair(ABC, Generic[F]):
    """A way to correct a frozen model's logits. Settings are its fields."""

    title: ClassVar[str]
    """Its name wherever people read it: that of its declaration, else of the class."""
    takes_labels: ClassVar[bool] = False
    """Whether it also learns several labels a node, by their binary cross-entropy."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = method_of(cls)
        if "title" not in vars(cls):
            cls.title = declared.title if declared else cls.__name__

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """The repair as a study's ``RepairProtocol`` asks for it; as it is unless overridden."""
        return cls()

    def fit(
        self,
        exposure: Exposed,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
        progress: bool = False,
    ) -> F:
        """Learn from training labels, select on validation labels.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in a mask are read. Where the exposure's outputs
                are labels, [N, K] zeros and ones (NaN or −1: unknown).
            train_mask: bool [N], or [N, S] with a column per member.
            val_mask: likewise, disjoint from it.
            data: the graph with ``edge_index`` and ``x``, for repairs that read it, such as the
                evidence ladder; the others do not look at it.
            batch_size: targets an update sees, each with its complete set; all unless given.
                Where nothing is trained it does not matter.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
            progress: whether to show how far it is, in a terminal or a notebook; the logger
                ``gnn_repair.repair`` is told either way.
        """
        check_exposure_given(exposure)
        if batch_size is not None:
            check_whole("fit", "batch_size", batch_size, 1)
        place = choose_device(device)
        listener = Listener(self.title, on_progress, progress, exposure.outputs)
        hint = f"fitting {self.title} for {exposure.num_members} members"
        with out_of_memory_hint(hint), full_precision(place), listener:
            placed = on_device(exposure, place)
            train, val = find_targets(placed, y, train_mask, val_mask, self.takes_labels)
            fitted = self.learn_with(placed, train, val, data, batch_size, listener.callback)
        return listener.told(fitted)

    def learn_with(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        data: Data | None,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Learn, from the graph as well where a repair reads it."""
        return self.learn(exposure, train, val, batch_size, on_progress)

    @abstractmethod
    def learn(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Learn from targets that are known to be sound, where the exposure is."""

    @property
    def starts_frozen(self) -> bool:
        """Whether epoch zero is a candidate, and the frozen prediction."""
        return False

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

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """The types that :meth:`settings` has in a file."""
        return dataclass_hints(cls)

    @property
    def most_epochs(self) -> int:
        """How many epochs a member can run; 0 where nothing is trained."""
        return 0

    @abstractmethod
    def fitted(self, **values: Any) -> F:
        """The fitted value with these fields."""

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like."""
        return {}

    def claims(self, fitted: F) -> int:
        """How many channels its widest layer claims; what is read must hold as many numbers."""
        return 0

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

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not isinstance(self.budget, Budget):
            raise InputError(f"{owner}: budget is {self.budget!r}; give a Budget")
        check_real(owner, "dropout", self.dropout, 0, 1)
        check_whole(owner, "seed", self.seed, 0)

    @property
    def starts_frozen(self) -> bool:
        """As the budget says."""
        return self.budget.epoch_zero

    @property
    def most_epochs(self) -> int:
        """As the budget says."""
        return self.budget.epochs

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposed) -> Self:
        """With the protocol's seed, and its budget, dropout and width where it has them."""
        name = next((key for key, m in METHODS.items() if m == method_of(cls)), "")
        own = {field.name for field in fields(cls)} & {"seed", *cls.shared_settings}
        values = {field: getattr(settings, field) for field in own}
        if isinstance(budget := getattr(settings, name, None), Budget):
            values["budget"] = budget
        return cls(**values)

    shared_settings: ClassVar[tuple[str, ...]] = ("dropout", "hidden")
    """Settings that the protocol has once for all repairs, and that this one takes from it."""

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

    def learn(
        self,
        exposure: Exposed,
        train: Targets,
        val: Targets,
        batch_size: int | None,
        on_progress: ProgressCallback | None,
    ) -> F:
        """Train on the training targets; validation accuracy decides which epoch is kept.

        Of labels it is micro-F1 on the validation targets.
        """
        needed, train, val = around(exposure, train, val)
        inputs = repair_inputs(needed)
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
        # Ours draw nothing from PyTorch's generators; a repair of one's own may.
        with seeded(self.seed, inputs.device):
            outcome = fit(trainee, self.budget, on_progress)
        self._warn_diverged(outcome)
        return self.fitted(
            **about(exposure),
            parameters={name: value.detach() for name, value in outcome.parameters.items()},
            constants=constants,
            best_epoch=outcome.best_epoch,
            epochs_run=outcome.epochs_run,
            diverged=outcome.diverged,
            f1=self._validation_f1({**outcome.parameters, **constants}, inputs, val),
        )

    @torch.no_grad()
    def _validation_f1(
        self, p: Parameters, inputs: RepairInputs, val: Targets
    ) -> tuple[tuple[float, float], ...]:
        """Micro- and macro-F1 of every member on its validation targets; of labels only."""
        if val.truths is None:
            return ()
        logits = self.corrected(p, inputs, self.tables(p, inputs), val.positions, None)
        found = []
        for member, size in enumerate(val.sizes.tolist()):
            truths = val.truths[val.positions[member, :size]]
            score = f1_of(logits[member, :size] > 0, truths)
            found.append((score.micro, score.macro))
        return tuple(found)

    def _warn_diverged(self, outcome: Fitted) -> None:
        for member in outcome.diverged.nonzero().view(-1).tolist():
            warnings.warn(
                f"{self.title} of member {member} diverged; "
                f"its state of epoch {int(outcome.best_epoch[member])} was kept",
                stacklevel=5,  # whoever called fit
            )

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, the same for every member, [S, …]."""
        with seeded(self.seed):
            network = self.network(self.reads(inputs), inputs.num_classes)
        stacked = stack_parameters(network.to(inputs.dtype), inputs.num_members)
        return {name: value.to(inputs.device) for name, value in stacked.items()}

    def num_parameters(self, width: int, classes: int) -> int:
        """Trained numbers of one member."""
        return sum(math.prod(shape) for shape in self._network_shapes(width, classes).values())

    def claims(self, fitted: F) -> int:
        """The widest of what is read, hidden and told."""
        return max(getattr(self, "hidden", None) or 1, fitted.num_classes, fitted.reads)

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like."""
        return self._network_shapes(fitted.reads, fitted.num_classes)

    def _network_shapes(self, width: int, classes: int) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):  # nothing is drawn, so nobody's generator moves
            network = self.network(width, classes)
        return {
            name: tuple(value.t().shape if value.dim() == 2 else value.shape)
            for name, value in network.named_parameters()
        }


def on_device(exposure: Exposed, device: torch.device) -> Exposed:
    """The exposure on that device; itself where it is there already."""
    here = exposure.recipients.device
    same = here.type == device.type and (device.index is None or here.index == device.index)
    return exposure if same else exposure.to(device)
