"""Every repair by name, and reading a fitted one back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_repair.errors import FileFormatError
from gnn_repair.files import load_tensors
from gnn_repair.repair.base import KIND, FittedRepair, Repair, TrainedRepair
from gnn_repair.repair.baselines import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.controls import FeaturePerceptron, LabelPropagation, RetrainedBackbone
from gnn_repair.repair.cross_fitting import CrossFitted
from gnn_repair.repair.head import RefitHead
from gnn_repair.repair.ladder import RUNGS, EvidenceLadder
from gnn_repair.repair.reweighting import Reweighting
from gnn_repair.repair.translation import NodeTranslation, SetTranslation

REPAIRS: dict[str, type[Repair[Any]]] = {
    "reweighting": Reweighting,
    "set-translation": SetTranslation,
    "node-translation": NodeTranslation,
    "refit-head": RefitHead,
    "correct-and-smooth": CorrectAndSmooth,
    "temperature-scaling": TemperatureScaling,
}
"""The paper's two repairs and two controls, then two baselines that are not from the paper."""

COMPOSED: dict[str, type[Repair[Any]]] = {
    "cross-fitted": CrossFitted,
    "evidence-ladder": EvidenceLadder,
    "label-propagation": LabelPropagation,
    "retrained-backbone": RetrainedBackbone,
    "feature-perceptron": FeaturePerceptron,
}
"""The ladder, what it is made of and its controls; none is from the paper."""

STATISTICS = ("best_epoch", "epochs_run", "diverged")


def load_repair(path: str | Path) -> FittedRepair:
    """Read what :meth:`FittedRepair.save` wrote; nothing is unpickled."""
    header, tensors = load_tensors(path, KIND)
    try:
        repair = by_name(header.get("repair")).from_settings(header["settings"])
        fitted: FittedRepair = repair.fitted(
            width=int(header["width"]),
            num_classes=int(header["num_classes"]),
            parameters=_below(tensors, "parameters/"),
            constants=_below(tensors, "constants/"),
            **{field: tensors[field] for field in STATISTICS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is incomplete: {error!r}; save the repair again") from error
    _check_parameters(fitted, path)
    return fitted


def by_name(name: Any) -> type[Repair[Any]]:
    """The repair of that class name, rungs of the ladder included."""
    known = {
        kind.__name__: kind for kind in (*REPAIRS.values(), *COMPOSED.values(), *RUNGS.values())
    }
    if name not in known:
        raise FileFormatError(f"the file holds a repair named {name!r}, which this version lacks")
    return known[name]


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _check_parameters(fitted: FittedRepair, path: str | Path) -> None:
    for name, value in {**fitted.parameters, **fitted.constants}.items():
        if value.shape[:1] != (fitted.num_members,):
            raise FileFormatError(
                f"{path} is inconsistent: {name} has {value.shape[0] if value.dim() else 0} "
                f"members instead of {fitted.num_members}"
            )
    if isinstance(fitted.repair, TrainedRepair):
        expected = fitted.repair.shapes(fitted)
        found = {name: tuple(value.shape[1:]) for name, value in fitted.parameters.items()}
        if found != expected:
            raise FileFormatError(
                f"{path} is inconsistent: its parameters have shapes {found} instead of {expected}"
            )
