"""What is evaluated on a frozen backbone. A further repair is one entry here.

Names and titles are plain text, so that tables can be made without loading any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnn_repair.errors import InputError
from gnn_repair.study.protocol import RepairProtocol

if TYPE_CHECKING:
    from gnn_repair.exposure import Exposure

ORACLE = "oracle"
"""The exact-mass oracle on validation and test nodes; asked for like a method."""


@dataclass(frozen=True)
class Method:
    """A repair or control as the study runs it."""

    title: str
    output: str
    """What it learns."""
    message_set: bool
    """Whether it reads the message set."""
    build: Callable[[RepairProtocol, Exposure], Any]
    """The unfitted repair for an exposure."""
    trained: bool = True
    """Whether the training loop finds its parameters."""
    batched: bool = True
    """Whether it is trained on minibatches where the protocol asks for them."""
    from_paper: bool = True
    needs: tuple[str, ...] = ()
    """What its fit is given beside the exposure: ``data`` (the graph) or ``frozen``."""
    by_default: bool = True
    """Whether it is evaluated where no methods are named."""


def _refit_head(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import RefitHead

    return RefitHead(budget=settings.refit_head, seed=settings.seed)


def _node_translation(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import NodeTranslation, SetTranslation
    from gnn_repair.repair.translation import matched_width

    state, classes = exposure.state.shape[2], exposure.num_classes
    capacity = SetTranslation(hidden=settings.hidden).num_parameters(state, classes)
    return NodeTranslation(
        budget=settings.node_translation,
        dropout=settings.dropout,
        seed=settings.seed,
        hidden=matched_width(capacity, state, classes),
    )


def _reweighting(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import Reweighting

    return Reweighting(
        budget=settings.reweighting,
        dropout=settings.dropout,
        seed=settings.seed,
        hidden=settings.hidden,
    )


def _set_translation(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import SetTranslation

    return SetTranslation(
        budget=settings.set_translation,
        dropout=settings.dropout,
        seed=settings.seed,
        hidden=settings.hidden,
    )


def _correct_and_smooth(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import CorrectAndSmooth

    return CorrectAndSmooth(layers=settings.smoothing_layers)


def _temperature(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import TemperatureScaling

    return TemperatureScaling()


def _evidence_ladder(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import EvidenceLadder

    return EvidenceLadder(
        budget=settings.set_translation,
        dropout=settings.dropout,
        seed=settings.seed,
        hidden=settings.hidden,
    )


def _cross_fitted(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import CrossFitted

    return CrossFitted(_set_translation(settings, exposure), seed=settings.seed)


def _cross_fitted_smoothing(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import CrossFitted

    return CrossFitted(_correct_and_smooth(settings, exposure), seed=settings.seed)


def _retrained(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair.controls import RetrainedBackbone

    return RetrainedBackbone(seed=settings.seed)


def _label_propagation(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair.controls import LabelPropagation

    return LabelPropagation(layers=settings.smoothing_layers)


def _feature_perceptron(settings: RepairProtocol, exposure: Exposure) -> Any:
    from gnn_repair.repair import CrossFitted
    from gnn_repair.repair.controls import FeaturePerceptron

    return CrossFitted(
        FeaturePerceptron(hidden=settings.hidden, seed=settings.seed), seed=settings.seed
    )


def _beyond(
    title: str,
    output: str,
    build: Callable[[RepairProtocol, Exposure], Any],
    *needs: str,
    message_set: bool = False,
) -> Method:
    """The ladder or one of its controls: full batches, asked for by name."""
    return Method(
        title=title,
        output=output,
        message_set=message_set,
        build=build,
        batched=False,
        from_paper=False,
        needs=needs,
        by_default=False,
    )


def _baseline(title: str, output: str, build: Callable[[RepairProtocol, Exposure], Any]) -> Method:
    return Method(title, output, False, build, trained=False, batched=False, from_paper=False)


METHODS: dict[str, Method] = {
    "refit_head": Method("Refit head", "linear head", False, _refit_head, batched=False),
    "node_translation": Method("Node translation", "centred shift", False, _node_translation),
    "reweighting": Method("Reweight", "coefficients", True, _reweighting),
    "set_translation": Method("Set translation", "centred shift", True, _set_translation),
    "correct_and_smooth": _baseline("Correct and smooth", "smoothed labels", _correct_and_smooth),
    "temperature_scaling": _baseline("Temperature", "one scale", _temperature),
    "evidence_ladder": _beyond(
        "Evidence ladder", "weighed rungs", _evidence_ladder, "data", message_set=True
    ),
    "cross_fitted": _beyond(
        "Set translation, cross-fitted", "centred shift", _cross_fitted, message_set=True
    ),
    "retrained_backbone": _beyond("Retrained backbone", "everything", _retrained, "frozen"),
    "cross_fitted_smoothing": _beyond(
        "Correct and smooth, cross-fitted", "smoothed labels", _cross_fitted_smoothing
    ),
    "label_propagation": _beyond("Label propagation", "spread labels", _label_propagation, "data"),
    "feature_perceptron": _beyond(
        "Perceptron on features", "everything", _feature_perceptron, "data"
    ),
}
"""Repairs, controls and baselines by name, in the order of the tables."""


def chosen_methods(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Known names in the order of the tables, the oracle first.

    Unless names are given, all but the ladder and its controls, which cost more than the rest.
    """
    known = (ORACLE, *METHODS)
    usual = (ORACLE, *(name for name, method in METHODS.items() if method.by_default))
    wanted = usual if names is None else tuple(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"unknown method {name!r}; choose from {', '.join(known)}")
    return tuple(name for name in known if name in wanted)
