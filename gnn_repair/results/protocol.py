"""Every number of the paper's protocol, and how to change one.

A protocol is a frozen tree of plain values. Its digest stands for the *differences* from the
paper's protocol and is part of every result's address: results of different settings never mix,
and a further setting with its default leaves every address as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnn_repair.budget import (
    BATCH,
    BATCHED,
    BATCHES,
    CONTROL,
    LADDER,
    LONG,
    REFIT,
    REWEIGHTING,
    SHORT,
    TRANSLATION,
    Budget,
    paper_batch_size,
)
from gnn_repair.errors import FileFormatError, InputError, closest
from gnn_repair.published import ACTIVE, REACHABLE


@dataclass(frozen=True)
class DataProtocol:
    """What the datasets' files leave open."""

    draw: str = "torch"
    """Whose generator draws the splits of Cora, Citeseer and PubMed: torch or numpy."""


@dataclass(frozen=True)
class BackboneProtocol:
    """How backbones are built and trained."""

    hidden: int = 128
    heads: int = 8
    dropout: float = 0.5
    seed: int = 0
    """Of initialisation and dropout, the same on every split."""
    short: Budget = SHORT
    """GCN, GAT and GraphSAGE."""
    long: Budget = LONG
    """The five added backbones."""
    self_loops: str = "one"
    """Entries of a node with a self-loop of its own, where a convolution normalises or attends:
    one, or both that are listed."""
    zero_stream_biases: bool = True
    """Whether the biases of H2GCN's streams start at zero."""

    def budget(self, own: Budget) -> Budget:
        """The budget that stands for a backbone's ``own`` one; a budget of one's own is kept."""
        if own == SHORT:
            return self.short
        return self.long if own == LONG else own


@dataclass(frozen=True)
class RepairProtocol:
    """How repairs and controls are built and trained."""

    hidden: int = 128
    """H, the width of the encoders and heads, and of the pooled set."""
    dropout: float = 0.2
    seed: int = 0
    reweighting: Budget = REWEIGHTING
    set_translation: Budget = TRANSLATION
    node_translation: Budget = CONTROL
    refit_head: Budget = REFIT
    evidence_ladder: Budget = LADDER
    """Each rung of the evidence ladder, which is not from the paper."""
    smoothing_layers: int = 50
    """Propagation steps of correct-and-smooth, which is not from the paper."""


@dataclass(frozen=True)
class BatchProtocol:
    """Target nodes an update of a repair sees; full batch for all other backbones."""

    backbones: tuple[str, ...] = BATCHED
    size: int = BATCH
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(BATCHES))
    """Datasets with a size of their own."""

    def of(self, dataset: str, backbone: str) -> int | None:
        """The batch size of a case; None: all targets at once."""
        return paper_batch_size(
            dataset, backbone, backbones=self.backbones, size=self.size, sizes=self.sizes
        )


@dataclass(frozen=True)
class OracleProtocol:
    """When a class counts as reachable and a coefficient as active."""

    reachable_above: float = REACHABLE
    """γ."""
    active_above: float = ACTIVE
    """λ."""


@dataclass(frozen=True)
class Protocol:
    """All settings of a study; checked when it is made."""

    data: DataProtocol = DataProtocol()
    backbones: BackboneProtocol = BackboneProtocol()
    repairs: RepairProtocol = RepairProtocol()
    batches: BatchProtocol = field(default_factory=BatchProtocol)
    oracle: OracleProtocol = OracleProtocol()
    version: int = 1
    """Raised when the meaning of all results changes without any number here doing so."""

    def __post_init__(self) -> None:
        check_tree(self)

    def settings(self) -> dict[str, Any]:
        """The tree as plain JSON values."""
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return tree

    def differences(self) -> dict[str, Any]:
        """What of the tree differs from the paper's."""
        return differences(self.settings())

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for the differences from the paper."""
        return digest_of(self.differences())


def differences(
    settings: Mapping[str, Any], paper: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part of a tree of settings that differs from the paper's.

    What the tree does not name is as in the paper; what the paper does not name is kept.
    """
    if paper is None:
        paper, settings = PAPER.settings(), _with_choices(settings)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        usual = paper.get(name)
        if isinstance(value, Mapping) and isinstance(usual, Mapping):
            below = differences(value, usual)
            # Only tables of names (batch sizes) may lack an entry that the paper has.
            gone = [key for key in usual if key not in value] if name == "sizes" else []
            below |= dict.fromkeys(gone)
            if below:
                found[name] = below
        elif name not in paper or value != usual:
            found[name] = value
    return found


def digest_of(tree: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``tree``, cut to twelve digits."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _with_choices(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tree with the choices it was run under before they could be made: the independent ones."""
    if "data" in settings:
        return settings
    independent = INDEPENDENT.settings()
    own = settings.get("backbones", {})
    chosen = {name: independent["backbones"][name] for name in ("self_loops", "zero_stream_biases")}
    backbones = {**chosen, **own} if isinstance(own, Mapping) else own
    return {**settings, "data": independent["data"], "backbones": backbones}


# Which values settings may take -------------------------------------------------------------------

_LARGEST = 2**31 - 1
"""Counts are 32-bit in some kernels, and nothing sensible comes near."""
_WIDEST = 65_536
"""A layer wider than any in use: such a number is a typing error that would fill the memory."""

Limit = tuple[Callable[[Any], bool], str]


def _whole(least: int, most: int = _LARGEST) -> Limit:
    return lambda value: least <= value <= most, f"from {least} to {most:,}"


_SHARE: Limit = (lambda value: 0 <= value < 1, "at least 0 and less than 1")
_POSITIVE: Limit = (lambda value: 0 < value < math.inf, "a positive finite number")
_NONNEGATIVE: Limit = (lambda value: 0 <= value < math.inf, "0 or a positive finite number")


def _one_of(*names: str) -> Limit:
    return lambda value: value in names, " or ".join(names)


LIMITS: dict[str, Limit] = {
    "draw": _one_of("torch", "numpy"),
    "self_loops": _one_of("one", "listed"),
    "hidden": _whole(1, _WIDEST),
    "heads": _whole(1, _WIDEST),
    "dropout": _SHARE,
    "seed": _whole(0),
    "epochs": _whole(1),
    "patience": _whole(1),
    "learning_rate": _POSITIVE,
    "weight_decay": _NONNEGATIVE,
    "clip": _POSITIVE,
    "size": _whole(1),
    "sizes": _whole(1),
    "smoothing_layers": _whole(1, 1_000_000),
    "reachable_above": _NONNEGATIVE,
    "active_above": _NONNEGATIVE,
    "version": _whole(1),
}
"""By the name of the setting, wherever it stands in the tree."""


def check_tree(node: Any, where: str = "") -> None:
    """Raise a sentence that names the first setting of a dataclass tree with a bad value."""
    hints = typing.get_type_hints(type(node))
    for part in dataclasses.fields(node):
        value, path = getattr(node, part.name), f"{where}{part.name}"
        hint = hints[part.name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, typing.cast(type, hint)):
                kind = getattr(hint, "__name__", "group")
                raise InputError(f"the setting {path} is {value!r}; it must be a {kind}")
            check_tree(value, f"{path}.")
        elif typing.get_origin(hint) is not None and isinstance(value, Mapping):
            for key, item in value.items():
                check_value(part.name, item, int, f"{path}.{key}")
        else:
            check_value(part.name, value, hint, path)


def check_value(name: str, value: Any, hint: Any, path: str) -> None:
    """Type and range of one setting."""
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{path} is {value!r}; it must be a list of names")
        return
    kinds = typing.get_args(hint) or (hint,)
    whole = float in kinds and type(value) is int
    if type(value) not in kinds and not whole:
        raise InputError(f"{path} is {_shown(value)}; it must be of type {kind_names(kinds)}")
    if value is None or isinstance(value, bool) or name not in LIMITS:
        return
    accepted, words = LIMITS[name]
    if not accepted(value):
        raise InputError(f"{path} is {_shown(value)}; it must be {words}")


def kind_names(kinds: tuple[Any, ...]) -> str:
    """``int or none``."""
    return " or ".join("none" if kind is type(None) else str(kind.__name__) for kind in kinds)


def _shown(value: Any) -> str:
    """A value as a sentence can hold it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number too long to write"
    return text if len(text) <= 60 else f"{text[:57]}…"


PAPER = Protocol()
"""The paper's own settings, as far as its text and its frozen models' figures identify them."""
INDEPENDENT = Protocol(
    data=DataProtocol(draw="numpy"),
    backbones=BackboneProtocol(self_loops="listed", zero_stream_biases=False),
)
"""The same with what the text leaves open chosen before any comparison with published figures."""
PROTOCOLS = {"paper": PAPER, "independent": INDEPENDENT}
"""Protocols with a name."""


# Changing settings by name ------------------------------------------------------------------------

LARGEST = 2**16
"""Bytes of a file of settings: all of them take two thousand, and parsing a path of n names takes
n² steps."""


def read_protocol(path: str | Path, base: Protocol = PAPER) -> Protocol:
    """``base`` with the fields that a TOML file names changed."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the protocol {str(path)[:200]}: {reason}") from error
    if len(content) > LARGEST:
        raise FileFormatError(f"the protocol {path} has more than {LARGEST:,} bytes; check it")
    try:
        changes = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise FileFormatError(
            f"the protocol {str(path)[:200]} is not TOML: {reason!s:.300}"
        ) from error
    return changed(base, changes)


def override(protocol: Protocol, assignments: Iterable[str]) -> Protocol:
    """``protocol`` with ``key.path=value`` assignments applied, in order."""
    if not isinstance(protocol, Protocol):
        raise InputError(f"{protocol!r} is not a Protocol; begin with gnn_repair.study.PAPER")
    if isinstance(assignments, str) or not isinstance(assignments, Iterable):
        raise InputError(f"{assignments!r} is not a list of settings such as backbones.hidden=64")
    for assignment in assignments:
        if not isinstance(assignment, str):
            raise InputError(f"{assignment!r} is not a setting such as backbones.hidden=64")
        key, equals, text = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not key.strip() or len(parts) > DEEPEST:
            raise InputError(f"{assignment[:80]!r} is not a setting such as backbones.hidden=64")
        value: Any = _literal(text.strip())
        for part in reversed(parts):
            value = {part: value}
        protocol = changed(protocol, value)
    return protocol


DEEPEST = 8
"""Names in a setting's path; the tree has three levels."""


def changed(protocol: Protocol, changes: Mapping[str, Any]) -> Protocol:
    """``protocol`` with a tree of changes applied; None takes an entry out of a table."""
    made: Protocol = _changed(protocol, changes, "")
    return made


def _literal(text: str) -> Any:
    """A value as TOML writes it; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _changed(node: Any, changes: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(type(node))
    new: dict[str, Any] = {}
    for name, value in changes.items():
        path = f"{where}{name}"
        if name not in hints:
            raise InputError(f"the protocol has no setting {path[:80]!r}; {_meant(node, path)}")
        current = getattr(node, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"{path} is a group of settings; set one of its fields")
            new[name] = _changed(current, value, f"{path}.")
        else:
            new[name] = _accepted(value, hints[name], current, path)
    return dataclasses.replace(node, **new)


def _meant(node: Any, path: str) -> str:
    """The setting that was probably meant; a group's own setting may lack the group's name."""
    where, _, name = path.rpartition(".")
    names = list(typing.get_type_hints(type(node)))
    groups = [each for each in names if dataclasses.is_dataclass(getattr(node, each))]
    inside = [f"{each}.{name}" for each in groups if hasattr(getattr(node, each), name)]
    if inside:
        return f"did you mean {' or '.join(f'{where}.{one}'.lstrip('.') for one in inside)}?"
    near = closest(name, names)
    if near is None:
        return f"choose from {', '.join(names)}"
    return f"did you mean {f'{where}.{near}'.lstrip('.')}?"


def _accepted(value: Any, hint: Any, current: Any, path: str) -> Any:
    """``value`` in the type the field asks for."""
    if isinstance(current, Mapping):
        return _table(value, current, path)
    if isinstance(current, tuple) and isinstance(value, list | str):
        value = tuple(value) if isinstance(value, list) else tuple(value.split(","))
    kinds = typing.get_args(hint) or (hint,)
    if value in ("none", "None") and type(None) in kinds:
        return None
    if float in kinds and type(value) is int and abs(value) < 2**53:
        value = float(value)
    check_value(path.rpartition(".")[2], value, hint, path)
    return value


def _table(value: Any, current: Mapping[str, int], path: str) -> dict[str, int]:
    """A table of whole numbers by name with some of its entries changed."""
    if not isinstance(value, Mapping):
        raise InputError(f"{path} is {value!r}; it must be a table such as {path}.cora=32")
    for key, item in value.items():
        if item is not None:
            check_value(path.rpartition(".")[2], item, int, f"{path}.{key}")
    return {k: v for k, v in {**current, **value}.items() if v is not None}
