"""What can be known before the first case, and is refused then instead of failing every case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch_geometric.data import Data

from gnn_repair.backbones import BACKBONES, Backbone, OwnNetwork, find_backbone
from gnn_repair.datasets import as_splits, check_data, find_dataset
from gnn_repair.datasets.files import data_root
from gnn_repair.datasets.preprocessing import SPLITS
from gnn_repair.devices import choose_device, parse_device
from gnn_repair.errors import InputError, SplitError
from gnn_repair.study.cases import Case, Place
from gnn_repair.study.data import HeldDatasets, Named
from gnn_repair.study.engine import Work
from gnn_repair.study.methods import METHODS
from gnn_repair.study.protocol import Protocol
from gnn_repair.study.records import Record
from gnn_repair.study.run_case import Architecture, Settings, build_backbone, run_case

Grid = Sequence[str] | Mapping[str, Any]


def real_work(
    datasets: Grid, backbones: Grid, cases: Sequence[Case], protocol: Protocol, place: Place
) -> tuple[Work[Case, list[Record]], Settings]:
    """What a case does and what all of them share, after everything known has been checked."""
    if place.elsewhere:
        if place.device != "auto":
            parse_device(place.device)
    else:
        choose_device(place.device)
    load, splits = _loader(datasets, place, protocol.data.draw)
    for case in cases:
        for split in case.splits:
            if split >= splits[case.dataset]:
                raise SplitError(
                    f"split {split} does not exist; {case.dataset} has splits 0 to "
                    f"{splits[case.dataset] - 1}"
                )
    chosen = _architectures(backbones, protocol)
    for case in cases:
        if isinstance(chosen.get(case.backbone), OwnNetwork):
            _refuse_retrained(case)
    return run_case, Settings(protocol, load, chosen, place.device)


def notes_of(settings: Settings) -> list[str]:
    """What whoever runs a study should know of how its backbones are trained."""
    return [
        f"{name} is no Backbone, so its splits are trained one after the other, not as one"
        for name, given in settings.backbones.items()
        if isinstance(given, OwnNetwork)
    ]


def _refuse_retrained(case: Case) -> None:
    """A method that trains the backbone again needs a Backbone."""
    for name in case.methods:
        if name in METHODS and "frozen" in METHODS[name].needs:
            raise InputError(
                f"{name} trains the backbone again, which a study does with a Backbone alone; "
                f"leave it out of the methods for {case.backbone!r}, which is an OwnNetwork"
            )


def _loader(datasets: Grid, place: Place, draw: str) -> tuple[Any, dict[str, int]]:
    """What loads a dataset, and how many splits each has."""
    if isinstance(datasets, Mapping):
        return HeldDatasets(dict(datasets)), {
            name: _given(name, data) for name, data in datasets.items()
        }
    named = [find_dataset(name) for name in datasets]
    if not place.elsewhere and any(spec.source is not None for spec in named):
        data_root(place.root)
    return Named(place.root, draw), dict.fromkeys(datasets, SPLITS)


def _given(name: str, data: Any) -> int:
    """Check a graph of the user's own; how many splits it has."""
    if not isinstance(data, Data):
        raise InputError(
            f"dataset {name!r} is a {type(data).__name__}; give a torch_geometric Data with x, "
            "edge_index, y, train_mask, val_mask and test_mask"
        )
    try:
        check_data(data)
    except InputError as error:
        raise type(error)(f"dataset {name!r} cannot be used: {error}") from error
    return int(as_splits(data.train_mask).shape[1])


def _architectures(backbones: Grid, protocol: Protocol) -> Mapping[str, Architecture]:
    if isinstance(backbones, Mapping):
        chosen = {name: _architecture(name, given) for name, given in backbones.items()}
    else:
        for name in backbones:
            find_backbone(name)
        chosen = {name: BACKBONES[name] for name in backbones}
    for name, given in chosen.items():
        if isinstance(given, OwnNetwork):
            continue
        try:
            build_backbone(given, protocol.backbones)
        except TypeError as error:
            raise InputError(f"backbone {name!r} cannot be built: {error}") from error
    return chosen


def _architecture(name: str, given: Any) -> Architecture:
    if isinstance(given, Backbone | OwnNetwork) or (
        isinstance(given, type) and issubclass(given, Backbone)
    ):
        return given
    if isinstance(given, type) and issubclass(given, nn.Module):
        return OwnNetwork(given, title=given.__name__)
    found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    remedy = (
        "a study trains its models itself; give its class, say how it is built with an OwnNetwork "
        "(docs/backbones.md), or look at a trained model with gnn_repair.expose"
        if isinstance(given, nn.Module)
        else "give a Backbone class or instance"
    )
    raise InputError(f"backbone {name!r} is {found}, which is no Backbone; {remedy}")
