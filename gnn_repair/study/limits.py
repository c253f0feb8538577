"""Which values the settings of a protocol may take."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gnn_repair.errors import InputError

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
    for field in dataclasses.fields(node):
        value, path = getattr(node, field.name), f"{where}{field.name}"
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, typing.cast(type, hint)):
                kind = getattr(hint, "__name__", "group")
                raise InputError(f"the setting {path} is {value!r}; it must be a {kind}")
            check_tree(value, f"{path}.")
        elif typing.get_origin(hint) is not None and isinstance(value, Mapping):
            for key, item in value.items():
                check_value(field.name, item, int, f"{path}.{key}")
        else:
            check_value(field.name, value, hint, path)


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
