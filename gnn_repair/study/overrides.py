"""Changing fields of a protocol by name, from the command line or a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gnn_repair.errors import FileFormatError, InputError
from gnn_repair.study.protocol import PAPER, Protocol


def read_protocol(path: str | Path, base: Protocol = PAPER) -> Protocol:
    """``base`` with the fields that a TOML file names changed."""
    try:
        with Path(path).open("rb") as file:
            changes = tomllib.load(file)
    except OSError as error:
        raise InputError(f"cannot read the protocol {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"the protocol {path} is not TOML: {error}") from error
    return _changed(base, changes, "")


def override(protocol: Protocol, assignments: Iterable[str]) -> Protocol:
    """``protocol`` with ``key.path=value`` assignments applied, in order."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{assignment!r} is not a setting such as backbones.hidden=64")
        value: Any = _literal(text.strip())
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        protocol = _changed(protocol, value, "")
    return protocol


def _literal(text: str) -> Any:
    """A value as TOML writes it; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _changed(node: Any, changes: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(type(node))
    new: dict[str, Any] = {}
    for name, value in changes.items():
        path = f"{where}{name}"
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {where}{near[0]}?" if near else f"choose from {', '.join(hints)}"
            raise InputError(f"the protocol has no setting {path!r}; {hint}")
        current = getattr(node, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"{path} is a group of settings; set one of its fields")
            new[name] = _changed(current, value, f"{path}.")
        else:
            new[name] = _accepted(value, hints[name], current, path)
    return dataclasses.replace(node, **new)


def _accepted(value: Any, hint: Any, current: Any, path: str) -> Any:
    """``value`` in the type the field asks for."""
    if isinstance(current, Mapping) and isinstance(value, Mapping):
        sizes = {key: _accepted(item, int, 0, f"{path}.{key}") for key, item in value.items()}
        return {**current, **sizes}
    if isinstance(current, tuple) and isinstance(value, list | str):
        return tuple(value) if isinstance(value, list) else tuple(value.split(","))
    kinds = typing.get_args(hint) or (hint,)
    if value in ("none", "None") and type(None) in kinds:
        return None
    if float in kinds and type(value) is int:
        value = float(value)
    if type(value) in kinds:
        if isinstance(value, int | float) and value < 0:
            raise InputError(f"{path} is {value}; it must not be negative")
        return value
    wanted = " or ".join("none" if kind is type(None) else str(kind.__name__) for kind in kinds)
    raise InputError(f"{path} is {value!r}; it must be of type {wanted}")
