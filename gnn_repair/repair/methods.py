"""Every repair, control and baseline, declared once, and reading a fitted one back.

Tables, records, pages, figures and the command line read what stands here; a further repair is a
class in its own file and one entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gnn_repair.backbones.saving import STATISTICS, below, check_names, check_statistics
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.files import REAL, check_fields, contents_of, load_tensors
from gnn_repair.repair.base import KIND, FittedRepair, Repair
from gnn_repair.repair.baselines import CorrectAndSmooth, TemperatureScaling
from gnn_repair.repair.controls import FeaturePerceptron, LabelPropagation, RetrainedBackbone
from gnn_repair.repair.cross_fitting import CrossFitted
from gnn_repair.repair.head import RefitHead
from gnn_repair.repair.ladder.ladder import EvidenceLadder
from gnn_repair.repair.reweighting import Reweighting
from gnn_repair.repair.translation import NodeTranslation, SetTranslation

MARKERS = ("diamond", "triangle", "flipped", "square", "pentagon", "circle")
"""What pages and figures can draw."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    marker: str
    """One of MARKERS."""
    colour: str
    """On paper and on a light page."""
    dark: str
    """On a dark page."""

    def __post_init__(self) -> None:
        if self.marker not in MARKERS:
            raise InputError(f"marker is {self.marker!r}; choose from {', '.join(MARKERS)}")
        for name in ("colour", "dark"):
            if not re.fullmatch(r"#[0-9a-f]{6}", str(getattr(self, name))):
                raise InputError(f"{name} is {getattr(self, name)!r}; write it as #e69f00")


OWN_LOOK = Look("square", "#9467bd", "#b9a0e0")
"""Of a method that does not say how it is drawn."""


@dataclass(frozen=True)
class Method:
    """A repair, control or baseline, as everything outside its own file knows it."""

    repair: type[Repair[Any]]
    output: str
    """What it learns."""
    message_set: bool
    """Whether it reads the message set."""
    title: str = ""
    """Its name, wherever people read it; the class's own unless given."""
    settings: tuple[str, ...] = ()
    """The protocol's settings it depends on, beside those of the backbone it repairs."""
    look: Look = OWN_LOOK
    trained: bool = True
    """Whether the training loop finds its parameters."""
    batched: bool = True
    """Whether it is trained on minibatches where the protocol asks for them."""
    from_paper: bool = True
    needs: tuple[str, ...] = ()
    """What its fit is given beside the exposure: ``data`` (the graph) or ``frozen``."""
    folded: bool = False
    """Whether the class is fitted in folds of the validation nodes, as ``CrossFitted(…)``."""
    by_default: bool = True
    """Whether it is evaluated where no methods are named."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.repair.title)

    def build(self, settings: Any, exposure: Exposure) -> Repair[Any]:
        """The unfitted repair that a study's ``RepairProtocol`` asks for on this exposure."""
        repair = self.repair.from_protocol(settings, exposure)
        return CrossFitted(repair, seed=settings.seed) if self.folded else repair


_SHARED = ("repairs.hidden", "repairs.dropout", "repairs.seed")


def _beyond(*, message_set: bool = False, **values: Any) -> Method:
    """The ladder or one of its controls: not from the paper, full batches, asked for by name."""
    values |= {"batched": False, "from_paper": False, "by_default": False}
    return Method(message_set=message_set, **values)


METHODS: dict[str, Method] = {
    "refit_head": Method(
        output="linear head",
        message_set=False,
        repair=RefitHead,
        settings=("repairs.seed", "repairs.refit_head"),
        look=Look("square", "#7a7f87", "#a5abb4"),
        batched=False,
    ),
    "node_translation": Method(
        output="centred shift",
        message_set=False,
        repair=NodeTranslation,
        settings=(*_SHARED, "repairs.node_translation"),
        look=Look("flipped", "#56b4e9", "#7cc8f4"),
    ),
    "reweighting": Method(
        output="coefficients",
        message_set=True,
        repair=Reweighting,
        settings=(*_SHARED, "repairs.reweighting"),
        look=Look("diamond", "#e69f00", "#f0b02a"),
    ),
    "set_translation": Method(
        output="centred shift",
        message_set=True,
        repair=SetTranslation,
        settings=(*_SHARED, "repairs.set_translation"),
        look=Look("triangle", "#009e73", "#25c497"),
    ),
    "correct_and_smooth": Method(
        output="smoothed labels",
        message_set=False,
        repair=CorrectAndSmooth,
        settings=("repairs.smoothing_layers",),
        look=Look("pentagon", "#9467bd", "#b9a0e0"),
        trained=False,
        batched=False,
        from_paper=False,
    ),
    "temperature_scaling": Method(
        output="one scale",
        message_set=False,
        repair=TemperatureScaling,
        look=Look("pentagon", "#8b929c", "#7d8794"),
        trained=False,
        batched=False,
        from_paper=False,
    ),
    "evidence_ladder": _beyond(
        output="weighed candidates",
        message_set=True,
        repair=EvidenceLadder,
        settings=("repairs.dropout", "repairs.seed", "repairs.evidence_ladder"),
        look=Look("circle", "#d55e00", "#f08040"),
        needs=("data",),
    ),
    "cross_fitted": _beyond(
        title="Set translation, cross-fitted",
        output="centred shift",
        message_set=True,
        repair=SetTranslation,
        settings=(*_SHARED, "repairs.set_translation"),
        look=Look("triangle", "#0072b2", "#4aa3df"),
        folded=True,
    ),
    "retrained_backbone": _beyond(
        output="everything",
        repair=RetrainedBackbone,
        settings=("repairs.seed",),
        look=Look("square", "#cc79a7", "#e09cc2"),
        needs=("frozen",),
    ),
    "cross_fitted_smoothing": _beyond(
        title="Correct and smooth, cross-fitted",
        output="smoothed labels",
        repair=CorrectAndSmooth,
        settings=("repairs.seed", "repairs.smoothing_layers"),
        look=Look("pentagon", "#cc79a7", "#e09cc2"),
        folded=True,
    ),
    "label_propagation": _beyond(
        output="spread labels",
        repair=LabelPropagation,
        settings=("repairs.smoothing_layers",),
        look=Look("flipped", "#cc79a7", "#e09cc2"),
        needs=("data",),
    ),
    "feature_perceptron": _beyond(
        output="everything",
        repair=FeaturePerceptron,
        settings=("repairs.hidden", "repairs.seed"),
        look=Look("diamond", "#cc79a7", "#e09cc2"),
        needs=("data",),
        folded=True,
    ),
}
"""By name, in the order of the tables (colours: Okabe and Ito's palette)."""


def title_of(name: str) -> str:
    """How people read a name of a record or page; names of one's own stay as they are."""
    if name in METHODS:
        return METHODS[name].title
    return "Frozen" if name == "frozen" else name


# Reading a fitted repair back --------------------------------------------------------------------

REPAIRS: dict[str, type[Repair[Any]]] = {
    key.replace("_", "-"): method.repair for key, method in METHODS.items() if method.by_default
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
    known: list[type[Repair[Any]]] = [*(method.repair for method in METHODS.values()), CrossFitted]
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
