"""Every repair, control and baseline, declared once.

Tables, records, pages, figures and the command line read what stands here; a further repair is a
class in its own file and one entry. Plain text, so that tables can be made without loading any of
the classes.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnn_repair.errors import InputError

if TYPE_CHECKING:
    from gnn_repair.exposure import Exposed
    from gnn_repair.repair.base import Repair


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

    title: str
    """Its name, wherever people read it."""
    output: str
    """What it learns."""
    message_set: bool
    """Whether it reads the message set."""
    repair: str | type[Repair[Any]]
    """The class, or ``module:class`` below this folder, loaded when first built."""
    reads: tuple[str, ...] = ()
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

    @property
    def repair_class(self) -> type[Repair[Any]]:
        """The class itself."""
        if not isinstance(self.repair, str):
            return self.repair
        module, _, name = self.repair.partition(":")
        found: type[Repair[Any]] = getattr(
            importlib.import_module(f"gnn_repair.repair.{module}"), name
        )
        return found

    def build(self, settings: Any, exposure: Exposed) -> Repair[Any]:
        """The unfitted repair that a study's ``RepairProtocol`` asks for on this exposure."""
        repair = self.repair_class.from_protocol(settings, exposure)
        if not self.folded:
            return repair
        # Loaded here: declarations are plain text.
        from gnn_repair.repair.cross_fitting import CrossFitted

        return CrossFitted(repair, seed=settings.seed)


_SHARED = ("repairs.hidden", "repairs.dropout", "repairs.seed")


def _beyond(*, message_set: bool = False, **values: Any) -> Method:
    """The ladder or one of its controls: not from the paper, full batches, asked for by name."""
    values |= {"batched": False, "from_paper": False, "by_default": False}
    return Method(message_set=message_set, **values)


METHODS: dict[str, Method] = {
    "refit_head": Method(
        title="Refit head",
        output="linear head",
        message_set=False,
        repair="head:RefitHead",
        reads=("repairs.seed", "repairs.refit_head"),
        look=Look("square", "#7a7f87", "#a5abb4"),
        batched=False,
    ),
    "node_translation": Method(
        title="Node translation",
        output="centred shift",
        message_set=False,
        repair="translation:NodeTranslation",
        reads=(*_SHARED, "repairs.node_translation"),
        look=Look("flipped", "#56b4e9", "#7cc8f4"),
    ),
    "reweighting": Method(
        title="Reweight",
        output="coefficients",
        message_set=True,
        repair="reweighting:Reweighting",
        reads=(*_SHARED, "repairs.reweighting"),
        look=Look("diamond", "#e69f00", "#f0b02a"),
    ),
    "set_translation": Method(
        title="Set translation",
        output="centred shift",
        message_set=True,
        repair="translation:SetTranslation",
        reads=(*_SHARED, "repairs.set_translation"),
        look=Look("triangle", "#009e73", "#25c497"),
    ),
    "correct_and_smooth": Method(
        title="Correct and smooth",
        output="smoothed labels",
        message_set=False,
        repair="baselines:CorrectAndSmooth",
        reads=("repairs.smoothing_layers",),
        look=Look("pentagon", "#9467bd", "#b9a0e0"),
        trained=False,
        batched=False,
        from_paper=False,
    ),
    "temperature_scaling": Method(
        title="Temperature scaling",
        output="one scale",
        message_set=False,
        repair="baselines:TemperatureScaling",
        look=Look("pentagon", "#8b929c", "#7d8794"),
        trained=False,
        batched=False,
        from_paper=False,
    ),
    "evidence_ladder": _beyond(
        title="Evidence ladder",
        output="weighed candidates",
        message_set=True,
        repair="ladder.ladder:EvidenceLadder",
        reads=("repairs.dropout", "repairs.seed", "repairs.evidence_ladder"),
        look=Look("circle", "#d55e00", "#f08040"),
        needs=("data",),
    ),
    "cross_fitted": _beyond(
        title="Set translation, cross-fitted",
        output="centred shift",
        message_set=True,
        repair="translation:SetTranslation",
        reads=(*_SHARED, "repairs.set_translation"),
        look=Look("triangle", "#0072b2", "#4aa3df"),
        folded=True,
    ),
    "retrained_backbone": _beyond(
        title="Retrained backbone",
        output="everything",
        repair="controls.retrained:RetrainedBackbone",
        reads=("repairs.seed",),
        look=Look("square", "#cc79a7", "#e09cc2"),
        needs=("frozen",),
    ),
    "cross_fitted_smoothing": _beyond(
        title="Correct and smooth, cross-fitted",
        output="smoothed labels",
        repair="baselines:CorrectAndSmooth",
        reads=("repairs.seed", "repairs.smoothing_layers"),
        look=Look("pentagon", "#cc79a7", "#e09cc2"),
        folded=True,
    ),
    "label_propagation": _beyond(
        title="Label propagation",
        output="spread labels",
        repair="controls.label_propagation:LabelPropagation",
        reads=("repairs.smoothing_layers",),
        look=Look("flipped", "#cc79a7", "#e09cc2"),
        needs=("data",),
    ),
    "feature_perceptron": _beyond(
        title="Perceptron on features",
        output="everything",
        repair="controls.perceptron:FeaturePerceptron",
        reads=("repairs.hidden", "repairs.seed"),
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


def method_of(repair: type[Repair[Any]]) -> Method | None:
    """The declaration of a class; None where it has none."""
    home = f"{repair.__module__.removeprefix('gnn_repair.repair.')}:{repair.__name__}"
    return next((m for m in METHODS.values() if m.repair in (repair, home)), None)
