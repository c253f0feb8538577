"""What a repair is, what it has learned, and reading that back from a file."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_repair.backbones import Frozen
from gnn_repair.backbones.frozen import (
    STATISTICS,
    below,
    check_names,
    check_statistics,
    number_list,
)
from gnn_repair.budget import check_real, check_whole, with_budget
from gnn_repair.checks import as_member
from gnn_repair.devices import choose_device, full_precision, learning, seeded
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.calling import BY_FORWARD
from gnn_repair.f1 import f1_of
from gnn_repair.files import (
    REAL,
    check_fields,
    contents_of,
    dataclass_hints,
    load_tensors,
    save_tensors,
)
from gnn_repair.methods import METHODS
from gnn_repair.notebook import html_view
from gnn_repair.published import count_of
from gnn_repair.repair.inputs import Noise, RepairInputs
from gnn_repair.repair.targets import (
    RepairTrainee,
    Targets,
    Task,
    around,
    prepare,
    require_exposure,
)
from gnn_repair.training import (
    LOG,
    Budget,
    FrozenDict,
    Listener,
    Parameters,
    ProgressCallback,
    TrainingResult,
    fit,
    stack_parameters,
)

KIND = "gnn-repair repair"
LADDER = "the evidence ladder (EvidenceLadder), which reads labels and features as well, or "
MORE = "more validation nodes, so that small gains can show"
LEAST = {"hidden": 1, "layers": 1, "folds": 2, "seed": 0}
"""The smallest whole number that a setting of this name takes."""
F = TypeVar("F", bound="FittedRepair[Any]")
R = TypeVar("R", bound="Repair[Any]")


@dataclass(frozen=True)
class Repair(ABC, Generic[F]):
    """A way to correct a frozen model's logits. Settings are its fields."""

    method: ClassVar[str] = ""
    """Its entry in ``METHODS``, where it has one: ``class Own(Repair, method="own")``."""
    title: ClassVar[str] = ""
    """Its name wherever people read it: that of its entry, else of the class."""
    fitted_type: ClassVar[type[FittedRepair[Any]]]
    """What its fit returns."""
    takes_labels: ClassVar[bool] = False
    """Whether it also learns several labels per node, by their binary cross-entropy."""
    former_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that files of version 0.2 hold and that nothing depends on any more."""
    reads_graph: ClassVar[bool] = False
    """Whether it looks at the graph that ``fit`` is given."""

    def __init_subclass__(cls, method: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if method:
            cls.method, cls.title = method, METHODS[method].title
        elif "title" not in vars(cls):
            cls.title = cls.__name__

    def __post_init__(self, *changed: Any) -> None:
        """Check the settings; ``changed`` are epochs and lr, of what has a budget to change."""
        owner, (epochs, lr) = type(self).__name__, changed or (None, None)
        for own in fields(self):
            name, value = own.name, getattr(self, own.name)
            if name == "budget":
                object.__setattr__(self, name, with_budget(owner, value, epochs, lr))
            elif name == "dropout":
                check_real(owner, name, value, 0, 1)
            elif name in LEAST and not (value is None and own.default is None):
                check_whole(owner, name, value, LEAST[name])

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """The repair with what its entry depends on of a study's ``RepairProtocol``."""
        fields = {cls.method: "budget", "smoothing_layers": "layers"}
        depends = METHODS[cls.method].settings if cls.method else ()
        names = [name.removeprefix("repairs.") for name in depends]
        return cls(**{fields.get(name, name): getattr(settings, name) for name in names})

    def fit(
        self,
        exposure: Exposure,
        y: Tensor,
        train: Any = None,
        val: Any = None,
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        on_progress: ProgressCallback | None = None,
        progress: bool = False,
        frozen: Frozen | None = None,
        train_mask: Any = None,
        val_mask: Any = None,
    ) -> F:
        """Learn from training labels, select on validation labels.

        Args:
            exposure: the frozen model.
            y: [N] labels; only those of nodes in ``train`` or ``val`` are read. Where the
                exposure's outputs are labels, [N, K] zeros and ones (NaN or −1: unknown).
            train: training nodes: a mask [N], or [N, S] with a column per member, or node numbers.
            val: validation nodes, likewise, disjoint from them.
            data: the graph with ``edge_index`` and ``x``, for repairs that read it, such as the
                evidence ladder; the others do not look at it.
            batch_size: targets an update sees, each with its complete set; all unless given.
                Where nothing is trained it does not matter.
            device: ``"auto"`` takes the GPU when there is one.
            on_progress: called every few epochs.
            progress: whether to show how far it is, in a terminal or a notebook; the logger
                ``gnn_repair.repair`` is told either way.
            frozen: the trained backbone, for a repair that trains it anew.
            train_mask: the former name of ``train``.
            val_mask: the former name of ``val``.
        """
        train, val = _renamed("train", train, train_mask), _renamed("val", val, val_mask)
        require_exposure(exposure)
        if batch_size is not None:
            check_whole("fit", "batch_size", batch_size, 1)
        place = choose_device(device)
        listener = Listener(self.title, on_progress, progress, exposure.outputs)
        hint = f"fitting {self.title} for {count_of(exposure.num_members, 'member')}"
        with learning(hint, exposure.state), full_precision(place), listener:
            graph = data if self.reads_graph else None
            more = {"batch_size": batch_size, "on_progress": listener.callback, "frozen": frozen}
            labels = self.takes_labels
            task = prepare(exposure, y, train, val, graph, place, takes_labels=labels, **more)
            fitted = self.learn(task)
        LOG.info("%s", fitted)
        return fitted

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
        return self.budget.epochs if hasattr(self, "budget") else 0

    def fitted(self, **values: Any) -> F:
        """The fitted value with these fields."""
        return cast("F", self.fitted_type(repair=self, **values))

    def fitted_on(self, exposure: Exposure, **values: Any) -> F:
        """The same, with what it notes of its exposure; nothing was trained unless given."""
        zeros = torch.zeros(exposure.num_members, dtype=torch.long).to(exposure.recipients.device)
        noted = {
            "width": exposure.state.shape[2],
            "num_classes": exposure.num_classes,
            "fingerprint": exposure.fingerprint,
            "outputs": exposure.outputs,
            "node_type": exposure.names.recipient if exposure.names.by_type else "",
            "own_call": exposure.called.startswith(BY_FORWARD),
            "ladder": (exposure.outputs, exposure.graph_starts) == ("classes", None)
            and not exposure.names.typed,
            "forward": exposure.forward,
            "parameters": {},
            "best_epoch": zeros,
            "epochs_run": zeros.clone(),
            "diverged": zeros.bool(),
        }
        return self.fitted(**noted | values)

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
    """How it is trained; ``epochs=`` and ``lr=`` change these two of it."""
    dropout: float = 0.2
    seed: int = 0
    epochs: InitVar[int | None] = field(default=None, kw_only=True)
    lr: InitVar[float | None] = field(default=None, kw_only=True)

    @property
    def starts_frozen(self) -> bool:
        """As the budget says."""
        return self.budget.epoch_zero

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
        inputs = task.inputs if needed is task.exposure else RepairInputs(needed)
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
        # Ours draw nothing from PyTorch's generators; a repair of your own may.
        with seeded(self.seed, inputs.device):
            outcome = fit(trainee, self.budget, task.on_progress)
        self._warn_diverged(outcome, inputs.copies)
        return self.fitted_on(
            task.exposure,
            parameters={name: value.detach() for name, value in outcome.parameters.items()},
            constants=constants,
            **{name: getattr(outcome, name) for name in STATISTICS},
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
        scores = [
            f1_of(logits[member, :size] > 0, val.truths[val.positions[member, :size]])
            for member, size in enumerate(val.sizes.tolist())
        ]
        return tuple((score.micro, score.macro) for score in scores)

    def _warn_diverged(self, outcome: TrainingResult, copies: int) -> None:
        for row in outcome.diverged.nonzero().view(-1).tolist():
            warnings.warn(
                f"{self.title} of member {row // copies} diverged; "
                f"its state of epoch {int(outcome.best_epoch[row])} was kept",
                stacklevel=4,  # whoever called fit
            )

    def initial(self, inputs: RepairInputs) -> dict[str, Tensor]:
        """The untrained parameters, [S·K, …]."""
        sizes = self.input_width(inputs), inputs.num_classes
        members = inputs.num_members // inputs.copies
        start = starts(lambda: self.network(*sizes), self.seed, members, inputs.copies)
        return {name: value.to(inputs.device, inputs.dtype) for name, value in start.items()}

    def num_parameters(self, width: int, classes: int) -> int:
        """Trained numbers of one member."""
        return sum(math.prod(shape) for shape in self._network_shapes(width, classes).values())

    def shapes(self, fitted: F) -> dict[str, tuple[int, ...]]:
        sizes = getattr(self, "hidden", None) or 1, fitted.num_classes, fitted.input_width
        # Before anything so large is described: a file need not be honest.
        if max(sizes) > (held := sum(value.numel() for value in fitted.tensors().values())):
            raise InputError(f"it claims {max(sizes)} channels but holds {held} numbers")
        return self._network_shapes(fitted.input_width, fitted.num_classes)

    def _network_shapes(self, width: int, classes: int) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):  # nothing is drawn, so nobody's generator moves
            stacked = stack_parameters(self.network(width, classes), 1)
        return {name: tuple(value.shape[1:]) for name, value in stacked.items()}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedRepair(ABC, Generic[R]):
    """A repair that has learned, for S members. Nothing in it changes."""

    one_by_one: ClassVar[bool] = False
    """Whether a recipient's logits follow from its own terms alone."""
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
    """[S]: the members' models; empty: not known; None: any model."""
    outputs: str = "classes"
    """What the C outputs are: ``classes`` or ``labels``."""
    f1: tuple[tuple[float, float], ...] = ()
    """[S]: micro- and macro-F1 on the validation nodes; empty for classes."""
    node_type: str = ""
    """The node type that is classified, in graphs of several."""
    own_call: bool = False
    """Whether the exposure was made with ``forward=``."""
    ladder: bool = False
    """Whether the evidence ladder is known to take such an exposure; no file holds it."""
    forward: Any = None
    """That ``forward``; no file and no copy in another process holds it."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"forward": None}

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
        reason = f"no epoch validated better than the frozen prediction for {_members(kept)}"
        return f"{reason}; {self._remedy}"

    @property
    def _remedy(self) -> str:
        return f"try {LADDER * self.ladder}{MORE}"

    @abstractmethod
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Repaired logits of every member at the exposure's recipients, [S, n, C] float64."""

    def logits(self, exposure: Exposure) -> Tensor:
        """Repaired logits at the exposure's recipients: [n, C] float64 where the exposure is of one
        model, [S, n, C] where it holds S members."""
        logits = self.member_logits(exposure)
        return logits[0] if len(logits) == 1 else logits

    @staticmethod
    @contextmanager
    def gradients(exposure: Exposure) -> Iterator[None]:
        """While open, gradients are on if they are on outside and the exposure has some; numbers
        keep their precision."""
        require_exposure(exposure)
        wanted = torch.is_grad_enabled() and exposure.frozen_logits.requires_grad
        with torch.set_grad_enabled(wanted), full_precision(exposure.recipients.device):
            yield

    def predict(self, exposure: Exposure) -> Tensor:
        """The repaired class of every recipient, [n]; of labels whether each is there, bool [n, K].

        As for :meth:`logits`, an exposure of several members has an axis [S] in front.
        """
        logits = self.logits(exposure)
        return logits > 0 if self.outputs == "labels" else logits.argmax(-1)

    # Other views of the same value ------------------------------------------------------------

    def member(self, index: int) -> Self:
        """The repair of one member alone, for ``exposure.member(index)``; −1 is the last one."""
        index = as_member(index, self.num_members)
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
        """Write the repair as one safetensors file; :meth:`load` reads it back."""
        save_tensors(path, KIND, self.header(), self.tensors())

    @staticmethod
    def load(path: str | Path) -> FittedRepair[Any]:
        """Read what :meth:`save` wrote; nothing is unpickled."""
        header, tensors = load_tensors(path, KIND)
        with contents_of(path):
            return fitted_of(header, tensors)

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
            "node_type": self.node_type,
        } | ({"own_call": True} if self.own_call else {})

    # Does it fit? -----------------------------------------------------------------------------

    def _matching(self, exposure: Exposure) -> Parameters:
        """Parameters and constants where the exposure is, once the two fit together."""
        require_exposure(exposure)
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
        own = {"outputs that are": f"expose the model with outputs={self.outputs!r}"}
        for name, (here, there) in sizes.items():
            if here != there:
                raise InputError(
                    f"the repair was fitted with {name} {there} but the exposure has {here}; "
                    + own.get(name, "use an exposure of the same model")
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
            member = next(s for s, (stored, other) in enumerate(pairs) if stored != other)
            reason = (
                f"the repair was fitted on a model with other weights (member {member}: "
                f"{self.fingerprint[member]}, not {exposure.fingerprint[member]})"
            )
        raise InputError(
            f"{reason}; use an exposure of that model, or .unbound() if you know that it fits"
        )

    # In words ---------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row per member: the epoch that was kept, epochs run, whether anything was learned."""
        columns = {name: getattr(self, name).tolist() for name in (*STATISTICS, "unchanged")}
        if self.f1:
            columns |= {"micro_f1": [f[0] for f in self.f1], "macro_f1": [f[1] for f in self.f1]}
        return pd.DataFrame({"member": range(self.num_members), **columns})

    def _repr_html_(self) -> str:
        return html_view(self, self.to_frame())

    def __repr__(self) -> str:
        lines = [
            f"{self.repair.title}, fitted: {count_of(self.num_members, 'member')}, "
            f"{count_of(self.num_parameters, 'parameter')} each, "
            f"state width {self.width}, {self.num_classes} {self.outputs}"
        ]
        if self.f1:
            means = [100 * sum(column) / len(self.f1) for column in zip(*self.f1, strict=True)]
            lines.append(f"  validation micro-F1 {means[0]:.1f} %, macro-F1 {means[1]:.1f} %")
        if bool((self.epochs_run > 0).any()):
            lines.append(f"  epochs kept: {number_list(self.best_epoch.tolist())}")
        kept = self.unchanged.nonzero().view(-1).tolist()
        wild = self.diverged.nonzero().view(-1).tolist()
        notes = [f"nothing learned for {_members(kept)} (frozen prediction kept)"] * bool(kept)
        notes += [f"{_members(wild)} diverged"] * bool(wild) + [self._remedy] * bool(kept)
        return "\n".join(lines + ["  " + "; ".join(notes)] * bool(notes))


def starts(
    network: Callable[[], nn.Module], seed: int, members: int, copies: int
) -> dict[str, Tensor]:
    """Untrained parameters [S·K, …]: copy k starts from seed + k, whatever the member.

    Copies that start apart make different mistakes, which is what averaging them takes away.
    """
    each = []
    for k in range(copies):
        with seeded(seed + k):
            each.append(stack_parameters(network(), 1))
    return {
        name: torch.cat([start[name] for start in each]).repeat(members, *[1] * (value.dim() - 1))
        for name, value in each[0].items()
    }


def _members(numbers: list[int]) -> str:
    return f"{'member' if len(numbers) == 1 else 'members'} {number_list(numbers)}"


def _renamed(name: str, value: Any, former: Any) -> Any:
    """An argument of :meth:`Repair.fit`, also under the name that it had in version 0.2."""
    if former is None:
        return value
    warnings.warn(f"fit({name}_mask=…) is fit({name}=…) now", DeprecationWarning, stacklevel=3)
    return former


# Reading a fitted repair back --------------------------------------------------------------------

HEADER = {
    "repair": str, "settings": dict, "width": int, "num_classes": int,
    "fingerprint": list | None, "outputs": str, "f1": list, "node_type": str,
    "own_call": bool,
}  # fmt: skip
RETIRED = (
    "Rung", "PaperFit", "Labels", "LabelsFeatures", "LabelsReweighting",
    "LabelsFeaturesReweighting", "Summary", "SummaryLabels", "SummaryFeatures", "SummaryKin",
    "SummaryAll",
)  # fmt: skip
"""Classes of version 0.2 that its files may name."""
LARGEST = 2**62
"""No width is larger; torch counts with 63 bits."""
INNER = {"name": str, "settings": dict}
"""The repair that another one fits in folds, in its settings."""


def fitted_of(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> FittedRepair[Any]:
    """The repair that its ``header()`` and ``tensors()`` describe, once they fit together."""
    absent = {"fingerprint": [], "outputs": "classes", "f1": [], "node_type": "", "own_call": False}
    header = {**absent, **header}
    check_fields(header, HEADER, "header")
    repair = repair_of(header["repair"], header["settings"])
    _check_sizes(header)
    check_names(tensors, STATISTICS, "parameters/", "constants/")
    fitted: FittedRepair[Any] = repair.fitted(
        width=header["width"],
        num_classes=header["num_classes"],
        parameters=below(tensors, "parameters/"),
        constants=below(tensors, "constants/"),
        fingerprint=_fingerprint(header["fingerprint"]),
        outputs=header["outputs"],
        f1=_scores(header["f1"]),
        node_type=header["node_type"],
        own_call=header["own_call"],
        **{field: tensors[field] for field in STATISTICS},
    )
    _check_fitted(fitted, tensors)
    return fitted


def _fingerprint(held: list[Any] | None) -> tuple[str, ...] | None:
    """The members' models; files of earlier versions name none."""
    if held is not None and not all(isinstance(digest, str) for digest in held):
        raise InputError("its fingerprint is not a list of texts")
    return None if held is None else tuple(held)


def _scores(held: list[Any]) -> tuple[tuple[float, float], ...]:
    """Micro- and macro-F1 of every member."""
    for pair in held:
        whole = isinstance(pair, list) and len(pair) == 2
        if not whole or not all(f is None or (type(f) is float and 0 <= f <= 1) for f in pair):
            raise InputError("its f1 is not a list of pairs of shares")
    nan = float("nan")
    return tuple((nan if a is None else a, nan if b is None else b) for a, b in held)


def repair_of(name: str, settings: dict[str, Any]) -> Repair[Any]:
    """The method with its settings, once each of them is of its type and range."""
    kind = next((kind for kind in _kinds(Repair) if kind.__name__ == name), None)
    if name in RETIRED or (name == "EvidenceLadder" and "combine" in settings):
        raise InputError(
            "it holds rungs of version 0.2's evidence ladder, which this version no longer has; "
            "fit EvidenceLadder again"
        )
    if kind is None:
        raise InputError(f"it holds a repair named {name[:80]!r}, which this version lacks")
    settings = {key: settings[key] for key in settings if key not in kind.former_settings}
    check_fields(settings, kind.setting_hints(), "settings")
    if isinstance(settings.get("repair"), dict):
        inner = check_fields(settings["repair"], INNER, "repair")
        if inner["name"] == name:
            raise InputError("its repair is cross-fitted twice")
        settings = {**settings, "repair": repair_of(inner["name"], inner["settings"])}
    return kind.from_settings(settings)


def _kinds(kind: Any) -> Iterator[type[Repair[Any]]]:
    """Every class of repair that a file may name."""
    for own in kind.__subclasses__():
        yield own
        yield from _kinds(own)


def _check_sizes(header: dict[str, Any]) -> None:
    least = {"classes": 2, "labels": 1}.get(header["outputs"])
    if least is None:
        raise InputError(f"its outputs are {header['outputs'][:40]!r}, not classes or labels")
    if not (1 <= header["width"] <= LARGEST and least <= header["num_classes"] <= LARGEST):
        raise InputError(f"it is {header['width']} wide with {header['num_classes']} classes")


def _check_fitted(fitted: FittedRepair[Any], tensors: Mapping[str, Tensor]) -> None:
    """Members, statistics, constants and the parameters' shapes agree."""
    repair, members = fitted.repair, fitted.num_members
    if fitted.fingerprint and len(fitted.fingerprint) != members:
        raise InputError(
            f"it has {len(fitted.fingerprint)} fingerprints for {members} members; save it again"
        )
    if fitted.f1 and (len(fitted.f1) != members or fitted.outputs != "labels"):
        raise InputError(f"it has {len(fitted.f1)} pairs of F1 for {members} members")
    check_statistics(tensors, members, repair.most_epochs)
    for name, value in {**fitted.parameters, **fitted.constants}.items():
        shared = name in fitted.constants and value.shape[:1] == (1,)
        if not members or (value.shape[:1] != (members,) and not shared):
            raise InputError(f"{name[:80]} has shape {list(value.shape)}, not {members} members")
    repair.check_constants(fitted)
    expected = repair.shapes(fitted)
    shapes = {name: tuple(value.shape[1:]) for name, value in fitted.parameters.items()}
    if shapes != expected:
        raise InputError(f"its parameters have shapes {shapes} instead of {expected}")
    if {value.dtype for value in fitted.parameters.values()} - {*REAL}:
        raise InputError("its parameters are not all real numbers")
