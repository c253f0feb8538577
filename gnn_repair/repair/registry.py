"""Every repair by name, and reading a fitted one back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_repair.errors import FileFormatError
from gnn_repair.files import load_tensors
from gnn_repair.repair.base import Repair, TrainedRepair
from gnn_repair.repair.fitted import KIND, STATISTICS, FittedRepair
from gnn_repair.repair.methods import METHODS

REPAIRS: dict[str, type[Repair[Any]]] = {
    key.replace("_", "-"): method.repair_class for key, method in METHODS.items()
}
"""The classes of all methods, by name; each is declared once, in METHODS."""


def load_repair(path: str | Path) -> FittedRepair:
    """Read what :meth:`FittedRepair.save` wrote; nothing is unpickled."""
    header, tensors = load_tensors(path, KIND)
    by_name = {repair.__name__: repair for repair in REPAIRS.values()}
    name = header.get("repair")
    if name not in by_name:
        raise FileFormatError(f"{path} holds a repair named {name!r}, which this version lacks")
    try:
        repair = by_name[name].from_settings(header["settings"])
        fitted: FittedRepair = repair.fitted(
            width=int(header["width"]),
            num_classes=int(header["num_classes"]),
            parameters=_below(tensors, "parameters/"),
            constants=_below(tensors, "constants/"),
            fingerprint=_fingerprint(header),
            **{field: tensors[field] for field in STATISTICS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is incomplete: {error!r}; save the repair again") from error
    _check_parameters(fitted, path)
    return fitted


def _fingerprint(header: dict[str, Any]) -> tuple[str, ...] | None:
    """Files of earlier versions name no model."""
    held = header.get("fingerprint", ())
    return None if held is None else tuple(str(digest) for digest in held)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _check_parameters(fitted: FittedRepair, path: str | Path) -> None:
    for name, value in {**fitted.parameters, **fitted.constants}.items():
        shared = name in fitted.constants and value.shape[:1] == (1,)
        if value.shape[:1] != (fitted.num_members,) and not shared:
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
