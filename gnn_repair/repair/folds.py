"""Cross-fitting: a repair learns where the frozen model's mistakes are honest.

A frozen model is right about nearly all nodes it was trained on, so a repair that learns from
these sees few mistakes. Validation nodes show honest ones. They are cut into folds; copy k of the
repair learns from the training nodes and all folds but k, keeps the epoch that is best on fold k,
and the copies' log-probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gnn_repair.backbones.frozen import STATISTICS, below, under
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposure
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.sets import LOW
from gnn_repair.methods import Method
from gnn_repair.repair.adapters import SetTranslation
from gnn_repair.repair.base import FittedRepair, Repair, TrainedRepair
from gnn_repair.repair.targets import Task

FOLDS = 5
"""Four fifths of the validation nodes to learn from, a fifth to choose the epoch by."""
FOLD_SHARE = 0.8
"""How much of the loss falls on validation nodes, where the frozen model's mistakes are honest;
the rest keeps what holds on training nodes, of which there are more."""


@dataclass(frozen=True, eq=False)
class Roles:
    """What each of K copies of S members does with each recipient.

    Copy k of member s is number s·K + k. A copy *learns* where its weight is positive and is
    *judged* elsewhere, on validation nodes that it does not learn from.
    """

    weights: Tensor
    """[S·K, n] float32: shares of the loss, summing to 1 for every copy."""
    judged: Tensor
    """[S·K, n] bool."""
    copies: int
    """K."""


def deal_folds(val: Tensor, labels: Tensor, folds: int, seed: int, even: bool = True) -> Tensor:
    """The fold of every validation recipient, [S, n] int64; −1 elsewhere.

    Nodes are dealt out in a random order that depends on the seed and the node alone, so a
    member's folds do not depend on who is fitted beside it. Labels [n] are read where ``val``
    [S, n] holds. Where ``even``, classes are dealt one after the other, so that every fold has its
    share of each. Then the other folds tell how frequent a class is in this one, and held-out
    accuracies are a little too high.
    """
    fewest = int(val.sum(1).min())
    if folds < 2:
        raise InputError(f"folds is {folds}; there must be at least 2 to learn and to judge")
    if fewest < folds:
        raise SplitError(
            f"val of a member has {fewest} nodes, too few for {folds} folds; "
            "give more validation nodes or fewer folds"
        )
    numbers = torch.arange(val.shape[1], device=val.device)
    order = row_hash(torch.tensor(seed, device=val.device), numbers)
    # Validation nodes first, by class and then by chance; labels elsewhere are not read.
    kinds = labels if even else torch.zeros_like(labels)
    behind = kinds[val.any(0)].max() + 1
    keys = torch.where(val, kinds, behind) * (LOW + 1) + order
    place = keys.argsort(dim=1).argsort(dim=1)
    return torch.where(val, place % folds, -1)


def cross_roles(train: Tensor, folds: Tensor, count: int, leave: int = 1, times: int = 1) -> Roles:
    """Copy k learns from the training nodes [S, n] and all folds but k, and is judged on fold k.

    It leaves out ``leave`` of the K = ``count`` folds, k and those after it; where it learns from
    all of them, it is judged on none. ``times`` copies do the same, numbers k, k + K, …
    """
    own = (torch.arange(count * times, device=folds.device) % count).view(1, -1, 1)
    dealt = folds.unsqueeze(1)
    judged = ((dealt == own) & (leave > 0)).flatten(0, 1)
    others = ((dealt >= 0) & ((dealt - own) % count >= leave)).flatten(0, 1)
    trained = train.repeat_interleave(count * times, 0)
    weights = FOLD_SHARE * _mean(others) + (1 - FOLD_SHARE) * _mean(trained)
    return Roles(weights, judged, count * times)


def _mean(chosen: Tensor) -> Tensor:
    return chosen.float() / chosen.sum(1, keepdim=True).clamp(min=1)


def fold_roles(task: Task, folds: int, seed: int) -> Roles:
    """Of a copy per fold of every member, with each class dealt evenly."""
    dealt = deal_folds(task.val, task.labels, folds, seed)
    return cross_roles(task.train, dealt, folds)


def split_into_folds(task: Task, roles: Roles) -> Task:
    """The task of K copies of every member, each with nodes of its own to learn from."""
    weights, judged = roles.weights, roles.judged
    return replace(task, train=weights > 0, val=judged, shares=weights, copies=roles.copies)


def average_copies(logits: Tensor, copies: int) -> Tensor:
    """Mean log-probabilities of the copies' logits [S·K, n, C], normalised; [S, n, C] float64."""
    by_copy = logits.double().log_softmax(2).unflatten(0, (-1, copies))
    return by_copy.mean(1).log_softmax(2)


def held_out(every: Tensor, folds: Tensor) -> Tensor:
    """What the copy that did not learn from a node says of it, [S, …, n, C] of [S, …, K, n, C].

    At recipients that are in no fold it is the first copy's word.
    """
    index = folds.clamp(min=0).view(len(folds), *[1] * (every.dim() - 3), -1, 1)
    return every.gather(-3, index.expand(*every.shape[:-3], 1, *every.shape[-2:])).squeeze(-3)


def middle_copy(stack: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
    """A stack's statistics by member: the middle copy's epochs, whether any diverged."""
    best, run, gone = (stack[name].reshape(-1, copies) for name in STATISTICS)
    return {
        "best_epoch": best.median(1).values,
        "epochs_run": run.median(1).values,
        "diverged": gone.any(1),
    }


# Tables by node that are kept with a fitted repair, and the graph that they belong to -------------


def signature(exposure: Exposure) -> Tensor:
    """One number per node and member that another graph or model would not share, [S, N]."""
    weights = torch.linspace(1, 2, exposure.num_classes, dtype=torch.float64)
    return (exposure.frozen_logits @ weights.to(exposure.frozen_logits.device)).float()


def same_graph(expected: Tensor, exposure: Exposure) -> bool:
    """Whether the exposure is of the graph and model that gave this signature."""
    own_signature = signature(exposure).to(expected.device)
    # Frozen logits of one model repeat to rounding, also on another device.
    return own_signature.shape == expected.shape and torch.allclose(
        own_signature, expected, rtol=1e-3, atol=1e-3
    )


def kept_rows(log_probs: Tensor, exposure: Exposure, title: str) -> Tensor:
    """Of log-probabilities by node [S, …, N, C] those of the recipients, float64.

    Nodes that were no recipients then have rows of zeros, which are nobody's probabilities.
    """
    place = exposure.recipients
    kept = log_probs.to(place.device)[..., place, :].double()
    if not bool((kept.exp().sum(-1) < 1.5).all()):
        raise InputError(
            f"some of these recipients were not exposed when {title} was fitted; fit it on an "
            "exposure that holds them"
        )
    return kept


def check_table(
    fitted: FittedRepair[Any],
    name: str,
    dtype: torch.dtype,
    *shape: int | None,
    within: tuple[int, int] | None = None,
) -> tuple[int, ...]:
    """The shape of a constant read from a file, without the members, once it is as asked for.

    ``shape`` are its axes after the members (None: any length), ``within`` the least and the
    largest number that it may hold.
    """
    if name not in fitted.constants:
        raise InputError(f"it is incomplete: it lacks {name}")
    value = fitted.constants[name]
    sizes = tuple(value.shape[1:])
    fits = len(sizes) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, sizes, strict=True)
    )
    if not fits or value.dtype != dtype or len(value) != fitted.num_members:
        wanted = tuple("any" if size is None else size for size in shape)
        raise InputError(f"{name} has shape {sizes} and type {value.dtype}, not {wanted}, {dtype}")
    if within and not bool(((value >= within[0]) & (value <= within[1])).all()):
        raise InputError(f"{name} must lie in {within[0]}..{within[1]}")
    return sizes


# Any repair in folds ------------------------------------------------------------------------------


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

    def copy(self, index: int) -> FittedRepair[Any]:
        """One of the K copies, as the repair itself would be fitted."""
        values = vars(self) | {
            "parameters": {name: value[:, index] for name, value in self.parameters.items()},
            "constants": {n: value[:, index] for n, value in under(self.constants, "own/").items()},
            "best_epoch": self.constants["best_epochs"][:, index],
        }
        del values["repair"]
        return self.repair.repair.fitted(**values)

    @torch.no_grad()
    def member_logits(self, exposure: Exposure) -> Tensor:
        """Mean log-probabilities at the recipients, [S, n, C] float64."""
        self._matching(exposure)
        log_probs = [
            self.copy(k).member_logits(exposure).log_softmax(2) for k in range(self.copies)
        ]
        return torch.stack(log_probs).mean(0).log_softmax(2)

    def out_of_fold(self) -> Tensor:
        """What copies that did not learn from a validation node say of it, [S, N, C]."""
        return self.constants["out_of_fold"].double()


@dataclass(frozen=True)
class CrossFitted(Repair[FittedCrossFit]):
    """Any repair, fitted in folds of the validation nodes."""

    repair: Repair[Any] = field(default_factory=SetTranslation)
    folds: int = FOLDS
    seed: int = 0
    title: ClassVar[str] = "Cross-fitted"
    fitted_type: ClassVar[type[FittedRepair[Any]]] = FittedCrossFit
    former_settings: ClassVar[tuple[str, ...]] = ("repeats", "fold_share")

    def __post_init__(self) -> None:
        unfit = not isinstance(self.repair, Repair) or isinstance(self.repair, CrossFitted)
        if unfit or self.repair.reads_graph:
            raise InputError(
                f"CrossFitted takes a repair such as SetTranslation(), not {self.repair!r:.60}"
            )
        super().__post_init__()

    def settings(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the repair with its name."""
        inner = {"name": type(self.repair).__name__, "settings": self.repair.settings()}
        return {"folds": self.folds, "seed": self.seed, "repair": inner}

    @classmethod
    def setting_hints(cls) -> dict[str, Any]:
        """In a file the repair stands as a name and settings."""
        return {**super().setting_hints(), "repair": dict}

    @property
    def most_epochs(self) -> int:
        """Those of the repair."""
        return self.repair.most_epochs

    def learn(self, task: Task) -> FittedCrossFit:
        """Fit a copy per fold."""
        folds = deal_folds(task.val, task.labels, self.folds, self.seed)
        learned = self._copies(task, cross_roles(task.train, folds, self.folds))
        fitted = self.fitted_on(
            task.exposure,
            parameters=below(learned, "parameters/"),
            constants={
                "best_epochs": learned["best_epoch"],
                **{f"own/{name}": value for name, value in below(learned, "constants/").items()},
            },
            **middle_copy(learned, self.folds),
        )
        logits = [fitted.copy(k).member_logits(task.exposure) for k in range(self.folds)]
        log_probs = torch.stack(logits, 1).double().log_softmax(3)
        said = held_out(log_probs, folds) * (folds >= 0).unsqueeze(2)
        constants = {**fitted.constants, "out_of_fold": task.by_node(said)}
        return replace(fitted, constants=constants)

    def _copies(self, task: Task, roles: Roles) -> dict[str, Tensor]:
        """What the copies learned, by the names of a file, [S, K, …]."""

        def of(copies: slice, count: int) -> dict[str, Tensor]:
            own = Roles(roles.weights[copies], roles.judged[copies], count)
            return self.repair.learn(split_into_folds(task, own)).tensors()

        if isinstance(self.repair, TrainedRepair):
            # As one stack: small cases cost their steps, however many copies take them together.
            stack = of(slice(None), roles.copies)
            return {name: value.unflatten(0, (-1, roles.copies)) for name, value in stack.items()}
        each = [of(slice(k, None, roles.copies), 1) for k in range(roles.copies)]
        return {name: torch.stack([copy[name] for copy in each], 1) for name in each[0]}

    # Files ------------------------------------------------------------------------------------

    def shapes(self, fitted: FittedCrossFit) -> dict[str, tuple[int, ...]]:
        """The repair's own, once a copy."""
        own = self.repair.shapes(fitted.copy(0))
        return {name: (fitted.copies, *shape) for name, shape in own.items()}

    def check_constants(self, fitted: FittedCrossFit) -> None:
        """Epochs [S, K], held-out predictions [S, N, C], and what the repair itself keeps."""
        check_table(fitted, "best_epochs", torch.int64, None, within=(0, self.most_epochs))
        if fitted.copies < 1:
            raise InputError("best_epochs has none, and must have one for every copy")
        check_table(fitted, "out_of_fold", torch.float32, None, fitted.num_classes)
        others = fitted.constants.keys() - {"best_epochs", "out_of_fold"}
        if odd := sorted(name for name in others if not name.startswith("own/")):
            raise InputError(f"{self.title} has no constant {odd[0][:80]!r}")
        for name, value in {**fitted.constants, **fitted.parameters}.items():
            if name != "out_of_fold" and value.shape[1:2] != (fitted.copies,):
                raise InputError(f"{name[:80]} is not there for each of {fitted.copies} copies")
        for k in range(fitted.copies):
            self.repair.check_constants(fitted.copy(k))


def build_repair(method: Method, settings: Any, exposure: Exposure) -> Repair[Any]:
    """The unfitted repair that a study's ``RepairProtocol`` asks for on this exposure."""
    repair: Repair[Any] = method.repair_class.from_protocol(settings, exposure)
    return CrossFitted(repair, seed=settings.seed) if method.folded else repair
