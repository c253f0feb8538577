"""What a result depends on, stage by stage.

A run is a frozen model, the oracle's answers about it and one result a method. Each of these
stages has a key: a digest of those differences from the paper's protocol that the stage reads,
and of the stage's version. A setting that another stage reads, a further setting with its default
or a further method leaves it as it was. Raise a stage's version when what it computes changes
without any setting doing so: its stored results, and no others, are then made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnn_repair.published import published
from gnn_repair.study.methods import METHODS, ORACLE
from gnn_repair.study.protocol import PAPER, Protocol, digest_of

FROZEN = "frozen"
VERSIONS: dict[str, int] = dict.fromkeys((FROZEN, ORACLE, *METHODS), 1)
"""Of what each stage computes."""
VERSIONS["evidence_ladder"] = 2  # other candidates, honest epochs

_SIZES = (
    "data", "backbones.hidden", "backbones.heads", "backbones.dropout", "backbones.seed",
    "backbones.self_loops", "backbones.zero_stream_biases",
)  # fmt: skip
_SHORT = ("gcn", "gat", "sage")
"""The paper's backbones that are trained on the short budget."""


def stage_keys(
    protocol: Protocol,
    dataset: str,
    backbone: str,
    versions: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """The key of every stage of a run, by the stage's name."""
    versions = VERSIONS if versions is None else versions
    changes = protocol.differences()
    model = _picked(changes, (*_SIZES, *_budgets(backbone)))
    keys = {}
    for stage, version in versions.items():
        below = (
            {} if stage == FROZEN else {stage: _own(stage, protocol, changes, dataset, backbone)}
        )
        versioned = {"version": version, "frozen version": versions[FROZEN]}
        keys[stage] = digest_of({"stage": stage, **versioned, "backbone": model, **below})
    return keys


def _budgets(backbone: str) -> tuple[str, ...]:
    """The budget that a backbone is trained on; either may be, for one of the user's own."""
    if backbone in _SHORT:
        return ("backbones.short",)
    if backbone in published()["tables"]["frozen"]["cells"]:
        return ("backbones.long",)
    return "backbones.short", "backbones.long"


def _own(
    stage: str, protocol: Protocol, changes: Mapping[str, Any], dataset: str, backbone: str
) -> dict[str, Any]:
    """What a stage reads beside the frozen model."""
    if stage == ORACLE:
        return _picked(changes, ("oracle",))
    own = _picked(changes, METHODS[stage].reads)
    size = protocol.batches.of(dataset, backbone)
    if METHODS[stage].batched and size != PAPER.batches.of(dataset, backbone):
        own["batch"] = size
    return own


def _picked(changes: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The differences at or below ``paths``."""
    found = {}
    for path in paths:
        value: Any = changes
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[path] = value
    return found


def current_methods(record: Mapping[str, Any], protocol: Protocol) -> tuple[str, ...]:
    """Which stages of a record are results of this protocol as it is computed today.

    A record without keys is of the time before stages had any, when all versions were 1.
    """
    place = (record["dataset"], record["backbone"])
    now = stage_keys(protocol, *place)
    stored = record.get("stages") or stage_keys(protocol, *place, dict.fromkeys(VERSIONS, 1))
    if stored.get(FROZEN) != now[FROZEN]:
        return ()
    held = ((ORACLE,) if record.get("oracle") else ()) + tuple(record["methods"])
    return tuple(name for name in held if name not in now or stored.get(name) == now[name])
