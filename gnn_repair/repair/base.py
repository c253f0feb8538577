"""What a repair is, what it is fitted to, and what it has learned."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen
from gnn_repair.backbones.base import stack_parameters
from gnn_repair.budget import check_real, check_whole
from gnn_repair.devices import choose_device, full_precision, out_of_memory_hint, seeded
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.f1 import f1_of
from gnn_repair.files import dataclass_hints, save_tensors
from gnn_repair.immutable import FrozenDict
from gnn_repair.notebook import shown
from gnn_repair.repair.fitting import Listener, RepairTrainee
from gnn_repair.repair.inputs import RepairInputs, repair_inputs
from gnn_repair.repair.layers import Noise, Parameters
from gnn_repair.repair.targets import (
    Targets,
    around,
    check_exposure_given,
    check_graph_data,
    find_targets,
    with_dense_features,
)
from gnn_repair.training import Budget, Fitted, ProgressCallback, fit

KIND = "gnn-repair repair"
STATISTICS = ("best_epoch", "epochs_run", "diverged")
"""Fields [S] that say how training went."""
TRY = (
    "try the evidence ladder (EvidenceLadder), which reads labels and features as well, or more "
    "validation nodes, so that small gains can show"
)
F = TypeVar("F", bound="FittedRepair[Any]")
R = TypeVar("R", bound="Repair[Any]")


@dataclass(frozen=True, eq=False)
class Task:
    """What a repair is fitted to: a frozen model and labels that are known to be sound."""

    exposure: Exposure
    """On the device where the repair is fitted."""
    train_targets: Targets
    val_targets: Targets
    data: Data | None = None
    """The graph, for repairs that read it; else neighbours are the exposure's own sources."""
    batch_size: int | None = None
    """Targets an update sees; None: all."""
    on_progress: ProgressCallback | None = None
    frozen: Frozen | None = None
    """The model itself, for what trains it anew."""

    @cached_property
    def inputs(self) -> RepairInputs:
        """What repairs see of the exposure."""
        return repair_inputs(self.exposure)

    @cached_property
    def y(self) -> Tensor:
        """[N]; the labels of training and validation nodes alone, 0 elsewhere."""
        place = self.exposure.recipients.device
        y = torch.zeros(self.exposure.num_nodes, dtype=torch.long, device=place)
        for targets in (self.train_targets, self.val_targets):
            y[self.exposure.recipients[targets.positions]] = targets.labels
        return y

    @property
    def labels(self) -> Tensor:
        """[n], of the recipients."""
        return self.y[self.exposure.recipients]

    @cached_property
    def train(self) -> Tensor:
        """[S, n] bool, by recipient."""
        return self._chosen(self.train_targets)

    @cached_property
    def val(self) -> Tensor:
        """[S, n] bool."""
        return self._chosen(self.val_targets)

    def _chosen(self, targets: Targets) -> Tensor:
        shape = targets.sizes.numel(), self.exposure.num_recipients
        chosen = torch.zeros(shape, dtype=torch.int, device=targets.sizes.device)
        return chosen.scatter_add(1, targets.positions, targets.real.int()) > 0

    def by_node(self, values: Tensor) -> Tensor:
        """Values of the recipients [S, n, …] as values of the nodes [S, N, …], zero elsewhere."""
        out = values.new_zeros(values.shape[0], self.exposure.num_nodes, *values.shape[2:])
        out[:, self.exposure.recipients] = values
        return out.float() if values.is_floating_point() else out


def prepare(
    exposure: Exposure,
    y: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    data: Data | None = None,
    device: str | torch.device = "auto",
    *,
    takes_labels: bool = False,
    **more: Any,
) -> Task:
    """Check what a repair is to be fitted to, and bring it to the device."""
    check_exposure_given(exposure)
    place, here = choose_device(device), exposure.recipients.device
    same = here.type == place.type and (place.index is None or here.index == place.index)
    placed = exposure if same else exposure.to(place)
    targets = find_targets(placed, y, train_mask, val_mask, takes_labels)
    if data is not None:
        data = with_dense_features(data)
        check_graph_data(placed, data)
    return Task(placed, *targets, data, **more)


@dataclass(frozen=True)
class Repair(ABC, Generic[F]):
    """A way to correct a frozen model's logits. Settings are its fields."""

    title: ClassVar[str] = ""
    """Its name wherever people read it; that of the class unless it says another."""
    fitted_type: ClassVar[type[FittedRepair[Any]]]
    """What its fit returns."""
    takes_labels: ClassVar[bool] = False
    """Whether it also learns several labels a node, by their binary cross-entropy."""
    reads_graph: ClassVar[bool] = False
    """Whether it looks at the graph that ``fit`` is given."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "title" not in vars(cls):
            cls.title = cls.__name__

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """The repair as a study's ``RepairProtocol`` asks for it; as it is unless overridden."""
        return cls()

    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
        progress: bool = False,
        frozen: Frozen | None = None,
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
            frozen: the trained backbone, for a repair that trains it anew.
        """
        check_exposure_given(exposure)
        if batch_size is not None:
            check_whole("fit", "batch_size", batch_size, 1)
        place = choose_device(device)
        listener = Listener(self.title, on_progress, progress, exposure.outputs)
        hint = f"fitting {self.title} for {exposure.num_members} members"
        with out_of_memory_hint(hint), full_precision(place), listener:
            graph = data if self.reads_graph else None
            task = prepare(
                exposure,
                y,
                train_mask,
                val_mask,
                graph,
                place,
                takes_labels=self.takes_labels,
                batch_size=batch_size,
                on_progress=listener.callback,
                frozen=frozen,
            )
            fitted = self.learn(task)
        return listener.told(fitted)

    @abstractmethod
    def learn(self, task: Task) -> F:
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

    def fitted(self, **values: Any) -> F:
        """The fitted value with these fields."""
        return cast("F", self.fitted_type(repair=self, **values))

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
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """With the protocol's seed, and its budget, dropout and width where it has them."""
        own = {field.name for field in fields(cls)} & {"seed", *cls.shared_settings}
        values = {field: getattr(settings, field) for field in own}
        if isinstance(budget := getattr(settings, cls.budget_setting, None), Budget):
            values["budget"] = budget
        return cls(**values)

    budget_setting: ClassVar[str] = ""
    """What the protocol calls its budget."""
    shared_settings: ClassVar[tuple[str, ...]] = ("dropout", "hidden")
    """Settings that the protocol has once for all repairs, and that this one takes from it."""

    @abstractmethod
    def network(self, width: int, classes: int) -> nn.Module:
        """One member's parameters, initialised, for inputs of this width."""

    def input_width(self, inputs: RepairInputs) -> int:
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

    def learn(self, task: Task) -> F:
        """Train on the training targets; validation accuracy decides which epoch is kept.

        Of labels it is micro-F1 on the validation targets.
        """
        needed, train, val = around(task.exposure, task.train_targets, task.val_targets)
        inputs = task.inputs if needed is task.exposure else repair_inputs(needed)
        constants = self.constants(inputs, train)
        trainee = RepairTrainee(
            self.initial(inputs),
            lambda p: self.tables(p, inputs),
            lambda p, *rest: self.corrected({**p, **constants}, inputs, *rest),
            train,
            val,
            dropout=self.dropout,
            batch_size=task.batch_size,
            seed=self.seed,
        )
        # Ours draw nothing from PyTorch's generators; a repair of one's own may.
        with seeded(self.seed, inputs.device):
            outcome = fit(trainee, self.budget, task.on_progress)
        self._warn_diverged(outcome)
        return self.fitted(
            **about(task.exposure),
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
                stacklevel=4,  # whoever called fit
            )

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, the same for every member, [S, …]."""
        with seeded(self.seed):
            network = self.network(self.input_width(inputs), inputs.num_classes)
        stacked = stack_parameters(network.to(inputs.dtype), inputs.num_members)
        return {name: value.to(inputs.device) for name, value in stacked.items()}

    def num_parameters(self, width: int, classes: int) -> int:
        """Trained numbers of one member."""
        return sum(math.prod(shape) for shape in self._network_shapes(width, classes).values())

    def claims(self, fitted: F) -> int:
        """The widest of what is read, hidden and told."""
        return max(getattr(self, "hidden", None) or 1, fitted.num_classes, fitted.input_width)

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        """What one member's parameters must look like."""
        return self._network_shapes(fitted.input_width, fitted.num_classes)

    def _network_shapes(self, width: int, classes: int) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):  # nothing is drawn, so nobody's generator moves
            network = self.network(width, classes)
        return {
            name: tuple(value.t().shape if value.dim() == 2 else value.shape)
            for name, value in network.named_parameters()
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedRepair(ABC, Generic[R]):
    """A repair that has learned, for S members. Nothing in it changes."""

    one_by_one: ClassVar[bool] = False
    """Whether a recipient's logits follow from its own terms, whoever else is there."""
    repair: R
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
    def input_width(self) -> int:
        """Numbers that its network reads of a node."""
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
    def logits(self, exposure: Exposure) -> Tensor:
        """Repaired logits at the exposure's recipients, [S, n, C] float64."""

    @staticmethod
    @contextmanager
    def gradients(exposure: Exposure) -> Iterator[None]:
        """While open, gradients are on if they are on outside and the exposure has some; numbers
        keep their precision."""
        check_exposure_given(exposure)
        wanted = torch.is_grad_enabled() and exposure.frozen_logits.requires_grad
        with torch.set_grad_enabled(wanted), full_precision(exposure.recipients.device):
            yield

    def predict(self, exposure: Exposure) -> Tensor:
        """The repaired class of every recipient, [S, n]; of labels whether each is there,
        bool [S, n, K]."""
        logits = self.logits(exposure)
        return logits > 0 if self.outputs == "labels" else logits.argmax(2)

    # Other views of the same value ------------------------------------------------------------

    def member(self, index: int) -> Self:
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

    def unbound(self) -> Self:
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

    def _matching(self, exposure: Exposure) -> Parameters:
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

    def _check_sizes(self, exposure: Exposure) -> None:
        sizes = {
            "state width": (exposure.state.shape[2], self.width),
            "classes": (exposure.num_classes, self.num_classes),
            "members": (exposure.num_members, self.num_members),
            "outputs that are": (exposure.outputs, self.outputs),
        }
        for name, (here, there) in sizes.items():
            if here != there:
                raise InputError(
                    f"the repair was fitted with {name} {there} but the exposure has {here}; "
                    "use an exposure of the same model"
                )

    def _check_model(self, exposure: Exposure) -> None:
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


def about(exposure: Exposure) -> dict[str, Any]:
    """What a fitted repair notes of the exposure it was fitted on."""
    return {
        "width": exposure.state.shape[2],
        "num_classes": exposure.num_classes,
        "fingerprint": exposure.fingerprint,
        "outputs": exposure.outputs,
    }


def untrained(exposure: Exposure) -> dict[str, Tensor]:
    """The statistics of a repair that no training loop has seen."""
    zeros = torch.zeros(exposure.num_members, dtype=torch.long, device=exposure.recipients.device)
    return {"best_epoch": zeros, "epochs_run": zeros.clone(), "diverged": zeros.bool()}
