"""Small values of the five kinds that are saved, and judges of what is loaded in their place.

A judge recomputes with plain NumPy or PyG what the package's own checks promise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, Backbone, Frozen, Shape, train_backbone
from gnn_repair.budget import LADDER, SHORT
from gnn_repair.exposure import Exposure, expose
from gnn_repair.oracle import Solution, solve
from gnn_repair.repair import REPAIRS, CrossFitted, EvidenceLadder, FittedRepair, SetTranslation
from gnn_repair.repair.base import Repair, TrainedRepair
from gnn_repair.repair.baselines import FeaturePerceptron, LabelPropagation, RetrainedBackbone
from gnn_repair.repair.ladder import FittedLadder

NODES, CLASSES, SPLITS = 20, 3, 2


@dataclass(frozen=True)
class Subject:
    """One kind of file."""

    name: str
    files: tuple[bytes, ...]
    """Sound files of this kind."""
    load: Callable[[Path], Any]
    judge: Callable[[Any], str]
    """What is wrong with a loaded value; empty where nothing is."""
    use: Callable[[Any], object]
    """What a user would do with it next."""


def make_subjects(folder: Path) -> list[Subject]:
    """The five kinds, trained and solved on a small random graph."""
    data, budget = _graph(), replace(SHORT, epochs=2)
    backbone = BACKBONES["sage"](Shape(hidden=4, heads=2))
    frozen = train_backbone(backbone, data, device="cpu", budget=budget)
    exposure = expose(frozen)
    solution = solve(exposure, "all", torch.arange(4))
    several = replace(exposure, outputs="labels")
    answers = solve(several, "flip", torch.arange(4))
    fitted = [_fit(name, exposure, data) for name in REPAIRS]
    fitted += _in_folds(exposure, data, frozen)

    def saved(*values: Any) -> tuple[bytes, ...]:
        contents = []
        for value in values:
            value.save(folder / "sound")
            contents.append((folder / "sound").read_bytes())
        return tuple(contents)

    def read_frozen(path: Path) -> Frozen:
        return Frozen.load(path, data, backbone, budget, 0)

    judged, posed = judge_solution, judge_label_solution
    return [
        Subject("exposure", saved(exposure), Exposure.load, judge_exposure, _use_exposure),
        Subject("frozen", saved(frozen), read_frozen, judge_frozen, expose),
        Subject("repair", saved(*fitted), FittedRepair.load, judge_repair, _use_repair(exposure)),
        Subject("solution", saved(solution), Solution.load, judged, _use_solution(exposure)),
        Subject("label solution", saved(answers), Solution.load, posed, _use_solution(several)),
    ]


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(3, NODES, SPLITS, dtype=torch.bool)
    for split in range(SPLITS):
        for part, chosen in enumerate(torch.randperm(NODES, generator=generator).split([8, 6, 6])):
            masks[part, chosen, split] = True
    ends = torch.randint(NODES, (2, 30), generator=generator)
    loops = torch.arange(NODES).expand(2, -1)
    return Data(
        x=torch.randn(NODES, 5, generator=generator, dtype=torch.float64),
        edge_index=torch.cat([ends, ends.flip(0), loops], 1).unique(dim=1),
        y=torch.arange(NODES) % CLASSES,
        train_mask=masks[0], val_mask=masks[1], test_mask=masks[2],
    )  # fmt: skip


def _fit(name: str, exposure: Exposure, data: Data) -> FittedRepair[Any]:
    repair = REPAIRS[name]()
    if isinstance(repair, TrainedRepair):
        repair = replace(repair, budget=replace(repair.budget, epochs=2))
        if getattr(repair, "hidden", 0):
            repair = replace(repair, hidden=4)  # type: ignore[call-arg]
    fitted: FittedRepair[Any] = repair.fit(
        exposure, data.y, data.train_mask, data.val_mask, device="cpu"
    )
    return fitted


def _in_folds(exposure: Exposure, data: Data, frozen: Frozen) -> list[FittedRepair[Any]]:
    """The ladder, what is fitted in folds and the controls."""
    small = replace(LADDER, epochs=2)
    given = (exposure, data.y, data.train_mask, data.val_mask)
    reading: list[Repair[Any]] = [
        EvidenceLadder(rungs=("messages", "similar", "smoothed"), hidden=4, folds=2, budget=small),
        CrossFitted(SetTranslation(small, hidden=4), folds=2),
        FeaturePerceptron(hidden=4, folds=2, budget=small),
        LabelPropagation(layers=2),
    ]
    fitted: list[FittedRepair[Any]] = [
        repair.fit(*given, data=data, device="cpu") for repair in reading
    ]
    return [*fitted, RetrainedBackbone(folds=2).fit(*given, frozen=frozen, device="cpu")]


def _use_exposure(exposure: Exposure) -> object:
    return str(exposure), exposure.member(0), exposure.restrict(exposure.recipients[:2])


def _use_solution(exposure: Exposure) -> Callable[[Solution], object]:
    def use(value: Solution) -> object:
        return str(value), [str(value[i]) for i in range(len(value))], value.check(exposure)

    return use


def _use_repair(exposure: Exposure) -> Callable[[FittedRepair[Any]], object]:
    def use(fitted: FittedRepair[Any]) -> object:
        # A number of steps is anybody's choice; a large one would only take long.
        if getattr(fitted.repair, "layers", 0) > 1000:
            return None
        return fitted.predict(exposure)

    return use


# What a value is ----------------------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    """A digest of everything a value holds, whatever its kind."""
    digest = hashlib.sha256()
    for part in fields(value):
        held = getattr(value, part.name)
        if not isinstance(held, Data):
            digest.update(f"{part.name}: {_told(held)}".encode())
    return digest.hexdigest()


def _told(held: Any) -> str:
    if isinstance(held, Tensor):
        held = held.detach().numpy()
    if isinstance(held, np.ndarray):
        return f"{held.dtype}{held.shape}{hashlib.sha256(held.tobytes()).hexdigest()}"
    if hasattr(held, "items"):
        return str([(key, _told(held[key])) for key in sorted(held)])
    if isinstance(held, tuple | list):
        return str([_told(item) for item in held])
    if isinstance(held, Backbone):
        return f"{type(held).__name__} {held.shape}"
    if is_dataclass(held):
        return f"{type(held).__name__} {[_told(getattr(held, f.name)) for f in fields(held)]}"
    return f"{type(held).__name__} {held!r}"


# Judges -------------------------------------------------------------------------------------------


def judge_exposure(value: Exposure) -> str:
    """z(α) rebuilt term by term must be the frozen logits."""
    arrays = {name: tensor.double().numpy() for name, tensor in value._tensors().items()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        return "a number is not finite"
    groups, ends = len(value.groups), value.segments.tolist()
    worst = 0.0
    for s in range(len(arrays["contributions"])):
        alpha = arrays["coefficients"][min(s, len(arrays["coefficients"]) - 1)]
        for i, node in enumerate(value.recipients.tolist()):
            z = arrays["fixed_logits"][s, node].copy()
            for a in range(ends[i * groups], ends[(i + 1) * groups]):
                if alpha[a] < 0:
                    return "a coefficient is negative"
                z += alpha[a] * arrays["contributions"][s, int(arrays["rows"][a])]
            frozen = arrays["frozen_logits"][s, node]
            missed = (np.abs(z - frozen) / np.maximum(1, np.abs(frozen))).max()
            worst = float(np.maximum(worst, missed))  # which keeps a NaN
    # float32 coefficients: beyond their rounding, and far below what an altered number does.
    return "" if worst < 1e-4 else f"its pieces miss its logits by {worst:.1e}"


def judge_frozen(value: Frozen) -> str:
    """Every member as a plain PyG network must give the logits."""
    for member in range(value.num_members):
        with torch.no_grad():
            again = value.network(member)(value.data.x, value.data.edge_index)
        gap = float(((again - value.logits[member]).abs() / again.abs().clamp(min=1)).max())
        # Twice what the reader allows (frozen.py), which judges another formula.
        if not gap < 2e-3:
            return f"member {member} misses its logits by {gap:.1e}"
    fair = value.splits and all(split in range(SPLITS) for split in value.splits)
    return "" if fair and bool((value.best_epoch <= value.epochs_run).all()) else "bad statistics"


def judge_repair(value: FittedRepair[Any]) -> str:
    """Parameters are finite, one set a member, and the network accepts them."""
    for name, tensor in {**value.parameters, **value.constants}.items():
        shared = name in value.constants and len(tensor) == 1
        own = shared or len(tensor) == value.num_members
        if not own or not bool(torch.isfinite(tensor.double()).all()):
            return f"{name} is not finite or not one a member"
    if isinstance(value.repair, TrainedRepair):
        network = value.repair.network(value.input_width, value.num_classes)
        held = {name: tuple(part.shape) for name, part in network.state_dict().items()}
        given = {name: tuple(part.shape[:0:-1]) for name, part in value.parameters.items()}
        return "" if held == given else "its parameters do not fit its network"
    return _judge_ladder(value) if isinstance(value, FittedLadder) else ""


def _judge_ladder(value: FittedLadder) -> str:
    """Shares that sum to 1 and a positive temperature."""
    weights = value.constants["weights"].numpy()
    if (weights < 0).any() or np.abs(weights.sum(1) - 1).max() > 1e-6:
        return "its weights are no shares"
    return (
        "" if float(value.constants["temperature"].min()) > 0 else "a temperature is not positive"
    )


def _judge_support(value: Solution) -> str:
    """Every problem's support lies in the arrays, and its coefficients are positive."""
    ends = value.indptr.tolist()
    for i in range(len(value)):
        terms = value.terms[ends[i] : ends[i + 1]].tolist()
        inside = 0 <= ends[i] <= ends[i + 1] <= len(value.coefficients)
        if not inside or terms != sorted(set(terms)):
            return f"problem {i} has no proper support"
    fair = (value.coefficients > 0).all() and min(value.node, default=0) >= 0
    return "" if fair else "bad signs"


def judge_solution(value: Solution) -> str:
    """Of every LP the rival weights are a mixture, and its numbers are some."""
    for i in np.flatnonzero(value.status != 3).tolist():
        weights, target = value.rival_weights[i].tolist(), int(value.target[i])
        # The reader allows 1e-6.
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-5 or weights[target] != 0:
            return f"LP {i} has no mixture of rivals"
        if not np.isfinite([value.margin[i], value.bound[i]]).all():
            return f"LP {i} has no margin"
    return _judge_support(value)


def judge_label_solution(value: Solution) -> str:
    """Every question's numbers are some."""
    if not np.isfinite(value.margin).all() or np.isnan(value.bound).any():
        return "a question has no margin"
    return _judge_support(value) or ("" if np.isfinite(value.threshold) else "no threshold")
