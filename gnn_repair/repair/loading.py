"""Building a declared method's repair, and reading a fitted one back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_repair.backbones.frozen import STATISTICS, below, check_names, check_statistics
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.files import REAL, check_fields, contents_of, load_tensors
from gnn_repair.methods import METHODS, Method
from gnn_repair.repair.base import KIND, FittedRepair, Repair
from gnn_repair.repair.cross_fitting import CrossFitted

REPAIRS: dict[str, type[Repair[Any]]] = {
    key.replace("_", "-"): method.repair_class
    for key, method in METHODS.items()
    if method.by_default
}
"""The classes of the methods that run by default, by name; each is declared once, in METHODS."""

HEADER = {
    "repair": str, "settings": dict, "width": int, "num_classes": int,
    "fingerprint": list | None, "outputs": str, "f1": list,
}  # fmt: skip
RETIRED = (
    "Rung", "PaperFit", "Labels", "LabelsFeatures", "LabelsReweighting",
    "LabelsFeaturesReweighting", "Summary", "SummaryLabels", "SummaryFeatures", "SummaryKin",
    "SummaryAll",
)  # fmt: skip
"""Classes of version 0.2 that its files may name."""
LARGEST = 2**62
"""No setting is larger; torch counts and seeds with 63 bits."""
_LIMITS = {"dropout": 1}
INNER = {"name": str, "settings": dict}
"""The repair that another one fits in folds, in its settings."""


def build_repair(method: Method, settings: Any, exposure: Exposure) -> Repair[Any]:
    """The unfitted repair that a study's ``RepairProtocol`` asks for on this exposure."""
    repair: Repair[Any] = method.repair_class.from_protocol(settings, exposure)
    return CrossFitted(repair, seed=settings.seed) if method.folded else repair


def load_repair(path: str | Path) -> FittedRepair[Any]:
    """Read what :meth:`FittedRepair.save` wrote; nothing is unpickled."""
    header, tensors = load_tensors(path, KIND)
    with contents_of(path):
        return fitted_of(header, tensors)


def fitted_of(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> FittedRepair[Any]:
    """The repair that its ``header()`` and ``tensors()`` describe, once they fit together."""
    header = {"fingerprint": [], "outputs": "classes", "f1": [], **header}
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
    found = []
    for pair in held:
        whole = isinstance(pair, list) and len(pair) == 2
        if not whole or not all(f is None or (type(f) is float and 0 <= f <= 1) for f in pair):
            raise InputError("its f1 is not a list of pairs of shares")
        found.append(tuple(float("nan") if f is None else f for f in pair))
    return tuple(found)  # type: ignore[arg-type]


def repair_of(name: str, settings: dict[str, Any]) -> Repair[Any]:
    """The method with its settings, once each of them is of its type and range."""
    # Every class that a file may name: declared methods and what is fitted in folds.
    known: list[type[Repair[Any]]] = [
        *(method.repair_class for method in METHODS.values()),
        CrossFitted,
    ]
    kind = next((kind for kind in known if kind.__name__ == name), None)
    if name in RETIRED or (name == "EvidenceLadder" and "combine" in settings):
        raise InputError(
            "it holds rungs of version 0.2's evidence ladder, which this version no longer has; "
            "fit EvidenceLadder again"
        )
    if kind is None:
        raise InputError(f"it holds a repair named {name[:80]!r}, which this version lacks")
    check_fields(settings, kind.setting_hints(), "settings")
    numbers = {**settings, **settings.get("budget", {})}
    for key, value in numbers.items():
        number = isinstance(value, int | float) and key != "seed"
        if number and not 0 <= value <= _LIMITS.get(key, LARGEST):
            raise InputError(f"its {key} is {value}, outside 0..{_LIMITS.get(key, LARGEST)}")
    if abs(settings.get("seed", 0)) > LARGEST:
        raise InputError(f"its seed is {settings['seed']}, outside ±{LARGEST}")
    if kind is CrossFitted:
        inner = check_fields(settings["repair"], INNER, "repair")
        if inner["name"] == name:
            raise InputError("its repair is cross-fitted twice")
        settings = {**settings, "repair": repair_of(inner["name"], inner["settings"])}
    return kind.from_settings(settings)


def _check_sizes(header: dict[str, Any]) -> None:
    if header["outputs"] not in ("classes", "labels"):
        raise InputError(f"its outputs are {header['outputs'][:40]!r}, not classes or labels")
    least = 2 if header["outputs"] == "classes" else 1
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
    held = sum(value.numel() for value in tensors.values())
    if (claimed := repair.claims(fitted)) > held:
        raise InputError(f"it claims {claimed} channels but holds {held} numbers")
    expected = repair.shapes(fitted)
    found = {name: tuple(value.shape[1:]) for name, value in fitted.parameters.items()}
    if found != expected:
        raise InputError(f"its parameters have shapes {found} instead of {expected}")
    if len({value.dtype for value in fitted.parameters.values()} - {*REAL}) > 0:
        raise InputError("its parameters are not all real numbers")
