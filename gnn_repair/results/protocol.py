"""Every number of the paper's protocol, and how to change one.

A protocol is a frozen tree of plain values. Its digest stands for the *differences* from the
paper's protocol and is part of every result's address: results of different settings never mix,
and a further setting with its default leaves every address as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from gnn_repair import budget
from gnn_repair.budget import Budget, as_list, check_real, check_switch, check_type, check_whole
from gnn_repair.errors import FileFormatError, InputError, closest
from gnn_repair.published import ACTIVE, REACHABLE

# Which values settings may take; budgets know their own ------------------------------------------

WIDEST = 65_536
"""A layer wider than any in use: such a number is a typing error that would fill the memory."""


def _check_one_of(*names: str) -> Check:
    def check(owner: str, name: str, value: object) -> None:
        if value not in names:
            raise InputError(f"{owner}: {name} is {value!r:.60}; choose from {', '.join(names)}")

    return check


def _check_sizes(owner: str, name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{owner}: {name} is {value!r:.60}; give a table such as {name}.cora=32")
    for key, size in value.items():
        check_whole(owner, f"{name}.{key}", size, 1)


def _check_names(owner: str, name: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{owner}: {name} is {value!r:.60}; give a list of names")


Check = Callable[[str, str, object], None]
CHECKS: dict[str, Check] = {
    "draw": _check_one_of("torch", "numpy"),
    "self_loops": _check_one_of("one", "listed"),
    "zero_stream_biases": check_switch,
    "hidden": partial(check_whole, least=1, most=WIDEST),
    "heads": partial(check_whole, least=1, most=WIDEST),
    "dropout": partial(check_real, low=0, high=1),
    "seed": partial(check_whole, least=0),
    "backbones": _check_names,
    "size": partial(check_whole, least=1),
    "sizes": _check_sizes,
    "smoothing_layers": partial(check_whole, least=1, most=1_000_000),
    "reachable_above": partial(check_real, low=0),
    "active_above": partial(check_real, low=0),
}
"""By the name of the setting, in whatever group it stands."""


@dataclass(frozen=True)
class _Group:
    """Settings that are checked when they are made."""

    def __post_init__(self) -> None:
        for part in dataclasses.fields(self):
            value = getattr(self, part.name)
            if part.type == "Budget":
                budget.with_budget(part.name, value, None, None)
            elif part.name in CHECKS:
                CHECKS[part.name](type(self).__name__, part.name, value)


@dataclass(frozen=True)
class DataProtocol(_Group):
    """What the datasets' files leave open."""

    draw: str = "torch"
    """Whose generator draws the splits of Cora, Citeseer and PubMed: torch or numpy."""


@dataclass(frozen=True)
class BackboneProtocol(_Group):
    """How backbones are built and trained."""

    hidden: int = 128
    heads: int = 8
    dropout: float = 0.5
    seed: int = 0
    """Of initialisation and dropout, the same on every split."""
    short: Budget = budget.SHORT
    """GCN, GAT and GraphSAGE."""
    long: Budget = budget.LONG
    """The five added backbones."""
    self_loops: str = "one"
    """Entries of a node with a self-loop of its own, where a convolution normalises or attends:
    one, or both that are listed."""
    zero_stream_biases: bool = True
    """Whether the biases of H2GCN's streams start at zero."""

    def budget(self, own: Budget) -> Budget:
        """The budget that stands for a backbone's ``own`` one; a budget of your own is kept."""
        if own == budget.SHORT:
            return self.short
        return self.long if own == budget.LONG else own


@dataclass(frozen=True)
class RepairProtocol(_Group):
    """How repairs and controls are built and trained."""

    hidden: int = 128
    """H, the width of the encoders and heads, and of the pooled set."""
    dropout: float = 0.2
    seed: int = 0
    reweighting: Budget = budget.REWEIGHTING
    set_translation: Budget = budget.TRANSLATION
    node_translation: Budget = budget.CONTROL
    refit_head: Budget = budget.REFIT
    evidence_ladder: Budget = budget.LADDER
    """Each rung of the evidence ladder, which is not from the paper."""
    smoothing_layers: int = 50
    """Propagation steps of correct-and-smooth, which is not from the paper."""


@dataclass(frozen=True)
class BatchProtocol(_Group):
    """Target nodes an update of a repair sees; full batch for all other backbones."""

    backbones: tuple[str, ...] = budget.BATCHED
    size: int = budget.BATCH
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(budget.BATCHES))
    """Datasets with a size of their own."""

    def of(self, dataset: str, backbone: str) -> int | None:
        """The batch size of a case; None: all targets at once."""
        return budget.paper_batch_size(
            dataset, backbone, backbones=self.backbones, size=self.size, sizes=self.sizes
        )


@dataclass(frozen=True)
class OracleProtocol(_Group):
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
        check_whole("Protocol", "version", self.version, 1)
        for name, kind in typing.get_type_hints(Protocol).items():
            value = getattr(self, name)
            if kind is not int and not isinstance(value, kind):
                raise InputError(f"the setting {name} is {value!r:.60}; give a {kind.__name__}")

    def settings(self) -> dict[str, Any]:
        """The tree as plain JSON values."""
        tree: dict[str, Any] = json.loads(json.dumps(asdict(self), default=_plain))
        return tree

    def differences(self) -> dict[str, Any]:
        """What of the tree differs from the paper's."""
        return differences(self.settings())

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for the differences from the paper."""
        return digest_of(self.differences())


def _plain(value: Any) -> int | float:
    """Numbers of NumPy and others as JSON has them."""
    return int(value) if isinstance(value, Integral) else float(value)


def differences(
    settings: Mapping[str, Any], paper: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part of a tree of settings that differs from the paper's.

    What the tree does not name is as in the paper; what the paper does not name is kept.
    """
    if paper is None:
        paper, settings = PAPER.settings(), _with_choices(settings)
    different: dict[str, Any] = {}
    for name, value in settings.items():
        usual = paper.get(name)
        if isinstance(value, Mapping) and isinstance(usual, Mapping):
            below = differences(value, usual)
            if name == "sizes":  # tables of names alone may lack an entry that the paper has
                below |= dict.fromkeys(key for key in usual if key not in value)
            if below:
                different[name] = below
        elif name not in paper or value != usual:
            different[name] = value
    return different


def digest_of(tree: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``tree``, cut to twelve digits."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _with_choices(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tree with the choices it was run under before they could be made: the independent ones."""
    if "data" in settings:
        return settings
    independent = INDEPENDENT.settings()
    stated = settings.get("backbones", {})
    chosen = {name: independent["backbones"][name] for name in ("self_loops", "zero_stream_biases")}
    backbones = {**chosen, **stated} if isinstance(stated, Mapping) else stated
    return {**settings, "data": independent["data"], "backbones": backbones}


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
        return with_changes(base, tomllib.loads(content.decode()))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        sentence = f"the protocol {str(path)[:200]} is not TOML: {reason!s:.300}"
        raise FileFormatError(sentence) from error


def override(protocol: Protocol, assignments: Iterable[str]) -> Protocol:
    """``protocol`` with ``key.path=value`` assignments applied, in order."""
    check_type("protocol", protocol, Protocol, "a Protocol such as gnn_repair.study.PAPER")
    for assignment in as_list("assignments", assignments, "settings such as backbones.hidden=64"):
        check_type("a setting", assignment, str, "one such as backbones.hidden=64")
        key, equals, text = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not key.strip() or len(parts) > DEEPEST:
            raise InputError(f"{assignment[:80]!r} is not a setting such as backbones.hidden=64")
        value: Any = _literal(text.strip())
        for part in reversed(parts):
            value = {part: value}
        protocol = with_changes(protocol, value)
    return protocol


DEEPEST = 8
"""Names in a setting's path; the tree has three levels."""


def with_changes(protocol: Protocol, changes: Mapping[str, Any]) -> Protocol:
    """``protocol`` with a tree of changes applied; None takes an entry out of a table."""
    new: Protocol = _changed(protocol, changes, "")
    return new


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
        if not dataclasses.is_dataclass(current):
            new[name] = _converted(value, current, hints[name])
        elif isinstance(value, Mapping):
            new[name] = _changed(current, value, f"{path}.")
        else:
            raise InputError(f"{path} is a group of settings; set one of its fields")
    try:
        return dataclasses.replace(node, **new)
    except InputError as error:  # its owner is named by where it stands
        raise InputError(where + str(error).partition(": ")[2]) from error


def _meant(node: Any, path: str) -> str:
    """The setting that was probably meant; a group's own setting may lack the group's name."""
    where, _, name = path.rpartition(".")
    names = list(typing.get_type_hints(type(node)))
    groups = [each for each in names if dataclasses.is_dataclass(getattr(node, each))]
    inside = [f"{each}.{name}" for each in groups if hasattr(getattr(node, each), name)]
    if inside:
        return f"did you mean {' or '.join(f'{where}.{each}'.lstrip('.') for each in inside)}?"
    near = closest(name, names)
    if near is None:
        return f"choose from {', '.join(names)}"
    return f"did you mean {f'{where}.{near}'.lstrip('.')}?"


def _converted(value: Any, current: Any, hint: Any) -> Any:
    """What TOML or an assignment can write, in the type the field asks for; others as they are."""
    if isinstance(current, Mapping) and isinstance(value, Mapping):
        return {key: size for key, size in {**current, **value}.items() if size is not None}
    if isinstance(current, tuple) and isinstance(value, list | str):
        return tuple(value) if isinstance(value, list) else tuple(value.split(","))
    if value in ("none", "None") and type(None) in typing.get_args(hint):
        return None
    return float(value) if hint is float and type(value) is int and abs(value) < 2**53 else value
