"""Every method and every rung of the evidence ladder, declared once.

Tables, records, pages, figures and the command line read what stands here, and none of them needs
PyTorch for it. A further repair is a class in its own file and one entry of ``METHODS``.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from gnn_repair.errors import InputError

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

    repair: str | type
    """Its class, or where that stands: ``module:NAME``, loaded when first used."""
    title: str
    """Its name, wherever people read it."""
    output: str
    """What it learns."""
    message_set: bool
    """Whether it reads the message set."""
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

    @property
    def repair_class(self) -> Any:
        """The class that is fitted."""
        if not isinstance(self.repair, str):
            return self.repair
        module, _, name = self.repair.partition(":")
        return getattr(importlib.import_module(module), name)


_SHARED = ("repairs.hidden", "repairs.dropout", "repairs.seed")
_UNTRAINED: dict[str, Any] = {"trained": False, "batched": False, "from_paper": False}
_BEYOND: dict[str, Any] = {"batched": False, "from_paper": False, "by_default": False}
"""The ladder and its controls: not from the paper, full batches, asked for by name."""
_ADAPTERS, _BASELINES = "gnn_repair.repair.adapters", "gnn_repair.repair.baselines"

METHODS: dict[str, Method] = {
    "refit_head": Method(
        f"{_ADAPTERS}:RefitHead", "Refit head", output="linear head", message_set=False,
        settings=("repairs.seed", "repairs.refit_head"),
        look=Look("square", "#7a7f87", "#a5abb4"), batched=False,
    ),
    "node_translation": Method(
        f"{_ADAPTERS}:NodeTranslation", "Node translation", output="centred shift",
        message_set=False, settings=(*_SHARED, "repairs.node_translation"),
        look=Look("flipped", "#56b4e9", "#7cc8f4"),
    ),
    "reweighting": Method(
        f"{_ADAPTERS}:Reweighting", "Reweight", output="coefficients",
        message_set=True, settings=(*_SHARED, "repairs.reweighting"),
        look=Look("diamond", "#e69f00", "#f0b02a"),
    ),
    "set_translation": Method(
        f"{_ADAPTERS}:SetTranslation", "Set translation", output="centred shift",
        message_set=True, settings=(*_SHARED, "repairs.set_translation"),
        look=Look("triangle", "#009e73", "#25c497"),
    ),
    "correct_and_smooth": Method(
        f"{_BASELINES}:CorrectAndSmooth", "Correct and smooth", output="smoothed labels",
        message_set=False, settings=("repairs.smoothing_layers",),
        look=Look("pentagon", "#9467bd", "#b9a0e0"), **_UNTRAINED,
    ),
    "temperature_scaling": Method(
        f"{_BASELINES}:TemperatureScaling", "Temperature scaling", output="one scale",
        message_set=False, look=Look("pentagon", "#8b929c", "#7d8794"), **_UNTRAINED,
    ),
    "evidence_ladder": Method(
        "gnn_repair.repair.ladder.ladder:EvidenceLadder", "Evidence ladder",
        output="weighed candidates", message_set=True, needs=("data",),
        settings=("repairs.dropout", "repairs.seed", "repairs.evidence_ladder"),
        look=Look("circle", "#d55e00", "#f08040"), **_BEYOND,
    ),
    "cross_fitted": Method(
        f"{_ADAPTERS}:SetTranslation", "Set translation, cross-fitted", output="centred shift",
        message_set=True, settings=(*_SHARED, "repairs.set_translation"), folded=True,
        look=Look("triangle", "#0072b2", "#4aa3df"), **_BEYOND,
    ),
    "retrained_backbone": Method(
        f"{_BASELINES}:RetrainedBackbone", "Retrained backbone", output="everything",
        message_set=False, settings=("repairs.seed",), needs=("frozen",),
        look=Look("square", "#cc79a7", "#e09cc2"), **_BEYOND,
    ),
    "cross_fitted_smoothing": Method(
        f"{_BASELINES}:CorrectAndSmooth", "Correct and smooth, cross-fitted",
        output="smoothed labels", message_set=False, folded=True,
        settings=("repairs.seed", "repairs.smoothing_layers"),
        look=Look("pentagon", "#cc79a7", "#e09cc2"), **_BEYOND,
    ),
    "label_propagation": Method(
        f"{_BASELINES}:LabelPropagation", "Label propagation", output="spread labels",
        message_set=False, settings=("repairs.smoothing_layers",), needs=("data",),
        look=Look("flipped", "#cc79a7", "#e09cc2"), **_BEYOND,
    ),
    "feature_perceptron": Method(
        f"{_BASELINES}:FeaturePerceptron", "Perceptron on features", output="everything",
        message_set=False, settings=("repairs.hidden", "repairs.seed"), needs=("data",),
        look=Look("diamond", "#cc79a7", "#e09cc2"), **_BEYOND,
    ),
}  # fmt: skip
"""By name, in the order of the tables (colours: Okabe and Ito's palette)."""


def title_of(name: str) -> str:
    """How people read a name of a record or page; names of your own stay as they are."""
    if name in METHODS:
        return METHODS[name].title
    return "Frozen" if name == "frozen" else name


# Rungs of the evidence ladder ---------------------------------------------------------------------


class Rung(NamedTuple):
    """One candidate beside the frozen model."""

    title: str
    """In tables and on pages."""
    blocks: tuple[str, ...]
    """Of ``BLOCKS``; empty: a combination of the rungs before it."""
    keeps: bool
    """Whether it shifts the frozen logits, by a bounded amount; else it does not use the model."""
    above: str
    """The candidate it is compared with to say what its evidence is worth."""
    evidence: str
    """What it reads that the other does not."""
    advice: str
    """What a user can do when that is worth much."""
    formerly: str = ""
    """Its name in records of version 0.2."""
    lead: str = ""
    """What a gain of this rung means, where there is more to say."""
    rivals: tuple[str, ...] = ()
    """Candidates that, where they do clearly better, show that it does not mean that."""

    @property
    def inductive(self) -> bool:
        """Whether it needs nothing but an exposure, and so holds on other graphs."""
        return self.blocks == ("messages",)


BLOCKS = ("messages", "labels", "similar", "features")
"""A frozen summary of the node and its messages; labels of neighbours within two hops; labels of
similar nodes; the node's raw features."""

FROZEN, TOGETHER = "frozen", "together"
"""The model as it is; the weighed mean of all rungs but smoothing."""

_ATTEND = "let nodes attend to similar ones, wherever they are"
_SKIP = "add a skip connection from the features to the classifier"
_FEED = "feed known labels of neighbours as input"

RUNGS: dict[str, Rung] = {
    "messages": Rung(
        "messages", ("messages",), True, FROZEN,
        "held-out errors to learn from (validation nodes, in folds)",
        "give the classifier more labels: hold out fewer of them", "summary",
    ),
    "labels": Rung(
        "messages + neighbours' labels", ("messages", "labels"), True, "messages",
        "labels of neighbours, which the network never saw,", _FEED, "summary-labels",
    ),
    "similar": Rung(
        "messages + similar nodes' labels", ("messages", "labels", "similar"), True, "labels",
        "labels of similar nodes, wherever they are,", _ATTEND, "summary-kin",
    ),
    "skip": Rung(
        "messages + raw features", ("messages", "labels", "features"), True, "labels",
        "the raw features, which the network no longer shows,", _SKIP, "summary-features",
    ),
    "everything": Rung(
        "messages + all evidence", BLOCKS, True, "similar",
        "the raw features, beside labels of similar nodes,", _SKIP, "summary-all",
    ),
    "features": Rung(
        "own features alone", ("features",), False, FROZEN,
        "the node's own features alone", "use an MLP or a skip connection",
        lead="the graph hurts here: ",
        rivals=("messages", "labels", "skip", "everything", "features-labels"),
    ),
    "features-labels": Rung(
        "own features + neighbours' labels", ("labels", "features"), False, "features",
        "labels of neighbours, beside a node's own features,", _FEED,
    ),
    "features-similar": Rung(
        "own features + similar nodes' labels", ("labels", "similar", "features"), False,
        "features-labels", "labels of similar nodes, beside a node's own features,", _ATTEND,
    ),
    "smoothed": Rung(
        "smoothing", (), False, TOGETHER,
        "predictions and known labels, smoothed along links,",
        "smooth predictions along links (Correct-and-Smooth)",
    ),
}  # fmt: skip
"""By name, in the order of the tables."""

NOTHING = "nothing to gain: no evidence beside the model's own stands out"
"""Advice where the frozen model stays as it is."""
UNCLEAR = "the candidates together beat the model, but no single kind of evidence stands out"
"""Advice where it does not, and still nothing stands out."""


def rung_title(name: str) -> str:
    """How people read a candidate's name."""
    if name in RUNGS:
        return RUNGS[name].title
    return {FROZEN: "Frozen", TOGETHER: "all together"}.get(name, name)
