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
    reads: tuple[str, ...]
    """The settings it depends on, beside those of the backbone it repairs."""
    trained: bool = True
    """Whether the training loop finds its parameters."""
    batched: bool = True
    """Whether it is trained on minibatches where the protocol asks for them."""
    from_paper: bool = True


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


_SHARED = ("repairs.hidden", "repairs.dropout", "repairs.seed")

METHODS: dict[str, Method] = {
    "refit_head": Method(
        title="Refit head",
        output="linear head",
        message_set=False,
        build=_refit_head,
        reads=("repairs.seed", "repairs.refit_head"),
        batched=False,
    ),
    "node_translation": Method(
        title="Node translation",
        output="centred shift",
        message_set=False,
        build=_node_translation,
        reads=(*_SHARED, "repairs.node_translation"),
    ),
    "reweighting": Method(
        title="Reweight",
        output="coefficients",
        message_set=True,
        build=_reweighting,
        reads=(*_SHARED, "repairs.reweighting"),
    ),
    "set_translation": Method(
        title="Set translation",
        output="centred shift",
        message_set=True,
        build=_set_translation,
        reads=(*_SHARED, "repairs.set_translation"),
    ),
    "correct_and_smooth": Method(
        title="Correct and smooth",
        output="smoothed labels",
        message_set=False,
        build=_correct_and_smooth,
        reads=("repairs.smoothing_layers",),
        trained=False,
        batched=False,
        from_paper=False,
    ),
    "temperature_scaling": Method(
        title="Temperature",
        output="one scale",
        message_set=False,
        build=_temperature,
        reads=(),
        trained=False,
        batched=False,
        from_paper=False,
    ),
}
"""Repairs, controls and baselines by name, in the order of the tables."""


def chosen_methods(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Known names in the order of the tables, the oracle first; all unless given."""
    known = (ORACLE, *METHODS)
    if isinstance(names, str) or not (names is None or isinstance(names, Iterable)):
        raise InputError(f"methods is {names!r}; give a list of names, of {', '.join(known)}")
    wanted = known if names is None else tuple(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"unknown method {name!r}; choose from {', '.join(known)}")
    return tuple(name for name in known if name in wanted)
