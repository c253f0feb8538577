"""Changing fields of a protocol by name, from the command line or a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.study.limits import check_value
from gnn_repair.study.protocol import PAPER, Protocol
from gnn_repair.suggestion import closest

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
