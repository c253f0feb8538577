"""Cross-fitting: a repair learns where the frozen model's mistakes are honest.

A frozen model is right about nearly all nodes it was trained on, so a repair that learns from
these sees few mistakes. Validation nodes show honest ones. They are cut into folds; copy k of the
repair learns from the training nodes and all folds but k, keeps the epoch that is best on fold k,
and the copies' log-probabilities are averaged. All copies are trained as one stack.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gnn_repair.devices import seeded
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.kernels.products import SharedRows, product
from gnn_repair.kernels.sets import TermSets
from gnn_repair.repair.base import FittedRepair, Repair, Task, TrainedRepair, about
from gnn_repair.repair.evidence import FeatureEvidence, evidence_of
from gnn_repair.repair.fitting import Predict, RepairTrainee
from gnn_repair.repair.folds import (
    FOLD_SHARE,
    FOLDS,
    Folding,
    Roles,
    averaged,
    check_graph,
    check_table,
    held_out,
    kept_rows,
    signature,
)
from gnn_repair.repair.inputs import Description, RepairInputs
from gnn_repair.repair.layers import Parameters
from gnn_repair.repair.targets import as_targets
from gnn_repair.repair.translation import SetTranslation
from gnn_repair.training import Fitted, fit

CHUNK = 1 << 25
"""Hidden numbers of one block of predictions."""

# Inputs of a stack -------------------------------------------------------------------------------


class StackedDescription(Description):
    """[h, z⁰] of S members, multiplied with the weights of S·K copies."""

    def __init__(self, own: Description, copies: int) -> None:
        self.own, self.copies = own, copies
        self.width, self.shared = own.width, own.shared
        # Beside a shared state stand the logits alone, C wide; they are repeated.
        self.rows = own.rows if own.shared is None else repeated(own.rows, copies)

    @property
    def pieces(self) -> SharedRows | None:
        """The members' own: cut once, whatever is stacked on them."""
        return self.own.pieces

    def times(self, weight: Tensor) -> Tensor:
        """[h, z⁰] W of every row: weight [S·K, d + C, k] gives [S·K, M, k]."""
        if self.shared is not None:
            return super().times(weight)
        members, (_, width, channels) = self.rows.shape[0], weight.shape
        wide = weight.view(members, self.copies, width, channels).transpose(1, 2)
        out = product(self.rows, wide.reshape(members, width, -1))
        out = out.view(members, -1, self.copies, channels).transpose(1, 2)
        return out.reshape(-1, self.rows.shape[1], channels)

    def at(self, index: Tensor) -> Tensor:
        """Rows [S·K, L, d + C] of each copy's own choice [S·K, L]."""
        return super().at(index) if self.shared is not None else picked(self.rows, index)


class StackedInputs(RepairInputs):
    """An exposure as K copies of its S members read it; S·K first on every axis."""

    def __init__(self, own: RepairInputs, copies: int) -> None:
        self.own, self.copies = own, copies
        self.num_members, self.num_classes = own.num_members * copies, own.num_classes
        self.width, self.dtype, self.device = own.width, own.dtype, own.device
        self.outputs = own.outputs
        self.root, self.groups, self.nodes = own.root, own.groups, own.nodes
        self._tail, self.in_order = own._tail, own.in_order

    @cached_property
    def recipients(self) -> Description:
        return StackedDescription(self.own.recipients, self.copies)

    @cached_property
    def messages(self) -> Description:
        return StackedDescription(self.own.messages, self.copies)

    @cached_property
    def sets(self) -> TermSets:
        """The terms; three numbers a term are repeated where members do not share them."""
        own = self.own.sets
        coefficients, cosine, distance = (
            value if value.shape[0] == 1 else repeated(value, self.copies)
            for value in (own.coefficients, own.cosine, own.distance)
        )
        return replace(own, coefficients=coefficients, cosine=cosine, distance=distance)

    @cached_property
    def frozen_logits(self) -> Tensor:  # type: ignore[override]
        return repeated(self.own.frozen_logits, self.copies)

    @cached_property
    def embedding(self) -> Tensor | None:  # type: ignore[override]
        """r of every copy; only a refitted head reads it, and then it is repeated."""
        own = self.own.embedding
        return None if own is None else repeated(own, self.copies)

    @cached_property
    def root_cosine(self) -> Tensor:
        return repeated(self.own.root_cosine, self.copies)

    @cached_property
    def total(self) -> Tensor:
        return repeated(self.own.total, self.copies)

    @cached_property
    def mass(self) -> Tensor:
        return self.own.mass

    @cached_property
    def contributions(self) -> Tensor:
        return repeated(self.own.contributions, self.copies)

    @cached_property
    def fixed_logits(self) -> Tensor:
        return self.own.fixed_logits

    def frozen_at(self, targets: Tensor) -> Tensor:
        """z⁰ of targets [S·K, L], [S·K, L, C]."""
        return picked(self.own.frozen_logits, self.node_of(targets))

    def at(self, values: Tensor, targets: Tensor) -> Tensor:
        """Per-recipient values [S, n, …] of targets [S·K, L], [S·K, L, …]."""
        flat = picked(values.flatten(2), targets)
        return flat.view(*targets.shape, *values.shape[2:])


def repeated(values: Tensor, copies: int) -> Tensor:
    """Values [S, …] once a copy, [S·K, …]."""
    return values.repeat_interleave(copies, dim=0)


def picked(values: Tensor, index: Tensor) -> Tensor:
    """Rows of values [S, M, k] of each copy's own choice ``index`` [S·K, L], [S·K, L, k]."""
    flat = index.reshape(values.shape[0], -1, 1).expand(-1, -1, values.shape[2])
    return values.gather(1, flat).view(*index.shape, values.shape[2])


class FeatureInputs(StackedInputs):
    """Stacked inputs with raw features, some of them dropped while a copy learns."""

    def __init__(
        self, own: RepairInputs, copies: int, features: FeatureEvidence, learning: bool = False
    ) -> None:
        super().__init__(own, copies)
        self.features, self.learning = features, learning
        # On the device and always the same memory, which a captured CUDA graph goes on writing.
        self._step = torch.zeros((), dtype=torch.long, device=own.device)

    def begin_step(self, stream: Tensor) -> None:
        """Called before each training step: other features are dropped in it.

        ``stream`` is where the step's random numbers begin, whoever else is in the stack.
        """
        self._step.copy_(stream)

    def features_times(self, targets: Tensor, weight: Tensor) -> Tensor:
        """x_v W of targets [M, L] for weights [M, F, H], [M, L, H]."""
        copies, width, channels = weight.shape
        table = weight.transpose(0, 1).reshape(width, copies * channels)
        product = self.features.times(table, self._step + 1 if self.learning else None)
        # Rows of the product stand by node and then by copy.
        nodes = self.nodes[targets]
        index = nodes * copies + torch.arange(copies, device=nodes.device).unsqueeze(1)
        chosen = product.view(-1, channels).index_select(0, index.view(-1))
        return chosen.view(*nodes.shape, channels)


# Training a stack --------------------------------------------------------------------------------


class RoleTrainee(RepairTrainee):
    """A repair whose targets have their own shares of the loss, judged on other inputs."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        tables: Callable[[Parameters], Any],
        learn: Predict,
        judge: Predict,
        roles: Roles,
        labels: Tensor,
        *,
        begin_step: Callable[[Tensor], None],
        dropout: float,
        batch_size: int | None,
        seed: int,
    ) -> None:
        train, val = (as_targets(who, labels) for who in (roles.weights > 0, roles.judged))
        super().__init__(
            parameters, tables, learn, train, val,
            dropout=dropout, batch_size=batch_size, seed=seed,
        )  # fmt: skip
        self.judge, self.begin_step, self.shares = judge, begin_step, roles.weights
        # In how many steps of an epoch a copy learns, whoever else is in the stack.
        self.own_steps = (-(-self.train.sizes // self.batch)).unsqueeze(1)

    def losses(self, trunk: Any) -> Tensor:
        self.begin_step(self._stream())
        return super().losses(trunk)

    def _next_batch(self) -> tuple[Tensor, ...]:
        """The shares travel with their nodes; a batch's sum stands for the whole epoch's."""
        positions, labels, means = super()._next_batch()
        shares = self.shares.gather(1, positions) * (means > 0) * self.own_steps
        return positions, labels, shares

    def scores(self, trunk: Any) -> Tensor:
        logits = self.judge(self.parameters, trunk, self.val.positions, None)
        return ((logits.argmax(2) == self.val.labels) & self.val.real).sum(1)


def train_stack(
    repair: TrainedRepair[Any], task: Task, roles: Roles, features: FeatureEvidence | None = None
) -> tuple[Fitted, Parameters]:
    """Train K copies of every member through the one loop; and what was fixed before it.

    Args:
        repair: what is trained.
        task: what its S members see, and the labels where a copy learns or is judged.
        roles: what the copies learn from and are judged on.
        features: for repairs that read more than the exposure.
    """
    own, labels = task.inputs, task.labels
    judged = stacked(own, roles.copies, features)
    learned = judged
    begin: Callable[[Tensor], None] = _nothing
    if features is not None:
        learned = FeatureInputs(own, roles.copies, features, learning=True)
        begin = learned.begin_step
    constants = repair.constants(judged, as_targets(roles.weights > 0, labels))

    def predict(inputs: RepairInputs) -> Predict:
        return lambda p, *rest: repair.corrected({**p, **constants}, inputs, *rest)

    trainee = RoleTrainee(
        initial_copies(repair, judged, roles.copies),
        lambda p: repair.tables({**p, **constants}, judged),
        predict(learned),
        predict(judged),
        roles,
        labels,
        begin_step=begin,
        dropout=repair.dropout,
        batch_size=task.batch_size,
        seed=repair.seed,
    )
    with seeded(repair.seed, own.device):
        outcome = fit(trainee, repair.budget, task.on_progress)
    if count := int(outcome.diverged.sum()):
        warnings.warn(
            f"{repair.title}: {count} of {outcome.diverged.numel()} copies diverged; "
            "the best of their earlier states were kept",
            stacklevel=4,  # whoever called fit
        )
    trained = {name: value.detach() for name, value in outcome.parameters.items()}
    return replace(outcome, parameters=trained), constants


def stacked(own: RepairInputs, copies: int, features: FeatureEvidence | None) -> StackedInputs:
    """What K copies see once they have learned."""
    return StackedInputs(own, copies) if features is None else FeatureInputs(own, copies, features)


def _nothing(stream: Tensor) -> None:
    """No features to drop."""


def initial_copies(
    repair: TrainedRepair[Any], inputs: StackedInputs, copies: int
) -> dict[str, Tensor]:
    """Untrained parameters [S·K, …]: copy k starts from seed + k, whatever the member.

    Copies that start apart make different mistakes, which is what averaging them takes away.
    """
    features = inputs.features if isinstance(inputs, FeatureInputs) else None
    single = stacked(inputs.own, 1, features)
    single.num_members = 1
    starts = [replace(repair, seed=repair.seed + k).initial(single) for k in range(copies)]
    members = inputs.own.num_members
    return {
        name: torch.cat([start[name] for start in starts]).repeat(members, *[1] * (value.dim() - 1))
        for name, value in starts[0].items()
    }


@torch.no_grad()
def stack_logits(
    repair: TrainedRepair[Any], inputs: StackedInputs, parameters: Parameters
) -> Tensor:
    """Logits of all copies at all recipients, [S·K, n, C], in blocks of recipients."""
    tables = repair.tables(parameters, inputs)
    everyone = inputs.everyone
    width = max(getattr(repair, "hidden", None) or 1, inputs.width)
    step = max(1, CHUNK // (inputs.num_members * width))
    parts = [
        repair.corrected(parameters, inputs, tables, part.contiguous(), None)
        for part in everyone.split(step, dim=1)
    ]
    return torch.cat(parts, dim=1)


def summary(stack: Any, copies: int) -> dict[str, Tensor]:
    """A stack's statistics by member: the middle copy's epochs, whether any diverged."""
    best, run, gone = (
        value.view(-1, copies) for value in (stack.best_epoch, stack.epochs_run, stack.diverged)
    )
    return {
        "best_epoch": best.median(1).values,
        "epochs_run": run.median(1).values,
        "diverged": gone.any(1),
    }


# The repair --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedCrossFit(FittedRepair["CrossFitted"]):
    """The mean of K fitted copies' log-probabilities."""

    @property
    def copies(self) -> int:
        """K."""
        return self.constants["best_epochs"].shape[1]

    @property
    def unchanged(self) -> Tensor:
        """[S] bool: every copy kept the frozen prediction."""
        return self.repair.repair.starts_frozen & (self.constants["best_epochs"] == 0).all(1)

    @property
    def transductive(self) -> bool:
        """Whether it holds for the graph it was fitted on only."""
        return "log_probs" in self.constants

    def copy(self, index: int) -> FittedRepair[Any]:
        """One of the K copies, as the repair itself would be fitted."""
        if self.transductive:
            raise InputError("a repair that reads neighbours' labels has no copy for other graphs")
        own = {
            name.removeprefix("own/"): value[:, index]
            for name, value in self.constants.items()
            if name.startswith("own/")
        }
        fitted: FittedRepair[Any] = self.repair.repair.fitted(
            width=self.width,
            num_classes=self.num_classes,
            fingerprint=self.fingerprint,
            outputs=self.outputs,
            parameters={name: value[:, index] for name, value in self.parameters.items()},
            constants=own,
            best_epoch=self.constants["best_epochs"][:, index],
            epochs_run=self.epochs_run,
            diverged=self.diverged,
        )
        return fitted

    @torch.no_grad()
    def logits(self, exposure: Exposure) -> Tensor:
        """Mean log-probabilities at the recipients, [S, n, C] float64."""
        self._matching(exposure)
        if self.transductive:
            check_graph(self.constants["signature"], exposure, self.repair.title)
            return kept_rows(self.constants["log_probs"], exposure, self.repair.title)
        told = [self.copy(k).logits(exposure).log_softmax(2) for k in range(self.copies)]
        return torch.stack(told).mean(0).log_softmax(2)

    def out_of_fold(self) -> Tensor:
        """What copies that did not learn from a validation node say of it, [S, N, C]."""
        return self.constants["out_of_fold"].double()


@dataclass(frozen=True)
class CrossFitted(Repair[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes; all copies are trained as one stack."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    repeats: int = 1
    fold_share: float = FOLD_SHARE
    seed: int = 0
    title: ClassVar[str] = "Cross-fitted"
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedCrossFit
    reads_graph: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.repair, Repair) or self.repair.reads_graph:
            raise InputError(
                f"CrossFitted takes a repair such as SetTranslation(), not {self.repair!r:.60}"
            )
        _ = self.folding

    @property
    def folding(self) -> Folding:
        """How validation nodes are dealt out."""
        return Folding(self.folds, self.repeats, self.fold_share, self.seed)

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the repair with its name."""
        own = {"name": type(self.repair).__name__, "settings": self.repair.settings()}
        return {**asdict(self.folding), "repair": own}

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the repair stands as a name and settings."""
        return {**super().setting_hints(), "repair": dict}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CrossFitted:
        """The inverse of :meth:`settings`, once the repair inside has been built."""
        return cls(**settings)

    @classmethod
    def from_protocol(cls, settings: Any, exposure: Exposure) -> Self:
        """Set translation as the protocol asks for it, in folds."""
        inner = SetTranslation.from_protocol(settings, exposure)
        return cls(inner, seed=settings.seed)

    @property
    def most_epochs(self) -> int:
        """Those of the repair."""
        return self.repair.most_epochs

    def learn(self, task: Task) -> FittedCrossFit:
        """Fit a copy a fold."""
        if not isinstance(self.repair, TrainedRepair):
            return self._fit_each(task)
        features = None
        if _reads_evidence(self.repair):
            features = evidence_of(task).features
            if features is None:
                raise InputError(f"{self.repair.title} reads raw features; pass data=… with x")
        roles = self.folding.roles(task)
        outcome, constants = train_stack(self.repair, task, roles, features)
        inputs = stacked(task.inputs, roles.copies, features)
        each = stack_logits(self.repair, inputs, {**outcome.parameters, **constants})
        kept = {
            "best_epochs": outcome.best_epoch.view(-1, roles.copies),
            "out_of_fold": task.by_node(held_out(each, roles)),
        }
        if features is None:
            kept |= {f"own/{name}": value for name, value in _by_copy(constants, roles).items()}
        else:
            # It answers from what it said here, so what a copy would read with is not kept.
            kept["log_probs"] = task.by_node(averaged(each, roles.copies))
            kept["signature"] = signature(task.exposure)
        return self.fitted(
            **about(task.exposure),
            parameters=_by_copy(outcome.parameters, roles),
            constants=kept,
            **summary(outcome, roles.copies),
        )

    def _fit_each(self, task: Task) -> FittedCrossFit:
        """Fold by fold, for repairs that the training loop does not find."""
        roles = self.folding.roles(task)
        fitted, told = [], []
        for k in range(roles.copies):
            judged = roles.judged[k :: roles.copies]
            masks = [task.by_node(who).t() for who in ((task.train | task.val) & ~judged, judged)]
            copy = self.repair.fit(task.exposure, task.y, *masks, device=task.inputs.device)
            fitted.append(copy)
            told.append(copy.logits(task.exposure).log_softmax(2))
        stacked_up = torch.stack(told, 1).flatten(0, 1)
        constants = {
            f"own/{name}": torch.stack([copy.constants[name] for copy in fitted], 1)
            for name in fitted[0].constants
        }
        return self.fitted(
            **about(task.exposure),
            parameters={
                name: torch.stack([copy.parameters[name] for copy in fitted], 1)
                for name in fitted[0].parameters
            },
            constants={
                **constants,
                "out_of_fold": task.by_node(held_out(stacked_up, roles)),
                "best_epochs": torch.stack([copy.best_epoch for copy in fitted], 1),
            },
            best_epoch=fitted[0].best_epoch,
            epochs_run=fitted[0].epochs_run,
            diverged=fitted[0].diverged,
        )

    # Files ------------------------------------------------------------------------------------

    def claims(self, fitted: FittedCrossFit) -> int:
        """As the repair's copies do; what reads evidence has layers of other widths too."""
        if fitted.transductive:
            return max(getattr(self.repair, "hidden", None) or 1, fitted.num_classes)
        return self.repair.claims(fitted.copy(0))

    def shapes(self, fitted: FittedCrossFit) -> dict[str, tuple[int, ...]]:
        """The repair's own, once a copy."""
        if not fitted.transductive:
            own = self.repair.shapes(fitted.copy(0))
        else:
            own = {
                name: tuple(value.shape[2:])
                for name, value in fitted.parameters.items()
                if value.shape[1:2] == (fitted.copies,)
            }
        return {name: (fitted.copies, *shape) for name, shape in own.items()}

    def check_constants(self, fitted: FittedCrossFit) -> None:
        """Epochs [S, K], what was said out of fold [S, N, C], and what the repair itself keeps."""
        check_table(fitted, "best_epochs", torch.int64, None)
        epochs = fitted.constants["best_epochs"]
        if fitted.copies < 1 or not bool(((epochs >= 0) & (epochs <= self.most_epochs)).all()):
            raise InputError(f"best_epochs must lie in 0..{self.most_epochs}, one for every copy")
        nodes = check_table(fitted, "out_of_fold", torch.float32, None, fitted.num_classes)[0]
        kept = {"best_epochs", "out_of_fold"}
        if _reads_evidence(self.repair):
            check_table(fitted, "log_probs", torch.float32, nodes, fitted.num_classes)
            check_table(fitted, "signature", torch.float32, nodes)
            kept |= {"log_probs", "signature"}
        self._check_copies(fitted, kept)

    def _check_copies(self, fitted: FittedCrossFit, kept: set[str]) -> None:
        """Everything but ``kept`` is there for each copy, and each copy is sound."""
        others = {name: value for name, value in fitted.constants.items() if name not in kept}
        for name in others:
            if not name.startswith("own/") or fitted.transductive:
                raise InputError(f"{self.title} has no constant {name[:80]!r}")
        for name, value in {**others, **fitted.parameters}.items():
            if value.shape[1:2] != (fitted.copies,):
                raise InputError(f"{name[:80]} is not there for each of {fitted.copies} copies")
        if not fitted.transductive:
            for k in range(fitted.copies):
                self.repair.check_constants(fitted.copy(k))


def _by_copy(values: Parameters, roles: Roles) -> Parameters:
    """[S·K, …] as [S, K, …]."""
    return {name: value.unflatten(0, (-1, roles.copies)) for name, value in values.items()}


def _reads_evidence(repair: Repair[Any]) -> bool:
    return bool(getattr(repair, "needs_evidence", False))
